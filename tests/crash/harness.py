"""What the walks over crash points and faults share: a queue with a past, and the look at it afterwards."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING, Any

from e2e.kit import Tq

from trainq.ops import invariants, janitor
from trainq.ops.queue import open_queue

if TYPE_CHECKING:
    from pathlib import Path

    from trainq.ops.invariants import Finding

LARGE = os.urandom(3 << 19)
"""More than fits a column, packed."""
SECRET = {"MY_TOKEN": "x"}
ONE = ("one", "--data", "large.bin", "--env-keep", "MY_TOKEN", "--snapshot", "copy")
"""A submit whose job goes through every step there is: training set in a file, secrets, frozen code, checkpoints, a model."""
TRAINER = """
import os, time
from trainq import job
start = job.checkpoint.manifest().get("step", 0)
for step in range(start + 1, 4):
    job.checkpoint.save(str(step).encode(), step=step, keep=1)
time.sleep(0.1)
assert os.path.getsize(os.environ["TRAINQ_DATA"]) == 3 << 19
if "TRAINQ_MODEL_DIR" in os.environ:
    with open(os.environ["TRAINQ_MODEL_DIR"] + "/model", "w") as file:
        file.write(os.environ["TRAINQ_JOB_ID"])
"""
TYPE = '[types.one]\nrun = ["python", "one.py"]\nmodel = "required"\nkeep = 1\nretries = 1\n'


class CrashTq(Tq):
    """The command on a root of which a copy is made for each crash."""

    def queue(self, **settings: str) -> Any:
        """The queue in this process, for looking and for a pass of the janitor."""
        flags = {name.replace("_", ".", 1): value for name, value in settings.items()}
        return open_queue(self.root, flags)


def template(directory: Path, mode: str = "local") -> CrashTq:
    """A root in which a version of the model stands already, which the next one retires."""
    tq = CrashTq(directory)
    tq.ok("init", f"--{mode}", tq.root, root=None)
    tq.types(TYPE)
    (tq.dir / "one.py").write_text(TRAINER)
    (tq.dir / "large.bin").write_bytes(LARGE)
    tq.ok("submit", *ONE, env=SECRET)
    tq.work()
    assert find(tq) == []
    return tq


def copy(tq: CrashTq, directory: Path) -> CrashTq:
    """The same with a root of its own."""
    own = CrashTq(directory)
    own.env = {**tq.env, "HOME": str(own.home)}
    shutil.copytree(tq.root, own.root, symlinks=True)
    shutil.copytree(tq.dir, own.dir, dirs_exist_ok=True)
    return own


def find(tq: CrashTq, *, at_once: bool = False) -> list[Finding]:
    queue = tq.queue()
    try:
        return invariants.find(queue, deep=True, at_once=at_once)
    finally:
        queue.session.close()


def prune(tq: CrashTq, *, file_grace: str = "600s") -> Any:
    queue = tq.queue(keep_file_grace=file_grace)
    try:
        return janitor.prune(queue)
    finally:
        queue.session.close()


def ends(tq: CrashTq) -> dict[int, list[str]]:
    """The ends in the history of each job."""
    queue = tq.queue()
    try:
        with queue.session.reading() as tx:
            found: dict[int, list[str]] = {row[0]: [] for row in tx.rows("SELECT id FROM job")}
            sql = "SELECT job_id, state FROM event WHERE state IN ('done', 'errored', 'canceled') ORDER BY job_id, n"
            for number, state in tx.rows(sql):
                found.setdefault(number, []).append(state)
            return found
    finally:
        queue.session.close()


def check(tq: CrashTq, *, work: bool = True) -> None:
    """What must hold after a crash: the check is clean or one pass of the janitor makes it so; then a normal worker ends
    every job exactly once, and nothing is left over, whatever its age."""
    mended = {rule.name for rule in invariants.INVARIANTS if rule.mend is not None}
    found = find(tq)
    assert [one for one in found if one.name not in mended] == []
    passed = prune(tq)
    assert passed.trouble == []
    assert find(tq) == []
    if work:
        tq.work("--name", "after")
    for _ in range(2):  # one pass puts an orphan aside, the next one deletes it
        assert prune(tq, file_grace="0s").trouble == []
    assert find(tq, at_once=True) == []
