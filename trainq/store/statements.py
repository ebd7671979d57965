"""Reads statements.sql: `NAMED["claim"]` is the text of the statement of that name."""

from __future__ import annotations

import os

_HERE = os.path.dirname(__file__)


def _load() -> dict[str, str]:
    named: dict[str, str] = {}
    with open(os.path.join(_HERE, "statements.sql"), encoding="utf-8") as file:
        for block in file.read().split("-- name: ")[1:]:
            name, _, body = block.partition("\n")
            lines = [line for line in body.splitlines() if not line.startswith("--")]
            named[name.strip()] = "\n".join(lines).strip()
    return named


NAMED = _load()
