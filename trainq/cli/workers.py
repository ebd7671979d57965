"""`trainq workers`: who is alive."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from trainq.cli.answer import Answer, Table
from trainq.cli.line import line_of
from trainq.cli.words import action_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trainq.ops.workers import Crew


def run(
    ctx: typer.Context,
    action: Annotated[str, typer.Argument(metavar="[list]", help="what to do")] = "list",
    all_: Annotated[bool, typer.Option("--all", "-a", help="those that said good-bye, too")] = False,
) -> Answer:
    """Who is alive (idle, busy, draining, silent, gone) and what each runs."""
    from trainq.ops.workers import crew

    action_of(action, ("list",), "workers")
    found = crew(line_of(ctx).open_queue(), all_=all_)
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
    yield Table(("worker", "state", "host", "pid", "slots", "jobs", "queues", "heartbeat"), rows)
