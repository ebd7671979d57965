"""`trainq doctor`: what is wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from trainq.cli import printer
from trainq.cli.answer import Answer, Table
from trainq.cli.line import Line, line_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trainq.ops.doctor import Report
    from trainq.ops.queue import Queue


def run(
    ctx: typer.Context,
    all_: Annotated[bool, typer.Option("--all", "-a", help="the settings that are at their default, too")] = False,
    meet: Annotated[bool, typer.Option("--meet", help="wait for a doctor on a second host, and try the storage with it")] = False,
) -> Answer:  # fmt: skip
    """Settings with their origin, store, directories, locks, room. Exits 0 fine, 1 warnings, 6 unusable."""
    from trainq.ops.doctor import examine

    line = line_of(ctx)
    queue = line.open_queue()
    if meet:
        _announce(queue, line)
    found = examine(queue, meets=meet)
    doc = {
        "root": queue.paths.root,
        "state": {0: "ok", 1: "warning", 6: "bad"}[found.exit],
        "checks": [check._asdict() for check in found.checks],
        "settings": [{"name": name, "value": value, "origin": origin} for name, value, origin in found.settings],
    }
    return Answer("doctor", doc, lambda: _text(found, all_=all_), exit=found.exit)


def _announce(queue: Queue, line: Line) -> None:
    """Say what is waited for, before anything else. Raises NotPossible on a queue for one host."""
    from trainq.ops.meet import WAIT_S, refuse_one_host
    from trainq.ops.queue import meet_line

    refuse_one_host(queue)
    if not (line.json or line.quiet):
        printer.note(f"waiting up to {WAIT_S:g} s for a doctor on another host: {meet_line(queue.paths.root)}")


def _text(found: Report, *, all_: bool) -> Iterator[str | Table]:
    yield Table(("check", "state", "seen"), [list(check) for check in found.checks], elastic=())
    rows = [[name, _shown(value), origin] for name, value, origin in found.settings if all_ or origin != "default"]
    if rows:
        yield Table(("setting", "value", "origin"), rows, ("value",))
    if len(rows) < len(found.settings):
        yield f"{len(found.settings) - len(rows)} settings are at their default; --all shows them"


def _shown(value: Any) -> str:
    import json

    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
