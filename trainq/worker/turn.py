"""A worker's turn: one transaction that settles what ended, beats, looks for the lost, promotes, and claims.

A claim that turns out lost spoils nothing for the others: the verb that found it changed nothing. A model that cannot
be published rolls the whole turn back and is settled as `store` by the next one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from trainq.base import clock
from trainq.base.crash import point
from trainq.base.errors import TrainqError
from trainq.domain.job import Outcome, Progress
from trainq.domain.offer import Taken, free
from trainq.ops.lost import held_here
from trainq.store import claims, jobs, lost, queues, workers
from trainq.store.claims import Claimant, Unreadable
from trainq.store.jobs import LostClaim

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from trainq.domain.job import Claimed
    from trainq.domain.offer import Offer
    from trainq.store.jobs import Flags, Promoted
    from trainq.store.lost import Held, Lost
    from trainq.store.scheduler import Scheduler
    from trainq.store.session import Transaction
    from trainq.worker.attempt import Attempt


DRAINING = "draining"


class Wanted(NamedTuple):
    """What this turn is to do."""

    worker_id: int
    name: str
    host: str
    observer: str
    scheduler: Scheduler
    until: str | None  # it ends when nothing waits: idle, empty
    offer: str | None  # what the worker has to give, unless its row says so
    state: str  # of the worker: idle, busy, draining
    room: int  # how many jobs to claim at most, beyond the slots that this turn frees
    may_claim: int  # and at most so many in all
    beats: bool
    quarantine: str | None  # why it is in quarantine, unless its row says so
    adrift: bool  # the last turn failed: look for claims of ours that no slot knows
    zombie_after_s: float
    breaker: int
    every_s: float
    after_start_s: float


class Done(NamedTuple):
    """What it did; acted upon only after the commit."""

    settled: list[Attempt]
    gone: list[Attempt]
    flags: list[tuple[Attempt, Flags]]
    found: list[Lost]
    held: list[Held]  # by workers of this host, of which it can be proved whether they live
    claimed: list[Claimed]
    unreadable: list[str]  # what is wrong with jobs that ended instead
    paused: list[str]  # queues that the breaker has closed
    drained_by: str | None  # who has asked it to end, unless it does
    next_due: float | None
    waits: bool  # something that keeps it from its end
    promoted: Promoted | None = None


class StoreFailed(Exception):  # an answer: this attempt's end is another one
    """A model could not be moved to its name."""


def take(tx: Transaction, attempts: Sequence[Attempt], wanted: Wanted) -> Done:
    """Do all that is due, in one transaction. Raises StoreFailed when it must be rolled back and taken again."""
    drained_by = None if wanted.state == DRAINING else workers.drained_by(tx, wanted.worker_id)
    if drained_by is not None:
        wanted = wanted._replace(state=DRAINING, may_claim=0)
    done = Done([], [], [], [], [], [], [], [], drained_by, None, waits=True)
    now = clock.boot_s()
    if wanted.adrift:
        _take_in(tx, attempts, wanted)
    for attempt in attempts:
        try:
            _serve(tx, attempt, wanted, now, done)
        except LostClaim:
            _sort_out(tx, attempt, done)
    if wanted.quarantine is not None:
        workers.quarantine(tx, wanted.worker_id, wanted.quarantine)
    if wanted.offer is not None:
        workers.offer(tx, wanted.worker_id, wanted.offer)
    if wanted.beats:
        workers.move(tx, wanted.worker_id, wanted.state)
        done.held.extend(held_here(tx))
        done.found.extend(lost.look(tx, wanted.observer, now, wanted.zombie_after_s, mine=wanted.worker_id))
    promoted = jobs.promote(tx)  # after all that may have ended, so that what came after it can be claimed
    if promoted.is_all:
        _claim(tx, attempts, wanted, done)
    waits = something_waits(tx, wanted.scheduler, wanted.until)
    return done._replace(next_due=jobs.next_due(tx), waits=waits, promoted=promoted)


def something_waits(tx: Transaction, scheduler: Scheduler, until: str | None) -> bool:
    """`idle`: something here for me; `empty`: anything at all in my queues, also what is held; else always."""
    if until == "idle":
        return scheduler.look(tx).is_for_me() or jobs.is_due(tx)
    return until is None or jobs.waiting(tx, scheduler.names, ("pending", "held")) > 0


def left_of(offer: Offer, attempts: Iterable[Attempt], slots: int) -> Offer:
    """What is free beside these attempts, with so many slots."""
    return free(offer, [one.taken for one in attempts])._replace(slots=slots)


def _claim(tx: Transaction, attempts: Sequence[Attempt], wanted: Wanted, done: Done) -> None:
    """Fill the slots that are free, and those that this turn frees."""
    scheduler, offer = wanted.scheduler, _without_given(tx, wanted)
    freed = [one for one in done.settled if one.frees_slot]
    taken = [one.taken for one in attempts if one not in freed]
    room = min(wanted.room + len(freed), wanted.may_claim)
    if wanted.beats and wanted.may_claim > 0:
        left = free(offer, taken)._replace(slots=max(0, room))
        scheduler.reserve(tx, wanted.worker_id, left, tx.now - wanted.zombie_after_s)
    if room <= 0:
        return
    look, who = scheduler.look(tx), Claimant(wanted.worker_id, wanted.name, wanted.host)
    for slots in range(room, 0, -1):
        try:
            claimed = look.claim(who, free(offer, taken)._replace(slots=slots))
        except Unreadable as error:
            done.unreadable.append(str(error))
            continue
        if claimed is None:
            break
        done.claimed.append(claimed)
        taken.append(Taken(claimed.shape, claimed.gpus))


def _serve(tx: Transaction, attempt: Attempt, wanted: Wanted, now: float, done: Done) -> None:
    """Settle an attempt that is over, beat for one that runs."""
    if attempt.over:
        try:
            attempt.settle(tx)
        except (TrainqError, OSError) as error:
            attempt.store_failed(error)
            raise StoreFailed from error
        done.settled.append(attempt)
        assert attempt.decision is not None
        assert attempt.outcome is not None
        if queues.count_end(tx, attempt.claimed.row["queue"], attempt.decision, attempt.outcome, wanted.breaker):
            done.paused.append(attempt.claimed.row["queue"])
        return
    at = attempt.report_at(wanted.every_s, wanted.after_start_s)
    if not attempt.lost and not attempt.settled and (wanted.beats or (at is not None and now >= at)):
        done.flags.append((attempt, attempt.beat(tx)))


def _sort_out(tx: Transaction, attempt: Attempt, done: Done) -> None:
    """A claim that is not current: lost, unless it is our own commit that answered with an error and went through."""
    if attempt.unsure and jobs.has_ended(tx, attempt.claim, attempt.decision):
        done.settled.append(attempt)
    else:
        done.gone.append(attempt)


def _take_in(tx: Transaction, attempts: Sequence[Attempt], wanted: Wanted) -> None:
    """Give back, at no cost, what a commit that answered with an error had claimed after all."""
    known = [attempt.claim for attempt in attempts]
    for claim in claims.unknown_claims(tx, wanted.worker_id, known):
        jobs.settle(tx, claim, Outcome("drained", error="the worker could not tell that it had claimed it"), Progress())


def _without_given(tx: Transaction, wanted: Wanted) -> Offer:
    """What the worker has to give, without the GPUs that another worker of this host has given to a job."""
    offer = wanted.scheduler.offer
    if all(device.is_simulated for device in offer.devices):
        return offer
    given = workers.given_elsewhere(tx, wanted.observer, wanted.worker_id)
    return offer._replace(devices=tuple(device for device in offer.devices if device.id not in given))


def lets_others_start(done: Done, scheduler: Scheduler) -> bool:
    """Whether some other worker may be able now to start what it could not before, and should look: what waits again, a
    limit that has room, a GPU of this host, or the next of a queue where nothing passes another."""
    if done.found or (done.promoted is not None and done.promoted.told):
        return True
    if scheduler.rules.strict_fifo and (done.claimed or done.unreadable):
        return True
    return any(
        one.decision is not None
        and (scheduler.is_limited or one.claimed.gpus or one.decision.state in ("pending", "held"))
        for one in done.settled
    )


def mark(done: Done) -> None:
    """The crash points between the commit of a turn and all that follows from it."""
    if done.settled:
        point("finish.committed")
    if done.flags:
        point("beat.committed")
    if done.found:
        point("expire.looked")
    if done.claimed:
        point("claim.committed")
