"""The list of what must hold: a queue that is well breaks nothing, and each rule finds what breaks it."""

from __future__ import annotations

import os
import shutil
import sqlite3
from typing import TYPE_CHECKING

import pytest
from crash import harness
from crash.harness import ONE, SECRET

from trainq.ops import invariants, janitor

if TYPE_CHECKING:
    from collections.abc import Callable

    from crash.harness import CrashTq

NO_TRIGGERS = "DROP TRIGGER job_move; DROP TRIGGER job_history_move; DROP TRIGGER job_counts_move;"
ROWS = {
    "job.claim": "UPDATE job SET stage = NULL WHERE state = 'running'",
    "job.end": "UPDATE job SET ended_at = NULL WHERE id = 1",
    "job.cancel": "UPDATE job SET cancel_at = 1 WHERE state = 'pending'",
    "job.freeze": "UPDATE job SET freeze_at = 1 WHERE state = 'running'",
    "job.held": "UPDATE job SET on_hold = 1 WHERE id = 1",
    "dep.open": "UPDATE job SET waits_for = 1 WHERE id = 1",
    "dep.told": "INSERT INTO dep VALUES(3, 1, 'ok', NULL)",
    "job.costs": "UPDATE job SET system_used = 99 WHERE id = 1",
    "job.parts": "DELETE FROM spec WHERE job_id = 1",
    "job.data": "DELETE FROM data",
    "job.once": (
        "INSERT INTO past(id, uid, submission_id, state, queue, priority, name, user, user_id, attempt, submitted_at, ended_at)"
        " VALUES(1, 'x.0', 1, 'done', 'default', 0, 'x', 'x', 0, 1, 0, 0)"
    ),
    "job.parts_without": "INSERT INTO spec VALUES(99, '{}')",
    "history.moves": "UPDATE event SET state = 'canceled' WHERE job_id = 1 AND n = 2",
    "history.last": "UPDATE event SET state = 'errored' WHERE job_id = 1 AND state = 'done'",
    "history.numbers": "DELETE FROM event WHERE job_id = 1 AND n = 2",
    "history.attempts": "UPDATE event SET attempt = 7 WHERE job_id = 1 AND n = 3",
    "counts": "UPDATE count SET n = n + 1",
    "lanes": "DELETE FROM lane",
    "arrays": "UPDATE job_array SET done = done + 1",
    "arrays.index": "UPDATE job SET array_index = 7 WHERE array_id IS NOT NULL",
    "model.job": "UPDATE model SET attempt = 9",
    "model.number": "UPDATE model_key SET last_version = 0",
    "model.twice": (
        "INSERT INTO model SELECT key, 2, at, job_id, attempt, type, params, metrics, fingerprint, size, manifest_sha256, pinned"
        " FROM model"
    ),
    "database": f"{NO_TRIGGERS} PRAGMA ignore_check_constraints = 1; UPDATE job SET state = 'odd' WHERE id = 1",
    "data.named": "INSERT INTO data(sha256, size, stored_size, at, z) VALUES('x', 1, 1, 1, x'00')",
}
FILES: dict[str, Callable[[str], object]] = {
    "model.whole": lambda root: os.unlink(f"{root}/models/one/@1/model"),
    "model.named": lambda root: shutil.copytree(f"{root}/models/one/@1", f"{root}/models/one/@7"),
    "model.latest": lambda root: os.unlink(f"{root}/models/one/@latest"),
    "model.staged": lambda root: os.mkdir(f"{root}/models/.staging/1-1-0a"),
    "data.file": lambda root: [os.unlink(f"{root}/data/{name}") for name in os.listdir(f"{root}/data")],
    "data.file_named": lambda root: write(f"{root}/data/{'0' * 64}.zst"),
    "snapshot.file": lambda root: [os.unlink(f"{root}/snapshots/{name}") for name in os.listdir(f"{root}/snapshots")],
    "checkpoint.stands": lambda root: shutil.rmtree(f"{root}/runs/1/checkpoints/3"),
    "secret.needed": lambda root: write(f"{root}/specs/0a.0.env"),
    "file.whole": lambda root: write(f"{root}/.new-0a"),
    "spec.needed": lambda root: write(f"{root}/specs/0a.spec"),
    "spec.proved": lambda root: os.chmod(root, 0o2770),  # a group's queue whose jobs came without a proof
    "run.unpacked": lambda root: os.makedirs(f"{root}/runs/1/9/.unpacked"),
    "run.job": lambda root: os.mkdir(f"{root}/runs/99"),
}
BY_NAME = {rule.name: rule for rule in invariants.INVARIANTS}


