"""The verb `edit`: what was asked for a job that waits is changed, in its row, its document and its lane.

A change that lets it start, or keeps it from starting, is a move of its own; else the row of history stands alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trainq.domain import held
from trainq.domain.edit import COLUMNS
from trainq.store import lanes
from trainq.store.holds import note

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from trainq.store.session import Transaction

_SQL = (
    f"UPDATE job SET {', '.join(f'{column} = ?' for column in COLUMNS.values())}, lane_id = ?, due_at = ?, state = ?,"
    " reason = ?, eligible_at = ?, changed_at = ?, changed_by = ?, message = ? WHERE id = ? AND state IN ('held','pending')"
)


def edit(
    tx: Transaction, job: Mapping[str, Any], columns: Mapping[str, Any], doc: str, shape: str, by: str, message: str
) -> None:
    """Write the new columns (domain/edit.py), document and shape of a job that waits; `job` is its row before."""
    lane_id = _lane(tx, job, columns["queue"], shape)
    due_at = _due_at(job, columns["begin_at"], tx.now)
    reason = held.holds(job["on_hold"], job["waits_for"], due_at, columns["begin_at"], tx.now)
    state = "held" if reason else "pending"
    if reason is None:
        due_at, reason = None, job["reason"] if job["state"] == "pending" else None
    is_move = state != job["state"]
    eligible_at = tx.now if is_move and state == "pending" else job["eligible_at"]
    changed = (tx.now, by, message) if is_move else (job["changed_at"], job["changed_by"], job["message"])
    values = (*(columns[column] for column in COLUMNS.values()), lane_id, due_at, state, reason, eligible_at, *changed)
    tx.rows(_SQL, (*values, job["id"]))
    tx.rows("UPDATE spec SET doc = ? WHERE job_id = ?", (doc, job["id"]))
    if is_move:
        tx.rows("UPDATE job SET message = ? WHERE id = ?", (job["message"], job["id"]))  # that one was for the history
    else:
        note(tx, job["id"], state, "edited", by, message)


def _lane(tx: Transaction, job: Mapping[str, Any], queue: str, shape: str) -> int:
    """Where it stands now: its array, and the limit of that, stay."""
    sql = "SELECT queue, shape, CAST(array_id AS INTEGER), CAST(most AS INTEGER) FROM lane WHERE id = ?"
    was = tx.one(sql, (job["lane_id"],))
    if was is not None and (was[0], was[1]) == (queue, shape):
        return int(job["lane_id"])
    limit = (0, None) if was is None else (was[2], was[3])
    return lanes.intern(tx, queue, job["user_id"], shape, *limit)


def _due_at(job: Mapping[str, Any], begin_at: float | None, now: float) -> float | None:
    """When time does not hold it any more: its new begin, or the end of its backoff, whichever is later."""
    backoff = None if job["due_at"] == job["begin_at"] else job["due_at"]
    begin = begin_at if begin_at is not None and begin_at > now else None
    return max((at for at in (backoff, begin) if at is not None), default=None)


def edit_array(tx: Transaction, array_id: int, columns: Mapping[str, Any]) -> None:
    """Write what lists show of an array as a whole: those of its columns that are named."""
    chosen = [column for column in ("name", "priority", "tags", "queue") if column in columns]
    if chosen:
        sql = f"UPDATE job_array SET {', '.join(f'{column} = ?' for column in chosen)} WHERE id = ?"
        tx.rows(sql, (*(columns[column] for column in chosen), array_id))


def are_so(tx: Transaction, wanted: Iterable[tuple[int, Mapping[str, Any], str]]) -> bool:
    """Whether these jobs have these columns and documents."""
    sql = f"SELECT {', '.join(COLUMNS.values())}, doc FROM job JOIN spec ON job_id = id WHERE id = ?"
    return all(
        (row := tx.one(sql, (number,))) is not None and tuple(row) == (*_of(columns), doc)
        for number, columns, doc in wanted
    )


def _of(columns: Mapping[str, Any]) -> Sequence[Any]:
    return [columns[column] for column in COLUMNS.values()]
