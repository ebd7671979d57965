"""Ask for the end of jobs. A waiting job is canceled at once, a running one by its worker; no later result wins."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from trainq import wake
from trainq.base import clock, hosts
from trainq.base.crash import point
from trainq.base.errors import NoSelector, NotPossible, TrainqError
from trainq.domain.array import ref_of
from trainq.ops import secrets
from trainq.ops.cards import uid_of
from trainq.ops.change import BATCH, Change, in_batches, ref_facts
from trainq.ops.lost import held_here, is_alive, take_back
from trainq.ops.select import EVERYTHING, select
from trainq.ops.sure import surely
from trainq.store import dependants, jobs, lost, reads

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from trainq.domain.selectors import Filter
    from trainq.ops.queue import Queue
    from trainq.ops.select import Selected
    from trainq.store.lost import Lost
    from trainq.store.reads import Row
    from trainq.store.session import Transaction


class _Done(NamedTuple):
    """What one transaction did."""

    changes: list[Change]
    rows: dict[int, Row]
    orphans: set[int]
    """Jobs asked to end whose worker has died on this host: its strays are ended before they are taken back."""
    skipped: Sequence[Row] = ()
    """Jobs that came after those that were canceled."""


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

    def find(tx: Transaction) -> Selected:
        return select(tx, words, which, queue.actor.user_id, past=True)

    def decide(tx: Transaction, batch: Sequence[int]) -> _Done:
        rows = reads.owned(tx, batch)
        gone = {row["id"]: row for row in reads.past(tx, [one for one in batch if one not in rows])}
        changes = [
            _cancel(tx, queue, rows[one], now, message, dry_run) if one in rows else _gone(one, gone.get(one))
            for one in batch
            if one not in rows or not which.state or rows[one]["state"] in which.state  # as it was when selected
        ]
        if dry_run:
            return _Done(changes, rows, set())
        done = _without_workers(tx, queue, changes, rows)
        skipped = dependants.tell(tx)
        return done._replace(skipped=[*reads.owned(tx, skipped).values()]) if skipped else done

    def find_and_decide(tx: Transaction) -> tuple[Selected, _Done]:
        found = find(tx)
        return found, decide(tx, found.ids[:BATCH])

    def is_there(tx: Transaction, done: _Done) -> bool:
        return jobs.are_canceled(tx, _ids(done.changes, "canceled", "canceling"), at_once=now)

    def tell(done: _Done) -> list[Change]:
        point("cancel.committed")
        _tell(queue, done.rows, done.changes)
        secrets.drop_all(queue.session, queue.paths, [uid_of(row) for row in done.skipped])
        return _take_back(queue, done)

    def change(batch: Sequence[int]) -> list[Change]:
        return tell(surely(queue.session, lambda tx: decide(tx, batch), is_there))

    if dry_run:
        with queue.session.reading() as tx:
            found, done = find_and_decide(tx)
            changes = in_batches(found.ids[BATCH:], lambda batch: decide(tx, batch).changes, done.changes)
    elif which == EVERYTHING:  # found by an index, where it is changed: one turn at the gate does all
        found, done = surely(queue.session, find_and_decide, lambda tx, answer: is_there(tx, answer[1]))
        changes = in_batches(found.ids[BATCH:], change, tell(done))
    else:
        with queue.session.reading() as tx:
            found = find(tx)
        changes = in_batches(found.ids, change)
    if found.one and changes and changes[0].result == "ended":
        raise NotPossible(f"{changes[0].error}; nothing to cancel", hint=f"trainq history {found.ids[0]}")
    return changes + [Change(word, "unknown", f"no such job: {word}") for word in found.unknown]


def _without_workers(tx: Transaction, queue: Queue, changes: Sequence[Change], rows: dict[int, Row]) -> _Done:
    """Jobs that run and whose worker is gone end at once, without it: asked first, they end canceled and nothing else."""
    asked = set(_ids(changes, "canceling"))
    if not asked:
        return _Done(list(changes), rows, set())
    orphans = {one.job_id for one in held_here(tx) if one.job_id in asked and not is_alive(one)}
    found = lost.look(tx, hosts.identity(), clock.boot_s(), queue.settings.times.zombie_after, only=asked - orphans)
    return _Done(_ended(changes, found), rows, orphans)


def _take_back(queue: Queue, done: _Done) -> list[Change]:
    """The same for those whose worker has died here."""
    if not done.orphans:
        return done.changes
    try:
        found = take_back(queue.session, queue.settings.times.zombie_after, only=done.orphans)
    except TrainqError:
        return done.changes  # they are asked to end, as is said of them; whoever looks next takes them back
    changes = _ended(done.changes, found)
    _tell(queue, done.rows, [one for one in changes if one.id in done.orphans and one.result == "canceled"])
    return changes


def _ended(changes: Sequence[Change], found: Iterable[Lost]) -> list[Change]:
    ended = {one.job_id for one in found if one.state == "canceled"}
    return [one._replace(result="canceled") if one.id in ended else one for one in changes]


def _tell(queue: Queue, rows: Mapping[int, Row], done: Sequence[Change]) -> None:
    """Wake whom it concerns, and delete what was kept for those that have ended."""
    if _ids(done, "canceled", "canceling"):
        wake.ring(queue.paths.bell_number)
    secrets.drop_all(queue.session, queue.paths, [uid_of(rows[number]) for number in _ids(done, "canceled")])


def _ids(changes: Sequence[Change], *results: str) -> list[int]:
    return [one.id for one in changes if one.result in results and isinstance(one.id, int)]


def _cancel(tx: Transaction, queue: Queue, row: Row, now: bool, message: str | None, dry_run: bool) -> Change:
    if not may_change(queue, row):
        return Change(row["id"], "denied", f"job {ref_of(row)} belongs to {row['user']}", ref_facts(row))
    state = row["state"]
    if dry_run:
        result = {"held": "canceled", "pending": "canceled", "running": "canceling", "canceled": "already"}.get(
            state, "ended"
        )
    else:
        result = jobs.request_cancel(tx, row["id"], str(queue.actor), grace_s=0.0 if now else None, message=message)
        result = result if result in ("canceled", "canceling", "already") else "ended"
    why = f"job {ref_of(row)} is already {state}" if result == "ended" else None
    return Change(row["id"], result, why, ref_facts(row))


def _gone(number: int, row: Row | None) -> Change:
    """A pruned job; None: not even its end is remembered any more."""
    if row is None:
        return Change(number, "unknown", f"no such job: {number}")
    result = "already" if row["state"] == "canceled" else "ended"
    why = None if result == "already" else f"job {ref_of(row)} is already {row['state']}"
    return Change(number, result, why, ref_facts(row))


def may_change(queue: Queue, row: Row) -> bool:
    """Whether this user may change that job: its owner, root, and the owner of the root directory may."""
    return queue.actor.user_id in (0, row["user_id"], queue.owner_id)
