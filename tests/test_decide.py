"""What becomes of a job after an attempt: the retry policy, over all its inputs."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainq.domain.job import BACKOFF_CEILING_S, IDLE_REQUEUES, RETRY_ON, Budget, Decision, Outcome, decide, grow
from trainq.domain.states import MOVES, SYSTEM_CAUSES, USER_CAUSES

FREE = ("drained", "requeued")
CAUSES = (None, *USER_CAUSES, *SYSTEM_CAUSES, *FREE, "zombie")


def budget(**more):
    plain = Budget(
        cancel_requested=False, user_used=0, retries=0, retry_on=RETRY_ON, backoff_s=10.0, system_used=0, max_attempts=3
    )
    return plain._replace(**more)


budgets = st.builds(
    Budget,
    cancel_requested=st.booleans(),
    user_used=st.integers(0, 10**6),
    retries=st.integers(0, 10**6),
    retry_on=st.lists(st.sampled_from(USER_CAUSES)).map(tuple),
    backoff_s=st.floats(0, 1e9),
    system_used=st.integers(0, 10),
    max_attempts=st.integers(1, 10),
    idle_requeues=st.integers(0, IDLE_REQUEUES - 1),
)


@settings(derandomize=True, max_examples=300)
@given(cause=st.sampled_from(CAUSES), idle=st.booleans(), has=budgets)
def test_every_decision_is_a_move_and_within_the_budget(cause, idle, has):
    """Q23, Q37: whatever ended an attempt, the move is allowed and no budget is overdrawn; never a crash."""
    decision = decide(Outcome(cause, idle=idle), has)
    assert decision.state in MOVES["running"]
    assert (decision.state == "done") == (cause is None and not has.cancel_requested)
    assert decision.user_cost in (0, 1)
    assert decision.system_cost in (0, 1)
    assert not decision.user_cost or has.user_used + 1 <= has.retries
    assert decision.state != "pending" or not decision.system_cost or has.system_used + 1 < has.max_attempts
    assert (decision.delay_s is not None) == (decision.state == "held")
    assert decision.delay_s is None or 0 <= decision.delay_s <= BACKOFF_CEILING_S
    assert (decision.side is not None) == (decision.state == "errored")
    assert 0 <= decision.idle_requeues < IDLE_REQUEUES
    assert not decision.idle_requeues or decision == Decision(
        "pending", "requeued", idle_requeues=has.idle_requeues + 1
    )


@pytest.mark.parametrize("cause", CAUSES)
def test_cancel_wins_over_every_result(cause):
    """Once asked for, a cancel is what the job ends with; it costs nothing."""
    assert decide(Outcome(cause), budget(cancel_requested=True, retries=9)) == Decision("canceled", "user")


@pytest.mark.parametrize("cause", FREE)
def test_a_drain_and_the_own_wish_cost_nothing(cause):
    """Back to pending at no cost, however often, with nothing left to spend."""
    has = budget(system_used=2, user_used=5, retries=5, max_attempts=3)
    assert decide(Outcome(cause), has) == Decision("pending", cause)


def test_a_loop_of_idle_requeues_ends():
    """E12: the tenth in a row that wishes to be requeued at once, with nothing new saved, is an error of the job."""
    has = budget()
    for n in range(1, 10):
        decision = decide(Outcome("requeued", 75, idle=True), has)
        assert decision == Decision("pending", "requeued", idle_requeues=n)
        has = has._replace(idle_requeues=decision.idle_requeues)
    assert decide(Outcome("requeued", 75, idle=True), has) == Decision("errored", "requeue_loop", "user")
    assert decide(Outcome("requeued", 75, idle=True), has._replace(cancel_requested=True)).state == "canceled"


@pytest.mark.parametrize("cause", [cause for cause in CAUSES if cause is not None])
def test_anything_else_breaks_the_row_of_idle_requeues(cause):
    """E12: a requeue that has worked or saved, a drain, a loss or a failure, and the next idle one is the first."""
    has = budget(idle_requeues=9, retries=9, retry_on=USER_CAUSES, max_attempts=9)
    decision = decide(Outcome(cause), has)
    assert decision.idle_requeues == 0
    assert decision.reason != "requeue_loop" or cause == "requeue_loop"


def test_growing_asks_for_more_of_what_was_asked_for():
    """E14: memory by the job's own factor, in whole bytes; what was not asked for is not made up, nothing else moves."""
    doc = {"argv": ["x"], "retry_grow": 1.5, "mem": 101, "vram": 2**33, "retry_on": ["oom"]}
    assert grow(doc) == {**doc, "mem": 151, "vram": 3 * 2**32}
    assert grow({"retry_grow": 2.0, "mem": 1}) == {"retry_grow": 2.0, "mem": 2}
    assert grow({"retry_grow": 2.0}) == {"retry_grow": 2.0}
    assert doc["mem"] == 101


def test_growing_has_an_end():
    """DESIGN 2.10: a job that runs out of memory a thousand times does not break the worker that lets it grow."""
    doc = {"retry_grow": 100.0, "mem": 1, "vram": 2**40}
    for _ in range(1000):
        before, doc = doc, grow(doc)
        assert before["mem"] <= doc["mem"] <= doc["vram"] < 2**63
    assert doc == before


def test_lost_attempts_end_in_poison():
    """Q23: with max_attempts 3 the third loss ends the job; there is no fourth start."""
    said = [decide(Outcome("zombie"), budget(system_used=used)) for used in range(3)]
    assert said == [
        Decision("pending", "zombie", system_cost=1),
        Decision("pending", "zombie", system_cost=1),
        Decision("errored", "poison", "system", system_cost=1),
    ]
    assert decide(Outcome("zombie"), budget(max_attempts=1)).state == "errored"


def test_backoff_doubles_to_the_ceiling():
    """10 s, 20, 40 … 600, and 600 from there on."""
    delays = [decide(Outcome("exit"), budget(user_used=n, retries=99)).delay_s for n in range(9)]
    assert delays == [10, 20, 40, 80, 160, 320, 600, 600, 600]


@pytest.mark.parametrize("used", [1023, 1024, 10**6 - 1])
@pytest.mark.parametrize("backoff_s", [0.0, 10.0, 1e300])
def test_backoff_after_very_many_retries(used, backoff_s):
    """A job that may fail a million times does not break the worker that counts it."""
    decision = decide(Outcome("exit"), budget(user_used=used, retries=10**6, backoff_s=backoff_s))
    assert decision.delay_s == min(backoff_s, 1) * BACKOFF_CEILING_S


def test_retries_are_for_the_causes_that_were_named():
    """Only a cause in retry_on is tried again, and only so often."""
    assert decide(Outcome("exit"), budget(retries=1)).state == "held"
    assert decide(Outcome("exit"), budget(retries=1, user_used=1)) == Decision("errored", "exit", "user")
    assert decide(Outcome("import"), budget(retries=1)) == Decision("errored", "import", "user")
    assert decide(Outcome("import"), budget(retries=1, retry_on=("import",))).state == "held"
    assert decide(Outcome("exit"), budget()) == Decision("errored", "exit", "user")


def test_a_store_failure_is_the_systems_and_is_not_retried():
    """Q47: its own reason and side, even when retry_on tries to name it."""
    has = budget(retries=9, retry_on=("store", "exit"))
    assert decide(Outcome("store"), has) == Decision("errored", "store", "system")


def test_a_cause_that_is_none_is_a_bug():
    """No word that the tables do not know gets into the store."""
    with pytest.raises(ValueError, match="no such cause"):
        decide(Outcome("tired"), budget())
