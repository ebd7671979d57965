"""The verbs of what is held: hold, release, and what becomes of a held job when one of its holds has gone.

All that may hold a job stands in columns of its own; `reason` says the first, as domain/held.py has it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trainq.domain import held

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from trainq.domain.job import NewJob
    from trainq.store.dependants import Edge
    from trainq.store.session import Transaction

COLUMNS = "state, reason, first_reason, eligible_at, due_at, begin_at, deadline_at, on_hold, waits_for"
"""What `of_new` and `free` are the values of."""


def free(now: float) -> tuple[Any, ...]:
    """The row of a job that nothing holds."""
    return "pending", None, None, now, None, None, None, 0, 0


def of_new(now: float, ids: range, jobs: Sequence[NewJob], edges: Iterable[Edge]) -> dict[int, tuple[Any, ...]]:
    """The same for those of a call that ask for more than to start as soon as may be."""
    waits: dict[int, int] = {}
    for edge in edges:
        waits[edge.job_id] = waits.get(edge.job_id, 0) + (edge.ended is None)
    found = {}
    for number, job in zip(ids, jobs, strict=True):
        if job.begin_at is None and job.deadline_at is None and not job.hold and number not in waits:
            continue
        waits_for = waits.get(number, 0)
        due_at = job.begin_at if job.begin_at is not None and job.begin_at > now else None
        reason = held.holds(job.hold, waits_for, due_at, job.begin_at, now)
        found[number] = (
            "held" if reason else "pending", reason, reason, None if reason else now, due_at, job.begin_at,
            job.deadline_at, int(job.hold), waits_for,
        )  # fmt: skip
    return found


def hold(tx: Transaction, job_id: int, by: str, message: str | None = None) -> bool:
    """A person holds a job that waits. False when it does not wait, or is on hold."""
    was_held = tx.value("SELECT 1 FROM job WHERE id = ? AND state = 'held'", (job_id,))
    if not tx.named("hold", id=job_id, by=by, message=message):
        return False
    if was_held:
        note(tx, job_id, "held", "user", by, message)
    return True


def release(tx: Transaction, job_id: int, by: str) -> bool:
    """A person's hold is taken off; what else holds it stays. False when it is not on hold."""
    if tx.value("SELECT 1 FROM job WHERE id = ? AND state = 'held' AND on_hold", (job_id,)) is None:
        return False
    tx.rows("UPDATE job SET on_hold = 0 WHERE id = ?", (job_id,))
    reason = look_again(tx, job_id, by)
    if reason is not None:
        note(tx, job_id, "held", reason, by, "released")
    return True


def look_again(tx: Transaction, job_id: int, by: str | None) -> str | None:
    """One hold of a held job has gone: it may start, or the reason is the next; that reason."""
    sql = (
        "SELECT on_hold, waits_for, CAST(due_at AS REAL) AS due_at, CAST(begin_at AS REAL) AS begin_at FROM job"
        " WHERE id = ? AND state = 'held'"
    )
    row = tx.one(sql, (job_id,))
    if row is None:
        return None
    reason = held.holds(row["on_hold"], row["waits_for"], row["due_at"], row["begin_at"], tx.now)
    if reason is None:
        tx.named("let_go", id=job_id, by=by)
    else:
        tx.named("hold_on", id=job_id, reason=reason)
    return reason


def are_on_hold(tx: Transaction, ids: Iterable[int], *, wanted: bool) -> bool:
    """Whether each of these is, or is not, held by a person."""
    sql = "SELECT 1 FROM job WHERE id = ? AND state = 'held' AND on_hold"
    return all((tx.value(sql, (job_id,)) is not None) == wanted for job_id in ids)


def note(tx: Transaction, job_id: int, state: str, reason: str | None, by: str | None, message: str | None) -> None:
    """A row of history that is no change of state."""
    tx.rows(
        "INSERT INTO event(job_id, n, at, state, reason, attempt, by, message)"
        " SELECT ?, coalesce(max(n), 1) + 1, ?, ?, ?, coalesce(max(attempt), 0), ?, ? FROM event WHERE job_id = ?",
        (job_id, tx.now, state, reason, by, message, job_id),
    )
