"""What a worker was told to do, by signals or in its row: to finish what runs, to stop it, to kill it. A step is never
taken back."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trainq.worker.attempt import Attempt
    from trainq.worker.teller import Teller

DRAIN, STOP, KILL = 1, 2, 3


class Orders:
    """One worker's, as they come in, and what they mean for its attempts."""

    def __init__(self, teller: Teller) -> None:
        self.step = 0
        self.is_told = False  # by somebody, and not by what it met
        self._teller = teller
        self._signalled = 0

    def hear(self, number: int, attempts: Sequence[Attempt]) -> None:
        """A signal: INT drains, TERM and HUP stop; once more is the next step."""
        first = DRAIN if number == signal.SIGINT else STOP
        self._signalled = max(first, min(self._signalled + 1, KILL))
        self.step, self.is_told = max(self.step, self._signalled), True
        if self.step == DRAIN:
            self._say_draining(attempts, None)
        else:
            self._stop(attempts, at_once=self.step == KILL)

    def drain(self, by: str, attempts: Sequence[Attempt]) -> None:
        """People have asked for it in the worker's row. A first INT after that asks for no more."""
        self.step, self.is_told = max(self.step, DRAIN), True
        self._say_draining(attempts, by)

    def insist(self, attempts: Sequence[Attempt]) -> None:
        """What is told to stop cannot act on it, and others may have it by now: the next step, without a word of anybody."""
        self.step = KILL
        self._stop(attempts, at_once=True)

    def _stop(self, attempts: Sequence[Attempt], *, at_once: bool) -> None:
        self._teller.say("stopping", running=len(attempts), at_once=at_once)
        for attempt in attempts:
            attempt.stop("drained", 0.0 if at_once else attempt.grace_s())

    def _say_draining(self, attempts: Sequence[Attempt], by: str | None) -> None:
        paused = [attempt.claim.job_id for attempt in attempts if attempt.is_paused]
        self._teller.say("draining", running=len(attempts), paused=paused, by=by)
