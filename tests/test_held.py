"""What holds a job, on every backend: a person, jobs it comes after, a time; and the deadline that ends what waits."""

from __future__ import annotations

import itertools

import pytest
from store_builders import (
    ACTOR,
    BACKENDS,
    NOTHING,
    OK,
    claim_next,
    counts_are_real,
    dump,
    history,
    job_row,
    join,
    new_job,
    put,
    settle,
    submission,
    take,
)

from trainq.base import clock
from trainq.base.errors import BadValue
from trainq.domain.held import After, Wish, check_after, holds, is_met, read_after
from trainq.domain.job import Outcome
from trainq.store import dependants, jobs, lost, pruning, rules
from trainq.store import holds as store_holds

FAILED = Outcome("exit", 3, None, "exit 3")
ENDS = ("done", "errored", "canceled", "skipped")
MET = {"ok": ("done",), "any": ENDS, "fail": ("errored", "canceled", "skipped")}


@pytest.fixture(params=BACKENDS)
def session(request, tmp_path):
    opened = BACKENDS[request.param][0](tmp_path)
    with opened.writing() as tx:
        assert join(tx) == 1
    yield opened
    broken = {name: found for name in rules.RULES if (found := look(opened, name))}
    assert broken == {}
    with opened.reading() as tx:
        counts_are_real(tx)
    opened.close()


def look(session, name):
    with session.reading() as tx:
        return rules.broken(tx, name)


def after(*on, mode="ok", **more):
    return new_job(after=tuple(After(one, mode) for one in on), **more)


def moves(session, job_id):
    return [(row["state"], row["reason"]) for row in history(session, job_id)]


def state(session, job_id):
    row = job_row(session, job_id)
    return row["state"], row["reason"]


def promote(session):
    with session.writing() as tx:
        return jobs.promote(tx)


def cancel(session, *ids):
    with session.writing() as tx:
        for number in ids:
            jobs.request_cancel(tx, number, "ann", grace_s=None, message=None)
        dependants.tell(tx)


def end(session, job_id, how):
    """Bring a waiting job to its end, as the only one that can be claimed, and tell of it as a turn does."""
    if how == "canceled":
        cancel(session, job_id)
    else:
        which = job_id - 1 if how == "skipped" else job_id
        settle_and_promote(session, which, OK if how == "done" else FAILED)


def settle_and_promote(session, job_id, outcome):
    claim = take(session).claim
    assert claim.job_id == job_id
    with session.writing() as tx:
        jobs.settle(tx, claim, outcome, NOTHING)
        jobs.promote(tx)


# dependencies ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pruned", [False, True])
@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize(("mode", "how"), list(itertools.product(MET, ENDS)))
def test_an_end_is_met_or_not(session, mode, how, early, pruned):
    """E06: ok, any, fail against every end; whether the dependant was there before it or came later, and that job is
    pruned by then: it starts, or is skipped with the words that name the job."""
    put(session)
    if how == "skipped":
        put(session, after(1))
    on = 2 if how == "skipped" else 1
    if early:
        [number] = put(session, after(on, mode=mode))
        assert state(session, number) == ("held", "dependency")
    end(session, on, how)
    if pruned:
        with session.writing() as tx:
            assert pruning.retire(tx, [on]) == [on]
    if not early:
        [number] = put(session, after(on, mode=mode))
    if how in MET[mode]:
        assert state(session, number) == ("pending", None)
        first = [("held", "dependency")] if early else []
        assert moves(session, number) == [*first, ("pending", None)]
        assert take(session).claim.job_id == number
    else:
        assert moves(session, number) == [("held", "dependency"), ("skipped", "dep_failed")]
        said = job_row(session, number)["error"]
        assert said.startswith("job 1 ended errored (exit)" if how == "skipped" else f"job {on} ended {how}")


def test_a_chain_is_skipped_and_names_the_first(session):
    """E06: a→b→c→d with a failing: all three are skipped in the transaction that tells it, each by one row that names a."""
    put(session, new_job("a"))
    for on in (1, 2, 3):
        put(session, after(on))
    settle_and_promote(session, 1, FAILED)
    for number in (2, 3, 4):
        row = job_row(session, number)
        assert (row["state"], row["reason"], row["error"]) == ("skipped", "dep_failed", "job 1 ended errored (exit)")
        assert [step["message"] for step in history(session, number)] == [None, "job 1 ended errored (exit)"]


