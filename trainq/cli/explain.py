"""`trainq explain`: why a job is not running."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from trainq.base.errors import NoSelector
from trainq.cli.answer import Answer
from trainq.cli.line import line_of

TAKES_FILTERS = True


def run(
    ctx: typer.Context,
    selectors: Annotated[list[str] | None, typer.Argument(metavar="[SEL]...", help="12, 12,15-20, last, key:K")] = None,
) -> Answer:
    """Say why a job does not run, worker by worker, and what would help; what it is doing, if it runs."""
    from trainq.ops.explain import explain
    from trainq.ops.select import EVERYTHING

    line = line_of(ctx)
    which = line.filter() if line.filters else EVERYTHING
    if not selectors and which == EVERYTHING:
        raise NoSelector("explain: which jobs?", hint="trainq explain last")
    found = explain(line.open_queue(), selectors or [], which)
    code = 7 if found.unknown else 0
    doc: dict[str, Any] = {"items": found.items, "total": len(found.items), "unknown": found.unknown}
    return Answer(
        "explain", doc, lambda: _lines(found.items, found.unknown), [item["id"] for item in found.items], code
    )


def _lines(items: list[dict[str, Any]], unknown: list[str]) -> list[str]:
    lines: list[str] = []
    for item in items:
        lines += ["", *_told(item)] if lines else _told(item)
    return lines + [f"{word} unknown: no such job" for word in unknown]


def _told(item: dict[str, Any]) -> list[str]:
    from trainq.base.units import show_duration
    from trainq.base.words import printable

    reason = f" ({item['reason']})" if item["reason"] else ""
    place = f", position {item['position']} in queue {item['queue']}" if item["position"] else ""
    what = "array" if item.get("kind") == "array" else "job"
    lines = [f"{what} {item['ref']} ({item['name']}) is {item['state']}{reason}{place}"]
    lines += [f"  {text}" for text in item["why"]]
    lines += [f"  {one['name']} on {one['host']}: {one['reason'] or 'has room'}" for one in item["workers"]]
    if item["starts_in_s"]:
        lines.append(f"  room for it in {show_duration(item['starts_in_s'])} at the earliest, as things go")
    if item["help"]:
        lines.append(f"  try: {item['help']}")
    return [printable(line) for line in lines]
