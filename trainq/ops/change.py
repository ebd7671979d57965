"""What a changing verb did to each id."""

from __future__ import annotations

from typing import Any, NamedTuple


class Change(NamedTuple):
    """One id and what became of it; `error` is the message when `result` is unknown, denied or refused."""

    id: int | str | None
    result: str
    error: str | None = None
    facts: dict[str, Any] | None = None
