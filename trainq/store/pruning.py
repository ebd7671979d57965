"""What the janitor takes out: ended jobs past their age, and whatever no row names any more.

Everything is done a bounded number of rows at a time, so that nobody waits long at the gate.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from trainq.store import dependants, lanes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trainq.store.session import Session, Transaction

BATCH = 500


class Whose(NamedTuple):
    """Of others than this user, only jobs that ended before then."""

    user_id: int
    others_before: float


def old_jobs(tx: Transaction, before: float, limit: int = BATCH, whose: Whose | None = None) -> list[int]:
    """Ids of jobs that ended before then, oldest first; of everybody, or as `whose` says. The tasks of an array come when
    the last of them has ended before then."""
    only = "" if whose is None else "AND (user_id = ? OR ended_at <= ?)"
    sql = (
        "SELECT id FROM job INDEXED BY job_ended WHERE state IN ('done','errored','canceled','skipped') AND array_id IS NULL"
        f" AND ended_at <= ? {only} ORDER BY ended_at, id LIMIT ?"
    )
    found = [row[0] for row in tx.rows(sql, (before, *(whose or ()), limit))]
    if limit < 0 or len(found) < limit:
        only = only.replace("user_id", "a.user_id").replace("ended_at", "a.ended_at")
        sql = (
            "SELECT j.id FROM job_array a CROSS JOIN job j ON j.id BETWEEN a.id + 1 AND a.id + a.count"
            f" WHERE a.ended_at <= ? AND a.n > 0 {only} ORDER BY a.ended_at, a.id LIMIT ?"
        )
        found += [row[0] for row in tx.rows(sql, (before, *(whose or ()), limit - len(found) if limit >= 0 else -1))]
    return found


def retire(tx: Transaction, ids: Sequence[int]) -> list[int]:
    """Move ended jobs to the past and delete their rows; the ids of those that went."""
    gone = []
    for job_id in ids:
        if not dependants.is_told(tx, job_id):
            continue  # its dependants are not done with it
        tx.named("retire", id=job_id)
        sql = "DELETE FROM job WHERE id = ? AND state IN ('done','errored','canceled','skipped')"
        if tx.changed(sql, (job_id,)):
            gone.append(job_id)
    lanes.forget(tx)
    return gone


def unnamed_data(tx: Transaction, before: float, limit: int = BATCH) -> list[tuple[int, str, bool]]:
    """Training sets no job names and that are older than `before`: id, sha256, whether they lie in a file."""
    sql = (
        "SELECT id, sha256, z IS NULL FROM data WHERE at <= ?"
        " AND NOT EXISTS(SELECT 1 FROM job_data WHERE data_id = data.id) LIMIT ?"
    )
    return [(row[0], row[1], bool(row[2])) for row in tx.rows(sql, (before, limit))]


def forget_data(tx: Transaction, ids: Sequence[int]) -> None:
    """Delete the rows of training sets."""
    tx.many("DELETE FROM data WHERE id = ?", [(data_id,) for data_id in ids])


def data_is_named(tx: Transaction, sha256: str) -> bool:
    """Whether a row still speaks of this training set."""
    return tx.value("SELECT 1 FROM data WHERE sha256 = ?", (sha256,)) is not None


def named_snapshots(tx: Transaction) -> set[str]:
    """The digests of the frozen code that the documents of jobs name."""
    sql = (
        "SELECT DISTINCT CASE WHEN json_valid(doc) THEN json_extract(doc, '$.code.snapshot') END FROM spec"
        " WHERE instr(doc, '\"snapshot\"')"
    )
    return {row[0] for row in tx.rows(sql) if isinstance(row[0], str)}


def old_past(tx: Transaction, before: float) -> int:
    """How many pruned jobs ended before then."""
    plain = tx.value("SELECT count(*) FROM past WHERE array_id IS NULL AND ended_at <= ?", (before,))
    tasks = tx.value(
        "SELECT total(done + errored + canceled + skipped) FROM job_array WHERE ended_at <= ? AND n = 0", (before,)
    )
    return int(plain + tasks)


def forget_past(tx: Transaction, before: float) -> int:
    """Delete what is left of jobs that ended before then: past, history, and their submit calls; of an array as one."""
    sql = "SELECT id, submission_id FROM past WHERE array_id IS NULL AND ended_at <= ? ORDER BY ended_at LIMIT ?"
    rows = tx.rows(sql, (before, BATCH))
    if len(rows) < BATCH:
        sql = (
            "SELECT p.id, p.submission_id FROM job_array a CROSS JOIN past p ON p.id BETWEEN a.id + 1 AND a.id + a.count"
            " WHERE a.ended_at <= ? AND a.n = 0 AND NOT EXISTS(SELECT 1 FROM to_tell t WHERE t.id = a.id) LIMIT ?"
        )
        rows = [*rows, *tx.rows(sql, (before, BATCH - len(rows)))]
    ids = [(row[0],) for row in rows]
    for table, column in (("past", "id"), ("event", "job_id")):
        tx.many(f"DELETE FROM {table} WHERE {column} = ?", ids)  # names from the line above
    tx.rows(
        "DELETE FROM job_array WHERE ended_at <= ? AND n = 0 AND done + errored + canceled + skipped = 0", (before,)
    )
    for submission_id in {row[1] for row in rows}:
        _forget_submission(tx, submission_id)
    return len(rows)


def _forget_submission(tx: Transaction, submission_id: int) -> None:
    """Delete a submit call none of whose jobs is left, and its environment if no other call has the same."""
    gone = tx.rows(
        "DELETE FROM submission WHERE id = ?"
        " AND NOT EXISTS(SELECT 1 FROM job WHERE job.id BETWEEN first_id AND first_id + count - 1)"
        " AND NOT EXISTS(SELECT 1 FROM past WHERE past.id BETWEEN first_id AND first_id + count - 1)"
        " RETURNING environ_id",
        (submission_id,),
    )
    for row in gone:
        tx.rows(
            "DELETE FROM environ WHERE id = ? AND NOT EXISTS(SELECT 1 FROM submission WHERE environ_id = environ.id)",
            (row[0],),
        )


def old_workers(tx: Transaction, before: float) -> list[Any]:
    """The rows of workers that said good-bye, or were not heard of since, before then; never one that a job names."""
    return tx.rows(
        "SELECT * FROM worker WHERE coalesce(ended_at, heartbeat_at) <= ?"
        " AND NOT EXISTS(SELECT 1 FROM job INDEXED BY job_open WHERE state = 'running' AND worker_id = worker.id)",
        (before,),
    )


def forget_workers(tx: Transaction, ids: Sequence[int]) -> None:
    """Delete the rows of workers."""
    tx.many("DELETE FROM worker WHERE id = ?", [(worker_id,) for worker_id in ids])


def give_back_pages(session: Session) -> None:
    """Return some free pages to the file system, under the gate."""
    with session.writing() as tx:
        for _ in range(min(tx.value("PRAGMA freelist_count"), 500)):
            tx.rows("PRAGMA incremental_vacuum(1)")  # Python steps a statement without columns once: a page each time
