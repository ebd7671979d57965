"""The JSON documents: one form for all kinds, valid UTF-8 and valid JSON whatever the values hold."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from trainq.base import clock
from trainq.base.units import rfc3339

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

SCHEMA = "trainq/1"


def document(kind: str, doc: Mapping[str, Any], *, indent: int | None = None) -> bytes:
    """One document with its line end."""
    whole = {"schema": SCHEMA, "kind": kind, "generated_at": rfc3339(clock.now()), **doc}
    return encode(whole, indent=indent)


def encode(value: Any, *, indent: int | None = None) -> bytes:
    """A value as JSON and a line end. NaN is null; text that is not UTF-8 gets a `…_b64` twin beside it."""
    try:
        return _dumped(value, indent)
    except ValueError:  # a NaN, or a lone surrogate (UnicodeEncodeError is a ValueError)
        return _dumped(_clean(value), indent)


def _dumped(value: Any, indent: int | None) -> bytes:
    separators = (",", ":") if indent is None else None
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, indent=indent, separators=separators)
    return text.encode() + b"\n"


def _clean(value: Any) -> Any:
    if isinstance(value, dict):
        return _clean_object(value)
    if isinstance(value, (list, tuple)):
        return [_clean(item) for item in value]
    if isinstance(value, float) and value - value != 0:
        return None
    return _shown(value) if isinstance(value, str) else value


def _clean_object(value: dict[str, Any]) -> dict[str, Any]:
    clean: dict[str, Any] = {}
    twins: dict[str, Any] = {}
    for key, item in value.items():
        name = _shown(key)
        clean[name] = _clean(item)
        if isinstance(item, str) and _shown(item) != item:
            twins[f"{name}_b64"] = _base64(item)
        elif isinstance(item, (list, tuple)) and _has_bytes(item):
            twins[f"{name}_b64"] = [_base64(word) for word in item]
    return clean | twins


def _has_bytes(words: Sequence[Any]) -> bool:
    """Whether these are texts, and one of them is not UTF-8."""
    return all(isinstance(word, str) for word in words) and any(_shown(word) != word for word in words)


def _shown(text: str) -> str:
    """Valid text: each byte that is not UTF-8 is shown as U+FFFD."""
    if text.isascii():
        return text
    return text.encode("utf-8", "surrogateescape" if _is_bytes(text) else "replace").decode("utf-8", "replace")


def _is_bytes(text: str) -> bool:
    """Whether every lone surrogate stands for a byte, as in the words of a command line."""
    try:
        text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return False
    return True


def _base64(text: str) -> str:
    from base64 import b64encode

    return b64encode(text.encode("utf-8", "surrogateescape" if _is_bytes(text) else "surrogatepass")).decode()
