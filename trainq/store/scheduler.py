"""What a worker may take, asked of the store: lanes, their heads, what runs anywhere, and what a worker is kept for.

The choice itself is domain/schedule.py's. Lanes never change, so those that were read are remembered; heads, limits and
paused queues are read in the transaction that claims, so a limit holds exactly, on however many hosts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainq.domain.offer import fits, free
from trainq.domain.schedule import (
    Among,
    Lane,
    Lanes,
    Rules,
    Running,
    Use,
    heads_by_queue,
    open_lanes,
    pick,
    to_keep_for,
)
from trainq.store import claims, lanes, queues, workers

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from trainq.domain.job import Claimed
    from trainq.domain.offer import Offer
    from trainq.domain.schedule import Head, Kept, Pick
    from trainq.store.claims import Claimant
    from trainq.store.session import Transaction


NO_RULES = Rules()


class Scheduler:
    """One worker's: the queues and users it serves, and all that it offers."""

    def __init__(
        self, names: Sequence[str], users: Collection[int] | None, offer: Offer, rules: Rules = NO_RULES,
        reserve_after_s: float = 3600.0,
    ) -> None:  # fmt: skip
        self.names = frozenset(names)
        self.users = users
        self.offer = offer
        self.rules = rules
        self.kept: Kept | None = None
        self.worker_id: int | None = None
        self._reserve_after_s = reserve_after_s
        self._newest = 0
        self._lanes = Lanes((), users)  # of its queues
        self._open: tuple[frozenset[str], Lanes] | None = None  # without those of queues that were paused then

    @property
    def is_limited(self) -> bool:
        """Whether the end of one job may let another start elsewhere."""
        return bool(self.rules.gpus or self.rules.per_user) or self._lanes.has_most

    def forget(self) -> None:
        """Read the lanes anew: what was read in a transaction that was rolled back may never have been, and its numbers mean
        others now."""
        self._newest, self._lanes, self._open = 0, Lanes((), self.users), None

    def look(self, tx: Transaction) -> Round:
        """What may be taken in this transaction."""
        newest, is_any_paused = lanes.newest(tx)
        rows = lanes.newer(tx, self._newest) if newest > self._newest else []
        if rows and len(self._lanes.all) > 2 * lanes.count(tx):  # most of them nobody is in any more
            self.forget()
            rows = lanes.newer(tx, 0)
        if rows:
            found = [lane for row in rows if (lane := lanes.lane_of(row)) is not None and lane.queue in self.names]
            self._newest, self._lanes, self._open = rows[-1][0], Lanes([*self._lanes.all, *found], self.users), None
        return Round(tx, self, self._without(queues.closed(tx)) if is_any_paused else self._lanes)

    def _without(self, closed: Mapping[str, object]) -> Lanes:
        """The lanes of the queues that are not paused; remembered as long as these are the same."""
        if self._open is None or self._open[0] != closed.keys():
            found = Lanes([lane for lane in self._lanes.all if lane.queue not in closed], self.users)
            self._open = frozenset(closed), found
        return self._open[1]

    def reserve(self, tx: Transaction, worker_id: int, left: Offer, alive_since: float) -> None:
        """Keep this worker for a job that waited too long, unless it is kept for one.

        `left` is what is free here now: what lacks only a slot takes its turn as any becomes free, and is not passed by what
        is smaller. Workers that were not heard of since `alive_since` (the backend's clock) are kept for nothing.
        """
        self.worker_id = worker_id
        look = self.look(tx)
        if look.kept is not None:
            return
        was, self.kept = self.kept, None
        a_slot = left._replace(slots=1)
        mine = [lane for lane in look.lanes.mine if not fits(lane.shape, a_slot) and look.may_keep_for(lane)]
        if mine:
            overdue = [one for one in lanes.overdue(tx, mine, self._reserve_after_s) if look.is_in_turn(one)]
            self.kept = to_keep_for(
                overdue, self.offer, workers.kept_for(tx, worker_id, alive_since) if overdue else ()
            )
        if self.kept != was:
            workers.keep_for(tx, worker_id, None if self.kept is None else self.kept.job_id)


class Round:
    """The look of one transaction. What it claims is counted at once, so that the next claim of it knows."""

    def __init__(self, tx: Transaction, scheduler: Scheduler, known: Lanes) -> None:
        self._tx = tx
        self._scheduler = scheduler
        self.lanes = known
        self._is_counted = scheduler.is_limited or scheduler.rules.fair
        self._runs = lanes.running(tx) if self._is_counted else []
        self._use = Use(self._runs)
        self.kept = scheduler.kept if scheduler.kept is not None and self._is_kept_still(scheduler.kept) else None

    def may_keep_for(self, lane: Lane) -> bool:
        """Whether a job of it could start here, did nothing run here: for what a limit, or others who compute on the GPUs,
        keep back all the same nothing is to stand idle."""
        scheduler = self._scheduler
        whole = free(scheduler.offer, ())
        elsewhere = Use(one for one in self._runs if one.worker_id != scheduler.worker_id)
        return fits(lane.shape, whole) and bool(open_lanes([lane], whole, scheduler.rules, elsewhere))

    def is_in_turn(self, one: Kept) -> bool:
        """Whether no other comes first where nothing passes another."""
        rules = self._scheduler.rules
        if not rules.strict_fifo:
            return True
        firsts = heads_by_queue(self.lanes.all, self._heads, rules, self._use)
        return any(head.job_id == one.job_id for head in firsts)

    def _is_kept_still(self, one: Kept) -> bool:
        """Whether the job waits still, for what it asked for then, and could start."""
        lane_id = lanes.of_pending(self._tx, [one.job_id]).get(one.job_id)
        is_here = lane_id == one.lane.id and any(lane.id == lane_id for lane in self.lanes.mine)
        return is_here and self.may_keep_for(one.lane) and self.is_in_turn(one)

    def claim(self, who: Claimant, left: Offer) -> Claimed | None:
        """Claim what comes next and fits into what is left; None when nothing does. Raises Unreadable."""
        found = self._pick(left)
        if found is None:
            return None
        claimed = claims.claim(self._tx, who, found)
        if self.kept is not None and found.job_id == self.kept.job_id:
            self.kept = None
        if claimed is not None and self._is_counted:
            device = found.devices[0].name if found.devices else None
            self._use.add(
                Running(
                    claimed.row["user_id"], found.lane.id, device, 1, len(found.devices), array_id=found.lane.array_id
                )
            )
        return claimed

    def is_work(self, left: Offer) -> bool:
        """Whether something could be claimed now."""
        return self._is_there(self._pick(left))

    def is_for_me(self) -> bool:
        """Whether something waits that could run here, were everything free and nothing counted for a limit."""
        scheduler = self._scheduler
        found = pick(self.lanes, self._heads, scheduler.offer, scheduler.rules, Use())
        return self._is_there(found)

    def _is_there(self, found: Pick | None) -> bool:
        return found is not None and (found.job_id is not None or bool(self._heads(Among([found.lane]))))

    def _pick(self, left: Offer) -> Pick | None:
        scheduler = self._scheduler
        return pick(self.lanes, self._heads, left, scheduler.rules, self._use, self.kept, scheduler.offer)

    def _heads(self, some: Among) -> list[Head]:
        if not some:
            return []
        return (lanes.first_head if self._scheduler.rules.is_plain else lanes.heads)(self._tx, some)
