"""Ask for the end of jobs. A waiting job is canceled at once, a running one by its worker; no later result wins."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainq import wake
from trainq.base.crash import point
from trainq.base.errors import NoSelector, NotPossible
from trainq.ops import secrets
from trainq.ops.cards import uid_of
from trainq.ops.change import Change
from trainq.ops.lost import take_back
from trainq.ops.select import EVERYTHING, select
from trainq.store import jobs, reads

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from trainq.domain.selectors import Filter
    from trainq.ops.queue import Queue
    from trainq.store.reads import Row
    from trainq.store.session import Transaction

BATCH = 500  # a transaction: nobody waits long at the gate, however many are meant


def cancel(
    queue: Queue, words: Sequence[str], which: Filter = EVERYTHING, *, now: bool = False, message: str | None = None,
    dry_run: bool = False,
) -> list[Change]:  # fmt: skip
    """Cancel the selected jobs; what was done to each: canceled, canceling, already, ended, denied, unknown.

    `now` leaves out the grace. Raises NoSelector without any, NotFound for a single unknown one, NotPossible for a
    single one that has ended otherwise.
    """
    if not words and which == EVERYTHING:
        raise NoSelector("cancel: which jobs?")
    with queue.session.reading() as tx:
        found = select(tx, words, which, queue.actor.user_id, past=True)
        states = reads.states(tx, found.ids)
    if not dry_run:
        _take_back(queue, [number for number, state in states.items() if state == "running"])
    changes: list[Change] = []
    for start in range(0, len(found.ids), BATCH):
        batch = found.ids[start : start + BATCH]
        with queue.session.reading() if dry_run else queue.session.writing() as tx:
            rows = reads.owned(tx, batch)
            gone = {row["id"]: row for row in reads.past(tx, [one for one in batch if one not in rows])}
            done = [
                _cancel(tx, queue, rows[one], now, message, dry_run) if one in rows else _gone(one, gone.get(one))
                for one in batch
                if one not in rows or not which.state or rows[one]["state"] in which.state  # as it was when selected
            ]
        point("cancel.committed")
        changes += done
        if not dry_run:
            _tell(queue, rows, done)
    if found.one and changes and changes[0].result == "ended":
        raise NotPossible(f"{changes[0].error}; nothing to cancel", hint=f"trainq history {found.ids[0]}")
    return changes + [Change(word, "unknown", f"no such job: {word}") for word in found.unknown]


def _take_back(queue: Queue, running: Collection[int]) -> None:
    """A named job whose worker is gone is given back first: then it is canceled at once, without its worker."""
    if running:
        take_back(queue.session, queue.settings.times.zombie_after, only=running)


def _tell(queue: Queue, rows: Mapping[int, Row], done: Sequence[Change]) -> None:
    """Wake whom it concerns, and delete what was kept for those that have ended."""
    if any(change.result in ("canceled", "canceling") for change in done):
        wake.ring(queue.paths.bell_number)
    ended = {change.id for change in done if change.result == "canceled"}
    secrets.drop_all(queue.session, queue.paths, [uid_of(row) for number, row in rows.items() if number in ended])


def _cancel(tx: Transaction, queue: Queue, row: Row, now: bool, message: str | None, dry_run: bool) -> Change:
    if not may_change(queue, row):
        return Change(row["id"], "denied", f"job {row['id']} belongs to {row['user']}")
    state = row["state"]
    if dry_run:
        result = {"held": "canceled", "pending": "canceled", "running": "canceling", "canceled": "already"}.get(
            state, "ended"
        )
    else:
        result = jobs.request_cancel(tx, row["id"], str(queue.actor), grace_s=0.0 if now else None, message=message)
        result = result if result in ("canceled", "canceling", "already") else "ended"
    return Change(row["id"], result, f"job {row['id']} is already {state}" if result == "ended" else None)


def _gone(number: int, row: Row | None) -> Change:
    """A pruned job; None: not even its end is remembered any more."""
    if row is None:
        return Change(number, "unknown", f"no such job: {number}")
    result = "already" if row["state"] == "canceled" else "ended"
    return Change(number, result, None if result == "already" else f"job {number} is already {row['state']}")


def may_change(queue: Queue, row: Row) -> bool:
    """Whether this user may change that job: its owner, root, and the owner of the root directory may."""
    return queue.actor.user_id in (0, row["user_id"], queue.owner_id)
