"""`trainq cancel`: cancel jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from trainq.cli import changes
from trainq.cli.answer import Answer
from trainq.cli.line import line_of

if TYPE_CHECKING:
    from trainq.ops.change import Change
    from trainq.ops.queue import Queue

TAKES_FILTERS = True


def run(
    ctx: typer.Context,
    selectors: Annotated[list[str] | None, typer.Argument(metavar="[SEL]...", help="12, 12,15-20, 12[3], last, key:K")] = None,
    wait: Annotated[bool, typer.Option("--wait", help="until what runs has ended")] = False,
    timeout: Annotated[str | None, typer.Option("--timeout", metavar="T", help="wait at most so long; then it exits 5")] = None,
    now: Annotated[bool, typer.Option("--now", help="kill at once, without the grace")] = False,
    message: Annotated[str | None, typer.Option("--message", "-m", metavar="TEXT", help="why; kept in the history")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="only say what would be done")] = False,
) -> Answer:  # fmt: skip
    """Cancel jobs: what waits at once; what runs gets TERM, the grace, then KILL, the whole process tree."""
    from trainq.base.units import duration
    from trainq.ops.cancel import cancel
    from trainq.ops.select import EVERYTHING

    line = line_of(ctx)
    timeout_s = None if timeout is None else duration(timeout)
    which = line.filter() if line.filters else EVERYTHING
    queue = line.open_queue()
    done = cancel(queue, selectors or [], which, now=now, message=message, dry_run=dry_run)
    if (wait or timeout is not None) and not dry_run:
        done = _await(queue, done, timeout_s)
    return changes.answer(done, "canceled", dry_run=dry_run)


def _await(queue: Queue, done: list[Change], timeout_s: float | None) -> list[Change]:
    """The changes once those that were canceling have ended."""
    from trainq.ops.wait import wait

    words = [str(change.id) for change in done if change.result == "canceling"]
    if not words:
        return done
    ended = {row["id"]: row["state"] for row in wait(queue, words, timeout_s=timeout_s).rows}
    return [
        change._replace(result="canceled" if ended[change.id] == "canceled" else "ended")
        if change.result == "canceling" and change.id in ended
        else change
        for change in done
    ]
