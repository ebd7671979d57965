"""Reading for people and programs: rows of jobs, of what is left of pruned ones, of attempts, and counts.

Nothing here writes. A list costs the same with a thousand jobs as with a million: newest first goes down the primary
key, what is active and what ended last go down the partial indexes (their states must be spelled out in the text, or
SQLite does not see that they fit), and totals come from the table of counts wherever it can tell them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from trainq.domain.states import ENDED, State
from trainq.store import arrays

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from trainq.domain.selectors import Filter
    from trainq.store.session import Transaction

Row = dict[str, Any]

_JOB: Final = (
    "SELECT j.*, s.uid AS call_uid, s.first_id, s.host AS submit_host, s.count AS call_count"
    " FROM job j JOIN submission s ON s.id = j.submission_id"
)
_PAST: Final = "SELECT p.*, s.host AS submit_host, s.count AS call_count FROM past p LEFT JOIN submission s ON s.id = p.submission_id"
_BATCH: Final = 500
_MOST: Final = 2**62
SORTS: Final = {
    "id": "j.id", "name": "j.name", "state": "j.state", "queue": "j.queue", "user": "j.user", "type": "j.type",
    "priority": "j.priority", "submitted": "j.submitted_at", "started": "j.started_at", "ended": "j.ended_at",
    "progress": "j.fraction", "attempt": "j.attempt",
}  # fmt: skip


def jobs(tx: Transaction, ids: Sequence[int]) -> list[Row]:
    """The rows of these jobs, in the order of the ids; those without a row are left out."""
    return _in_order(ids, _many(tx, f"{_JOB} WHERE j.id", ids))


def owned(tx: Transaction, ids: Sequence[int]) -> dict[int, Row]:
    """Of these jobs what a change must know: state, attempt, key, fingerprint, whose it is, what its uid is made of."""
    sql = (
        "SELECT j.id, j.state, j.attempt, j.key, j.fingerprint, j.user, j.user_id, j.array_id, j.array_index,"
        " s.uid AS call_uid, s.first_id"
        " FROM job j JOIN submission s ON s.id = j.submission_id WHERE j.id"
    )
    return {row["id"]: dict(row) for row in _many(tx, sql, ids)}


def holding(tx: Transaction, ids: Sequence[int]) -> dict[int, Row]:
    """Of these jobs what who holds or releases them must know."""
    sql = "SELECT id, state, on_hold, user, user_id, array_id, array_index FROM job WHERE id"
    return {row["id"]: dict(row) for row in _many(tx, sql, ids)}


def states(tx: Transaction, ids: Sequence[int]) -> dict[int, str]:
    """The states of these jobs; those without a row are left out."""
    return {row["id"]: row["state"] for row in _many(tx, "SELECT id, state FROM job WHERE id", ids)}


def past(tx: Transaction, ids: Sequence[int]) -> list[Row]:
    """What is left of pruned jobs, in the order of the ids."""
    return _in_order(ids, _many(tx, f"{_PAST} WHERE p.id", ids))


def newest(
    tx: Transaction, which: Filter, sort: str | None = None, limit: int | None = None, *, plain: bool = False
) -> list[Row]:
    """Jobs that fit the filter, newest first or by a column of `SORTS` (a leading `-` turns it round); `plain`: no tasks
    of arrays."""
    where, values = _where(which)
    where += " AND j.array_id IS NULL" if plain else ""
    order = "j.id DESC"
    if sort:
        order = f"{SORTS[sort.lstrip('-')]} {'DESC' if sort.startswith('-') else 'ASC'}, j.id"
    sql = f"{_JOB} WHERE {where} ORDER BY {order} LIMIT ?"
    return [dict(row) for row in tx.rows(sql, [*values, -1 if limit is None else limit])]


def running(tx: Transaction, limit: int) -> list[Row]:
    """Jobs that run, oldest first."""
    return _active(tx, "job_open", "j.state = 'running' ORDER BY j.id", limit)


def newest_folded(tx: Transaction, limit: int | None) -> list[Row]:
    """Jobs and arrays, newest first."""
    return _folded(tx, tx.named("newest", limit=_MOST if limit is None else limit))


def active_folded(tx: Transaction, limit: int) -> list[Row]:
    """What runs, then what waits as in `waiting`, an array where the first of its tasks stands."""
    sql = "SELECT id, array_id FROM job INDEXED BY job_open WHERE state = 'running' ORDER BY id"
    found = list(tx.rows(sql))
    if len(found) < limit:
        found += tx.named("next_waiting", limit=limit, folded=1)
        found += tx.named("next_held", limit=limit, folded=1)
    return _folded(tx, found, limit)


def _folded(tx: Transaction, found: Iterable[Any], limit: int | None = None) -> list[Row]:
    """The rows of these (id, array_id): of a job, or of the array whose task it is."""
    places = list(dict.fromkeys((row[0], False) if row[1] is None else (row[1], True) for row in found))[:limit]
    plain = {row["id"]: row for row in jobs(tx, [number for number, is_array in places if not is_array])}
    whole = arrays.rows(tx, [number for number, is_array in places if is_array])
    return [row for number, is_array in places if (row := (whole if is_array else plain).get(number)) is not None]


def is_running(tx: Transaction, job_id: int, attempt: int) -> bool:
    """Whether this very attempt runs."""
    sql = "SELECT 1 FROM job WHERE id = ? AND attempt = ? AND state = 'running'"
    return tx.value(sql, (job_id, attempt)) is not None


def waiting(tx: Transaction, limit: int) -> list[Row]:
    """Jobs that may start, in the order in which they will where room is for all, then those that are held."""
    found = jobs(tx, [row["id"] for row in tx.named("next_waiting", limit=limit, folded=0)])
    held = _active(tx, "job_held", "j.state = 'held' ORDER BY j.id", limit)
    return (found + held)[:limit]


def _active(tx: Transaction, index: str, where: str, limit: int, *values: Any) -> list[Row]:
    sql = _JOB.replace("FROM job j", f"FROM job j INDEXED BY {index}") + f" WHERE {where} LIMIT ?"
    return [dict(row) for row in tx.rows(sql, (*values, limit))]


def last_ended(tx: Transaction, limit: int) -> list[Row]:
    """What ended last, newest first, pruned or not; an array with the last of its tasks."""
    sql = (
        _JOB.replace("FROM job j", "FROM job j INDEXED BY job_ended")
        + f" WHERE j.ended_at IS NOT NULL AND j.state IN ({_spelled(ENDED)}) AND j.array_id IS NULL ORDER BY j.ended_at DESC, j.id DESC LIMIT ?"
    )
    found = [dict(row) for row in tx.rows(sql, (limit,))]
    past = f"{_PAST} WHERE p.array_id IS NULL ORDER BY p.ended_at DESC, p.id DESC LIMIT ?"
    found += [dict(row) for row in tx.rows(past, (limit,))]
    found += arrays.last_ended(tx, limit)
    found.sort(key=lambda row: (-row["ended_at"], -row["id"]))
    return found[:limit]


def counts(tx: Transaction) -> list[tuple[str, str, int]]:
    """(queue, state, how many), from the table that triggers keep."""
    return [(row[0], row[1], row[2]) for row in tx.rows("SELECT queue, state, n FROM counts ORDER BY queue, state")]


def count(tx: Transaction, which: Filter, *, plain: bool = False) -> int:
    """How many jobs fit the filter; from the table of counts when it only names states and queues. `plain`: no tasks."""
    if plain and arrays.numbers(tx)[0]:
        where, values = _where(which)
        if where == "1":
            return sum(n for _, _, n in counts(tx)) - arrays.numbers(tx)[1]
        return int(tx.value(f"SELECT count(*) FROM job j WHERE {where} AND j.array_id IS NULL", values))
    if which.user or which.tag or which.type or which.since is not None or which.before is not None:
        where, values = _where(which)
        return int(tx.value(f"SELECT count(*) FROM job j WHERE {where}", values))
    return sum(
        n for queue, state, n in counts(tx)
        if (not which.state or state in which.state) and (not which.queue or queue in which.queue)
    )  # fmt: skip


def count_past(tx: Transaction) -> int:
    """How many pruned jobs are remembered."""
    return int(tx.value("SELECT count(*) FROM past"))


def fitting(tx: Transaction, which: Filter) -> list[int]:
    """Ids of the jobs that fit the filter, rising."""
    where, values = _where(which)
    return [row[0] for row in tx.rows(f"SELECT j.id FROM job j WHERE {where} ORDER BY j.id", values)]


def ids_between(tx: Transaction, first: int, last: int, *, past_too: bool) -> list[int]:
    """Ids of the jobs from `first` to `last`, rising."""
    sql = "SELECT id FROM job WHERE id BETWEEN ?1 AND ?2"
    if past_too:
        sql += " UNION SELECT id FROM past WHERE id BETWEEN ?1 AND ?2"
    return [row[0] for row in tx.rows(f"{sql} ORDER BY id", (first, last))]


def ids_with(tx: Transaction, column: str, value: str, *, past_too: bool) -> list[int]:
    """Ids of the jobs with this `key` or `name`, or whose `fingerprint` begins so; rising."""
    where = f"{column} = ?1"
    if column == "fingerprint":
        where = "fingerprint >= ?1 AND fingerprint < ?1 || 'g'"
    sql = f"SELECT id FROM job WHERE {where}"
    if past_too:
        sql += f" UNION SELECT id FROM past WHERE {where}"
    return [row[0] for row in tx.rows(f"{sql} ORDER BY id", (value,))]


def submission(tx: Transaction, user_id: int, back: int) -> range | None:
    """The ids of a submit call of this user, so many before the last one."""
    sql = "SELECT first_id, count FROM submission WHERE user_id = ? ORDER BY id DESC LIMIT 1 OFFSET ?"
    row = tx.one(sql, (user_id, back))
    return None if row is None else range(row[0], row[0] + row[1])


def specs(tx: Transaction, ids: Sequence[int]) -> dict[int, str]:
    """The JSON documents of what is executed, by job."""
    return {
        row["job_id"]: row["doc"]
        for row in _many(tx, "SELECT job_id, CAST(doc AS TEXT) AS doc FROM spec WHERE job_id", ids)
    }


def environ(tx: Transaction, job_id: int) -> str | None:
    """The JSON document of the environment a job was submitted with."""
    sql = (
        "SELECT e.doc FROM job j JOIN submission s ON s.id = j.submission_id JOIN environ e ON e.id = s.environ_id"
        " WHERE j.id = ?"
    )
    found: str | None = tx.value(sql, (job_id,))
    return found


def data_sets(tx: Transaction, ids: Sequence[int]) -> dict[int, list[Row]]:
    """Name, digest and size of the training sets, by job."""
    sql = "SELECT n.job_id, n.name, d.sha256, d.size FROM job_data n JOIN data d ON d.id = n.data_id WHERE n.job_id"
    return _grouped(_many(tx, sql, ids))


def attempts(tx: Transaction, ids: Sequence[int]) -> dict[int, list[Row]]:
    """The records of ended attempts (rows of history that left `running`), oldest first, by job."""
    found = _grouped(_many(tx, "SELECT * FROM event WHERE claimed_at IS NOT NULL AND job_id", ids))
    for rows in found.values():
        rows.sort(key=lambda row: row["n"])
    return found


def end_of(tx: Transaction, job_id: int, attempt: int) -> Any:
    """When and how an attempt ended (at, state, reason); None while it runs, or when that is not remembered."""
    sql = "SELECT at, state, reason FROM event WHERE job_id = ? AND attempt = ? AND claimed_at IS NOT NULL"
    return tx.one(sql, (job_id, attempt))


def history(tx: Transaction, ids: Sequence[int]) -> list[Row]:
    """Every change of these jobs, job by job in the order of the ids and oldest first."""
    found = _grouped(_many(tx, "SELECT * FROM history WHERE job_id", ids))
    return [row for number in ids for row in sorted(found.get(number, ()), key=lambda row: row["n"])]


def tasks_among(tx: Transaction, ids: Sequence[int]) -> dict[int, Row]:
    """Those of these jobs that are tasks of arrays, pruned or not: id, array_id and array_index."""
    sql = "SELECT id, array_id, array_index FROM {} WHERE array_id IS NOT NULL AND id"
    return {row["id"]: dict(row) for table in ("past", "job") for row in _many(tx, sql.format(table), ids)}


def position(tx: Transaction, row: Row) -> int:
    """The place of a pending job in its queue; 1 is next."""
    found = tx.named("position", queue=row["queue"], priority=row["priority"], id=row["id"])
    return int(found[0][0])


def newest_ids(tx: Transaction, limit: int) -> list[Row]:
    """Id, name and state of the newest jobs and arrays, for completion."""
    return newest_folded(tx, limit)


def newest_keys(tx: Transaction, limit: int) -> list[str]:
    """Keys of the newest jobs that have one, for completion."""
    sql = "SELECT key FROM job WHERE key IS NOT NULL ORDER BY id DESC LIMIT ?"
    return list(dict.fromkeys(row[0] for row in tx.rows(sql, (limit,))))


def facts(tx: Transaction) -> dict[str, str]:
    """What is written of the queue itself: uuid, mode, when it was made."""
    return {row[0]: row[1] for row in tx.rows("SELECT k, v FROM meta")}


def engine(tx: Transaction) -> dict[str, Any]:
    """The version of SQLite, the schema's number, and how the file is used, for doctor."""
    return {
        "sqlite": tx.value("SELECT sqlite_version()"),
        "schema": tx.value("PRAGMA user_version"),
        "journal": tx.value("PRAGMA journal_mode"),
    }


