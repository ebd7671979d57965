"""`trainq hold`: keep jobs from starting."""

from __future__ import annotations

from typing import Annotated

import typer

from trainq.cli import changes
from trainq.cli.answer import Answer
from trainq.cli.line import line_of

TAKES_FILTERS = True


def run(
    ctx: typer.Context,
    selectors: Annotated[list[str] | None, typer.Argument(metavar="[SEL]...", help="12, 12,15-20, last, key:K")] = None,
    message: Annotated[str | None, typer.Option("--message", "-m", metavar="TEXT", help="why; kept in the history")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="only say what would be done")] = False,
) -> Answer:  # fmt: skip
    """Keep jobs that wait from starting, until they are released."""
    from trainq.ops.hold import hold
    from trainq.ops.select import EVERYTHING

    line = line_of(ctx)
    which = line.filter() if line.filters else EVERYTHING
    done = hold(line.open_queue(), selectors or [], which, message=message, dry_run=dry_run)
    return changes.answer(done, "on hold", dry_run=dry_run)
