"""The session for several hosts: what it leaves behind, what it refuses, what sick storage makes of it.

That it does what every session does is tests/test_store.py; on a real NFS server it is tried by tests/nfs.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import itertools
import os
import signal
import sqlite3
import time

import pytest
from e2e.kit import status_of
from store_builders import finished, is_sound, line, new_job, place, put, running, spawn, until

from trainq.base import files, hosts
from trainq.base.errors import Damaged, GateBusy, NoLocks, NoRoot, Storage, TrainqError, WentBack
from trainq.store import shared
from trainq.store.session import Unsure
from trainq.store.shared import SharedSession


@pytest.fixture
def where(tmp_path):
    return place(tmp_path, kind=SharedSession)


@pytest.fixture
def session(where):
    opened = where.session()
    yield opened
    opened.close()


SHARED = "from trainq.store.shared import SharedSession\nsession = SharedSession(*place[:2], lock_wait_s=20)\n"


def ids(session):
    with session.reading() as tx:
        return [row[0] for row in tx.rows("SELECT id FROM job ORDER BY id")]


def test_nothing_is_left_between_two_sessions(session, where, tmp_path):
    """DESIGN 4: no shared memory, no log, no temporary name, no open descriptor of the database, no lock."""
    put(session)
    ids(session)
    assert sorted(os.listdir(tmp_path)) == ["queue.lock", "queue.sqlite"]
    opened = {
        os.readlink(f"/proc/self/fd/{fd}")
        for fd in os.listdir("/proc/self/fd")
        if os.path.islink(f"/proc/self/fd/{fd}")
    }
    assert where.database not in opened
    with open("/proc/locks", encoding="ascii") as file:
        assert not [each for each in file if each.split()[4] == str(os.getpid())]


def test_one_has_the_database_at_a_time(session, tmp_path):
    """DESIGN 4: who only reads keeps others out, too; and they come in when it is done."""
    put(session)
    with running(SHARED + "say('in')\nput(session)\nsay('done')", tmp_path) as process:
        assert line(process) == "in"
        assert line(process) == "done"
    with session.reading() as tx:
        process = spawn(SHARED + "say('in')\nput(session)\nsay('done')", tmp_path)
        assert line(process) == "in"
        time.sleep(0.3)
        assert tx.value("SELECT count(*) FROM job") == 2
    assert finished(process) == "done\n"
    assert ids(session) == [1, 2, 3]


def test_a_killed_holder_frees_it(session, tmp_path):
    """DESIGN 4: killed after its commit and before it closed, or in the midst: what was committed is there, all else
    is not."""
    for crash, wanted in (("store.before_commit", []), ("store.after_commit", [1])):
        process = spawn(SHARED + "put(session)", tmp_path, crash=crash)
        process.communicate(timeout=60)
        assert process.returncode == -signal.SIGKILL
        assert ids(session) == wanted
    assert is_sound(str(tmp_path / "queue.sqlite"))


def waits_for(pid):
    """The kind of lock that a process waits for: FLOCK in the line of its host; None where it only asks."""
    with open("/proc/locks", encoding="ascii") as file:
        waiting = [row.split() for row in file if "->" in row]
    return next((row[2] for row in waiting if row[5] == str(pid)), None)


TURN = "with session.writing() as tx: say('in'); sys.stdin.readline()"


def test_a_host_sends_one_to_the_gate_at_a_time(session, tmp_path):
    """DESIGN 4: the others stand in the host's own line and go in turn: at the file server only hosts race each other."""
    put(session)
    with running(SHARED + TURN, tmp_path, stdin=-1) as holder:
        assert line(holder) == "in"
        with contextlib.ExitStack() as opened:
            waiting = []
            for _ in range(3):
                waiting.append(opened.enter_context(running(SHARED + TURN, tmp_path, stdin=-1)))
                until(lambda: waits_for(waiting[-1].pid))
            assert [waits_for(one.pid) for one in waiting] == ["FLOCK"] * 3
            for before, after in itertools.pairwise((holder, *waiting)):
                before.stdin.write("go\n")
                before.stdin.flush()
                assert line(after) == "in"
            waiting[-1].stdin.write("go\n")
            waiting[-1].stdin.flush()
            finished(waiting[-1])


def test_who_is_stopped_in_line_is_passed(session, where, tmp_path):
    """DESIGN 4: a process that stands still before the gate (^Z) keeps no other of its host waiting."""
    put(session)
    session.gate.enter()  # as another host does
    with running(SHARED + TURN, tmp_path, stdin=-1) as stopped:
        until(lambda: session._line._last() == (hosts.hostname(), stopped.pid))
        stopped.send_signal(signal.SIGSTOP)
        until(lambda: status_of(stopped.pid) == "T")
        session.gate.leave()
        patient, began = SharedSession(*where[:2], lock_wait_s=120), time.monotonic()
        put(patient)
        assert time.monotonic() - began < 30
        patient.close()
        stopped.send_signal(signal.SIGCONT)
        assert line(stopped) == "in"
        stopped.stdin.write("go\n")
        stopped.stdin.flush()
        finished(stopped)


