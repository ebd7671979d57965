"""One broken host must not eat the queue: it is the host when three different jobs in a row cannot be started on it,
or when the disk refuses run directories. What could not even be handed to the keeper is the job's own trouble.

A worker in quarantine claims nothing, says so in its row, and goes on with what it runs; people clear it. What brings it
there may keep it from writing: until a turn has, its row means nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from trainq.worker.attempt import Attempt

SPAWN_FAILURES = 3


class Quarantine:
    """What this worker thinks of itself."""

    def __init__(self) -> None:
        self.why: str | None = None
        self.is_written = False  # the row says so, or has, and is what people clear
        self._failed: list[int] = []

    def judge(self, attempt: Attempt) -> bool:
        """Look at an end; true when the worker has just put itself into quarantine."""
        if attempt.trouble is not None and self.why is None:
            self.why = attempt.trouble
            return True
        if attempt.outcome is None or attempt.outcome.cause != "spawn":
            if attempt.pid is not None:
                self._failed.clear()  # something could be started here
            return False
        if not attempt.handed:
            return False
        if attempt.claim.job_id not in self._failed:
            self._failed.append(attempt.claim.job_id)
        if len(self._failed) < SPAWN_FAILURES or self.why is not None:
            return False
        self.why = f"jobs {', '.join(map(str, self._failed))} could not be started here"
        return True

    def is_near(self, ends: Iterable[Attempt]) -> bool:
        """Whether it follows from these ends, which are still to be written and judged."""
        trial = Quarantine()
        trial._failed = list(self._failed)
        return any(trial.judge(attempt) for attempt in ends)

    @property
    def to_write(self) -> str | None:
        """What the row does not say yet."""
        return None if self.is_written else self.why

    def clear(self) -> None:
        """Begin again."""
        self.why, self.is_written = None, False
        self._failed.clear()
