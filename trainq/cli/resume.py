"""`trainq resume`: open a paused queue."""

from __future__ import annotations

from typing import Annotated

import typer

from trainq.cli import changes
from trainq.cli.answer import Answer
from trainq.cli.line import line_of


def run(
    ctx: typer.Context,
    queue: Annotated[
        list[str] | None, typer.Option("--queue", metavar="Q", help="which queue; may be repeated")
    ] = None,
    all_: Annotated[bool, typer.Option("--all", help="every paused queue")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="only say what would be done")] = False,
) -> Answer:
    """Let workers claim again from a queue that people or the breaker have paused."""
    from trainq.ops.resume import resume

    done = resume(line_of(ctx).open_queue(), queue or [], all_=all_, dry_run=dry_run)
    return changes.answer(done, "is open", dry_run=dry_run, nothing="no queue is paused")
