"""The one printer: an answer as JSON, as ids, as plain columns for a pipe, or as tables for a terminal.

stdout is the answer, stderr is everything else. What a user made (names, commands, messages) is escaped, so that no
byte of it breaks a row or reaches a terminal as a command. A closed pipe ends quietly.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

from trainq.base.files import printable
from trainq.cli.answer import Answer, Silence, Table
from trainq.cli.document import document

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from trainq.cli.line import Line

STATE_COLORS = {
    "running": "cyan", "done": "green", "errored": "red", "canceled": "yellow", "skipped": "yellow", "held": "dim",
    "busy": "cyan", "silent": "yellow", "gone": "red", "ok": "green", "warning": "yellow", "bad": "red",
}  # fmt: skip


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
    if is_colored(line):
        _show_rich(blocks, line)
        return
    for block in blocks:
        text = plain(block) if isinstance(block, Table) else "".join(f"{printable(row)}\n" for row in block.split("\n"))
        write(text.encode())


def plain(table: Table) -> str:
    """The table in aligned columns, one row a line."""
    rows = [[cell(word) for word in row] for row in table.rows]
    if table.columns:
        rows.insert(0, [name.upper() for name in table.columns])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(word.ljust(width) for word, width in zip(row, widths, strict=True)).rstrip() for row in rows)
    return "".join(f"{text}\n" for text in lines)


def cell(text: str) -> str:
    """One cell: a single printable line, never empty."""
    return printable(text) or "-"


def _show_rich(blocks: Iterable[str | Table], line: Line) -> None:
    from rich.console import Console
    from rich.text import Text

    console = Console(force_terminal=True, color_system="auto" if line.color == "auto" else "standard", highlight=False)
    with console.capture() as capture:
        for block in blocks:
            if isinstance(block, Table):
                console.print(_rich_table(block))
            else:
                for row in block.split("\n"):
                    console.print(Text(printable(row)))
    write(capture.get().encode("utf-8", "replace"))


def _rich_table(table: Table) -> Any:
    from rich import box
    from rich.table import Table as Grid
    from rich.text import Text

    grid = Grid(box=box.SIMPLE_HEAD if table.columns else None, show_header=bool(table.columns), pad_edge=False)
    for place, name in enumerate(table.columns or [""] * len(table.rows[0] if table.rows else ())):
        style = "bold" if not table.columns and place == 0 else ""
        last = place == len(table.columns) - 1
        grid.add_column(
            name,
            style=style,
            overflow="ellipsis" if last and table.columns else "fold",
            no_wrap=place == 0 or (last and bool(table.columns)),
        )
    for row in table.rows:
        grid.add_row(*(Text(cell(word), style=STATE_COLORS.get(word, "")) for word in row))
    return grid


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
