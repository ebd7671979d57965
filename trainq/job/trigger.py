"""When to save: every so many steps, epochs or minutes, at the end, and when the job is asked to stop."""

from __future__ import annotations

import time
from typing import Any

from trainq.job import words

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TypeAlias

    Number: TypeAlias = int | float | None

monotonic = time.monotonic
_saved_at = float("-inf")


def saved() -> None:
    """A checkpoint was written just now: the minutes count from here, however long it took."""
    global _saved_at  # noqa: PLW0603 - one training per process
    _saved_at = monotonic()


class Trigger:
    """What `job.checkpoint.every` makes: asked once per step (or batch, or epoch) by one training loop."""

    def __init__(
        self, *, steps: Number, epochs: Number, minutes: Number, on_stop: bool, resumed: tuple[Number, Number]
    ) -> None:
        self._steps = _Interval(steps, resumed[0])
        self._epochs = _Interval(epochs, resumed[1])
        self._seconds = None if minutes is None else 60 * _positive(minutes)
        self._since = monotonic()
        self._waits_for_stop = on_stop
        self._waits_for_last = True
        self._due_at: Any = None
        if on_stop:
            self._is_stopping()  # so that a TERM during the first step does not end the process

    def due(self, step: Number = None, epoch: Number = None, *, last: bool = False) -> bool:
        """Should a checkpoint be saved now? True once for each reason that has come up since the last call.

        `step` and `epoch` are those that have been done: with `steps=10` it is due at 10, 20, 30 …, also if the
        numbers jump, and not again at the one that was resumed from. `last=True` at the end: due unless it just was,
        at this very step and epoch.
        """
        at = words.finite(step), words.finite(epoch)
        now = monotonic()
        due = self._steps.passed(at[0])
        due = self._epochs.passed(at[1]) or due
        due = self._is_time(now) or due
        due = self._is_told_to_stop() or due
        if last and self._waits_for_last:
            self._waits_for_last = False
            due = due or at == (None, None) or at != self._due_at
        if due:
            self._due_at, self._since = at, now
        return due

    def _is_time(self, now: float) -> bool:
        return self._seconds is not None and now - max(self._since, _saved_at) >= self._seconds

    def _is_told_to_stop(self) -> bool:
        if not self._waits_for_stop or not self._is_stopping():
            return False
        self._waits_for_stop = False
        return True

    @staticmethod
    def _is_stopping() -> bool:
        from trainq import job

        return job.should_stop()


class _Interval:
    """The multiples of a number, as a counter passes them."""

    def __init__(self, size: Number, before: Number) -> None:
        self._size = None if size is None else _positive(size)
        self._before = before

    def passed(self, value: Number) -> bool:
        if self._size is None or value is None:
            return False
        before, self._before = self._before, value
        if before is None or value < before:  # the first, or it counts anew
            return value > 0 and value % self._size == 0
        return value // self._size > before // self._size


def _positive(number: Any) -> int | float:
    found = words.finite(number)
    if found is None or found <= 0:
        raise ValueError(f"checkpoint.every() takes numbers above 0, not {number!r}")
    return found
