"""The text of a TOML file: what it says, and on which line. Pure; loads `tomllib` only when needed.

`line_of` serves messages: it reads lines, not grammar, and where it is wrong only a line number is.
"""

from __future__ import annotations

import re
from typing import Any, Final

from trainq.base.errors import BadSettings

_KEY: Final = r"""(?:"(?:[^"\\]|\\.)*"|'[^']*'|[A-Za-z0-9_-]+)"""
_KEYS: Final = rf"\s*({_KEY}(?:\s*\.\s*{_KEY})*)\s*"


def parse(text: str, name: str) -> dict[str, Any]:
    """The tables of the text. A broken one is `BadSettings` with `name`, line and column."""
    import tomllib

    text = text.removeprefix("\ufeff")
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise BadSettings(f"{name}: nested too deep") from None
    except ValueError as error:  # TOMLDecodeError, and a number of more digits than Python reads
        raise BadSettings(_where(str(error), text, name)) from None


def _where(said: str, text: str, name: str) -> str:
    found = re.search(r" \(at (?:line ([0-9]+), column ([0-9]+)|end of document)\)$", said)
    if found is None:
        return f"{name}: {said[:1].lower()}{said[1:].splitlines()[0]}"
    lines = text.split("\n")
    line, column = found[1] or str(len(lines)), found[2] or str(len(lines[-1]) + 1)
    reason = " ".join(said[: found.start()].split())
    return f"{name}: line {line}, column {column}: {reason[:1].lower()}{reason[1:]}"


def line_of(text: str, path: tuple[str, ...]) -> int | None:
    """The line (from 1) that sets the key at `path`, or the innermost line that can be told to hold it."""
    table: tuple[str, ...] = ()
    around: int | None = None
    inside: int | None = None
    depth = 0
    closing: str | None = None
    for number, line in enumerate(text.split("\n"), 1):
        if closing is not None:
            if closing in line:
                closing = None
            continue
        closing = _opens(line)
        here = _set_here(line, table)
        if here is None:
            continue
        if line.lstrip().startswith("["):
            table = here
        if here == path:
            return number
        if path[: len(here)] == here and len(here) > depth:
            around, depth = number, len(here)
        elif here[: len(path)] == path and inside is None:
            inside = number
    return inside or around


def _opens(line: str) -> str | None:
    """The quotes of a string that begins on this line and goes on below it."""
    for quotes in ('"""', "'''"):
        if line.count(quotes) % 2:
            return quotes
    return None


def _set_here(line: str, table: tuple[str, ...]) -> tuple[str, ...] | None:
    """The path of the table or key that this line begins, or None."""
    header = re.match(rf"\s*\[\[?{_KEYS}\]", line)
    if header:
        return _split(header[1])
    key = re.match(rf"{_KEYS}=", line)
    return table + _split(key[1]) if key else None


def _split(dotted: str) -> tuple[str, ...]:
    return tuple(_unquoted(key) for key in re.findall(_KEY, dotted))


def _unquoted(key: str) -> str:
    if key[0] == "'":
        return key[1:-1]
    if key[0] != '"':
        return key
    import json

    try:
        return str(json.loads(key))
    except ValueError:  # an escape that TOML has and JSON lacks; the line is then not found
        return key[1:-1]
