"""The line of `--on-end`: it runs in the slot of its job once the end is committed, under the same keeper, with a limit.

Whatever becomes of it, the job's end stays what it is; a failure is told by one event in the job's history.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainq.base import words
from trainq.domain.outcome import not_started
from trainq.worker.keepers import Empty, Exited, Failed

if TYPE_CHECKING:
    from trainq.domain.job import Decision, Outcome
    from trainq.worker.keepers import Event, Keeper

GRACE_S = 2.0
NO_LEASE_S = 3600.0
"""No claim is at stake any more: far beyond any limit."""


class Hook:
    """One that was started: until when it may run (None: it has ended), and what went wrong."""

    def __init__(self, cwd: str) -> None:
        self.until: float | None = None  # boot clock
        self.failed: str | None = None
        self._cwd = cwd

    def heard(self, event: Event) -> None:
        """What the keeper said of it."""
        if isinstance(event, Failed):
            self.end(not_started(event.step, event.errno, "/bin/sh", words.printable(self._cwd)).error)
        elif isinstance(event, Exited) and (event.code or event.signal):
            ended = f"exit {event.code}" if event.signal is None else f"signal {event.signal}"
            self.failed = self.failed or ended
        elif isinstance(event, Empty):
            self.until = None

    def end(self, why: str | None) -> None:
        """Nothing of it runs, for this reason."""
        self.until, self.failed = None, why

    def stop(self, keeper: Keeper, now: float) -> None:
        """Its limit has come; only its end is waited for."""
        self.failed = "it was stopped at its limit"
        self.until = now + NO_LEASE_S
        keeper.stop(GRACE_S)


def variables(outcome: Outcome, decision: Decision, model: str | None) -> dict[str, str]:
    """What a line is told besides the job's own variables; `model` is the directory that was published."""
    told = {} if model is None else {"TRAINQ_MODEL_DIR": model}
    return told | {
        "TRAINQ_STATE": decision.state,
        "TRAINQ_REASON": decision.reason or "",
        "TRAINQ_EXIT_CODE": "" if outcome.exit_code is None else str(outcome.exit_code),
    }
