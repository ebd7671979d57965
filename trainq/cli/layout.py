"""Tables as lines: the same columns and headings in a pipe, on a terminal and in colour.

A row is one line. In a pipe nothing is cut; on a terminal a row is no wider than it, as long as the columns that must
stay whole fit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainq.base.words import printable
from trainq.cli.answer import Table

if TYPE_CHECKING:
    from collections.abc import Sequence

GAP = "  "
COMFORTABLE = 24
"""So much room an elastic column should have before others are left out for it."""
LEAST = 4
OFF = "\x1b[0m"
_COLORS = {
    "running": "36", "done": "32", "errored": "31", "canceled": "33", "skipped": "33", "held": "2",
    "busy": "36", "silent": "33", "gone": "31", "ok": "32", "warning": "33", "bad": "31",
}  # fmt: skip


def layout(table: Table, width: int | None = None, *, colored: bool = False) -> str:
    """The table in aligned columns, one row a line; not wider than `width`, if there is one."""
    if width is not None and table.columns:
        table = _spared(table, width)
    rows = [[cell(word) for word in row] for row in table.rows]
    if table.columns:
        rows.insert(0, [name.upper() for name in table.columns])
    widths = [max(map(cells, column)) for column in zip(*rows, strict=True)]
    if width is not None and table.columns:
        widths = _fitted(table, widths, width)
    return "".join(
        f"{_line(row, widths, heading=bool(table.columns) and not place, labelled=not table.columns, colored=colored)}\n"
        for place, row in enumerate(rows)
    )


def cell(text: str) -> str:
    """One cell: a single printable line, never empty."""
    return printable(text) or "-"


def cells(text: str) -> int:
    """How many cells of a terminal the text takes: wide letters take two, combining marks none."""
    if text.isascii():
        return len(text)
    from unicodedata import combining, east_asian_width

    return sum(0 if combining(letter) else 1 + (east_asian_width(letter) in "WF") for letter in text)


def cut(text: str, width: int) -> str:
    """The text in at most so many cells; an ellipsis says that there is more."""
    if cells(text) <= width:
        return text
    kept = text[: width - 1]
    while kept and cells(kept) > width - 1:
        kept = kept[:-1]
    return kept + "…"


def _line(row: Sequence[str], widths: Sequence[int], *, heading: bool, labelled: bool, colored: bool) -> str:
    parts = []
    for place, (word, width) in enumerate(zip(row, widths, strict=True)):
        shown = cut(word, width)
        style = "1" if heading or (labelled and not place) else _COLORS.get(word, "")
        gap = " " * (width - cells(shown)) + GAP if place < len(row) - 1 else ""
        parts.append((f"\x1b[{style}m{shown}{OFF}" if colored and style else shown) + gap)
    return "".join(parts).rstrip()


def _elastic(table: Table) -> list[int]:
    """Which columns may be cut: those it names, if it has any of them."""
    if table.elastic is None:
        return [len(table.columns) - 1]
    return [table.columns.index(name) for name in table.elastic if name in table.columns]


def _natural(table: Table) -> list[int]:
    columns = zip(*([name.upper() for name in table.columns], *table.rows), strict=True)
    return [max(cells(cell(word)) for word in column) for column in columns]


def _spared(table: Table, width: int) -> Table:
    """The table without as many of its spare columns as it takes to fit with comfort."""
    for name in table.spare:
        natural, elastic = _natural(table), _elastic(table)
        wanted = sum(min(n, COMFORTABLE) if place in elastic else n for place, n in enumerate(natural))
        if wanted + len(GAP) * (len(natural) - 1) <= width:
            return table
        table = without(table, name)
    return table


def without(table: Table, name: str) -> Table:
    """The table without that column, if it has it."""
    if name not in table.columns:
        return table
    place = list(table.columns).index(name)
    rows = [[word for index, word in enumerate(row) if index != place] for row in table.rows]
    return table._replace(columns=[other for other in table.columns if other != name], rows=rows)


def _fitted(table: Table, widths: list[int], width: int) -> list[int]:
    """The widths with the elastic columns sharing what the others leave; the narrow ones keep what they need."""
    elastic = sorted(_elastic(table), key=lambda place: widths[place])
    left = width - len(GAP) * (len(widths) - 1) - sum(n for place, n in enumerate(widths) if place not in elastic)
    for number, place in enumerate(elastic):
        share = max(LEAST, left // (len(elastic) - number))
        widths[place] = min(widths[place], share)
        left -= widths[place]
    return widths
