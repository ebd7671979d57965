"""The keeper's freezing when the lease has passed. Real processes count; frozen ones must not."""

from __future__ import annotations

import fcntl
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

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
    hear_until,
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
    begin(keeper, animal("tickers", tmp_path))
    started = hear(keeper)
    ready(tmp_path, TICKERS)
    until(lambda: len(counts(tmp_path)) == TICKERS + 1)
    all_tick(tmp_path, "self-stopped")
    return started


def pass_lease(keeper):
    keeper.lease(boot_s(), WAIT_S)


def let_on(keeper):
    keeper.lease(boot_s() + 1000, WAIT_S)
    keeper.thaw()


def freeze(keeper):
    pass_lease(keeper)
    assert hear(keeper) == Frozen(0)


def thaw(keeper):
    let_on(keeper)
    thawed = hear(keeper)
    assert isinstance(thawed, Thawed)
    return thawed.frozen_s


def marks(place):
    return [name for name in MARKS if (place / name).exists()]


# ---------------------------------------------------------------- frozen and thawed


def test_nothing_computes_while_frozen_and_all_go_on(keeper, job, tmp_path):
    """Q20: group, session, daemon, threads; who had stopped itself stays stopped, frozen or thawed."""
    before = boot_s()
    freeze(keeper)
    assert none_ticks(tmp_path)
    assert len(living(tmp_path)) == TICKERS
    assert 0.3 <= thaw(keeper) <= boot_s() - before
    all_tick(tmp_path, "self-stopped")
    assert counts(tmp_path)["self-stopped"] == 0
    assert len(living(tmp_path)) == TICKERS
    assert marks(tmp_path) == []


def test_fifty_times_in_a_row(keeper, job, tmp_path):
    """Nothing is lost, however often."""
    for _ in range(50):
        freeze(keeper)
        thaw(keeper)
    all_tick(tmp_path, "self-stopped")
    assert len(living(tmp_path)) == TICKERS
    assert counts(tmp_path)["self-stopped"] == 0


def test_words_without_an_answer(keeper, tmp_path):
    """A thaw without a job, or of what is not frozen, does nothing; nor does one come with the end."""
    keeper.thaw()
    assert run(keeper, ["sh", "-c", "exit 4"])[1].code == 4
    begin(keeper, animal("ticker", tmp_path))
    ready(tmp_path, 1)
    keeper.thaw()
    pass_lease(keeper)
    keeper.stop(0)
    events = finish(keeper)
    assert not any(isinstance(event, Thawed) for event in events)
    assert events[-2].signal == signal.SIGKILL


def test_a_thaw_in_the_middle(keeper, job, tmp_path):
    """A thaw right after the freeze has begun leaves nobody behind."""
    for _ in range(20):
        pass_lease(keeper)
        let_on(keeper)
        until(lambda: any(isinstance(event, Thawed) for event in keeper.events()))
    all_tick(tmp_path, "self-stopped")


@pytest.mark.parametrize("name", ["storm", "ticking_chain"])
def test_who_forks_all_the_time(keeper, tmp_path, name):
    """Fork storms, fork-and-exit chains, daemons among them: caught whole, and they go on."""
    begin(keeper, animal(name, tmp_path))
    assert isinstance(hear(keeper), Started)
    ready(tmp_path, 1)
    for _ in range(5):
        all_tick(tmp_path)
        freeze(keeper)
        assert none_ticks(tmp_path)
        thaw(keeper)
    all_tick(tmp_path)


def test_a_thread_that_no_stop_reaches(keeper, tmp_path):
    """While one thread waits in the kernel the others of its process stop all the same."""
    begin(keeper, animal("in_kernel", tmp_path))
    main = hear(keeper).pid
    ready(tmp_path, 1)
    until(lambda: stat(main).state == "D")
    all_tick(tmp_path)
    freeze(keeper)
    assert none_ticks(tmp_path)
    thaw(keeper)
    all_tick(tmp_path)
    os.close(os.open(tmp_path / "fifo", os.O_WRONLY))
    assert finish(keeper)[0].code == 0


def test_who_is_continued_by_another_hand_is_stopped_again(keeper, job, tmp_path):
    """The keeper hears of it and looks again."""
    freeze(keeper)
    os.kill(job.pid, signal.SIGCONT)
    until(lambda: stat(job.pid).state == "T")
    assert none_ticks(tmp_path)
    thaw(keeper)
    all_tick(tmp_path, "self-stopped")


