"""The table of moves and the words beside it."""

from __future__ import annotations

import pytest

from trainq.domain.states import ACTIVE, ENDED, MOVES, STATES, SYSTEM_CAUSES, USER_CAUSES, side_of

SAID = """
held→pending, canceled, skipped · pending→running, held, canceled · running→done, errored, canceled, pending, held ·
errored→pending, held · canceled→pending, held · skipped→held
"""


def test_the_table_is_the_one_that_is_written_down():
    """Q37: of 49 pairs exactly these."""
    pairs = set()
    for row in SAID.replace("\n", " ").split("·"):
        old, _, news = row.strip().partition("→")
        pairs |= {(old, new.strip()) for new in news.split(",")}
    assert {(old, new) for old, news in MOVES.items() for new in news} == pairs
    assert len(STATES) == 7
    assert len(pairs) == 16


def test_every_state_is_of_one_kind():
    """Active or ended, never both."""
    assert sorted(ACTIVE + ENDED) == sorted(STATES)
    assert set(MOVES) == set(STATES)


def test_every_state_can_be_reached_and_running_can_end_anyhow():
    """From where submit puts a job, each state is on some way; no move goes to itself."""
    seen, todo = {"pending", "held"}, ["pending", "held"]
    while todo:
        for new in MOVES[todo.pop()]:
            assert new in STATES
            if new not in seen:
                seen.add(new)
                todo.append(new)
    assert seen == set(STATES)
    assert not any(state in MOVES[state] for state in STATES)


@pytest.mark.parametrize("word", USER_CAUSES)
def test_sides_user(word):
    """Q38: the user's own causes."""
    assert side_of(word) == "user"


@pytest.mark.parametrize("word", SYSTEM_CAUSES)
def test_sides_system(word):
    """Q38: the system's causes."""
    assert side_of(word) == "system"


@pytest.mark.parametrize("word", [None, "", "zombie", "drained", "backoff", "user", "canceling"])
def test_sides_nobody(word):
    """Q38: what is no reason of `errored` has no side."""
    assert side_of(word) is None


def test_no_cause_is_of_both_sides():
    """Q38: one side pays."""
    assert not set(USER_CAUSES) & set(SYSTEM_CAUSES)
