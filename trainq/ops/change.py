"""What a changing verb did to each id."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from trainq.base.errors import TrainqError
from trainq.domain.array import ref_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

BATCH = 500  # a transaction: nobody waits long at the gate, however many are meant


class Change(NamedTuple):
    """One id and what became of it; `error` is the message when `result` is unknown, denied or refused. `is_passed`: a task
    of an array that was meant as a whole does not allow it, which is no failure."""

    id: int | str | None
    result: str
    error: str | None = None
    facts: dict[str, Any] | None = None
    is_passed: bool = False


def passing(changes: Sequence[Change], arrays: Sequence[int]) -> list[Change]:
    """The same, with what was refused of these arrays passed over: a verb acts on every task that allows it."""
    whole = tuple(f"{number}[" for number in arrays)
    return [
        one._replace(is_passed=True)
        if whole and one.result == "refused" and str((one.facts or {}).get("ref", "")).startswith(whole)
        else one
        for one in changes
    ]


def ref_facts(row: Mapping[str, Any]) -> dict[str, Any] | None:
    """Of a task its array says more than its own number: how it is spelled."""
    return None if row.get("array_id") is None else {"ref": ref_of(row)}


def in_batches(
    ids: Sequence[int], change: Callable[[Sequence[int]], list[Change]], done: Sequence[Change] = ()
) -> list[Change]:
    """Change so many of them at a time, after what is `done`. An error after that or the first time is told of those
    that are left: what came before it is done, and has to be told, too."""
    changes = list(done)
    for start in range(0, len(ids), BATCH):
        try:
            changes += change(ids[start : start + BATCH])
        except TrainqError as error:
            if not changes:
                raise
            return changes + [Change(number, "refused", error.message) for number in ids[start:]]
    return changes