def test_a_job_waits_for_all_it_names(session):
    """E06: it starts after the last of them, and not before; an end that is told twice counts once."""
    put(session, new_job(), new_job(), new_job())
    [number] = put(session, after(1, 2, 3))
    for left, on in ((2, 1), (1, 2), (0, 3)):
        assert state(session, number) == ("held", "dependency")
        settle_and_promote(session, on, OK)
        promote(session)
        assert job_row(session, number)["waits_for"] == left
    assert moves(session, number) == [("held", "dependency"), ("pending", None)]


def test_of_two_that_fail_the_first_skips_and_the_second_changes_nothing(session):
    """E06: what is skipped stays as it was told, whatever else it waits for."""
    put(session, new_job(), new_job())
    [number] = put(session, after(1, 2))
    settle_and_promote(session, 1, FAILED)
    before = job_row(session, number)
    settle_and_promote(session, 2, FAILED)
    after_it = job_row(session, number)
    assert {name for name in before if before[name] != after_it[name]} == {"waits_for"}
    assert len(history(session, number)) == 2


def test_jobs_of_one_call_follow_each_other(session):
    """E06, E04: places of the same call: each waits for the one before it, and runs after it."""
    with session.writing() as tx:
        jobs.submit(tx, submission(), [new_job(), *(new_job(after=(After(n, "ok", is_place=True),)) for n in range(3))])
    assert [state(session, number)[0] for number in (1, 2, 3, 4)] == ["pending", "held", "held", "held"]
    for number in (1, 2, 3, 4):
        settle_and_promote(session, number, OK)
    assert [state(session, number)[0] for number in (1, 2, 3, 4)] == ["done"] * 4


def test_many_dependants_are_told_a_bounded_number_at_a_time(session):
    """E06: 1200 dependants of one job: 500 a transaction, none is forgotten, and the job is not pruned before."""
    put(session)
    put(session, *[after(1) for _ in range(1200)])
    claim = take(session).claim
    settle(session, claim, FAILED)
    seen = []
    for _ in range(4):
        with session.reading() as tx:
            seen.append(tx.value("SELECT count(*) FROM job WHERE state = 'skipped'"))
            assert jobs.is_due(tx) == (seen[-1] < 1200)
        assert look(session, "dep.told") == []
        with session.writing() as tx:
            if seen[-1] < 1200:
                assert pruning.retire(tx, [1]) == []
            jobs.promote(tx)
    assert seen == [0, 500, 1000, 1200]


def test_who_is_retried_before_all_are_told_is_waited_for_again(session):
    """An end that is none any more skips nobody."""
    put(session)
    [number] = put(session, after(1))
    settle(session, take(session).claim, FAILED)
    with session.writing() as tx:
        assert jobs.retry(tx, 1, "ann")
    promote(session)
    assert state(session, number) == ("held", "dependency")
    settle_and_promote(session, 1, OK)
    assert state(session, number) == ("pending", None)


def test_an_end_that_nobody_waits_for_tells_nobody(session):
    """A job without dependants leaves nothing to be told, nor does one whose dependants know already."""
    put(session, new_job(), new_job())
    put(session, after(1, mode="any"))
    settle(session, take(session).claim, FAILED)
    promote(session)
    settle(session, take(session).claim, OK)
    with session.reading() as tx:
        assert tx.value("SELECT count(*) FROM to_tell") == 0
        assert tx.value("SELECT count(*) FROM job WHERE has_dependants") == 1
        assert jobs.next_due(tx) is None


def test_a_lost_job_skips_who_comes_after_it(session):
    """E06, Q22: an attempt that is lost for good is an end like any other."""
    put(session, new_job(max_attempts=1))
    [number] = put(session, after(1))
    take(session)
    with session.writing() as tx:
        for boot_s in (0.0, 5.0, 10.0):
            lost.look(tx, "janitor", boot_s, 10.0)
        jobs.promote(tx)
    assert state(session, number) == ("skipped", "dep_failed")
    assert job_row(session, number)["error"] == "job 1 ended errored (poison)"


