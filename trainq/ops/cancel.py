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
    from collections.abc import Sequence

    from trainq.domain.selectors import Filter
    from trainq.ops.queue import Queue
    from trainq.store.reads import Row
    from trainq.store.session import Transaction


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
    session = queue.session
    if not dry_run:
        _take_back(queue, words, which)
    with session.reading() if dry_run else session.writing() as tx:
        found = select(tx, words, which, queue.actor.user_id, past=True)
        rows = {row["id"]: row for row in reads.jobs(tx, found.ids)}
        pruned = {row["id"]: row for row in reads.past(tx, [one for one in found.ids if one not in rows])}
        changes = [
            _gone(pruned[number]) if number in pruned else _cancel(tx, queue, rows[number], now, message, dry_run)
            for number in found.ids
        ]
    point("cancel.committed")
    if any(change.result in ("canceled", "canceling") for change in changes) and not dry_run:
        wake.ring(queue.paths.bell_number)
        ended = [uid_of(rows[change.id]) for change in changes if change.result == "canceled"]
        secrets.drop_all(queue.session, queue.paths, ended)
    if found.one and changes[0].result == "ended":
        state = (rows.get(found.ids[0]) or pruned[found.ids[0]])["state"]
        raise NotPossible(
            f"job {found.ids[0]} is already {state}; nothing to cancel", hint=f"trainq history {found.ids[0]}"
        )
    return changes + [Change(word, "unknown", f"no such job: {word}") for word in found.unknown]


def _take_back(queue: Queue, words: Sequence[str], which: Filter) -> None:
    """A named job whose worker is gone is given back first: then it is canceled at once, without its worker."""
    with queue.session.reading() as tx:
        ids = select(tx, words, which, queue.actor.user_id, past=True).ids
        running = [row["id"] for row in reads.jobs(tx, ids) if row["state"] == "running"]
    if running:
        take_back(queue.session, queue.settings.times.zombie_after, only=running)


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


def _gone(row: Row) -> Change:
    result = "already" if row["state"] == "canceled" else "ended"
    return Change(row["id"], result, None if result == "already" else f"job {row['id']} is already {row['state']}")


def may_change(queue: Queue, row: Row) -> bool:
    """Whether this user may change that job: its owner, root, and the owner of the root directory may."""
    return queue.actor.user_id in (0, row["user_id"], queue.owner_id)
