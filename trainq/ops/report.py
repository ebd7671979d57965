"""What a job says of itself by way of `trainq report`: words in, one message to its worker out. No queue is opened."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from trainq.base.errors import BadValue
from trainq.base.words import quoted

if TYPE_CHECKING:
    from collections.abc import Sequence

_NUMBER = r"[0-9]+(?:\.[0-9]*)?|\.[0-9]+"


class Said(NamedTuple):
    """One message, read and checked."""

    fraction: float | None
    step: float | None
    total: float | None
    message: str | None
    metrics: dict[str, float]
    group: str | None


def read(
    *, progress: str | None, step: str | None, message: str | None, metrics: Sequence[str], group: str | None = None
) -> Said:
    """The message of these words. Raises BadValue."""
    at, total = _step(step) if step is not None else (None, None)
    fraction = _fraction(progress) if progress is not None else None
    return Said(fraction, at, total, message, dict(_metric(text) for text in metrics), group)


def send(said: Said) -> str:
    """Say it to the worker: "sent", "outside" (this is no job) or "gone" (its worker does not answer)."""
    from trainq.job.report import send as to_worker

    return to_worker(
        fraction=said.fraction, step=said.step, total=said.total, message=said.message, metrics=said.metrics,
        group=said.group,
    )  # fmt: skip


def _fraction(text: str) -> float:
    """`0.4` or `40%`."""
    found = re.fullmatch(rf"({_NUMBER})(%?)", text)
    value = float(found[1]) / (100 if found[2] else 1) if found else -1.0
    if not 0 <= value <= 1:
        raise BadValue(f"--progress takes a number from 0 to 1, or a percentage, not {quoted(text)}")
    return value


def _step(text: str) -> tuple[float, float | None]:
    """`10` or `10/100`."""
    found = re.fullmatch(rf"({_NUMBER})(?:/({_NUMBER}))?", text)
    if found is None:
        raise BadValue(f"--step takes N or N/TOTAL, not {quoted(text)}")
    return _number(found[1]), None if found[2] is None else _number(found[2])


def _number(text: str) -> float:
    return int(text) if text.isdecimal() else float(text)


def _metric(text: str) -> tuple[str, float]:
    name, equals, value = text.partition("=")
    try:
        if name and equals:
            return name, float(value)
    except ValueError:
        pass  # said below, as for the other forms
    raise BadValue(f"--metric takes NAME=NUMBER, not {quoted(text)}")
