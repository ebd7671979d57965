"""What is said of a paused queue wherever it matters, and the command that opens it: the same words everywhere."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trainq.store.queues import Closed


def sentence(name: str, closed: Closed) -> str:
    """Which queue is paused, and why."""
    if closed.reason == "breaker":
        return f"queue {name} is paused by the breaker after {closed.failures} failures in a row"
    from trainq.base import clock
    from trainq.base.units import local_short
    from trainq.base.words import printable

    who = f" by {printable(closed.by)}" if closed.by else ""
    since = "" if closed.at is None else f" since {local_short(closed.at, clock.now())}"
    return f"queue {name} is paused{who}{since}" + (f": {printable(closed.message)}" if closed.message else "")


def opens(name: str) -> str:
    """The command that opens it."""
    import shlex

    return f"trainq resume --queue {shlex.quote(name)}"


def warning(name: str, closed: Closed) -> str:
    """The sentence and the command in one line."""
    return f"{sentence(name, closed)}; {opens(name)}"
