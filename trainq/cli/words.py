"""Sentences that several commands say."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def missing(unknown: Sequence[str]) -> list[str]:
    """A note for each selector that found nothing."""
    return [f"no such job: {word}" for word in unknown]


def counted(n: int, one: str, many: str | None = None) -> str:
    """`1 job`, `2 jobs`."""
    return f"{n} {one if n == 1 else many or one + 's'}"


def action_of(action: str, known: Sequence[str], command: str) -> None:
    """Refuse an action that a command does not have. Raises Usage with the nearest."""
    if action not in known:
        from trainq.base.errors import Usage
        from trainq.base.words import did_you_mean, quoted

        raise Usage(f"{command} cannot {quoted(action)}{did_you_mean(action, known)}", hint=f"trainq {command} --help")


def short_values(values: Mapping[str, Any]) -> str:
    """Parameters or metrics in a cell: `alpha=0.5 accuracy=0.9444`."""
    return " ".join(f"{name}={_short(value)}" for name, value in values.items())


def _short(value: Any) -> str:
    import json

    if isinstance(value, float):
        return f"{value:.6g}"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
