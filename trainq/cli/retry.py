"""`trainq retry`: run ended jobs again."""

from __future__ import annotations

from typing import Annotated

import typer

from trainq.cli import changes
from trainq.cli.answer import Answer
from trainq.cli.line import line_of

TAKES_FILTERS = True


def run(
    ctx: typer.Context,
    selectors: Annotated[
        list[str] | None, typer.Argument(metavar="[SEL]...", help="12, 12,15-20, 12[3], last, key:K")
    ] = None,
    dependants: Annotated[bool, typer.Option("--with-dependants", help="also what was skipped because of them")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="only say what would be done")] = False,
) -> Answer:  # fmt: skip
    """Run errored or canceled jobs again: the same id, one more attempt, both costs back to 0."""
    from trainq.ops.retry import retry
    from trainq.ops.select import EVERYTHING

    line = line_of(ctx)
    which = line.filter() if line.filters else EVERYTHING
    done = retry(line.open_queue(), selectors or [], which, dependants=dependants, dry_run=dry_run)
    return changes.answer(done, "waits or runs", dry_run=dry_run)
