"""A COMMIT that answers with an error: what became of it is looked up before anything is said."""

from __future__ import annotations

import os
import sys

from e2e.kit import until
from e2e.test_prune_rows import NO_GRACE

from trainq.ops import invariants
from trainq.ops.queue import open_queue

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
