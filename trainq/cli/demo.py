"""`trainq demo`: a real training, end to end."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import typer

from trainq.cli import layout, printer
from trainq.cli.answer import Answer, Table
from trainq.cli.columns import percent
from trainq.cli.line import Line, line_of
from trainq.domain.states import ENDED

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trainq.ops.demo import Shown
    from trainq.store.reads import Row


def run(ctx: typer.Context) -> Answer:
    """Make a queue in a temporary directory, train real models in it, and show what came of it."""
    from trainq.ops.demo import demo

    line = line_of(ctx)
    progress = _Bars() if _is_watched(line) else _Words(quiet=line.quiet)
    with progress:
        shown = demo(progress.look)
    names = [f"{model['key']}@{model['version']}" for model in shown.models]
    code = 0 if all(job["state"] == "done" for job in shown.jobs) else 1
    doc = {"root": shown.root, "jobs": shown.jobs, "models": shown.models, "next": shown.next}
    return Answer("demo", doc, lambda: _text(shown), names, code)


def _is_watched(line: Line) -> bool:
    return sys.stderr is not None and sys.stderr.isatty() and not line.quiet and line.color != "never"


def _text(shown: Shown) -> Iterator[str | Table]:
    from trainq.cli.models import table

    yield from table(shown.models)
    for job in shown.jobs:
        if job["state"] != "done":
            yield f"job {job['id']} ({job['name']}) {job['state']}: {job['result']['error'] or job['reason']}"
    yield f"all of it stays in {shown.root}"
    yield "next:"
    yield from (f"  {command}" for command in shown.next)


class _Words:
    """For a pipe: a line on stderr for each change."""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet
        self._seen: dict[int, str] = {}

    def __enter__(self) -> None:
        return None

    def __exit__(self, *_: object) -> None:
        return None

    def look(self, rows: list[Row]) -> None:
        for row in rows:
            if self._seen.get(row["id"]) != row["state"] and not self._quiet:
                printer.note(f"job {row['id']} ({row['name']}) {row['state']}")
            self._seen[row["id"]] = row["state"]


class _Bars:
    """For a terminal: a bar for each job, on stderr."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[said]}"),
            TimeElapsedColumn(),
        )
        self._progress = Progress(*columns, console=Console(stderr=True))
        self._tasks: dict[int, Any] = {}

    def __enter__(self) -> None:
        self._progress.start()

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def look(self, rows: list[Row]) -> None:
        from rich.markup import escape

        for row in rows:
            if row["id"] not in self._tasks:
                name = escape(f"{row['id']} {row['name']}")
                self._tasks[row["id"]] = self._progress.add_task(name, total=1.0, said="")
            fraction = 1.0 if row["state"] in ENDED else row["fraction"] or 0.0
            words = [row["state"], percent(row["fraction"]), row["note"] or ""]
            said = layout.cell(" ".join(word for word in words if word))
            self._progress.update(self._tasks[row["id"]], completed=fraction, said=escape(said))
