"""The rows of workers: who is here, since when, and whether they still move."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trainq.store.session import Transaction


def join(
    tx: Transaction, *, name: str, host: str, identity: str, pid: int, pid_start: int, user_id: int, version: str,
    slots: int, queues: Sequence[str], offer: str = "{}", worker_id: int | None = None, quarantine: str | None = None,
) -> int:  # fmt: skip
    """Enter a worker; its id, never used again but by itself (`worker_id`) when its row was deleted."""
    rows = tx.rows(
        "INSERT INTO worker(id, name, host, host_identity, pid, pid_start, user_id, version, slots, queues, offer, state,"
        " quarantine, started_at, heartbeat_at) VALUES(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 'idle', ?, ?, ?) RETURNING id",
        (
            worker_id, name, host, identity, pid, pid_start, user_id, version, slots, json.dumps(list(queues)), offer, quarantine,
            tx.now, tx.now,
        ),
    )  # fmt: skip
    return int(rows[0][0])


def is_known(tx: Transaction, worker_id: int) -> bool:
    """Whether its row is there still."""
    return tx.value("SELECT 1 FROM worker WHERE id = ?", (worker_id,)) is not None


def move(tx: Transaction, worker_id: int, state: str) -> None:
    """The worker lives, and is `idle`, `busy` or `draining`."""
    tx.rows("UPDATE worker SET beat = beat + 1, heartbeat_at = ?, state = ? WHERE id = ?", (tx.now, state, worker_id))


def quarantine(tx: Transaction, worker_id: int, why: str | None) -> None:
    """The worker claims nothing, and why; None: it may claim again."""
    tx.rows("UPDATE worker SET quarantine = ? WHERE id = ?", (why, worker_id))


def clear(tx: Transaction, worker_id: int, by: str) -> None:
    """People let the worker out of quarantine."""
    tx.rows("UPDATE worker SET quarantine = NULL, cleared_by = ? WHERE id = ?", (by, worker_id))


def cleared_by(tx: Transaction, worker_id: int) -> str | None:
    """Who did so last."""
    found: str | None = tx.value("SELECT CAST(cleared_by AS TEXT) FROM worker WHERE id = ?", (worker_id,))
    return found


def request_drain(tx: Transaction, worker_id: int, by: str) -> bool:
    """Ask the worker to finish what runs and end; false when it was asked already."""
    sql = "UPDATE worker SET drain_at = ?, drain_by = ? WHERE id = ? AND drain_at IS NULL"
    return tx.changed(sql, (tx.now, by, worker_id)) > 0


def drained_by(tx: Transaction, worker_id: int) -> str | None:
    """Who has asked the worker to do so; None: nobody."""
    sql = "SELECT coalesce(CAST(drain_by AS TEXT), '') FROM worker WHERE id = ? AND drain_at IS NOT NULL"
    found: str | None = tx.value(sql, (worker_id,))
    return found


def is_quarantined(tx: Transaction, worker_id: int) -> bool:
    """Whether the worker is in quarantine still: people may have cleared it. Without a row nobody has."""
    return tx.value("SELECT 1 FROM worker WHERE id = ? AND quarantine IS NULL", (worker_id,)) is None


def offer(tx: Transaction, worker_id: int, doc: str) -> None:
    """What the worker has to give now, as a JSON document."""
    tx.rows("UPDATE worker SET offer = ? WHERE id = ?", (doc, worker_id))


def keep_for(tx: Transaction, worker_id: int, job_id: int | None) -> None:
    """The worker is kept for this job; None: for none."""
    tx.rows("UPDATE worker SET kept_for = ? WHERE id = ?", (job_id, worker_id))


def kept_for(tx: Transaction, but: int, alive_since: float) -> set[int]:
    """The jobs that other workers, heard of since then and still claiming, are kept for."""
    sql = (
        "SELECT kept_for FROM worker WHERE kept_for IS NOT NULL AND ended_at IS NULL AND id <> ? AND heartbeat_at > ?"
        " AND quarantine IS NULL AND state <> 'draining'"
    )
    return {row[0] for row in tx.rows(sql, (but, alive_since))}


def given_elsewhere(tx: Transaction, identity: str, but: int) -> set[str]:
    """The GPUs that other workers of this host have given to their running jobs."""
    sql = (
        "SELECT j.gpus FROM job j INDEXED BY job_open JOIN worker w ON w.id = j.worker_id"
        " WHERE j.state = 'running' AND j.gpus IS NOT NULL AND w.host_identity = ? AND w.id <> ?"
    )
    return {one for row in tx.rows(sql, (identity, but)) for one in str(row[0]).split(",")}


def leave(tx: Transaction, worker_id: int) -> None:
    """The worker has ended of its own will."""
    tx.rows(
        "UPDATE worker SET state = 'gone', ended_at = ?, heartbeat_at = ? WHERE id = ?", (tx.now, tx.now, worker_id)
    )


def everyone(tx: Transaction) -> list[Any]:
    """All rows of workers, newest first; without what trainq has not written, since on a group's queue any member can."""
    return tx.named("workers")


def jobs_of(tx: Transaction, worker_id: int) -> list[int]:
    """The ids of the jobs that run under this worker."""
    sql = "SELECT id FROM job INDEXED BY job_open WHERE state = 'running' AND worker_id = ? ORDER BY id"
    return [row[0] for row in tx.rows(sql, (worker_id,))]
