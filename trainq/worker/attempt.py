"""One attempt of one job, as five steps: prepare, start, watch, classify, settle.

What must stay true: nothing that goes wrong with a job is the worker's trouble (it becomes the attempt's outcome, said
in its log too); every write carries the claim; a model is named only in the transaction that says `done`.
"""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING, Any

from trainq.artifacts import manifest
from trainq.base import clock, words
from trainq.base.crash import point
from trainq.base.errors import Denied, TrainqError
from trainq.domain.job import Outcome
from trainq.domain.offer import Taken
from trainq.domain.outcome import QUICK_S, Seen, classify, joined, not_started
from trainq.executors import local
from trainq.store import jobs
from trainq.worker import hook, memory
from trainq.worker.hook import Hook
from trainq.worker.keepers import Empty, Exited, Failed, Frozen, Started, Thawed
from trainq.worker.limits import Limits
from trainq.worker.preparation import Preparation
from trainq.worker.publication import Publication
from trainq.worker.told import Told

if TYPE_CHECKING:
    from collections.abc import Callable

    from trainq.domain.job import Claim, Claimed, Decision, Progress
    from trainq.store.jobs import Flags
    from trainq.store.session import Transaction
    from trainq.worker.keepers import Event, Keeper
    from trainq.worker.place import Place

NO_MODEL = "nothing was written to TRAINQ_MODEL_DIR; no model"


