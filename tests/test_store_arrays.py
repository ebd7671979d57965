"""Arrays in the store: their numbers, counts, limit, ageing, and that no list reads all of their tasks."""

from __future__ import annotations

import pytest
import store_builders as build

from trainq.domain.held import After
from trainq.domain.job import NewArray, Outcome
from trainq.domain.selectors import Filter
from trainq.domain.shape import Shape, encoded
from trainq.ops.select import EVERYTHING, select
from trainq.store import arrays, dependants, holds, jobs, lanes, pruning, reads, rules

BAD = Outcome("exit", 1, None, "no")


@pytest.fixture(params=list(build.BACKENDS))
def session(request, tmp_path):
    session = build.BACKENDS[request.param][0](tmp_path)
    with session.writing() as tx:
        build.join(tx)
    yield session
    is_sound(session)
    session.close()


def is_sound(session):
    """Every rule holds."""
    with session.reading() as tx:
        assert {rule: found for rule in rules.RULES if (found := rules.broken(tx, rule))} == {}
        build.counts_are_real(tx)


def put(session, count, most=None, *, first=0, **more):
    """An array of so many tasks; their numbers."""
    tasks = [build.new_job(array_index=first + n, **more) for n in range(count)]
    with session.writing() as tx:
        return list(jobs.submit(tx, build.submission(), tasks, NewArray(most)))


def whole(session, number):
    with session.reading() as tx:
        return arrays.rows(tx, [number]).get(number)


def counts(session, number):
    return {state: n for state, n in whole(session, number)["counts"].items() if n}


def end_one(session, outcome=build.OK):
    claimed = build.take(session)
    build.settle(session, claimed.claim, outcome)
    return claimed.claim.job_id


def test_an_array_takes_a_number_and_its_tasks_the_next(session):
    """E05: one id of the sequence for the array, the following ones for its tasks; none is given again."""
    assert build.put(session) == [1]
    assert put(session, 3) == [3, 4, 5]
    assert build.put(session) == [6]
    assert put(session, 1) == [8]
    row = whole(session, 2)
    assert (row["count"], row["n"], row["state"], counts(session, 2)) == (3, 3, "pending", {"pending": 3})
    assert build.job_row(session, 6)["array_id"] is None
    assert whole(session, 3) is None


def test_the_same_call_again_is_the_same_array(session):
    """Q06: a call whose answer was lost is looked up by its uid."""
    call, tasks = build.submission(), [build.new_job(array_index=n) for n in range(3)]
    for _ in range(2):
        with session.writing() as tx:
            assert list(jobs.submit(tx, call, tasks, NewArray())) == [2, 3, 4]


def test_counts_follow_every_move(session):
    """E05: the counts of an array are those of its tasks, after every move, also once they are pruned."""
    put(session, 5)
    claimed = build.take(session)
    assert (counts(session, 1), whole(session, 1)["state"]) == ({"pending": 4, "running": 1}, "running")
    build.settle(session, claimed.claim)
    end_one(session, BAD)
    with session.writing() as tx:
        assert jobs.request_cancel(tx, 4, "me", grace_s=None, message=None) == "canceled"
    assert counts(session, 1) == {"pending": 2, "done": 1, "errored": 1, "canceled": 1}
    is_sound(session)
    assert whole(session, 1)["ended_at"] is None
    end_one(session)
    last = end_one(session)
    row = whole(session, 1)
    assert (row["state"], row["ended_at"]) == ("errored", build.job_row(session, last)["ended_at"])
    with session.writing() as tx:
        assert jobs.retry(tx, 3, "me")
    assert (whole(session, 1)["state"], whole(session, 1)["ended_at"]) == ("pending", None)
    is_sound(session)
    end_one(session)
    with session.writing() as tx:
        pruning.retire(tx, [2, 3])
    assert (counts(session, 1), whole(session, 1)["n"]) == ({"done": 4, "canceled": 1}, 3)


@pytest.mark.parametrize("most", [1, 3])
def test_so_many_run_at_once_and_no_more(session, most):
    """E05: the limit holds exactly, in one transaction and over many, and leaves the others alone."""
    put(session, 8, most)
    (other,) = build.put(session)
    with session.writing() as tx:
        first = [build.claim_next(tx) for _ in range(most + 1)]
        assert [one.claim.job_id for one in first] == [*range(2, 2 + most), other]
    with session.writing() as tx:
        assert build.claim_next(tx) is None
        assert not build.is_work(tx)
    build.settle(session, first[0].claim)
    with session.writing() as tx:
        assert build.claim_next(tx).claim.job_id == 2 + most
        assert build.claim_next(tx) is None


