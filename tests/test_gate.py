"""The gate: one at a time, in turn, for a bounded time, and free at once when its holder dies."""

from __future__ import annotations

import errno
import fcntl
import itertools
import json
import os
import signal
import subprocess
import sys
import threading
import time

import pytest
from store_builders import finished, line, put, running, spawn, until

from trainq.base import hosts
from trainq.base.errors import GateBusy, NoLocks, NoRoot, Storage, Unwritable
from trainq.store import gate as gate_module
from trainq.store.gate import Gate

HOLD = "place.session().gate.enter(); say('held'); sys.stdin.readline()"


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "queue.lock")


@pytest.fixture
def alarm():
    """The alarm as it is before a test; the runner's own time-out may use it."""
    before = signal.signal(signal.SIGALRM, signal.SIG_DFL)
    left = signal.setitimer(signal.ITIMER_REAL, 0)
    yield
    signal.signal(signal.SIGALRM, before)
    signal.setitimer(signal.ITIMER_REAL, *left)


def is_free(path):
    """Whether another process could take it now."""
    code = "import fcntl, os, sys\nfcntl.flock(os.open(sys.argv[1], os.O_RDWR), fcntl.LOCK_EX | fcntl.LOCK_NB)"
    return subprocess.run([sys.executable, "-c", code, path], stderr=subprocess.DEVNULL).returncode == 0


def test_no_two_processes_are_inside_at_once(tmp_path):
    """Q60: 8 processes, 50 turns each: no two intervals between enter and leave overlap on the machine's one clock."""
    code = """
gate = Gate(place.lock, 60)
say("ready"); sys.stdin.readline()
spans = []
for _ in range(50):
    gate.enter()
    spans.append((time.monotonic_ns(), (time.sleep(0.0005), time.monotonic_ns())[1]))
    gate.leave()
print(json.dumps(spans))
"""
    processes = [spawn(code, tmp_path, stdin=-1) for _ in range(8)]
    for process in processes:
        assert line(process) == "ready"
    for process in processes:
        process.stdin.write("go\n")
        process.stdin.flush()

    spans = sorted(tuple(span) for process in processes for span in json.loads(finished(process)))
    assert len(spans) == 400
    for before, after in itertools.pairwise(spans):
        assert before[1] <= after[0]


def test_sixteen_processes_all_get_a_share(tmp_path):
    """Q60: 16 processes that write as fast as they can: each gets a share, none starves for seconds."""
    from store_builders import place

    put(place(tmp_path).session())
    code = """
say("ready"); sys.stdin.readline()
longest, turns, end = 0.0, 0, time.monotonic() + 2
while time.monotonic() < end or not turns:
    before = time.monotonic()
    with session.writing() as tx:
        longest = max(longest, time.monotonic() - before)
        tx.rows("UPDATE meta SET v = v WHERE k = 'mode'")
    turns += 1
say(turns, longest)
"""
    processes = [spawn(code, tmp_path, stdin=-1) for _ in range(16)]
    for process in processes:
        assert line(process) == "ready"
    for process in processes:
        process.stdin.write("go\n")
        process.stdin.flush()
    said = [finished(process).split() for process in processes]
    turns = [int(words[0]) for words in said]
    longest = max(float(words[1]) for words in said)
    assert min(turns) * 20 >= max(turns), turns
    assert longest < 10, longest


def test_a_holder_beyond_the_wait_is_named(tmp_path, path, alarm):
    """Q60: with a living holder beyond lock_wait: exit 5, host and pid in the message."""
    with running(HOLD, tmp_path, stdin=-1) as holder:
        assert line(holder) == "held"
        with pytest.raises(GateBusy) as caught:
            Gate(path, 0.1).enter()
        assert caught.value.exit == 5
        assert f"pid {holder.pid} on {hosts.hostname()}" in caught.value.message
        assert "\n" not in caught.value.message
        assert caught.value.hint


