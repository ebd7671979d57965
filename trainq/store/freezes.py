"""Running jobs that are to stand still: asked for in the row, done by the worker, over with the attempt.

Nothing but the flag and the reason changes: the job runs, its slot is taken, its worker beats for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainq.store.holds import note

if TYPE_CHECKING:
    from collections.abc import Iterable

    from trainq.store.session import Transaction


def standing(tx: Transaction, job_id: int) -> str:
    """The job's state; of one that runs `canceling` or `frozen`, if that was asked for; `unknown` without a row."""
    row = tx.one("SELECT state, cancel_at, freeze_at FROM job WHERE id = ?", (job_id,))
    if row is None:
        return "unknown"
    if row[0] != "running":
        return str(row[0])
    return "canceling" if row[1] is not None else "frozen" if row[2] is not None else "running"


def request_freeze(tx: Transaction, job_id: int, by: str, message: str | None) -> bool:
    """Ask for it; false, and nothing is changed, when the job does not run, is to end, or is frozen already."""
    if not tx.changes("freeze", id=job_id, by=by):
        return False
    note(tx, job_id, "running", "frozen", by, message)
    return True


def request_thaw(tx: Transaction, job_id: int, by: str) -> bool:
    """Ask for its end; false, and nothing is changed, when the job does not run, is to end, or is not frozen."""
    if not tx.changes("thaw", id=job_id):
        return False
    note(tx, job_id, "running", "resumed", by, None)
    return True


def are_frozen(tx: Transaction, ids: Iterable[int]) -> bool:
    """Whether each of these is asked to stand still."""
    return all(standing(tx, job_id) == "frozen" for job_id in ids)


def are_thawed(tx: Transaction, ids: Iterable[int]) -> bool:
    """Whether none of these is."""
    return all(standing(tx, job_id) != "frozen" for job_id in ids)
