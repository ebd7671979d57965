"""How a message names a thing that somebody typed, and what they may have meant. Pure.

Whatever the text holds, what comes back is one printable line without undecodable bytes.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable


def quoted(value: Any, limit: int = 80) -> str:
    """The value in quotes for a message: control characters and invalid UTF-8 escaped, cut to `limit`."""
    if isinstance(value, str) and len(value) > limit:
        return repr(value[:limit]) + "..."
    try:
        text = repr(value)
    except ValueError:  # an integer of more digits than Python prints
        return "a very long number"
    return text if len(text) <= limit + 2 else text[:limit] + "..."


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The known word that looks most like `word`, or None if none is near."""
    import difflib

    found = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return found[0] if found else None


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """The end of a message about an unknown word: the nearest one, else all that are known, else nothing."""
    words = sorted(known)
    near = nearest(word, words)
    if near is not None:
        return f"; did you mean {near}?"
    return "; known: " + ", ".join(words) if words else ""


def printable(path: str) -> str:
    """A path as one line of valid text, whatever its bytes."""
    try:
        text = os.fsencode(path).decode("utf-8", "backslashreplace")
    except UnicodeEncodeError:  # no path: half a UTF-16 pair, as JSON can spell
        text = path.encode("utf-8", "backslashreplace").decode()
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def is_text(word: str) -> bool:
    """Whether a word is UTF-8, as names and keys in the store are: one that is not can find nothing."""
    try:
        word.encode()
    except UnicodeEncodeError:
        return False
    return True