class Attempt:
    """A claimed job on its way through one slot. Driven by the worker's loop, in its thread.

    `over`: the outcome is known, the keeper is free, and only the transaction is missing. `lost`: the claim is not ours
    any more; the processes are killed and nothing is written. `free`: the slot may be given to another.
    """

    def __init__(self, claimed: Claimed, place: Place, keeper: Keeper) -> None:
        self.claimed = claimed
        self.claim: Claim = claimed.claim
        self.uid = claimed.uid
        self.place = place
        self.keeper = keeper
        self.outcome: Outcome | None = None
        self.decision: Decision | None = None
        self.stopped_for: str | None = None
        self.busy = False  # slow work of this attempt is in the pool
        self.unsure = False  # a commit that named its end answered with an error
        self.settled = False
        self.lost = False
        self.reported_at = 0.0  # boot clock, when a beat last carried the progress
        self.handed = False  # the keeper has its plan
        self.pid: int | None = None
        self.started_at: float | None = None  # boot clock
        self.storing_at: float | None = None
        self.trouble: str | None = None  # what is wrong with this host, seen by this attempt
        self.hook = Hook(claimed.spec.get("cwd", "/"))
        self._exited: Exited | None = None
        self._stopping_grace_s = float("inf")
        self._stop_unsaid = False  # to a keeper that would kill what it has frozen
        self._kills = 0
        self._killed_frozen = False  # the keeper had to kill what it could not freeze
        time_s, spec = claimed.row["time_s"], claimed.spec
        self._limits = Limits(None if time_s is None else time_s - spec.get("warn_s", 0.0), spec.get("stall_after_s"))
        self._files = Preparation(claimed, place)
        self._told = Told(place.channel, self._files.note)
        self._publication: Publication | None = None

    @property
    def over(self) -> bool:
        """Whether the outcome is known and can be written."""
        return self.outcome is not None and not self.busy and not self.lost and not self.settled

    @property
    def free(self) -> bool:
        """Whether nothing of it is left in the slot: its end is written or the claim is lost, and no hook runs."""
        if self.settled:
            return self.hook.until is None
        return self.lost and not self.busy and (self.outcome is not None or not self.handed)

    @property
    def has_hook(self) -> bool:
        """Whether a line runs in its slot once its end is written."""
        ended = self.decision is not None and self.decision.state not in ("pending", "held")
        return ended and "on_end" in self.claimed.spec and bool(self._files.environment)

    @property
    def frees_slot(self) -> bool:
        """Whether another can be given its slot as soon as its end is written."""
        return not self.has_hook and not self.keeper.is_closed

    @property
    def is_paused(self) -> bool:
        """Whether it stands still for people."""
        return self._limits.paused

    @property
    def taken(self) -> Taken:
        """What it holds of its worker."""
        return Taken(self.claimed.shape, self.claimed.gpus)

    @property
    def version(self) -> int | None:
        """The version of the model it has published."""
        return None if self._publication is None else self._publication.version

    def lose(self) -> None:
        """The claim is lost: stop working before explaining."""
        self.lost = True
        self._told.answer(ok=False)
        if self.handed and self.outcome is None:
            self.keeper.stop(0)

    # prepare ---------------------------------------------------------------------------------------------------

    def prepare(self) -> None:
        """Make what must be there (slow things in the pool), then start."""
        try:
            self._files.open()
        except Denied as error:  # not the job's fault, nor this host's: nothing of it is run, or written where it says
            self.outcome = Outcome("poison", error=_text(error))
            return
        except Exception as error:  # noqa: BLE001  # whatever a row holds, it must not end the worker
            self._not_prepared(error)
            return
        if self._files.staged is not None:
            self._publication = Publication(
                self.claimed, self.place.paths, self._files.staged, self.place.keep, self.place.now
            )
        if self._files.is_slow:
            self.busy = True
            self.place.slow(self._files.fetch, self._fetched)
        else:
            self.start()

    def _fetched(self, error: BaseException | None) -> None:
        self.busy = False
        self._told.put(resumed_from=self._files.resumed_from)
        if error is not None:
            self._not_prepared(error)
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
        try:
            self._hand(self._files.plan())
        except Exception as error:  # noqa: BLE001  # whatever a row holds, it must not end the worker
            self._not_prepared(error)
            return
        if self._limits.paused:
            self.keeper.pause()

    def _not_prepared(self, error: BaseException) -> None:
        """It cannot start. If that is this host's fault the job goes back at no cost, and the worker takes no more."""
        text, cause = f"the run cannot be prepared: {_text(error)}", self._files.fails_as
        if self._files.is_hosts_fault(error):
            self.trouble, cause = text, "drained"
        self._end(cause, text)

    def _hand(self, plan: Any) -> None:
        stdin = self._files.open_stdin()
        try:
            self.keeper.start(plan, stdin, *self._files.output)
        finally:
            os.close(stdin)
        self.handed = True
        point("start.handed")
        self._kills = memory.kills()

    # watch -----------------------------------------------------------------------------------------------------

    def heard(self, event: Event) -> None:
        """What the keeper said."""
        if self.settled:
            self.hook.heard(event)
        elif isinstance(event, Started):
            self._started(event)
        elif isinstance(event, Failed):
            self._not_started(event)
        elif isinstance(event, Exited):
            self._exited = event
        elif isinstance(event, Frozen):
            self._limits.froze()
            self._killed_frozen = self._killed_frozen or event.killed > 0
        elif isinstance(event, Thawed):
            self._limits.thawed(event.frozen_s)
        elif isinstance(event, Empty):
            self._classify()

    def _started(self, event: Started) -> None:
        self.pid = event.pid
        self.started_at = clock.boot_s()
        self._limits.started(self.started_at)
        self._told.put(stage="training")

    def keeper_died(self) -> None:
        """The keeper was killed, and the job with it: the worker's host, not the job, is to blame."""
        if self.settled:
            self.hook.end("the process that kept it was killed")
        elif self.outcome is None:
            self._end("zombie", "the process that kept it was killed")

    def said(self, message: dict[str, Any]) -> None:
        """What the job said through the channel."""
        self._told.hear(message)
        self._limits.spoke(clock.boot_s())

    def due_at(self) -> float | None:
        """When (boot clock) it must be stopped for its time limit, its silence or its hook's limit."""
        if self.hook.until is not None:
            return self.hook.until
        if self.outcome is not None or self.stopped_for is not None:
            return None
        return self._limits.due_at(clock.boot_s())

    def tick(self, now: float) -> None:
        """Stop it if it is due."""
        due = self.due_at()
        if due is None or now < due:
            return
        if self.hook.until is not None:
            self.hook.stop(self.keeper, now)
        elif self._limits.is_timeout(now):
            self.stop("timeout", self.claimed.spec.get("warn_s") or self.grace_s())
        else:
            self.stop("stalled", self.grace_s())

    def stop(self, why: str, grace_s: float) -> None:
        """End the process tree: the job is told, TERM, the grace, KILL. The first reason stays the reason.

        To one that is frozen its TERM is said with the thaw, so that it can act on it.
        """
        if self.settled:
            self.keeper.stop(min(grace_s, hook.GRACE_S))
            return
        self._stopping_grace_s = min(self._stopping_grace_s, grace_s)
        if self.stopped_for is None:
            self.stopped_for = why
            self.place.channel.push(self.uid, self.claim.attempt, {"do": "stop", "reason": _STOP_WORDS.get(why, why)})
        self._stop_unsaid = self.handed and grace_s > 0 and self._limits.may_be_fenced(clock.boot_s())
        if self.handed and not self._stop_unsaid:
            self.keeper.stop(grace_s)

    def is_news(self, asked: Flags) -> bool:
        """Whether people want what is not done yet: that it ends, or sooner, that it stands still, or goes on."""
        if self.settled:
            return False
        if asked.cancel:
            return self.stopped_for is None or self._grace_of(asked) < self._stopping_grace_s
        return self._may_pause and (asked.frozen_by is not None) != self._limits.paused

    def obey(self, asked: Flags) -> str | None:
        """Do what people want; the word for what that changes of its standing still."""
        if asked.cancel:
            self.stop("canceled", self._grace_of(asked))
            return None
        wanted = asked.frozen_by is not None
        if not self._may_pause or wanted == self._limits.paused:
            return None
        self._limits.pause(clock.boot_s(), paused=wanted)
        if self.handed:
            (self.keeper.pause if wanted else self.keeper.resume)()
        return "paused" if wanted else "resumed"

    @property
    def _may_pause(self) -> bool:
        """Whether it may stand still, or go on, for people: it has not ended, and no cancel or worker ends it."""
        return self.outcome is None and not self.lost and self.stopped_for not in ("canceled", "drained")

    def _grace_of(self, asked: Flags) -> float:
        return self.grace_s() if asked.grace_s is None else asked.grace_s

    def grace_s(self) -> float:
        """Seconds between TERM and KILL."""
        own = self.claimed.row["grace_s"]
        return float(self.place.grace_s if own is None else own)

    def beat(self, tx: Transaction) -> Flags:
        """Renew the lease with the newest progress, and commit what was saved. Raises LostClaim."""
        flags = jobs.beat(tx, self.claim, self.latest())
        self._told.commit_saves(tx, self.claim)
        return flags

    def renewed(self, until_boot_s: float, bound_s: float) -> None:
        """A beat is committed: the job may compute until then, and goes on if it was frozen for its lease."""
        self._told.is_fresh, self.reported_at = False, clock.boot_s()
        self.answer()
        may_be_fenced = self._limits.renew(until_boot_s, self.reported_at)
        self.keeper.lease(until_boot_s, bound_s)
        if may_be_fenced:
            self.keeper.thaw()
        if self._stop_unsaid or (may_be_fenced and self.stopped_for is not None):
            self._stop_unsaid = False
            self.keeper.stop(self._stopping_grace_s)

    def lease(self, until_boot_s: float, bound_s: float) -> None:
        """The job may compute until then; what moves later is frozen within the bound."""
        self._limits.lease(until_boot_s)
        self.keeper.lease(until_boot_s, bound_s)

    def answer(self) -> None:
        """What was saved is committed: tell who waits."""
        self._told.answer(ok=True)

    def report_at(self, every_s: float, after_start_s: float) -> float | None:
        """When (boot clock) the row should be brought up to date ahead of the next beat; None when it is."""
        if self.outcome is not None or self.lost:
            return None
        if self._told.saves:
            return 0.0
        if self.reported_at == 0.0:
            return None if self.started_at is None else self.started_at + after_start_s
        return self.reported_at + every_s if self._told.is_fresh else None

    def latest(self) -> Progress:
        """All that is known, with ages instead of times."""
        now = clock.boot_s()
        return self._told.latest()._replace(
            pid=self.pid,
            started_ago_s=None if self.started_at is None else now - self.started_at,
            storing_ago_s=None if self.storing_at is None else now - self.storing_at,
        )

    # classify --------------------------------------------------------------------------------------------------

    def _not_started(self, event: Failed) -> None:
        spec = self.claimed.spec
        program = words.printable(local.argv(spec)[0])
        outcome = not_started(event.step, event.errno, program, words.printable(spec["cwd"]))
        self._files.note(outcome.error or "")
        self._decide(outcome)

    def _classify(self) -> None:
        ended = self._exited
        if self.lost:
            self.outcome = Outcome("zombie")
            return
        if ended is None:
            self._end("spawn", "the process was lost before it ended")
            return
        if self._killed_frozen and ended.signal == signal.SIGKILL and self.stopped_for is None:
            self._end("zombie", "its worker lost the queue for too long, and it could not be frozen in time")
            return
        self.place.channel.drop(self.uid, self.claim.attempt)  # its last words come first
        failed = ended.signal is not None or ended.code != 0
        seen = Seen(
            ended.code, ended.signal, self.stopped_for, self.claimed.row["time_s"],
            self._told.is_any, joined(self._told.first_error, self._files.log_end()) if failed else "",
            run_s=clock.boot_s() - (self.started_at or clock.boot_s()), saved=self._told.has_saved or bool(self._told.saves),
            oom_killed=memory.kills() > self._kills, stall_s=self.claimed.spec.get("stall_after_s"),
        )  # fmt: skip
        self._decide(classify(seen))

    def _decide(self, outcome: Outcome) -> None:
        self.place.channel.drop(self.uid, self.claim.attempt)
        self.outcome = outcome
        if outcome.cause is None and self._publication is not None:
            self.storing_at = clock.boot_s()
            self._told.put(stage="storing")
            self.busy = self._told.is_fresh = True
            publication, metrics = self._publication, self._told.finite()
            self.place.slow(lambda: publication.seal(metrics), self._sealed)

    def _sealed(self, error: BaseException | None) -> None:
        assert self._publication is not None
        self.busy = False
        if isinstance(error, manifest.ModelError):
            self._end("model", _text(error))
        elif error is not None:
            self.store_failed(error)
        elif self._publication.model is None and self.claimed.spec.get("model_required"):
            self._end("model", "it ended well but left nothing in TRAINQ_MODEL_DIR, and its type requires a model")
        elif self._publication.model is None and self.claimed.row["type"] is None:
            self._files.note(NO_MODEL)  # it was asked for with --model

    def store_failed(self, error: BaseException) -> None:
        """The result could not be published: it is kept where it lies, and the error says where."""
        assert self._publication is not None
        self._publication.give_up()
        self.decision = None
        staged = self._publication.staged
        self._end(
            "store", f"the model could not be published: {_text(error)}; it is kept in {words.printable(staged or '')}"
        )

    def _end(self, cause: str, text: str) -> None:
        self._files.note(text)
        ended = self._exited
        code, number = (None, None) if ended is None else (ended.code, ended.signal)
        self.place.channel.drop(self.uid, self.claim.attempt)
        quick = cause == "spawn" if self.started_at is None else clock.boot_s() - self.started_at < QUICK_S
        self.outcome = Outcome(cause, code, number, text, quick=quick)

    # settle ----------------------------------------------------------------------------------------------------

    def settle(self, tx: Transaction) -> None:
        """Write the end, in the transaction of the turn. Raises LostClaim, and what the rename of a model raises."""
        assert self.outcome is not None
        self._told.commit_saves(tx, self.claim)
        if self.outcome.cause is None and self._publication is not None and self._publication.model is not None:
            self.decision = self._publication.publish(tx, self.outcome, self.latest())
        else:
            if self.outcome.cause is None and self._publication is not None and self.claimed.row["type"] is None:
                jobs.say(tx, self.claim, NO_MODEL)
            self.decision = jobs.settle(tx, self.claim, self.outcome, self.latest())

    def tidy(self) -> Callable[[], None] | None:
        """What is left to do for a model once the end is committed (slow, and repairable)."""
        publication, lost = self._publication, self.lost
        kept = self.decision is not None and self.decision.reason == "store"
        return None if publication is None else lambda: publication.clean(keep_staged=kept, lost=lost)

    def clean(self) -> Callable[[], None] | None:
        """Close what is open, when nothing runs any more; what else is left to do on the disk (slow)."""
        if not self._files.close():
            return None

        def clean() -> None:
            self._files.remove_data()
            point("clean.data_removed")

        return clean

    # the hook after the end ------------------------------------------------------------------------------------

    def run_hook(self) -> None:
        """Run the line of `--on-end`, if there is one and the job has ended here; its end never changes the job's."""
        self.settled = True
        if not self.has_hook:
            return
        assert self.outcome is not None
        assert self.decision is not None
        model = None
        if self._publication is not None:
            self._publication.point_latest()
            model = self._publication.published
        try:
            self.lease(clock.boot_s() + self.place.hook_limit_s + hook.NO_LEASE_S, hook.NO_LEASE_S)
            more = hook.variables(self.outcome, self.decision, model)
            self._hand(self._files.hook_plan(self.claimed.spec["on_end"], more))
        except (TrainqError, OSError) as error:
            self.hook.end(_text(error))
            return
        self.hook.until = clock.boot_s() + self.place.hook_limit_s


_STOP_WORDS = {"timeout": "time"}


def _text(error: BaseException) -> str:
    """The words of an error, as a row and a terminal can hold them."""
    if isinstance(error, TrainqError):
        return words.printable(error.message)
    if isinstance(error, OSError) and error.strerror:
        where = f"{words.printable(error.filename)}: " if isinstance(error.filename, str) else ""
        return f"{where}{error.strerror.lower()}"
    return words.printable(f"{type(error).__name__}: {error}")