def test_what_a_model_tells_is_done(session):
    """E06: a job of which nothing is left but its model was done; of one that never was nothing is known."""
    with session.writing() as tx:
        tx.rows("INSERT INTO model VALUES('k', 1, 0, 77, 1, NULL, '{}', '{}', NULL, 1, 'x', 0)")
        assert (dependants.state_of(tx, 77), dependants.state_of(tx, 78)) == ("done", None)
        tx.rows("DELETE FROM model")


# retry ---------------------------------------------------------------------------------------------------------------


def test_a_canceled_job_waits_again_for_what_was_not_met(session):
    """E06, Q37: canceled → held while what it comes after is open, → pending once that is met; what was met stays met."""
    put(session, new_job(), new_job())
    [number] = put(session, after(1, 2))
    settle_and_promote(session, 1, OK)
    cancel(session, number)
    with session.writing() as tx:
        assert jobs.retry(tx, number, "ann")
    assert state(session, number) == ("held", "dependency")
    cancel(session, number)
    settle_and_promote(session, 2, OK)
    assert job_row(session, number)["waits_for"] == 0
    with session.writing() as tx:
        assert dependants.unmet(tx, number) == []
        assert jobs.retry(tx, number, "ann")
    assert [one for one, _ in moves(session, number)] == ["held", "canceled", "held", "canceled", "pending"]


def test_what_failed_meanwhile_is_said_of_a_canceled_job(session):
    """E06: who asks before a retry hears which job has failed; asked all the same, it is skipped for that."""
    put(session)
    [number] = put(session, after(1))
    cancel(session, number)
    settle_and_promote(session, 1, FAILED)
    with session.writing() as tx:
        assert dependants.unmet(tx, number) == [(1, "errored")]
        assert jobs.retry(tx, number, "ann")
        jobs.promote(tx)
    assert state(session, number) == ("skipped", "dep_failed")


def test_what_was_skipped_is_reopened_under_its_id(session):
    """E06, E08: held again and then it runs; one row for each move, and only of what was skipped."""
    put(session)
    [number] = put(session, after(1))
    settle_and_promote(session, 1, FAILED)
    with session.writing() as tx:
        assert dependants.skipped_by(tx, 1) == [number]
        assert jobs.retry(tx, 1, "ann")
        assert dependants.reopen(tx, number, "ann")
        assert not dependants.reopen(tx, number, "ann")
    assert state(session, number) == ("held", "dependency")
    settle_and_promote(session, 1, OK)
    settle_and_promote(session, number, OK)
    assert [one for one, _ in moves(session, number)] == ["held", "skipped", "held", "pending", "running", "done"]
    assert [row["by"] for row in history(session, number)][:3] == [f"{ACTOR.user}@{ACTOR.host}", None, "ann"]


# times ---------------------------------------------------------------------------------------------------------------


def test_a_begin_time_holds_until_then(session):
    """E07: held for its begin time, not claimed before it, pending with the first turn after it."""
    now = clock.now()
    early, late = put(session, new_job(begin_at=now - 5), new_job(begin_at=now + 1000))
    assert state(session, early) == ("pending", None)
    assert moves(session, late) == [("held", "begin_time")]
    with session.writing() as tx:
        assert jobs.next_due(tx) == pytest.approx(now + 1000)
        jobs.promote(tx)
        assert claim_next(tx).claim.job_id == early
        assert claim_next(tx) is None
        tx.rows("UPDATE job SET due_at = ?, begin_at = ? WHERE id = ?", (now - 1, now - 1, late))
        assert jobs.is_due(tx)
        jobs.promote(tx)
        assert claim_next(tx).claim.job_id == late


def test_a_retry_waits_for_its_begin_time(session):
    """E07, Q37: canceled before its time, it is held for it again; after its time it starts."""
    [number] = put(session, new_job(begin_at=clock.now() + 1000))
    for late in (False, True):
        cancel(session, number)
        with session.writing() as tx:
            tx.rows("UPDATE job SET begin_at = begin_at - ?", (5000 if late else 0,))
            assert jobs.retry(tx, number, "ann")
        assert state(session, number) == (("pending", None) if late else ("held", "begin_time"))


