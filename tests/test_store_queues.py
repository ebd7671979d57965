"""The contract of a queue's row: the breaker that counts quick failures, pause and resume, and claims that heed them."""

from __future__ import annotations

import pytest
from store_builders import BACKENDS, claim_next, dump, history, is_work, job_row, new_job, put, settle, take

from trainq.domain.job import Decision, Outcome, Progress
from trainq.store import jobs, pruning, queues

FAILED = Decision("errored", "exit", "user")
QUICK = Outcome("exit", 1, quick=True)


@pytest.fixture(params=BACKENDS)
def session(request, tmp_path):
    make, kind = BACKENDS[request.param]
    opened = make(tmp_path)
    assert type(opened) is kind
    yield opened
    opened.close()


def count(session, *ends, queue="default", breaker=3):
    """What the breaker said to each of these ends (decision, outcome)."""
    said = []
    for decision, outcome in ends:
        with session.writing() as tx:
            said.append(queues.count_end(tx, queue, decision, outcome, breaker))
    return said


def paused(session):
    with session.reading() as tx:
        return queues.paused(tx)


def pause(session, name, reason="queue_paused", by="ann", message=None):
    with session.writing() as tx:
        return queues.pause(tx, name, reason, by, message)


def resume(session, name):
    with session.writing() as tx:
        return queues.resume(tx, name)


