"""The lab as the tests see it: hosts to run commands on, a network to cut, and the server's own view.

`nfslab` boots one small machine in which each host has its own network, mounts, process table, clock of the NFS lease
and page cache. It is many times slower than hardware: what is asserted here is behaviour, and figures are ratios.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shlex
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

NFSLAB = str(Path(__file__).with_name("nfslab"))
HOUSE = str(Path(__file__).parents[2])
HOSTS = ("h1", "h2", "h3")
"""A fourth one, h4, is only for crowds."""
MOUNT = "/mnt/q"
FAST = {
    "TRAINQ_TIMES_HEARTBEAT": "2s", "TRAINQ_TIMES_HOLDER_LIMIT": "12s", "TRAINQ_TIMES_ZOMBIE_AFTER": "24s",
    "TRAINQ_TIMES_GRACE": "2s",
}  # fmt: skip
"""Above the lab's lease of 15 s, so that a cut host loses its locks before its jobs are given away."""


class Result(NamedTuple):
    """What a command did."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


def nfslab(*words: str, timeout: float = 900, **env: str) -> Result:
    done = subprocess.run(
        [NFSLAB, *words], capture_output=True, text=True, timeout=timeout, env={**os.environ, **env}, cwd=HOUSE
    )
    return Result(done.returncode, done.stdout, done.stderr)


def boot(version: str) -> None:
    """A fresh machine whose hosts mount with this version of NFS, with this checkout installed."""
    nfslab("down")
    for words in (("up", "4"), ("push", ".")):
        done = nfslab(*words, NFSLAB_OPTS=f"vers={version}")
        assert done.code == 0, done


def on(host: str, *words: str, env: dict[str, str] | None = None, timeout: float = 900) -> Result:
    """Run a command on a host."""
    variables = [f"{name}={value}" for name, value in (env or {}).items()]
    return nfslab("on", host, *(["env", *variables] if variables else []), *words, timeout=timeout)


def sh(line: str) -> str:
    """Run a shell line on the file server."""
    done = nfslab("sh", line)
    assert done.code == 0, done
    return done.out


class Queue:
    """A queue on the mount, as seen from any host."""

    def __init__(self, name: str) -> None:
        self.root = f"{MOUNT}/{name}"
        self.env = dict(FAST)
        self._started: list[subprocess.Popen[str]] = []

    def __call__(self, host: str, *words: object, before: tuple[str, ...] = (), **env: str) -> Result:
        """Run trainq there."""
        return on(host, *before, "trainq", "--root", self.root, *map(str, words), env={**self.env, **env})

    def ok(self, host: str, *words: object, **how: Any) -> Result:
        done = self(host, *words, **how)
        assert done.code == 0, done
        return done

    def submit(self, host: str, *words: object) -> int:
        return int(self.ok(host, "submit", *words).out)

    def state(self, host: str, number: int) -> str:
        return str(self.ok(host, "status", number, "--json").json["state"])

    def start(self, host: str, *words: object, before: tuple[str, ...] = ()) -> subprocess.Popen[str]:
        """Start trainq there and leave it running; ended by `end`."""
        variables = [f"{name}={value}" for name, value in self.env.items()]
        command = ["env", *variables, *before, "trainq", "--root", self.root, *map(str, words)]
        process = subprocess.Popen(
            [NFSLAB, "on", host, *command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=HOUSE
        )
        self._started.append(process)
        return process

    @contextlib.contextmanager
    def worker(self, host: str, *words: object, before: tuple[str, ...] = ()) -> Iterator[subprocess.Popen[str]]:
        """A worker at work on that host."""
        name = f"w-{host}-{len(self._started)}"
        process = self.start(host, "worker", "--name", name, *words, before=before)
        until(lambda: any(one["name"] == name for one in self.ok("h3", "workers", "--json").json["items"]))
        yield process

    def end(self) -> None:
        """Give every host its network back, and end all that runs."""
        for host in HOSTS:
            nfslab("heal", host)
            on(host, "pkill", "-9", "-f", self.root)
        for process in self._started:
            process.kill()
            process.communicate()


def until(look: Callable[[], Any], patience_s: float = 120) -> Any:
    """Look until it is so."""
    end = time.monotonic() + patience_s
    while not (found := look()):
        assert time.monotonic() < end
        time.sleep(0.5)
    return found


TRAIL = """
import os, sys, time
path = "/tmp/{root}-{job}-{attempt}-{pid}".format(
    root=os.path.basename(os.environ["TRAINQ_ROOT"]), job=os.environ["TRAINQ_JOB_ID"],
    attempt=os.environ["TRAINQ_ATTEMPT"], pid=os.getpid())
with open(path, "w", buffering=1) as file:
    end = time.monotonic() + float(sys.argv[1])
    while time.monotonic() < end:
        file.write("%.3f\\n" % time.monotonic())
        time.sleep(0.05)
"""
"""A training that notes when it computes. All hosts have the clock of one kernel, so their notes can be compared."""


def put_trail() -> str:
    """The path of that training, on every host."""
    path = f"{MOUNT}/trail.py"
    sh(f"cat > /srv/q/trail.py <<'END'\n{TRAIL}\nEND")
    return path


class Span(NamedTuple):
    """When an attempt computed without a break, by the kernel's clock."""

    host: str
    attempt: int
    begin: float
    end: float


def spans(queue: Queue, pause_s: float = 1.0) -> dict[int, list[Span]]:
    """When and where each job computed, in order."""
    notes: dict[tuple[int, int, str, str], list[float]] = {}
    mark = f"{queue.root.rpartition('/')[2]}-"
    for host in HOSTS:
        listing = on(host, "sh", "-c", f"cd /tmp; grep -H . {mark}* 2>/dev/null").out
        for path, _, moment in (line.partition(":") for line in listing.splitlines()):
            job, attempt, pid = path.removeprefix(mark).split("-")
            notes.setdefault((int(job), int(attempt), host, pid), []).append(float(moment))
    found: dict[int, list[Span]] = {}
    for (job, attempt, host, _), moments in notes.items():
        begin = last = moments[0]
        for moment in (*moments[1:], None):
            if moment is None or moment - last > pause_s:
                found.setdefault(job, []).append(Span(host, attempt, begin, last))
                begin = moment or last
            last = moment or last
    return {job: sorted(each, key=lambda span: span.begin) for job, each in found.items()}


def are_apart(found: list[Span]) -> bool:
    """Whether no two of them computed at once."""
    return all(one.end < two.begin or one[:2] == two[:2] for one, two in itertools.pairwise(found))


def rpcs(host: str) -> dict[str, int]:
    """How many calls of each kind this host has made to the file server so far."""
    counts: dict[str, int] = {}
    text = on(host, "cat", "/proc/self/mountstats").out
    after = text.partition(f" mounted on {MOUNT} ")[2].partition("\ndevice ")[0].partition("per-op statistics")[2]
    for line in after.splitlines():
        name, colon, numbers = line.strip().partition(":")
        if colon and name.isupper():
            counts[name] = int(numbers.split()[0])
    return counts


def spent(before: dict[str, int], after: dict[str, int]) -> dict[str, int]:
    """What was called between two counts; what a host says to keep its lease is left out."""
    idle = ("SEQUENCE", "RENEW", "NULL", "FSINFO", "FSSTAT", "STATFS")
    return {name: n - before.get(name, 0) for name, n in after.items() if n != before.get(name, 0) and name not in idle}


def quoted(*words: str) -> str:
    return " ".join(map(shlex.quote, words))
