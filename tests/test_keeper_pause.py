"""Freezing by people's wish, and how it goes together with a lease that passes. Real processes count; paused ones must not."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import time

import pytest
from keeper_zoo.tending import (
    WAIT_S,
    ZOO,
    all_tick,
    animal,
    begin,
    counts,
    finish,
    hear,
    living,
    none_ticks,
    ready,
    run,
    until,
)

import trainq
from trainq.base.clock import boot_s
from trainq.worker.keepers import Empty, Exited, Frozen, Started, Thawed, lock_name, open_keepers
from trainq.worker.tree import children, stat

TICKERS = 7  # processes of that animal
MARKS = ("saved", "hung-up", "at-exit")  # what a process of it leaves if it could act on its end


@pytest.fixture
def keeper():
    (opened,) = open_keepers(1)
    yield opened
    opened.close()


@pytest.fixture
def job(keeper, tmp_path):
    """A job of many kinds of processes that count."""
    keeper.lease(boot_s() + 1000, WAIT_S)
    begin(keeper, animal("tickers", tmp_path))
    started = hear(keeper)
    ready(tmp_path, TICKERS)
    until(lambda: len(counts(tmp_path)) == TICKERS + 1)
    all_tick(tmp_path, "self-stopped")
    return started


def pause(keeper):
    keeper.pause()
    assert hear(keeper) == Frozen(0)


def renew(keeper):
    keeper.lease(boot_s() + 1000, WAIT_S)
    keeper.thaw()


def pass_lease(keeper):
    keeper.lease(boot_s(), WAIT_S)


def marks(place):
    return [name for name in MARKS if (place / name).exists()]


def test_nothing_computes_while_paused_and_all_go_on(keeper, job, tmp_path):
    """E08: group, session, daemon, threads; who had stopped itself stays stopped. Said twice it is done once."""
    before = boot_s()
    pause(keeper)
    keeper.pause()
    assert none_ticks(tmp_path)
    assert len(living(tmp_path)) == TICKERS
    keeper.resume()
    thawed = hear(keeper)
    assert 0.3 <= thawed.frozen_s <= boot_s() - before
    keeper.resume()
    all_tick(tmp_path, "self-stopped")
    assert keeper.events() == []
    assert counts(tmp_path)["self-stopped"] == 0
    assert (len(living(tmp_path)), marks(tmp_path)) == (TICKERS, [])


def test_a_renewed_lease_does_not_thaw_what_is_paused(keeper, job, tmp_path):
    """E08: neither the lease, nor the thaw that comes with it, however often."""
    pause(keeper)
    for _ in range(3):
        renew(keeper)
        assert none_ticks(tmp_path)
    assert keeper.events() == []
    keeper.resume()
    assert isinstance(hear(keeper), Thawed)
    all_tick(tmp_path, "self-stopped")


ENDS = [*itertools.permutations(("resume", "renew")), *itertools.permutations(("resume", "renew", "renew"))]


@pytest.mark.parametrize("first", ["pause", "lease"])
@pytest.mark.parametrize("ends", [ends for ends in dict.fromkeys(ENDS) if len(ends) == 2 or ends[-1] == "resume"])
def test_with_two_reasons_it_goes_on_when_both_are_over(keeper, job, tmp_path, first, ends):
    """E08, E17: paused, and without a lease, in either order: the end of one of them continues nothing."""
    words = [keeper.pause, lambda: pass_lease(keeper)]
    for word in words if first == "pause" else reversed(words):
        word()
    assert hear(keeper) == Frozen(0)
    *not_yet, last = [keeper.resume if end == "resume" else lambda: renew(keeper) for end in ends]
    for end in not_yet:
        end()
        assert none_ticks(tmp_path)
    assert keeper.events() == []
    last()
    assert isinstance(hear(keeper), Thawed)
    all_tick(tmp_path, "self-stopped")
    keeper.pause()
    assert hear(keeper) == Frozen(0)


def test_a_stop_ends_the_pause(keeper, job, tmp_path):
    """Q31, E08: TERM reaches what is paused, and its handler runs."""
    pause(keeper)
    keeper.stop(1000)
    thawed, exited, *_ = finish(keeper)
    assert (type(thawed), exited.code) == (Thawed, 7)
    assert "main" in (tmp_path / "saved").read_text()
    assert living(tmp_path) == []


def test_a_stop_without_a_grace_kills_where_it_stands(keeper, job, tmp_path):
    """Q31: no handler, not an instruction more."""
    pause(keeper)
    before = counts(tmp_path)
    keeper.stop(0)
    exited, empty = finish(keeper)
    assert (exited.signal, empty) == (signal.SIGKILL, Empty(TICKERS))
    assert (counts(tmp_path), living(tmp_path), marks(tmp_path)) == (before, [], [])


def test_paused_without_a_lease_it_is_killed_where_it_stands(keeper, job, tmp_path):
    """Q20: a pause gives no right to run on: another copy may run by now."""
    pause(keeper)
    pass_lease(keeper)
    keeper.stop(1000)
    exited, empty = finish(keeper)
    assert (exited.signal, empty) == (signal.SIGKILL, Empty(TICKERS))
    assert (living(tmp_path), marks(tmp_path)) == ([], [])


def test_a_grace_stands_still_while_paused(keeper, tmp_path):
    """E08: TERM was sent and the job is paused: what is left of the grace is had after that, and then it is KILL."""
    keeper.lease(boot_s() + 1000, WAIT_S)
    begin(keeper, animal("stubborn", tmp_path))
    assert isinstance(hear(keeper), Started)
    ready(tmp_path, 1)
    keeper.stop(1)
    pause(keeper)
    time.sleep(1.2)  # the grace itself is what must not run on
    assert keeper.events() == []
    keeper.resume()
    assert isinstance(hear(keeper), Thawed)
    exited, empty = finish(keeper)
    assert (exited.signal, empty) == (signal.SIGKILL, Empty(1))


def test_nothing_is_killed_for_being_slow(keeper, tmp_path):
    """E08: a pause has no bound: who holds the queue's lock runs on until it lets go, and lives."""
    keeper.lease(boot_s() + 1000, 0)
    begin(keeper, animal("lock_holder", tmp_path))
    assert isinstance(hear(keeper), Started)
    ready(tmp_path, 2)
    keeper.locks([lock_name(str(tmp_path / "lock"))])
    keeper.pause()
    until(lambda: stat(children(keeper.pid)[0]).state == "T")
    before = counts(tmp_path)
    until(lambda: counts(tmp_path)["holder"] > before["holder"] + 20)
    assert counts(tmp_path)["main"] == before["main"]
    (tmp_path / "release").touch()
    assert hear(keeper) == Frozen(0)
    assert none_ticks(tmp_path)
    keeper.resume()
    assert isinstance(hear(keeper), Thawed)
    all_tick(tmp_path)


