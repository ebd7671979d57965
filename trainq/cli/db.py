"""`trainq db`: the store itself."""

from __future__ import annotations

from typing import Annotated

import typer

from trainq.base.errors import Usage
from trainq.cli.answer import Answer
from trainq.cli.line import line_of
from trainq.cli.words import action_of

ACTIONS = ("convert",)


def run(
    ctx: typer.Context,
    action: Annotated[str, typer.Argument(metavar="convert", help="what to do")],
    shared: Annotated[bool, typer.Option("--shared", help="convert: for several hosts")] = False,
    local: Annotated[bool, typer.Option("--local", help="convert: for this host alone")] = False,
) -> Answer:
    """Make the queue one for several hosts, or one for this host. For its owner, once no worker lives and no job runs."""
    from trainq.ops.init import convert

    action_of(action, ACTIONS, "db")
    if shared == local:
        raise Usage("--shared or --local, one of them")
    done = convert(line_of(ctx).root, "shared" if shared else "local")
    doc = {"root": done.root, "mode": done.mode, "result": "converted" if done.made else "already"}

    def text() -> list[str]:
        kind = "for several hosts" if done.mode == "shared" else "for one host"
        return [f"{'now' if done.made else 'already'} a queue {kind}: {done.root}"]

    return Answer("db", doc, text, ids=(done.root,))