class TestQueues:
    """What every backend must do."""

    def test_quick_failures_in_a_row_pause_the_queue_once(self, session):
        """E13: at the breaker's number, not before; what fails after that changes nothing."""
        assert count(session, *[(FAILED, QUICK)] * 6) == [False, False, True, False, False, False]
        assert paused(session) == {"default": "breaker"}
        with session.reading() as tx:
            row = tx.one("SELECT * FROM queue")
            assert row["paused_by"] is None
            assert row["paused_at"] <= tx.now

    def test_a_done_job_breaks_the_row(self, session):
        """E13: in a row means without one that was done between."""
        done = (Decision("done"), Outcome(None, 0))
        assert count(session, *[(FAILED, QUICK), (FAILED, QUICK), done] * 3) == [False] * 9
        assert count(session, (FAILED, QUICK), (FAILED, QUICK), (FAILED, QUICK)) == [False, False, True]

    def test_a_done_job_does_not_open_a_paused_queue(self, session):
        """E13: people open it; a job that still ran does not."""
        count(session, *[(FAILED, QUICK)] * 3)
        assert count(session, (Decision("done"), Outcome(None, 0))) == [False]
        assert paused(session) == {"default": "breaker"}

    @pytest.mark.parametrize(
        ("decision", "outcome"),
        [
            (FAILED, Outcome("exit", 1, quick=False)),
            (Decision("held", "backoff", delay_s=1.0), QUICK),
            (Decision("pending", "requeued"), Outcome("requeued", 75, quick=True)),
            (Decision("pending", "drained"), Outcome("drained", quick=True)),
            (Decision("canceled", "user"), QUICK),
        ],
    )
    def test_other_ends_do_not_count(self, session, decision, outcome):
        """E13: not what ran for a while, will be tried again, or was wanted; and they do not break the row either."""
        assert count(session, (FAILED, QUICK), *[(decision, outcome)] * 5, (FAILED, QUICK), (FAILED, QUICK)) == [
            *[False] * 7, True,
        ]  # fmt: skip

    def test_queues_are_counted_apart(self, session):
        """E13: a broken queue does not close another."""
        both = [name for _ in range(2) for name in ("a", "b")]
        assert [count(session, (FAILED, QUICK), queue=name) for name in both] == [[False]] * 4
        assert count(session, (FAILED, QUICK), queue="a") == [True]
        assert paused(session) == {"a": "breaker"}

    def test_a_breaker_of_0_is_none(self, session):
        """E13: it can be switched off."""
        before = dump(session)
        assert count(session, *[(FAILED, QUICK)] * 30, breaker=0) == [False] * 30
        assert dump(session) == before

    def test_resumed_it_begins_anew(self, session):
        """E13: open, and the next pause needs as many failures as the first."""
        count(session, *[(FAILED, QUICK)] * 5)
        assert resume(session, "default") is True
        assert paused(session) == {}
        before = dump(session)
        assert resume(session, "default") is False
        assert resume(session, "never seen") is False
        assert dump(session) == before
        assert count(session, *[(FAILED, QUICK)] * 3) == [False, False, True]

    def test_paused_twice_the_first_word_stands(self, session):
        """Who paused first, and why, is not written over: neither by people nor by the breaker."""
        assert pause(session, "default") is True
        before = dump(session)
        assert pause(session, "default", "breaker", None) is False
        assert dump(session) == before
        assert count(session, *[(FAILED, QUICK)] * 4) == [False] * 4
        assert paused(session) == {"default": "queue_paused"}

    def test_who_paused_it_when_and_what_for(self, session):
        """Q59: kept with the queue until it is opened, and not written over by the next."""
        with session.reading() as tx:
            before = tx.now
        assert pause(session, "a", message="new drivers")
        assert not pause(session, "a", by="bob", message="for fun")
        with session.reading() as tx:
            one = queues.closed(tx)["a"]
            assert (one.reason, one.failures, one.by, one.message) == ("queue_paused", 0, "ann", "new drivers")
            assert before <= one.at <= tx.now
        resume(session, "a")
        pause(session, "a", by="bob")
        with session.reading() as tx:
            one = queues.closed(tx)["a"]
        assert (one.by, one.message) == ("bob", None)

    def test_which_queues_have_jobs(self, session):
        """Q59: those of any state, until the last is pruned."""
        put(session, new_job(queue="a"), new_job(queue="b"))
        settle(session, take(session, queues=("a",)).claim)
        with session.reading() as tx:
            assert queues.with_jobs(tx) == {"a", "b"}
        with session.writing() as tx:
            pruning.retire(tx, [1])
        with session.reading() as tx:
            assert queues.with_jobs(tx) == {"b"}

    def test_a_count_below_the_breaker_does_not_pause(self, session):
        """A row that only counts is an open queue, to claims too."""
        put(session)
        count(session, (FAILED, QUICK))
        assert paused(session) == {}
        assert take(session).claim.job_id == 1

    def test_nothing_is_claimed_from_a_paused_queue(self, session):
        """E13: neither by a worker of this queue alone, nor by one of several; the others go on, then it goes on too."""
        put(session, new_job(queue="a", priority=9), new_job(queue="b"), new_job(queue="a"))
        pause(session, "a")
        with session.writing() as tx:
            assert claim_next(tx, 1, ("a",)) is None
            assert is_work(tx, ("a",)) is False
            assert is_work(tx, ("a", "b")) is True
        assert take(session, queues=("a", "b")).claim.job_id == 2
        with session.writing() as tx:
            assert claim_next(tx, 1, ("a", "b")) is None
            assert is_work(tx, ("a", "b")) is False
        resume(session, "a")
        assert [take(session, queues=("b", "a")).claim.job_id for _ in range(2)] == [1, 3]

    def test_what_runs_or_comes_due_in_a_paused_queue_goes_on(self, session):
        """A pause stops claims: a running job beats and ends, a held one becomes pending, people may submit and cancel."""
        spec = {"retry_on": ["exit"], "backoff_s": 0}
        put(session, new_job(retries=1, spec=spec), new_job())
        failing, running = take(session).claim, take(session).claim
        pause(session, "default")
        assert settle(session, failing, QUICK).state == "held"
        with session.writing() as tx:
            jobs.promote(tx)
            assert jobs.beat(tx, running, Progress(step=1)) == jobs.Flags()
        assert settle(session, running).state == "done"
        assert job_row(session, 1)["state"] == "pending"
        assert put(session) == [3]
        with session.writing() as tx:
            assert jobs.request_cancel(tx, 1, "ann", grace_s=None, message=None) == "canceled"
        assert [row["state"] for row in history(session, 3)] == ["pending"]
