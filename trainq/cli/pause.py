"""`trainq pause`: let nothing be claimed from a queue, or running jobs stand still."""

from __future__ import annotations

from typing import Annotated

import typer

from trainq.base.errors import Usage
from trainq.cli import changes
from trainq.cli.answer import Answer
from trainq.cli.line import line_of


def run(
    ctx: typer.Context,
    selectors: Annotated[list[str] | None, typer.Argument(metavar="[SEL]...", help="running jobs: 12, 12,15-20, last, key:K")] = None,
    queue: Annotated[
        list[str] | None, typer.Option("--queue", metavar="Q", help="which queue; may be repeated")
    ] = None,
    all_: Annotated[bool, typer.Option("--all", help="every queue there is now")] = False,
    message: Annotated[str | None, typer.Option("--message", "-m", metavar="TEXT", help="why; shown, or kept in the history")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="only say what would be done")] = False,
) -> Answer:  # fmt: skip
    """Freeze running jobs, whose limits stand still, too; or let no worker claim from a queue, where what runs goes on."""
    if not is_of_jobs("pause", selectors, queue, all_=all_):
        from trainq.ops.pause import pause

        done = pause(line_of(ctx).open_queue(), queue or [], all_=all_, message=message, dry_run=dry_run)
    else:
        from trainq.ops.freeze import freeze

        done = freeze(line_of(ctx).open_queue(), selectors or [], message=message, dry_run=dry_run)
    return changes.answer(done, "is paused", dry_run=dry_run)


def is_of_jobs(verb: str, selectors: list[str] | None, queues: list[str] | None, *, all_: bool) -> bool:
    """Whether jobs are meant, and not queues. Raises Usage for both and for none."""
    if bool(selectors) == bool(queues or all_):
        what = "jobs or queues, not both" if selectors else "what?"
        raise Usage(f"{verb}: {what}", hint=f"trainq {verb} 12, or --queue Q, or --all")
    return bool(selectors)
