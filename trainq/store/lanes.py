"""The rows of lanes: which jobs are the same to the scheduler, which of them is next, and what runs where.

A row never changes and its number is never used again, so a worker remembers those it has read. One that trainq cannot
have written, on a group's queue, is passed over: its jobs wait.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from trainq.domain.schedule import Head, Kept, Lane, Running
from trainq.domain.shape import decoded

if TYPE_CHECKING:
    from collections.abc import Iterable

    from trainq.domain.schedule import Among
    from trainq.store.session import Transaction


def intern(tx: Transaction, queue: str, user_id: int, shape: str, array_id: int = 0, most: int | None = None) -> int:
    """The number of the lane of these jobs; made, if it is the first of them. `shape` is its canonical text."""
    key = (queue, user_id, shape, array_id)
    tx.rows(
        "INSERT INTO lane(queue, user_id, shape, array_id, most) VALUES(?, ?, ?, ?, ?)"
        " ON CONFLICT(queue, user_id, shape, array_id) DO NOTHING",
        (*key, most),
    )
    sql = "SELECT id FROM lane WHERE queue = ? AND user_id = ? AND shape = ? AND array_id = ?"
    return int(tx.value(sql, key))


def join(tx: Transaction, lane_id: int, jobs: int) -> None:
    """So many jobs were put into a lane; what moves or goes is counted by triggers."""
    tx.rows("UPDATE lane SET n = n + ? WHERE id = ?", (jobs, lane_id))


def newer(tx: Transaction, than: int) -> list[Any]:
    """The rows after a number."""
    return tx.rows("SELECT id, queue, user_id, shape, array_id, most FROM lane WHERE id > ? ORDER BY id", (than,))


def newest(tx: Transaction) -> tuple[int, bool]:
    """The highest number of a lane, 0: there are none; and whether any queue is paused. Asked in each turn."""
    row = tx.one("SELECT (SELECT max(id) FROM lane), EXISTS(SELECT 1 FROM queue WHERE paused_at IS NOT NULL)")
    return row[0] or 0, bool(row[1])


def count(tx: Transaction) -> int:
    """How many lanes there are."""
    return int(tx.value("SELECT count(*) FROM lane"))


def lane_of(row: Any) -> Lane | None:
    """The lane of a row; None for one that trainq has not written."""
    number, queue, user_id, text, array_id, most = row
    shape = decoded(text) if isinstance(text, str) else None
    whole = all(type(one) is int for one in (user_id, array_id, most or 0))
    if shape is None or not isinstance(queue, str) or not whole:
        return None
    return Lane(number, queue, user_id, shape, array_id or None, most)


def every(tx: Transaction) -> list[Lane]:
    """All lanes."""
    return [lane for row in newer(tx, 0) if (lane := lane_of(row)) is not None]


def heads(tx: Transaction, lanes: Among) -> list[Head]:
    """The next job of each of these lanes, where there is one: steps down the index alone."""
    return [Head(*row) for row in tx.named("heads", lanes=lanes.numbers) if row[2] is not None]


def first_head(tx: Transaction, lanes: Among) -> list[Head]:
    """Of the same the one that is first by priority and age; none, where nobody waits."""
    return [Head(*row) for row in tx.named("first_head", lanes=lanes.numbers) if row[2] is not None]


def of_pending(tx: Transaction, ids: Iterable[int]) -> dict[int, int]:
    """The lanes of those of these jobs that wait."""
    sql = "SELECT lane_id FROM job WHERE id = ? AND state = 'pending'"
    return {number: lane_id for number in ids if (lane_id := tx.value(sql, (number,))) is not None}


def running(tx: Transaction) -> list[Running]:
    """What runs anywhere."""
    return [Running(*row) for row in tx.named("running")]


def overdue(tx: Transaction, lanes: Iterable[Lane], waited_s: float) -> list[Kept]:
    """The heads of these lanes that could have started for so long, longest first."""
    by_id = {lane.id: lane for lane in lanes}
    numbers = json.dumps([*by_id])
    rows = tx.named("overdue", lanes=numbers, before=tx.now - waited_s)
    return [Kept(row["id"], by_id[row["lane_id"]]) for row in rows]


def forget(tx: Transaction) -> int:
    """Delete the lanes no job is in; how many."""
    return tx.changed("DELETE FROM lane WHERE n <= 0")
