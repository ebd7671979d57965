"""`trainq init`: make a queue."""

from __future__ import annotations

from typing import Annotated

import typer

from trainq.cli.answer import Answer
from trainq.cli.line import line_of


def run(
    ctx: typer.Context,
    directory: Annotated[str | None, typer.Argument(metavar="DIR", help="where; default: .trainq here")] = None,
    local: Annotated[bool, typer.Option("--local", help="on a disk of this host (the only mode so far)")] = False,  # noqa: ARG001
) -> Answer:
    """Make a queue, with a commented trainq.toml. On one that is there it says "already".

    The directory is DIR, else --root, else TRAINQ_ROOT, else .trainq in the current directory.
    """
    import os

    from trainq.ops.queue import HIDDEN, init

    line = line_of(ctx)
    target = directory or line.root or os.environ.get("TRAINQ_ROOT") or HIDDEN
    made = init(target)
    doc = {"root": made.root, "mode": made.mode, "result": "made" if made.made else "already"}

    def text() -> list[str]:
        if not made.made:
            return [f"already a queue: {made.root}"]
        return [f"made a queue in {made.root}", "next: trainq submit -- echo hello; trainq worker --until idle"]

    return Answer("init", doc, text, ids=(made.root,))
