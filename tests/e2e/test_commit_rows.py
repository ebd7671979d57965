"""A COMMIT that answers with an error: what became of it is looked up before anything is said."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from e2e.kit import Result, until
from e2e.test_prune_rows import NO_GRACE
from store_builders import join

from trainq.ops import invariants
from trainq.ops.queue import open_queue
from trainq.store import queues, workers

# The command, with a store whose COMMITs are refused while the file `sick` stands and a model is placed.
REFUSED = """
import os, sys
from trainq.store import session
commit = session._Writing._commit
def refuse(self):
    if os.path.exists("sick") and os.path.isdir(os.environ["PLACED"]):
        self._roll_back()
        open("refused", "w").close()
        raise session.Unsure("disk I/O error")
    commit(self)
session._Writing._commit = refuse
from trainq.cli import main
sys.exit(main.run(sys.argv[1:]))
"""

# The command, whose nth COMMIT (HIDDEN) goes through and answers with an error, as a cut to a file server makes it.
HIDDEN = """
import os, sys
from trainq.store import session
commit, left = session._Writing._commit, int(os.environ["HIDDEN"])
def hide(self):
    global left
    commit(self)
    left -= 1
    if not left:
        raise session.Unsure("disk I/O error")
session._Writing._commit = hide
from trainq.cli import main
sys.exit(main.run(sys.argv[1:]))
"""


def hidden(tq, n: int, *words: object, **env: str) -> Result:
    """The answer of a command whose nth COMMIT goes through and answers with an error."""
    done = subprocess.run(
        [sys.executable, "-c", HIDDEN, "--root", tq.root, *map(str, words)], capture_output=True, text=True, cwd=tq.dir,
        env=tq.environment({"HIDDEN": str(n), **env}), check=False,
    )  # fmt: skip
    return Result(done.returncode, done.stdout, done.stderr)


def rung(tq) -> bytes:
    with open(os.path.join(tq.root, "bell", "gen"), "rb") as file:
        return file.read()


def find(tq) -> list[invariants.Finding]:
    queue = open_queue(tq.root)
    try:
        return invariants.find(queue, deep=True, at_once=True)
    finally:
        queue.session.close()


def test_a_janitor_between_the_rename_and_the_next_try(tq):
    """DESIGN 2.4, 2.5: a model that is placed and whose commit failed is its attempt's as long as that runs, whatever its
    age: the attempt ends done, and the model stays."""
    placed = os.path.join(tq.root, "models", "ok", "@1")
    (tq.dir / "sick").touch()
    tq.submit("ok")
    driven = (sys.executable, "-c", REFUSED)
    with tq.worker("--once", env={"PLACED": placed}, command=driven) as worker:
        until((tq.dir / "refused").exists)
        assert find(tq) == []
        tq.ok("prune", env=NO_GRACE)
        (tq.dir / "sick").unlink()
        assert worker.end().code == 0
    assert (tq.state(1), [model["version"] for model in tq.models()]) == ("done", [1])
    for _ in range(2):
        tq.ok("prune", env=NO_GRACE)
    assert os.path.exists(os.path.join(placed, "model.json"))
    assert find(tq) == []


def test_a_model_that_was_put_aside_before_the_next_try(tq):
    """DESIGN 2.4: whoever has put it aside meanwhile: it is found there and placed, never named without being there."""
    placed = os.path.join(tq.root, "models", "ok", "@1")
    aside = os.path.join(tq.root, "models", ".aside", "ok", "@1-00000000")
    (tq.dir / "sick").touch()
    tq.submit("ok")
    with tq.worker("--once", env={"PLACED": placed}, command=(sys.executable, "-c", REFUSED)) as worker:
        until((tq.dir / "refused").exists)
        os.makedirs(os.path.dirname(aside))
        os.rename(placed, aside)
        tq.ok("prune", env=NO_GRACE)
        (tq.dir / "sick").unlink()
        assert worker.end().code == 0
    job = tq.job(1)
    assert (job["state"], job["model"]["version"]) == ("done", 1)
    assert os.path.exists(os.path.join(placed, "model.json"))
    assert find(tq) == []


# what was done all the same is answered for -------------------------------------------------------------------------


def items(done: Result) -> list[tuple[object, str]]:
    assert done.code == 0, done
    return [(one["id"], one["result"]) for one in done.json["items"]]


def test_an_array(tq):
    """E05: the array that went in is the one that is told, once."""
    done = hidden(tq, 1, "submit", "--array", "0-2", "--", "true")
    assert (done.code, done.out) == (0, "1\n"), done
    assert tq.ok("status", "1", "--json").json["counts"]["pending"] == 3
    assert len(tq.jobs("--tasks")) == 3


def test_a_cancel(tq):
    """Q30: canceled, or canceling when it runs; the bell is rung, and what was kept for the job is deleted."""
    waits = tq.submit("--env-keep", "MY_TOKEN", "--", "true", env={"MY_TOKEN": "x"})
    before = rung(tq)
    assert items(hidden(tq, 1, "cancel", waits, "--json")) == [(waits, "canceled")]
    assert (tq.state(waits), rung(tq) == before, os.listdir(os.path.join(tq.root, "specs"))) == ("canceled", False, [])
    runs = tq.submit("slow")
    with tq.worker("--once"):
        until(lambda: tq.job(runs)["attempt"]["pid"])
        assert items(hidden(tq, 1, "cancel", runs, "--now", "--json")) == [(runs, "canceling")]
        until(lambda: tq.state(runs) == "canceled")


def test_a_cancel_that_takes_back(tq):
    """Q33: the same when the worker is gone: whichever of the two commits it is."""
    for n in (1, 2):
        number = tq.submit("slow")
        assert tq("worker", "--once", env={"TRAINQ_CRASH": "start.handed"}).code == -9
        assert items(hidden(tq, n, "cancel", number, "--json")) == [(number, "canceled")]
        assert tq.state(number) == "canceled"
    tq.ok("prune", env=NO_GRACE)
    assert find(tq) == []


def test_a_retry(tq):
    """Q39: retried, with what was kept for it; the bell is rung."""
    number = tq.submit("--env-keep", "MY_TOKEN", "--", "sh", "-c", 'test "$MY_TOKEN" = x', env={"MY_TOKEN": "x"})
    tq.ok("cancel", number)
    before = rung(tq)
    assert items(hidden(tq, 1, "retry", number, "--json", MY_TOKEN="x")) == [(number, "retried")]
    assert (tq.state(number), rung(tq) == before) == ("pending", False)
    tq.work()
    assert tq.state(number) == "done"


def test_a_queue_that_is_paused(tq):
    """Q59: paused, and the bell is rung."""
    before = rung(tq)
    assert items(hidden(tq, 1, "pause", "--all", "--json")) == [("default", "paused")]
    assert rung(tq) != before
    assert tq.ok("pause", "--all").out == "default already is paused\n"


@pytest.mark.parametrize("verb", ["pause", "resume"])
def test_a_job_that_is_to_stand_still(tq, verb):
    """E08: the flag stands in its row, and the bell is rung."""
    number = tq.submit("slow")
    with tq.worker():
        until(lambda: tq.state(number) == "running")
        if verb == "resume":
            tq.ok("pause", number)
        before = rung(tq)
        assert items(hidden(tq, 1, verb, number, "--json")) == [(number, f"{verb}d")]
        assert rung(tq) != before
        assert tq.job(number)["reason"] == ("frozen" if verb == "pause" else None)


def test_a_queue_that_is_opened_and_a_worker_that_is_let_out(tq):
    """E13, Q92: resumed, cleared, and drained; the bell is rung."""
    queue = open_queue(tq.root)
    with queue.session.writing() as tx:
        queues.pause(tx, "default", "queue_paused", "ann")
        number = join(tx)
        workers.quarantine(tx, number, "sick")
    queue.session.close()
    for words, result in (
        (("resume", "--all"), ("default", "resumed")),
        (("workers", "clear", str(number)), ("w", "cleared")),
        (("workers", "drain", str(number)), ("w", "drained")),
    ):
        before = rung(tq)
        assert items(hidden(tq, 1, *words, "--json")) == [result]
        assert rung(tq) != before


@pytest.mark.parametrize("words", [("--older-than", "0s"), ("1",)])
def test_a_pass_of_the_janitor(tq, words):
    """Q42: removed, with its files when it was named."""
    number = tq.submit("ok")
    tq.work()
    done = hidden(tq, 1, "prune", *words, "--json")
    assert items(done) == [(number, "removed")]
    assert done.json["trouble"] == []
    assert os.path.exists(os.path.join(tq.root, "runs", "1")) == (len(words) == 2)
    assert find(tq) == []


def test_a_training_set_that_is_forgotten(tq):
    """Q42: its row and its file go in the same pass."""
    (tq.dir / "set").write_bytes(os.urandom(2 << 20))
    tq.ok("cancel", tq.submit("--data", "set", "--", "true"))
    done = hidden(tq, 2, "prune", "--older-than", "0s", "--json", **NO_GRACE)
    assert items(done) == [(1, "removed")]
    assert (done.json["trouble"], done.json["removed"]["training sets"]) == ([], 1)
    assert os.listdir(os.path.join(tq.root, "data")) == []


def test_a_lost_job_that_is_taken_back(tq):
    """Q22: requeued, and the bell is rung."""
    number = tq.submit("slow")
    assert tq("worker", "--once", env={"TRAINQ_CRASH": "start.handed"}).code == -9
    before = rung(tq)
    assert items(hidden(tq, 1, "prune", "--json")) == [(number, "requeued")]
    assert (tq.state(number), rung(tq) == before) == ("pending", False)
