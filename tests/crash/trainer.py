"""The trainings of the soak: `trainer.py KIND SIDE` computes in steps of 20 ms and leaves a mark for each.

`SIDE/<job>-<attempt>.marks` gets a line a mark: the monotonic clock (one for all processes of a host) and the pid. The
last line of an attempt that is about to exit 0 is `end`. So a mark of an attempt that comes after the first mark of a
later one proves that two copies computed at the same time.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
import time

STEP_S = 0.02


class Marks:
    """What this attempt leaves."""

    def __init__(self, side: str) -> None:
        self.job, self.attempt = os.environ["TRAINQ_JOB_ID"], int(os.environ["TRAINQ_ATTEMPT"])
        self._fd = os.open(f"{side}/{self.job}-{self.attempt}.marks", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def put(self, word: str = "") -> None:
        os.write(self._fd, f"{time.monotonic():.6f} {os.getpid()} {word}\n".encode())

    def compute(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.put()
            time.sleep(STEP_S)
        self.put()


def some(marks: Marks, least: float, most: float) -> float:
    """A length that differs from job to job and attempt to attempt."""
    digest = hashlib.sha256(f"{marks.job}-{marks.attempt}".encode()).digest()
    return least + (most - least) * digest[0] / 255


def plain(marks: Marks, _side: str) -> int:
    marks.compute(some(marks, 0.05, 0.8))
    return 0


def long(marks: Marks, _side: str) -> int:
    marks.compute(some(marks, 3, 7))
    return 0


def model(marks: Marks, _side: str) -> int:
    marks.compute(some(marks, 0.05, 0.6))
    with open(os.environ["TRAINQ_MODEL_DIR"] + "/model.json", "w", encoding="ascii") as file:
        json.dump({"job": marks.job, "attempt": marks.attempt}, file)
    with open(os.environ["TRAINQ_MODEL_DIR"] + "/weights", "wb") as file:
        file.write(hashlib.sha256(marks.job.encode()).digest() * 20000)
    return 0


def counter(marks: Marks, side: str) -> int:
    """Counts to 12 with a checkpoint each, and notes which it went on from and which of them were committed."""
    from trainq import job

    path = job.checkpoint.latest()
    start = 0
    if path is not None:
        start = job.checkpoint.manifest()["step"]
        with open(f"{path}/data", encoding="ascii") as file:
            if int(file.read()) != start:
                marks.put(f"torn: {path}")
                return 9
    marks.put("resumes " + (os.path.basename(path) if path is not None else "0"))
    for step in range(start + 1, 13):
        marks.compute(0.08)
        saved = job.checkpoint.save(str(step).encode(), step=step)
        if saved is not None:
            marks.put(f"committed {os.path.basename(saved)}")
    return 0


def setsid(marks: Marks, _side: str) -> int:
    """Leaves a daemon that goes on computing, and a child that ignores TERM."""
    if os.fork() == 0:
        os.setsid()
        if os.fork():
            os._exit(0)
        marks.compute(60)
        os._exit(0)
    if os.fork() == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        marks.compute(60)
        os._exit(0)
    marks.compute(some(marks, 0.1, 0.4))
    return 0


def stubborn(marks: Marks, _side: str) -> int:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    marks.compute(some(marks, 0.5, 2.5))
    return 0


def requeue(marks: Marks, side: str) -> int:
    """Asks to be run again, twice."""
    marks.compute(some(marks, 0.05, 0.3))
    return 75 if _times(side, marks) <= 2 else 0


def flaky(marks: Marks, side: str) -> int:
    """Fails once; it has a retry."""
    marks.compute(some(marks, 0.05, 0.3))
    return 1 if _times(side, marks) <= 1 else 0


def failing(marks: Marks, _side: str) -> int:
    marks.compute(some(marks, 0.05, 0.2))
    return 3


def large(marks: Marks, _side: str) -> int:
    """Compares its training set with the digest that was submitted."""
    with open(os.environ["TRAINQ_DATA"], "rb") as file:
        found = hashlib.sha256(file.read()).hexdigest()
    marks.compute(some(marks, 0.05, 0.3))
    if found != os.environ["TRAINQ_PARAM_DIGEST"]:
        marks.put("another training set")
        return 9
    return 0


def _times(side: str, marks: Marks) -> int:
    """How often this job came here."""
    path = f"{side}/{marks.job}.times"
    with open(path, "ab") as file:
        file.write(b".")
    return os.path.getsize(path)


def main() -> None:
    kind, side = sys.argv[1:3]
    marks = Marks(side)
    marks.put("begin")
    code = globals()[kind](marks, side)
    marks.put("end" if code == 0 else f"exit {code}")
    sys.exit(code)


if __name__ == "__main__":
    main()
