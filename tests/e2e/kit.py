"""What the end-to-end tests share: the real command in a clean environment, trainers, real workers, and patience."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from typing import TYPE_CHECKING, Any, NamedTuple

import trainq

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

COMMAND = (sys.executable, "-m", "trainq")
HOUSE = os.path.dirname(os.path.dirname(os.path.abspath(trainq.__file__)))
FAST = {
    "TRAINQ_TIMES_HEARTBEAT": "0.5s",
    "TRAINQ_TIMES_HOLDER_LIMIT": "2s",
    "TRAINQ_TIMES_ZOMBIE_AFTER": "4s",
    "TRAINQ_TIMES_POLL": "0.2s",
    "TRAINQ_TIMES_GRACE": "1s",
}
# So far apart that what happens within a test happened for another reason.
FAR = {
    "TRAINQ_TIMES_HEARTBEAT": "70s",
    "TRAINQ_TIMES_HOLDER_LIMIT": "200s",
    "TRAINQ_TIMES_ZOMBIE_AFTER": "300s",
    "TRAINQ_TIMES_POLL": "70s",
}
TRAINERS = {
    # Writes what it was given as its model.
    "ok": "import json, os\n"
    "given = {'params': json.load(open(os.environ['TRAINQ_PARAMS'])), 'data': os.environ.get('TRAINQ_DATA')}\n"
    "json.dump(given, open(os.environ['TRAINQ_MODEL_DIR'] + '/model.json', 'w'))\n"
    "print('trained')\n",
    # Runs until the file `go` stands in its working directory, or a minute.
    "slow": "import os, time\n"
    "print('begun', flush=True)\n"
    "end = time.monotonic() + 60\n"
    "while not os.path.exists('go') and time.monotonic() < end: time.sleep(0.02)\n",
    "bad": "raise ValueError('no such luck')\n",
}


class Result(NamedTuple):
    """What a command answered."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


