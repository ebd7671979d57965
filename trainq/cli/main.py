"""From the words of the command line to the exit status.

All commands leave with `os._exit` once all is flushed: the interpreter's own end costs more than a submit's
transaction. So nothing may rest on atexit; what must be durable is durable when its command returns.
"""

from __future__ import annotations

import gc
import os
import sys
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from collections.abc import Sequence

COMPLETION = "_TRAINQ_COMPLETE"


def main() -> NoReturn:
    """The entry point of the installed command."""
    gc.disable()
    _hold_standard_streams()
    if COMPLETION in os.environ:
        from trainq.cli.complete import answer

        os._exit(answer(os.environ[COMPLETION]))
    code = run(sys.argv[1:])
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:
                stream.flush()
        except BrokenPipeError:
            pass  # the reader has seen enough
        except OSError:
            code = code or 1
    os._exit(code)


def run(argv: Sequence[str]) -> int:
    """Do what the words say; the exit status."""
    from trainq.cli.line import Line

    line = Line(argv)
    try:
        return _run(argv, line)
    except BaseException as error:  # noqa: BLE001  # the last place that can tell the user
        from trainq.cli import problem

        return problem.report(error, line)


def _run(argv: Sequence[str], line: Line) -> int:
    import typer

    from trainq.cli import commands, printer

    group = commands.root()
    try:
        with group.make_context("trainq", list(argv), obj=line) as context:
            result = group.invoke(context)
    except typer.Exit as done:
        return done.exit_code
    return printer.show(result, line)


def _hold_standard_streams() -> None:
    """Nothing that is opened later may get the number 0, 1 or 2 and be written to by mistake."""
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)


if TYPE_CHECKING:
    from trainq.cli.line import Line