@pytest.mark.parametrize("how", ["pending", "begin", "hold", "dependency"])
def test_what_has_not_started_by_its_deadline_is_canceled(session, how):
    """E07: canceled deadline, whatever held it; who comes after it hears; a retry is none too late."""
    now = clock.now()
    put(session, new_job("other"))
    take(session)
    more = {
        "pending": {}, "begin": {"begin_at": now + 500}, "hold": {"hold": True}, "dependency": {"after": (After(1, "ok"),)},
    }[how]  # fmt: skip
    [number] = put(session, new_job(deadline_at=now + 1000, **more))
    [follower] = put(session, after(number))
    with session.writing() as tx:
        assert jobs.next_due(tx) == pytest.approx(now + (500 if how == "begin" else 1000))
        tx.rows("UPDATE job SET deadline_at = ? WHERE id = ?", (now - 1, number))
        assert sorted(jobs.promote(tx).ended) == [number, follower]
        assert claim_next(tx) is None
    assert state(session, number) == ("canceled", "deadline")
    assert len(history(session, number)) == 2
    assert job_row(session, follower)["error"] == f"job {number} ended canceled (deadline)"
    with session.writing() as tx:
        assert jobs.retry(tx, number, "ann")
        jobs.promote(tx)
    expected = {"begin": ("held", "begin_time"), "dependency": ("held", "dependency")}
    assert state(session, number) == expected.get(how, ("pending", None))


def test_a_deadline_is_for_the_first_start_only(session):
    """E07: what has started once is not canceled by it when it goes back, whoever lost it."""
    [number] = put(session, new_job(deadline_at=clock.now() + 1000))
    claim = take(session).claim
    with session.writing() as tx:
        tx.rows("UPDATE job SET deadline_at = 1.0")
        assert jobs.next_due(tx) is None
        jobs.settle(tx, claim, Outcome("drained"), NOTHING)
        assert jobs.promote(tx).ended == []
        assert jobs.next_due(tx) is None
    assert state(session, number) == ("pending", "drained")


def test_none_of_many_starts_after_its_deadline(session):
    """E07: 1100 deadlines at once are worked off 500 at a time, and until then a turn is told to claim nothing."""
    put(session, *[new_job(deadline_at=1.0) for _ in range(1100)])
    found = [promote(session) for _ in range(4)]
    assert [(len(one.ended), one.is_all) for one in found] == [(500, False), (500, False), (100, True), (0, True)]


# a person ------------------------------------------------------------------------------------------------------------


def hold(session, number, message=None):
    with session.writing() as tx:
        return store_holds.hold(tx, number, "ann", message)


def release(session, number):
    with session.writing() as tx:
        return store_holds.release(tx, number, "bob")


def test_hold_and_release(session):
    """E08: what waits is held and released, each one row with who and why; repeated, it changes nothing."""
    [number] = put(session)
    fresh = job_row(session, number)
    for verb in (lambda: hold(session, number, "why"), lambda: release(session, number)):
        assert verb() is True
        before = dump(session)
        assert verb() is False
        assert dump(session) == before
    rows = [(row["state"], row["reason"], row["by"], row["message"]) for row in history(session, number)]
    assert rows[1:] == [("held", "user", "ann", "why"), ("pending", None, "bob", None)]
    now = job_row(session, number)
    assert {name for name in now if now[name] != fresh[name]} == {"eligible_at", "changed_at", "changed_by"}
    assert take(session).claim.job_id == number


def test_a_submit_on_hold(session):
    """E08: its first row of history says so; it is not claimed before it is released."""
    [number] = put(session, new_job(hold=True))
    assert moves(session, number) == [("held", "user")]
    with session.writing() as tx:
        jobs.promote(tx)
        assert claim_next(tx) is None
    assert release(session, number)
    assert take(session).claim.job_id == number


@pytest.mark.parametrize("how", ["running", "done", "unknown"])
def test_what_does_not_wait_is_not_held(session, how):
    """E08: no row is changed."""
    [number] = put(session)
    claim = take(session).claim
    if how == "done":
        settle(session, claim)
    before = dump(session)
    for verb in (hold, release):
        assert verb(session, 99 if how == "unknown" else number) is False
    assert dump(session) == before


