"""An array: one job with tasks. Which numbers they have, what state the whole is in, how one of them is spelled. Pure.

An array takes one number of the sequence of jobs for itself, and its tasks take those that follow, in the order of their
index. So a task is a job like any other, and which numbers belong to an array is known from its own and its count.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from trainq.base.errors import BadValue
from trainq.base.words import quoted
from trainq.domain.states import STATES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trainq.domain.states import State

MOST_TASKS: Final = 100_000
"""So many tasks an array may have: they are put in while everybody else waits at the gate."""
LARGEST_INDEX: Final = 2**63 - 1
_FORM: Final = "write it like 0-99, 0-9,15, 0-100:10 or 0-99%8"


class Numbers(NamedTuple):
    """`0-9,15%4`: the numbers of the tasks, rising (None: they are counted from 0), and how many may run at once."""

    values: Sequence[int] | None
    most: int | None


def parse_array(text: str) -> Numbers:
    """The words of `--array`. BadValue for any other form, and for more tasks than an array may have."""
    body, percent, limit = text.partition("%")
    most = _limit(limit, text) if percent else None
    if not body:
        if most is None:
            raise BadValue(f"no numbers of tasks: {quoted(text)}; {_FORM}")
        return Numbers(None, most)
    ranges = [_range(part, text) for part in body.split(",")]
    total = sum(len(one) for one in ranges)
    if total > MOST_TASKS:
        raise too_many(total)
    values = ranges[0] if len(ranges) == 1 else sorted({number for one in ranges for number in one})
    return Numbers(values, most)


def too_many(count: int) -> BadValue:
    """The refusal of an array of so many tasks."""
    return BadValue(
        f"{count} tasks are more than the {MOST_TASKS} that an array may have",
        hint="--sample N takes some of them, or submit in parts",
    )


def _limit(word: str, text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,9}", word) or not int(word):
        raise BadValue(f"after % stands how many tasks run at once, from 1: {quoted(text)}")
    return int(word)


def _range(part: str, text: str) -> range:
    found = re.fullmatch(r"([0-9]{1,12})(?:-([0-9]{1,12})(?::([0-9]{1,12}))?)?", part)
    if found is None:
        raise BadValue(f"not the numbers of tasks: {quoted(text)}; {_FORM}")
    first, last, step = int(found[1]), int(found[2] or found[1]), int(found[3] or 1)
    if last < first:
        raise BadValue(f"a range that ends before it begins: {quoted(part)}; write the smaller number first")
    if not step:
        raise BadValue(f"a step of 0: {quoted(part)}")
    return range(first, last + 1, step)


def state_of(counts: Mapping[str, int]) -> State:
    """The state of the whole: what is active first; an ended one is done only if all of it is."""
    for state in ("running", "pending", "held", "errored", "canceled", "skipped"):
        if counts[state]:
            return state
    return "done"


def counts_of(row: Mapping[str, Any], running: int) -> dict[str, int]:
    """How many of its tasks are in each state, from the row of an array; what waits and what runs is one number there."""
    return {
        state: running if state == "running" else row["open"] - running if state == "pending" else row[state]
        for state in STATES
    }


def ref_of(row: Mapping[str, Any]) -> str:
    """How a job is spelled: its number, or that of its array with its index."""
    return str(row["id"]) if row.get("array_id") is None else f"{row['array_id']}[{row['array_index']}]"


def words_of(counts: Mapping[str, int]) -> str:
    """How far an array is, in few words: `45/100, 3 errored, 2 running`."""
    ended = counts["done"] + counts["errored"] + counts["canceled"] + counts["skipped"]
    others = [
        f"{counts[state]} {state}" for state in ("errored", "running", "canceled", "skipped", "held") if counts[state]
    ]
    return ", ".join([f"{ended}/{sum(counts.values())}", *others])


def bar(counts: Mapping[str, int], width: int = 10) -> str:
    """The same as a picture: `#` for done, `!` for ended otherwise, `>` for running. What is there has a cell at least."""
    total = max(1, sum(counts.values()))
    bad = counts["errored"] + counts["canceled"] + counts["skipped"]
    cells = [0 if not n else max(1, n * width // total) for n in (counts["done"], bad, counts["running"])]
    while sum(cells) > width:
        cells[cells.index(max(cells))] -= 1
    if not counts["pending"] + counts["held"]:
        cells[cells.index(max(cells))] += width - sum(cells)
    picture = "".join(letter * n for letter, n in zip("#!>", cells, strict=True))
    return f"[{picture.ljust(width, '.')}]"
