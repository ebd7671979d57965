"""Minutes of random kills: `python -m tests.crash.soak [--minutes M] [--kills N] [--seed S] [--place DIR]`.

Submitters, three workers, janitors and somebody who cancels and retries work on one queue while workers, keepers,
trainers, janitors and submitters are killed (-9) at random and workers are stopped past zombie-after. Then everything
is drained and judged. Exit 1 unless nothing is lost, double, wrong, left over or broken.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

from tests.crash.verdict import judge
from trainq.ops.queue import open_queue
from trainq.store import jobs

if TYPE_CHECKING:
    from collections.abc import Callable

HERE = os.path.dirname(os.path.abspath(__file__))
HOUSE = os.path.dirname(os.path.dirname(HERE))
SETTINGS = {
    "TRAINQ_TIMES_HEARTBEAT": "0.5s", "TRAINQ_TIMES_HOLDER_LIMIT": "2s", "TRAINQ_TIMES_ZOMBIE_AFTER": "4s",
    "TRAINQ_TIMES_POLL": "0.2s", "TRAINQ_TIMES_GRACE": "1s", "TRAINQ_KEEP_FILE_GRACE": "3s",
    "TRAINQ_LIMITS_MAX_ATTEMPTS": "1000", "TRAINQ_LIMITS_BREAKER": "0",
}  # fmt: skip
KINDS = ("plain", "model", "counter", "setsid", "stubborn", "requeue", "flaky", "failing", "large", "long")
WEIGHTS = (6, 6, 4, 3, 3, 2, 2, 1, 3, 3)
SHARES = {"trainer": 44, "keeper": 14, "worker": 12, "worker with keepers": 4, "janitor": 13, "submitter": 13}
WORKERS, WAITING_MOST, STOP_S, DRAIN_S = 3, 40, 8.0, 240.0


class Soak:
    """The queue, the processes on it, and what is known of every job."""

    def __init__(self, place: str, seed: int, kills: int, minutes: float) -> None:
        self.place, self.chance = place, random.Random(seed)
        self.root, self.side, self.work = (os.path.join(place, name) for name in ("root", "side", "work"))
        self.env = {"PATH": os.environ["PATH"], "HOME": place, "LANG": "C.UTF-8", "PYTHONPATH": HOUSE, **SETTINGS}
        self.ends_at = time.monotonic() + minutes * 60
        self.every_s = minutes * 60 / kills
        self.kills: Counter[str] = Counter()
        self.said: Counter[str] = Counter()
        self.acknowledged: set[int] = set()
        self.may_be: dict[int, set[str]] = {}
        self.workers: list[subprocess.Popen[bytes]] = []
        self.short: list[tuple[subprocess.Popen[bytes], float | None, str, Callable[[int, str, str], None]]] = []
        self.trouble: list[str] = []
        self.stopped: tuple[subprocess.Popen[bytes], float] | None = None

    def prepare(self) -> None:
        os.mkdir(self.side)
        os.mkdir(self.work)
        subprocess.run(self._command("init", self.root), env=self.env, check=True, stdout=subprocess.DEVNULL)
        trainer = json.dumps([sys.executable, "-E", os.path.join(HERE, "trainer.py"), "model", self.side])
        with open(os.path.join(self.root, "trainq.toml"), "w", encoding="utf-8") as file:
            file.write(f'[types.model]\nrun = {trainer}\nmodel = "required"\nkey = "m/{{param.k}}"\nkeep = 3\n')
        self.queue = open_queue(self.root)
        self.sets = [(f"set{n}.bin", os.urandom(2 << 20)) for n in range(4)]
        for name, data in self.sets:
            with open(os.path.join(self.work, name), "wb") as file:
                file.write(data)

    # processes -----------------------------------------------------------------------------------------------

    def _command(self, *words: object) -> list[str]:
        return [sys.executable, "-m", "trainq", *map(str, words)]

    def _start(
        self, kind: str, words: tuple[object, ...], then: Callable[[int, str, str], None], text: str = ""
    ) -> None:
        """A short command; it may be killed while it runs, when that kind's turn comes."""
        process = subprocess.Popen(
            self._command("--root", self.root, *words), env=self.env, cwd=self.work, stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(text.encode())
            process.stdin.close()
        process.stdin = None
        kill_at = None
        if kind in self.wanted and self.wanted[kind] > 0:
            self.wanted[kind] -= 1
            kill_at = time.monotonic() + self.chance.uniform(0.02, 0.5)
        self.short.append((process, kill_at, kind, then))

    wanted: Counter[str] = Counter()

    def _hear(self) -> None:
        """Kill the short commands that are due and take the answers of those that ended."""
        for entry in list(self.short):
            process, kill_at, kind, then = entry
            if process.poll() is None:
                if kill_at is not None and time.monotonic() >= kill_at:
                    process.kill()
                continue
            self.short.remove(entry)
            out, err = process.communicate()
            if process.returncode == -signal.SIGKILL:
                self.kills[kind] += 1
            elif kill_at is not None:
                self.wanted[kind] += 1  # it was faster: the next one then
            if "Traceback" in err.decode():
                self.trouble.append(f"{kind}: {err.decode()}")
            then(process.returncode, out.decode(), err.decode())

    def _keep_workers(self) -> None:
        for process in [one for one in self.workers if one.poll() is not None]:
            self.workers.remove(process)
            self.said[f"worker ended {process.returncode}"] += 1
            if process.returncode not in (0, 1, -signal.SIGKILL):
                self.trouble.append(f"a worker ended with {process.returncode} by itself")
        while len(self.workers) < WORKERS:
            with open(os.path.join(self.place, "workers.log"), "ab") as log:
                words = ("--root", self.root, "worker", "--slots", "2", "--log-format", "json")
                self.workers.append(
                    subprocess.Popen(self._command(*words), env=self.env, cwd=self.work, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
                )  # fmt: skip

    # what is done ----------------------------------------------------------------------------------------------

    def submit(self) -> None:
        """A job of some kind. A killed trainer costs a retry, so each has plenty, and no wait that doubles."""
        kind = self.chance.choices(KINDS, WEIGHTS)[0]
        line: dict[str, Any] = {"name": kind}
        if kind == "model":
            line |= {"type": "model", "params": {"k": self.chance.randrange(5)}, "seed": self.chance.randrange(1 << 30)}
        else:
            line["argv"] = [
                sys.executable,
                *(("-E",) if kind == "counter" else ("-E", "-S")),
                os.path.join(HERE, "trainer.py"),
                kind,
                self.side,
            ]
        if kind == "counter":
            line["argv"][1:2] = []
        line |= {"retries": 1000, "retry_on": "signal,exit" if kind == "flaky" else "signal", "backoff": "0s"}
        if kind == "large":
            name, data = self.chance.choice(self.sets)
            line |= {"data": {"": name}, "params": {"digest": hashlib.sha256(data).hexdigest()}}
        lines = [line] if kind in ("model", "large") else [line] * self.chance.randrange(1, 3)
        self._start("submitter", ("submit", "--from", "-"), self._submitted, "\n".join(map(json.dumps, lines)))

    def _submitted(self, code: int, out: str, err: str) -> None:
        if code == 0:
            self.acknowledged |= set(map(int, out.split()))
        elif code != -signal.SIGKILL:
            self.said[f"submit {code}: {err.strip()[:200]}"] += 1
        elif out:
            self.acknowledged |= {int(line) for line in out.split("\n")[:-1]}

    def prune(self) -> None:
        self._start("janitor", ("prune", "--older-than", "40s"), self._pruned)

    def _pruned(self, code: int, out: str, err: str) -> None:
        if code not in (0, -signal.SIGKILL):
            self.said[f"prune {code}: {err.strip()[:300]}"] += 1

    def meddle(self) -> None:
        """Cancel or retry one of the newest jobs; what it may end as follows from the answer."""
        if not self.acknowledged:
            return
        number = self.chance.choice(sorted(self.acknowledged)[-40:])
        if number in self.busy:
            return
        self.busy.add(number)
        verb = self.chance.choice(("cancel", "cancel", "retry"))

        def then(code: int, out: str, err: str) -> None:
            self.busy.discard(number)
            before = self.may_be.setdefault(number, {"asked"})
            result = json.loads(out)["items"][0]["result"] if code == 0 else None
            if verb == "cancel" and result in ("canceled", "canceling"):
                self.may_be[number] = {"canceled"}
            elif verb == "retry" and result == "retried":
                self.may_be[number] = {"asked"}
            elif code in (0, 3, 4):
                pass  # it had ended otherwise, or is active
            else:
                self.may_be[number] = before | {"canceled", "asked"}
                self.said[f"{verb} {code}: {err.strip()[:200]}"] += 1

        self._start("meddler", (verb, str(number), "--json"), then)

    busy: set[int] = set()

    def kill(self) -> None:
        """Kill one process of a kind that is drawn; a short command dies while it runs."""
        kind = self.chance.choices(list(SHARES), list(SHARES.values()))[0]
        if kind in ("janitor", "submitter"):
            self.wanted[kind] += 1
            return
        processes = [one for one in self.workers if one.poll() is None]
        if kind.startswith("worker"):
            one = self.chance.choice(processes)
            both = self._keepers({one.pid}) if kind == "worker with keepers" else []
            self.kills[kind] += 1
            one.kill()
            for pid in both:
                _kill(pid)
            return
        found = self._trainers() if kind == "trainer" else self._keepers({one.pid for one in processes})
        if found and _kill(self.chance.choice(found)):
            self.kills[kind] += 1
        else:
            self.missed += 1

    missed = 0

    def _trainers(self) -> list[int]:
        mark = self.side.encode()
        return [pid for pid, line in _processes() if line.endswith(mark + b"\0") and b"trainer.py" in line]

    def _keepers(self, workers: set[int]) -> list[int]:
        keepers = [pid for pid, line in _processes() if b"start_keepers.py" in line]
        return [pid for pid in keepers if _parent(pid) in workers]

    def stop_or_go_on(self) -> None:
        """A worker is stopped past zombie-after, then goes on."""
        if self.stopped is None:
            one = self.chance.choice(self.workers)
            one.send_signal(signal.SIGSTOP)
            self.stopped = one, time.monotonic() + self.chance.uniform(1.0, STOP_S)
            self.kills["(stopped)"] += 1
        elif time.monotonic() >= self.stopped[1]:
            self.stopped[0].send_signal(signal.SIGCONT)
            self.stopped = None

    # the whole -------------------------------------------------------------------------------------------------

    def run(self) -> None:
        every = {self.submit: 0.35, self.prune: 1.0, self.meddle: 0.9, self.stop_or_go_on: 3.0}
        due = {do: time.monotonic() + 2 for do in (*every, self.kill)}
        shown = time.monotonic()
        while time.monotonic() < self.ends_at:
            self._keep_workers()
            self._hear()
            while time.monotonic() >= due[self.kill]:  # these are caught up with, however slow the machine is
                due[self.kill] += self.every_s
                self.kill()
            for do, each_s in every.items():
                if time.monotonic() < due[do]:
                    continue
                due[do] = max(due[do] + each_s, time.monotonic() - 5)
                if do == self.submit and (len(self.short) > 8 or self._waiting() > WAITING_MOST):
                    continue
                if do == self.prune and sum(kind == "janitor" for _, _, kind, _ in self.short) > 2:
                    continue
                do()
            if time.monotonic() - shown > 30:
                shown = time.monotonic()
                print(
                    f"… {sum(self.kills.values())} kills, {len(self.acknowledged)} jobs, {self._waiting()} wait",
                    flush=True,
                )
            time.sleep(0.02)

    _looked = 0.0
    _seen = 0

    def _waiting(self) -> int:
        """How many jobs wait, looked at once a second."""
        if time.monotonic() - self._looked > 1:
            self._looked = time.monotonic()
            with self.queue.session.reading() as tx:  # needs no gate, which a stopped worker may hold
                self._seen = jobs.count_active(tx)
        return self._seen

    def drain(self) -> bool:
        """Let all that is left come to its end, without another kill; whether it did in time."""
        if self.stopped is not None:
            self.stopped[0].send_signal(signal.SIGCONT)
        self.wanted.clear()
        until, prune_at = time.monotonic() + DRAIN_S, 0.0
        while (self.short or self._waiting()) and time.monotonic() < until:
            self._keep_workers()
            self._hear()
            if time.monotonic() > prune_at:
                prune_at = time.monotonic() + 1
                self.prune()
            time.sleep(0.05)
        is_drained = not self._waiting()
        for one in self.workers:
            one.send_signal(signal.SIGTERM)
        for one in self.workers:
            one.wait(30)
            self.said[f"worker ended {one.returncode} at the end"] += 1
        time.sleep(3.5)  # past file_grace
        for _ in range(2):
            subprocess.run(
                self._command("--root", self.root, "prune"), env={**self.env, "TRAINQ_KEEP_FILE_GRACE": "0s"}, cwd=self.work,
                stdout=subprocess.DEVNULL, check=False,
            )  # fmt: skip
        return is_drained

    def left(self) -> list[str]:
        """Processes that are there still: by root in their words or environment."""
        mark = self.place.encode()
        found = []
        for pid, line in _processes():
            if pid == os.getpid():
                continue
            with contextlib.suppress(OSError), open(f"/proc/{pid}/environ", "rb") as file:
                if mark in line or mark in file.read():
                    found.append(f"{pid} {line.replace(bytes(1), b' ').decode(errors='replace')[:200]}")
        return found


def _processes() -> list[tuple[int, bytes]]:
    found = []
    for name in os.listdir("/proc"):
        if name.isdecimal():
            with contextlib.suppress(OSError), open(f"/proc/{name}/cmdline", "rb") as file:
                found.append((int(name), file.read()))
    return found


def _parent(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return int(file.read().rpartition(b")")[2].split()[1])
    except (OSError, IndexError):
        return 0


def _kill(pid: int) -> bool:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


def words_of(log: str) -> Counter[str]:
    """What the workers said besides their jobs, without the numbers."""
    said: Counter[str] = Counter()
    with open(log, encoding="utf-8", errors="replace") as file:
        for line in file:
            event = (
                json.loads(line)
                if line.startswith("{") and line.endswith("}\n")
                else {"event": "line", "message": line}
            )
            if event["event"] in ("line", "trouble", "claim lost", "quarantined", "queue paused"):
                said[re.sub("[0-9]+", "N", f"worker: {event['event']} {event.get('message', '')}".strip())] += 1
    return said


def report(soak: Soak, seconds: float, drained: bool) -> int:
    left = soak.left()
    verdict = judge(soak.root, soak.side, soak.acknowledged, soak.may_be)
    kills = {kind: n for kind, n in sorted(soak.kills.items()) if kind != "(stopped)"}
    print(f"{seconds:.0f} s: {verdict.jobs} jobs, {len(soak.acknowledged)} acknowledged, {verdict.attempts} attempts")
    print(
        f"{sum(kills.values())} kills: {kills}; workers stopped: {soak.kills['(stopped)']}; found nobody: {soak.missed}"
    )
    bad = {
        "lost": verdict.lost, "double": verdict.double, "wrong done": verdict.wrong, "processes left": left,
        "invariants broken": verdict.broken, "tracebacks": soak.trouble, "not drained": [] if drained else ["time was out"],
    }  # fmt: skip
    for what, lines in bad.items():
        print(f"{what}: {len(lines)}")
        for line in lines[:20]:
            print(f"  {line}")
    soak.said += words_of(os.path.join(soak.place, "workers.log"))
    print("said:", *(f"\n  {n} times: {what}" for what, n in sorted(soak.said.items())))
    return 1 if any(bad.values()) else 0


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--kills", type=int, default=2200)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 30))
    parser.add_argument("--place", help="a directory on a real disk")
    args = parser.parse_args()
    place = tempfile.mkdtemp(prefix="trainq-soak-", dir=args.place)
    print(f"seed {args.seed}, in {place}", flush=True)
    began = time.monotonic()
    soak = Soak(place, args.seed, args.kills, args.minutes)
    soak.prepare()
    try:
        soak.run()
        drained = soak.drain()
    finally:
        for one in soak.workers:
            if one.poll() is None:
                one.kill()
    code = report(soak, time.monotonic() - began, drained)
    if code == 0:
        shutil.rmtree(place)
    return code


if __name__ == "__main__":
    sys.exit(main())
