"""A reader that stalls does not stop the worker."""

from __future__ import annotations

import contextlib
import fcntl
import os
import subprocess

import pytest
from e2e.kit import COMMAND, until

F_SETPIPE_SZ = 1031
ROOM = 2 * 4096


@contextlib.contextmanager
def stalling(tq, name, *words):
    """A worker whose stdout or stderr is a small pipe; the end to read from."""
    out, into = os.pipe()
    fcntl.fcntl(into, F_SETPIPE_SZ, ROOM)
    worker = subprocess.Popen(
        [*COMMAND, "--root", tq.root, "worker", "--until", "idle", *words], env=tq.environment(None), cwd=tq.dir,
        stdin=subprocess.DEVNULL, **{"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, name: into},
    )  # fmt: skip
    os.close(into)
    try:
        yield out
        until(lambda: worker.poll() is not None)
        assert worker.returncode == 0
    finally:
        worker.kill()
        worker.wait()
        os.close(out)


def test_nobody_reads_the_workers_words(tq):
    """DESIGN 2.10: a full pipe on stderr keeps the worker neither from its jobs nor from its beats."""
    line = '{"argv": ["true"], "name": "%s"}\n' % ("n" * 60)
    tq.ok("submit", "--from", "-", input=line * 120)
    with stalling(tq, "stderr"):
        pass
    assert {job["state"] for job in tq.jobs()} == {"done"}


@pytest.mark.parametrize(("name", "words"), [("stderr", ("--log-format", "json")), ("stdout", ("--jsonl",))])
def test_nobody_reads_to_the_end_of_a_long_line(tq, name, words):
    """DESIGN 2.10: nor does a line that is longer than what the pipe takes."""
    tq.script(
        "fails.py",
        """
        import os, time
        from trainq import job
        job.on_error(print)
        while not os.path.exists("go"): time.sleep(0.02)
        raise ValueError("é" * 9000)
        """,
    )
    job = tq.submit("--", "python", "fails.py")
    with stalling(tq, name, *words) as out:
        read = b""
        while b"job started" not in read:
            read += os.read(out, ROOM)
        (tq.dir / "go").touch()
    assert tq.state(job) == "errored"
    assert len(tq.job(job)["result"]["error"].encode()) > ROOM
