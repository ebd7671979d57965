"""What a job said, made well-formed: every key there and of its type, numbers that a row can hold, text that is text.

The words are described in trainq/worker/channel.py. Nothing here raises, whatever the job made of its JSON.
"""

from __future__ import annotations

from typing import Any

NAME_LIMIT = 200
TEXT_LIMIT = 1000
ERROR_LIMIT = 8000
_HEX = frozenset("0123456789abcdef")


def checked(message: dict[str, Any]) -> dict[str, Any] | None:
    """The message with every key there and of its type; None for an unknown word or nothing to say."""
    match message.get("do"):
        case "progress":
            return _progress(message)
        case "metric":
            return _metric(message)
        case "checkpoint":
            return _checkpoint(message)
        case "checkpoint_failed":
            return {"do": "checkpoint_failed", "error": _text(message.get("error"), TEXT_LIMIT) or "no reason given"}
        case "failed":
            error = _text(message.get("error"), ERROR_LIMIT)
            return {"do": "failed", "error": error} if error else None
        case _:
            return None


def _progress(message: dict[str, Any]) -> dict[str, Any] | None:
    fraction, step, total = (_finite(message.get(key)) for key in ("fraction", "step", "total"))
    if fraction is None and step is not None and total:
        fraction = step / total
    if fraction is not None:
        fraction = min(max(float(fraction), 0.0), 1.0)
    text = _text(message.get("message"), TEXT_LIMIT)
    if fraction is None and step is None and total is None and text is None:
        return None
    return {"do": "progress", "fraction": fraction, "step": step, "total": total, "message": text}


def _metric(message: dict[str, Any]) -> dict[str, Any] | None:
    given = message.get("values")
    if not isinstance(given, dict):
        return None
    values = {_text(name, NAME_LIMIT): _real(value) for name, value in given.items()}
    values = {name: value for name, value in values.items() if value is not None}
    if not values:
        return None
    step, group = _finite(message.get("step")), _text(message.get("group"), NAME_LIMIT)
    return {"do": "metric", "values": values, "step": step, "group": group}


def _checkpoint(message: dict[str, Any]) -> dict[str, Any] | None:
    number, size, digest = message.get("number"), message.get("size"), message.get("digest")
    if not _is_count(number) or not number or not _is_count(size):
        return None
    if not isinstance(digest, str) or len(digest) != 64 or not _HEX.issuperset(digest):
        return None
    step, epoch = _finite(message.get("step")), _finite(message.get("epoch"))
    return {"do": "checkpoint", "number": number, "step": step, "epoch": epoch, "digest": digest, "size": size}


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63


def _real(value: Any) -> float | None:
    if isinstance(value, str) and value not in {"nan", "inf", "-inf"}:
        return None
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return None


def _finite(value: Any) -> int | float | None:
    """A number that a database column holds: finite, whole ones within 64 bits."""
    if isinstance(value, int) and -(2**63) <= value < 2**63:
        return int(value)
    if isinstance(value, float) and value - value == 0:
        return value
    return None


def _text(value: Any, limit: int) -> str | None:
    """Text without half surrogates, which JSON can spell and UTF-8 cannot."""
    if not isinstance(value, str):
        return None
    return value[:limit].encode("utf-8", "replace").decode("utf-8")
