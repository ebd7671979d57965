"""What a worker says while it works, and the report at its end."""

from __future__ import annotations

import signal
from collections import Counter, deque
from typing import TYPE_CHECKING, Any

from trainq.base import clock
from trainq.worker.place import Report

if TYPE_CHECKING:
    from collections.abc import Callable

    from trainq.base.errors import TrainqError
    from trainq.worker.attempt import Attempt

LISTED = 1000
"""So many attempts are told one by one at the end; of what came before, only how it ended is counted."""


class Teller:
    """One worker's words; `on_event` hears each as it comes."""

    def __init__(self, name: str, on_event: Callable[[str, dict[str, Any]], None]) -> None:
        self._on_event = on_event
        self._report = Report(name, deque(maxlen=LISTED), Counter(), 0)
        self._complained = ""
        self._killed = 0

    def say(self, kind: str, **facts: Any) -> None:
        """Something has happened."""
        self._on_event(kind, facts)

    def complain(self, error: TrainqError) -> None:
        """Say what is wrong with the storage, once until it is well again."""
        if error.message != self._complained:
            self._complained = error.message
            self.say("trouble", message=error.message, hint=error.hint)

    def is_well(self) -> None:
        """The storage has done what was asked of it."""
        self._complained = ""

    def job_ended(self, attempt: Attempt) -> None:
        """The end of an attempt is written."""
        row, outcome, decision = attempt.claimed.row, attempt.outcome, attempt.decision
        facts = {
            "id": row["id"], "name": row["name"], "attempt": row["attempt"],
            "state": None if decision is None else decision.state, "reason": None if decision is None else decision.reason,
            "exit_code": None if outcome is None else outcome.exit_code,
            "run_s": None if attempt.started_at is None else clock.boot_s() - attempt.started_at,
            "error": None if outcome is None else outcome.error,
            "model": None if attempt.version is None else f"{row['model_key']}@{attempt.version}",
        }  # fmt: skip
        if attempt.stopped_for == "drained" and outcome is not None and outcome.signal == signal.SIGKILL:
            self._killed += 1
        self._report.jobs.append(facts)
        self._report.ends[facts["state"], facts["reason"]] += 1
        self.say("job ended", **facts)

    def ended(self, lost_claims: int, quarantine: str | None) -> Report:
        """The worker ends."""
        self.say("ended", jobs=self._report.ends.total(), lost_claims=lost_claims, quarantine=quarantine)
        return self._report._replace(lost_claims=lost_claims, quarantine=quarantine, killed=self._killed)
