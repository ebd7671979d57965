"""Let running jobs stand still, and go on: a wish in their rows, which their workers see. Nothing else of them changes.

Who may cancel a job may do this. A cancel wins over it, and it is over with the attempt: a job that goes back to the
queue, for whatever reason, runs when it is started again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainq import wake
from trainq.base.errors import NoSelector, NotPossible
from trainq.domain.array import ref_of
from trainq.ops.cancel import may_change
from trainq.ops.change import Change, in_batches, passing, ref_facts
from trainq.ops.select import EVERYTHING, select
from trainq.ops.sure import surely
from trainq.store import freezes, reads

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trainq.ops.queue import Queue
    from trainq.store.reads import Row
    from trainq.store.session import Transaction


def freeze(queue: Queue, words: Sequence[str], *, message: str | None = None, dry_run: bool = False) -> list[Change]:
    """Let these running jobs stand still; what was done to each: paused, already, ended, refused, denied, unknown.

    Raises NoSelector without any, NotFound for a single unknown one, NotPossible for a single one that does not run.
    """

    def ask(tx: Transaction, number: int) -> bool:
        return dry_run or freezes.request_freeze(tx, number, str(queue.actor), message)

    def one(tx: Transaction, row: Row) -> tuple[str, str | None]:
        seen = freezes.standing(tx, row["id"])
        if seen == "running":
            return "paused" if ask(tx, row["id"]) else "already", None
        if seen == "frozen":
            return "already", None
        if seen in ("held", "pending"):
            return "refused", f"job {ref_of(row)} is {seen}, and only a running job is paused"
        if seen == "canceling":
            return "refused", f"job {ref_of(row)} is being canceled"
        return "ended", f"job {ref_of(row)} is already {seen}"

    return _change(queue, words, one, freezes.are_frozen, "pause", dry_run=dry_run)


def thaw(queue: Queue, words: Sequence[str], *, dry_run: bool = False) -> list[Change]:
    """Let these jobs go on; what was done to each: resumed, already (it was not paused), ended, refused, denied, unknown.

    Raises as `freeze` does.
    """

    def ask(tx: Transaction, number: int) -> bool:
        return dry_run or freezes.request_thaw(tx, number, str(queue.actor))

    def one(tx: Transaction, row: Row) -> tuple[str, str | None]:
        seen = freezes.standing(tx, row["id"])
        if seen == "frozen":
            return "resumed" if ask(tx, row["id"]) else "already", None
        if seen in ("running", "pending", "canceling"):
            return "already", None
        if seen == "held":
            return "refused", f"job {ref_of(row)} is held, and only a paused job is resumed"
        return "ended", f"job {ref_of(row)} is already {seen}"

    return _change(queue, words, one, freezes.are_thawed, "resume", dry_run=dry_run)


def _change(
    queue: Queue, words: Sequence[str], one: Callable[[Transaction, Row], tuple[str, str | None]],
    is_there: Callable[[Transaction, list[int]], bool], verb: str, *, dry_run: bool,
) -> list[Change]:  # fmt: skip
    if not words:
        raise NoSelector(f"{verb}: which jobs?")
    with queue.session.reading() as tx:
        found = select(tx, words, EVERYTHING, queue.actor.user_id, past=True)

    def decide(tx: Transaction, batch: Sequence[int]) -> list[Change]:
        rows = reads.owned(tx, batch)
        gone = {row["id"]: row for row in reads.past(tx, [each for each in batch if each not in rows])}
        return [
            _of_others(queue, rows[each]) or Change(each, *one(tx, rows[each]), ref_facts(rows[each]))
            if each in rows
            else _gone(each, gone.get(each))
            for each in batch
        ]

    def change(batch: Sequence[int]) -> list[Change]:
        if dry_run:
            with queue.session.reading() as tx:
                return decide(tx, batch)
        done = surely(queue.session, lambda tx: decide(tx, batch), lambda tx, done: is_there(tx, _changed(done)))
        if _changed(done):
            wake.ring(queue.paths.bell_number)
        return done

    changes = passing(in_batches(found.ids, change), found.arrays)
    if found.one and changes and changes[0].result in ("ended", "refused"):
        raise NotPossible(f"{changes[0].error}", hint=_hint(changes[0], verb))
    return changes + [Change(word, "unknown", f"no such job: {word}") for word in found.unknown]


def _changed(changes: Sequence[Change]) -> list[int]:
    return [one.id for one in changes if one.result in ("paused", "resumed") and isinstance(one.id, int)]


def _of_others(queue: Queue, row: Row) -> Change | None:
    if may_change(queue, row):
        return None
    return Change(row["id"], "denied", f"job {ref_of(row)} belongs to {row['user']}", ref_facts(row))


def _gone(number: int, row: Row | None) -> Change:
    """A pruned job; None: not even its end is remembered any more."""
    if row is None:
        return Change(number, "unknown", f"no such job: {number}")
    return Change(number, "ended", f"job {ref_of(row)} is already {row['state']}", ref_facts(row))


def _hint(change: Change, verb: str) -> str:
    """What to type instead."""
    if change.result == "refused" and "canceled" not in str(change.error):
        return f"trainq {'hold' if verb == 'pause' else 'release'} {change.id}"
    return f"trainq history {change.id}"
