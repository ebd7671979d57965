"""One attempt of one job, as five steps: prepare, start, watch, classify, settle.

What must stay true: nothing that goes wrong with a job is the worker's trouble (it becomes the attempt's outcome, said
in its log too); every write carries the claim; a model is named only in the transaction that says `done`.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any, NamedTuple

from trainq.artifacts import logs, manifest, runs
from trainq.artifacts import models as model_files
from trainq.base import clock, files
from trainq.base.crash import point
from trainq.base.errors import BadData, DiskFull, Storage, TrainqError, Unwritable
from trainq.domain.job import NewModel, Outcome, Progress
from trainq.domain.outcome import Seen, classify, not_started
from trainq.domain.retention import to_remove
from trainq.executors import local
from trainq.store import jobs, models
from trainq.worker import variables
from trainq.worker.keepers import Empty, Exited, Failed, Plan, Started

if TYPE_CHECKING:
    from collections.abc import Callable

    from trainq.domain.job import Claim, Claimed, Decision
    from trainq.store.jobs import Flags
    from trainq.store.session import Transaction
    from trainq.worker.keepers import Event, Keeper
    from trainq.worker.loop import Place

LOG_LINES = 20


class Removed(NamedTuple):
    """A model version that retention took out; its directory goes after the commit."""

    key: str
    version: int


class Attempt:
    """A claimed job on its way through one slot. Driven by the worker's loop, in its thread.

    `over`: the outcome is known, the keeper is free, and only the transaction is missing. `lost`: the claim is not ours
    any more; the processes are killed, nothing is written, and once `buried` the slot is free.
    """

    def __init__(self, claimed: Claimed, place: Place, keeper: Keeper) -> None:
        self.claimed = claimed
        self.claim: Claim = claimed.claim
        self.uid = claimed.uid
        self.place = place
        self.keeper = keeper
        self.outcome: Outcome | None = None
        self.decision: Decision | None = None
        self.version: int | None = None
        self.removed: list[Removed] = []
        self.stopped_for: str | None = None
        self.fresh = False  # something was reported that no beat has carried yet
        self.busy = False  # slow work of this attempt is in the pool
        self.unsure = False  # a commit that named its end answered with an error
        self.lost = False
        self.reported_at = 0.0  # boot clock, when a beat last carried the progress
        self.progress = Progress()
        self.metrics: dict[str, float] = {}
        self.handed = False  # the keeper has its plan
        self.pid: int | None = None
        self.started_at: float | None = None  # boot clock
        self.storing_at: float | None = None
        self.limit_at: float | None = None
        self._exited: Exited | None = None
        self._run: runs.RunFiles | None = None
        self._staged: str | None = None
        self._model: NewModel | None = None
        self._data: dict[str, str] = {}

    @property
    def over(self) -> bool:
        """Whether the outcome is known and can be written."""
        return self.outcome is not None and not self.busy and not self.lost

    @property
    def buried(self) -> bool:
        """Whether nothing of a lost attempt is left."""
        return self.lost and not self.busy and (self.outcome is not None or not self.handed)

    def lose(self) -> None:
        """The claim is lost: stop working before explaining."""
        self.lost = True
        if self.handed and self.outcome is None:
            self.keeper.stop(0)

    # prepare ---------------------------------------------------------------------------------------------------

    def prepare(self) -> None:
        """Make the run directory, unpack the training sets (in the pool when there are any), then start."""
        try:
            self._open_files()
        except Exception as error:  # noqa: BLE001  # whatever a row holds, it must not end the worker
            self._end(_cause(error, "spawn"), f"cannot prepare the run: {_text(error)}")
            return
        if self.claimed.data:
            self.busy = True
            self.place.slow(self._unpack, self._unpacked)
        else:
            self.start()

    def _open_files(self) -> None:
        row, spec = self.claimed.row, self.claimed.spec
        params = spec.get("params")
        self._run = runs.open_run(
            self.place.paths, row["id"], row["attempt"],
            params=None if params is None else json.dumps(params).encode(), split_stderr=spec.get("split_stderr", False),
        )  # fmt: skip
        if row["model_key"] is not None:
            self._staged = model_files.stage(self.place.paths, row["id"], row["attempt"])

    def _unpack(self) -> None:
        from trainq.artifacts import datasets

        assert self._run is not None
        names = self.claimed.spec.get("files", {})
        for item in self.claimed.data:
            # No name that a user can give has a "-" in it.
            own = item.name if item.name.isidentifier() else f"{item.name.strip('<>') or 'the'}-set"
            directory = os.path.join(self._run.dir, "data", own)
            files.make_directories(self._run.dir, os.path.relpath(directory, self._run.dir))
            target = os.path.join(directory, names.get(item.name) or "data")
            stored = item.z if item.z is not None else self.place.paths.training_set(item.sha256)
            datasets.unpack(stored, target, item.sha256, item.size)
            self._data[item.name] = target

    def _unpacked(self, error: BaseException | None) -> None:
        self.busy = False
        if error is not None:
            self._end(_cause(error, "data"), f"the training set cannot be unpacked: {_text(error)}")
        elif self.outcome is None:
            self.start()

    # start -----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Hand the plan to the keeper, unless the job was stopped meanwhile."""
        if self.lost:
            return
        if self.stopped_for is not None:
            self._end(self.stopped_for if self.stopped_for == "drained" else "exit", "stopped before it started")
            return
        assert self._run is not None
        try:
            plan = self._plan()
            stdin = self._open_stdin()
        except Exception as error:  # noqa: BLE001  # whatever a row holds, it must not end the worker
            self._end(_cause(error, "spawn"), f"cannot prepare the run: {_text(error)}")
            return
        try:
            stderr = self._run.stderr_fd if self._run.stderr_fd is not None else self._run.log_fd
            self.keeper.start(plan, stdin, self._run.log_fd, stderr)
            self.handed = True
        except TrainqError as error:
            self._end("spawn", _text(error))
        finally:
            os.close(stdin)

    def _plan(self) -> Plan:
        assert self._run is not None
        row, spec = self.claimed.row, self.claimed.spec
        secrets: dict[str, str] = {}
        if spec.get("secrets"):
            found = runs.read_secret(self.place.paths, self.uid)
            if found is None:
                raise BadData("the kept variables of this job are gone: " + ", ".join(spec["secrets"]))
            secrets = found
        checkpoints = runs.open_checkpoints(self.place.paths, row["id"])
        self.place.channel.ensure()
        own = variables.ours(
            self.claimed, root=self.place.paths.root, worker=self.place.name, socket=self.place.channel.path, run=self._run,
            data={name: path for name, path in self._data.items() if not name.startswith("<")},
            model_dir=self._staged, checkpoints=checkpoints, resume=row["attempt"] > 1 and bool(os.listdir(checkpoints)),
            deadline=None if row["time_s"] is None else clock.now() + row["time_s"],
        )  # fmt: skip
        env = variables.complete(variables.base(self.claimed, secrets), own)
        argv = tuple(os.fsencode(word) for word in local.argv(spec))
        return Plan(argv, env, os.fsencode(spec["cwd"]), self.claimed.umask)

    def _open_stdin(self) -> int:
        path = next((path for name, path in self._data.items() if name.startswith("<")), os.devnull)
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    # watch -----------------------------------------------------------------------------------------------------

    def heard(self, event: Event) -> None:
        """What the keeper said."""
        if isinstance(event, Started):
            self.pid, self.started_at = event.pid, clock.boot_s()
            self.progress = self.progress._replace(stage="training")
            time_s = self.claimed.row["time_s"]
            self.limit_at = None if time_s is None else self.started_at + time_s
        elif isinstance(event, Failed):
            self._not_started(event)
        elif isinstance(event, Exited):
            self._exited = event
        elif isinstance(event, Empty):
            self._classify()

    def keeper_died(self) -> None:
        """The keeper was killed, and the job with it: the worker's host, not the job, is to blame."""
        self._end("zombie", "the process that kept it was killed")

    def said(self, message: dict[str, Any]) -> None:
        """What the job said through the channel."""
        if message["do"] == "progress":
            step, total = message["step"], message["total"]
            fraction = message["fraction"]
            if fraction is None and step is not None and total:
                fraction = min(1.0, max(0.0, step / total))
            said = {"fraction": fraction, "step": step, "total": total, "note": message["message"]}
            self.progress = self.progress._replace(**{name: new for name, new in said.items() if new is not None})
        elif message["do"] == "metric":
            self.metrics.update(message["values"])
        self.fresh = True

    def stop(self, why: str, grace_s: float) -> None:
        """End the process tree: the job is told, TERM, the grace, KILL. The first reason stays the reason."""
        if self.stopped_for is None:
            self.stopped_for = why
            self.place.channel.push(self.uid, self.claim.attempt, {"do": "stop", "reason": _STOP_WORDS[why]})
        if self.handed:
            self.keeper.stop(grace_s)

    def grace_s(self) -> float:
        """Seconds between TERM and KILL."""
        own = self.claimed.row["grace_s"]
        return float(self.place.grace_s if own is None else own)

    def beat(self, tx: Transaction) -> Flags:
        """Renew the lease with the newest progress. Raises LostClaim."""
        flags = jobs.beat(tx, self.claim, self.latest())
        self.fresh, self.reported_at = False, clock.boot_s()
        return flags

    def report_at(self, every_s: float, after_start_s: float) -> float | None:
        """When (boot clock) the row should be brought up to date ahead of the next beat; None when it is."""
        if self.outcome is not None or self.lost:
            return None
        if self.reported_at == 0.0:
            return None if self.started_at is None else self.started_at + after_start_s
        return self.reported_at + every_s if self.fresh else None

    def latest(self) -> Progress:
        """All that is known, with ages instead of times."""
        now = clock.boot_s()
        return self.progress._replace(
            pid=self.pid,
            started_ago_s=None if self.started_at is None else now - self.started_at,
            storing_ago_s=None if self.storing_at is None else now - self.storing_at,
        )

    # classify --------------------------------------------------------------------------------------------------

    def _not_started(self, event: Failed) -> None:
        spec = self.claimed.spec
        program = files.printable(local.argv(spec)[0])
        outcome = not_started(event.step, event.errno, program, files.printable(spec["cwd"]))
        self._note(outcome.error or "")
        self._decide(outcome)

    def _classify(self) -> None:
        assert self._run is not None
        ended = self._exited
        if self.lost:
            self.outcome = Outcome("zombie")
            return
        if ended is None:
            self._end("spawn", "the process was lost before it ended")
            return
        failed = ended.signal is not None or ended.code != 0
        seen = Seen(
            ended.code, ended.signal, self.stopped_for, self.claimed.row["time_s"],
            bool(self.metrics) or self.progress.fraction is not None,
            self._log_end() if failed else "",
        )  # fmt: skip
        self._decide(classify(seen))

    def _log_end(self) -> str:
        """The last lines that the job wrote; none when it took its log away or put something else there."""
        assert self._run is not None
        try:
            return logs.last_text(self._run.stderr or self._run.log, lines=LOG_LINES)
        except (TrainqError, OSError):
            return ""

    def _decide(self, outcome: Outcome) -> None:
        self.place.channel.drop(self.uid, self.claim.attempt)
        metrics = json.dumps(_finite(self.metrics)) if self.metrics else None
        self.outcome = outcome._replace(metrics=metrics)
        if outcome.cause is None and self._staged is not None:
            self.storing_at = clock.boot_s()
            self.progress = self.progress._replace(stage="storing")
            self.busy = self.fresh = True
            self.place.slow(self._seal, self._sealed)

    def _seal(self) -> None:
        """Hash and sync what the job left; no model is an outcome too."""
        assert self._staged is not None
        row, spec = self.claimed.row, self.claimed.spec
        facts = {
            "key": row["model_key"], "job": row["id"], "job_uid": self.uid, "attempt": row["attempt"], "type": row["type"],
            "params": spec.get("params") or {}, "seed": spec.get("seed", 0), "metrics": _finite(self.metrics),
            "fingerprint": row["fingerprint"], "data": {item.name: item.sha256 for item in self.claimed.data},
        }  # fmt: skip
        sealed = manifest.seal(self._staged, facts)
        if sealed is not None:
            self._model = NewModel(
                row["model_key"], row["type"], json.dumps(facts["params"]), json.dumps(facts["metrics"]),
                row["fingerprint"], sealed.size, sealed.digest,
            )  # fmt: skip

    def _sealed(self, error: BaseException | None) -> None:
        self.busy = False
        if isinstance(error, manifest.ModelError):
            self._end("model", _text(error))
        elif error is not None:
            self.store_failed(error)
        elif self._model is None and self.claimed.spec.get("model_required"):
            self._end("model", "it ended well but left nothing in TRAINQ_MODEL_DIR, and its type requires a model")

    def store_failed(self, error: BaseException) -> None:
        """The result could not be published: it is kept where it lies, and the error says where."""
        self._model, self.version, self.decision, self.removed = None, None, None, []
        self._end("store", f"the model could not be published: {_text(error)}; it is kept in {self._staged}")

    def _end(self, cause: str, text: str) -> None:
        self._note(text)
        ended = self._exited
        self.place.channel.drop(self.uid, self.claim.attempt)
        self.outcome = Outcome(
            cause, None if ended is None else ended.code, None if ended is None else ended.signal, text
        )

    def _note(self, text: str) -> None:
        try:
            runs.append_note(
                self.place.paths, self.claim.job_id, self.claim.attempt, text.splitlines()[0] if text else ""
            )
        except (TrainqError, OSError):
            pass  # the row says it too

    # settle ----------------------------------------------------------------------------------------------------

    def settle(self, tx: Transaction) -> None:
        """Write the end, in the transaction of the turn. Raises LostClaim, and what the rename raises."""
        assert self.outcome is not None
        if self._model is None or self.outcome.cause is not None:
            self.decision = jobs.settle(tx, self.claim, self.outcome, self.latest())
            return
        paths, key = self.place.paths, self._model.key
        placed = self.version  # by a turn whose commit failed
        on_disk = model_files.highest_version(paths, key)
        if placed is not None and placed == on_disk:
            on_disk -= 1
        self.version = jobs.publish(tx, self.claim, self.outcome, self.latest(), self._model, on_disk)
        if self.version is None:
            self.decision = jobs.CANCELED
            if placed is not None:
                self._staged, self.removed = None, [Removed(key, placed)]
            return
        self.decision = jobs.DONE
        assert self._staged is not None
        self._staged = model_files.place(paths, self._staged, key, self.version)
        self.removed = self._retire(tx, key)
        point("publish.before_commit")

    def _retire(self, tx: Transaction, key: str) -> list[Removed]:
        keep = self.claimed.spec.get("keep", self.place.keep_models)
        found = [(row["version"], bool(row["pinned"])) for row in models.versions(tx, key)]
        old = to_remove(found, keep)
        for version in old:
            models.forget(tx, key, version)
        return [Removed(key, version) for version in old]

    def clean(self) -> Callable[[], None] | None:
        """Close what is open; what else is left to do on the disk once the end is committed (slow, and repairable)."""
        if self._run is not None:
            self._run.close()
        kept = self.version is not None or (self.decision is not None and self.decision.reason == "store")
        unused = self._staged is not None and not kept
        if not (self._data or unused or self.version is not None or self.removed):
            return None
        return lambda: self._clean(unused=unused)

    def _clean(self, *, unused: bool) -> None:
        paths = self.place.paths
        if self._run is not None and self._data:
            files.remove_tree(os.path.join(self._run.dir, "data"))
        if unused and self._staged is not None:
            model_files.discard(paths, self._staged)
        if self.version is not None:
            model_files.advance_latest(paths, self.claimed.row["model_key"])
        for item in self.removed:
            model_files.delete(paths, item.key, item.version)


_STOP_WORDS = {"canceled": "canceled", "timeout": "time", "drained": "drained"}


def _cause(error: BaseException, else_: str) -> str:
    """Whose fault it is that a run could not be prepared: a disk that is full or sick is not the job's."""
    return "store" if isinstance(error, (DiskFull, Storage, Unwritable)) else else_


def _finite(metrics: dict[str, float]) -> dict[str, float | None]:
    """Metrics as JSON can hold them: no number is null."""
    return {name: value if value - value == 0 else None for name, value in metrics.items()}


def _text(error: BaseException) -> str:
    if isinstance(error, TrainqError):
        return error.message
    if isinstance(error, OSError) and error.strerror:
        where = f"{files.printable(error.filename)}: " if isinstance(error.filename, str) else ""
        return f"{where}{error.strerror.lower()}"
    return f"{type(error).__name__}: {error}"
