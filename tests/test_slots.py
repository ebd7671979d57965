"""The slots of a worker: a keeper that is killed, at work or while it starts, ends nobody but its job."""

from __future__ import annotations

import os
import selectors
import signal

from e2e.kit import until

from trainq.base.errors import Unsupported
from trainq.worker import slots


def test_a_keeper_that_dies_while_it_starts(monkeypatch):
    """Q22: it is started again, and so is one that dies later; the worker hears of each and goes on."""
    opened, troubles = [], []
    real = slots.open_keepers

    def open_keepers(number):
        opened.append(number)
        if len(opened) in (1, 3):  # at the start, and when the first one is replaced
            raise Unsupported("a keeper could not start here")
        return real(number)

    monkeypatch.setattr(slots, "open_keepers", open_keepers)
    with selectors.DefaultSelector() as selector:
        found = slots.Slots(1, selector, (), troubles.append)
        (slot,) = found
        first = slot.keeper.pid
        os.kill(first, signal.SIGKILL)
        until(lambda: [key.data() for key, _ in selector.select(0.1)] and slot.keeper.pid != first)
        found.close()
    assert opened == [1, 1, 1, 1]
    assert troubles == [f"keeper {first} is gone"]