def test_the_limit_counts_a_task_that_asks_for_more(session):
    """A task that ran out of memory waits in another lane, and counts for the same array."""
    put(session, 3, 1)
    with session.writing() as tx:
        row = tx.one("SELECT l.* FROM job j JOIN lane l ON l.id = j.lane_id WHERE j.id = 2")
        other = lanes.intern(tx, row["queue"], row["user_id"], encoded(Shape(cpus=2)), row["array_id"], row["most"])
        tx.rows("UPDATE job SET lane_id = ? WHERE id = 2", (other,))
    with session.writing() as tx:
        assert build.claim_next(tx) is not None
        assert build.claim_next(tx) is None


def test_plain_jobs_and_an_array_without_limit_share_a_lane(session):
    build.put(session)
    put(session, 2)
    with session.reading() as tx:
        assert tx.value("SELECT count(*) FROM lane") == 1


def test_it_ages_as_one(session):
    """`[keep] jobs`: none of its tasks goes before the last of them has ended so long ago; then all go, and later what
    history keeps of them."""
    put(session, 3)
    end_one(session)
    (plain,) = build.put(session)
    end_one(session)
    with session.writing() as tx:
        tx.rows("UPDATE job SET ended_at = 1000, changed_at = 1000 WHERE ended_at IS NOT NULL")
        assert pruning.old_jobs(tx, 2000) == []
    end_one(session)
    end_one(session)
    with session.writing() as tx:
        tx.rows("UPDATE job SET ended_at = 1000 WHERE id = ?", (plain,))
        assert pruning.old_jobs(tx, 2000) == [plain]
        tx.rows("UPDATE job_array SET ended_at = 1500")
        assert pruning.old_jobs(tx, 1400) == [plain]
        assert pruning.old_jobs(tx, 2000) == [plain, 2, 3, 4]
        assert pruning.old_jobs(tx, 2000, 2) == [plain, 2]
        assert pruning.old_jobs(tx, 2000, -1, pruning.Whose(7, 1400)) == [plain]
        pruning.retire(tx, [2, 3])
        assert pruning.old_jobs(tx, 2000) == [plain, 4]
        assert pruning.forget_past(tx, 2000) == 0
        pruning.retire(tx, [4])
        assert pruning.old_past(tx, 2000) == 3
    assert counts(session, 1) == {"done": 3}
    with session.reading() as tx:
        assert select(tx, ["1[1]"], EVERYTHING, 1000, past=True).ids == [3]
        assert select(tx, ["1"], EVERYTHING, 1000, past=True).array == 1
    with session.writing() as tx:
        assert pruning.forget_past(tx, 1400) == 0
        assert pruning.forget_past(tx, 2000) == 3
    assert whole(session, 1) is None


def test_selectors_of_tasks(session):
    """E05: `2` is all tasks, `2[3]` one of them, ranges in brackets some; `last` is the whole array."""
    build.put(session)
    put(session, 5, first=10)
    build.put(session)

    def found(*words, which=EVERYTHING):
        with session.reading() as tx:
            one = select(tx, words, which, build.ACTOR.user_id)
        return one.ids, one.one, one.arrays, one.array

    assert found("2") == ([3, 4, 5, 6, 7], False, (2,), 2)
    assert found("2[10]") == ([3], True, (), None)
    assert found("2[11-12,14]") == ([4, 5, 7], False, (), None)
    assert found("last~1") == ([3, 4, 5, 6, 7], False, (2,), 2)
    assert found("4") == ([4], True, (), None)
    assert found("1,2") == ([1, 3, 4, 5, 6, 7], False, (2,), None)
    assert found("1-4") == ([1, 3, 4, 5, 6, 7], False, (2,), None)
    assert found("2", which=Filter(state=("pending",))) == ([3, 4, 5, 6, 7], False, (), None)
    assert found("2", which=Filter(state=("done",))) == ([], False, (), None)
    for word in ("2[9]", "1[0]", "3[10]", "9[0]"):
        with session.reading() as tx, pytest.raises(Exception, match=r"no such job: \d\[\d+\]"):
            select(tx, [word], EVERYTHING, build.ACTOR.user_id)