def test_who_died_before_its_mark_is_heard_of(session, tmp_path, monkeypatch):
    """DESIGN 4: the number at the gate is a hint: who waits for news goes in himself from time to time, and mends it."""
    put(session)
    seen = session.changes()
    process = spawn(SHARED + "put(session)", tmp_path, crash="store.after_commit")
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL
    assert session.changes() == seen
    monkeypatch.setattr(shared, "LOOK_ANYWAY_S", 0.0)
    assert session.changes() != seen


def test_a_log_that_cannot_be_moved_to_the_tables_is_news_all_the_same(session, where, monkeypatch):
    """DESIGN 4: what is committed is told, wherever it stands."""
    put(session)
    seen = session.changes()
    real = shared.connected

    class Failing:
        def __init__(self, connection):
            self._connection = connection

        def __getattr__(self, name):
            return getattr(self._connection, name)

        def execute(self, sql, *more):
            if "wal_checkpoint" in sql:
                raise sqlite3.OperationalError("disk I/O error")
            return self._connection.execute(sql, *more)

    def opened(*words):
        db = real(*words)
        connection = Failing(db.connection())
        db.connection = lambda: connection
        return db

    monkeypatch.setattr(shared, "connected", opened)
    put(session)
    assert session.changes() != seen
    monkeypatch.undo()
    assert ids(session) == [1, 2]


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOLCK, errno.ESTALE])
def test_a_gate_that_cannot_be_unlocked(session, tmp_path, monkeypatch, number):
    """DESIGN 4: what was committed before is not answered with an error; the lock goes with the descriptor."""
    real = session.gate._lock

    def lock(fd, how):
        if how == fcntl.LOCK_UN:
            raise OSError(number, os.strerror(number))
        real(fd, how)

    monkeypatch.setattr(session.gate, "_lock", lock)
    put(session)
    with running(SHARED + "put(session)\nsay('in')", tmp_path) as other:
        assert line(other) == "in"
    assert ids(session) == [1, 2]


def test_where_no_line_can_be_there_is_none(where, monkeypatch):
    """DESIGN 4: without a directory of this user on this host the gate alone decides."""
    monkeypatch.setattr(shared.runtime, "common", lambda: None)
    session = where.session()
    put(session)
    assert ids(session) == [1]
    session.close()


def test_who_waits_in_vain_is_told_of_whom(session, where, tmp_path):
    """E19: bounded, and the message names the holder."""
    with running(SHARED + "with session.reading(): say('in'); time.sleep(60)", tmp_path) as process:
        line(process)
        with pytest.raises(GateBusy, match=rf"held by pid {process.pid} on "):
            put(where.session(lock_wait_s=0.3))
    put(session)


def test_the_clock_is_that_of_the_files(session, monkeypatch):
    """Q97: times come from a file just made, not from this host's clock."""
    wall = time.time
    monkeypatch.setattr(time, "time", lambda: wall() + 3600)
    with session.writing() as tx:
        assert abs(tx.now - wall()) < 60
    assert abs(session.now() - wall()) < 60


def test_news_is_a_number_at_the_gate(session, where):
    """DESIGN 4: read without waiting; it moves with each commit that changed something, and with nothing else."""
    before = session.changes()
    put(session)
    after = session.changes()
    assert after > before
    ids(session)
    with session.writing() as tx:
        tx.rows("UPDATE job SET note = 'x' WHERE id = 99")
    assert session.changes() == after
    assert where.session().changes() == after


def test_storage_that_went_back_in_time(session, where, tmp_path):
    """DESIGN 4: a database older than what the gate knows of stops everybody, with a word of its own."""
    with open(where.database, "rb") as file:
        old = file.read()
    put(session)
    with open(where.database, "rb") as file:
        new = file.read()
    with open(where.database, "wb") as file:
        file.write(old)
    for use in (ids, put):
        with pytest.raises(WentBack) as caught:
            use(session)
        assert (caught.value.exit, caught.value.word) == (6, "went_back")
    with open(where.database, "wb") as file:
        file.write(new)
    assert ids(session) == [1]


