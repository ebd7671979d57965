"""`trainq resume`: open a paused queue, or let frozen jobs go on."""

from __future__ import annotations

from typing import Annotated

import typer

from trainq.cli import changes
from trainq.cli.answer import Answer
from trainq.cli.line import line_of
from trainq.cli.pause import is_of_jobs


def run(
    ctx: typer.Context,
    selectors: Annotated[list[str] | None, typer.Argument(metavar="[SEL]...", help="paused jobs: 12, 12,15-20, last, key:K")] = None,
    queue: Annotated[
        list[str] | None, typer.Option("--queue", metavar="Q", help="which queue; may be repeated")
    ] = None,
    all_: Annotated[bool, typer.Option("--all", help="every paused queue")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="only say what would be done")] = False,
) -> Answer:  # fmt: skip
    """Let paused jobs go on, or workers claim again from a queue that people or the breaker have paused."""
    if is_of_jobs("resume", selectors, queue, all_=all_):
        from trainq.ops.freeze import thaw

        return changes.answer(
            thaw(line_of(ctx).open_queue(), selectors or [], dry_run=dry_run), "goes on", dry_run=dry_run
        )
    from trainq.ops.resume import resume

    done = resume(line_of(ctx).open_queue(), queue or [], all_=all_, dry_run=dry_run)
    return changes.answer(done, "is open", dry_run=dry_run, nothing="no queue is paused")
