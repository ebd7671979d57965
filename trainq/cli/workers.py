"""`trainq workers`: who is alive; let one go, or out of quarantine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from trainq.base.errors import Usage
from trainq.cli import changes
from trainq.cli.answer import Answer, Table
from trainq.cli.line import line_of
from trainq.cli.words import action_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trainq.ops.workers import Crew


def run(
    ctx: typer.Context,
    action: Annotated[str, typer.Argument(metavar="[list|drain|clear]", help="what to do")] = "list",
    names: Annotated[list[str] | None, typer.Argument(metavar="[WORKER]...", help="drain, clear: which")] = None,
    all_: Annotated[
        bool, typer.Option("--all", "-a", help="list: those that said good-bye, too; drain: every one")
    ] = False,
) -> Answer:
    """Who is alive (idle, busy, draining, quarantined, silent, gone) and what each runs; drain lets a worker finish what
    runs and end, clear ends a quarantine."""
    from trainq.ops.workers import clear, crew, drain

    queue = line_of(ctx).open_queue()
    action_of(action, ("list", "drain", "clear"), "workers")
    if action == "drain":
        return changes.answer(drain(queue, names or [], all_=all_), "is draining", nothing="no workers: nothing to do")
    if action == "clear":
        if not names:
            raise Usage("workers clear: which workers?", hint="trainq workers")
        return changes.answer(clear(queue, names), "is not in quarantine")
    if names:
        raise Usage("workers list takes no names")
    found = crew(queue, all_=all_)
    names = [item["name"] for item in found.items]
    doc = {"items": found.items, "total": len(found.items), "truncated": False}
    return Answer("worker_list", doc, lambda: _table(found), names)


def _table(found: Crew) -> Iterator[str | Table]:
    if not found.items:
        yield "no workers; trainq worker starts one here"
        return
    from trainq.base.units import show_duration

    rows = [
        [
            item["name"], item["state"], item["host"], str(item["pid"]), f"{len(item['jobs'])}/{item['slots']}",
            ",".join(map(str, item["jobs"])), ",".join(item["queues"]), f"{show_duration(age)} ago",
        ]
        for item, age in zip(found.items, found.ages_s, strict=True)
    ]  # fmt: skip
    yield Table(
        ("worker", "state", "host", "pid", "slots", "jobs", "queues", "heartbeat"), rows, ("worker", "host", "queues")
    )