def test_lists_fold_an_array_where_its_first_task_stands(session):
    """E05: one row for an array in every list, in the order there is for jobs."""
    build.put(session, build.new_job(priority=-1))
    put(session, 3)
    build.put(session, build.new_job(priority=5))
    put(session, 2)
    build.put(session)

    def ids(read):
        with session.reading() as tx:
            return [row["id"] for row in read(tx)]

    assert ids(lambda tx: reads.newest_folded(tx, None)) == [10, 7, 6, 2, 1]
    assert ids(lambda tx: reads.newest_folded(tx, 2)) == [10, 7]
    assert ids(lambda tx: reads.active_folded(tx, 99)) == [6, 2, 7, 10, 1]
    assert ids(lambda tx: reads.active_folded(tx, 3)) == [6, 2, 7]
    assert [row["id"] for row in map(dict, _waiting(session))] == [6, 3, 4, 5, 8, 9, 10, 1]
    end_one(session)
    claimed = build.take(session)
    assert ids(lambda tx: reads.active_folded(tx, 99)) == [2, 7, 10, 1]
    build.settle(session, claimed.claim, BAD)
    end_one(session)
    assert ids(lambda tx: reads.last_ended(tx, 9)) == [6]
    end_one(session)
    assert ids(lambda tx: reads.last_ended(tx, 9)) == [2, 6]
    with session.writing() as tx:
        assert all(holds.hold(tx, number, "ann@here") for number in (8, 9, 10))
    assert ids(lambda tx: reads.active_folded(tx, 99)) == [1, 7, 10]
    with session.reading() as tx:
        assert reads.count(tx, EVERYTHING) == 8
        assert reads.count(tx, EVERYTHING, plain=True) == 3
        assert arrays.numbers(tx) == (2, 5)
        assert arrays.active(tx) == (1, 2)
        assert [row["id"] for row in arrays.present(tx, Filter(state=("errored",)))] == [2]
        assert [row["id"] for row in reads.newest(tx, EVERYTHING, plain=True)] == [10, 6, 1]


def _waiting(session):
    with session.reading() as tx:
        return reads.waiting(tx, 99)


def test_a_list_reads_no_more_of_a_large_array_than_of_a_small_one(session):
    """E05: how much SQLite does for a folded list does not grow with the tasks."""

    def steps(read):
        counted = 0

        def count():
            nonlocal counted
            counted += 1

        with session.reading() as tx:
            connection = session.connection()
            connection.set_progress_handler(count, 10)
            read(tx)
            connection.set_progress_handler(None, 0)
        return counted

    if not hasattr(session, "connection"):
        pytest.skip("the connection is a turn's")
    build.put(session)
    put(session, 2)
    small = [steps(read) for read in READS]
    put(session, 3000)
    put(session, 3000, 2)
    large = [steps(read) for read in READS]
    assert all(after < before + 60 for before, after in zip(small, large, strict=True)), (small, large)


READS = [
    lambda tx: reads.newest_folded(tx, 50),
    lambda tx: reads.active_folded(tx, 50),
    lambda tx: reads.last_ended(tx, 10),
    arrays.active,
    arrays.numbers,
]


# what comes after an array ------------------------------------------------------------------------------------------


MET = {"ok": "done", "any": "done errored canceled", "fail": "errored canceled"}


def end_all(session, how, tasks):
    """End the tasks of an array one after the other: all well, or the second of them otherwise."""
    for number in tasks:
        if number == tasks[1] and how == "canceled":
            with session.writing() as tx:
                jobs.request_cancel(tx, number, "ann", grace_s=None, message=None)
        else:
            bad = number == tasks[1] and how == "errored"
            assert end_one(session, BAD if bad else build.OK) == number
        with session.writing() as tx:
            jobs.promote(tx)
        if number != tasks[-1]:
            yield


