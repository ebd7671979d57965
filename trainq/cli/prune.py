"""`trainq prune`: the janitor, one pass."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from trainq.base.errors import Usage
from trainq.cli.answer import Answer
from trainq.cli.changes import item_of
from trainq.cli.line import line_of
from trainq.cli.words import counted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trainq.ops.janitor import Pass

TAKES_FILTERS = True
SHOWN = 20


def run(
    ctx: typer.Context,
    selectors: Annotated[list[str] | None, typer.Argument(metavar="[SEL]...", help="these ended jobs now, logs included")] = None,
    older_than: Annotated[str | None, typer.Option("--older-than", metavar="T", help="rows of jobs that ended so long ago, instead of [keep] jobs; if shorter, of your own")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="only say what would be done")] = False,
) -> Answer:  # fmt: skip
    """One pass of the janitor, made for cron: take back what is lost, delete what is past its age. Models stay."""
    from trainq.base.units import duration
    from trainq.ops import janitor

    line = line_of(ctx)
    age_s = None if older_than is None else duration(older_than)
    queue = line.open_queue()
    if selectors or line.filters:
        if older_than is not None:
            raise Usage("--older-than is for a pass over everything, not for named jobs")
        from trainq.ops.select import EVERYTHING

        which = line.filter() if line.filters else EVERYTHING
        done = janitor.prune_selected(queue, selectors or [], which, dry_run=dry_run)
    else:
        done = janitor.prune(queue, older_than_s=age_s, dry_run=dry_run)
    return _answer(done, dry_run=dry_run)


def _answer(done: Pass, *, dry_run: bool) -> Answer:
    doc: dict[str, Any] = {
        "items": [item_of(change) for change in done.changes],
        "removed": done.removed,
        "trouble": done.trouble,
        "dry_run": dry_run,
    }
    from trainq.ops.janitor import BUSY

    ids = [change.id for change in done.changes if change.result == "removed"]
    code = 0
    if any(change.result in ("unknown", "refused", "denied") for change in done.changes):
        code = 7
    elif done.trouble and done.trouble != [BUSY]:
        code = 1
    return Answer("changes", doc, lambda: _text(done, dry_run=dry_run), ids, code, done.trouble)


def _text(done: Pass, *, dry_run: bool) -> Iterator[str]:
    would = "would be " if dry_run else ""
    by_result: dict[str, list[Any]] = {}
    for change in done.changes:
        by_result.setdefault(change.result, []).append(change)
    for result, changes in by_result.items():
        if len(changes) > SHOWN and result == "removed":
            yield f"{counted(len(changes), 'job')} {would}removed"
            continue
        for change in changes:
            yield f"{change.id} {would}{result}" + (f": {change.error}" if change.error else "")
    for what, number in done.removed.items():
        yield f"{number} {what} {would}removed"
    if not done.changes and not done.removed:
        yield "nothing to do"
