"""Every change of a job's state: when, where, why. It outlives the job's row."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from trainq.base.units import rfc3339
from trainq.domain.array import ref_of
from trainq.domain.documents import document
from trainq.ops.select import EVERYTHING, select
from trainq.store import reads

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trainq.domain.selectors import Filter
    from trainq.ops.queue import Queue
    from trainq.store.reads import Row

_KEPT = (
    "state", "reason", "attempt", "worker", "host", "by", "message", "pid", "cause", "exit_code", "signal", "error",
)  # fmt: skip


class History(NamedTuple):
    """The changes of the jobs that were named, job by job and oldest first."""

    items: list[dict[str, Any]]
    rows: list[Row]
    unknown: list[str]
    now: float


def history(queue: Queue, words: Sequence[str], which: Filter = EVERYTHING) -> History:
    """The changes of these jobs, pruned ones too. Raises NotFound when the only job named never was."""
    with queue.session.reading() as tx:
        found = select(tx, words, which, queue.actor.user_id, past=True)
        tasks = reads.tasks_among(tx, found.ids)
        rows = [
            {**row, "ref": ref_of(tasks.get(row["job_id"], {"id": row["job_id"]}))}
            for row in reads.history(tx, found.ids)
        ]
        return History([_item(row) for row in rows], rows, found.unknown, tx.now)


def _item(row: Row) -> dict[str, Any]:
    return {
        "job": row["job_id"],
        "ref": row["ref"],
        "n": row["n"],
        "at": rfc3339(row["at"]),
        **{name: row[name] for name in _KEPT},
        "claimed_at": _time(row["claimed_at"]),
        "started_at": _time(row["started_at"]),
        "storing_at": _time(row["storing_at"]),
        "metrics": document(row["metrics"]) if row["metrics"] else None,
    }


def _time(epoch: float | None) -> str | None:
    return None if epoch is None else rfc3339(epoch)
