"""Selectors: which jobs a command is about, as typed. Pure.

A selector is only read here; what it finds is the store's answer. Ranges stay ranges, however far they reach,
and an id that no store can hold is not found instead of a wrong value. What looks like none of the forms is
NotFound: `cancel nope` names a job that is not there.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

from trainq.base.errors import BadValue, NotFound
from trainq.base.units import moment
from trainq.base.words import did_you_mean, quoted
from trainq.domain.states import STATES, State

if TYPE_CHECKING:
    from collections.abc import Sequence

LARGEST_ID: Final = 2**63 - 1
_FORMS: Final = "a job is named by its number, 12-20, '12[3]', last, key:K, fp:F or @NAME; trainq status lists them"


class Ids(NamedTuple):
    """`12`, `12,15-20`: ranges (first, last), both ends in, in the order typed; they may overlap."""

    ranges: tuple[tuple[int, int], ...]

    @property
    def single(self) -> int | None:
        """The id, if exactly one was named: then a job that is missing is an error, not an empty answer."""
        first, last = self.ranges[0]
        return first if len(self.ranges) == 1 and first == last else None


class Last(NamedTuple):
    """`last`, `last~2`: the submit of this uid, so many before its last one."""

    back: int


class Key(NamedTuple):
    """`key:K`: the jobs submitted with this key."""

    text: str


class Fingerprint(NamedTuple):
    """`fp:F`: the jobs and models whose fingerprint begins so (lower-case hex)."""

    prefix: str


class Named(NamedTuple):
    """`@name`: the jobs of this name."""

    name: str


class Tasks(NamedTuple):
    """`12[3]`, `12[0-9,15]`: tasks of an array by their index, in ranges (first, last), both ends in."""

    id: int
    ranges: tuple[tuple[int, int], ...]

    @property
    def single(self) -> int | None:
        """The index, if exactly one was named."""
        first, last = self.ranges[0]
        return first if len(self.ranges) == 1 and first == last else None


Selector = Ids | Last | Key | Fingerprint | Named | Tasks


def parse_selector(text: str) -> Selector:
    """One argument as a selector. BadValue for a form that is broken, NotFound for what can be no job."""
    if text.startswith("@"):
        return Named(_rest(text, 1))
    if text.startswith("key:"):
        return Key(_rest(text, 4))
    if text.startswith("fp:"):
        return Fingerprint(_prefix(text))
    if text == "last" or text.startswith("last~"):
        return Last(_back(text))
    if re.fullmatch(r"[0-9,-]*[0-9][0-9,-]*", text):
        return Ids(tuple(_range(part, text) for part in text.split(",")))
    task = re.fullmatch(r"([0-9]+)\[([0-9,-]*[0-9][0-9,-]*)\]", text)
    if task:
        return Tasks(_number(task[1], text), tuple(_range(part, text) for part in task[2].split(",")))
    if text in ("all", "*"):
        raise NotFound(f"no such job: {quoted(text)}", hint="name them by a filter, such as --state pending")
    if text in STATES:
        raise NotFound(f"no such job: {quoted(text)}", hint=f"--state {text}")
    raise NotFound(f"no such job: {quoted(text)}", hint=_FORMS)


def _rest(text: str, start: int) -> str:
    if len(text) == start:
        raise BadValue(f"nothing after {quoted(text)}")
    return text[start:]


def _prefix(text: str) -> str:
    prefix = _rest(text, 3).lower()
    if not re.fullmatch(r"[0-9a-f]{1,64}", prefix):
        raise BadValue(f"not the beginning of a fingerprint: {quoted(text)}; it is of 0-9 and a-f")
    return prefix


def _back(text: str) -> int:
    steps = text[5:] if text != "last" else "0"
    if not re.fullmatch(r"[0-9]+", steps):
        raise BadValue(f"not a selector: {quoted(text)}; write last or last~2")
    return _number(steps, text)


def _range(part: str, text: str) -> tuple[int, int]:
    found = re.fullmatch(r"([0-9]+)(?:-([0-9]+))?", part)
    if found is None:
        raise BadValue(f"not a list of ids: {quoted(text)}; write it like 12,15-20")
    first, last = found[1], found[2]
    if last is None:
        number = _number(first, text)
        return number, number
    low = _number(first, text)
    high = LARGEST_ID if len(last.lstrip("0")) > 19 else min(int(last.lstrip("0") or "0"), LARGEST_ID)
    if high < low:
        raise BadValue(f"a range that ends before it begins: {quoted(part)}; write the smaller id first")
    return low, high


def _number(digits: str, text: str) -> int:
    digits = digits.lstrip("0") or "0"
    if len(digits) > 19 or int(digits) > LARGEST_ID:
        raise NotFound(f"no such job: {quoted(text)}", hint=_FORMS)
    return int(digits)


class Filter(NamedTuple):
    """Which jobs a list is cut to: those that fit every field set. Within one field any of its words will do.

    `since` and `before` are epoch seconds.
    """

    state: tuple[State, ...] = ()
    queue: tuple[str, ...] = ()
    user: tuple[str, ...] = ()
    tag: tuple[str, ...] = ()
    type: tuple[str, ...] = ()
    since: float | None = None
    before: float | None = None


def parse_filter(
    *,
    now: float,
    state: Sequence[str] = (),
    queue: Sequence[str] = (),
    user: Sequence[str] = (),
    tag: Sequence[str] = (),
    type: Sequence[str] = (),  # noqa: A002  # the option's name
    since: str | None = None,
    before: str | None = None,
) -> Filter:
    """The filter of `--state --queue --user --tag --type --since --before`, each given any number of times.

    States may stand in one word (`errored,canceled`). Times as in `moment(past=True)`: `2h` is two hours ago.
    """
    return Filter(
        state=parse_states(state),
        queue=tuple(queue),
        user=tuple(user),
        tag=tuple(tag),
        type=tuple(type),
        since=None if since is None else moment(since, now, past=True),
        before=None if before is None else moment(before, now, past=True),
    )


def parse_states(words: Sequence[str]) -> tuple[State, ...]:
    """The states named, each once, commas allowed. BadValue lists the states there are."""
    found: list[State] = []
    for name in (part for word in words for part in word.split(",")):
        state = next((state for state in STATES if state == name), None)
        if state is None:
            near = did_you_mean(name, STATES) if name else ""
            near = near if near.startswith("; did") else ""
            raise BadValue(f"no such state: {quoted(name)}{near}; states are {', '.join(STATES)}")
        if state not in found:
            found.append(state)
    return tuple(found)
