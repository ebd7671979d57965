"""Cancel and retry of many: batches, so that nobody waits long at the gate, and an answer for each id."""

from __future__ import annotations

from contextlib import suppress

import pytest
from store_builders import new_job, put

from trainq.base.errors import Storage
from trainq.domain.selectors import Filter
from trainq.ops.cancel import cancel
from trainq.ops.hold import hold, release
from trainq.ops.queue import open_queue
from trainq.ops.retry import retry
from trainq.store import jobs, reads

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


def test_an_error_in_the_midst_tells_what_was_done_before_it(queue):
    """DESIGN 2.6: the jobs of the batches that are committed are told as changed, all others as refused, and why."""
    writing = queue.session.writing
    for change, result in ((cancel, "canceled"), (retry, "retried")):
        turns = iter([writing])

        def sick(turns=turns):
            with suppress(StopIteration):
                return next(turns)()
            raise Storage("disk I/O error")

        queue.session.writing = sick
        done = change(queue, ["1-1100"])
        queue.session.writing = writing
        told = {number: one.result for one in done for number in [one.id]}
        assert told == {number: result if number <= 500 else "refused" for number in range(1, MANY + 1)}
        assert {one.error for one in done if one.result == "refused"} == {"disk I/O error"}
        with pytest.raises(Storage):
            queue.session.writing = sick
            change(queue, ["501-1100"])
        queue.session.writing = writing
        with queue.session.reading() as tx:
            states = reads.states(tx, range(1, MANY + 1))
        changed = "canceled" if change is cancel else "pending"
        assert {number for number, state in states.items() if state == changed} >= set(range(1, 501))
        cancel(queue, ["501-1100"])


@pytest.mark.parametrize(("change", "result"), [(cancel, "canceled"), (hold, "held"), (release, "already")])
def test_what_has_left_the_state_that_was_asked_for_is_left_alone(queue, change, result):
    """A filter by state holds when the batch is changed, not only when it was selected."""
    other = open_queue(queue.paths.root)
    writing = queue.session.writing

    def first_somebody_else():
        queue.session.writing = writing
        with other.session.writing() as tx:
            jobs.request_cancel(tx, 7, "ann", grace_s=None, message=None)
        return writing()

    queue.session.writing = first_somebody_else
    done = change(queue, ["6-8"], Filter(state=("pending",)))
    other.session.close()
    assert [(one.id, one.result) for one in done] == [(6, result), (8, result)]


def test_many_are_held_and_released_in_batches(queue):
    """E08: a transaction for 500 ids at most, and an answer for each."""
    for change, result in ((hold, "held"), (hold, "already"), (release, "released"), (release, "already")):
        said = traced(queue)
        done = change(queue, ["1-1100"])
        assert [(one.id, one.result) for one in done] == [(number, result) for number in range(1, MANY + 1)]
        assert said.count("BEGIN IMMEDIATE") == 3


def test_others_jobs_are_held_by_nobody_but_whose_queue_it_is(queue):
    """E08, Q37: a third user is denied, with whose job it is, and nothing is changed; the owner of the directory may."""
    with queue.session.writing() as tx:
        tx.rows("UPDATE job SET user = 'bob', user_id = 4242 WHERE id = 1")
    queue.actor = queue.actor._replace(user_id=4343)
    for change in (hold, release):
        [done] = change(queue, ["1"])
        assert (done.result, done.error) == ("denied", "job 1 belongs to bob")
    queue.actor = queue.actor._replace(user_id=queue.owner_id)
    assert [change(queue, ["1"])[0].result for change in (hold, release)] == ["held", "released"]
