"""The values that pass between the rooms. Immutable; a NamedTuple, since short commands pay for every definition."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from trainq.domain.shape import PLAIN, Shape
from trainq.domain.states import SYSTEM_CAUSES, USER_CAUSES, Side, State, side_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trainq.domain.held import After

BACKOFF_CEILING_S: Final = 600.0
IDLE_REQUEUES: Final = 10
"""So many attempts in a row may each wish to be requeued at once without a new checkpoint."""
RETRY_ON: Final = ("exit", "signal", "oom")
MOST_BYTES: Final = 2**63 - 1


class Claim(NamedTuple):
    """The right to write for a running attempt. Current only while the job's row says the same three numbers."""

    job_id: int
    attempt: int
    worker_id: int


class Actor(NamedTuple):
    """Who types: the user by uid, and the host typed on."""

    user: str
    user_id: int
    host: str

    def __str__(self) -> str:
        return f"{self.user}@{self.host}"


class DataSet(NamedTuple):
    """A training set as the store names it: `z` holds it compressed, or is None when it lies in data/."""

    name: str
    sha256: str
    size: int
    stored_size: int
    z: bytes | None


class NewJob(NamedTuple):
    """A job as it is put in. `spec` is the JSON document of what is executed."""

    queue: str
    name: str
    spec: str
    type: str | None = None
    priority: int = 0
    key: str | None = None
    fingerprint: str | None = None
    model_key: str | None = None
    tags: str | None = None
    max_attempts: int = 3
    retries: int = 0
    time_s: float | None = None
    grace_s: float | None = None
    data: tuple[DataSet, ...] = ()
    shape: str = ""  # its canonical text, domain/shape.py
    begin_at: float | None = None
    deadline_at: float | None = None
    hold: bool = False
    after: tuple[After, ...] = ()
    array_index: int | None = None  # of a task of an array


class NewArray(NamedTuple):
    """That the jobs of a call are the tasks of one array, of which so many may run at once (None: all)."""

    most: int | None = None


class Submission(NamedTuple):
    """What the jobs of one submit call have in common. `uid` is made by the caller and makes the call repeatable."""

    uid: str
    actor: Actor
    umask: int
    environ: str


class Progress(NamedTuple):
    """The newest that is known of a running attempt; None leaves the column as it is. Ages are in seconds before now,
    so that a worker's clock never meets the backend's."""

    fraction: float | None = None
    step: int | None = None
    total: int | None = None
    note: str | None = None
    save_failed: int | None = None
    resumed_from: int | None = None
    stage: str | None = None
    pid: int | None = None
    started_ago_s: float | None = None
    storing_ago_s: float | None = None
    metrics: str | None = None  # the newest of each name, a JSON object


class Outcome(NamedTuple):
    """How an attempt ended. `cause` is None for success, else one of the words of domain/states.py or
    `drained`, `requeued` (the job's own wish, exit 75), `zombie`. `idle`: it wished to be requeued at once, without a
    new checkpoint. `quick`: it could not be started, or ended soon after."""

    cause: str | None
    exit_code: int | None = None
    signal: int | None = None
    error: str | None = None
    idle: bool = False
    quick: bool = False


class Budget(NamedTuple):
    """What a job may still cost, as its row says."""

    cancel_requested: bool
    user_used: int
    retries: int
    retry_on: tuple[str, ...]
    backoff_s: float
    system_used: int
    max_attempts: int
    idle_requeues: int = 0


class Decision(NamedTuple):
    """Where a job goes after an attempt, and what that costs."""

    state: State
    reason: str | None = None
    side: Side | None = None
    delay_s: float | None = None
    user_cost: int = 0
    system_cost: int = 0
    idle_requeues: int = 0


def decide(outcome: Outcome, budget: Budget) -> Decision:
    """What becomes of the job: cancel wins over every result; lost attempts cost `max_attempts`, user causes cost
    `retries` if `retry_on` names them, a drain or the job's own wish costs nothing."""
    cause = outcome.cause
    if budget.cancel_requested:
        return Decision("canceled", "user")
    if cause is None:
        return Decision("done")
    if cause == "drained":
        return Decision("pending", "drained")
    if cause == "requeued":
        idle = budget.idle_requeues + 1 if outcome.idle else 0
        if idle >= IDLE_REQUEUES:
            return Decision("errored", "requeue_loop", "user")
        return Decision("pending", "requeued", idle_requeues=idle)
    if cause == "zombie":
        if budget.system_used + 1 >= budget.max_attempts:
            return Decision("errored", "poison", "system", system_cost=1)
        return Decision("pending", "zombie", system_cost=1)
    if cause in USER_CAUSES and cause in budget.retry_on and budget.user_used < budget.retries:
        doublings = min(budget.user_used, 64)  # a float ends at 1024, and the ceiling is reached long before
        delay = min(budget.backoff_s * 2.0**doublings, BACKOFF_CEILING_S)
        return Decision("held", "backoff", delay_s=delay, user_cost=1)
    if cause not in USER_CAUSES and cause not in SYSTEM_CAUSES:
        raise ValueError(f"no such cause: {cause!r}")
    return Decision("errored", cause, side_of(cause))


def grow(spec: Mapping[str, Any]) -> dict[str, Any]:
    """The document of a job that ran out of memory, asking for more by its own factor. `TypeError`, `ValueError` where it
    does not say by which."""
    more = {name: int(min(spec[name] * spec["retry_grow"], MOST_BYTES)) for name in ("mem", "vram") if name in spec}
    return {**spec, **more}


class NewModel(NamedTuple):
    """A sealed model directory, waiting for its number."""

    key: str
    type: str | None
    params: str
    metrics: str
    fingerprint: str | None
    size: int
    manifest_sha256: str


class Claimed(NamedTuple):
    """A claimed job with all that is needed to run it."""

    claim: Claim
    uid: str
    row: Mapping[str, Any]
    spec: Mapping[str, Any]
    environ: Mapping[str, Any]
    umask: int
    data: tuple[DataSet, ...]
    checkpoints: tuple[tuple[int, str], ...] = ()  # committed: number and digest
    suspects: Mapping[int, int] = {}  # how many attempts crashed that went on from a number
    last_cause: str | None = None  # why the attempt before ended
    shape: Shape = PLAIN
    gpus: tuple[str, ...] = ()  # as they stand in CUDA_VISIBLE_DEVICES
