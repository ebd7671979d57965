"""The contract of checkpoint rows: committed under a claim or not at all, and what the next attempt is told of them."""

from __future__ import annotations

import pytest
from store_builders import BACKENDS, NOTHING, dump, dump_in, history, job_row, new_job, put, settle, take

from trainq.domain.job import Outcome, Progress
from trainq.domain.states import USER_CAUSES
from trainq.store import checkpoints, jobs, pruning
from trainq.store.checkpoints import NewCheckpoint
from trainq.store.jobs import LostClaim


@pytest.fixture(params=BACKENDS)
def session(request, tmp_path):
    make, kind = BACKENDS[request.param]
    opened = make(tmp_path)
    assert type(opened) is kind
    yield opened
    opened.close()


def saved(number, step=None):
    return NewCheckpoint(number, step, None, f"{number:064x}", 100 + number)


def commit(session, claim, *numbers):
    for number in numbers:
        with session.writing() as tx:
            checkpoints.commit(tx, claim, saved(number, number * 10))


def attempt(session, cause="drained", *, on=None, saves=()):
    """One attempt that goes on from `on`, saves these, and ends so."""
    claimed = take(session)
    with session.writing() as tx:
        jobs.beat(tx, claimed.claim, Progress(resumed_from=on))
    commit(session, claimed.claim, *saves)
    settle(session, claimed.claim, Outcome(cause, 1 if cause else 0))
    return claimed


