"""When a worker thinks that its host is to blame, and takes no more."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from trainq.domain.job import Claim, Outcome
from trainq.worker.quarantine import Quarantine


class End(NamedTuple):
    """What is looked at of an attempt that has ended."""

    claim: Claim
    outcome: Outcome | None
    pid: int | None = None
    trouble: str | None = None
    handed: bool = False


def end(word):
    """`3!` job 3 could not be started; `3x` not even handed to a keeper; `3+` it was started and ended somehow; `3-` it never came to a start; `3?` a sick
    disk; `3~` its claim was lost before its start."""
    claim = Claim(int(word[:-1]), 1, 1)
    match word[-1]:
        case "!":
            return End(claim, Outcome("spawn", 127, quick=True), handed=True)
        case "x":
            return End(claim, Outcome("spawn", quick=True))
        case "+":
            return End(claim, Outcome("exit", 1), pid=99, handed=True)
        case "-":
            return End(claim, Outcome("data"))
        case "?":
            return End(claim, Outcome("drained"), trouble="the disk is full")
        case _:
            return End(claim, None)


@pytest.mark.parametrize(
    ("ends", "at"),
    [
        ("1! 2! 3!", 3),
        ("1! 2!", None),
        ("1! 1! 1! 1!", None),  # one broken job is not the host
        ("1! 2! 1! 2! 3!", 5),
        ("1! 2! 3+ 4! 5!", None),  # something could be started here
        ("1! 2! 3+ 4! 5! 6!", 6),
        ("1! 2! 3- 4!", 4),  # a job without its data says nothing about starting
        ("1! 2! 3~ 4!", 4),
        ("1x 2x 3x", None),  # its own directory, or what no program can be given
        ("1! 2! 3x 4!", 4),
        ("1+ 2+ 3+", None),
        ("1?", 1),
        ("1+ 2! 3?", 3),
        ("1! 2! 3! 4! 5! 6! 7?", 3),  # it is said once
        ("1? 2? 3! 4! 5!", 1),
        ("", None),
    ],
)
def test_three_different_jobs_in_a_row_or_a_sick_disk(ends, at):
    """E13: at which end the worker puts itself into quarantine, once."""
    quarantine = Quarantine()
    said = [quarantine.judge(end(word)) for word in ends.split()]
    assert [n for n, yes in enumerate(said, 1) if yes] == ([at] if at else [])
    assert (quarantine.why is not None) == (at is not None)


def test_it_says_why():
    """E13: which jobs, or what the disk said."""
    quarantine = Quarantine()
    for word in ("7!", "5!", "9!"):
        quarantine.judge(end(word))
    assert "7, 5, 9" in quarantine.why
    quarantine.clear()
    assert quarantine.why is None
    quarantine.judge(end("1?"))
    assert quarantine.why == "the disk is full"


def test_cleared_it_begins_again():
    """E13: after people cleared it, three more are needed."""
    quarantine = Quarantine()
    for word in ("1!", "2!", "3!"):
        quarantine.judge(end(word))
    quarantine.clear()
    assert [quarantine.judge(end(word)) for word in ("1!", "2!", "3!")] == [False, False, True]
