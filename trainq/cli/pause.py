"""`trainq pause`: let nothing be claimed from a queue."""

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
    all_: Annotated[bool, typer.Option("--all", help="every queue there is now")] = False,
    message: Annotated[str | None, typer.Option("--message", "-m", metavar="TEXT", help="why; shown until it is resumed")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="only say what would be done")] = False,
) -> Answer:  # fmt: skip
    """Let no worker claim from a queue; what runs goes on."""
    from trainq.ops.pause import pause

    done = pause(line_of(ctx).open_queue(), queue or [], all_=all_, message=message, dry_run=dry_run)
    return changes.answer(done, "is paused", dry_run=dry_run)
