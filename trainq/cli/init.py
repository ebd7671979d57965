"""`trainq init`: make a queue."""

from __future__ import annotations

from typing import Annotated

import typer

from trainq.cli.answer import Answer
from trainq.cli.line import line_of


def run(
    ctx: typer.Context,
    directory: Annotated[str | None, typer.Argument(metavar="DIR", help="where; default: .trainq here")] = None,
    shared: Annotated[bool, typer.Option("--shared", help="for several hosts, whatever the file system says")] = False,
    group: Annotated[str | None, typer.Option("--group", metavar="NAME", help="for all members of this group")] = None,
    local: Annotated[bool, typer.Option("--local", help="for this host alone, whatever the file system says")] = False,
) -> Answer:
    """Make a queue, with a commented trainq.toml. On one that is there it says "already".

    On a network file system it is one that several hosts can use, on a disk one for this host.

    The directory is DIR, else --root, else TRAINQ_ROOT, else .trainq in the current directory.
    """
    import os
    import shlex

    from trainq.base.errors import Usage
    from trainq.base.words import printable
    from trainq.ops.init import init
    from trainq.ops.queue import HIDDEN, found_from_here, meet_line

    if shared and local:
        raise Usage("--shared or --local, one of them")
    if directory == "":
        raise Usage("DIR is empty", hint="trainq init DIR, or leave it out")
    line = line_of(ctx)
    target = directory or line.root or os.environ.get("TRAINQ_ROOT") or HIDDEN
    made = init(target, "shared" if shared else "local" if local else None, group)
    doc = {"root": made.root, "mode": made.mode, "group": made.group, "result": "made" if made.made else "already"}

    def text() -> list[str]:
        if not made.made:
            why = "" if directory or line.root or "TRAINQ_ROOT" not in os.environ else ", named by TRAINQ_ROOT"
            return [f"already a queue: {made.root}{why}"]
        what = "a queue for several hosts" if made.mode == "shared" else "a queue"
        what += f" of group {made.group}" if made.group else ""
        call = "trainq" if found_from_here(made.root) else f"trainq --root {shlex.quote(printable(target))}"
        lines = [f"made {what} in {made.root}", f"next: {call} submit -- echo hello; {call} worker --until idle"]
        if made.unproved:
            lines.append(f"prove the mount before you trust it, on two hosts at once: {meet_line(made.root)}")
        return lines

    return Answer("init", doc, text, ids=(made.root,))
