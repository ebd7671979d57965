"""The one printer: an answer as JSON, as ids, as plain columns for a pipe, or as tables for a terminal.

stdout is the answer, stderr is everything else. What a user made (names, commands, messages) is escaped, so that no
byte of it breaks a row or reaches a terminal as a command. A closed pipe ends quietly.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

from trainq.base.words import printable
from trainq.cli.answer import Answer, Silence, Table
from trainq.cli.document import document
from trainq.cli.layout import layout

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from trainq.cli.line import Line


class ClosedPipe(Exception):  # the reader has seen enough: no fault
    """Nobody reads stdout any more."""


class WriteFailed(Exception):  # told apart from the errors of the queue
    """stdout could not be written."""


def show(result: Any, line: Line) -> int:
    """Print what a command returned; its exit status."""
    if isinstance(result, Silence):
        return result.exit
    if not isinstance(result, Answer):
        return 0
    if not line.quiet:
        for text in result.notes:
            note(text)
    if line.json:
        write(document(result.kind, result.doc, indent=2 if is_terminal() else None))
    elif line.quiet:
        write("".join(f"{number}\n" for number in result.ids).encode())
    else:
        show_blocks(result.text(), line)
    flush()
    return result.exit


def show_blocks(blocks: Iterable[str | Table], line: Line) -> None:
    """Text and tables for people."""
    width = terminal_width() if is_terminal() else None
    colored = is_colored(line)
    for block in blocks:
        if isinstance(block, Table):
            text = layout(block, width, colored=colored)
        else:
            text = "".join(f"{printable(row)}\n" for row in block.split("\n"))
        write(text.encode("utf-8", "replace"))


def terminal_width() -> int:
    """How many cells a line of the terminal has: what COLUMNS says, else what the terminal does, else 80."""
    import shutil

    return shutil.get_terminal_size().columns


def is_terminal() -> bool:
    """Whether people look at stdout."""
    return sys.stdout is not None and sys.stdout.isatty()


def is_colored(line: Line) -> bool:
    """Whether colours and drawn tables are wanted."""
    if line.color != "auto":
        return line.color == "always"
    return is_terminal() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def write(data: bytes) -> None:
    """Bytes to stdout. Raises ClosedPipe, WriteFailed."""
    _out(lambda stream: stream.write(data))


def flush() -> None:
    """All that was written is out. Raises ClosedPipe, WriteFailed."""
    _out(lambda stream: stream.flush())


def _out(act: Any) -> None:
    if sys.stdout is None:
        raise WriteFailed("stdout is closed")
    try:
        act(sys.stdout.buffer)
    except BrokenPipeError:
        raise ClosedPipe from None
    except OSError as error:
        raise WriteFailed(f"stdout could not be written: {(error.strerror or str(error)).lower()}") from None


def note(text: str) -> None:
    """One line on stderr that says who speaks."""
    say(f"trainq: {text}")


def write_on(stream: Any, data: bytes) -> bytes:
    """Write as much as goes without waiting for the reader; what is left. Raises OSError, ValueError.

    A pipe that polls ready takes PIPE_BUF bytes at once.
    """
    import select

    poller = select.poll()
    poller.register(stream, select.POLLOUT)
    while data and poller.poll(0):
        data = data[os.write(stream.fileno(), data[: select.PIPE_BUF]) :]
    return data


def say(text: str) -> None:
    """One line on stderr."""
    if sys.stderr is None:
        return
    try:
        sys.stderr.write(f"{printable(text)}\n")
        sys.stderr.flush()
    except OSError:
        pass  # nobody listens there; the answer and the exit status stand


def lines_of(rows: Sequence[tuple[str, str | None]]) -> Table:
    """Labels and values; those without a value are left out."""
    return Table((), [(label, value) for label, value in rows if value])
