"""Answers that come as they happen: lines of JSON, and a list drawn again and again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trainq.cli import printer
from trainq.cli.document import encode

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from trainq.cli.line import Line

_MOVING = (("times", ("queued_s", "run_s")), ("progress", ("eta_s",)))


def json_lines(items: Iterable[Mapping[str, Any]]) -> None:
    """One object a line, out at once."""
    for item in items:
        printer.write(encode(item))
    printer.flush()


def without_clock(job: Mapping[str, Any]) -> dict[str, Any]:
    """The job without what changes by the passing of time alone."""
    still = dict(job)
    for name, moving in _MOVING:
        still[name] = {key: value for key, value in job.get(name, {}).items() if key not in moving}
    return still


def clear(line: Line) -> None:
    """Begin the picture anew: the top of the screen, or a blank line in a pipe."""
    printer.write(b"\x1b[H\x1b[J" if printer.is_colored(line) else b"\n")
