"""What a job has told of itself: progress, metrics, its first error, and the checkpoints that wait for a commit."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

from trainq.domain.job import Progress
from trainq.store import checkpoints
from trainq.store.checkpoints import NewCheckpoint

if TYPE_CHECKING:
    from collections.abc import Callable

    from trainq.domain.job import Claim
    from trainq.store.session import Transaction
    from trainq.worker.channel import Asker, Channel

METRIC_NAMES = 1000


class Save(NamedTuple):
    """A checkpoint that the job has announced and that is not committed yet, and who waits for the answer."""

    checkpoint: NewCheckpoint
    asker: Asker


class Told:
    """Everything one attempt was told by its job. `note` writes a line into the job's log."""

    def __init__(self, channel: Channel, note: Callable[[str], None]) -> None:
        self.progress = Progress()
        self.metrics: dict[str, float] = {}
        self.first_error = ""  # as the job told it, before its log went on
        self.is_fresh = False  # something no beat has carried yet
        self.has_saved = False
        self.saves: list[Save] = []
        self._channel = channel
        self._note = note
        self._too_many_names = False

    @property
    def is_any(self) -> bool:
        """Whether it has reported how far it came or how good it is, or has saved."""
        said = self.progress
        is_on = any(value is not None for value in (said.fraction, said.step, said.note))
        return is_on or bool(self.metrics) or self.has_saved or bool(self.saves)

    def hear(self, message: dict[str, Any]) -> None:
        """What the job said through the channel."""
        word = message["do"]
        if word == "progress":
            said = {name: message[name] for name in ("fraction", "step", "total")} | {"note": message["message"]}
            self.put(**{name: new for name, new in said.items() if new is not None})
        elif word == "metric":
            self._add_metrics(message["values"])
        elif word == "checkpoint":
            self.saves.append(Save(NewCheckpoint(*(message[name] for name in NewCheckpoint._fields)), message["asker"]))
        elif word == "checkpoint_failed":
            self.put(save_failed=(self.progress.save_failed or 0) + 1)
            self._note(f"a checkpoint could not be saved: {message['error']}")
        elif word == "failed":
            self.first_error = self.first_error or message["error"]
        self.is_fresh = True

    def put(self, **known: Any) -> None:
        """Note it with the progress."""
        self.progress = self.progress._replace(**known)

    def _add_metrics(self, values: dict[str, float]) -> None:
        """The newest of each name; a job that makes up names without end is heard for the first of them only."""
        for name, value in values.items():
            if name in self.metrics or len(self.metrics) < METRIC_NAMES:
                self.metrics[name] = value
            elif not self._too_many_names:
                self._too_many_names = True
                self._note(f"more than {METRIC_NAMES} names of metrics: further ones are not kept")

    def finite(self) -> dict[str, float | None]:
        """Metrics as JSON can hold them: no number is null."""
        return {name: value if value - value == 0 else None for name, value in self.metrics.items()}

    def latest(self) -> Progress:
        """The progress with the metrics."""
        return self.progress._replace(metrics=json.dumps(self.finite()) if self.metrics else None)

    def commit_saves(self, tx: Transaction, claim: Claim) -> None:
        """Write the rows of the saved checkpoints. Raises LostClaim."""
        for save in self.saves:
            checkpoints.commit(tx, claim, save.checkpoint)

    def answer(self, *, ok: bool) -> None:
        """Tell who saved what became of it."""
        for save in self.saves:
            self._channel.ack(save.asker, ok)
            self.has_saved = self.has_saved or ok
        self.saves.clear()
