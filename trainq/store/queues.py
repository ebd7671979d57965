"""The rows of queues: paused or open, and how many quick failures in a row they have behind them (the breaker)."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from trainq.domain.job import Decision, Outcome
    from trainq.store.session import Transaction


class Closed(NamedTuple):
    """A paused queue: the word that says why (breaker or queue_paused), its quick failures in a row; of one that people
    have paused, who, when and what for."""

    reason: str
    failures: int
    by: str | None = None
    at: float | None = None
    message: str | None = None


def count_end(tx: Transaction, name: str, decision: Decision, outcome: Outcome, breaker: int) -> bool:
    """Count an attempt's end for the breaker; true when it has just paused the queue.

    Quick failures in a row are counted: errored ends that could not be started or came soon after the start. A job that is done resets.
    """
    if decision.state == "done":
        tx.rows("UPDATE queue SET quick_failures = 0 WHERE name = ? AND quick_failures > 0", (name,))
        return False
    if decision.state != "errored" or not outcome.quick or not breaker:
        return False
    row = tx.named("failed_quickly", queue=name)[0]
    return row["quick_failures"] >= breaker and pause(tx, name, "breaker", None)


def pause(tx: Transaction, name: str, reason: str, by: str | None, message: str | None = None) -> bool:
    """Stop claims from a queue; false if it was paused already."""
    sql = (
        "INSERT INTO queue(name, paused_at, paused_by, reason, message) VALUES(?, ?, ?, ?, ?) ON CONFLICT(name) DO UPDATE"
        " SET paused_at = excluded.paused_at, paused_by = excluded.paused_by, reason = excluded.reason,"
        " message = excluded.message WHERE paused_at IS NULL"
    )
    return tx.changed(sql, (name, tx.now, by, reason, message)) > 0


def resume(tx: Transaction, name: str) -> bool:
    """Open a queue again, the breaker's count at 0; false if it was open."""
    sql = (
        "UPDATE queue SET paused_at = NULL, paused_by = NULL, reason = NULL, message = NULL, quick_failures = 0"
        " WHERE name = ? AND paused_at IS NOT NULL"
    )
    return tx.changed(sql, (name,)) > 0


def paused(tx: Transaction) -> dict[str, str]:
    """The paused queues, and the word that says why: breaker or queue_paused."""
    return {name: one.reason for name, one in closed(tx).items()}


def closed(tx: Transaction) -> dict[str, Closed]:
    """The paused queues by name."""
    sql = (
        "SELECT CAST(name AS TEXT), CAST(reason AS TEXT), CAST(quick_failures AS INTEGER), CAST(paused_by AS TEXT),"
        " CAST(paused_at AS REAL), CAST(message AS TEXT)"
        " FROM queue WHERE paused_at IS NOT NULL ORDER BY name"
    )
    return {row[0]: Closed(*row[1:]) for row in tx.rows(sql)}


def with_jobs(tx: Transaction) -> set[str]:
    """The queues that have jobs, whatever their state."""
    return {row[0] for row in tx.rows("SELECT CAST(queue AS TEXT) FROM count GROUP BY queue HAVING sum(n) > 0")}
