"""What many tests share: a fresh queue, and the command line as a real process."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

# Whoever runs the tests may ignore a signal (nohup), and a worker keeps what it inherits: tests start from the default.
for _number in (signal.SIGHUP, signal.SIGTERM, signal.SIGINT):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, signal.SIG_DFL if _number != signal.SIGINT else signal.default_int_handler)

REPOSITORY = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


class Ran(NamedTuple):
    """What a command did."""

    code: int
    out: str
    err: str
    raw: bytes

    @property
    def json(self) -> Any:
        """The one document on stdout; fails when there is none, or more than one."""
        assert self.out.count("\n") == 1, self
        assert self.out.endswith("\n"), self
        return json.loads(self.out)

    @property
    def ids(self) -> list[int]:
        return [int(line) for line in self.out.split()]


def environment(**more: str | None) -> dict[str, str]:
    """The environment of the commands: that of the tests, without any setting of trainq."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("TRAINQ_", "_TRAINQ"))}
    env["COLUMNS"] = "100"
    try:
        from importlib.metadata import version

        version("trainq-cli")
    except ImportError:
        env["PYTHONPATH"] = REPOSITORY  # a checkout that is not installed
    for name, value in more.items():
        if value is None:
            env.pop(name, None)
        else:
            env[name] = value
    return env


class Trainq:
    """Calls `trainq` on one root, from one directory."""

    def __init__(self, root: str, cwd: str) -> None:
        self.root = root
        self.cwd = cwd
        self.env = environment(TRAINQ_ROOT=root, HOME=cwd)

    def __call__(self, *args: Any, stdin: Any = b"", timeout: float = 60, **env: str | None) -> Ran:
        merged = {name: value for name, value in (self.env | env).items() if value is not None}
        done = subprocess.run(
            self.command(*args), input=stdin, capture_output=True, timeout=timeout, cwd=self.cwd, env=merged
        )
        out = done.stdout.decode("utf-8", "backslashreplace")
        return Ran(done.returncode, out, done.stderr.decode("utf-8", "backslashreplace"), done.stdout)

    def start(self, *args: Any, **more: Any) -> subprocess.Popen[bytes]:
        """The command as a process that goes on."""
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return subprocess.Popen(self.command(*args), cwd=self.cwd, env=self.env, bufsize=0, **(pipes | more))

    @contextlib.contextmanager
    def running(self, *args: Any, **more: Any) -> Iterator[subprocess.Popen[bytes]]:
        """The command as a process that is gone when the block is left."""
        process = self.start(*args, **more)
        try:
            yield process
        finally:
            process.kill()
            process.communicate()

    @staticmethod
    def command(*args: Any) -> list[Any]:
        return [sys.executable, "-m", "trainq", *(arg if isinstance(arg, bytes) else str(arg) for arg in args)]

    def ok(self, *args: Any, **more: Any) -> Ran:
        """The command, which must succeed."""
        done = self(*args, **more)
        assert done.code == 0, done
        return done


@pytest.fixture
def root(tmp_path: Any) -> str:
    """A fresh queue's directory."""
    from trainq.ops.init import init

    path = str(tmp_path / "queue")
    init(path)
    return path


@pytest.fixture
def run_trainq(root: str, tmp_path: Any) -> Trainq:
    """`run_trainq("status", "--json")` on the fresh queue: code, out, err, json."""
    work = tmp_path / "work"
    work.mkdir()
    return Trainq(root, str(work))
