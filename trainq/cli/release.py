"""`trainq release`: let held jobs start again."""

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
    dry_run: Annotated[bool, typer.Option("--dry-run", help="only say what would be done")] = False,
) -> Answer:
    """Take off the hold of `hold` or `submit --hold`. What else a job waits for, it waits for still."""
    from trainq.ops.hold import release
    from trainq.ops.select import EVERYTHING

    line = line_of(ctx)
    which = line.filter() if line.filters else EVERYTHING
    done = release(line.open_queue(), selectors or [], which, dry_run=dry_run)
    return changes.answer(done, "on no hold", dry_run=dry_run)
