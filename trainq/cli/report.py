"""`trainq report`: what a job says of itself, from any program."""

from __future__ import annotations

from typing import Annotated

import typer

from trainq.base.errors import NotPossible, Usage
from trainq.cli.answer import Answer
from trainq.cli.line import line_of


def run(
    ctx: typer.Context,
    progress: Annotated[str | None, typer.Option("--progress", metavar="F", help="how far: 0.4 or 40%")] = None,
    step: Annotated[str | None, typer.Option("--step", metavar="N[/TOTAL]", help="which step: 10 or 10/100")] = None,
    metric: Annotated[list[str] | None, typer.Option("--metric", metavar="NAME=NUMBER", help="a value; may be repeated")] = None,
    message: Annotated[str | None, typer.Option("--message", "-m", metavar="TEXT", help="a word for the lists")] = None,
    strict: Annotated[bool, typer.Option("--strict", help="exit 4 when nobody hears it")] = False,
) -> Answer:  # fmt: skip
    """Say progress and metrics of the job this runs in. Outside a job, or with its worker gone, it warns and exits 0."""
    import os

    from trainq.ops import report

    line_of(ctx)
    if progress is None and step is None and message is None and not metric:
        raise Usage("nothing to report", hint="trainq report --progress 0.4 --metric loss=0.1")
    said = report.read(progress=progress, step=step, message=message, metrics=metric or [])
    outcome = report.send(said)
    why = {
        "sent": None,
        "outside": "this is no job of trainq: nothing is reported",
        "gone": "the job's worker does not answer: nothing is reported",
    }[outcome]
    if why and strict:
        raise NotPossible(why, hint="leave --strict out where this is no fault")
    number = os.environ.get("TRAINQ_JOB_ID", "")
    job_id = int(number) if number.isdecimal() else None
    item = {"id": job_id, "result": "reported" if outcome == "sent" else "refused", "error": why}
    return Answer("changes", {"items": [item]}, tuple, exit=0, notes=[why] if why else [])