SURVIVORS = [
    ["sh", "-c", "for i in $(seq 30); do sleep 0.02; echo $i; done | (n=0; while read x; do n=$((n+x)); done; test $n = 465)"],
    ["bash", "-c", "set -m; for i in $(seq 10); do (sleep 0.3; exit 3) & done; for j in $(jobs -p); do wait $j; test $? = 3 || exit 1; done"],
    ["bash", "-ic", "for i in $(seq 20); do sleep 0.02; done; exit 0"],
    ["xargs", "-P", "4", "-n", "1", "-a", "/proc/self/cmdline", "-0", "sh", "-c", "sleep 0.1"],
    ["timeout", "60", "sh", "-c", "for i in $(seq 20); do sleep 0.02; done"],
    ["make", "-j3", "-f", "{place}/Makefile"],
    ["{pool}"],
]  # fmt: skip


@pytest.mark.parametrize("argv", SURVIVORS, ids=["sh", "bash", "interactive", "xargs", "timeout", "make", "pool"])
def test_programs_that_watch_their_children(keeper, tmp_path, argv):
    """Shells, make, xargs, timeout and Pool take no notice of a freeze."""
    targets = [f"t{number}" for number in range(20)]
    rules = "".join(f"{name}:\n\tsleep 0.05\n" for name in targets)
    (tmp_path / "Makefile").write_text(f"all: {' '.join(targets)}\n{rules}")
    pool = [sys.executable, os.path.join(ZOO, "animals.py"), "pool", str(tmp_path)]
    words = pool if argv == ["{pool}"] else [word.replace("{place}", str(tmp_path)) for word in argv]
    with open(tmp_path / "out", "wb") as out:
        begin(keeper, words, out=out.fileno())
    events = [hear(keeper)]
    say, answer = pass_lease, Frozen
    while not isinstance(events[-1], Empty):
        say(keeper)
        events += hear_until(keeper, answer | Empty)
        say, answer = (let_on, Thawed) if answer is Frozen else (pass_lease, Frozen)
        select.select([keeper], [], [], 0.02)
    (exited,) = [event for event in events if isinstance(event, Exited)]
    assert (exited.code, exited.signal, events[-1]) == (0, None, Empty(0)), (tmp_path / "out").read_text()
    assert any(isinstance(event, Frozen) for event in events)


# ---------------------------------------------------------------- the lease


def test_a_passed_lease_freezes(keeper, job, tmp_path):
    """E17: without a word; under a new lease, and only then, the job is thawed."""
    keeper.lease(boot_s() + 0.2, WAIT_S)
    assert hear(keeper) == Frozen(0)
    assert none_ticks(tmp_path)
    keeper.thaw()
    assert none_ticks(tmp_path)
    keeper.lease(boot_s() + 1000, WAIT_S)
    assert none_ticks(tmp_path)
    thaw(keeper)
    all_tick(tmp_path, "self-stopped")
    assert keeper.events() == []


def test_a_new_lease_takes_the_place_of_the_last(keeper, job, tmp_path):
    """No freeze at the moments of leases that were renewed, nor after one without an end."""
    for _ in range(20):
        keeper.lease(boot_s() + 0.2, WAIT_S)
        time.sleep(0.02)
    keeper.lease(boot_s() + 1000, WAIT_S)
    keeper.lease(float("inf"), WAIT_S)
    time.sleep(0.3)
    all_tick(tmp_path, "self-stopped")
    assert keeper.events() == []


def test_a_job_started_after_the_lease_is_frozen(keeper, tmp_path):
    """A lease is the keeper's, not the job's; thawed under a new one the job runs as any other."""
    keeper.lease(boot_s() - 1, WAIT_S)
    assert keeper.events() == []
    begin(keeper, animal("ticker", tmp_path))
    until(lambda: any(isinstance(event, Frozen) for event in keeper.events()))
    before = counts(tmp_path)
    time.sleep(0.3)
    assert counts(tmp_path) == before
    keeper.lease(boot_s() + 1000, WAIT_S)
    keeper.thaw()
    ready(tmp_path, 1)
    all_tick(tmp_path)


def test_the_lease_runs_on_through_a_suspend(keeper):
    """The timer is on CLOCK_BOOTTIME."""
    infos = Path(f"/proc/{keeper.pid}/fdinfo")
    timers = [text for text in (path.read_text() for path in infos.iterdir()) if "clockid" in text]
    assert len(timers) == 1
    assert f"clockid: {time.CLOCK_BOOTTIME}\n" in timers[0]


def test_no_cpu_while_nothing_happens(keeper, job):
    """Neither under a lease nor frozen."""

    def ticks():
        with open(f"/proc/{keeper.pid}/stat") as file:
            words = file.read().rsplit(")", 1)[1].split()
        return int(words[11]) + int(words[12])

    keeper.lease(boot_s() + 1000, WAIT_S)
    before = ticks()
    time.sleep(0.5)
    assert ticks() - before <= 1
    freeze(keeper)
    before = ticks()
    time.sleep(0.5)
    assert ticks() - before <= 1


# ---------------------------------------------------------------- the end of what is frozen