def test_storage_that_is_only_late(session, where, monkeypatch):
    """A view that is behind for a moment is looked at once more."""
    put(session)
    with open(where.database, "rb") as file:
        new = file.read()
    with open(where.database, "r+b") as file:
        mark = b"generation"
        at = new.rindex(mark)
        file.seek(at + len(mark))
        file.write(b"0")
    wait = time.sleep

    def mended(seconds):
        with open(where.database, "wb") as file:
            file.write(new)
        wait(seconds)

    monkeypatch.setattr(time, "sleep", mended)
    assert ids(session) == [1]


def test_the_lock_of_another_queue(session, where, tmp_path):
    put(session)
    other = place(_made(tmp_path / "other"), kind=SharedSession)
    put(other.session())
    os.replace(other.lock, where.lock)
    with pytest.raises(Storage, match="lock file is that of another queue"):
        put(where.session())


def _made(path):
    path.mkdir()
    return path


@pytest.mark.parametrize("content", [b"", b"x" * 100])
def test_a_file_of_no_size_is_never_opened(session, where, content):
    """DESIGN 4: SQLite would delete a live log beside it."""
    put(session)
    with open(where.database, "wb") as file:
        file.write(content)
    with open(where.database + "-wal", "wb") as file:
        file.write(b"precious")
    with pytest.raises(Damaged, match="cut short"):
        put(session)
    assert os.path.getsize(where.database + "-wal") == 8
    os.unlink(where.database)
    with pytest.raises(NoRoot):
        put(session)


@pytest.mark.parametrize(
    ("number", "kind"),
    [(errno.ENOLCK, NoLocks), (errno.EIO, Storage), (errno.ESTALE, Storage), (errno.ENOSYS, NoLocks)],
)
def test_a_lock_that_cannot_be_had(session, monkeypatch, number, kind):
    """Nothing is opened, and with the storage well again the same session goes on."""

    def lockf(fd, operation):
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as sick:
        sick.setattr(session.gate, "_lock", lockf)
        with pytest.raises(kind):
            put(session)
    session.abandon()
    assert put(session) == [1]


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE, errno.EACCES])
def test_a_clock_that_cannot_be_asked(session, monkeypatch, number):
    real = os.open

    def sick_open(path, flags, *more, **rest):
        if files.is_temporary(os.path.basename(str(path))):
            raise OSError(number, os.strerror(number), path)
        return real(path, flags, *more, **rest)

    put(session)
    with monkeypatch.context() as sick:
        sick.setattr(shared.os, "open", sick_open)
        with pytest.raises(TrainqError) as caught:
            put(session)
        assert caught.value.exit == 6
    assert ids(session) == [1]


def test_who_held_it_too_long_changes_nothing(session, monkeypatch):
    """A host that was suspended in the midst may have lost the lock: it rolls back."""
    monkeypatch.setattr(shared, "HOLD_S", -1.0)
    with pytest.raises(GateBusy, match="given up"):
        put(session)
    monkeypatch.undo()
    assert ids(session) == []


def test_a_commit_that_answers_with_an_error_is_unsure(session, tmp_path):
    """DESIGN 2.6: whether it went through is looked up in a new session, which sees one truth."""
    import store_builders as build

    class Sick:
        def __init__(self, connection):
            self._connection = connection

        def __getattr__(self, name):
            return getattr(self._connection, name)

        def execute(self, sql, *values):
            if sql == "COMMIT":
                raise build.sqlite3.OperationalError("disk I/O error")
            return self._connection.execute(sql, *values)

    visit = session.writing()
    with pytest.raises(Unsure) as caught, visit as tx:
        tx.rows("DELETE FROM queue")
        build.jobs.submit(tx, build.submission(), [new_job()])
        visit._connection = Sick(visit._connection)
    assert caught.value.exit == 6
    assert ids(session) == []
    assert put(session) == [1]


def test_twenty_processes_take_turns(session, tmp_path):
    """Q03: nothing is lost or given twice, whoever is killed."""
    code = SHARED + "for _ in range(10): say(*put(session))"
    processes = [spawn(code, tmp_path) for _ in range(12)]
    time.sleep(0.5)
    for process in processes[:3]:
        process.kill()
    said = [int(word) for process in processes for word in process.communicate(timeout=60)[0].split()]
    assert len(set(said)) == len(said)
    assert set(said) <= set(ids(session))
    assert len(said) >= 90


def test_it_holds_what_the_server_itself_would_meet(session, where):
    """The lock at the gate is one of POSIX, as an NFS client's is at its server."""
    with session.reading():
        process = spawn(
            "import fcntl\nfd = os.open(place.lock, os.O_RDWR)\n"
            "try:\n    fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)\n    say('free')\n"
            "except OSError:\n    say('held')",
            os.path.dirname(where.lock),
        )
        assert finished(process) == "held\n"
