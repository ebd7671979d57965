"""Cancel and retry of many: batches, so that nobody waits long at the gate, and an answer for each id."""

from __future__ import annotations

import pytest
from store_builders import new_job, put

from trainq.domain.selectors import Filter
from trainq.ops.cancel import cancel
from trainq.ops.queue import open_queue
from trainq.ops.retry import retry
from trainq.store import jobs

MANY = 1100


@pytest.fixture
def queue(root):
    queue = open_queue(root)
    put(queue.session, *[new_job() for _ in range(MANY)])
    yield queue
    queue.session.close()


def traced(queue):
    """The statements that are executed from now on."""
    said = []
    queue.session.connection().set_trace_callback(said.append)
    return said


@pytest.mark.parametrize("words", [["1-1100"], []])
def test_many_are_changed_in_batches(queue, words):
    """A transaction for 500 ids at most, no whole rows, and an answer for each, in the order named."""
    which = Filter() if words else Filter(user=("ann",))
    for change, results in ((cancel, "canceled"), (retry, "retried")):
        said = traced(queue)
        done = change(queue, words, which)
        assert [(one.id, one.result) for one in done] == [(number, results) for number in range(1, MANY + 1)]
        assert said.count("BEGIN IMMEDIATE") == 3
        assert not [line for line in said if line.startswith("SELECT j.*")]


def test_what_has_left_the_state_that_was_asked_for_is_left_alone(queue):
    """A filter by state holds when the batch is changed, not only when it was selected."""
    other = open_queue(queue.paths.root)
    writing = queue.session.writing

    def first_somebody_else():
        queue.session.writing = writing
        with other.session.writing() as tx:
            jobs.request_cancel(tx, 7, "ann", grace_s=None, message=None)
        return writing()

    queue.session.writing = first_somebody_else
    done = cancel(queue, ["6-8"], Filter(state=("pending",)))
    other.session.close()
    assert [(one.id, one.result) for one in done] == [(6, "canceled"), (8, "canceled")]
