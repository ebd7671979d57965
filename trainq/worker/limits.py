"""When a running job must be stopped: at its time limit, or when it has said nothing for too long.

Neither counts while its keeper has frozen it, for people or for its lease, and a worker may learn late that it was: what
comes due after the lease has passed stands still until the keeper has told. Seconds of the boot clock throughout.
"""

from __future__ import annotations

WORD_S = 1.0
"""How long the keeper has to tell that it had frozen a job, before a limit counts again."""


class Limits:
    """The two limits of one attempt, and the lease under which it computes."""

    def __init__(self, time_s: float | None, stall_s: float | None) -> None:
        self.paused = False  # people want it to stand still
        self._frozen = False  # the keeper has told so
        self._fenced = False  # and not for people
        self._time_s = time_s
        self._stall_s = stall_s
        self._end_at: float | None = None
        self._spoke_at = self._lease_until = self._counts_from = 0.0
        self._runs = False

    def started(self, now: float) -> None:
        """The process runs."""
        self._runs, self._spoke_at = True, now
        self._end_at = None if self._time_s is None else now + self._time_s

    def spoke(self, now: float) -> None:
        """The job has said something."""
        self._spoke_at = now

    def pause(self, now: float, *, paused: bool) -> None:
        """People want it to stand still, or to go on. How long it stood still is told later."""
        self.paused, self._counts_from = paused, now + WORD_S

    def froze(self) -> None:
        """The keeper has frozen it."""
        self._frozen, self._fenced = True, not self.paused

    def thawed(self, frozen_s: float) -> None:
        """It goes on after so long."""
        self._frozen = self._fenced = False
        self._spoke_at += frozen_s
        if self._end_at is not None:
            self._end_at += frozen_s

    def lease(self, until: float) -> None:
        """The job may compute until then."""
        self._lease_until = until

    def renew(self, until: float, now: float) -> bool:
        """The same with a beat; whether it comes so late that the keeper may have frozen the job."""
        was_late, might_be = now >= self._lease_until, self.may_be_fenced(now)
        if was_late:
            self._counts_from = now + WORD_S
        self._lease_until, self._fenced = until, False
        return might_be

    def may_be_fenced(self, now: float) -> bool:
        """Whether its keeper has frozen it for its lease, or is about to and will tell: a stop would kill it there."""
        return self._fenced or now >= self._lease_until

    def due_at(self, now: float) -> float | None:
        """When it must be stopped, as far as can be told now."""
        if not self._runs or self.paused or self._frozen or now >= self._lease_until:
            return None
        stalls_at = None if self._stall_s is None else self._spoke_at + self._stall_s
        due = [at for at in (self._end_at, stalls_at) if at is not None]
        return max(min(due), self._counts_from) if due else None

    def is_timeout(self, now: float) -> bool:
        """Whether it is the time limit that has come."""
        return self._end_at is not None and now >= self._end_at