@pytest.mark.parametrize("when", ["before", "between", "after", "pruned"])
@pytest.mark.parametrize("how", ["done", "errored", "canceled"])
@pytest.mark.parametrize("mode", list(MET))
def test_what_comes_after_an_array_waits_for_all_of_its_tasks(session, mode, how, when):
    """E06: whenever it was put in; it starts, or is skipped with words that name the array, with the end of the last task."""
    array, *tasks = put_whole(session, 3)
    after = build.new_job(after=(After(array, mode),))
    number = build.put(session, after)[0] if when == "before" else None
    for _ in end_all(session, how, tasks):
        if when == "between" and number is None:
            [number] = build.put(session, after)
        if number is not None:
            assert (build.job_row(session, number)["state"], build.job_row(session, number)["waits_for"]) == ("held", 1)
            with session.reading() as tx:
                assert dependants.of_jobs(tx, [number])[number][0]["state"] == "pending"
    if when == "pruned":
        with session.writing() as tx:
            assert pruning.retire(tx, tasks) == tasks
    if number is None:
        [number] = build.put(session, after)
    row = build.job_row(session, number)
    if how in MET[mode]:
        assert (row["state"], row["error"]) == ("pending", None)
    else:
        bad = 0 if how == "done" else 1
        assert row["state"] == "skipped"
        assert row["error"] == f"array {array} ended {how} ({bad} of 3 tasks are not done)"


def put_whole(session, count, **more):
    tasks = put(session, count, **more)
    return [tasks[0] - 1, *tasks]


def test_an_array_after_an_array_is_an_edge_a_task(session):
    """E06: not one for each pair; all are told in bounded steps."""
    array, *_ = put_whole(session, 2)
    tasks = put(session, 1200, after=(After(array, "ok"),))
    with session.reading() as tx:
        assert tx.value("SELECT count(*) FROM dep") == len(tasks)
    for _ in range(2):
        end_one(session)
    told = 0
    while told < len(tasks):
        with session.writing() as tx:
            jobs.promote(tx)
            now = tx.value("SELECT count(*) FROM job WHERE state = 'pending'")
        assert 0 < now - told <= dependants.MOST
        told = now


def test_of_a_skipped_array_the_first_of_the_chain_is_named(session):
    """E06: the reason names the job that has failed, not those that were skipped for it."""
    [first] = build.put(session)
    array, *_ = put_whole(session, 2, after=(After(first, "ok"),))
    [last] = build.put(session, build.new_job(after=(After(array, "ok"),)))
    end_one(session, BAD)
    with session.writing() as tx:
        jobs.promote(tx)
    assert build.job_row(session, last)["error"] == f"job {first} ended errored (exit)"


def test_a_task_that_is_retried_opens_the_array_again(session):
    """E06: what is put in then waits for it; what was met stays met."""
    array, *tasks = put_whole(session, 2)
    for outcome in (BAD, build.OK):
        end_one(session, outcome)
    [met] = build.put(session, build.new_job(after=(After(array, "any"),)))
    with session.writing() as tx:
        jobs.retry(tx, tasks[0], "ann")
    [late] = build.put(session, build.new_job(after=(After(array, "ok"),)))
    assert [build.job_row(session, one)["state"] for one in (met, late)] == ["pending", "held"]
    assert end_one(session) == tasks[0]
    with session.writing() as tx:
        jobs.promote(tx)
    assert build.job_row(session, late)["state"] == "pending"


def test_what_is_left_of_an_array_is_kept_until_all_are_told(session):
    """E06: who is told after its history would have been forgotten hears how it ended all the same."""
    array, *tasks = put_whole(session, 1)
    end_one(session)
    with session.writing() as tx:
        assert pruning.retire(tx, tasks) == tasks
        tx.rows("INSERT INTO to_tell VALUES(?)", (array,))
        pruning.forget_past(tx, tx.now + 1)
        assert dependants.state_of(tx, array) == "done"
        dependants.tell(tx)
        pruning.forget_past(tx, tx.now + 1)
        assert dependants.state_of(tx, array) is None


def test_an_array_whose_history_goes_is_not_known_any_more(session):
    """CLI: `--after` answers while history is kept, and never guesses from the half of it."""
    array, *tasks = put_whole(session, 2)
    for outcome in (BAD, build.OK):
        end_one(session, outcome)
    with session.writing() as tx:
        assert pruning.retire(tx, tasks) == tasks
        assert dependants.state_of(tx, array) == "errored"
        for table, column in (("event", "job_id"), ("past", "id")):
            tx.rows(f"DELETE FROM {table} WHERE {column} = ?", (tasks[0],))
        assert dependants.state_of(tx, array) is None
