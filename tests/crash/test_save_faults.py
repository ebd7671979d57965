"""The nth system call of a save, or of a look for what to go on from, fails (ENOSPC, EIO, ESTALE): in the training and in
the worker. The training goes on, what was committed before stays whole, and every attempt goes on from the newest of it.

The three errors take turns over the calls; with TRAINQ_TEST_FAULTS=all each of them meets each call.
"""

from __future__ import annotations

import contextlib
import glob
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from e2e.kit import until

from crash import harness, tracing
from crash.tracing import Fault

if TYPE_CHECKING:
    from collections.abc import Iterator

    from crash.harness import CrashTq

ALL = os.environ.get("TRAINQ_TEST_FAULTS") == "all"
pytestmark = pytest.mark.timeout(3600 if ALL else 120)
EACH = 4 if ALL else 12
"""So many faults meet one attempt."""
SAVES = """
import os, sys
from trainq import job
attempt = int(os.environ["TRAINQ_ATTEMPT"])
if attempt > 1 and "TRAINQ_RESUME_FROM" not in os.environ:
    sys.exit("it began again from nothing")
job.checkpoint.save(b"x", step=attempt, keep=1)
sys.exit(0 if os.path.exists("enough") else 75)
"""
SAVER = str(Path(__file__).with_name("saver.py"))
CALLS = (
    "openat", "getdents64", "mkdir", "write", "close", "newfstatat", "fstat", "chmod", "read", "readv", "fsync", "rename",
    "unlink", "unlinkat", "rmdir", "lseek",
)  # fmt: skip


@pytest.fixture
def tq(tmp_path) -> CrashTq:
    tracing.skip_without()
    made = harness.CrashTq(tmp_path)
    made.ok("init", made.root, root=None)
    return made


def test_saves(tq, tmp_path):
    """Q83, Q94: a save that fails is counted and said, harms nothing that was saved before, and the next one succeeds."""
    tq.submit("--", sys.executable, SAVER, "--count", str(tmp_path))
    tq.work()
    assert tq.state(1) == "done", tq.ok("logs", "1").out
    faults = []
    for what in ("save", "resume"):
        calls = tracing.counted(tmp_path / what)
        assert calls["openat"] > 0
        points = [(call, n) for call in CALLS for n in range(1, calls[call] + 1)]
        faults += [
            (what, call, n, error)
            for place, (call, n) in enumerate(points)
            for error in (tracing.ERRORS if ALL else tracing.ERRORS[place % 3 :][:1])
        ]
    attempts = [faults[start : start + EACH] for start in range(0, len(faults), EACH)]
    (tmp_path / "plan").write_text(json.dumps(attempts))
    number = tq.submit("--", sys.executable, SAVER, str(tmp_path / "plan"), str(tmp_path))
    (tmp_path / "step").unlink()
    tq.work()
    wrong = tmp_path / "wrong"
    assert not wrong.exists(), wrong.read_text()
    job, log = tq.job(number), tq.ok("logs", number).out
    assert (job["state"], job["attempt"]["n"]) == ("done", len(attempts)), log
    failed = int((tmp_path / f"failed-{len(attempts)}").read_text())
    assert (job["save_failed"] or 0) == failed
    assert log.count("a checkpoint could not be saved") >= failed
    harness.check(tq)
    assert harness.ends(tq)[number] == ["done"]


def test_resume(tq, tmp_path):
    """Q84: a worker that cannot look at a checkpoint takes an older one or leaves the job to others, and never lets it
    begin again from nothing."""
    tq.script("saves.py", SAVES)
    number = tq.submit("--", "python", "saves.py")
    for _ in range(3):
        tq.ok("worker", "--once")
    log = tmp_path / "calls"
    names = "-e", "trace=" + ",".join(CALLS)
    tq.ok("worker", "--once", before=tracing.traced(checkpoints(tq, number), *names, log=log))
    calls = tracing.counted(log)
    points = [Fault("newfstatat", 0, "")]  # of the newest directory alone: whether it is there
    points += [Fault(call, n, "") for call in CALLS for n in range(1, min(calls[call], 20 if ALL else 1) + 1)]
    assert len(points) > 8, points
    for place, point in enumerate(points):
        for error in tracing.ERRORS if ALL else tracing.ERRORS[place % 3 :][:1]:
            fault = point._replace(error=error, n=point.n or 1)
            paths = [each for each in checkpoints(tq, number) if point.n or os.path.basename(each).isdecimal()]
            done = tq("worker", "--once", before=tracing.traced(paths, *fault.words))
            assert done.code in (0, 1, 6), (fault, done)
            assert "Traceback" not in done.err, (fault, done)
            assert tq.job(number)["state"] == "pending", (fault, tq.job(number), tq.ok("logs", number).out)
            tq.ok("worker", "--once")
    (tq.dir / "enough").touch()
    harness.check(tq)
    assert harness.ends(tq)[number] == ["done"]


def checkpoints(tq: CrashTq, number: int) -> list[str]:
    """The directory of the job's checkpoints, and all that is in it."""
    top = Path(tq.root, "runs", str(number), "checkpoints")
    return [str(path) for path in (top, *sorted(top.rglob("*")))]


def test_result(tq):
    """Q21: a directory of a result that cannot be looked at is not taken for none: done has its model."""
    words = ("--model", "m", "--shell", 'echo > "$TRAINQ_MODEL_DIR/model"; until test -e go; do sleep 0.02; done')
    with tq.worker() as worker:
        for place, n in enumerate((1, 2, 3) if ALL else (1, 2)):
            for error in tracing.ERRORS if ALL else tracing.ERRORS[place:][:1]:
                fault = Fault("newfstatat", n, error)
                number = tq.submit(*words)
                staged = until(lambda: glob.glob(os.path.join(tq.root, "models", ".staging", "*", "model")))
                with attached(worker.pid, os.path.dirname(staged[0]), fault):
                    (tq.dir / "go").touch()
                    until(lambda number=number: tq.state(number) in ("done", "errored"))
                job = tq.job(number)
                assert (job["state"], job["reason"]) in (("done", None), ("errored", "store")), (fault, job)
                assert (job["model"]["version"] is None) == (job["state"] == "errored"), (fault, job)
                (tq.dir / "go").unlink()
                harness.prune(tq, file_grace="0s")
                for left in glob.glob(os.path.join(tq.root, "models", ".staging", "*")):
                    shutil.rmtree(left)  # a result that was kept


@contextlib.contextmanager
def attached(pid: int, path: str, fault: Fault) -> Iterator[None]:
    """All threads of this process are traced while the block runs."""
    tracer = subprocess.Popen(tracing.traced([path], *fault.words, "-p", str(pid), attach=True))
    try:
        tasks = Path(f"/proc/{pid}/task")
        until(lambda: all("TracerPid:\t0" not in (task / "status").read_text() for task in tasks.iterdir()))
        yield
    finally:
        tracer.terminate()
        tracer.wait()
