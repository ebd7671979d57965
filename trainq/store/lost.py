"""Finding lost attempts: sightings of a beat that does not move, and giving the job back.

An attempt is lost when one observer has seen the same beat of the same claim for zombie-after of its own boot clock,
with no gap between looks above half of it. So no other host's clock, no outage of the storage and no laptop's sleep
makes a massacre. A worker's row is not enough: the job's own beat is what counts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from trainq.domain.documents import document
from trainq.domain.job import Outcome, decide
from trainq.store.jobs import budget_of

if TYPE_CHECKING:
    from collections.abc import Collection

    from trainq.store.session import Transaction


_RUNNING = (
    "SELECT id, attempt, worker_id, worker, beat, cancel_at, cancel_by, message, CAST(user_used AS INTEGER) AS user_used,"
    " CAST(retries AS INTEGER) AS retries, CAST(system_used AS INTEGER) AS system_used,"
    " CAST(max_attempts AS INTEGER) AS max_attempts, CAST(idle_requeues AS INTEGER) AS idle_requeues FROM job"
)


class Lost(NamedTuple):
    """A job taken back, and where it went."""

    job_id: int
    attempt: int
    worker: str
    state: str


class Held(NamedTuple):
    """A running job and the process that should be running it."""

    job_id: int
    attempt: int
    worker_id: int
    uid: str
    worker: str
    pid: int
    pid_start: int


def look(
    tx: Transaction, observer: str, boot_s: float, zombie_after_s: float, *, mine: int | None = None,
    only: Collection[int] | None = None,
) -> list[Lost]:  # fmt: skip
    """Look at every running job once (or `only` at these); take back those whose beat stood still for zombie-after.

    `mine` is the worker that looks: its own jobs are not looked at.
    """
    found: list[Lost] = []
    for row in tx.rows(f"{_RUNNING} INDEXED BY job_open WHERE state = 'running' ORDER BY id"):
        if row["worker_id"] == mine or (only is not None and row["id"] not in only):
            continue
        seen = tx.named(
            "see", id=row["id"], observer=observer, attempt=row["attempt"], beat=row["beat"], boot_s=boot_s,
            gap_s=zombie_after_s / 2,
        )  # fmt: skip
        if boot_s - seen[0][0] >= zombie_after_s:
            found += expire(tx, row, f"no heartbeat for {boot_s - seen[0][0]:.0f} s")
    return found


def running(tx: Transaction, mine: int | None) -> list[int]:
    """The running jobs of other workers."""
    sql = "SELECT id FROM job INDEXED BY job_open WHERE state = 'running' AND worker_id IS NOT ? ORDER BY id"
    return [row[0] for row in tx.rows(sql, (mine,))]


def held_here(tx: Transaction, identity: str, user_id: int) -> list[Held]:
    """The running jobs whose worker is on the host of this identity, and of this user (0: of any): of another user's
    processes nothing can be proved."""
    sql = (
        "SELECT j.id, j.attempt, j.worker_id, s.uid || '.' || (j.id - s.first_id), w.name, w.pid, w.pid_start"
        " FROM job j INDEXED BY job_open JOIN worker w ON w.id = j.worker_id JOIN submission s ON s.id = j.submission_id"
        " WHERE j.state = 'running' AND w.host_identity = ?1 AND ?2 IN (0, w.user_id) ORDER BY j.id"
    )
    return [Held(*row) for row in tx.rows(sql, (identity, user_id))]


def expire_held(tx: Transaction, held: Held, why: str) -> list[Lost]:
    """Take back the attempt of a worker that is provably gone; empty when somebody was faster."""
    sql = f"{_RUNNING} WHERE id = ? AND attempt = ? AND worker_id = ? AND state = 'running'"
    row = tx.one(sql, (held.job_id, held.attempt, held.worker_id))
    return [] if row is None else expire(tx, row, why)


def expire(tx: Transaction, row: Any, why: str) -> list[Lost]:
    """Take one attempt back if claim and beat are still those of `row`; empty when somebody was faster."""
    spec = document(tx.value("SELECT doc FROM spec WHERE job_id = ?", (row["id"],)))
    decision = decide(Outcome("zombie"), budget_of(row, spec))
    rows = tx.named(
        "expire", id=row["id"], attempt=row["attempt"], beat=row["beat"], state=decision.state, reason=decision.reason,
        side=decision.side, by=row["cancel_by"], system_cost=decision.system_cost,
        message=row["message"] if decision.state == "canceled" else f"{row['worker']}: {why}",
        error=f"lost {row['system_used'] + 1} times, last on {row['worker']}: {why}" if decision.state == "errored" else None,
    )  # fmt: skip
    tx.rows("DELETE FROM sighting WHERE job_id = ?", (row["id"],))
    return [Lost(row["id"], row["attempt"], row["worker"], decision.state)] if rows else []
