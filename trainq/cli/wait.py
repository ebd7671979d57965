"""`trainq wait`: wait until jobs have ended or run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from trainq.base.errors import BadValue, NoSelector, Usage
from trainq.cli.answer import Answer, Table
from trainq.cli.line import line_of
from trainq.cli.words import missing
from trainq.domain.array import ref_of
from trainq.domain.states import ENDED

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from trainq.ops.select import Selected
    from trainq.store.reads import Row

TAKES_FILTERS = True
TOLD = 5


def run(
    ctx: typer.Context,
    selectors: Annotated[list[str] | None, typer.Argument(metavar="[SEL]...", help="12, 12,15-20, 12[3], last, key:K")] = None,
    for_: Annotated[str, typer.Option("--for", metavar="ended|running", help="what to wait for")] = "ended",
    any_: Annotated[bool, typer.Option("--any", help="until one of them has, not all")] = False,
    timeout: Annotated[str | None, typer.Option("--timeout", metavar="T", help="at most so long; then it exits 5")] = None,
    exit_code: Annotated[str, typer.Option("--exit-code", metavar="any|job", help="job: the job's own exit status")] = "any",
) -> Answer:  # fmt: skip
    """Wait until jobs have ended. Exits 0 if all are done, else 1."""
    from trainq.base.units import duration
    from trainq.ops.select import EVERYTHING
    from trainq.ops.wait import wait

    line = line_of(ctx)
    _one_of("--for", for_, ("ended", "running"))
    _one_of("--exit-code", exit_code, ("any", "job"))
    if not selectors and not line.filters:
        raise NoSelector("wait for which jobs?")
    timeout_s = None if timeout is None else duration(timeout)
    queue = line.open_queue()
    which = line.filter() if line.filters else EVERYTHING

    def go_on(found: Selected) -> None:
        if exit_code == "job" and found.array is not None:
            raise Usage(
                "--exit-code job is for one job, not an array", hint=f"trainq wait '{found.array}[N]' --exit-code job"
            )
        if exit_code == "job" and (len(found.ids) != 1 or found.unknown):
            raise Usage(f"--exit-code job is for one job, not {len(found.ids) + len(found.unknown)}")
        line.awaited = found.ids

    found = wait(queue, selectors or [], which, state=for_, any_=any_, timeout_s=timeout_s, on_found=go_on)
    code = 7 if found.unknown else verdict(found.rows, own=exit_code == "job")
    return _answer(queue, found.rows, found.unknown, code, full=line.json, whole=found.arrays)


def verdict(rows: Sequence[Row], *, own: bool) -> int:
    """The exit status for what these jobs came to: 0 if all that ended are done, else 1; `own`: the job's own."""
    from trainq.ops.wait import job_code

    if own:
        return job_code(rows[0])
    return 0 if all(row["state"] == "done" for row in rows if row["state"] in ENDED) else 1


def told(rows: Sequence[Row]) -> list[str]:
    """A line for each job that did not end done: how it ended, and where more is said."""
    bad = [row for row in rows if row["state"] in ENDED and row["state"] != "done"]
    lines = []
    for row in bad[:TOLD]:
        more = "logs" if row["attempt"] else "status"
        why = _why(row)
        lines.append(f"job {ref_of(row)} {row['state']}{f': {why}' if why else ''}; trainq {more} {row['id']}")
    if len(bad) > TOLD:
        lines.append(f"{len(bad) - TOLD} more did not end done")
    return lines


def _why(row: Row) -> str:
    if row["reason"] == "exit" and row.get("exit_code") is not None:
        return f"exit {row['exit_code']}"
    if row["reason"] == "signal" and row.get("signal") is not None:
        return f"signal {row['signal']}"
    text = row.get("error") or row.get("message") or row["reason"] or ""
    return str(text).strip().partition("\n")[0]


def _answer(
    queue: Any, rows: list[Row], unknown: list[str], code: int, *, full: bool, whole: Sequence[int] = ()
) -> Answer:
    from trainq.ops import query

    ids = [row["id"] for row in rows]
    listing = query.these(queue, rows, full=full, whole=whole)
    if full and len(listing.jobs) == 1 and not unknown and not whole:
        return Answer("job", listing.jobs[0], tuple, ids, code)
    doc: dict[str, Any] = {"items": listing.jobs, "total": listing.total, "truncated": False}
    if unknown:
        doc["unknown"] = unknown
    return Answer("job_list", doc, lambda: _table(listing), ids, code, missing(unknown))


def _table(listing: Any) -> Iterator[str | Table]:
    from trainq.cli import columns

    if not listing.rows:
        yield "no jobs fit: nothing to wait for"
        return
    yield columns.table(listing.rows, ("id", "name", "state", "reason", "run", "info"), listing.view.now)


def _one_of(option: str, value: str, words: tuple[str, ...]) -> None:
    if value not in words:
        raise BadValue(f"{option}: {' or '.join(words)} was expected, not {value!r}")