def tables(tx: Transaction) -> list[str]:
    """The names of all tables."""
    return [row[0] for row in tx.rows("SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY name")]


def integrity(tx: Transaction, table: str | None = None) -> list[str]:
    """What SQLite's quick check says is wrong, of one table or of all and the free pages; empty when nothing is."""
    what = "10" if table is None else '"' + table.replace('"', '""') + '"'
    return [row[0] for row in tx.rows(f"PRAGMA quick_check({what})") if row[0] != "ok"][:10]


def _where(which: Filter) -> tuple[str, list[Any]]:
    parts = ["1"]
    values: list[Any] = []
    if which.state:
        parts.append(f"j.state IN ({_spelled(which.state)})")
    for column, words in (("queue", which.queue), ("user", which.user), ("type", which.type)):
        if words:
            parts.append(f"j.{column} IN ({','.join('?' * len(words))})")
            values += words
    if which.tag:
        parts.append("(" + " OR ".join(["instr(j.tags, ?)"] * len(which.tag)) + ")")
        values += [f",{tag}," for tag in which.tag]
    for bound, operator in ((which.since, ">="), (which.before, "<")):
        if bound is not None:
            parts.append(f"j.submitted_at {operator} ?")
            values.append(bound)
    return " AND ".join(parts), values


def _spelled(states: Iterable[State]) -> str:
    return ",".join(f"'{state}'" for state in states)


def _many(tx: Transaction, sql: str, ids: Sequence[int]) -> Iterator[Any]:
    """Run `sql` + `IN (…)` for all ids, a bounded number at a time."""
    for start in range(0, len(ids), _BATCH):
        batch = ids[start : start + _BATCH]
        yield from tx.rows(f"{sql} IN ({','.join('?' * len(batch))})", batch)


def _in_order(ids: Sequence[int], rows: Iterable[Any]) -> list[Row]:
    found = {row["id"]: dict(row) for row in rows}
    return [found[number] for number in ids if number in found]


def _grouped(rows: Iterable[Any]) -> dict[int, list[Row]]:
    groups: dict[int, list[Row]] = {}
    for row in rows:
        groups.setdefault(row["job_id"], []).append(dict(row))
    return groups
