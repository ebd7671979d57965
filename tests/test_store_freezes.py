"""The contract of a freeze in the row: asked for and taken back, seen by the worker with its beats, over with the attempt."""

from __future__ import annotations

import pytest
from store_builders import BACKENDS, NOTHING, OK, dump, history, job_row, put, settle, take

from trainq.domain.job import Outcome
from trainq.store import freezes, jobs, rules
from trainq.store.jobs import Flags


@pytest.fixture(params=BACKENDS)
def session(request, tmp_path):
    make, kind = BACKENDS[request.param]
    opened = make(tmp_path)
    assert type(opened) is kind
    yield opened
    opened.close()


def freeze(session, job_id=1, by="ann@here", message=None):
    with session.writing() as tx:
        return freezes.request_freeze(tx, job_id, by, message)


def thaw(session, job_id=1, by="bob@there"):
    with session.writing() as tx:
        return freezes.request_thaw(tx, job_id, by)


def beat(session, claim):
    with session.writing() as tx:
        return jobs.beat(tx, claim, NOTHING)


def standing(session, job_id=1):
    with session.reading() as tx:
        assert rules.broken(tx, "job.freeze") == []
        return freezes.standing(tx, job_id)


def told(session, job_id=1):
    return [(row["state"], row["reason"], row["by"], row["message"]) for row in history(session, job_id)][2:]


class TestFreezes:
    """What every backend must do."""

    def test_it_is_a_flag_and_a_row_of_history(self, session):
        """E08: nothing else of the job changes; who, from where and why is told; the worker hears of it by its beat."""
        put(session)
        claim = take(session).claim
        before = job_row(session, 1)
        assert beat(session, claim) == Flags()
        assert freeze(session, message="a demo")
        assert standing(session) == "frozen"
        assert beat(session, claim) == Flags(frozen_by="ann@here")
        with session.reading() as tx:
            assert jobs.asked_of(tx, claim.worker_id) == {1: Flags(frozen_by="ann@here")}
            assert jobs.asked_of(tx, claim.worker_id + 1) == {}
        row = job_row(session, 1)
        changed = {name for name in row if row[name] != before[name]}
        assert changed == {"freeze_at", "freeze_by", "reason", "beat", "heartbeat_at"}
        assert (row["state"], row["reason"]) == ("running", "frozen")
        assert thaw(session)
        assert beat(session, claim) == Flags()
        row = job_row(session, 1)
        assert {name for name in row if row[name] != before[name]} == {"beat", "heartbeat_at"}
        assert told(session) == [
            ("running", "frozen", "ann@here", "a demo"), ("running", "resumed", "bob@there", None),
        ]  # fmt: skip

    def test_repeated_it_changes_nothing(self, session):
        """E08: who asked first stands; a thaw of what is not frozen is none."""
        put(session)
        take(session)
        for ask in (freeze, thaw):
            assert ask(session)
            before = dump(session)
            assert not ask(session)
            assert dump(session) == before

    def test_only_what_runs_is_frozen(self, session):
        """E08: waiting, ended, unknown: nothing is changed."""
        put(session)
        before = dump(session)
        assert not freeze(session)
        assert not freeze(session, 2)
        assert dump(session) == before
        assert (standing(session), standing(session, 2)) == ("pending", "unknown")
        settle(session, take(session).claim)
        before = dump(session)
        assert not freeze(session)
        assert not thaw(session)
        assert dump(session) == before

    def test_a_cancel_wins(self, session):
        """Q31: over a freeze that was asked for, and over one that comes after it."""
        put(session)
        claim = take(session).claim
        freeze(session)
        with session.writing() as tx:
            assert jobs.request_cancel(tx, 1, "cid", grace_s=None, message=None) == "canceling"
        assert standing(session) == "canceling"
        assert beat(session, claim).cancel
        before = dump(session)
        assert not freeze(session)
        assert not thaw(session)
        assert dump(session) == before
        assert settle(session, claim).state == "canceled"

    @pytest.mark.parametrize("end", [OK, Outcome("exit", 3)])
    def test_what_ends_while_it_is_asked_for_ends_as_ever(self, session, end):
        """E08: the flag changes no end, and leaves no reason behind."""
        put(session)
        claim = take(session).claim
        freeze(session)
        decision = settle(session, claim, end)
        row = job_row(session, 1)
        assert (row["state"], row["reason"]) == (decision.state, decision.reason) == (
            ("done", None) if end is OK else ("errored", "exit")
        )  # fmt: skip

    def test_the_next_attempt_runs(self, session):
        """E08: a freeze is of one attempt; after a requeue nothing is left of it."""
        put(session)
        claim = take(session).claim
        freeze(session)
        assert settle(session, claim, Outcome("drained")).state == "pending"
        again = take(session).claim
        assert beat(session, again) == Flags()
        assert standing(session) == "running"
        assert freeze(session)
