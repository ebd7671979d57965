"""Reading arrays: their rows with the counts of their tasks, which triggers keep, so that no task is read for a list.

A row here is one for lists too: `counts` is in it, and `state` is that of the whole.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trainq.domain.array import counts_of, state_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from trainq.domain.selectors import Filter
    from trainq.store.session import Transaction

Row = dict[str, Any]
_TYPES = {
    "count": "INTEGER", "most": "INTEGER", "name": "TEXT", "type": "TEXT", "queue": "TEXT", "priority": "INTEGER",
    "tags": "TEXT", "user": "TEXT", "user_id": "INTEGER", "at": "REAL", "ended_at": "REAL", "n": "INTEGER",
    **dict.fromkeys(("held", "open", "done", "errored", "canceled", "skipped"), "INTEGER"),
}  # fmt: skip
# What is reckoned with has the type of it, whatever another member of a group has written.
_COLUMNS = "id, submission_id, " + ", ".join(f"CAST({name} AS {kind}) AS {name}" for name, kind in _TYPES.items())
_LARGEST = 2**31


def rows(tx: Transaction, ids: Iterable[int]) -> dict[int, Row]:
    """The rows of these arrays, by number; what is none is left out."""
    running = _running(tx)
    found = (tx.one(f"SELECT {_COLUMNS} FROM job_array WHERE id = ?", (number,)) for number in ids)
    return {row["id"]: _row(row, running) for row in found if row is not None}


def next_task(tx: Transaction, row: Row) -> Any:
    """Of the tasks that wait the one that is next, else the first that is held: its id, lane and reason. None: none waits."""
    place = {"id": row["id"], "count": row["count"]}
    found: list[Any] = []
    if row["counts"]["pending"]:
        found = tx.named("next_pending_task", **place, **{name: row[name] for name in ("queue", "user_id", "priority")})
    elif row["counts"]["held"]:
        found = tx.named("next_held_task", **place)
    return found[0] if found else None


def with_next(tx: Transaction, row: Row) -> Row:
    """The row of one that waits, with the lane of its task that is next and what that is held for: so it waits itself."""
    found = next_task(tx, row) if row["state"] in ("pending", "held") else None
    return row if found is None else {**row, "lane_id": found["lane_id"], "reason": found["reason"]}


def last_ended(tx: Transaction, limit: int) -> list[Row]:
    """Those that ended last, newest first, pruned or not."""
    sql = (
        f"SELECT {_COLUMNS} FROM job_array WHERE ended_at IS NOT NULL ORDER BY job_array.ended_at DESC, id DESC LIMIT ?"
    )
    return [_row(row, {}) for row in tx.rows(sql, (limit,))]


def present(tx: Transaction, which: Filter) -> list[Row]:
    """Those that have a task with a row still and fit the filter, newest first: of its states a task must be in one."""
    running = _running(tx)
    found = [_row(row, running) for row in tx.rows(f"SELECT {_COLUMNS} FROM job_array WHERE n > 0 ORDER BY id DESC")]
    return [row for row in found if _fits(row, which)]


def numbers(tx: Transaction) -> tuple[int, int]:
    """How many arrays there are with rows of tasks still, and how many such rows they have."""
    row = tx.one("SELECT total(n > 0), total(n) FROM job_array")
    return int(row[0]), int(row[1])


def active(tx: Transaction) -> tuple[int, int]:
    """How many arrays have not ended, and how many of their tasks have not."""
    row = tx.one("SELECT count(*), total(held + open) FROM job_array WHERE ended_at IS NULL")
    return int(row[0]), int(row[1])


def between(tx: Transaction, first: int, last: int) -> list[int]:
    """The numbers of arrays in this range, rising."""
    return [row[0] for row in tx.rows("SELECT id FROM job_array WHERE id BETWEEN ? AND ? ORDER BY id", (first, last))]


def named(tx: Transaction, name: str) -> list[int]:
    """The numbers of the arrays of this name, rising."""
    return [row[0] for row in tx.rows("SELECT id FROM job_array WHERE name = ? ORDER BY id", (name,))]


def tasks(
    tx: Transaction, number: int, ranges: Sequence[tuple[int, int]] | None = None, *, past_too: bool
) -> list[int]:
    """The numbers of an array's tasks, in the order of their index; of those with these indexes (both ends in), if told."""
    count = _count(tx, number)
    if count is None:
        return []
    which, values = "id BETWEEN ? AND ? AND array_id = ?", [number + 1, number + count, number]
    if ranges is not None:
        which += " AND (" + " OR ".join(["array_index BETWEEN ? AND ?"] * len(ranges)) + ")"
        values += [end for one in ranges for end in one]
    found = [row[0] for row in tx.rows(f"SELECT id FROM job WHERE {which}", values)]
    if past_too:
        found += [row[0] for row in tx.rows(f"SELECT id FROM past WHERE {which}", values)]
    return sorted(found)