def test_waits_and_then_gets_it(tmp_path, path):
    """Q60: who waits gets the gate when its holder lets go."""
    with running(HOLD, tmp_path, stdin=-1) as holder:
        assert line(holder) == "held"
        with running("Gate(place.lock, 60).enter(); say('mine')", tmp_path) as waiter:
            until(lambda: is_blocked(waiter.pid))
            assert waiter.poll() is None
            holder.stdin.write("go\n")
            holder.stdin.flush()
            assert line(waiter) == "mine"


def is_blocked(pid):
    """Whether the process waits for a lock (an arrow stands before who waits in /proc/locks)."""
    with open("/proc/locks", encoding="ascii") as file:
        return any("->" in row and f" {pid} " in row for row in file)


def test_a_killed_holder_frees_it_at_once(tmp_path, path):
    """Q60: kill -9 of the holder lets the next one in without any expiry."""
    with running(HOLD, tmp_path, stdin=-1) as holder:
        assert line(holder) == "held"
        with running("Gate(place.lock, 3600).enter(); say('mine')", tmp_path) as waiter:
            until(lambda: is_blocked(waiter.pid))
            holder.kill()
            assert line(waiter) == "mine"


def test_from_another_thread(tmp_path, path):
    """No signals outside the main thread: it looks again and again, bounded all the same."""
    seen = []

    def use(wait_s):
        gate = Gate(path, wait_s)
        try:
            gate.enter()
            seen.append("in")
            gate.leave()
        except GateBusy as error:
            seen.append(error.message)
        gate.close()

    with running(HOLD, tmp_path, stdin=-1) as holder:
        assert line(holder) == "held"
        short = threading.Thread(target=use, args=(0.1,))
        short.start()
        short.join(60)
        assert f"pid {holder.pid}" in seen.pop()
        long = threading.Thread(target=use, args=(60,))
        long.start()
        holder.stdin.write("go\n")
        holder.stdin.flush()
        long.join(60)
    assert seen == ["in"]


def test_a_child_does_not_hold_it(path):
    """A program started while the gate is held does not keep it after its parent let go."""
    gate = Gate(path, 1)
    gate.enter()
    child = subprocess.Popen(["sleep", "60"], close_fds=False)
    try:
        assert not is_free(path)
        gate.close()
        assert is_free(path)
    finally:
        child.kill()
        child.wait()


@pytest.mark.parametrize("busy", [False, True])
def test_the_alarm_is_as_it_was(tmp_path, path, alarm, busy):
    """The handler of SIGALRM is put back and no timer is left, whether the wait ended well or not."""

    def mine(_signal, _frame):
        raise AssertionError

    signal.signal(signal.SIGALRM, mine)
    with running(HOLD, tmp_path, stdin=-1) as holder:
        assert line(holder) == "held"
        gate = Gate(path, 0.1 if busy else 60)
        if busy:
            with pytest.raises(GateBusy):
                gate.enter()
        else:
            waker = threading.Timer(0.05, lambda: (holder.stdin.write("go\n"), holder.stdin.flush()))
            waker.start()
            gate.enter()
            waker.join()
    assert signal.getsignal(signal.SIGALRM) is mine
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
    gate.close()


def test_a_free_gate_does_not_touch_the_alarm(path, alarm):
    """Somebody else's timer goes on when there is nothing to wait for."""
    signal.setitimer(signal.ITIMER_REAL, 1000)
    gate = Gate(path, 1)
    gate.enter()
    gate.close()
    assert signal.getitimer(signal.ITIMER_REAL)[0] > 900


