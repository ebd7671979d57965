"""The slots of a worker: a keeper that is killed, at work or while it starts, ends nobody but its job."""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import sys

import pytest
from e2e.kit import Tq, children, status_of, until

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


# What a program is that takes the ends of strays for held up while the file `held` stands: they hang in the kernel.
HOLDS = """
import os, sys
from trainq.cli import main
from trainq.worker import slots
real = slots.end_strays
def end_strays(spare, timeout_s=0.0):
    if not os.path.exists("held"): return real(spare, timeout_s)
    open("asked", "a").write(".")
    return 1
slots.end_strays = end_strays
sys.exit(main.run(sys.argv[1:]))
"""


class Told:
    """An attempt, as far as slots know it."""

    def __init__(self):
        self.told = []
        self.keeper = None

    def keeper_died(self):
        self.told.append("died")

    def heard(self, event):
        self.told.append(event)


@pytest.mark.parametrize("attempt", [Told(), None], ids=["busy", "free"])
def test_a_slot_is_kept_while_strays_are_left(monkeypatch, attempt):
    """Q22, DESIGN 2.9: the keeper was killed and processes that it left will not die: its attempt does not end, and the
    slot is not free, until a later look finds that none is left. Other slots go on."""
    left = [2]
    monkeypatch.setattr(slots, "end_strays", lambda *_: left[0])
    with selectors.DefaultSelector() as selector:
        found = slots.Slots(2, selector, (), lambda _message: None)
        slot, other = found
        slot.attempt = attempt
        first = slot.keeper.pid
        os.kill(first, signal.SIGKILL)
        until(lambda: [key.data() for key, _ in selector.select(0.1)])
        for _ in range(3):
            found.end_strays()
            assert (attempt.told if attempt else []) == []
            assert found.free() == [other]
        left[0] = 0
        found.end_strays()
        assert slot.keeper.pid != first
        assert found.free() == ([other] if attempt else [slot, other])
        if attempt:
            assert attempt.told == ["died"]
            assert attempt.keeper is slot.keeper
        found.close()
    assert {status_of(one.keeper.pid) for one in (slot, other)} == {""}


def test_the_end_is_not_written_while_strays_are_left(tmp_path):
    """Q22, DESIGN 2.9: the job of a killed keeper runs on for its worker until nothing of it is left, and is lost then."""
    tq = Tq(tmp_path)
    tq.ok("init", tq.root, root=None)
    script = tq.script("holds.py", HOLDS)
    (tq.dir / "held").touch()
    job = tq.submit("--shell", "test $TRAINQ_ATTEMPT = 2 || sleep 60")
    words = [sys.executable, str(script), "--root", tq.root, "worker", "--slots", "1", "--until", "empty"]
    with subprocess.Popen(words, env=tq.environment(), cwd=tq.dir, stdout=subprocess.DEVNULL) as worker:
        pid = until(lambda: tq.job(job)["attempt"]["pid"])
        (keeper,) = children(worker.pid)
        os.kill(keeper, signal.SIGKILL)
        until(lambda: (tq.dir / "asked").exists() and len((tq.dir / "asked").read_text()) > 3)
        card = tq.job(job)
        assert (card["state"], card["attempt"]["pid"]) == ("running", pid)
        (tq.dir / "held").unlink()
        assert worker.wait(30) == 0
    card = tq.job(job)
    assert (card["state"], [one["reason"] for one in card["attempts"]]) == ("done", ["zombie", None])
