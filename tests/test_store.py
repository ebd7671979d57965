"""The contract of a store's session: every verb of a job's life, on every backend that is plugged in below.

A backend is a row of `BACKENDS` in store_builders. The breaker and checkpoints have files of their own.
"""

from __future__ import annotations

import itertools
import json
import os

import pytest
from store_builders import (
    ACTOR,
    BACKENDS,
    NOTHING,
    OK,
    claim_next,
    counts_are_real,
    data_set,
    dump,
    dump_in,
    finished,
    history,
    is_work,
    job_row,
    join,
    line,
    model,
    new_job,
    place,
    put,
    settle,
    spawn,
    submission,
    take,
)

from trainq.domain.job import Claim, Decision, Outcome, Progress
from trainq.domain.states import USER_CAUSES
from trainq.store import checkpoints, claims, jobs, lanes, lost, models, pruning, reads, workers
from trainq.store.checkpoints import NewCheckpoint
from trainq.store.jobs import Flags, LostClaim
from trainq.store.lost import Held

FAILED = Outcome("exit", 3, None, "exit 3\nlast line")


@pytest.fixture(params=BACKENDS)
def session(request, tmp_path):
    make, kind = BACKENDS[request.param]
    opened = make(tmp_path)
    assert type(opened) is kind
    yield opened
    opened.close()


def states(session, job_id):
    return [row["state"] for row in history(session, job_id)]


def zombify(session, claim):
    """Let one observer see the job stand still."""
    found = []
    for boot_s in (0.0, 5.0, 10.0):
        with session.writing() as tx:
            found += lost.look(tx, "janitor", boot_s, 10.0)
    assert [one.job_id for one in found] == [claim.job_id]
    return found[0]


