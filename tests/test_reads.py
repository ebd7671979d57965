"""Reading jobs: what is found, in which order, and that a list does not walk the whole table."""

from __future__ import annotations

import re

import pytest
import store_builders as build

from trainq.base.errors import NotFound
from trainq.domain.job import Outcome
from trainq.domain.selectors import Filter
from trainq.ops.select import EVERYTHING, select
from trainq.store import jobs, pruning, reads

QUEUES = ("default", "gpu")


@pytest.fixture
def session(tmp_path):
    session = build.place(tmp_path).session()
    yield session
    session.close()


def run_one(session, outcome=build.OK):
    """Claim the next job and end it so; its id."""
    with session.writing() as tx:
        claim = build.claim_next(tx, build.join(tx), QUEUES).claim
    with session.writing() as tx:
        jobs.settle(tx, claim, outcome, build.NOTHING)
    return claim.job_id


def claim_one(session):
    with session.writing() as tx:
        return build.claim_next(tx, build.join(tx), QUEUES).claim.job_id


def ids(rows):
    return [row["id"] for row in rows]


def test_newest_first_and_cut(session):
    """Q57: --all is newest first; the limit cuts, the total does not."""
    put = build.put(session, *(build.new_job(f"job {n}") for n in range(30)))
    with session.reading() as tx:
        assert ids(reads.newest(tx, EVERYTHING, limit=7)) == put[::-1][:7]
        assert ids(reads.newest(tx, EVERYTHING)) == put[::-1]
        assert reads.count(tx, EVERYTHING) == 30


@pytest.mark.parametrize(
    ("which", "wanted"),
    [
        (Filter(state=("done",)), [1]),
        (Filter(state=("done", "errored")), [2, 1]),
        (Filter(state=("running",)), [3]),
        (Filter(queue=("gpu",)), [6, 5]),
        (Filter(tag=("a",)), [6]),
        (Filter(tag=("ab",)), [5]),
        (Filter(tag=("a", "ab")), [6, 5]),
        (Filter(type=("wine",)), [4]),
        (Filter(user=("ann",)), [6, 5, 4, 3, 2, 1]),
        (Filter(user=("bob",)), []),
        (Filter(queue=("gpu",), tag=("ab",)), [5]),
        (Filter(since=0.0, before=1.0), []),
        (Filter(since=1.0, state=("pending",)), [6, 5, 4]),
    ],
)
def test_filters(session, which, wanted):
    """Q57: lists are filtered by user, type, state, tag, queue and age; count and ids agree with the list."""
    build.put(session, *(build.new_job() for _ in range(3)))
    build.put(session, build.new_job(type="wine"))
    build.put(session, build.new_job(queue="gpu", tags=",ab,"), build.new_job(queue="gpu", tags=",a,b,"))
    run_one(session)
    run_one(session, Outcome("exit", 1, None, "no"))
    claim_one(session)
    with session.reading() as tx:
        assert ids(reads.newest(tx, which)) == wanted
        assert reads.count(tx, which) == len(wanted)
        assert reads.fitting(tx, which) == wanted[::-1]


def test_waiting_is_in_the_order_of_the_claims(session):
    """Q13: what is listed first is claimed first, over all queues."""
    build.put(
        session, build.new_job(), build.new_job(priority=5), build.new_job(queue="gpu", priority=9), build.new_job()
    )
    with session.reading() as tx:
        listed = ids(reads.waiting(tx, 10))
        assert ids(reads.waiting(tx, 2)) == listed[:2]
        places = [reads.position(tx, row) for row in reads.jobs(tx, [1, 2, 3, 4])]
    assert listed == [claim_one(session) for _ in range(4)] == [3, 2, 1, 4]
    assert places == [2, 1, 1, 3]


