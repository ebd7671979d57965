"""Taking jobs back from workers that are gone: what the worker's turn, the janitor and `cancel` do alike.

On the worker's own host its death can be proved (pid, start and host identity): first its strays are ended, and only
when none is left the job is given back. Everywhere else, and when strays cannot be ended (another user's), only a beat
that stood still for zombie-after counts.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from trainq.base import clock, hosts
from trainq.base.crash import point
from trainq.base.errors import TrainqError, Unsupported
from trainq.ops import strays
from trainq.ops.sure import surely
from trainq.store import dependants, lost, reads

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from trainq.store.lost import Held, Lost
    from trainq.store.session import Session, Transaction


def take_back(
    session: Session, zombie_after_s: float, *, only: Collection[int] | None = None, mine: int | None = None
) -> list[Lost]:
    """One look at the running jobs (`only` these; not those of worker `mine`); what was taken back."""
    with session.reading() as tx:
        held = held_here(tx)
        running = lost.running(tx, mine)
    found = take_back_from_the_dead(session, [one for one in held if only is None or one.job_id in only])
    if any(only is None or number in only for number in running):
        try:
            found += surely(
                session,
                lambda tx: _telling(
                    tx, lost.look(tx, hosts.identity(), clock.boot_s(), zombie_after_s, mine=mine, only=only)
                ),
                _are_back,
            )
        except TrainqError:
            if not found:
                raise
            # what was taken back has to be told; the others are looked at again by whoever comes next
    return found


def _telling(tx: Transaction, found: list[Lost]) -> list[Lost]:
    """The same, and who comes after what has ended knows it."""
    dependants.tell(tx)
    return found


def _are_back(tx: Transaction, found: Iterable[Lost]) -> bool:
    return not any(reads.is_running(tx, one.job_id, one.attempt) for one in found)


def held_here(tx: Transaction) -> list[Held]:
    """The running jobs of whose workers it can be proved here whether they live."""
    return lost.held_here(tx, hosts.identity(), os.getuid())


def is_alive(held: Held) -> bool:
    """Whether the worker of a job that is held here is there still, as far as can be told; costs a look at /proc."""
    try:
        return hosts.is_same_process(held.pid, held.pid_start)
    except Unsupported:
        return True  # a beat that stands still is what counts then


def take_back_from_the_dead(session: Session, held: Sequence[Held]) -> list[Lost]:
    """Of these jobs, those whose worker is provably gone: back at once, when nothing of them is left."""
    dead = [one for one in held if not is_alive(one)]
    if not dead:
        return []
    left = strays.end({one.uid: one.attempt for one in dead})
    point("expire.strays_ended")
    gone = [one for one in dead if one.uid not in left]
    found = surely(
        session,
        lambda tx: _telling(
            tx, [each for one in gone for each in lost.expire_held(tx, one, f"worker {one.worker} is gone")]
        ),
        _are_back,
    )
    point("expire.committed")
    return found
