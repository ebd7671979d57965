"""One training waits or runs once, however it is put in; and a stranger's job is not replaced."""

from __future__ import annotations

import os

import pytest

from trainq.base.errors import Denied
from trainq.domain.request import Request
from trainq.ops.queue import open_queue
from trainq.ops.submit import submit


@pytest.fixture
def typed(run_trainq):
    """A canceled job of a type, and the same training waiting again as job 2."""
    with open(os.path.join(run_trainq.root, "trainq.toml"), "a", encoding="utf-8") as file:
        file.write('\n[types.one]\nrun = ["true"]\n')

    def put(*more):
        run_trainq.ok("submit", "one", *more)
        run_trainq.ok("cancel", "1")
        run_trainq.ok("submit", "one")
        return run_trainq

    return put


def test_a_retry_of_a_training_that_waits_already_is_refused(typed):
    """Q09: exit 8 as at a submit, for one; a line of the answer among several."""
    trainq = typed()
    done = trainq("retry", "1")
    assert done.code == 8, done
    assert "job 2" in done.err
    trainq.ok("submit", "one", "--seed", "3")
    trainq.ok("cancel", "3")
    several = trainq("retry", "1,3", "--json")
    assert several.code == 7
    assert [(one["id"], one["result"]) for one in several.json["items"]] == [(1, "refused"), (3, "retried")]
    trainq.ok("cancel", "2")
    trainq.ok("retry", "1")


def test_a_retry_of_a_training_that_may_run_twice(typed):
    """Q09: --on-duplicate run holds for the retry too."""
    typed("--on-duplicate", "run").ok("retry", "1")


def test_a_strangers_job_is_not_replaced(root, monkeypatch):
    """Q58: --on-duplicate replace cancels only what this user may cancel."""
    queue = open_queue(root)
    request = Request({"key": "k", "on_duplicate": "replace"}, argv=("true",))
    assert submit(queue, [request]).changes[0].id == 1
    assert submit(queue, [request]).changes[0].id == 2
    queue.session.close()
    monkeypatch.setattr(os, "getuid", lambda: 4711)
    stranger = open_queue(root)
    with pytest.raises(Denied):
        submit(stranger, [request])
    with stranger.session.reading() as tx:
        assert tx.value("SELECT state FROM job WHERE id = 2") == "pending"
    stranger.session.close()
