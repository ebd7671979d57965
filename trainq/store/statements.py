"""Reads statements.sql: `NAMED["claim"]` is the statement of that name.

The file is written with `:name`; here each becomes a number, since binding by place costs a fraction of binding by
name, and the two largest statements are on the path of every job.
"""

from __future__ import annotations

import os
import re
from typing import NamedTuple

from trainq.domain.states import USER_CAUSES

_HERE = os.path.dirname(__file__)
_PARAMETER = re.compile(r":([a-z_]+)")


class Statement(NamedTuple):
    """Its text, and the names of its values in the order of their numbers."""

    text: str
    names: tuple[str, ...]


def numbered(text: str) -> Statement:
    """The statement with `?1`, `?2` … for its names."""
    names: dict[str, int] = {}
    numbers = _PARAMETER.sub(lambda found: f"?{names.setdefault(found[1], len(names) + 1)}", text)
    return Statement(numbers, tuple(names))


def _load() -> dict[str, Statement]:
    named: dict[str, Statement] = {}
    with open(os.path.join(_HERE, "statements.sql"), encoding="utf-8") as file:
        text = file.read().replace("/*user*/", ", ".join(f"'{cause}'" for cause in USER_CAUSES))
    for block in text.split("-- name: ")[1:]:
        name, _, body = block.partition("\n")
        lines = [line for line in body.splitlines() if not line.startswith("--")]
        named[name.strip()] = numbered("\n".join(lines).strip())
    return named


NAMED = _load()
