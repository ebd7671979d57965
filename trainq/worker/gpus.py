"""The GPUs that a worker gives out, and who else computes on them: looked at now and then, beside the loop."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from trainq.worker.devices import Looker, is_below

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from trainq.domain.devices import Device

EVERY_S = 5.0


class Gpus:
    """What is given out. `avoids`: those that others compute on are not; it is looked once before anything is."""

    def __init__(self, devices: tuple[Device, ...], *, avoids: bool) -> None:
        self.devices = devices
        self._looker: Looker | None = None
        if avoids and not all(device.is_simulated for device in devices):
            me = os.getpid()
            self._looker = Looker(devices, lambda pid: is_below(pid, me))
            self.devices = self._looker.refresh().devices

    def look(
        self,
        slow: Callable[[Callable[[], None], Callable[[BaseException | None], None]], None],
        then: Callable[[], None],
        held: Collection[str],
    ) -> None:
        """Have it looked when it is time, in the pool; `then` is called in the loop's thread when something has changed.

        `held` are the GPUs that jobs here have: a process on them that the driver cannot name is theirs.
        """
        looker = self._looker
        if looker is None or not looker.begin(EVERY_S):
            return

        def work() -> None:
            looker.refresh(held)

        def looked(_error: BaseException | None) -> None:  # what was seen last stays
            if looker.seen.devices != self.devices:
                self.devices = looker.seen.devices
                then()

        slow(work, looked)

    def close(self) -> None:
        """No more looks; one that is under way ends at once."""
        if self._looker is not None:
            self._looker.stop()