def test_the_bound_of_the_lease_comes_with_its_end_and_goes(keeper, tmp_path):
    """E17: what moves within a pause is killed once the lease has passed, too."""
    keeper.lease(boot_s() + 1000, WAIT_S)
    begin(keeper, animal("lock_holder", tmp_path))
    assert isinstance(hear(keeper), Started)
    ready(tmp_path, 2)
    keeper.locks([lock_name(str(tmp_path / "lock"))])
    keeper.pause()
    until(lambda: stat(children(keeper.pid)[0]).state == "T")
    keeper.lease(boot_s(), 0.3)
    assert hear(keeper) == Frozen(1)
    assert none_ticks(tmp_path)


def test_a_renewed_lease_leaves_a_pause_without_a_bound(keeper, job, tmp_path):
    """E08, E17: the lease has passed and come back while the job is paused: what somebody continues now, again and again, is
    stopped again and not killed, however long that goes on."""
    pause(keeper)
    keeper.lease(boot_s(), 0.2)
    assert none_ticks(tmp_path)
    renew(keeper)
    end = time.monotonic() + 1.5
    while time.monotonic() < end:
        os.kill(job.pid, signal.SIGCONT)
    until(lambda: stat(job.pid).state == "T")
    assert (len(living(tmp_path)), keeper.events()) == (TICKERS, [])
    keeper.resume()
    assert isinstance(hear(keeper), Thawed)
    all_tick(tmp_path, "self-stopped")


def test_paused_at_its_start(keeper, tmp_path):
    """E08: a job that is paused before its program has begun begins when it may."""
    for place in map(str, range(10)):
        (tmp_path / place).mkdir()
        begin(keeper, animal("ticker", tmp_path / place))
        keeper.pause()
        until(lambda: any(isinstance(event, Frozen) for event in keeper.events()))
        before = counts(tmp_path / place)
        time.sleep(0.05)
        assert counts(tmp_path / place) == before
        keeper.resume()
        ready(tmp_path / place, 1)
        all_tick(tmp_path / place)
        keeper.stop(0)
        finish(keeper)


def test_a_pause_is_the_jobs_and_not_the_keepers(keeper, tmp_path):
    """E08: said without a job it means nothing; the job after one that was paused to its end runs."""
    keeper.pause()
    assert run(keeper, ["sh", "-c", "exit 4"])[1].code == 4
    begin(keeper, animal("ticker", tmp_path))
    hear(keeper)
    pause(keeper)
    keeper.stop(0)
    assert [type(event) for event in finish(keeper)] == [Exited, Empty]
    assert run(keeper, ["sh", "-c", "exit 5"])[1].code == 5


def test_who_is_continued_by_another_hand_is_stopped_again(keeper, job, tmp_path):
    """E08: the keeper hears of it and looks again."""
    pause(keeper)
    os.kill(job.pid, signal.SIGCONT)
    until(lambda: stat(job.pid).state == "T")
    assert none_ticks(tmp_path)


def test_a_killed_worker_leaves_nothing_paused(tmp_path):
    """E11: kill -9 of the worker while its job is paused: all is killed where it stands."""
    root = os.path.dirname(os.path.dirname(trainq.__file__))
    command = [sys.executable, os.path.join(ZOO, "leasing_worker.py"), str(tmp_path)]
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, stdin=pipe, stdout=pipe, text=True, bufsize=1, env={**os.environ, "PYTHONPATH": root}
    ) as worker:
        assert worker.stdout.readline().split()[1] == "Started"
        ready(tmp_path, TICKERS)
        worker.stdin.write("pause\n")
        keeper, heard = worker.stdout.readline().split()
        assert heard == "Frozen"
        before = counts(tmp_path)
        worker.kill()
        until(lambda: living(tmp_path) == [])
        until(lambda: (now := stat(int(keeper))) is None or now.state == "Z")
        assert (counts(tmp_path), marks(tmp_path)) == (before, [])
