"""What the keeper's tests share: jobs begun and heard to their end, animals of the zoo and the marks they leave."""

from __future__ import annotations

import os
import select
import sys
import time

from trainq.worker.keepers import Empty, Failed, Plan
from trainq.worker.tree import lives_on, stat

ZOO = os.path.dirname(os.path.abspath(__file__))
WAIT_S = 30.0
PATH = b"/usr/local/bin:/usr/bin:/bin"


def until(condition):
    end = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < end, "the condition did not come true"
        time.sleep(0.01)


def begin(keeper, argv, *, env=None, cwd=b"/", umask=0o22, out=None):
    null = os.open(os.devnull, os.O_RDWR)
    words = tuple(os.fsencode(word) for word in argv)
    keeper.start(Plan(words, {b"PATH": PATH, **(env or {})}, cwd, umask), null, out or null, out or null)
    os.close(null)


def finish(keeper):
    """All events up to the one after which the keeper is free."""
    return hear_until(keeper, Empty | Failed)


def hear_until(keeper, kinds):
    """The next events, up to one of these kinds."""
    events = []
    end = time.monotonic() + WAIT_S
    while not any(isinstance(event, kinds) for event in events):
        ready, _, _ = select.select([keeper], [], [], max(0, end - time.monotonic()))
        assert ready, f"nothing more after {events}"
        events += keeper.events()
    return events


def run(keeper, argv, **how):
    begin(keeper, argv, **how)
    return finish(keeper)


def animal(name, place, *words):
    return [sys.executable, "-I", "-S", os.path.join(ZOO, "animals.py"), name, str(place), *words]


def ready(place, number):
    until(lambda: (place / "ready").exists() and (place / "ready").stat().st_size >= number)


def living(place):
    """The processes that left their mark in this directory and still run."""
    pairs = [map(int, line.split()) for line in (place / "pids").read_text().splitlines()]
    seen = [(pid, start, stat(pid)) for pid, start in pairs]
    return [pid for pid, start, now in seen if now and now.start == start and lives_on(pid, now)]


def hear(keeper):
    """The next event."""
    return hear_all(keeper, 1)[0]


def hear_all(keeper, number):
    """The next events, exactly so many."""
    events = []
    end = time.monotonic() + WAIT_S
    while len(events) < number:
        ready, _, _ = select.select([keeper], [], [], max(0, end - time.monotonic()))
        assert ready, f"nothing more after {events}"
        events += keeper.events()
    assert len(events) == number
    return events


def counts(place):
    """The counters of the processes that count."""
    return {path.name[6:]: int.from_bytes(path.read_bytes(), "little") for path in place.glob("ticks-*")}


def all_tick(place, *but):
    """Wait until each counter has moved on."""
    before = counts(place)
    assert before
    until(lambda: all(now > before[name] or name in but for name, now in counts(place).items()))


def none_ticks(place):
    """Whether all counters stand still for a while."""
    before = counts(place)
    assert before
    time.sleep(0.3)
    return counts(place) == before
