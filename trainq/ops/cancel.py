"""Ask for the end of jobs. A waiting job is canceled at once, a running one by its worker; no later result wins."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainq import wake
from trainq.base.crash import point
from trainq.base.errors import NoSelector, NotPossible, TrainqError
from trainq.ops import secrets
from trainq.ops.cards import uid_of
from trainq.ops.change import Change, in_batches
from trainq.ops.lost import take_back
from trainq.ops.select import EVERYTHING, select
from trainq.ops.sure import surely
from trainq.store import jobs, reads

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

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
    with queue.session.reading() as tx:
        found = select(tx, words, which, queue.actor.user_id, past=True)
    asked: dict[int, Row] = {}

    def decide(tx: Transaction, batch: Sequence[int]) -> tuple[list[Change], dict[int, Row]]:
        rows = reads.owned(tx, batch)
        gone = {row["id"]: row for row in reads.past(tx, [one for one in batch if one not in rows])}
        done = [
            _cancel(tx, queue, rows[one], now, message, dry_run) if one in rows else _gone(one, gone.get(one))
            for one in batch
            if one not in rows or not which.state or rows[one]["state"] in which.state  # as it was when selected
        ]
        return done, rows

    def change(batch: Sequence[int]) -> list[Change]:
        if dry_run:
            with queue.session.reading() as tx:
                return decide(tx, batch)[0]
        done, rows = surely(
            queue.session,
            lambda tx: decide(tx, batch),
            lambda tx, answer: jobs.are_canceled(tx, _ids(answer[0], "canceled", "canceling"), at_once=now),
        )
        point("cancel.committed")
        _tell(queue, rows, done)
        asked.update({number: rows[number] for number in _ids(done, "canceling")})
        return done

    changes = in_batches(found.ids, change)
    if asked and not dry_run:
        changes = _take_back(queue, asked, changes)
    if found.one and changes and changes[0].result == "ended":
        raise NotPossible(f"{changes[0].error}; nothing to cancel", hint=f"trainq history {found.ids[0]}")
    return changes + [Change(word, "unknown", f"no such job: {word}") for word in found.unknown]


def _take_back(queue: Queue, asked: Mapping[int, Row], changes: Sequence[Change]) -> list[Change]:
    """Jobs that run and whose worker is gone end at once, without it: asked first, they end canceled and nothing else."""
    try:
        found = take_back(queue.session, queue.settings.times.zombie_after, only=asked)
    except TrainqError:
        return list(changes)  # they are asked to end, as is said of them; whoever looks next takes them back
    ended = {one.job_id for one in found if one.state == "canceled"}
    changes = [one._replace(result="canceled") if one.id in ended else one for one in changes]
    _tell(queue, asked, [one for one in changes if one.id in ended])
    return changes


def _tell(queue: Queue, rows: Mapping[int, Row], done: Sequence[Change]) -> None:
    """Wake whom it concerns, and delete what was kept for those that have ended."""
    if _ids(done, "canceled", "canceling"):
        wake.ring(queue.paths.bell_number)
    secrets.drop_all(queue.session, queue.paths, [uid_of(rows[number]) for number in _ids(done, "canceled")])


def _ids(changes: Sequence[Change], *results: str) -> list[int]:
    return [one.id for one in changes if one.result in results and isinstance(one.id, int)]


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
