"""The freezing of a job: everything below this process is stopped, and later goes on as it was.

It is done in passes over the tree, top down, and is complete when two in a row found all of it still, nothing
new and nothing gone. What must stay true:
- Complete means that no thread of the job runs, except in the kernel with a STOP waiting for it.
- What had stopped before is not continued by `thaw`.
- A process that holds the queue's lock runs on until it has let go of it, or all other workers would wait.
- What still moves when the bound is over is killed; without a bound nothing is.

Part of the keeper's program: it imports nothing of trainq but its siblings there, and little else.
"""

from __future__ import annotations

from trainq.worker.kernel import boot_s
from trainq.worker.tree import DEAD, STILL, STOPPED, halt, lives_on, read, send, stat, states, walk

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    from collections.abc import Collection

    from trainq.worker.tree import Stat
else:  # The public module adds `enum`.
    import _signal as signal

PAUSE_FIRST_S, PAUSE_MOST_S = 0.001, 0.05
PATIENCE_MOST_S = 15.0
THAW_PASSES = 20


class Freeze:
    """One freezing. `step` until it is `complete`; `thaw` may come at any time."""

    def __init__(self, bound_s: float, locks: Collection[bytes]) -> None:
        self.bound_s = bound_s
        self.locks = locks
        self.began = boot_s()
        self.held: dict[int, int] = {}  # pid -> start of those it stopped
        self.killed: dict[int, int] = {}  # pid -> start of those that moved for too long
        self.let_on: set[int] = set()  # those that hold a lock
        self.told = False
        self.again()

    def again(self) -> None:
        """Something happened below: look again."""
        self.since = boot_s()
        self.disturb()
        self.complete = False

    def disturb(self) -> None:
        """What was seen is not all that was there: two more passes."""
        self.seen: set[tuple[int, int]] = set()
        self.quiet_passes = 0
        self.pause_s = 0.0

    def step(self) -> None:
        """One pass; the next one should come after `pause_s`."""
        late = boot_s() >= self.since + self.bound_s
        self.let_on = self.let_on & lock_holders(self.locks) if self.let_on and not late else set()
        patient = boot_s() < self.since + min(self.bound_s / 2, PATIENCE_MOST_S)
        seen, moving = set(), bool(self.let_on)
        closed: set[int] = set()
        for pid, parent, now in walk(closed=closed):
            seen.add((pid, now.start))
            if pid in self.let_on or self.killed.get(pid) == now.start:
                continue
            if self.moves(pid, parent, now, late=late):
                moving = True
                # A parent in the middle of a wait, not scheduled to take its STOP, would see that its children stop.
                if patient and not states(pid, now) <= STILL:
                    closed.add(pid)
        same = seen == self.seen
        self.seen = seen
        self.quiet_passes = 0 if moving or not same else self.quiet_passes + 1
        # What forks and exits is caught by speed; what only takes its time is waited for.
        self.pause_s = min(2 * self.pause_s or PAUSE_FIRST_S, PAUSE_MOST_S) if moving and same else 0.0
        self.complete = self.quiet_passes >= 2 and not self.let_go()

    def moves(self, pid: int, parent: int, now: Stat, *, late: bool) -> bool:
        """Stop or, if it is late, kill the process unless it is still or dead; whether there was need to."""
        known = self.held.get(pid) == now.start
        found = states(pid, now)
        if found <= DEAD:
            return False
        if found <= STILL and (known or found & STOPPED):
            return False
        if late:
            # Once: if it does not end by that, it hangs in the kernel or is out of reach.
            self.killed[pid] = now.start
            send(pid, parent, signal.SIGKILL)
        else:
            self.held[pid] = now.start
            halt(pid, parent, now)
        return True

    def let_go(self) -> bool:
        """Let those run on that were stopped with a lock in their hands; whether there are any."""
        holders = lock_holders(self.locks) & self.held.keys() - self.killed.keys() if self.locks else set()
        for pid, parent, now in walk() if holders else ():
            if pid in holders and self.held.pop(pid, None) == now.start:
                self.let_on.add(pid)
                send(pid, parent, signal.SIGCONT)
        if holders:
            self.disturb()
        return bool(holders)

    def thaw(self) -> None:
        """Continue all it stopped, children first: a parent that waits must not learn that they were stopped."""
        for _ in range(THAW_PASSES):
            for pid, parent, now in reversed(list(walk())):
                if self.held.get(pid) == now.start:
                    send(pid, parent, signal.SIGCONT)
                    del self.held[pid]
            # One whose parent died during the walk may have been missed.
            self.held = {pid: start for pid, start in self.held.items() if is_there(pid, start)}
            if not self.held:
                return


def is_there(pid: int, start: int) -> bool:
    """Whether this very process still lives."""
    now = stat(pid)
    return now is not None and now.start == start and lives_on(pid, now)


def lock_holders(names: Collection[bytes]) -> set[int]:
    """The processes that hold one of these files for writing; a name is as in /proc/locks."""
    holders = set()
    for line in read("/proc/locks").splitlines():
        words = line.split()
        # Those that wait have "->" before the kind of lock. A reader of the database holds nobody up.
        if len(words) > 5 and words[3] == b"WRITE" and words[5] in names:
            holders.add(int(words[4]))
    return holders