@pytest.mark.parametrize("other", ["dependency", "begin_time", "backoff"])
def test_a_hold_beside_another(session, other):
    """E08, Q34: the person's word is said first; released, the job waits for the other still; two notes, no move."""
    put(session, new_job("a"))
    take(session)
    more = {
        "dependency": {"after": (After(1, "ok"),)}, "begin_time": {"begin_at": clock.now() + 1000},
        "backoff": {"retries": 1, "spec": {"retry_on": ["exit"], "backoff_s": 1000}},
    }[other]  # fmt: skip
    [number] = put(session, new_job(**more))
    if other == "backoff":
        settle(session, take(session).claim, FAILED)
    assert state(session, number) == ("held", other)
    due = job_row(session, number)["due_at"]
    assert hold(session, number)
    assert state(session, number) == ("held", "user")
    with session.reading() as tx:
        assert jobs.next_due(tx) is None
    assert release(session, number)
    assert state(session, number) == ("held", other)
    assert job_row(session, number)["due_at"] == due
    assert moves(session, number)[-2:] == [("held", "user"), ("held", other)]
    assert hold(session, number)
    if other == "dependency":
        with session.writing() as tx:
            tx.rows("UPDATE job SET attempt = attempt WHERE id = 1")
            jobs.settle(tx, jobs.Claim(1, 1, 1), OK, NOTHING)
            jobs.promote(tx)
    else:
        with session.writing() as tx:
            tx.rows("UPDATE job SET due_at = 1, begin_at = iif(begin_at IS NULL, NULL, 1) WHERE id = ?", (number,))
            jobs.promote(tx)
    assert state(session, number) == ("held", "user")
    assert release(session, number)
    assert state(session, number) == ("pending", None)


def test_cancel_ends_a_hold(session):
    """E08: canceled on hold and retried, a job is not on hold any more."""
    [number] = put(session, new_job(hold=True))
    cancel(session, number)
    with session.writing() as tx:
        assert jobs.retry(tx, number, "ann")
    assert state(session, number) == ("pending", None)


# words ---------------------------------------------------------------------------------------------------------------


def test_the_first_reason_is_said():
    """Q34: a person before a job before a time; a begin time is told from a backoff."""
    assert holds(1, 1, 9.0, 9.0, 5.0) == "user"
    assert holds(0, 1, 9.0, 9.0, 5.0) == "dependency"
    assert holds(0, 0, 9.0, 9.0, 5.0) == "begin_time"
    assert holds(0, 0, 9.0, None, 5.0) == holds(0, 0, 9.0, 8.0, 5.0) == "backoff"
    assert holds(0, 0, 9.0, 9.0, 9.0) is holds(0, 0, None, 9.0, 5.0) is None


def test_modes_and_ends():
    """E06: what each mode takes."""
    assert {mode: tuple(end for end in ENDS if is_met(mode, end)) for mode in MET} == MET


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("12", [("ok", "12")]),
        ("ok:12,any:13, fail:14", [("ok", "12"), ("any", "13"), ("fail", "14")]),
        ("key:a:b", [("ok", "key:a:b")]),
        ("fail:key:ok", [("fail", "key:ok")]),
        ("last,any:last~2", [("ok", "last"), ("any", "last~2")]),
    ],
)
def test_dependencies_are_read(text, found):
    """E06: as typed, and from JSON as a text or a list."""
    assert [tuple(wish) for wish in read_after(text)] == found
    assert check_after(text) == check_after(text.split(",")) == read_after(text)
    assert check_after(12) == check_after([12]) == (Wish("ok", "12"),)


@pytest.mark.parametrize(
    "text", ["", "ok:", "ok", "okay:12", "12,,13", "ok:x", "key:", "12-13", "@name", "-1", "ok:any:1"]
)
def test_what_is_no_dependency_is_refused(text):
    """E06: with the right spelling."""
    with pytest.raises(BadValue, match="write it like ok:12"):
        read_after(text)


@pytest.mark.parametrize("value", [True, 1.5, [None], [["12"]], {"ok": 12}, [-1]])
def test_json_that_is_no_dependency_is_refused(value):
    """E06: the same from a line of a file."""
    with pytest.raises(BadValue):
        check_after(value)
