"""What is said of a paused queue wherever it matters, and the command that opens it: the same words everywhere."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainq.base.errors import TrainqError
from trainq.store import queues

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trainq.ops.queue import Queue
    from trainq.store.queues import Closed


def sentence(name: str, closed: Closed) -> str:
    """Which queue is paused, and why."""
    if closed.reason == "breaker":
        return f"queue {name} is paused by the breaker after {closed.failures} failures in a row"
    return f"queue {name} is paused"


def opens(name: str) -> str:
    """The command that opens it."""
    import shlex

    return f"trainq resume --queue {shlex.quote(name)}"


def warning(name: str, closed: Closed) -> str:
    """The sentence and the command in one line."""
    return f"{sentence(name, closed)}; {opens(name)}"


def warnings(queue: Queue, ids: Sequence[int]) -> list[str]:
    """A line for each paused queue that one of these jobs is in. Nearly always nothing is paused, and that is cheap.

    Never fails: what it comes after is done, and that has to be told.
    """
    try:
        with queue.session.reading() as tx:
            closed = queues.closed(tx)
            if not closed:
                return []
            from trainq.store import reads

            names = dict.fromkeys(row["queue"] for row in reads.jobs(tx, ids))
    except TrainqError:
        return []  # a warning less: `status` says the same
    return [warning(name, closed[name]) for name in names if name in closed]
