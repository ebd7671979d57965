"""What a changing command says it did: a word for each id, and the exit status that follows from all of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trainq.base.errors import Denied
from trainq.base.words import printable
from trainq.cli.answer import Answer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trainq.ops.change import Change

FAILED = ("unknown", "denied", "refused")


def item_of(change: Change) -> dict[str, Any]:
    """One change as JSON."""
    item = {"id": _id(change.id), "result": change.result, "error": change.error, **(change.facts or {})}
    if change.result == "reused":
        item["state"] = "done"
    return item


def answer(
    changes: Sequence[Change], already: str, *, dry_run: bool = False, nothing: str = "no jobs fit: nothing to do"
) -> Answer:
    """The answer for these changes; `already` ends the sentence "12 already …", `nothing` stands for none at all.

    Exits 0, or 7 when some of several failed. Raises Denied when the only one was.
    """
    if len(changes) == 1 and changes[0].result == "denied":
        raise Denied(changes[0].error or "this job belongs to somebody else")
    doc: dict[str, Any] = {"items": [item_of(change) for change in changes]}
    if dry_run:
        doc["dry_run"] = True
    failed = any(change.result in FAILED and not change.is_passed for change in changes)
    ids = [change.id for change in changes if change.result not in FAILED]

    def lines() -> list[str]:
        return _lines(changes, already, dry_run=dry_run) or [nothing]

    return Answer("changes", doc, lines, ids, 7 if failed else 0)


def _lines(changes: Sequence[Change], already: str, *, dry_run: bool) -> list[str]:
    return [_line(change, already, "would be " if dry_run else "") for change in changes]


def _line(change: Change, already: str, would: str) -> str:
    name = (change.facts or {}).get("ref") or change.id
    if change.result == "already":
        return f"{name} already {already}"
    if change.error:
        return f"{name} {change.result}: {change.error}"
    what = f": {printable(change.facts['set'])}" if change.facts and "set" in change.facts else ""
    return f"{name} {would}{'canceled' if would and change.result == 'canceling' else change.result}{what}"


def _id(value: Any) -> Any:
    return int(value) if isinstance(value, str) and value.isdecimal() and len(value) < 19 else value
