"""Wait until jobs have ended or run. Looks only when somebody has committed; a wake-up that is lost costs one look."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple

from trainq.base.errors import TimedOut
from trainq.domain.states import ENDED
from trainq.ops.select import EVERYTHING, select
from trainq.store import reads

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from trainq.domain.selectors import Filter
    from trainq.ops.queue import Queue
    from trainq.ops.select import Selected
    from trainq.store.reads import Row

NO_VERDICT = 125
TIMED_OUT = 124


class Waited(NamedTuple):
    """The jobs waited for, as they are now, and the words that named none."""

    rows: list[Row]
    unknown: list[str]
    arrays: tuple[int, ...] = ()  # those that were named as a whole


def wait(
    queue: Queue, words: Sequence[str], which: Filter = EVERYTHING, *, state: str = "ended", any_: bool = False,
    timeout_s: float | None = None, on_look: Callable[[list[Row]], None] | None = None,
    on_found: Callable[[Selected], None] = lambda _found: None,
) -> Waited:  # fmt: skip
    """Wait until all (`any_`: one) of the selected jobs have ended, or (`state="running"`) have started.

    Pruned jobs have ended. `on_found` hears once which jobs are waited for, before any wait; `on_look` is called at each
    look with the rows of all, as they were after the last commit. Raises NotFound, TimedOut.
    """
    session = queue.session
    end = None if timeout_s is None else time.monotonic() + timeout_s
    with session.reading() as tx:
        found = select(tx, words, which, queue.actor.user_id, past=True)
    on_found(found)
    there = (*ENDED, "running") if state == "running" else ENDED
    seen = -1
    left: Sequence[int] = found.ids
    rows: list[Row] = []
    while True:
        changes = session.changes()
        if changes != seen:
            seen = changes
            left = _left(queue, left, there)
            if on_look is not None:
                rows = _rows(queue, found.ids)
        if on_look is not None:
            on_look(rows)
        if not left or (any_ and len(left) < len(found.ids)):
            rows = _rows(queue, found.ids)
            left = [row["id"] for row in rows if row["state"] not in there]  # with what was retried meanwhile
            if not left or (any_ and len(left) < len(rows)):
                return Waited(rows, found.unknown, found.arrays)
        if end is not None and time.monotonic() >= end:
            raise TimedOut(
                f"still waiting for {len(left)} of {len(found.ids)} jobs after {timeout_s:g} s:"
                f" {', '.join(map(str, left[:5]))}",
                hint=f"trainq status {left[0]}",
            )
        time.sleep(session.look_s if end is None else max(0.0, min(session.look_s, end - time.monotonic())))


def _left(queue: Queue, ids: Sequence[int], there: Collection[str]) -> list[int]:
    """Those of them that are waited for still; a job that has no row any more has ended. What is there is not looked at
    again before the rest is, so that a look costs what is left, not what was asked for."""
    with queue.session.reading() as tx:
        states = reads.states(tx, ids)
    return [number for number in ids if number in states and states[number] not in there]


def _rows(queue: Queue, ids: Sequence[int]) -> list[Row]:
    with queue.session.reading() as tx:
        rows = reads.jobs(tx, ids)
        there = {row["id"] for row in rows}
        return rows + reads.past(tx, [number for number in ids if number not in there])


OWN_ENDS = ("exit", "signal", "spawn", "import", "oom", "requeue_loop")
"""The reasons of ends that are the program's own, or its failed start, and not somebody's verdict on it."""


def job_code(row: Row) -> int:
    """The exit status that tells exactly how a job ended: its own code, 128+N for signal N, 124 for its time limit,
    126 and 127 for a program that cannot be executed or is not there, 125 for every other end."""
    if row["state"] == "done":
        return 0
    if row["reason"] == "timeout":
        return TIMED_OUT
    if row["state"] != "errored" or row["reason"] not in OWN_ENDS:
        return NO_VERDICT
    if row["signal"] is not None:
        return 128 + int(row["signal"])
    return NO_VERDICT if row["exit_code"] is None else int(row["exit_code"])
