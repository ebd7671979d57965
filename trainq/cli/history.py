"""`trainq history`: every change of a job's state."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from trainq.base.errors import NoSelector
from trainq.cli.answer import Answer, Table
from trainq.cli.line import line_of
from trainq.cli.words import missing

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trainq.ops.history import History

TAKES_FILTERS = True


def run(
    ctx: typer.Context,
    selectors: Annotated[list[str] | None, typer.Argument(metavar="SEL...", help="12, last, fp:F, key:K")] = None,
) -> Answer:
    """Every change of state: when, where, why. It outlives the job's row."""
    from trainq.ops.history import history
    from trainq.ops.select import EVERYTHING

    line = line_of(ctx)
    if not selectors and not line.filters:
        raise NoSelector("of which jobs?")
    found = history(line.open_queue(), selectors or [], line.filter() if line.filters else EVERYTHING)
    ids = list(dict.fromkeys(row["job_id"] for row in found.rows))
    doc = {"items": found.items, "total": len(found.items), "truncated": False}
    if found.unknown:
        doc["unknown"] = found.unknown
    return Answer("history", doc, lambda: _table(found), ids, 7 if found.unknown else 0, missing(found.unknown))


def _table(found: History) -> Iterator[str | Table]:
    from trainq.base.units import local_short

    if not found.rows:
        yield "nothing has happened"
        return
    rows = []
    for row in found.rows:
        where = f"{row['worker']}@{row['host']}" if row["worker"] else row["by"]
        what = (row["error"] or row["message"] or _end(row)).strip().partition("\n")[0]
        values = (
            row["ref"],
            local_short(row["at"], found.now),
            row["state"],
            row["reason"],
            row["attempt"] or None,
            where,
        )
        rows.append(["" if value is None else str(value) for value in (*values, what)])
    yield Table(("job", "at", "state", "reason", "attempt", "by", "what"), rows)


def _end(row: dict[str, object]) -> str:
    if row["signal"] is not None:
        return f"signal {row['signal']}"
    return "" if row["exit_code"] is None else f"exit {row['exit_code']}"
