"""The lines a job says to its worker (the protocol is described in trainq/worker/channel.py).

Whatever training code hands in becomes a line of valid, bounded ASCII JSON, or nothing; nothing here raises.
"""

from __future__ import annotations

import json
import operator
import os
from typing import Any

NAME_LIMIT = 200
TEXT_LIMIT = 1000
LINE_LIMIT = 256 * 1024
"""Longest line that is sent, in bytes; the worker takes up to 1 MiB."""


def number(value: Any) -> int | float | str | None:
    """The value as a JSON number, "nan", "inf" or "-inf" as text, None for what is no number."""
    try:
        if hasattr(value, "__index__"):
            try:
                whole = int(operator.index(value))
                if -(2**63) <= whole < 2**63:
                    return whole
            except TypeError:
                pass  # an array has the method, and means it only for one whole number
        real = float(value)
    except Exception:  # noqa: BLE001 - a stranger's __index__ and __float__ may raise anything
        return None
    if real - real == 0:
        return real
    return "nan" if real != real else "inf" if real > 0 else "-inf"  # noqa: PLR0124 - this is what a NaN is


def finite(value: Any) -> int | float | None:
    """The value as a JSON number, None for what is no finite number."""
    found = number(value)
    return None if isinstance(found, str) else found


def text(value: Any, limit: int = TEXT_LIMIT) -> str:
    """The value as text that every reader of UTF-8 takes, cut at `limit` characters."""
    try:
        return str(value)[:limit].encode("utf-8", "backslashreplace").decode("utf-8")[:limit]
    except Exception:  # noqa: BLE001 - a stranger's __str__ may raise anything
        return "?"


def line(**words: Any) -> bytes:
    """One message as a line; empty if it would be too long for the worker."""
    encoded = json.dumps(words, separators=(",", ":"), allow_nan=False).encode("ascii") + b"\n"
    return encoded if len(encoded) <= LINE_LIMIT else b""


def hello() -> bytes:
    """The first line of every connection."""
    attempt = os.environ.get("TRAINQ_ATTEMPT", "")
    return line(
        hello=text(os.environ.get("TRAINQ_JOB_UID", "")),
        attempt=int(attempt) if attempt.isdecimal() else 1,
    )