def test_a_foreign_timer_ends_when_the_gate_has_to_wait(tmp_path, path, alarm):
    """There is one interval timer a process: a wait takes it, and one that was set before is gone afterwards."""
    signal.setitimer(signal.ITIMER_REAL, 1000)
    with running(HOLD, tmp_path, stdin=-1) as holder:
        assert line(holder) == "held"
        with pytest.raises(GateBusy):
            Gate(path, 0.1).enter()
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def test_patience_that_ends_in_the_instant_the_gate_opens(path, alarm, monkeypatch):
    """The timer may fire when the lock is ours already: then it is ours, and not held by one who was told busy."""
    gate = Gate(path, 60)
    real = gate_module.fcntl.flock
    calls = []

    def flock(fd, how):
        calls.append(how)
        if len(calls) == 1:
            raise BlockingIOError
        real(fd, how)
        if len(calls) == 2:
            signal.raise_signal(signal.SIGALRM)

    monkeypatch.setattr(gate_module.fcntl, "flock", flock)
    gate.enter()
    monkeypatch.undo()
    assert not is_free(path)
    gate.leave()
    assert is_free(path)
    assert signal.getsignal(signal.SIGALRM) == signal.SIG_DFL


def test_who_was_told_busy_does_not_hold_it(tmp_path, path, alarm):
    """After GateBusy nothing of ours keeps others out."""
    with running(HOLD, tmp_path, stdin=-1) as holder:
        assert line(holder) == "held"
        gate = Gate(path, 0.05)
        with pytest.raises(GateBusy):
            gate.enter()
    assert is_free(path)
    gate.enter()
    assert not is_free(path)
    gate.close()


def test_other_signals_do_not_end_the_wait(tmp_path, path, alarm):
    """A worker told to stop while it waits still gets its gate; its own handler has run."""
    code = """
heard = []
signal.signal(signal.SIGTERM, lambda *_: heard.append(1))
say("ready")
Gate(place.lock, 60).enter()
say("mine", len(heard))
"""
    with running(HOLD, tmp_path, stdin=-1) as holder:
        assert line(holder) == "held"
        with running(code, tmp_path) as waiter:
            assert line(waiter) == "ready"
            until(lambda: is_blocked(waiter.pid))
            waiter.send_signal(signal.SIGTERM)
            until(lambda: is_blocked(waiter.pid))
            holder.kill()
            assert line(waiter) == "mine 1"


def test_the_lock_file_is_private_and_readable_by_eye(path):
    """0600, one line: host and pid of who was in last."""
    gate = Gate(path, 1)
    gate.enter()
    assert os.stat(path).st_mode & 0o777 == 0o600
    with open(path, "rb") as file:
        assert file.read().split() == [hosts.hostname().encode(), str(os.getpid()).encode()]
    gate.close()


def test_a_text_of_nobody(tmp_path, path, alarm):
    """A lock held by a foreign program, with anything in the file: still one line and exit 5."""
    with open(path, "wb") as file:
        file.write(b"\xff\x00 spoiled\n by somebody else")
    code = "import fcntl; f = open(place.lock); fcntl.flock(f, fcntl.LOCK_EX); say('held'); sys.stdin.readline()"
    with running(code, tmp_path, stdin=-1) as holder:
        assert line(holder) == "held"
        with pytest.raises(GateBusy, match="still held by another program after") as caught:
            Gate(path, 0.05).enter()
    assert "\n" not in caught.value.message


def test_who_has_gone_is_not_named(tmp_path, path, alarm):
    """Q60: a foreign program holds it, and the file tells of who was in last: only one that may hold it is named."""
    with running("place.session().gate.enter(); say('held')", tmp_path) as last:
        finished(last)
    code = "import fcntl; f = open(place.lock); fcntl.flock(f, fcntl.LOCK_EX); say('held'); sys.stdin.readline()"
    with running(code, tmp_path, stdin=-1) as holder:
        assert line(holder) == "held"
        with pytest.raises(GateBusy, match="still held by another program after") as caught:
            Gate(path, 0.05).enter()
        assert str(last.pid) not in caught.value.message
        with open(path, "r+b") as file:
            file.write(f"elsewhere {last.pid}".encode().ljust(64))
        with pytest.raises(GateBusy, match=f"still held by pid {last.pid} on elsewhere after"):
            Gate(path, 0.05).enter()


