"""`trainq status`: lists of jobs, and one job's card."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from trainq.base.errors import BadValue, Usage
from trainq.cli.answer import Answer, Silence, Table
from trainq.cli.line import Line, line_of
from trainq.cli.words import missing
from trainq.ops import query
from trainq.ops.cards import array_item
from trainq.ops.select import EVERYTHING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trainq.domain.selectors import Filter
    from trainq.ops.queue import Queue

TAKES_FILTERS = True
MOST_ROWS = 10**9  # no store holds more


def run(
    ctx: typer.Context,
    selectors: Annotated[list[str] | None, typer.Argument(metavar="[SEL]...", help="12, 12,15-20, 12[3], last, key:K, fp:F, @name")] = None,
    summary: Annotated[bool, typer.Option("--summary", help="counts by state and queue")] = False,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="show it again whenever something has changed")] = False,
    columns: Annotated[str | None, typer.Option("--columns", metavar="A,B,…", help="which columns")] = None,
    all_: Annotated[bool, typer.Option("--all", "-a", help="every job that is not pruned, newest first")] = False,
    limit: Annotated[int, typer.Option("--limit", metavar="N", help="rows at most; 0: all", show_default=True)] = 50,
    sort: Annotated[str | None, typer.Option("--sort", metavar="COLUMN", help="by this column; -COLUMN turns it round")] = None,
    tasks: Annotated[bool, typer.Option("--tasks", help="the tasks of arrays, a row each")] = False,
    show_env: Annotated[bool, typer.Option("--show-env", help="with one job: the environment it gets")] = False,
    jsonl: Annotated[bool, typer.Option("--jsonl", help="one JSON object a job and line")] = False,
) -> Any:  # fmt: skip
    """What runs and waits, and the last 10 that ended. With one job: its card."""
    line = line_of(ctx)
    ask = _Ask(
        line, selectors or [], all_=all_, limit=limit, sort=sort, columns=columns, show_env=show_env, tasks=tasks
    )
    ask.full = ask.full or line.json or jsonl
    queue = line.open_queue()
    if summary:
        return _summary(queue)
    if watch:
        if line.json:
            raise Usage("status --watch is a stream and has no --json", hint="trainq status --watch --jsonl")
        line.watching = True
        return _watch(queue, ask, line, jsonl=jsonl)
    listing = ask.look(queue)
    if jsonl:
        from trainq.cli.streams import json_lines

        json_lines(listing.jobs)
        return Silence(7 if listing.unknown else 0)
    return _answer(queue, listing, ask)


class _Ask:
    """What the options ask for."""

    def __init__(
        self, line: Line, words: list[str], *, all_: bool, limit: int, sort: str | None, columns: str | None,
        show_env: bool, tasks: bool,
    ) -> None:  # fmt: skip
        from trainq.store.reads import SORTS

        if limit < 0:
            raise BadValue(f"--limit takes 0 or more, not {limit}")
        if sort is not None and sort.lstrip("-") not in SORTS:
            raise BadValue(f"cannot sort by {sort.lstrip('-')!r}; columns are {', '.join(SORTS)}")
        self.full = False
        if columns is not None:
            from trainq.cli.columns import OF_DOCUMENT, chosen

            names = chosen(columns)  # a wrong name is refused whatever the form of the answer
            self.full = any(name in OF_DOCUMENT for name in names)
        self.words = words
        self.which: Filter = line.filter() if line.filters else EVERYTHING
        self.tasks = tasks
        self.is_all = all_ or bool(line.filters) or sort is not None or tasks
        self.limit = min(limit, MOST_ROWS) or None
        self.sort = sort
        self.columns = columns
        self.show_env = show_env
        self.is_history_told = all_ and not line.filters

    def look(self, queue: Queue) -> query.Listing:
        """The jobs, as they are now."""
        if self.words:
            tasks = None if self.full else self.limit  # of an array: people look at some of them
            return query.chosen(queue, self.words, self.which, full=self.full, tasks=tasks, folded=not self.tasks)
        if self.is_all:
            return query.everything(queue, self.which, self.sort, self.limit, full=self.full, folded=not self.tasks)
        return query.overview(queue, self.limit or MOST_ROWS, full=self.full)


def _answer(queue: Queue, listing: query.Listing, ask: _Ask) -> Answer:
    ids = [row["id"] for row in listing.rows]
    if listing.array is not None:
        if ask.show_env:
            raise Usage("--show-env is for one job", hint=f"trainq status '{listing.array['id']}[0]' --show-env")
        array = listing.array
        whole = array_item(array, listing.view, listing.jobs)
        return Answer("array", whole, lambda: _array(queue, listing, ask), [array["id"]])
    if listing.one and listing.jobs:
        job = listing.jobs[0]
        if ask.show_env:
            job["env"] = query.environ_of(queue, job["id"])
        if ask.columns is None:
            return Answer("job", job, lambda: _card(listing, job), ids)
    elif ask.show_env:
        raise Usage("--show-env is for one job")
    doc: dict[str, Any] = {"items": listing.jobs, "total": listing.total, "truncated": listing.truncated}
    if listing.unknown:
        doc["unknown"] = listing.unknown
    code = 7 if listing.unknown else 0
    return Answer("job_list", doc, lambda: _list(queue, listing, ask), ids, code, missing(listing.unknown))


def _array(queue: Queue, listing: query.Listing, ask: _Ask) -> Iterator[str | Table]:
    from trainq.cli.card import array_blocks

    assert listing.array is not None
    yield from array_blocks(listing.array, listing.view.now)
    yield _table(queue, listing, ask)
    if listing.truncated:
        yield f"{listing.total - len(listing.rows)} more; --limit 0 shows all"


def _list(queue: Queue, listing: query.Listing, ask: _Ask) -> Iterator[str | Table]:
    from trainq.ops.paused import opens, sentence

    if listing.rows:
        yield _table(queue, listing, ask)
    else:
        yield "no jobs" if ask.words or ask.is_all else "no jobs; trainq submit -- COMMAND puts one in"
    if listing.truncated:
        yield f"{listing.total - len(listing.rows)} more; --limit 0 shows all"
    if ask.is_history_told and (n := query.pruned(queue)):
        yield f"{n} more {'is' if n == 1 else 'are'} pruned; trainq history ID tells how {'it' if n == 1 else 'they'} ended"
    waiting = {row["queue"] for row in listing.rows if row["state"] == "pending"}
    for name, closed in listing.view.paused.items():
        if name in waiting:
            yield f"{sentence(name, closed)}\nnext: {opens(name)}"


def _table(queue: Queue, listing: query.Listing, ask: _Ask) -> Table:
    from trainq.cli import columns, layout, printer

    names = columns.chosen(ask.columns)
    for row, job in zip(listing.rows, listing.jobs, strict=False):
        row["document"] = job
    table = columns.table(listing.rows, names, listing.view.now)
    if ask.columns is None and printer.is_terminal():
        for name, usual in (("queue", "default"), ("user", queue.actor.user)):
            if all(row[name] == usual for row in listing.rows):
                table = layout.without(table, name)
    return table


def _card(listing: query.Listing, job: dict[str, Any]) -> Iterator[str | Table]:
    from trainq.cli.card import blocks

    yield from blocks(job, listing.rows[0], listing.view.now)


def _summary(queue: Queue) -> Answer:
    found = query.summary(queue)

    def text() -> Iterator[str | Table]:
        states = list(found["counts"])
        rows = [[name, *(str(n[state]) for state in states)] for name, n in found["queues"].items()]
        rows.append(["total", *(str(found["counts"][state]) for state in states)])
        yield Table(["queue", *states], rows)

    return Answer("summary", found, text)


def _watch(queue: Queue, ask: _Ask, line: Line, *, jsonl: bool) -> Silence:
    """Show the list whenever another process has committed, at most once a second; the jobs that were named are
    watched until all of them have ended."""
    import time

    from trainq.cli import columns, printer, streams
    from trainq.domain.states import ENDED

    columns.chosen(ask.columns)
    seen: dict[int, dict[str, Any]] = {}
    before: int | None = None
    while True:
        now = queue.session.changes()
        if now != before:
            before = now
            listing = ask.look(queue)
            if jsonl:
                fresh = [job for job in listing.jobs if seen.get(job["id"]) != streams.without_clock(job)]
                seen.update((job["id"], streams.without_clock(job)) for job in fresh)
                streams.json_lines(fresh)
            else:
                streams.clear(line)
                blocks = _card(listing, listing.jobs[0]) if listing.one and listing.jobs else _list(queue, listing, ask)
                blocks = _array(queue, listing, ask) if listing.array is not None else blocks
                printer.show_blocks(blocks, line)
                printer.flush()
            if ask.words and all(row["state"] in ENDED for row in listing.rows):
                return Silence(7 if listing.unknown else 0)
        time.sleep(1.0)
