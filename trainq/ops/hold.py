"""Hold what waits, and release it: a person's word, beside whatever else holds a job."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainq import wake
from trainq.base.crash import point
from trainq.base.errors import NoSelector, NotPossible
from trainq.domain.array import ref_of
from trainq.domain.states import ENDED
from trainq.ops.cancel import may_change
from trainq.ops.change import Change, in_batches, passing, ref_facts
from trainq.ops.select import EVERYTHING, select
from trainq.ops.sure import surely
from trainq.store import holds, reads

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trainq.domain.selectors import Filter
    from trainq.ops.queue import Queue
    from trainq.store.reads import Row
    from trainq.store.session import Transaction


def hold(
    queue: Queue, words: Sequence[str], which: Filter = EVERYTHING, *, message: str | None = None, dry_run: bool = False
) -> list[Change]:
    """Keep the selected jobs from starting until they are released: held, already, refused (it runs), ended, denied,
    unknown.

    Raises NoSelector without any, NotFound for a single unknown one, NotPossible for a single one that runs or has ended.
    """
    return _each(queue, "held", words, which, message, dry_run)


def release(
    queue: Queue, words: Sequence[str], which: Filter = EVERYTHING, *, dry_run: bool = False
) -> list[Change]:  # fmt: skip
    """Take that hold off again: released, already (no person holds it), ended, denied, unknown; raises as `hold` does."""
    return _each(queue, "released", words, which, None, dry_run)


def _each(
    queue: Queue, what: str, words: Sequence[str], which: Filter, message: str | None, dry_run: bool
) -> list[Change]:
    if not words and which == EVERYTHING:
        raise NoSelector(f"{'hold' if what == 'held' else 'release'}: which jobs?")
    with queue.session.reading() as tx:
        found = select(tx, words, which, queue.actor.user_id, past=True)

    def decide(tx: Transaction, batch: Sequence[int]) -> list[Change]:
        rows = reads.holding(tx, batch)
        gone = {row["id"]: row for row in reads.past(tx, [one for one in batch if one not in rows])}
        done = [
            _change(queue, rows.get(one) or gone.get(one) or {"id": one, "state": None}, what)
            for one in batch
            if one not in rows or not which.state or rows[one]["state"] in which.state  # as it was when selected
        ]
        for one in () if dry_run else done:
            if one.result == what:
                _write(tx, queue, one, message)
        return done

    def change(batch: Sequence[int]) -> list[Change]:
        if dry_run:
            with queue.session.reading() as tx:
                return decide(tx, batch)
        done = surely(queue.session, lambda tx: decide(tx, batch), lambda tx, answer: _are_so(tx, answer, what))
        point("hold.committed")
        if what == "released" and any(one.result == what for one in done):
            wake.ring(queue.paths.bell_number)
        return done

    changes = passing(in_batches(found.ids, change), found.arrays)
    if found.one and changes and changes[0].result in ("ended", "refused"):
        hint = f"trainq history {found.ids[0]}" if changes[0].result == "ended" else f"trainq cancel {found.ids[0]}"
        raise NotPossible(changes[0].error or "", hint=hint)
    return changes + [Change(word, "unknown", f"no such job: {word}") for word in found.unknown]


def _write(tx: Transaction, queue: Queue, one: Change, message: str | None) -> None:
    assert isinstance(one.id, int)
    if one.result == "held":
        holds.hold(tx, one.id, str(queue.actor), message)
    else:
        holds.release(tx, one.id, str(queue.actor))


def _are_so(tx: Transaction, changes: Sequence[Change], what: str) -> bool:
    ids = [one.id for one in changes if one.result == what and isinstance(one.id, int)]
    return holds.are_on_hold(tx, ids, wanted=what == "held")


def _change(queue: Queue, row: Row, what: str) -> Change:
    """What becomes of one job."""
    number, state, ref, facts = row["id"], row["state"], ref_of(row), ref_facts(row)
    if state is None:
        return Change(number, "unknown", f"no such job: {number}")
    if not may_change(queue, row):
        return Change(number, "denied", f"job {ref} belongs to {row['user']}", facts)
    if state in ENDED:
        return Change(number, "ended", f"job {ref} is already {state}; nothing to {_VERB[what]}", facts)
    if state == "running" and what == "held":
        return Change(number, "refused", f"job {ref} runs; only what waits is held", facts)
    is_so = bool(row["on_hold"]) == (what == "held")
    return Change(number, "already" if is_so else what, None, facts)


_VERB = {"held": "hold", "released": "release"}