@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize(
    ("number", "kind"),
    [(errno.ENOLCK, NoLocks), (errno.EOPNOTSUPP, NoLocks), (errno.EIO, Storage), (errno.ESTALE, Storage)],
)
def test_a_file_system_that_gives_no_lock(path, alarm, monkeypatch, number, kind, waits):
    """No locks, no queue, and a sick file system, at once or when the lock was waited for: said in a line, exit 6."""
    answers = [BlockingIOError(), OSError(number, os.strerror(number))][not waits :]

    def flock(_fd, _how):
        raise answers.pop(0)

    monkeypatch.setattr(gate_module.fcntl, "flock", flock)
    with pytest.raises(kind) as caught:
        Gate(path, 60).enter()
    assert caught.value.exit == 6
    assert path in caught.value.message
    assert "\n" not in caught.value.message
    assert signal.getsignal(signal.SIGALRM) == signal.SIG_DFL


@pytest.mark.parametrize("spoil", ["no directory", "a directory", "a link"])
def test_a_lock_file_that_cannot_be_opened(path, spoil, tmp_path):
    """One line, exit 6; a link is not followed."""
    if spoil == "no directory":
        path = str(tmp_path / "nowhere" / "queue.lock")
    elif spoil == "a directory":
        os.mkdir(path)
    else:
        os.symlink(tmp_path / "elsewhere", path)
    with pytest.raises(NoRoot if spoil == "no directory" else Unwritable) as caught:
        Gate(path, 1).enter()
    assert caught.value.exit == 6
    assert not os.path.exists(tmp_path / "elsewhere")


def test_a_full_disk_does_not_shut_the_gate(path, monkeypatch):
    """The holder's name is for people: where it cannot be written the gate works all the same."""

    def pwrite(*_):
        raise OSError(errno.ENOSPC, "no room")

    monkeypatch.setattr(gate_module.os, "pwrite", pwrite)
    gate = Gate(path, 1)
    gate.enter()
    assert not is_free(path)
    gate.leave()
    assert is_free(path)
    gate.close()


def test_many_waits_that_run_out(tmp_path, path, alarm):
    """Patience that ends at any moment raises GateBusy and nothing else, and the handler is always put back."""
    code = """
import random
gate = Gate(place.lock, 60)
end = time.monotonic() + 3
say("on")
while time.monotonic() < end:
    gate.enter(); time.sleep(random.random() * 0.002); gate.leave(); time.sleep(0.0002)
"""
    with running(code, tmp_path) as other:
        assert line(other) == "on"
        got = missed = 0
        end = time.monotonic() + 1
        while time.monotonic() < end:
            gate = Gate(path, 0.0005)
            try:
                gate.enter()
                got += 1
                gate.leave()
            except GateBusy:
                missed += 1
            gate.close()
            assert signal.getsignal(signal.SIGALRM) == signal.SIG_DFL
    assert got
    assert missed


def test_a_deleted_lock_file_is_no_gate(path, tmp_path):
    """DESIGN 4: whoever has the file open that was deleted comes in by the one that has its name now, as everybody does."""
    gate = Gate(path, 1, is_shared=True)
    gate.enter()
    gate.leave()
    os.unlink(path)
    gate.enter()
    with running("Gate(place.lock, 60, is_shared=True).enter(); say('in')", tmp_path) as process:
        time.sleep(0.3)
        assert process.poll() is None
        gate.leave()
        assert line(process) == "in"
    gate.close()


def test_a_file_server_is_asked_again_and_again(path, alarm, monkeypatch):
    """DESIGN 4: one that cannot tell a client that the lock is free gives it away to nobody: so nobody waits there."""
    gate = Gate(path, 60, is_shared=True)
    real, asked = gate._lock, []

    def lock(fd, how):
        asked.append(how)
        if len(asked) < 4:
            raise BlockingIOError
        real(fd, how)

    monkeypatch.setattr(gate, "_lock", lock)
    gate.enter()
    assert asked == [fcntl.LOCK_EX | fcntl.LOCK_NB] * 4
    gate.close()