class TestStore:
    """What every backend must do."""

    # submit --------------------------------------------------------------------------------------------------------

    def test_ids_follow_each_other_in_the_order_given(self, session):
        """Q01: all jobs of a call, one after the other, whole: row, spec, data, counter, history."""
        with session.writing() as tx:
            first = jobs.submit(tx, submission(), [new_job("a"), new_job("b"), new_job("c")])
            second = jobs.submit(tx, submission(), [new_job("d", spec={"argv": ["true"]}, data=(data_set(),))])
        assert (first, second) == (range(1, 4), range(4, 5))
        with session.reading() as tx:
            assert [row[0] for row in tx.rows("SELECT name FROM job ORDER BY id")] == ["a", "b", "c", "d"]
            assert json.loads(tx.value("SELECT doc FROM spec WHERE job_id = 4")) == {"argv": ["true"]}
            assert claims.data_of(tx, 4) == (data_set(),)
            counts_are_real(tx)
        assert states(session, 4) == ["pending"]
        assert job_row(session, 4)["changed_by"] == str(ACTOR)

    def test_all_or_none(self, session):
        """Q03, E04: the last of many cannot be stored: none is, and nothing else is left of the call."""
        put(session)
        before = dump(session)
        bad = new_job(max_attempts=None)
        with pytest.raises(Exception, match="max_attempts"), session.writing() as tx:
            jobs.submit(tx, submission(), [*[new_job(data=(data_set(b"other"),)) for _ in range(50)], bad])
        assert dump(session) == before
        assert put(session) == [2]

    def test_repeating_a_call_answers_the_same_ids(self, session):
        """E03: a call whose answer was lost is repeated: the same ids, and nothing new."""
        call, new = submission(), [new_job("a"), new_job("b")]
        with session.writing() as tx:
            ids = jobs.submit(tx, call, new)
        put(session)
        before = dump(session)
        with session.writing() as tx:
            assert jobs.submit(tx, call, new) == ids
            assert jobs.find_submission(tx, call.uid) == ids
            assert jobs.find_submission(tx, "nobody") is None
        assert dump(session) == before

    def test_an_id_is_never_used_again(self, session):
        """Neither after a prune, nor when all jobs are gone, nor after their past is forgotten too."""
        assert put(session, new_job(), new_job()) == [1, 2]
        with session.writing() as tx:
            for number in (1, 2):
                jobs.request_cancel(tx, number, "ann", grace_s=None, message=None)
            assert pruning.retire(tx, [1, 2]) == [1, 2]
        assert put(session) == [3]
        with session.writing() as tx:
            jobs.request_cancel(tx, 3, "ann", grace_s=None, message=None)
            pruning.retire(tx, [3])
            assert pruning.forget_past(tx, tx.now + 1) == 3
            assert tx.value("SELECT count(*) FROM submission") == 0
        assert put(session) == [4]

    def test_an_id_that_was_rolled_back_was_never_given(self, session):
        """Ids are given by the commit."""
        with pytest.raises(KeyError), session.writing() as tx:
            jobs.submit(tx, submission(), [new_job()])
            raise KeyError
        assert put(session) == [1]

    def test_environments_and_sets_are_kept_once(self, session):
        """The same environment and the same content are stored once, whoever names them."""
        for _ in range(3):
            put(session, new_job(data=(data_set(),)), new_job(data=(data_set(), data_set(name="test"))))
        put(session, environ='{"env":{"A":"1"}}')
        with session.reading() as tx:
            assert tx.value("SELECT count(*) FROM environ") == 2
            assert tx.value("SELECT count(*) FROM data") == 1
            assert tx.value("SELECT count(*) FROM job_data") == 9

    def test_active_jobs_are_found_by_key_print_and_uid(self, session):
        """Q09, E03: found while they wait or run, and not once they ended."""
        with session.writing() as tx:
            jobs.submit(tx, submission("call"), [new_job(key="k", fingerprint="f")])
        for step in ("pending", "running", "done"):
            with session.reading() as tx:
                there = step != "done"
                assert jobs.active_with_key(tx, "k") == (1 if there else None)
                assert jobs.active_with_fingerprint(tx, "f") == (1 if there else None)
                assert jobs.is_active_uid(tx, "call.0") is there
                assert jobs.count_active(tx) == there
                for wrong in ("call.1", "call.-1", "call.x", "call", "", ".0", "other.0"):
                    assert jobs.is_active_uid(tx, wrong) is False
                assert jobs.active_with_key(tx, "other") is None
            if step == "pending":
                claim = take(session).claim
            elif step == "running":
                settle(session, claim)

    def test_a_thousand_submits_from_fifty_processes(self, session, tmp_path):
        """Q61: 50 processes, 20 submits each, against 4 that beat all the time: 1000 ids, 1000 rows, every beat landed."""
        put(session, *[new_job() for _ in range(4)])
        claims = [take(session).claim for _ in range(4)]
        submits = """
say("ready"); sys.stdin.readline()
print(json.dumps([put(session)[0] for _ in range(20)]))
"""
        beats = """
import select
claim, n = Claim(*json.loads(sys.argv[2])), 0
say("ready")
while not select.select([sys.stdin], [], [], 0.005)[0]:
    with session.writing() as tx: jobs.beat(tx, claim, Progress(step=n))
    n += 1
say(n)
"""
        beating = [spawn(beats, tmp_path, json.dumps(claim), stdin=-1) for claim in claims]
        processes = [spawn(submits, tmp_path, stdin=-1) for _ in range(50)]
        for process in beating + processes:
            assert line(process) == "ready"
        for process in processes:
            process.stdin.write("go\n")
            process.stdin.flush()
        given = [json.loads(finished(process)) for process in processes]
        beaten = [int(finished(process)) for process in beating]
        assert all(ids == sorted(ids) for ids in given)
        assert sorted(itertools.chain(*given)) == list(range(5, 1005))
        with session.reading() as tx:
            assert tx.value("SELECT count(*) FROM job WHERE state = 'pending'") == 1000
            assert tx.value("SELECT count(DISTINCT submission_id) FROM job WHERE state = 'pending'") == 1000
            assert [row[0] for row in tx.rows("SELECT beat FROM job WHERE id < 5 ORDER BY id")] == beaten
            counts_are_real(tx)
        assert all(beaten)

    # claim ---------------------------------------------------------------------------------------------------------

    def test_claims_come_in_order(self, session):
        """Q13: highest priority first, then the oldest; a canceled one is not there any more."""
        put(session, *[new_job(priority=priority) for priority in (0, 5, -1, 5, 0)])
        with session.writing() as tx:
            jobs.request_cancel(tx, 1, "ann", grace_s=None, message=None)
        assert [take(session).claim.job_id for _ in range(4)] == [2, 4, 5, 3]
        with session.writing() as tx:
            assert claim_next(tx, 1, ("default",)) is None

    def test_claims_look_into_the_queues_they_name(self, session):
        """One queue, several, none, unknown ones: the first of those named, in whatever order they are named."""
        put(session, new_job(queue="a"), new_job(queue="b"), new_job(queue="c", priority=1), new_job(queue="a"))
        assert take(session, queues=("b",)).claim.job_id == 2
        with session.writing() as tx:
            for queues in (("b",), (), ("nobody", "b")):
                assert claim_next(tx, 1, queues) is None
                assert is_work(tx, queues) is False
            assert is_work(tx, ("b", "c")) is True
        assert [take(session, queues=("a", "b", "c")).claim.job_id for _ in range(3)] == [3, 1, 4]

    def test_claims_look_at_the_jobs_of_the_users_they_name(self, session):
        """E18: the first of those of these users, in the same order, whatever of others' stands before; else nothing."""
        put(session, *[new_job(queue=queue, priority=priority) for queue in "ab" for priority in (0, 5, 0)])
        with session.writing() as tx:
            for user_id, ids in ((7, (3, 4)), (8, (6,))):
                for number in ids:
                    queue = tx.value("SELECT queue FROM job WHERE id = ?", (number,))
                    lane_id = lanes.intern(tx, queue, user_id, "")
                    tx.rows("UPDATE job SET user_id = ?, lane_id = ? WHERE id = ?", (user_id, lane_id, number))
            for users in ((), (9,)):
                assert claim_next(tx, 1, ("a", "b"), users) is None
                assert is_work(tx, ("a", "b"), users) is False
            assert is_work(tx, ("a",), (8, 7)) is True
            assert is_work(tx, ("a",), (8,)) is False
            taken = [claim_next(tx, 1, ("b", "a"), (8, 7)) for _ in range(4)]
        assert [claimed and claimed.claim.job_id for claimed in taken] == [3, 4, 6, None]

    def test_a_claim_brings_all_that_is_needed(self, session):
        """The spec, the environment, umask, data and uid come with the claim."""
        with session.writing() as tx:
            some = [new_job("a"), new_job("b", spec={"argv": ["x"]}, data=(data_set(), data_set(b"t", "test")))]
            jobs.submit(tx, submission("call", '{"env":{"A":"1"}}'), some)
        take(session)
        got = take(session, 7)
        assert (got.claim, got.uid, got.umask) == (Claim(2, 1, 7), "call.1", 0o022)
        assert (got.spec, got.environ) == ({"argv": ["x"]}, {"env": {"A": "1"}})
        assert [item.name for item in got.data] == ["test", "train"]
        row = job_row(session, 2)
        assert (row["state"], row["stage"], row["worker_id"], row["worker"]) == ("running", "fetching", 7, "w7")

    def test_a_claim_wipes_what_the_last_attempt_left(self, session):
        """The row of a new attempt says nothing of the one before; history does."""
        put(session, new_job(retries=1, spec={"retry_on": ["exit"], "backoff_s": 0}))
        fresh = job_row(session, 1)
        claim = take(session).claim
        first = job_row(session, 1)
        with session.writing() as tx:
            told = Progress(0.5, 1, 2, "note", 1, 4, "storing", 99, 3.0, 1.0)
            jobs.beat(tx, claim, told)
            jobs.settle(tx, claim, FAILED._replace(signal=9), told._replace(metrics='{"a":1}'))
            jobs.promote(tx)
        second_claim = take(session, 2).claim
        assert second_claim == Claim(1, 2, 2)
        second = job_row(session, 1)
        differs = {name for name in second if second[name] != first[name]}
        assert differs <= {
            "attempt", "worker_id", "worker", "heartbeat_at", "claimed_at", "changed_at", "eligible_at", "user_used",
        }  # fmt: skip
        assert fresh["attempt"] == 0
        record = next(row for row in history(session, 1) if row["state"] == "held")
        assert (record["exit_code"], record["signal"], record["error"], record["metrics"]) == (
            3, 9, FAILED.error, '{"a":1}',
        )  # fmt: skip

    def test_eight_processes_share_two_hundred_jobs(self, session, tmp_path):
        """Q19: 8 processes drain 200 jobs: each job has exactly one start per attempt, and 200 versions exist."""
        put(session, *[new_job(retries=1, spec={"retry_on": ["exit"], "backoff_s": 0}) for _ in range(200)])
        code = """
say("ready"); sys.stdin.readline()
with session.writing() as tx: me = join(tx, "w")
claimed = []
while True:
    with session.writing() as tx:
        jobs.promote(tx)
        got = claim_next(tx, me, ("default",))
    if got is None: break
    claimed.append(got.claim)
    with session.writing() as tx:
        if got.claim.attempt == 1 and got.claim.job_id % 10 == 0:
            jobs.settle(tx, got.claim, Outcome("exit", 1, None, "no"), NOTHING)
        else:
            jobs.publish(tx, got.claim, OK, NOTHING, model(), 0)
print(json.dumps(claimed))
"""
        processes = [spawn(code, tmp_path, stdin=-1) for _ in range(8)]
        for process in processes:
            assert line(process) == "ready"
        for process in processes:
            process.stdin.write("go\n")
            process.stdin.flush()
        given = [tuple(claim) for process in processes for claim in json.loads(finished(process))]
        assert len({(job_id, attempt) for job_id, attempt, _ in given}) == len(given) == 220
        with session.reading() as tx:
            starts = tx.rows("SELECT job_id, attempt, count(*) FROM history WHERE state = 'running' GROUP BY 1, 2")
            assert len(starts) == 220
            assert {row[2] for row in starts} == {1}
            assert tx.value("SELECT count(*) FROM job WHERE state = 'done'") == 200
            assert [row["version"] for row in models.versions(tx, "ann/wine")] == list(range(1, 201))
            assert tx.value("SELECT count(DISTINCT job_id) FROM model") == 200
            counts_are_real(tx)

    # the fence -----------------------------------------------------------------------------------------------------

    STALE = ("old attempt", "other worker", "done", "errored", "canceled", "held", "pending", "pruned", "no such job")

    def stale(self, session, how):
        """A claim that is not current any more, and why."""
        put(session, new_job(retries=1, spec={"retry_on": ["exit"], "backoff_s": 1000}))
        claim = take(session).claim
        if how == "old attempt":
            settle(session, claim, Outcome("drained"))
            take(session)
        elif how == "other worker":
            return claim._replace(worker_id=2)
        elif how in ("done", "pruned"):
            settle(session, claim)
            if how == "pruned":
                with session.writing() as tx:
                    pruning.retire(tx, [1])
        elif how in ("errored", "held"):
            settle(session, claim, FAILED if how == "held" else Outcome("data"))
        elif how == "canceled":
            with session.writing() as tx:
                jobs.request_cancel(tx, 1, "ann", grace_s=None, message=None)
            settle(session, claim)
        elif how == "pending":
            zombify(session, claim)
        elif how == "no such job":
            return claim._replace(job_id=99)
        return claim

    VERBS = {
        "beat": lambda tx, claim: jobs.beat(tx, claim, Progress(1.0, 9, 9, "late", 9, 9, "storing", 9, 1.0, 1.0)),
        "succeed": lambda tx, claim: jobs.settle(tx, claim, OK, Progress(step=9)),
        "fail": lambda tx, claim: jobs.settle(tx, claim, FAILED, NOTHING),
        "give back": lambda tx, claim: jobs.settle(tx, claim, Outcome("drained"), NOTHING),
        "publish": lambda tx, claim: jobs.publish(tx, claim, OK, NOTHING, model(), 0),
        "save": lambda tx, claim: checkpoints.commit(tx, claim, NewCheckpoint(1, 9, None, "00" * 32, 10)),
        "look up": jobs.current,
    }

    @pytest.mark.parametrize("verb", VERBS)
    @pytest.mark.parametrize("how", STALE)
    def test_a_stale_claim_changes_nothing_at_all(self, session, how, verb):
        """Q20: whatever made the claim stale, every verb raises LostClaim and no row of any table is another.

        For publish: no model row, and no version number is used up.
        """
        claim = self.stale(session, how)
        before = dump(session)
        with session.writing() as tx:
            with pytest.raises(LostClaim) as caught:
                self.VERBS[verb](tx, claim)
            assert dump_in(tx) == before
        assert caught.value.claim == claim
        assert dump(session) == before
        put(session)
        other = take(session, 3).claim
        with session.writing() as tx:
            assert jobs.publish(tx, other, OK, NOTHING, model(), 0) == 1

    @pytest.mark.parametrize("verb", VERBS)
    def test_a_current_claim_goes_through(self, session, verb):
        """Q20: the same verbs with the same claim do their work while it is current."""
        put(session)
        claim = take(session).claim
        with session.writing() as tx:
            before = dump_in(tx)
            self.VERBS[verb](tx, claim)
            assert (dump_in(tx) == before) is (verb == "look up")

    def test_a_lost_claim_spoils_nothing_for_others(self, session):
        """Q20: a worker that finds one claim lost goes on in the same transaction with its others."""
        put(session, new_job(), new_job())
        gone, mine = take(session).claim, take(session).claim
        settle(session, gone)
        with session.writing() as tx:
            with pytest.raises(LostClaim):
                jobs.settle(tx, gone, FAILED, NOTHING)
            jobs.settle(tx, mine, OK, NOTHING)
        assert (job_row(session, 1)["state"], job_row(session, 2)["state"]) == ("done", "done")

    # beats ---------------------------------------------------------------------------------------------------------

    def test_a_beat_moves_the_counter_and_keeps_what_is_not_said(self, session):
        """Q24: a beat without progress is a beat; what is None stays as it was."""
        put(session)
        claim = take(session).claim
        with session.writing() as tx:
            told = Progress(0.25, 5, 20, "five", 2, 3, "training", 7, 2.0, None)
            assert jobs.beat(tx, claim, told) == Flags()
            started = tx.value("SELECT started_at FROM job")
            assert started == pytest.approx(tx.now - 2.0)
        with session.writing() as tx:
            jobs.beat(tx, claim, NOTHING)
            jobs.beat(tx, claim, Progress(step=6, started_ago_s=99.0))
        row = job_row(session, 1)
        assert (row["beat"], row["step"], row["total"], row["note"], row["fraction"]) == (3, 6, 20, "five", 0.25)
        assert (row["started_at"], row["stage"], row["pid"]) == (started, "training", 7)
        assert (row["save_failed"], row["resumed_from"]) == (2, 3)
        assert states(session, 1) == ["pending", "running"]

    def test_a_beat_brings_the_wish_to_cancel(self, session):
        """Q31: the flag and its grace come with the next beat; asked again, the shortest grace counts, one note only."""
        put(session)
        claim = take(session).claim
        with session.writing() as tx:
            assert jobs.asked_of(tx, 1) == {}
            assert jobs.request_cancel(tx, 1, "ann", grace_s=3.0, message="why") == "canceling"
            assert jobs.beat(tx, claim, NOTHING) == Flags(True, 3.0)
            assert jobs.request_cancel(tx, 1, "bob", grace_s=0.0, message=None) == "canceling"
            assert jobs.beat(tx, claim, NOTHING) == Flags(True, 0.0)
            assert jobs.asked_of(tx, 1) == {1: Flags(True, 0.0)}
            assert jobs.request_cancel(tx, 1, "cid", grace_s=None, message=None) == "canceling"
            assert jobs.asked_of(tx, 1) == {1: Flags(True, 0.0)}
            assert jobs.asked_of(tx, 2) == {}
        assert [row["reason"] for row in history(session, 1)] == [None, None, "canceling"]
        row = job_row(session, 1)
        assert (row["cancel_by"], row["message"]) == ("ann", "why")

    # ends ----------------------------------------------------------------------------------------------------------

    def test_a_normal_job_leaves_three_rows(self, session):
        """Q51: pending, running, done in time order, with worker and result; replaying the end leaves the count."""
        put(session)
        claim = take(session).claim
        settle(session, claim, Outcome(None, 0), Progress(metrics='{"loss":0.5}', step=3, pid=5, started_ago_s=0.0))
        rows = history(session, 1)
        for _ in range(2):
            with pytest.raises(LostClaim):
                settle(session, claim)
        assert history(session, 1) == rows
        assert [row["state"] for row in rows] == ["pending", "running", "done"]
        assert [row["n"] for row in rows] == [1, 2, 3]
        assert rows[0]["at"] <= rows[1]["at"] <= rows[2]["at"]
        assert [row["worker"] for row in rows] == [None, "w1", "w1"]
        assert (rows[2]["exit_code"], rows[2]["metrics"], rows[2]["pid"]) == (0, '{"loss":0.5}', 5)
        row = job_row(session, 1)
        assert (row["state"], row["reason"], row["side"], row["fraction"]) == ("done", None, None, 1.0)
        assert row["ended_at"] is not None

    def test_has_ended_tells_of_this_attempt(self, session):
        """After a COMMIT that answered with an error: was this end written? Not another attempt's, nor somebody else's."""
        put(session)
        first = take(session).claim
        with session.reading() as tx:
            assert jobs.has_ended(tx, first, Decision("pending", "drained")) is False
        settle(session, first, Outcome("drained"))
        second = take(session).claim
        with session.reading() as tx:
            assert jobs.has_ended(tx, first, Decision("pending", "drained")) is True
            assert jobs.has_ended(tx, first, Decision("done")) is False
            assert jobs.has_ended(tx, first, None) is False
            assert jobs.has_ended(tx, second, Decision("pending", "drained")) is False
            assert claims.unknown_claims(tx, 1, []) == [second]
            assert claims.unknown_claims(tx, 1, [first]) == [second]
            assert claims.unknown_claims(tx, 1, [second]) == []
            assert claims.unknown_claims(tx, 2, []) == []

    @pytest.mark.parametrize("cause", [None, "exit", "timeout", "store", "drained", "requeued", "zombie"])
    def test_cancel_wins_over_every_later_result(self, session, cause):
        """Q33 and DESIGN 2.3: once asked for, whatever the attempt ends with, also with a model, also lost."""
        put(session, new_job(retries=5))
        claim = take(session).claim
        with session.writing() as tx:
            jobs.request_cancel(tx, 1, "ann", grace_s=None, message="not needed")
        if cause == "zombie":
            assert zombify(session, claim).state == "canceled"
        elif cause is None:
            with session.writing() as tx:
                assert jobs.publish(tx, claim, OK, NOTHING, model(), 0) is None
                assert tx.value("SELECT count(*) FROM model") == 0
                assert tx.value("SELECT count(*) FROM model_key") == 0
        else:
            settle(session, claim, Outcome(cause, 1, None, "failed"))
        row = job_row(session, 1)
        assert (row["state"], row["reason"], row["side"], row["error"]) == ("canceled", "user", None, None)
        assert (row["changed_by"], row["message"]) == ("ann", "not needed")
        assert row["user_used"] == row["system_used"] == 0
        assert row["ended_at"] is not None

    @pytest.mark.parametrize("how", ["settle", "publish"])
    def test_a_success_after_a_cancel_is_canceled_whatever_it_brings(self, session, how):
        """DESIGN 2.3: the one-statement end gives way to a cancel; the row says what ended it, not what it made."""
        put(session)
        claim = take(session).claim
        ended, last = Outcome(None, 0), Progress(metrics='{"loss":0.5}', step=9, total=9, started_ago_s=1.0)
        with session.writing() as tx:
            jobs.request_cancel(tx, 1, "ann", grace_s=None, message=None)
            if how == "settle":
                assert jobs.settle(tx, claim, ended, last).state == "canceled"
            else:
                assert jobs.publish(tx, claim, ended, last, model(), 0) is None
        row = job_row(session, 1)
        assert (row["state"], row["reason"], row["model_version"]) == ("canceled", "user", None)
        assert row["fraction"] is None  # it did not come to its end
        assert row["started_at"] is not None
        assert states(session, 1) == ["pending", "running", "running", "canceled"]

    @pytest.mark.parametrize("how", ["settle", "publish"])
    def test_a_success_keeps_what_was_told_before(self, session, how):
        """What the end does not say again stays as the last beat has told it; what it says is the newest."""
        put(session)
        claim = take(session).claim
        with session.writing() as tx:
            jobs.beat(tx, claim, Progress(0.5, 5, 10, "half", 1, 7, "training", 99, 2.0, None))
        before = job_row(session, 1)
        with session.writing() as tx:
            if how == "settle":
                assert jobs.settle(tx, claim, OK, Progress(step=10)).state == "done"
            else:
                assert jobs.publish(tx, claim, OK, Progress(step=10), model(), 0) == 1
        row = job_row(session, 1)
        assert (row["fraction"], row["step"], row["stage"]) == (1.0, 10, None)
        for name in ("total", "note", "pid", "started_at", "resumed_from", "save_failed", "worker", "claimed_at"):
            assert row[name] == before[name], name
        record = history(session, 1)[-1]
        assert (record["pid"], record["resumed_from"], record["exit_code"]) == (99, 7, 0)

    def test_idle_requeues_in_a_row_end_as_a_loop(self, session):
        """E12: ten in a row, at no cost before; one that worked, was lost, or was retried by people begins anew."""
        put(session, new_job(max_attempts=9))

        def idle(times):
            said = [settle(session, take(session).claim, Outcome("requeued", 75, idle=True)) for _ in range(times)]
            assert {decision.state for decision in said[:-1]} <= {"pending"}
            return said[-1]

        assert idle(9).state == "pending"
        assert job_row(session, 1)["idle_requeues"] == 9
        settle(session, take(session).claim, Outcome("requeued", 75))
        assert job_row(session, 1)["idle_requeues"] == 0
        assert idle(9).state == "pending"
        zombify(session, take(session).claim)
        assert job_row(session, 1)["idle_requeues"] == 0
        assert idle(10).reason == "requeue_loop"
        row = job_row(session, 1)
        assert (row["state"], row["reason"], row["side"]) == ("errored", "requeue_loop", "user")
        assert (row["user_used"], row["system_used"]) == (0, 1)
        with session.writing() as tx:
            assert jobs.retry(tx, 1, "ann") is True
        assert idle(9).state == "pending"
        with session.writing() as tx:
            assert jobs.request_cancel(tx, 1, "ann", grace_s=None, message=None) == "canceled"
            assert jobs.retry(tx, 1, "ann") is True
        assert idle(9).state == "pending"
        settle(session, take(session).claim)
        assert (job_row(session, 1)["state"], job_row(session, 1)["idle_requeues"]) == ("done", 0)

    def test_out_of_memory_asks_for_more_at_the_next_attempt(self, session):
        """E14: with --retry-grow the next attempt asks for more, in its document; not if there is none, or not by oom."""
        spec = {"retry_on": ["oom", "exit"], "backoff_s": 0, "retry_grow": 1.5, "mem": 100, "argv": ["x"]}
        put(session, new_job(retries=3, spec=spec))
        for cause, mem in (("oom", 150), ("exit", 150), ("oom", 225)):
            assert settle(session, take(session).claim, Outcome(cause, 1)).state == "held"
            with session.writing() as tx:
                jobs.promote(tx)
                assert json.loads(tx.value("SELECT doc FROM spec WHERE job_id = 1")) == {**spec, "mem": mem}
        claimed = take(session)
        assert claimed.spec["mem"] == 225
        assert settle(session, claimed.claim, Outcome("oom", 1)).state == "errored"
        with session.reading() as tx:
            assert json.loads(tx.value("SELECT doc FROM spec WHERE job_id = 1"))["mem"] == 225

    def test_out_of_memory_without_the_wish_to_grow(self, session):
        """E14: tried again with what it had."""
        spec = {"retry_on": ["oom"], "backoff_s": 0, "mem": 100}
        put(session, new_job(retries=1, spec=spec))
        assert settle(session, take(session).claim, Outcome("oom", 1)).state == "held"
        with session.reading() as tx:
            assert json.loads(tx.value("SELECT doc FROM spec WHERE job_id = 1")) == spec

    @pytest.mark.parametrize("pruned", [False, True])
    def test_a_hook_that_failed_is_told_in_history(self, session, pruned):
        """Q93: one row with the state that the job has, and nothing of the job is changed; also when it is past."""
        put(session)
        settle(session, take(session).claim, Outcome("exit", 3, error="first"))
        row = job_row(session, 1)
        with session.writing() as tx:
            if pruned:
                pruning.retire(tx, [1])
            jobs.note_hook(tx, 1, "on-end: exit 1")
            jobs.note_hook(tx, 99, "nobody")
            assert tx.value("SELECT count(*) FROM history WHERE job_id = 99") == 0
            assert tx.value("SELECT count(*) FROM event") == 3
        assert pruned or job_row(session, 1) == row
        last = history(session, 1)[-1]
        assert (last["n"], last["state"], last["reason"], last["attempt"]) == (4, "errored", "hook", 1)
        assert (last["message"], last["claimed_at"], last["error"]) == ("on-end: exit 1", None, None)
        with session.reading() as tx:
            [attempt] = reads.attempts(tx, [1])[1]
            assert attempt["error"] == "first"  # a hook's row is no attempt

    def test_history_begins_with_the_submit(self, session):
        """Q51, Q52: the first row is that of the submit, with its time and who it was, before and after pruning."""
        put(session, new_job(), new_job())
        with session.reading() as tx:
            at = {row[0]: row[1] for row in tx.rows("SELECT id, submitted_at FROM job")}
        settle(session, take(session).claim, Outcome("drained"))
        settle(session, take(session).claim)
        told = history(session, 1)
        assert told[0] == dict.fromkeys(told[0]) | {
            "job_id": 1, "n": 1, "at": at[1], "state": "pending", "attempt": 0, "by": str(ACTOR),
        }  # fmt: skip
        assert [row["n"] for row in told] == [1, 2, 3, 4, 5]
        assert [row["state"] for row in history(session, 2)] == ["pending"]
        with session.writing() as tx:
            pruning.retire(tx, [1])
        assert history(session, 1) == told
        with session.reading() as tx:
            assert reads.history(tx, [1]) == told
            assert reads.history(tx, [3]) == []
            everything = [(row["job_id"], row["n"]) for row in tx.rows("SELECT * FROM history")]
        assert sorted(everything) == [(1, 1), (1, 2), (1, 3), (1, 4), (1, 5), (2, 1)]

    def test_retries_back_off_and_then_end(self, session):
        """Q23: each failure waits twice as long; then errored, with every attempt in history."""
        put(session, new_job(retries=2, spec={"retry_on": ["exit"], "backoff_s": 400}))
        for n, delay in enumerate((400.0, 600.0), 1):
            decision = settle(session, take(session).claim, FAILED)
            assert (decision.state, decision.delay_s) == ("held", delay)
            row = job_row(session, 1)
            assert row["due_at"] == pytest.approx(row["changed_at"] + delay)
            assert (row["reason"], row["user_used"], row["ended_at"]) == ("backoff", n, None)
            with session.writing() as tx:
                assert jobs.next_due(tx) == row["due_at"]
                jobs.promote(tx)
                assert claim_next(tx, 1, ("default",)) is None  # not yet due
                tx.rows("UPDATE job SET due_at = ?", (tx.now,))
                assert is_work(tx, ("default",)) is True
                jobs.promote(tx)
                assert jobs.next_due(tx) is None
        settle(session, take(session).claim, FAILED)
        row = job_row(session, 1)
        assert (row["state"], row["reason"], row["side"], row["attempt"]) == ("errored", "exit", "user", 3)
        assert states(session, 1) == ["pending", *["running", "held", "pending"] * 2, "running", "errored"]

    @pytest.mark.parametrize("cause", [*USER_CAUSES, "store"])
    def test_causes_have_their_reason_and_side(self, session, cause):
        """Q38: without retries each cause is its own reason, and on the right side."""
        put(session)
        settle(session, take(session).claim, Outcome(cause, 1, None, "words"))
        row = job_row(session, 1)
        assert (row["state"], row["reason"], row["cause"], row["error"]) == ("errored", cause, cause, "words")
        assert row["side"] == ("system" if cause == "store" else "user")

    @pytest.mark.parametrize("cause", ["drained", "requeued"])
    def test_a_drained_job_costs_nothing(self, session, cause):
        """Q92: back to pending, however often, with nothing left to spend."""
        put(session, new_job(max_attempts=1))
        for n in range(1, 6):
            settle(session, take(session).claim, Outcome(cause))
            row = job_row(session, 1)
            assert (row["state"], row["reason"], row["attempt"]) == ("pending", cause, n)
            assert (row["user_used"], row["system_used"], row["ended_at"], row["fraction"]) == (0, 0, None, None)

    def test_lost_until_it_is_poison(self, session):
        """Q22, Q23: pending with reason zombie and progress reset; the third loss is errored poison, no fourth start."""
        put(session, new_job(max_attempts=3))
        for n in range(1, 4):
            claim = take(session).claim
            with session.writing() as tx:
                jobs.beat(tx, claim, Progress(0.5, 5, 10, "half"))
            found = zombify(session, claim)
            row = job_row(session, 1)
            assert (found.attempt, found.worker, found.state) == (n, "w1", row["state"])
            assert (row["fraction"], row["step"], row["total"], row["note"]) == (None, None, None, None)
            assert row["system_used"] == n
            if n < 3:
                assert (row["state"], row["reason"], row["side"]) == ("pending", "zombie", None)
        assert (row["state"], row["reason"], row["side"], row["attempt"]) == ("errored", "poison", "system", 3)
        assert "3 times" in row["error"]
        with session.writing() as tx:
            assert claim_next(tx, 1, ("default",)) is None
        ends = [row for row in history(session, 1) if row["cause"] == "zombie"]
        assert [row["attempt"] for row in ends] == [1, 2, 3]

    def test_retry_keeps_id_and_history_and_resets_costs(self, session):
        """Q39: the same id, one attempt more, both costs 0, nothing of the old end in the row, all of it in history."""
        put(session, new_job(max_attempts=1, retries=1, spec={"retry_on": ["exit"], "backoff_s": 0}))
        settle(session, take(session).claim, FAILED)
        with session.writing() as tx:
            jobs.promote(tx)
        zombify(session, take(session).claim)
        before = history(session, 1)
        assert job_row(session, 1)["user_used"] == job_row(session, 1)["system_used"] == 1
        with session.writing() as tx:
            assert jobs.retry(tx, 1, "bob") is True
            assert jobs.retry(tx, 1, "bob") is False
        row = job_row(session, 1)
        assert (row["state"], row["reason"], row["side"], row["user_used"], row["system_used"]) == (
            "pending", None, None, 0, 0,
        )  # fmt: skip
        assert [row[name] for name in ("ended_at", "cause", "exit_code", "signal", "error", "message")] == [None] * 6
        assert history(session, 1)[:-1] == before
        assert history(session, 1)[-1]["by"] == "bob"
        assert take(session).claim.attempt == 3

    def test_retry_of_a_canceled_job_forgets_the_cancel(self, session):
        """A job that was canceled and is retried runs, and its result counts."""
        put(session)
        claim = take(session).claim
        with session.writing() as tx:
            jobs.request_cancel(tx, 1, "ann", grace_s=1.0, message="m")
        settle(session, claim)
        with session.writing() as tx:
            assert jobs.retry(tx, 1, "ann") is True
        claim = take(session).claim
        with session.writing() as tx:
            assert jobs.beat(tx, claim, NOTHING) == Flags()
        assert settle(session, claim).state == "done"

    @pytest.mark.parametrize("state", ["pending", "running", "done", "held", "unknown"])
    def test_retry_refuses_what_has_not_failed(self, session, state):
        """False, and nothing is changed."""
        put(session, new_job(retries=1, spec={"retry_on": ["exit"]}))
        if state not in ("pending", "unknown"):
            claim = take(session).claim
            if state != "running":
                settle(session, claim, OK if state == "done" else FAILED)
        before = dump(session)
        with session.writing() as tx:
            assert jobs.retry(tx, 99 if state == "unknown" else 1, "ann") is False
        assert dump(session) == before

    def test_cancel_tells_what_it_did(self, session):
        """Q30, Q32: waiting: at once; ended or unknown: said so, and nothing is changed."""
        put(session, new_job(), new_job(retries=1, spec={"retry_on": ["exit"]}))

        def cancel(number):
            with session.writing() as tx:
                return jobs.request_cancel(tx, number, "ann", grace_s=None, message="m")

        assert cancel(1) == "canceled"
        settle(session, take(session).claim, FAILED)
        assert job_row(session, 2)["state"] == "held"
        assert cancel(2) == "canceled"
        row = job_row(session, 2)
        assert (row["reason"], row["message"], row["due_at"], row["cancel_by"]) == ("user", "m", None, "ann")
        assert (row["error"], row["cause"], row["exit_code"], row["signal"]) == (None, None, None, None)
        assert row["ended_at"] is not None
        put(session)
        settle(session, take(session).claim)
        before = dump(session)
        assert (cancel(1), cancel(3), cancel(99)) == ("already", "done", "unknown")
        assert dump(session) == before

    # models --------------------------------------------------------------------------------------------------------

    def test_publishing_is_number_row_and_done_at_once(self, session):
        """Q45: one version number higher than all before and all on the disk; the row and `done` come with it."""
        given = []
        for on_disk in (0, 0, 7, 0, 3):
            put(session)
            claim = take(session).claim
            with session.writing() as tx:
                given.append(jobs.publish(tx, claim, OK, NOTHING, model("k"), on_disk))
            row = job_row(session, claim.job_id)
            assert (row["state"], row["model_version"]) == ("done", given[-1])
        assert given == [1, 2, 8, 9, 10]
        with session.writing() as tx:
            assert models.forget(tx, "k", 10) is True
            assert models.forget(tx, "k", 10) is False
            assert [row["version"] for row in models.versions(tx, "k")] == [1, 2, 8, 9]
        put(session)
        with session.writing() as tx:
            claim = claim_next(tx, 1, ("default",)).claim
            assert jobs.publish(tx, claim, OK, NOTHING, model("k"), 0) == 11  # 10 is not used again
            assert models.of_job(tx, claim.job_id)["version"] == 11
            assert models.one(tx, "k", None)["version"] == 11
            assert models.one(tx, "k", 10) is None
            assert (models.is_named(tx, "k", 11), models.is_named(tx, "other", 11)) == (True, False)
            assert models.keys(tx) == ["k"]

    def test_a_publish_that_is_rolled_back_was_none(self, session):
        """The directory could not be moved: neither number, nor row, nor `done`."""
        put(session)
        claim = take(session).claim
        before = dump(session)
        with pytest.raises(OSError), session.writing() as tx:
            jobs.publish(tx, claim, OK, NOTHING, model(), 0)
            raise OSError
        assert dump(session) == before
        settle(session, claim, Outcome("store", error="no room"))
        assert job_row(session, 1)["reason"] == "store"

    def test_only_a_success_is_published(self, session):
        """Q21: a failed attempt has no model row, also if somebody tries."""
        put(session)
        claim = take(session).claim
        before = dump(session)
        with pytest.raises(ValueError, match="exit"), session.writing() as tx:
            jobs.publish(tx, claim, FAILED, NOTHING, model(), 0)
        assert dump(session) == before

    # the lost ------------------------------------------------------------------------------------------------------

    def look(self, session, boot_s, observer="A", mine=None):
        with session.writing() as tx:
            return lost.look(tx, observer, boot_s, 10.0, mine=mine)

    def test_one_observer_over_the_whole_time(self, session):
        """Q22, Q97: the same beat for zombie-after with no gap above half: taken back, once."""
        put(session)
        take(session)
        assert [len(self.look(session, boot_s)) for boot_s in (0.0, 5.0, 9.9, 10.0, 11.0)] == [0, 0, 0, 1, 0]
        with session.reading() as tx:
            assert tx.value("SELECT count(*) FROM sighting") == 0

    @pytest.mark.parametrize("at", [1.0, 6.0, 9.0])
    def test_a_beat_in_between_begins_anew(self, session, at):
        """Q97: a beat at any time between two looks; counted from the look that saw it first."""
        put(session)
        claim = take(session).claim
        found = []
        for boot_s in (0.0, 3.0, 6.0, 9.0, 12.0, 15.0, 18.0):
            if boot_s - 3.0 < at <= boot_s:
                with session.writing() as tx:
                    jobs.beat(tx, claim, NOTHING)
                first = boot_s
            found += [boot_s] * len(self.look(session, boot_s))
        assert found == [boot_s for boot_s in (12.0, 15.0, 18.0) if boot_s - first >= 10.0][:1]

    def test_a_gap_begins_anew(self, session):
        """Q97: an outage of the store or a laptop's sleep: looks too far apart do not count."""
        put(session)
        take(session)
        for boot_s in (0.0, 5.1, 10.2, 15.3, 1000.0, 2000.0):
            assert self.look(session, boot_s) == []
        assert self.look(session, 2005.0) == []
        assert [one.job_id for one in self.look(session, 2010.0)] == [1]

    def test_two_observers_do_not_add_up(self, session):
        """Q97: each has its own clock, and must have seen it all by itself."""
        put(session)
        take(session)
        for boot_s in (0.0, 4.0, 8.0):
            assert self.look(session, boot_s, "A") == []
            assert self.look(session, boot_s + 1e6, "B") == []
        assert self.look(session, 12.0 + 1e6 - 3.0, "B") == []
        assert self.look(session, 9.0, "A") == []
        assert len(self.look(session, 12.0, "A")) == 1

    def test_own_jobs_are_not_looked_at(self, session):
        """A worker does not take back what it runs itself; others' it does."""
        put(session, new_job(), new_job())
        take(session, 1)
        take(session, 2)
        found = [one for boot_s in (0.0, 5.0, 10.0, 15.0) for one in self.look(session, boot_s, mine=1)]
        assert [(one.job_id, one.worker) for one in found] == [(2, "w2")]
        with session.reading() as tx:
            assert tx.value("SELECT count(*) FROM sighting") == 0

    def test_a_boot_clock_that_goes_back(self, session):
        """Q97: after a reboot the clock starts again: nobody is lost for that, and counting begins anew."""
        put(session)
        take(session)
        for boot_s in (1000.0, 1004.0, 1008.0, 3.0, 7.0, 12.0):
            assert self.look(session, boot_s) == []
        assert len(self.look(session, 13.0)) == 1

    def test_another_attempt_begins_anew(self, session):
        """The next attempt's beats start from 0 as well: not taken for the same."""
        put(session)
        claim = take(session).claim
        for boot_s in (0.0, 4.0):
            assert self.look(session, boot_s) == []
        settle(session, claim, Outcome("drained"))
        take(session)
        for boot_s in (8.0, 12.0, 16.0):
            assert self.look(session, boot_s) == []
        assert len(self.look(session, 18.0)) == 1

    def test_only_the_running_are_looked_at(self, session):
        """What waits or has ended is never lost."""
        put(session, new_job(), new_job())
        settle(session, take(session).claim)
        before = dump(session)
        for boot_s in (0.0, 5.0, 10.0, 15.0):
            assert self.look(session, boot_s) == []
        assert dump(session) == before

    def test_who_was_faster_wins(self, session):
        """A row seen before somebody else moved it expires nothing."""
        put(session)
        claim = take(session).claim
        with session.writing() as tx:
            seen = tx.one("SELECT * FROM job")
            jobs.beat(tx, claim, NOTHING)
            assert lost.expire(tx, seen, "why") == []
            seen = tx.one("SELECT * FROM job")
            jobs.settle(tx, claim, Outcome("drained"), NOTHING)
            assert lost.expire(tx, seen, "why") == []
        assert job_row(session, 1)["system_used"] == 0

    def worker_at(self, session, identity, pid=7, start=70):
        with session.writing() as tx:
            return workers.join(
                tx, name=f"w@{identity}", host="h", identity=identity, pid=pid, pid_start=start, user_id=1, version="0",
                slots=1, queues=["default"],
            )  # fmt: skip

    def test_only_what_runs_on_this_host_is_held_here(self, session):
        """DESIGN 5: the running jobs of workers of this very identity, with what is needed to judge the process."""
        put(session, *[new_job() for _ in range(5)], uid="call")
        here, there = self.worker_at(session, "m/b/h/ns"), self.worker_at(session, "m/b/h/other")
        claims = [take(session, worker).claim for worker in (here, there, here, here)]
        settle(session, claims[2])
        settle(session, claims[3], Outcome("drained"))
        with session.reading() as tx:
            assert lost.held_here(tx, "m/b/h/ns", 0) == [Held(1, 1, here, "call.0", "w@m/b/h/ns", 7, 70)]
            assert [held.job_id for held in lost.held_here(tx, "m/b/h/other", 0)] == [2]
            assert lost.held_here(tx, "m/b/h", 0) == lost.held_here(tx, "", 0) == []
            assert lost.running(tx, None) == [1, 2]
            assert lost.running(tx, here) == [2]

    def test_a_job_of_the_provably_dead_is_back_at_once(self, session):
        """Q22, Q23, Q33: without any wait it costs an attempt, ends as poison, or canceled when that was asked for."""
        put(session, new_job(max_attempts=2))
        worker = self.worker_at(session, "here")
        for n, state in ((1, "pending"), (2, "errored")):
            claim = take(session, worker).claim
            with session.writing() as tx:
                jobs.beat(tx, claim, Progress(step=3))
                [held] = lost.held_here(tx, "here", 0)
                lost.look(tx, "A", 0.0, 10.0)
                [back] = lost.expire_held(tx, held, "worker w is gone")
                assert lost.expire_held(tx, held, "again") == []
                assert tx.value("SELECT count(*) FROM sighting") == 0
            assert (back.job_id, back.attempt, back.state) == (1, n, state)
            row = job_row(session, 1)
            assert (row["state"], row["system_used"], row["step"]) == (state, n, None)
            assert "worker w is gone" in row["message"]
        put(session)
        take(session, worker)
        with session.writing() as tx:
            jobs.request_cancel(tx, 2, "ann", grace_s=None, message=None)
            [held] = lost.held_here(tx, "here", 0)
            assert [back.state for back in lost.expire_held(tx, held, "gone")] == ["canceled"]
        assert job_row(session, 2)["system_used"] == 0

    @pytest.mark.parametrize("meanwhile", ["ended", "another attempt", "another worker"])
    def test_what_moved_while_it_was_judged_stays(self, session, meanwhile):
        """Q20: between the look and the write the attempt has ended, or is another's: nothing is changed."""
        put(session)
        worker = self.worker_at(session, "here")
        claim = take(session, worker).claim
        with session.reading() as tx:
            [held] = lost.held_here(tx, "here", 0)
        settle(session, claim, OK if meanwhile == "ended" else Outcome("drained"))
        if meanwhile != "ended":
            take(session, worker if meanwhile == "another attempt" else worker + 1)
        before = dump(session)
        with session.writing() as tx:
            assert lost.expire_held(tx, held, "gone") == []
        assert dump(session) == before

    def test_a_lost_worker_that_comes_back_is_refused(self, session):
        """Q20: taken back, finished by another; the first one's beat and model change nothing."""
        put(session)
        first = take(session, 1).claim
        zombify(session, first)
        second = take(session, 2).claim
        with session.writing() as tx:
            assert jobs.publish(tx, second, OK, NOTHING, model(), 0) == 1
        before = dump(session)
        for verb in self.VERBS.values():
            with pytest.raises(LostClaim), session.writing() as tx:
                verb(tx, first)
        assert dump(session) == before

    # the janitor ---------------------------------------------------------------------------------------------------

    def five(self, session):
        """A job in each state that there can be, ids 1 to 5: done, errored, canceled, running, pending; 6 is held."""
        put(session, *[new_job(f"n{n}", data=(data_set(b"%d" % n),)) for n in range(1, 6)])
        claims = [take(session).claim for _ in range(4)]
        with session.writing() as tx:
            jobs.publish(tx, claims[0], OK, NOTHING, model(), 0)
            jobs.settle(tx, claims[1], Outcome("data", error="words"), NOTHING)
            jobs.request_cancel(tx, 3, "ann", grace_s=None, message=None)
            jobs.settle(tx, claims[2], OK, NOTHING)
        put(session, new_job(priority=9, retries=1, spec={"retry_on": ["exit"], "backoff_s": 1000}))
        settle(session, take(session).claim, FAILED)

    def test_only_ended_and_old_rows_go(self, session):
        """Q42: never pending, held or running, however old; ended ones only from their age on."""
        self.five(session)
        with session.writing() as tx:
            tx.rows("UPDATE job SET submitted_at = 0, changed_at = 0, heartbeat_at = 0, claimed_at = 0")
            assert pruning.old_jobs(tx, tx.now - 3600) == []
            assert sorted(pruning.old_jobs(tx, tx.now + 1)) == [1, 2, 3]
            assert pruning.old_jobs(tx, tx.now + 1, 2) == [1, 2]
            assert pruning.retire(tx, [1, 2, 3, 4, 5, 6, 99]) == [1, 2, 3]
            assert [row[0] for row in tx.rows("SELECT id FROM job ORDER BY id")] == [4, 5, 6]
            assert [row[0] for row in tx.rows("SELECT id FROM past ORDER BY id")] == [1, 2, 3]
            assert pruning.retire(tx, [1, 2, 3]) == []
            counts_are_real(tx)
            for table in ("spec", "job_data"):
                left = {row[0] for row in tx.rows(f"SELECT job_id FROM {table}")}
                assert left <= {4, 5, 6}

    def test_the_oldest_go_first(self, session):
        """A bounded batch takes the oldest."""
        put(session, *[new_job() for _ in range(4)])
        for _ in range(4):
            settle(session, take(session).claim)
        with session.writing() as tx:
            for number, at in ((1, 40.0), (2, 10.0), (3, 30.0), (4, 20.0)):
                tx.rows("UPDATE job SET ended_at = ? WHERE id = ?", (at, number))
            assert pruning.old_jobs(tx, 30.0, 2) == [2, 4]
            assert pruning.old_jobs(tx, 30.0) == [2, 4, 3]

    def test_the_past_keeps_what_history_needs(self, session):
        """Q40, Q41, Q52: state, reason, times, model and all of history stay; data and environment do not."""
        self.five(session)
        rows = {number: (job_row(session, number), history(session, number)) for number in (1, 2, 3)}
        with session.writing() as tx:
            pruning.retire(tx, [1, 2, 3])
            past = {row["id"]: dict(row) for row in tx.rows("SELECT * FROM past")}
            uid = tx.value("SELECT uid FROM submission WHERE id = ?", (rows[1][0]["submission_id"],))
            assert models.of_job(tx, 1)["version"] == 1
        for number, (row, told) in rows.items():
            assert past[number].pop("uid") == f"{uid}.{number - 1}"
            assert past[number] == {name: row[name] for name in past[number]}
            assert history(session, number) == told
        assert {"environ", "data", "spec"} & set(past[1]) == set()

    def test_sets_go_when_no_job_names_them(self, session):
        """Q42, DESIGN 2.5: not while any job's row names them, and not before their grace is over."""
        shared = data_set(b"shared")
        put(session, new_job(data=(shared, data_set(b"own", "own"))), new_job(data=(shared,)))
        settle(session, take(session).claim)
        with session.writing() as tx:
            assert pruning.unnamed_data(tx, tx.now + 1) == []
            pruning.retire(tx, [1])
            assert pruning.unnamed_data(tx, tx.now - 3600) == []
            [(data_id, sha256, in_file)] = pruning.unnamed_data(tx, tx.now + 1)
            assert (sha256, in_file) == (data_set(b"own").sha256, False)
            pruning.forget_data(tx, [data_id])
            assert pruning.data_is_named(tx, data_set(b"own").sha256) is False
            assert pruning.data_is_named(tx, shared.sha256) is True
            assert [item.sha256 for item in claims.data_of(tx, 2)] == [shared.sha256]

    def test_a_set_in_a_file_is_said_to_be(self, session):
        """What is too large for the column lies in a file; the janitor is told."""
        put(session, new_job(data=(data_set(b"large")._replace(z=None),)))
        with session.writing() as tx:
            jobs.request_cancel(tx, 1, "ann", grace_s=None, message=None)
            pruning.retire(tx, [1])
            assert pruning.unnamed_data(tx, tx.now + 1) == [(1, data_set(b"large").sha256, True)]

    def test_calls_and_environments_go_with_their_last_job(self, session):
        """Q52: the past, history, the submit call and its environment go when nothing needs them, and not before."""
        put(session, new_job(), new_job(), environ='{"env":{"A":"1"}}')
        put(session, environ='{"env":{"A":"1"}}')
        put(session, environ='{"env":{"B":"2"}}')

        def counts(tx):
            return [tx.value(f"SELECT count(*) FROM {table}") for table in ("submission", "environ", "past")]

        def go(number):
            with session.writing() as tx:
                jobs.request_cancel(tx, number, "ann", grace_s=None, message=None)
                pruning.retire(tx, [number])
                assert tx.value("SELECT count(*) FROM history WHERE job_id = ?", (number,)) == 2
                assert pruning.forget_past(tx, tx.now - 1) == 0
                assert pruning.forget_past(tx, tx.now + 1) == 1
                assert tx.value("SELECT count(*) FROM history WHERE job_id = ?", (number,)) == 0
                return counts(tx)

        assert go(1) == [3, 2, 0]  # job 2 still needs the call
        assert go(2) == [2, 2, 0]  # job 3 still needs the environment
        assert go(4) == [1, 1, 0]
        assert take(session).environ == {"env": {"A": "1"}}
        with session.writing() as tx:
            assert pruning.forget_past(tx, tx.now + 1) == 0

    def test_a_call_whose_other_job_is_past_stays(self, session):
        """The call goes with the last of its jobs, wherever that lies."""
        put(session, new_job(), new_job())
        with session.writing() as tx:
            for number in (1, 2):
                jobs.request_cancel(tx, number, "ann", grace_s=None, message=None)
            pruning.retire(tx, [1, 2])
            tx.rows("UPDATE past SET ended_at = 5 WHERE id = 1")
            assert pruning.forget_past(tx, 10.0) == 1
            assert tx.value("SELECT count(*) FROM submission") == 1
            assert pruning.forget_past(tx, tx.now + 1) == 1
            assert tx.value("SELECT count(*) FROM submission") == 0

    # workers -------------------------------------------------------------------------------------------------------

    def test_workers_come_move_and_go(self, session):
        """An id is never used again; one that a running job names is not forgotten."""
        put(session)
        with session.writing() as tx:
            first, second = join(tx, "a"), join(tx, "b")
            workers.move(tx, first, "busy")
            workers.leave(tx, second)
            assert [(row["id"], row["state"], row["beat"]) for row in workers.everyone(tx)] == [
                (second, "gone", 0), (first, "busy", 1),
            ]  # fmt: skip
        take(session, first)
        with session.writing() as tx:
            assert workers.jobs_of(tx, first) == [1]
            assert pruning.old_workers(tx, tx.now - 1) == []
            assert [row["id"] for row in pruning.old_workers(tx, tx.now + 1)] == [second]
            pruning.forget_workers(tx, [second])
            assert [row["id"] for row in workers.everyone(tx)] == [first]
            assert join(tx, "c") == second + 1

    def test_a_worker_that_was_forgotten_joins_again(self, session):
        """Under the id that its claims carry, in quarantine if it was."""
        with session.writing() as tx:
            first, second = join(tx, "a"), join(tx, "b")
            pruning.forget_workers(tx, [first])
            assert [workers.is_known(tx, number) for number in (first, second)] == [False, True]
            assert workers.is_quarantined(tx, first)
            assert join(tx, "a", worker_id=first, quarantine="sick") == first
            assert workers.is_quarantined(tx, first)
            assert not workers.is_quarantined(tx, second)
            assert join(tx, "c") == second + 1

    def test_who_has_asked_a_worker_to_end_and_who_has_cleared_it(self, session):
        """Q92, E13: the first to ask for a drain stands; the last to clear a quarantine does; no other worker is meant."""
        with session.writing() as tx:
            first, second = join(tx, "a", quarantine="sick"), join(tx, "b", quarantine="sick")
            assert (workers.drained_by(tx, first), workers.cleared_by(tx, first)) == (None, None)
            assert workers.request_drain(tx, first, "ann@here")
            assert not workers.request_drain(tx, first, "bob@there")
            assert (workers.drained_by(tx, first), workers.drained_by(tx, second)) == ("ann@here", None)
            for by in ("ann@here", "bob@there"):
                workers.clear(tx, second, by)
            assert (workers.is_quarantined(tx, first), workers.is_quarantined(tx, second)) == (True, False)
            assert (workers.cleared_by(tx, first), workers.cleared_by(tx, second)) == (None, "bob@there")
            assert not workers.request_drain(tx, 99, "ann@here")

    def test_counters_answer_for_queues_and_states(self, session):
        """Q13: how many wait, without counting rows."""
        put(session, new_job(queue="a"), new_job(queue="a"), new_job(queue="b"))
        take(session, queues=("a",))
        with session.reading() as tx:
            assert jobs.waiting(tx, ("a",), ("pending",)) == 1
            assert jobs.waiting(tx, ("a", "b", "c"), ("held", "pending", "running")) == 3
            assert jobs.waiting(tx, (), ("pending",)) == 0
            counts_are_real(tx)

    def test_promoting_is_bounded_and_goes_by_due_time(self, session):
        """E07: 500 at a time, the earliest first, so that a flood does not hold the gate."""
        put(session, *[new_job() for _ in range(600)])
        with session.writing() as tx:
            tx.rows("UPDATE job SET state = 'held', due_at = 1000 - id")
            jobs.promote(tx)
            assert tx.value("SELECT count(*) FROM job WHERE state = 'pending'") == 500
            assert tx.value("SELECT min(id) FROM job WHERE state = 'pending'") == 101
            jobs.promote(tx)
            assert tx.value("SELECT count(*) FROM job WHERE state = 'held'") == 0
            counts_are_real(tx)


