"""The slots of a worker: a keeper each, and the attempt it has, if any.

A keeper that is killed takes its job's main process with it; what else the job left is then ended here. Until nothing of
it is left the attempt has not ended, whatever that takes, and no new keeper takes the place.
"""

from __future__ import annotations

import os
import selectors
import signal
from typing import TYPE_CHECKING

from trainq.base import hosts
from trainq.base.errors import TimedOut, Unsupported
from trainq.worker.keepers import Keeper, KeeperLost, end_strays, open_keepers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from trainq.worker.attempt import Attempt


STRAYS_S = 1.0
"""How long strays are waited for at once; what takes longer to die hangs in the kernel, and is looked at again."""


class Slot:
    """One keeper and the attempt it has, if any."""

    def __init__(self, keeper: Keeper) -> None:
        self.keeper = keeper
        self.attempt: Attempt | None = None

    @property
    def is_broken(self) -> bool:
        """Whether its keeper is gone, and what that left may not be."""
        return self.keeper.is_closed


class Slots:
    """All slots of a worker, registered in its selector. `locks` are files that no job may be frozen with."""

    def __init__(
        self, number: int, selector: selectors.BaseSelector, locks: Sequence[str], on_trouble: Callable[[str], None]
    ) -> None:
        self._selector = selector
        self._locks = locks
        self._on_trouble = on_trouble
        self._slots = [Slot(keeper) for keeper in (_opened(number) if number else ())]
        for slot in self._slots:
            self._register(slot)

    def __iter__(self) -> Iterator[Slot]:
        return iter(self._slots)

    def __len__(self) -> int:
        return len(self._slots)

    def attempts(self) -> list[Attempt]:
        """The attempts in the slots."""
        return [slot.attempt for slot in self._slots if slot.attempt is not None]

    def free(self) -> list[Slot]:
        """The slots without one, ready for one."""
        return [slot for slot in self._slots if slot.attempt is None and not slot.is_broken]

    def end_strays(self) -> bool:
        """Look again at what killed keepers left; true once nothing is: their attempts have ended, and new keepers are
        ready."""
        return any(slot.is_broken for slot in self._slots) and self._mend(0.0)

    def wake_keepers(self) -> None:
        """Let a keeper go on that somebody has stopped: neither a limit nor a cancel would reach its job. Each is our
        own child and not waited for, so its pid is nobody else's."""
        for slot in self._slots:
            if not slot.is_broken and hosts.is_stopped(slot.keeper.pid):
                os.kill(slot.keeper.pid, signal.SIGCONT)

    def close(self) -> None:
        """Let the keepers go; a job that runs still is killed."""
        for slot in self._slots:
            slot.keeper.close()

    def _register(self, slot: Slot) -> None:
        slot.keeper.locks(self._locks)
        self._selector.register(slot.keeper, selectors.EVENT_READ, lambda: self._listen_to(slot))

    def _listen_to(self, slot: Slot) -> None:
        try:
            for event in slot.keeper.events():
                if slot.attempt is not None:
                    slot.attempt.heard(event)
        except KeeperLost as error:
            self._break(slot, error)

    def _break(self, slot: Slot, error: KeeperLost) -> None:
        """A keeper was killed."""
        self._on_trouble(str(error))
        self._selector.unregister(slot.keeper)
        slot.keeper.close()
        self._mend(STRAYS_S)

    def _mend(self, patience_s: float) -> bool:
        """End what killed keepers left and put new ones in their place; false if something is left."""
        if end_strays([slot.keeper.pid for slot in self._slots if not slot.is_broken], patience_s):
            return False
        for slot in [slot for slot in self._slots if slot.is_broken]:
            slot.keeper = _opened(1)[0]
            self._register(slot)
            if slot.attempt is not None:
                slot.attempt.keeper = slot.keeper
                slot.attempt.keeper_died()
        return True


def _opened(number: int) -> list[Keeper]:
    """New keepers. That one is killed while it starts ends no worker: it is tried three times."""
    for _ in range(2):
        try:
            return open_keepers(number)
        except (TimedOut, Unsupported):
            continue  # if it cannot be done at all, the last time says why
    return open_keepers(number)
