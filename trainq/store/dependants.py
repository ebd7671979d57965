"""The rows of dependencies: what a job comes after, and telling it how those jobs have ended.

Whoever ends a job leaves its number in `to_tell` (a trigger does, and only for jobs that somebody waits for); `tell`
works that off in the same transaction, a bounded number of dependants at a time, and who comes next does the rest. A
dependant that is skipped has ended, too, and feeds the table: so what follows from an end needs no recursion.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

from trainq.domain.held import is_met
from trainq.domain.states import ENDED
from trainq.store import arrays, holds

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from trainq.domain.job import NewJob
    from trainq.store.session import Transaction

MOST = 500
"""So many dependants are told in one transaction."""


class Edge(NamedTuple):
    """A row of `dep`."""

    job_id: int
    on_id: int
    mode: str
    ended: str | None


def state_of(tx: Transaction, job_id: int) -> str | None:
    """The state of a job, or of an array as a whole, also once it is pruned; a job that has a model was done. None: nothing
    is known of it any more."""
    found: str | None = tx.named("state_of", id=job_id)[0][0]
    return found


def of_new(tx: Transaction, ids: range, jobs: Sequence[NewJob]) -> list[Edge]:
    """What the jobs of a call come after. What has ended as asked already is not waited for."""
    states: dict[int, str | None] = {}
    found = []
    for number, job in zip(ids, jobs, strict=True):
        for after in job.after:
            on_id = ids[after.on] if after.is_place else after.on
            if on_id not in states:
                states[on_id] = None if after.is_place else state_of(tx, on_id)
            found.append(Edge(number, on_id, after.mode, _verdict(after.mode, states[on_id])))
    return found


def _verdict(mode: str, state: str | None) -> str | None:
    return state if state in ENDED and is_met(mode, str(state)) else None


def put_in(tx: Transaction, edges: Iterable[Edge]) -> None:
    """Store the edges of jobs that were put in, and tell those whose dependency has failed already."""
    edges = list(edges)
    if not edges:
        return
    tx.many("INSERT INTO dep(job_id, on_id, mode, ended) VALUES(?, ?, ?, ?)", edges)
    _listen(tx, {edge.on_id for edge in edges if edge.ended is None})


def _listen(tx: Transaction, ids: Iterable[int]) -> None:
    """From now on the end of these is told; of those that have ended, at once."""
    for number in ids:
        for table in ("job", "job_array"):
            tx.rows(f"UPDATE {table} SET has_dependants = 1 WHERE id = ? AND has_dependants = 0", (number,))
        state = state_of(tx, number)
        if state is None or state in ENDED:
            tx.rows("INSERT OR IGNORE INTO to_tell VALUES(?)", (number,))


def is_any(tx: Transaction) -> bool:
    """Whether somebody has to be told of an end."""
    return tx.value("SELECT 1 FROM to_tell LIMIT 1") is not None


def is_told(tx: Transaction, job_id: int) -> bool:
    """Whether all have been told of the end of this job."""
    return tx.value("SELECT 1 FROM to_tell WHERE id = ?", (job_id,)) is None


def tell(tx: Transaction) -> list[int]:
    """Tell the dependants of what has ended; those that were skipped by it. Called wherever a job may have ended."""
    skipped: list[int] = []
    left = MOST
    while left > 0:
        on_id = tx.value("SELECT id FROM to_tell LIMIT 1")
        if on_id is None:
            break
        state = state_of(tx, on_id) or "canceled"
        sql = "SELECT job_id, mode FROM dep WHERE on_id = ? AND ended IS NULL LIMIT ?"
        rows = tx.rows(sql, (on_id, left)) if state in ENDED else []  # else it was retried meanwhile
        if len(rows) < left:
            tx.rows("DELETE FROM to_tell WHERE id = ?", (on_id,))
        left -= len(rows)
        why = _why(tx, on_id, state) if rows else ""
        for row in rows:
            skipped += _tell(tx, row["job_id"], on_id, state, None if is_met(row["mode"], state) else why)
    return skipped


def _tell(tx: Transaction, job_id: int, on_id: int, state: str, why: str | None) -> list[int]:
    """One dependant of a job that ended so; `why`: not as asked."""
    tx.rows("UPDATE dep SET ended = ? WHERE job_id = ? AND on_id = ?", (state, job_id, on_id))
    tx.rows("UPDATE job SET waits_for = waits_for - 1 WHERE id = ?", (job_id,))
    if why is None:
        holds.look_again(tx, job_id, None)
        return []
    return [row[0] for row in tx.named("skip", id=job_id, why=why)]


def _why(tx: Transaction, on_id: int, state: str) -> str:
    """Which job or array has not ended as asked: of a chain of skipped ones the first."""
    array = tx.one("SELECT errored + canceled + skipped, count FROM job_array WHERE id = ?", (on_id,))
    if array is not None and state != "skipped":
        return f"array {on_id} ended {state} ({array[0]} of {array[1]} tasks are not done)"
    if array is not None:  # and so was a task of it, for the first of that chain
        on_id = arrays.one_in(tx, on_id, state) or on_id
    sql = "SELECT reason, error FROM job WHERE id = ?1 UNION ALL SELECT reason, error FROM past WHERE id = ?1"
    row = tx.one(sql, (on_id,))
    if row is not None and state == "skipped" and row["error"]:
        return str(row["error"])
    return f"job {on_id} ended {state}" + (f" ({row['reason']})" if row is not None and row["reason"] else "")


def unmet(tx: Transaction, job_id: int) -> list[tuple[int, str]]:
    """The jobs that have ended otherwise than this one asks for, and how; as they are now."""
    return [
        (edge.on_id, state) for edge, state in _not_met(tx, job_id) if state in ENDED and not is_met(edge.mode, state)
    ]


def wait_again(tx: Transaction, job_id: int) -> int:
    """Before a job is run again: it waits anew for what was not met. For how many."""
    for edge, state in list(_not_met(tx, job_id)):
        verdict = _verdict(edge.mode, state)
        tx.rows("UPDATE dep SET ended = ? WHERE job_id = ? AND on_id = ?", (verdict, job_id, edge.on_id))
        if verdict is None:
            _listen(tx, [edge.on_id])
    count = int(tx.value("SELECT count(*) FROM dep WHERE job_id = ? AND ended IS NULL", (job_id,)))
    tx.rows("UPDATE job SET waits_for = ? WHERE id = ?", (count, job_id))
    return count


def _not_met(tx: Transaction, job_id: int) -> Iterator[tuple[Edge, str]]:
    """What was not met of what a job comes after, and the state of each now, or the last that is known."""
    for row in tx.rows("SELECT job_id, on_id, mode, ended FROM dep WHERE job_id = ? ORDER BY on_id", (job_id,)):
        edge = Edge(*row)
        if edge.ended is None or not is_met(edge.mode, edge.ended):
            yield edge, state_of(tx, edge.on_id) or edge.ended or "canceled"


def reopen(tx: Transaction, job_id: int, by: str) -> bool:
    """What was skipped waits again, or may start if all is as asked by now. False when it is not skipped."""
    if not tx.named("reopen", id=job_id, by=by):
        return False
    wait_again(tx, job_id)
    holds.look_again(tx, job_id, by)
    return True


def skipped_by(tx: Transaction, on_id: int) -> list[int]:
    """The jobs that were skipped and came after this one, which did not end as asked."""
    sql = "SELECT d.job_id, d.mode, d.ended FROM dep d JOIN job j ON j.id = d.job_id WHERE d.on_id = ? AND j.state = 'skipped'"
    return [row[0] for row in tx.rows(sql, (on_id,)) if row[2] is None or not is_met(row[1], row[2])]


def of_jobs(tx: Transaction, ids: Sequence[int]) -> dict[int, list[dict[str, Any]]]:
    """What these jobs come after: on_id, mode, ended, and the state of each as far as it is known."""
    found: dict[int, list[dict[str, Any]]] = {}
    states: dict[int, str | None] = {}
    sql = (
        "SELECT d.job_id, CAST(d.on_id AS INTEGER) AS on_id, CAST(d.mode AS TEXT) AS mode, CAST(d.ended AS TEXT) AS ended"
        " FROM json_each(?) i JOIN dep d ON d.job_id = i.value ORDER BY d.job_id, d.on_id"
    )
    for row in tx.rows(sql, (json.dumps([*ids]),)):
        if row["on_id"] not in states:
            states[row["on_id"]] = state_of(tx, row["on_id"])
        found.setdefault(row["job_id"], []).append({**dict(row), "state": states[row["on_id"]] or row["ended"]})
    return found
