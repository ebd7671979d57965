"""The training of the walk over saves: `saver.py PLAN SIDE` saves, resumes and looks while a call of its own fails.

PLAN is a file with a JSON list of attempts, each a list of [what, call, n, error]; what is `save` or `resume`. After the
last attempt's list it exits 0, after the others 75, right after the fault. What it saw to be wrong goes to SIDE/wrong,
how many saves failed to SIDE/failed-<attempt>, the newest step that was committed to SIDE/step.

`saver.py --count SIDE` writes to SIDE/save and SIDE/resume which calls are made.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
import traceback
from typing import TYPE_CHECKING

from trainq import job
from trainq.job import checkpoint_files

if TYPE_CHECKING:
    from collections.abc import Iterator

FILES = {"weights": b"w" * 3000, "more/optimizer": b"o" * 70000}


@contextlib.contextmanager
def tracing(*words: str) -> Iterator[None]:
    """strace looks at this thread, and at nothing else, while the block runs."""
    tracer = subprocess.Popen(["strace", "-p", str(os.getpid()), *words], stderr=subprocess.PIPE)
    attached = threading.Event()

    def look() -> None:
        for line in tracer.stderr:
            if b"attached" in line:
                attached.set()

    reader = threading.Thread(target=look)
    reader.start()
    assert attached.wait(20)
    try:
        yield
    finally:
        tracer.terminate()
        tracer.wait()
        reader.join()
        tracer.stderr.close()


class Saver:
    """One attempt: what was committed last, and what is found to be wrong."""

    def __init__(self, side: str) -> None:
        self.side = side
        self.step, self.failed = 0, 0
        if os.path.exists(f"{side}/step"):
            with open(f"{side}/step", encoding="ascii") as file:
                self.step = int(file.read())
        self.directory = os.path.join(os.path.dirname(os.environ["TRAINQ_RUN_DIR"]), "checkpoints")

    def wrong(self, *what: object) -> None:
        with open(f"{self.side}/wrong", "a", encoding="utf-8") as file:
            print(os.environ["TRAINQ_ATTEMPT"], *what, file=file)

    def save(self) -> str | None:
        def write(directory: str) -> None:
            for name, data in FILES.items():
                os.makedirs(os.path.dirname(os.path.join(directory, name)), exist_ok=True)
                with open(os.path.join(directory, name), "wb") as file:
                    file.write(data)

        return job.checkpoint.save(write, step=self.step + 1, keep=2)

    def saved(self, fault: object, path: str | None) -> None:
        """Judge what a save came to: the newest that counts is whole, and is what would be gone on from."""
        if path is None:
            self.failed += 1
        else:
            self.step += 1
            with open(f"{self.side}/step", "w", encoding="ascii") as file:
                file.write(str(self.step))
        self.judge(fault)

    def judge(self, fault: object) -> None:
        newest = job.checkpoint.latest()
        if newest is None:
            if self.step:
                self.wrong(fault, "nothing to go on from")
            return
        if job.checkpoint.manifest()["step"] != self.step:
            self.wrong(fault, "goes on from", newest, "though step", self.step, "was committed")
        if problems := checkpoint_files.problems(newest):
            self.wrong(fault, newest, problems)

    def clean(self, fault: object) -> None:
        """After a save that went well: two checkpoints, one number, nothing under a temporary name."""
        names = sorted(os.listdir(self.directory))
        if len(names) > 3 or any(name.startswith(".new-") for name in names):
            self.wrong(fault, "left over:", names)

    def fail(self, what: str, call: str, n: int, error: str) -> None:
        fault = what, call, n, error
        path, raised = None, None
        with tracing("-o", "/dev/null", "-e", f"trace={call}", "-e", f"inject={call}:error={error}:when={n}"):
            try:
                path = self.save() if what == "save" else job.checkpoint.latest()
                if what == "resume":
                    step = job.checkpoint.manifest().get("step")
            except OSError as caught:
                raised = caught
        if what == "save":
            if raised is not None:
                self.wrong(fault, "raised", "".join(traceback.format_exception(raised)))
            self.saved(fault, path)
        elif raised is None and step != self.step:
            self.wrong(fault, "went on from step", step, "though", self.step, "was committed")


def count(saver: Saver, side: str) -> None:
    """Which calls a save makes, and a look for what to go on from."""
    for _ in range(4):
        saver.saved("count", saver.save())
    for what in ("save", "resume"):
        with tracing("-o", f"{side}/{what}", "-e", "trace=%file,%desc"):
            if what == "save":
                saver.save()
            else:
                job.checkpoint.latest()
                job.checkpoint.manifest()


def main() -> None:
    plan, side = sys.argv[1:3]
    saver = Saver(side)
    if plan == "--count":
        count(saver, side)
        return
    with open(plan, encoding="utf-8") as file:
        attempts = json.load(file)
    number = int(os.environ["TRAINQ_ATTEMPT"])
    saver.judge("the start")
    faults = attempts[number - 1]
    for place, fault in enumerate(faults):
        for _ in range(3 if place == 0 else 1):
            path = saver.save()
            saver.saved(fault, path)
            if path is None:
                saver.wrong(fault, "the save before it failed")
        saver.clean(fault)
        saver.fail(*fault)
    with open(f"{side}/failed-{number}", "w", encoding="ascii") as file:
        file.write(str(saver.failed))
    sys.exit(0 if number == len(attempts) else 75)


if __name__ == "__main__":
    main()