def test_who_lost_the_lease_is_killed_where_it_stands(keeper, job, tmp_path):
    """Q20: whatever the grace, also under a new lease: no handler, no orderly end, not an instruction more."""
    keeper.lease(boot_s(), WAIT_S)
    assert hear(keeper) == Frozen(0)
    keeper.lease(boot_s() + 1000, WAIT_S)
    before = counts(tmp_path)
    keeper.stop(1000)
    exited, empty = finish(keeper)
    assert (exited.signal, empty) == (signal.SIGKILL, Empty(TICKERS))
    assert counts(tmp_path) == before
    assert (living(tmp_path), marks(tmp_path)) == ([], [])


def test_nobody_is_woken_by_the_death_of_another(keeper, tmp_path):
    """stop(0) of what was frozen: the death of the session's leader continues no group of it."""
    for number in range(10):
        place = tmp_path / str(number)
        place.mkdir()
        keeper.lease(boot_s() + 1000, WAIT_S)
        begin(keeper, animal("tickers", place))
        assert isinstance(hear(keeper), Started)
        ready(place, TICKERS)
        freeze(keeper)
        before = counts(place)
        keeper.stop(0)
        assert finish(keeper)[-1] == Empty(TICKERS)
        assert (counts(place), living(place), marks(place)) == (before, [], [])


def test_a_thawed_job_has_its_grace(keeper, job, tmp_path):
    """Q20: who has got its lease back is stopped as any other, and its handler of TERM runs."""
    freeze(keeper)
    thaw(keeper)
    keeper.stop(1000)
    assert finish(keeper)[0].code == 7
    assert "main" in (tmp_path / "saved").read_text()
    assert living(tmp_path) == []


def test_a_grace_stands_still_while_frozen(keeper, tmp_path):
    """E17: TERM was sent and the lease passes: what is left of the grace is had after the thaw, and then it is KILL."""
    begin(keeper, animal("stubborn", tmp_path))
    assert isinstance(hear(keeper), Started)
    ready(tmp_path, 1)
    keeper.stop(1)
    keeper.lease(boot_s(), WAIT_S)
    assert hear(keeper) == Frozen(0)
    time.sleep(1.2)  # the grace itself is what must not run on
    assert keeper.events() == []
    keeper.lease(boot_s() + 1000, WAIT_S)
    thaw(keeper)
    exited, empty = finish(keeper)
    assert (exited.signal, empty) == (signal.SIGKILL, Empty(1))


@pytest.mark.parametrize("grace_s", [0, 1000])
def test_a_stop_said_again_while_frozen(keeper, tmp_path, grace_s):
    """Q20: TERM was sent, the lease passes, a second stop: KILL at once, whatever its grace and what was left of the first."""
    begin(keeper, animal("stubborn", tmp_path))
    assert isinstance(hear(keeper), Started)
    ready(tmp_path, 1)
    keeper.stop(1000)
    keeper.lease(boot_s(), WAIT_S)
    assert hear(keeper) == Frozen(0)
    keeper.stop(grace_s)
    exited, empty = finish(keeper)
    assert (exited.signal, empty) == (signal.SIGKILL, Empty(1))


def test_what_is_left_over_is_not_kept_by_a_freeze(keeper, tmp_path):
    """E11: the main process has ended and what it left ignores its TERM; the lease passes: KILL all the same."""
    begin(
        keeper,
        ["sh", "-c", '"$@" & while [ ! -s "$0/ready" ]; do sleep 0.01; done', tmp_path, *animal("stubborn", tmp_path)],
    )
    hear_until(keeper, Exited)
    keeper.lease(boot_s(), WAIT_S)
    assert finish(keeper)[-1] == Empty(1)
    assert living(tmp_path) == []


def test_the_main_process_is_killed_by_another_hand(keeper, job, tmp_path):
    """The end goes on, and what is left of the job is killed."""
    freeze(keeper)
    os.kill(job.pid, signal.SIGKILL)
    exited, empty = finish(keeper)
    assert (exited.signal, empty) == (signal.SIGKILL, Empty(TICKERS - 1))
    assert living(tmp_path) == []
    keeper.lease(boot_s() + 1000, WAIT_S)
    assert run(keeper, ["true"])[1].code == 0


# ---------------------------------------------------------------- locks and the bound


def test_a_lock_is_let_go_of_first(keeper, tmp_path):
    """A nested submit that was stopped at the gate runs until it has passed it; all others stand still."""
    begin(keeper, animal("lock_holder", tmp_path))
    assert isinstance(hear(keeper), Started)
    ready(tmp_path, 2)
    keeper.locks([lock_name(str(tmp_path / "lock")), "ff:ff:1"])
    all_tick(tmp_path)
    keeper.lease(boot_s(), 1000)
    until(lambda: stat(children(keeper.pid)[0]).state == "T")
    before = counts(tmp_path)
    until(lambda: counts(tmp_path)["holder"] > before["holder"] + 20)
    assert counts(tmp_path)["main"] == before["main"]
    assert keeper.events() == []
    (tmp_path / "release").touch()
    assert hear(keeper) == Frozen(0)
    assert (tmp_path / "released").exists()
    assert none_ticks(tmp_path)
    thaw(keeper)
    all_tick(tmp_path)