def test_free_pages_are_given_back(tmp_path):
    """After a large queue was emptied the file shrinks."""
    where = place(tmp_path)
    session = where.session()
    put(session, *[new_job(spec={"argv": ["x" * 3000]}) for _ in range(500)])
    with session.writing() as tx:
        for number in range(1, 501):
            jobs.request_cancel(tx, number, "ann", grace_s=None, message=None)
        pruning.retire(tx, range(1, 501))
    with session.reading() as tx:
        before = tx.value("PRAGMA page_count")
    pruning.give_back_pages(session)
    with session.reading() as tx:
        assert tx.value("PRAGMA page_count") < before - 100
    session.close()


def spoil(session, sql):
    with session.writing() as tx:
        tx.rows(sql)


@pytest.mark.parametrize("doc", ["'{'", "'[]'", "x'ff'", "CAST(x'ff' AS TEXT)", '\'{"warn_s": "x"}\''])
def test_a_claim_of_what_cannot_be_read_ends_it_and_the_next_one_is_claimed(tmp_path, session, doc):
    """Invariant 10: in the same transaction it is errored, with its number in the error, and out of the way."""
    os.chmod(tmp_path, 0o2770)  # a group's: only there somebody else writes what trainq does not
    put(session, new_job(), new_job())
    spoil(session, f"UPDATE spec SET doc = {doc} WHERE job_id = 1")
    with session.writing() as tx:
        with pytest.raises(claims.Unreadable, match="job 1 "):
            claim_next(tx, 1, ["default"])
        assert claim_next(tx, 1, ["default"]).claim == Claim(2, 1, 1)
    row = job_row(session, 1)
    assert (row["state"], row["reason"], row["side"]) == ("errored", "poison", "system")
    assert row["error"].startswith("job 1 cannot be read")
    with session.reading() as tx:
        counts_are_real(tx)


@pytest.mark.parametrize(
    "sql", ["DELETE FROM spec", "UPDATE spec SET doc = '{'", "UPDATE job SET system_used = 'x', max_attempts = 'x'"]
)
def test_a_lost_job_whose_rows_were_spoiled_is_taken_back_still(session, sql):
    """Invariant 10: a look at the running ends no worker and no janitor."""
    put(session)
    claim = take(session).claim
    spoil(session, sql)
    zombify(session, claim)
    assert job_row(session, 1)["state"] in ("pending", "errored")
