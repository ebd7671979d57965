"""Why waiting jobs wait: what each worker has free, and what the limits leave, as one look at the store tells.

A lane is judged once, however many of its jobs are shown. Nothing here is written: the word that `status` shows for a
waiting job is made when it is looked at.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from trainq.domain.devices import CPU
from trainq.domain.offer import Offer, Taken, besides, fits, free, lacks, offer_of, users_of
from trainq.domain.schedule import Lane, Rules, Use, closed_models, over_user_limit
from trainq.ops.workers import crew_of, takes
from trainq.store import lanes, workers

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trainq.ops.queue import Queue
    from trainq.store.session import Transaction

LIVING = ("idle", "busy", "silent")
OF_OTHERS = "runs jobs of other users only"


class Bench(NamedTuple):
    """A worker that has not said good-bye: its document, what it offers, and what runs on it, by job."""

    worker: Mapping[str, Any]
    offer: Offer
    runs: dict[int, Taken]
    kept_for: int | None
    users: frozenset[int] | None  # whose jobs it runs, None: everybody's

    @property
    def left(self) -> Offer:
        """What is free on it."""
        return free(self.offer, self.runs.values())


class Verdict(NamedTuple):
    """Why the jobs of a lane wait: the word of the contract (None: nothing is in the way), and a sentence."""

    reason: str | None
    text: str


class Why:
    """One look at all that decides."""

    def __init__(self, tx: Transaction, queue: Queue) -> None:
        limits, order = queue.settings.limits, queue.settings.queues
        self.rules = Rules(limits.gpus, limits.per_user, order.fair, order.strict_fifo)
        self.lanes = {lane.id: lane for lane in lanes.every(tx)}
        self.use = Use(lanes.running(tx))
        self.benches = _benches(tx, queue, self.lanes)
        self._kept_lanes = lanes.of_pending(tx, [one.kept_for for one in self.benches if one.kept_for is not None])
        self._verdicts: dict[int, Verdict] = {}

    def verdict(self, lane_id: int) -> Verdict:
        """Why the head of a lane does not start; the rest of the lane waits for it."""
        if lane_id not in self._verdicts:
            lane = self.lanes.get(lane_id)
            self._verdicts[lane_id] = Verdict(None, "its lane cannot be read") if lane is None else self._judge(lane)
        return self._verdicts[lane_id]

    def _judge(self, lane: Lane) -> Verdict:
        living = [one for one in self.benches if serves(one, lane) is None]
        if not living:
            no = {serves(one, lane) for one in self.benches if one.worker["state"] in LIVING and one.offer.slots}
            whose = "this user's jobs" if OF_OTHERS in no else "jobs"
            return Verdict(
                "no_worker", f"no live worker takes {whose} of queue {lane.queue}" if no else "no live worker"
            )
        able = [one for one in living if fits(lane.shape, one.offer)]
        if not able:
            return Verdict("no_worker", f"no live worker for {asked(lane)}")
        limit = over_user_limit(lane, self.rules, self.use)
        if limit is not None:
            return Verdict("limit", f"limit: at most {limit}")
        said = [self.obstacle(one, lane) for one in able]
        if None in said:
            return Verdict(None, "a worker has room for it")
        limited = next((text for text in said if text is not None and text.startswith("limit")), None)
        if limited is not None:
            return Verdict("limit", limited)
        return Verdict(
            "resources", f"{able[0].worker['name']}: {said[0]}" if len(able) == 1 else f"{len(able)} workers are full"
        )

    def obstacle(self, bench: Bench, lane: Lane, job_id: int | None = None) -> str | None:
        """Why a worker does not start a job of a lane now, in words; None: it would."""
        no = serves(bench, lane) or lacks(lane.shape, bench.offer, bench.left)
        if no is not None:
            return no
        limit = over_user_limit(lane, self.rules, self.use)
        if limit is not None:
            return f"limit: at most {limit}"
        models = {device.name for device in bench.left.devices}
        closed = closed_models(lane.shape, models, self.rules, self.use)
        if lane.shape.gpus and not fits(lane.shape, bench.left, closed):
            name = next(iter(closed.values()))
            return f"limit: {self.use.of_type(name)} of {self.rules.gpus[name]} {name} that may be used are in use"
        kept = (
            None if bench.kept_for in (None, job_id) else self.lanes.get(self._kept_lanes.get(bench.kept_for or 0, 0))
        )
        if kept is not None and not fits(lane.shape, besides(bench.left, kept.shape, bench.offer)):
            return f"is kept for job {bench.kept_for}, which waited too long"
        return None


def serves(bench: Bench, lane: Lane) -> str | None:
    """Why a worker takes no jobs of a lane whatever it has free; None: it does."""
    worker = bench.worker
    if worker["state"] not in LIVING:
        return str(worker["state"]) if worker["state"] != "draining" else "is draining"
    if lane.queue not in worker["queues"]:
        return f"serves queue {', '.join(worker['queues'])} only"
    if not takes(worker, lane.queue):
        return "runs no jobs"
    if bench.users is not None and lane.user_id not in bench.users:
        return OF_OTHERS
    return None


def asked(lane: Lane) -> str:
    """What a lane's jobs ask for, as short as a list has room."""
    from trainq.domain.shape import words

    return words(lane.shape) or CPU


def _benches(tx: Transaction, queue: Queue, known: Mapping[int, Lane]) -> list[Bench]:
    rows = {row["id"]: row for row in workers.everyone(tx)}
    runs: dict[int, dict[int, Taken]] = {}
    for row in tx.named("running_where"):
        lane = known.get(row["lane_id"])
        if lane is not None:
            given = tuple(str(row["gpus"]).split(",")) if row["gpus"] else ()
            runs.setdefault(row["worker_id"], {})[row["id"]] = Taken(lane.shape, given)
    return [
        Bench(
            one,
            offer_of(one["host"], one["slots"], rows[one["id"]]["offer"]),
            runs.get(one["id"], {}),
            rows[one["id"]]["kept_for"],
            users_of(rows[one["id"]]["offer"]),
        )
        for one in crew_of(tx, queue.settings.times.zombie_after)
    ]
