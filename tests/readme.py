"""The README as data: its sections, blocks, commands and tables, for the tests that hold it true.

A block is fenced and says what it is by its first word: `console` has `$ ` lines, each with the output it must have; `toml`,
`python`, `sh`, `ini` are files named by their first line (`# train.py`), `json` by a second word; `cron` is lines of a crontab.
In expected output `…` stands for anything in a line, and a line of nothing else for any lines.
"""

from __future__ import annotations

import os
import re
from typing import NamedTuple

REPOSITORY = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
README = os.path.join(REPOSITORY, "README.md")
INSTALL = "Install"


class Command(NamedTuple):
    """A line to type and the lines it must answer with; no lines: anything."""

    line: str
    expected: list[str]


class Block(NamedTuple):
    """A fenced block. `number` is the line of the README it begins at."""

    section: str
    number: int
    kind: str
    name: str
    text: str

    @property
    def file(self) -> str:
        """The file that this block is, or goes to the end of."""
        first = self.text.split("\n", 1)[0]
        return self.name or (first[2:].strip() if first.startswith("# ") else "")

    def commands(self) -> list[Command]:
        """What a `console` block tells to type."""
        found: list[Command] = []
        for line in self.text.splitlines():
            if line.startswith("$ "):
                found.append(Command(line[2:], []))
            else:
                found[-1].expected.append(line)
        return found


def text() -> str:
    """The whole."""
    with open(README, encoding="utf-8") as file:
        return file.read()


def blocks() -> list[Block]:
    """Every fenced block, in order."""
    found, section, opened, lines = [], "", None, []
    for number, line in enumerate(text().splitlines(), 1):
        if opened is not None and line == "```":
            found.append(Block(section, opened[0], *opened[1], "".join(f"{inner}\n" for inner in lines)))
            opened = None
        elif opened is not None:
            lines.append(line)
        elif line.startswith("```"):
            kind, _, name = line[3:].partition(" ")
            opened, lines = (number, (kind, name)), []
        elif line.startswith("## "):
            section = line[3:]
    assert opened is None, "a block of the README is not closed"
    return found


def install_lines() -> list[str]:
    """The two lines that set everything up: for use, and for the tests."""
    return [command.line for block in blocks() if block.section == INSTALL for command in block.commands()]


def table(heading: str) -> dict[str, list[str]]:
    """The table whose first column has this heading: first cell to the others."""
    rows: dict[str, list[str]] = {}
    inside = False
    for line in text().splitlines():
        cells = [cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if cells and cells[0] == heading:
            inside = True
        elif inside and not cells:
            return rows
        elif inside and set(cells[0]) != {"-"}:
            rows[cells[0]] = cells[1:]
    raise AssertionError(f"the README has no table of {heading}")


def pattern(expected: list[str]) -> str:
    """The expected lines as an expression for the whole output."""
    parts = []
    for line in expected:
        if line == "…":
            parts.append(r"(?:.*\n)*")
        else:
            words = [re.escape(part) for part in " ".join(line.split()).split("…")]
            parts.append(".*".join(words) + r"\n")
    return "".join(parts)
