"""What it means for a worker that the storage takes no word from it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainq.base import clock
from trainq.base.errors import MadeAnew, NoRoot

if TYPE_CHECKING:
    from trainq.base.errors import TrainqError


class Outage:
    """Why the last turn could not be taken, and since when none can; nothing while all is well."""

    def __init__(self) -> None:
        self.error: TrainqError | None = None
        self._since = 0.0  # boot clock

    def met(self, error: TrainqError) -> None:
        """A turn failed."""
        if self.error is None:
            self._since = clock.boot_s()
        self.error = error

    def is_over(self) -> None:
        """A turn was taken."""
        self.error = None

    @property
    def is_without_root(self) -> bool:
        """Whether the queue is not where it was."""
        return isinstance(self.error, NoRoot)

    def is_for_good(self, *, finite: bool, patience_s: float) -> bool:
        """Whether what runs is of no use any more: in a queue that was made anew the same numbers mean other jobs; and who
        is to end some time (`finite`) does not wait for a deleted one longer than anybody would leave it its jobs."""
        if isinstance(self.error, MadeAnew):
            return True
        return self.is_without_root and finite and self.lasts(patience_s)

    def lasts(self, patience_s: float) -> bool:
        """Whether it has lasted longer than that."""
        return self.error is not None and clock.boot_s() - self._since > patience_s
