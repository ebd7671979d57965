"""Sentences that several commands say."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


def missing(unknown: Sequence[str]) -> list[str]:
    """A note for each selector that found nothing."""
    return [f"no such job: {word}" for word in unknown]


def counted(n: int, one: str, many: str | None = None) -> str:
    """`1 job`, `2 jobs`."""
    return f"{n} {one if n == 1 else many or one + 's'}"