class Tq:
    """The command on one root. Files of jobs go to `dir`, which is the working directory of every call."""

    def __init__(self, directory: Path) -> None:
        self.dir = directory / "work"
        self.root = str(directory / "root")
        self.home = directory / "home"
        self.command = COMMAND
        self.dir.mkdir()
        self.home.mkdir()
        self.env = {
            "PATH": f"{os.path.dirname(sys.executable)}:/usr/local/bin:/usr/bin:/bin",
            "HOME": str(self.home),
            "LANG": "C.UTF-8",
            "PYTHONPATH": HOUSE,
            **FAST,
        }

    def __call__(
        self,
        *words: object,
        env: dict[str, str | None] | None = None,
        input: str | bytes = b"",  # noqa: A002
        root: str | None = "",
        cwd: str | os.PathLike[str] | None = None,
        timeout: float = 60,
        before: tuple[str, ...] = (),
    ) -> Result:
        """Run it with `--root` (None: without) and look at the answer. A value of None in `env` unsets; `before` are the
        words of a program that starts it."""
        where = () if root is None else ("--root", root or self.root)
        done = subprocess.run(
            [*before, *self.command, *where, *(word if isinstance(word, bytes) else str(word) for word in words)],
            input=input.encode() if isinstance(input, str) else input,
            capture_output=True,
            env=self.environment(env),
            cwd=cwd or self.dir,
            timeout=timeout,
            check=False,
        )
        return Result(
            done.returncode, done.stdout.decode(errors="surrogateescape"), done.stderr.decode(errors="replace")
        )

    def environment(self, more: dict[str, str | None] | None = None) -> dict[str, str]:
        return {name: value for name, value in {**self.env, **(more or {})}.items() if value is not None}

    def ok(self, *words: object, **how: Any) -> Result:
        """As a call, and it must exit 0."""
        result = self(*words, **how)
        assert result.code == 0, result
        return result

    def types(self, more: str = "", **settings: str) -> None:
        """Write trainers and a trainq.toml with the types ok, slow and bad; `settings` are sections."""
        for name, text in TRAINERS.items():
            (self.dir / f"{name}.py").write_text(text)
        sections = "".join(f"[{name}]\n{text}\n" for name, text in settings.items())
        types = "".join(f'[types.{name}]\nrun = ["python", "{name}.py"]\n' for name in TRAINERS)
        types = types.replace('"ok.py"]\n', '"ok.py"]\nmodel = "required"\n')
        with open(os.path.join(self.root, "trainq.toml"), "w", encoding="utf-8") as file:
            file.write(sections + types + more)

    def submit(self, *words: object, **how: Any) -> int:
        """Put a job in; its id."""
        return int(self.ok("submit", *words, **how).out)

    def job(self, number: int) -> Any:
        """The whole card of a job."""
        return self.ok("status", str(number), "--json").json

    def jobs(self, *words: str) -> list[Any]:
        """All jobs, oldest first."""
        found: list[Any] = self.ok("status", "--all", "--limit", "10000", "--json", *words).json["items"]
        return sorted(found, key=lambda job: job["id"])

    def state(self, number: int) -> str:
        return str(self.job(number)["state"])

    def models(self, *words: str) -> list[Any]:
        """The versions that `models list` shows."""
        found: list[Any] = self.ok("models", "list", "--json", *words).json["items"]
        return found

    def work(self, *words: str, **how: Any) -> Result:
        """A worker until nothing waits at all."""
        return self.ok("worker", "--until", "empty", *words, **how)

    def script(self, name: str, text: str) -> Path:
        """Write a file into the working directory."""
        path = self.dir / name
        path.write_text(textwrap.dedent(text).lstrip("\n"))
        return path

    def history(self, selector: int | str) -> list[Any]:
        """The moves of a job, oldest first."""
        found: list[Any] = self.ok("history", str(selector), "--json").json["items"]
        return found

    @contextlib.contextmanager
    def worker(
        self, *words: str, env: dict[str, str | None] | None = None, before: tuple[str, ...] = (),
        command: tuple[str, ...] = (),
    ) -> Iterator[Worker]:  # fmt: skip
        """A real worker process, at work when the block begins, gone when it has ended."""
        log = self.dir / f"worker-{time.monotonic_ns()}.log"
        with log.open("wb") as file:
            process = subprocess.Popen(
                [*before, *(command or self.command), "--root", self.root, "worker", "--log-format", "json", *words],
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=file, env=self.environment(env), cwd=self.dir,
            )  # fmt: skip
        worker = Worker(process, log)
        try:
            until(lambda: worker.said("started") or process.poll() is not None)
            yield worker
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
                try:
                    process.wait(5)
                except subprocess.TimeoutExpired:
                    process.kill()
            process.communicate()


class Worker:
    """A worker process and what it says."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self.process = process
        self.pid = process.pid
        self._log = log

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def said(self, kind: str) -> list[Any]:
        """The events of this kind so far."""
        lines = self.log.rpartition("\n")[0].splitlines()
        events = [json.loads(line) for line in lines if line.startswith("{")]
        return [event for event in events if event["event"] == kind]

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def end(self, timeout: float = 30) -> Result:
        """Wait until it has ended by itself."""
        out, _ = self.process.communicate(timeout=timeout)
        return Result(self.process.returncode, out.decode(), self.log)


def until(look: Callable[[], Any], timeout: float = 30) -> Any:
    """Look again and again until there is something to see."""
    end = time.monotonic() + timeout
    while True:
        seen = look()
        if seen:
            return seen
        assert time.monotonic() < end, f"waited {timeout} s in vain, last seen: {seen!r}"
        time.sleep(0.02)


# Starts a program that takes this host for another one: a name of its own, in a namespace of its own.
ELSEWHERE = ("unshare", "--user", "--map-root-user", "--uts", "sh", "-c", 'hostname elsewhere; exec "$@"', "-")


def children(pid: int) -> list[int]:
    """The processes that this one has started or taken over."""
    found: list[int] = []
    for task in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{task}/children", encoding="ascii") as file:
            found += map(int, file.read().split())
    return found


def status_of(pid: int) -> str:
    """The letter of a process's state: R, S, T, Z …; empty when it is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0].decode()
    except (FileNotFoundError, ProcessLookupError):
        return ""


def alive(pid: int) -> bool:
    """Whether a process of this number is there and no corpse."""
    return status_of(pid) not in ("", "Z", "X")