def test_who_keeps_its_lock_is_killed(keeper, tmp_path):
    """When the bound is over the lock is freed by force; the rest of the job is frozen and thawed as usual."""
    begin(keeper, animal("lock_holder", tmp_path))
    assert isinstance(hear(keeper), Started)
    ready(tmp_path, 2)
    keeper.locks([lock_name(str(tmp_path / "lock"))])
    keeper.lease(boot_s(), 0.3)
    assert hear(keeper) == Frozen(1)
    with open(tmp_path / "lock") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    assert none_ticks(tmp_path)
    keeper.lease(boot_s() + 1000, 0.3)
    thaw(keeper)
    holder = counts(tmp_path)["holder"]
    until(lambda: counts(tmp_path)["main"] > holder)
    assert counts(tmp_path)["holder"] == holder
    keeper.stop(0)
    assert finish(keeper)[-1] == Empty(2)


def test_other_locks_are_nothing_to_wait_for(keeper, tmp_path):
    """Locks on other files, and locks for reading on ours."""
    (tmp_path / "other").touch()
    for name, locks in (("lock_reader", "lock"), ("lock_holder", "other")):
        keeper.lease(boot_s() + 1000, 1000)
        begin(keeper, animal(name, tmp_path))
        assert isinstance(hear(keeper), Started)
        ready(tmp_path, 1)
        (tmp_path / "ready").unlink()
        keeper.locks([lock_name(str(tmp_path / locks))])
        freeze(keeper)
        keeper.stop(0)
        finish(keeper)


def test_what_moves_when_the_bound_is_over_is_killed(keeper, job, tmp_path):
    """With no time at all everything but what had stopped itself moves; that is told, and the end as any other."""
    keeper.lease(boot_s(), 0)
    events = finish(keeper)
    assert isinstance(events[0], Frozen)
    assert events[0].killed > 0
    assert [event.signal for event in events if isinstance(event, Exited)] == [signal.SIGKILL]
    assert living(tmp_path) == []
    assert marks(tmp_path) in ([], ["hung-up"])


# ---------------------------------------------------------------- the worker stops, hangs or dies


@pytest.fixture
def worker(tmp_path):
    root = os.path.dirname(os.path.dirname(trainq.__file__))
    command = [sys.executable, os.path.join(ZOO, "leasing_worker.py"), str(tmp_path)]
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, stdin=pipe, stdout=pipe, text=True, bufsize=1, env={**os.environ, "PYTHONPATH": root}
    ) as process:
        assert process.stdout.readline().split()[1] == "Started"
        ready(tmp_path, TICKERS)
        until(lambda: len(counts(tmp_path)) == TICKERS + 1)
        all_tick(tmp_path, "self-stopped")
        yield process
        process.kill()


def test_a_stopped_worker_freezes_its_job_in_time(worker, tmp_path):
    """E17: kill -STOP of the worker; the job stands still at the end of the lease, and goes on when both are back."""
    worker.stdin.write("lease 0.5\n")
    assert worker.stdout.readline().split()[1] == "leased"
    os.kill(worker.pid, signal.SIGSTOP)
    until(lambda: stat(worker.pid).state == "T")
    until(lambda: all(stat(pid).state in "TZ" for pid in living(tmp_path)))
    until(lambda: none_ticks(tmp_path))
    os.kill(worker.pid, signal.SIGCONT)
    assert worker.stdout.readline().split()[1] == "Frozen"
    worker.stdin.write("lease 1000\n")
    assert worker.stdout.readline().split()[1] == "leased"
    assert none_ticks(tmp_path)
    worker.stdin.write("thaw\n")
    assert worker.stdout.readline().split()[1] == "Thawed"
    all_tick(tmp_path, "self-stopped")


def test_a_killed_worker_leaves_nothing_frozen(worker, tmp_path):
    """E11: kill -9 of the worker while its job is frozen: all is killed where it stands."""
    worker.stdin.write("lease 0\n")
    assert worker.stdout.readline().split()[1] == "leased"
    keeper, heard = worker.stdout.readline().split()
    assert heard == "Frozen"
    before = counts(tmp_path)
    worker.kill()
    until(lambda: living(tmp_path) == [])
    until(lambda: (now := stat(int(keeper))) is None or now.state == "Z")
    assert (counts(tmp_path), marks(tmp_path)) == (before, [])