def write(path: str) -> None:
    with open(path, "wb"):
        pass


@pytest.fixture(scope="module")
def original(tmp_path_factory) -> CrashTq:
    """A queue with a job that is done, one that runs (its worker was killed) and one that waits."""
    tq = harness.template(tmp_path_factory.mktemp("original"))
    tq.submit("--", "true")
    tq.submit("--array", "0-1", "--priority", "-1", "--", "true")
    assert tq("worker", "--once", env={"TRAINQ_CRASH": "start.handed"}).code == -9
    tq.submit(*ONE, "--seed", "2", env=SECRET)
    return tq


@pytest.fixture
def tq(original, tmp_path) -> CrashTq:
    return harness.copy(original, tmp_path)


def names(tq: CrashTq, *, at_once: bool = True) -> set[str]:
    return {one.name for one in harness.find(tq, at_once=at_once)}


def break_(tq: CrashTq, name: str) -> None:
    if name in FILES:
        FILES[name](tq.root)
        return
    db = sqlite3.connect(os.path.join(tq.root, "queue.sqlite"))
    db.executescript(ROWS[name])
    db.close()


def test_a_queue_that_is_well(tq):
    """Q03: done, running and waiting jobs, models, checkpoints and secrets break no rule."""
    assert harness.find(tq, at_once=True) == []


def test_every_rule_is_broken_by_a_test():
    """A rule that nothing breaks would be none."""
    assert sorted(BY_NAME) == sorted([*ROWS, *FILES])


@pytest.mark.parametrize("name", sorted([*ROWS, *FILES]))
def test_a_broken_rule_is_found(tq, name):
    """Each rule finds what breaks it; reading changes nothing; what has a mend is put right by the janitor, and what has
    a least age is left alone until then."""
    break_(tq, name)
    assert name in names(tq)
    assert name in names(tq)
    rule = BY_NAME[name]
    if rule.has_grace:
        assert (name in names(tq, at_once=False)) == (name == "data.named")  # whose row says that it is old
    if rule.mend is not None:
        for _ in range(2):
            harness.prune(tq, file_grace="0s")
        assert names(tq) == set()


def test_what_is_unpacked_is_in_use_for_a_while_after_the_end(tq):
    """The line after a job may read it still: neither told nor deleted until its limit has certainly passed."""
    os.mkdir(f"{tq.root}/runs/1/1/.unpacked")
    for age_s, is_there in ((60, True), (60 + 61, False)):
        db = sqlite3.connect(os.path.join(tq.root, "queue.sqlite"))
        db.execute("UPDATE event SET at = strftime('%s') - ? WHERE job_id = 1 AND state = 'done'", (age_s,))
        db.commit()
        db.close()
        assert ("run.unpacked" in names(tq)) == (not is_there)
        harness.prune(tq)
        assert os.path.exists(f"{tq.root}/runs/1/1/.unpacked") == is_there


def test_mends_are_steps_of_the_janitor():
    """A rule names a step by the word that the janitor has for it."""
    assert {rule.mend for rule in BY_NAME.values() if rule.mend} <= {what for what, _ in janitor.STEPS}


def test_a_model_that_was_changed(tq):
    """A digest that differs is seen by a deep look only; another manifest always."""
    path = f"{tq.root}/models/one/@1/model"
    with open(path, "r+b") as file:
        file.write(b"9")
    queue = tq.queue()
    assert invariants.find(queue) == []
    assert [one.name for one in invariants.find(queue, deep=True)] == ["model.whole"]
    with open(f"{tq.root}/models/one/@1/manifest.json", "ab") as file:
        file.write(b" ")
    assert [one.name for one in invariants.find(queue)] == ["model.whole"]
    queue.session.close()