class TestCheckpoints:
    """What every backend must do."""

    def test_a_commit_names_it_for_the_attempts_to_come(self, session):
        """Q83, Q84: number and digest, rising, whichever attempt saved them; the first attempt is told of none."""
        put(session)
        first = attempt(session, saves=(1, 3))
        second = attempt(session, saves=(2, 7))
        third = take(session)
        assert (first.checkpoints, first.suspects, first.last_cause) == ((), {}, None)
        assert second.checkpoints == tuple((number, saved(number).digest) for number in (1, 3))
        assert third.checkpoints == tuple((number, saved(number).digest) for number in (1, 2, 3, 7))
        with session.reading() as tx:
            rows = tx.rows("SELECT number, attempt, step, size FROM checkpoint ORDER BY number")
            assert [tuple(row) for row in rows] == [(1, 1, 10, 101), (2, 2, 20, 102), (3, 1, 30, 103), (7, 2, 70, 107)]
            assert tx.value("SELECT max(at) FROM checkpoint") <= tx.now

    def test_saying_it_twice_changes_nothing(self, session):
        """Q83: after a COMMIT that answered with an error the worker says it again, and so may the next attempt."""
        put(session)
        claim = take(session).claim
        commit(session, claim, 1)
        before = dump(session)
        commit(session, claim, 1)
        assert dump(session) == before
        settle(session, claim, Outcome("drained"))
        later = take(session).claim
        before = dump(session)
        commit(session, later, 1)
        assert dump(session) == before

    def test_another_one_of_the_same_number_takes_its_place(self, session):
        """Q83: where somebody has emptied the directory numbers begin anew: what is said to count is what counts."""
        put(session)
        attempt(session, saves=(1, 2))
        again = take(session)
        with session.writing() as tx:
            checkpoints.commit(tx, again.claim, NewCheckpoint(1, 70, 7, "ff" * 32, 5))
        settle(session, again.claim, Outcome("drained"))
        assert take(session).checkpoints == ((1, "ff" * 32), (2, saved(2).digest))
        with session.reading() as tx:
            rows = tx.rows("SELECT number, attempt, step, epoch, size FROM checkpoint ORDER BY number")
            assert [tuple(row) for row in rows] == [(1, 2, 70, 7, 5), (2, 1, 20, None, 102)]

    @pytest.mark.parametrize("how", ["taken back", "ended", "another worker", "no such job"])
    def test_a_stale_claim_saves_nothing(self, session, how):
        """Q20, Q83: LostClaim, and no row of any table is another."""
        put(session)
        claim = take(session).claim
        commit(session, claim, 1)
        if how == "taken back":
            settle(session, claim, Outcome("drained"))
            take(session, 2)
        elif how == "ended":
            settle(session, claim)
        else:
            claim = claim._replace(**({"worker_id": 2} if how == "another worker" else {"job_id": 99}))
        before = dump(session)
        with session.writing() as tx:
            with pytest.raises(LostClaim):
                checkpoints.commit(tx, claim, saved(2))
            assert dump_in(tx) == before
        assert dump(session) == before

    def test_it_comes_with_its_beat_or_not_at_all(self, session):
        """DESIGN 2.6: rolled back with the transaction it was written in."""
        put(session)
        claim = take(session).claim
        before = dump(session)
        with pytest.raises(OSError), session.writing() as tx:
            jobs.beat(tx, claim, NOTHING)
            checkpoints.commit(tx, claim, saved(1))
            raise OSError
        assert dump(session) == before

    def test_each_job_has_its_own(self, session):
        """The same number of two jobs is two checkpoints; with the job's row they go."""
        put(session, new_job(), new_job())
        one, two = take(session).claim, take(session).claim
        commit(session, one, 1)
        commit(session, two, 1)
        settle(session, one)
        settle(session, two, Outcome("drained"))
        with session.writing() as tx:
            pruning.retire(tx, [1])
            assert [row[0] for row in tx.rows("SELECT job_id FROM checkpoint")] == [2]
        assert [number for number, _ in take(session).checkpoints] == [1]

    # suspects ------------------------------------------------------------------------------------------------------

    def test_crashes_are_counted_by_what_they_went_on_from(self, session):
        """Q84: two crashes from 2, one from 1; the attempt that saved it is not one of them."""
        put(session, new_job(retries=9, spec={"retry_on": ["exit"], "backoff_s": 0}))

        def crash(on, saves=()):
            attempt(session, "exit", on=on, saves=saves)
            with session.writing() as tx:
                jobs.promote(tx)

        crash(None, saves=(1, 2))
        for on in (2, 2, 1):
            crash(on)
        claimed = take(session)
        assert (claimed.suspects, claimed.last_cause) == ({2: 2, 1: 1}, "exit")

    def test_who_saved_something_newer_is_no_witness(self, session):
        """Q84: an attempt that went on from 1, saved 2 and then failed says nothing against 1."""
        put(session, new_job(retries=9, spec={"retry_on": ["exit"], "backoff_s": 0}))
        attempt(session, "drained", saves=(1,))
        attempt(session, "exit", on=1, saves=(2,))
        with session.writing() as tx:
            jobs.promote(tx)
        assert take(session).suspects == {}

    @pytest.mark.parametrize("cause", [*USER_CAUSES, "drained", "requeued", "store"])
    def test_only_the_jobs_own_fault_counts(self, session, cause):
        """Q84: not a drain, the own wish or a full disk."""
        put(session, new_job(retries=9, spec={"retry_on": [*USER_CAUSES], "backoff_s": 0}))
        attempt(session, "drained", saves=(1,))
        attempt(session, cause, on=1)
        with session.writing() as tx:
            jobs.promote(tx)
            if cause == "store":
                jobs.retry(tx, 1, "ann")
        claimed = take(session)
        assert claimed.suspects == ({1: 1} if cause in USER_CAUSES else {})
        assert claimed.last_cause == cause

    def test_the_attempts_record_says_what_it_went_on_from(self, session):
        """Q84: status and history show resumed_from; the next attempt's row begins without."""
        put(session)
        attempt(session, saves=(1,))
        attempt(session, on=1)
        assert [row["resumed_from"] for row in history(session, 1)] == [None, None, None, None, 1]
        claimed = take(session)
        assert job_row(session, 1)["resumed_from"] is None
        settle(session, claimed.claim, last=Progress(resumed_from=1, save_failed=2))
        row = job_row(session, 1)
        assert (row["state"], row["resumed_from"], row["save_failed"]) == ("done", 1, 2)