def test_last_ended_goes_on_after_pruning(session):
    """The last that ended come from the past once their rows are gone, in one order."""
    build.put(session, *(build.new_job() for _ in range(6)))
    for _ in range(6):
        run_one(session)
    with session.reading() as tx:
        before = reads.last_ended(tx, 4)
    with session.writing() as tx:
        pruning.retire(tx, [4, 6])
    with session.reading() as tx:
        after = reads.last_ended(tx, 4)
        assert ids(reads.past(tx, [6, 4, 1])) == [6, 4]
        assert ids(reads.jobs(tx, [6, 5, 4])) == [5]
    assert ids(before) == ids(after) == [6, 5, 4, 3]
    assert after[0]["uid"] == f"{before[0]['call_uid']}.{6 - before[0]['first_id']}"


def test_attempts_are_the_rows_that_left_running(session):
    """Q39: each attempt keeps its own end."""
    (number,) = build.put(session, build.new_job(spec={"argv": ["x"]}))
    run_one(session, Outcome("exit", 3, None, "first"))
    with session.writing() as tx:
        jobs.retry(tx, number, "ann@here")
    run_one(session)
    with session.reading() as tx:
        found = reads.attempts(tx, [number])[number]
        states = [row["state"] for row in reads.history(tx, [number])]
    assert [(row["attempt"], row["exit_code"], row["error"]) for row in found] == [(1, 3, "first"), (2, 0, None)]
    assert states == ["pending", "running", "errored", "pending", "running", "done"]


def test_more_ids_than_a_statement_takes(session):
    put = build.put(session, *(build.new_job() for _ in range(2500)))
    with session.reading() as tx:
        assert ids(reads.jobs(tx, put[::-1])) == put[::-1]
        assert len(reads.specs(tx, put)) == 2500


@pytest.mark.parametrize(
    ("words", "found", "unknown"),
    [
        (["2"], [2], []),
        (["3,1"], [3, 1], []),
        (["2-3", "1", "2"], [2, 3, 1], []),
        (["1,77"], [1], ["77"]),
        (["2-900"], [2, 3, 4, 5], []),
        (["77", "key:k"], [4], ["77"]),
        (["last"], [5], []),
        (["last~1"], [3, 4], []),
        (["key:k"], [4], []),
        (["fp:abc"], [3], []),
        (["@a job"], [1, 2, 3, 4, 5], []),
        ([], [1, 2, 3, 4, 5], []),
    ],
)
def test_selectors_find(session, words, found, unknown):
    build.put(session, build.new_job(), build.new_job())
    build.put(session, build.new_job(fingerprint="abcd"), build.new_job(key="k", fingerprint="abd"))
    build.put(session, build.new_job())
    with session.reading() as tx:
        selected = select(tx, words, EVERYTHING, build.ACTOR.user_id)
    assert (selected.ids, selected.unknown) == (found, unknown)


@pytest.mark.parametrize(
    "word", ["77", "5-9", "last", "last~3", "key:none", "fp:ff", "@nobody", "@odd\udcff", "key:\udcff"]
)
def test_a_single_word_that_finds_nothing(session, word):
    """Q32: an unknown id is its own error."""
    build.put(session)
    with session.reading() as tx, pytest.raises(NotFound, match="no such job"):
        select(tx, [word], EVERYTHING, 4242)


def test_of_others_last_is_not_ours(session):
    build.put(session)
    with session.reading() as tx:
        assert select(tx, ["last"], EVERYTHING, build.ACTOR.user_id).ids == [1]


def test_selectors_and_filters_together(session):
    build.put(session, *(build.new_job() for _ in range(3)))
    run_one(session)
    with session.reading() as tx:
        selected = select(tx, ["1-3"], Filter(state=("pending",)), build.ACTOR.user_id)
    assert selected.ids == [2, 3]


