"""Errors as a user meets them: one line, one hint, one exit status; with --json one document of kind `error`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, NamedTuple

from trainq.base.errors import TrainqError
from trainq.base.oserrors import explain as explain_os_error
from trainq.base.words import printable, quoted
from trainq.cli import printer
from trainq.cli.document import document

if TYPE_CHECKING:
    from trainq.cli.line import Line


NAMED = 8
"""So many ids are named one by one."""


class Problem(NamedTuple):
    """What is told of an error."""

    code: int
    word: str
    message: str
    hint: str | None


def report(error: BaseException, line: Line) -> int:
    """Tell the error in the form asked for; its exit status."""
    if isinstance(error, (printer.ClosedPipe, BrokenPipeError)):
        return 0
    if line.debug:
        import traceback

        traceback.print_exception(error, file=sys.stderr)
    problem = explain(error, line)
    if line.json and not isinstance(error, printer.WriteFailed):
        code, word, message, hint = problem
        doc = {"code": code, "error": word, "message": message, "hint": hint}
        try:
            printer.write(document("error", doc))
            printer.flush()
        except (printer.ClosedPipe, printer.WriteFailed):
            pass  # the exit status still tells
        return problem.code
    if problem.message:
        printer.note(problem.message)
    if problem.hint:
        printer.say(f"hint: {problem.hint}")
    return problem.code


def explain(error: BaseException, line: Line) -> Problem:
    """The words and the exit status for any error."""
    if isinstance(error, TrainqError):
        hint = error.hint or (_help(line) if error.exit == 2 else None)
        return Problem(error.exit, error.word, printable(error.message), hint and printable(hint))
    if isinstance(error, KeyboardInterrupt):
        return _interrupted(line)
    if isinstance(error, printer.WriteFailed):
        return Problem(1, "output", str(error), None)
    if isinstance(error, OSError):
        return explain(explain_os_error(error), line)
    if isinstance(error, UnicodeEncodeError):  # bytes of the command line on their way into the store
        return Problem(2, "bad_value", f"not UTF-8: {quoted(error.object)}", _help(line))
    said: Any = getattr(error, "format_message", None)
    if callable(said):  # an error of the parser, whatever version of it is installed
        return Problem(2, "usage", _own_words(printable(str(said()))), _help(line))
    text = printable(str(error).split("\n", 1)[0])[:300]
    message = f"a bug in trainq: {type(error).__name__}" + (f": {text}" if text else "")
    return Problem(70, "bug", message, "type it again with --debug, and report what it prints")


def _interrupted(line: Line) -> Problem:
    """^C ends the command only: which jobs go on, and how to come back to them or end them."""
    if line.watching:
        return Problem(130, "interrupted", "", None)
    ids = [str(number) for number in line.awaited]
    if not ids:
        return Problem(130, "interrupted", "interrupted", None)
    if len(ids) == 1:
        hint = f"trainq logs -f {ids[0]}; trainq cancel {ids[0]}"
        return Problem(130, "interrupted", f"interrupted; job {ids[0]} goes on", hint)
    named = ",".join(ids) if len(ids) <= NAMED else f"{ids[0]}-{ids[-1]}"
    hint = f"trainq wait {named}; trainq cancel {named}"
    return Problem(130, "interrupted", f"interrupted; {len(ids)} jobs go on", hint)


def _help(line: Line) -> str:
    return f"trainq {line.command} --help" if line.command else "trainq --help"


def _own_words(text: str) -> str:
    text = text.strip().rstrip(".")
    return text[:1].lower() + text[1:]
