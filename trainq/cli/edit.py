"""`trainq edit`: change what was asked for jobs that wait."""

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
    sets: Annotated[list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="an option of submit, such as priority=9 or time=8h; NAME= takes it away; may be repeated")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="only say what would be done")] = False,
) -> Answer:  # fmt: skip
    """Change when, where and how long jobs run that wait; what they execute stays."""
    from trainq.ops.edit import edit
    from trainq.ops.paused import warning
    from trainq.ops.select import EVERYTHING

    line = line_of(ctx)
    which = line.filter() if line.filters else EVERYTHING
    done = edit(line.open_queue(), selectors or [], sets or [], which, dry_run=dry_run)
    answer = changes.answer(done.changes, "so", dry_run=dry_run)
    return answer._replace(notes=[warning(name, closed) for name, closed in done.paused.items()])