def plans(session, read):
    """How SQLite goes about each statement of a reading function: (statement, step of its plan)."""
    connection = session.connection()
    seen = []
    with session.reading() as tx:
        connection.set_trace_callback(seen.append)
        read(tx)
        connection.set_trace_callback(None)
        selects = [sql for sql in seen if sql.lstrip().upper().startswith(("SELECT", "WITH"))]
        assert selects
        return [(sql, row[3]) for sql in selects for row in connection.execute(f"EXPLAIN QUERY PLAN {sql}")]


@pytest.mark.parametrize(
    "read",
    [
        lambda tx: reads.newest(tx, EVERYTHING, limit=50),
        lambda tx: reads.newest_folded(tx, 50),
        lambda tx: reads.active_folded(tx, 50),
        lambda tx: reads.running(tx, 50),
        lambda tx: reads.waiting(tx, 50),
        lambda tx: reads.last_ended(tx, 10),
        lambda tx: reads.count(tx, EVERYTHING),
        lambda tx: reads.count(tx, Filter(state=("done",), queue=("gpu",))),
        reads.counts,
        lambda tx: reads.jobs(tx, [1, 2]),
        lambda tx: reads.past(tx, [1, 2]),
        lambda tx: reads.attempts(tx, [1, 2]),
        lambda tx: reads.data_sets(tx, [1, 2]),
        lambda tx: reads.history(tx, [1, 2]),
        lambda tx: reads.tasks_among(tx, [1, 2]),
        lambda tx: jobs.note_hook(tx, 1, "failed"),
        lambda tx: reads.ids_with(tx, "key", "k", past_too=True),
        lambda tx: reads.ids_with(tx, "fingerprint", "ab", past_too=True),
        lambda tx: reads.ids_between(tx, 1, 5, past_too=True),
        lambda tx: reads.submission(tx, 1000, 0),
        lambda tx: reads.newest_ids(tx, 10),
        lambda tx: reads.newest_keys(tx, 10),
    ],
)
def test_no_list_walks_or_sorts_the_jobs(session, read):
    """The same cost with a million jobs as with a thousand: no step is a sort, and what is walked without an index is
    the primary key of the outer table, cut by its limit."""
    build.put(session, build.new_job(), build.new_job(queue="gpu", key="k", fingerprint="ab"))
    for sql, step in plans(session, read):
        if "FROM history WHERE job_id " in sql and step in ("SCAN history", "USE TEMP B-TREE FOR ORDER BY"):
            continue  # the rows of these jobs that the view has found; a table it walks for them has its own step
        if "state = 'running' ORDER BY" in sql and step == "USE TEMP B-TREE FOR ORDER BY":
            continue  # what runs, and nothing else
        if "FROM counts " in sql:  # a row for each queue and state; of the jobs, only the running are gone through
            assert "job" not in step or re.match(r"SEARCH job USING (COVERING )?INDEX job_open \(state=", step), (
                sql,
                step,
            )
            continue
        if step in ("SCAN w", "SCAN walk"):
            continue  # steps from one row to the next, as many as the list is long
        if "FROM lane l" in sql and (step == "SCAN l" or "TEMP B-TREE" in step):
            continue  # the lanes, and what was read of each: no more than the list is long
        assert "TEMP B-TREE FOR ORDER BY" not in step or "UNION" in sql, (sql, step)
        if step.startswith("SCAN") and "INDEX" not in step:
            assert "LIMIT" in sql, (sql, step)
            assert "ORDER BY" in sql, (sql, step)


def test_the_test_of_plans_can_fail(session):
    build.put(session)
    found = plans(session, lambda tx: reads.newest(tx, EVERYTHING, "name", 50))
    assert any("TEMP B-TREE" in step for _, step in found)


def test_a_view_that_walks_a_table_is_found(session):
    """The exception for the history of one job lets nothing else through: without a job, its tables are walked."""
    build.put(session)
    found = plans(session, lambda tx: tx.rows("SELECT * FROM history WHERE state = 'done'"))
    assert {"SCAN event", "SCAN j", "SCAN p"} <= {step for _, step in found}