def one_in(tx: Transaction, number: int, state: str) -> int | None:
    """The first of its tasks that is in this state, pruned or not."""
    sql = " UNION ALL ".join(
        f"SELECT id FROM {table} WHERE id BETWEEN ?1 + 1 AND ?1 + (SELECT count FROM job_array WHERE id = ?1)"
        " AND array_id = ?1 AND state = ?2"
        for table in ("job", "past")
    )
    found: int | None = tx.value(f"{sql} ORDER BY id LIMIT 1", (number, state))
    return found


def shown(tx: Transaction, number: int, limit: int) -> list[int]:
    """Its tasks as a card shows them: what runs, what went wrong and what waits before what is done."""
    count = _count(tx, number)
    order = "CASE state " + " ".join(f"WHEN '{word}' THEN {place}" for place, word in enumerate(_ORDER)) + " END"
    sql = " UNION ALL ".join(
        f"SELECT id, state FROM {table} WHERE id BETWEEN ?1 AND ?2 AND array_id = ?3" for table in ("job", "past")
    )
    values = (number + 1, number + (count or 0), number, limit)
    return [row[0] for row in tx.rows(f"SELECT id FROM ({sql}) ORDER BY {order}, id LIMIT ?4", values)]


_ORDER = ("running", "errored", "held", "pending", "canceled", "skipped", "done")


def has_model(tx: Transaction, row: Row) -> bool:
    """Whether a model of one of its tasks is there still."""
    sql = "SELECT EXISTS(SELECT 1 FROM model WHERE job_id BETWEEN ? AND ?)"
    return bool(tx.value(sql, (row["id"] + 1, row["id"] + row["count"])))


def _count(tx: Transaction, number: int) -> int | None:
    """How many numbers after its own belong to an array; None: there is no such array."""
    found = tx.value("SELECT CAST(count AS INTEGER) FROM job_array WHERE id = ?", (number,))
    return None if found is None else min(found, _LARGEST)


def _running(tx: Transaction) -> dict[int, int]:
    return {row[0]: row[1] for row in tx.named("running_tasks")}


def _row(row: Any, running: dict[int, int]) -> Row:
    row = {**dict(row), "count": min(row["count"], _LARGEST)}
    counts = counts_of(row, running.get(row["id"], 0))
    return {**row, "counts": counts, "state": state_of(counts), "submitted_at": row["at"], "reason": None}


def _fits(row: Row, which: Filter) -> bool:
    return (
        (not which.state or any(row["counts"][state] for state in which.state))
        and (not which.queue or row["queue"] in which.queue)
        and (not which.user or row["user"] in which.user)
        and (not which.type or row["type"] in which.type)
        and (not which.tag or any(f",{tag}," in (row["tags"] or "") for tag in which.tag))
        and (which.since is None or row["at"] >= which.since)
        and (which.before is None or row["at"] < which.before)
    )
