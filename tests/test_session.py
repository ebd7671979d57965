"""A session with a queue: what it refuses to open, what a failed COMMIT says, and that nothing acknowledged is lost."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import time

import pytest
from store_builders import (
    dump,
    finished,
    is_sound,
    line,
    looked_at,
    new_job,
    place,
    put,
    running,
    spawn,
    submission,
)  # fmt: skip

from trainq.base.errors import Damaged, DiskFull, GateBusy, MadeAnew, NewerSchema, NoRoot, TrainqError
from trainq.store import jobs
from trainq.store.create import create
from trainq.store.gate import Gate
from trainq.store.session import APPLICATION_ID, SCHEMA, LocalSession, Unsure, connected

ROOT = os.getuid() == 0
BIG = "x" * 200_000


@pytest.fixture
def where(tmp_path):
    return place(tmp_path)


@pytest.fixture
def session(where):
    opened = where.session()
    yield opened
    opened.close()


def content(path):
    if not os.path.isfile(path):
        return os.listdir(path) if os.path.isdir(path) else None
    with open(path, "rb") as file:
        return file.read()


def refusal(where):
    """The error of opening for a read and of opening for a write; both the same, one line, and nothing changed."""
    before = content(where.database)
    said = []
    for using in (LocalSession.reading, LocalSession.writing):
        session = where.session()
        with pytest.raises(TrainqError) as caught, using(session) as tx:
            tx.value("SELECT count(*) FROM job")
        assert "\n" not in caught.value.message
        assert where.database in caught.value.message
        assert caught.value.exit == 6
        said.append(type(caught.value))
        session.close()
    assert content(where.database) == before
    assert said[0] is said[1]
    return said[0]


# what it refuses ---------------------------------------------------------------------------------------------------


def test_no_file(tmp_path):
    """No queue is made by looking for one."""
    where = place(tmp_path, make=False)
    with pytest.raises(NoRoot, match="there is no queue here"), where.session().reading():
        pass
    assert not os.path.exists(where.database)


@pytest.mark.parametrize("size", [0, 1, 100, 511])
def test_a_file_cut_to_almost_nothing(where, size):
    """A file of size 0 would make SQLite delete a live log: refused before SQLite sees it."""
    os.truncate(where.database, size)
    with open(where.database + "-wal", "wb") as file:
        file.write(b"not to be touched")
    assert refusal(where) is Damaged
    assert content(where.database + "-wal") == b"not to be touched"


def test_a_file_cut_in_the_middle(where):
    """Pages that are missing are damage, whenever they are met."""
    session = where.session()
    put(session, *[new_job(spec={"argv": ["x" * 5000]}) for _ in range(100)])
    session.close()
    os.truncate(where.database, os.stat(where.database).st_size // 2 + 100)
    session = where.session()
    with pytest.raises(Damaged) as caught:
        dump(session)
    assert "\n" not in caught.value.message
    session.close()


@pytest.mark.parametrize("text", [b"hello, I am a letter\n" * 100, b"SQLite format 3\0" + b"\xff" * 4080])
def test_a_file_that_is_no_database(where, text):
    """Not a database, and one whose header is torn."""
    with open(where.database, "wb") as file:
        file.write(text)
    assert refusal(where) is Damaged


@pytest.mark.parametrize("application", [0, APPLICATION_ID + 1])
def test_a_database_of_somebody_else(where, application):
    """Any other program's database is left alone."""
    os.unlink(where.database)
    with looked_at(where.database) as other:
        other.execute(f"PRAGMA application_id = {application}")
        other.execute("CREATE TABLE job(id)")
        other.commit()
    assert refusal(where) is Damaged


def test_a_newer_schema(where):
    """Q63: a queue of a newer trainq is refused with both numbers, exit 6."""
    with looked_at(where.database) as other:
        other.execute(f"PRAGMA user_version = {SCHEMA + 1}")
    assert refusal(where) is NewerSchema
    session = where.session()
    with pytest.raises(NewerSchema, match=f"schema {SCHEMA + 1}, this trainq knows {SCHEMA}"):
        session.connection()
    assert opened(where.database) == []


def test_a_directory(where):
    """A directory of that name."""
    os.unlink(where.database)
    os.mkdir(where.database)
    assert refusal(where) is Damaged


def test_our_name_and_number_but_no_tables(where):
    """A file that says it is ours and has nothing in it is damaged."""
    os.unlink(where.database)
    with looked_at(where.database) as other:
        other.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        other.execute("CREATE TABLE empty(id)")
        other.commit()
    assert refusal(where) is Damaged


def test_a_link(where, tmp_path):
    """DESIGN 8: in a group's directory a member can put a link in its place: where it leads is not a queue of this root."""
    os.mkdir(tmp_path / "private")
    os.rename(where.database, tmp_path / "private" / "queue.sqlite")
    os.symlink(tmp_path / "private" / "queue.sqlite", where.database)
    assert refusal(where) is Damaged
    with pytest.raises(Damaged, match="this is a link, not a queue"):
        where.session().connection()
    os.unlink(where.database)
    os.symlink("nowhere", where.database)
    assert refusal(where) is Damaged


@pytest.mark.parametrize("first", [(), ("locking_mode = EXCLUSIVE",)])
def test_what_cannot_be_opened_is_left_closed(where, first):
    """A file that breaks at a pragma leaves nothing open and no lock: the next look sees what is there then."""
    with open(where.database, "r+b") as file:
        whole = file.read()
        file.seek(0)
        file.write(whole[:100] + b"\xff" * (len(whole) - 100))
    for _ in range(2):
        with pytest.raises(sqlite3.DatabaseError, match=r"malformed|not a database") as caught:
            connected(where.database, *first, "user_version")
        assert opened(where.database) == []
        assert caught.traceback  # which would keep it open
    with open(where.database, "wb") as file:
        file.write(whole)
    session = where.session()
    assert put(session) == [1]
    session.close()


def opened(path):
    """The descriptors of this process on a file."""
    found = (f"/proc/self/fd/{number}" for number in os.listdir("/proc/self/fd"))
    return [fd for fd in found if os.path.islink(fd) and os.readlink(fd) == path]


def test_a_queue_without_a_uuid(where):
    """One that cannot be told from another is damaged."""
    with looked_at(where.database) as other:
        other.execute("DELETE FROM meta WHERE k = 'uuid'")
        other.commit()
    assert refusal(where) is Damaged


@pytest.mark.skipif(not ROOT, reason="needs a second uid")
@pytest.mark.parametrize(("mode", "read"), [(0o600, "Unwritable"), (0o644, "1")])
def test_as_somebody_else(where, tmp_path, mode, read):
    """A file that may not be read, or only be read: exit 6, one line, nothing changed."""
    session = where.session()
    put(session)
    session.close()
    os.chmod(where.database, mode)
    for directory in [tmp_path, *tmp_path.parents]:
        if str(directory).count("/") > 1:
            os.chmod(directory, 0o755)
    if read == "1":
        os.chmod(tmp_path, 0o777)
    with open(where.lock, "ab"):
        os.chmod(where.lock, 0o666)
    code = """
session = place.session()
for using in (session.reading, session.writing):
    try:
        with using() as tx:
            tx.rows("SELECT 1") if using == session.reading else tx.rows("UPDATE meta SET v = v")
            said = tx.value("SELECT count(*) FROM job")
    except errors.TrainqError as error:
        assert "\\n" not in error.message
        assert error.exit == 6
        said = type(error).__name__
    say(said)
"""
    before = content(where.database)
    # what is imported may lie where the other uid cannot go: import first, then become the other
    become = f"import urllib.parse\nos.setgroups([]); os.setgid(12345); os.setuid(12345)\n{code}"
    assert finished(spawn(become, tmp_path)).split() == [read, "Unwritable"]
    assert content(where.database) == before


# a COMMIT that fails -----------------------------------------------------------------------------------------------


def test_a_commit_that_fails_is_unsure_with_the_causes_exit(session):
    """An error from COMMIT says that it cannot be told, and keeps the cause's exit status, word and hint; the session
    goes on with another connection."""
    put(session)
    before = dump(session)
    connection = session.connection()

    class Full:
        def __getattr__(self, name):
            return getattr(connection, name)

        def execute(self, sql, values=()):
            if sql == "COMMIT":
                connection.execute("PRAGMA max_page_count = 1")
                connection.execute("INSERT INTO meta VALUES('big', ?)", (BIG,))
            return connection.execute(sql, values)

    session._connection = Full()
    with pytest.raises(Unsure) as caught, session.writing() as tx:
        tx.rows("UPDATE meta SET v = 'other' WHERE k = 'mode'")
    assert (caught.value.exit, caught.value.word, caught.value.hint) == (6, "disk_full", DiskFull.hint)
    assert isinstance(caught.value.__cause__, sqlite3.Error)
    assert dump(session) == before
    put(session)


def test_a_full_database_in_the_midst_of_a_verb(session):
    """SQLite may roll back by itself: the error is the disk's, nothing of the block is there, and it goes on."""
    put(session)
    before = dump(session)
    pages = session.connection().execute("PRAGMA page_count").fetchone()[0]
    session.connection().execute(f"PRAGMA max_page_count = {pages + 2}")
    with pytest.raises(DiskFull) as caught, session.writing() as tx:
        jobs.submit(tx, submission(), [new_job(spec={"argv": [BIG]}), new_job()])
    assert caught.value.exit == 6
    assert dump(session) == before
    session.connection().execute("PRAGMA max_page_count = 1000000")
    assert put(session) == [2]


def test_an_error_of_the_caller_rolls_back_and_opens_the_gate(session, where):
    """Any exception inside: nothing is changed, it passes as it is, and others may write."""
    before = dump(session)
    with pytest.raises(ZeroDivisionError), session.writing() as tx:
        jobs.submit(tx, submission(), [new_job()])
        _ = 1 / 0
    assert dump(session) == before
    other = where.session(lock_wait_s=0.05)
    assert put(other) == [1]
    other.close()


def test_a_foreign_program_that_holds_the_database(session, where, monkeypatch):
    """Somebody with the sqlite3 tool in a transaction: bounded, exit 5, and said to be no trainq."""
    session.connection().execute("PRAGMA busy_timeout = 50")
    code = """
import sqlite3
other = sqlite3.connect(place.database, isolation_level=None)
other.execute("BEGIN IMMEDIATE"); say("held"); sys.stdin.readline()
"""
    with running(code, os.path.dirname(where.database), stdin=-1) as holder:
        assert line(holder) == "held"
        with pytest.raises(GateBusy, match="other than trainq") as caught, session.writing():
            pass
        assert caught.value.exit == 5
    assert put(session) == [1]


def test_a_full_disk_loses_nothing(tmp_path):
    """On a disk that is full: an error that says so, all that was acknowledged is there, and with room it goes on."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", disk], capture_output=True)
    if mounted.returncode:
        pytest.skip("mounting is not permitted here")
    try:
        with open(disk / "ballast", "wb") as file:
            file.write(b"x" * 100_000)
        where = place(disk)
        session = where.session()
        acknowledged = []
        with pytest.raises(TrainqError) as caught:
            while True:
                acknowledged += put(session, new_job(spec={"argv": ["x" * 3000]}))
        assert caught.value.exit == 6
        assert caught.value.word == "disk_full"
        assert acknowledged
        for _ in range(20):
            with pytest.raises(TrainqError):
                put(session, new_job(spec={"argv": ["x" * 3000]}))
        with session.reading() as tx:
            assert [row[0] for row in tx.rows("SELECT id FROM job ORDER BY id")] == acknowledged
        finished(spawn("os._exit(0)", disk))
        os.unlink(disk / "ballast")
        after = put(session)
        assert after[0] > acknowledged[-1]
        session.close()
        assert is_sound(where.database)
        session = where.session()
        with session.reading() as tx:
            assert [row[0] for row in tx.rows("SELECT id FROM job ORDER BY id")] == acknowledged + after
        session.close()
    finally:
        subprocess.run(["umount", disk], check=True)


def test_opening_on_a_full_disk(tmp_path):
    """A queue whose disk was filled by others: one line and exit 6; the gate is not left shut."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", disk], capture_output=True)
    if mounted.returncode:
        pytest.skip("mounting is not permitted here")
    try:
        where = place(disk)
        subprocess.run(["dd", "if=/dev/zero", f"of={disk}/ballast", "bs=4096"], capture_output=True)
        code = """
for _ in range(2):
    try:
        put(place.session(lock_wait_s=0.1))
    except errors.TrainqError as error:
        assert error.exit == 6, error
        say(error.word)
"""
        assert finished(spawn(code, disk)).split() == ["disk_full", "disk_full"]
        os.unlink(disk / "ballast")
        session = where.session()
        assert put(session) == [1]
        session.close()
    finally:
        subprocess.run(["umount", disk], check=True)


# views -------------------------------------------------------------------------------------------------------------


def test_a_reader_sees_one_view(session, where):
    """Whatever others commit meanwhile, a read transaction stays with what it saw first."""
    put(session)
    other = where.session()
    with session.reading() as tx:
        assert tx.value("SELECT count(*) FROM job") == 1
        put(other)
        put(other)
        assert tx.value("SELECT count(*) FROM job") == 1
        assert tx.value("SELECT count(*) FROM history") == 1
    with session.reading() as tx:
        assert tx.value("SELECT count(*) FROM job") == 3
    other.close()


def test_reading_needs_no_gate(session, tmp_path):
    """A reader is not kept out by a writer that has the gate and a transaction open."""
    put(session)
    code = (
        "with session.writing() as tx:\n    jobs.submit(tx, submission(), [new_job()]); say('in'); sys.stdin.readline()"
    )
    with running(code, tmp_path, stdin=-1) as writer:
        assert line(writer) == "in"
        with session.reading() as tx:
            assert tx.value("SELECT count(*) FROM job") == 1


def test_a_read_transaction_writes_nothing(session):
    """What is written under reading() is gone with the block."""
    put(session)
    before = dump(session)
    with session.reading() as tx:
        tx.rows("UPDATE meta SET v = 'other' WHERE k = 'mode'")
    assert dump(session) == before


def test_changes_differs_exactly_when_somebody_else_committed(session, tmp_path):
    """Neither our own commits, nor others' reads and rolled-back writes, but every commit of another process."""
    code = """
for word in sys.stdin:
    if word == "write\\n": put(session)
    elif word == "read\\n": dump(session)
    else:
        try:
            with session.writing() as tx:
                jobs.submit(tx, submission(), [new_job()]); 1 / 0
        except ZeroDivisionError: pass
    say("did")
"""
    with running(code, tmp_path, stdin=-1) as other:

        def tell(word):
            other.stdin.write(word + "\n")
            other.stdin.flush()
            assert line(other) == "did"

        tell("read")
        seen = session.changes()
        put(session)
        with session.reading() as tx:
            tx.value("SELECT count(*) FROM job")
        tell("read")
        tell("roll back")
        assert session.changes() == seen
        for _ in range(3):
            tell("write")
            assert session.changes() != seen
            seen = session.changes()
            assert session.changes() == seen


def test_changes_of_a_file_that_broke(where):
    """changes() answers with one of trainq's errors too."""
    session = where.session()
    session.connection()
    real = session._connection

    class Broken:
        def __getattr__(self, name):
            return getattr(real, name)

        def execute(self, _sql, _values=()):
            raise sqlite3.OperationalError("disk I/O error")

    session._connection = Broken()
    with pytest.raises(TrainqError, match="disk I/O error"):
        session.changes()
    session._connection = real
    session.close()


# ends --------------------------------------------------------------------------------------------------------------


def test_closing_keeps_everything(where):
    """Closed and opened again any number of times, by one and by two sessions at once."""
    for n in range(1, 4):
        one, two = where.session(), where.session()
        put(one)
        put(two)
        one.close()
        with two.reading() as tx:
            assert tx.value("SELECT count(*) FROM job") == 2 * n
        two.close()
        two.close()
    assert is_sound(where.database)


def test_abandoning_forgets_what_was_not_committed(session):
    """After a fault the next use opens a new connection; only what was committed is there."""
    put(session)
    session.connection().execute("BEGIN IMMEDIATE")
    session.connection().execute("DELETE FROM job")
    session.abandon()
    session.abandon()
    with session.reading() as tx:
        assert tx.value("SELECT count(*) FROM job") == 1


def test_nobody_abandons_a_connection_outside_the_gate(session, where):
    """DESIGN 10: while somebody else is in there it stays open, and goes on to be used; then it is another one."""
    put(session)
    before = session.connection()
    other = where.session()
    with other.writing():
        session.abandon()
        assert session.connection() is before
    closed_under = []
    session._db.close, close = lambda: (closed_under.append(is_shut(where)), close()), session._db.close
    session.abandon()
    assert closed_under == [True]
    assert not is_shut(where)
    assert session.connection() is not before
    other.close()


def made_anew(where, *, between=lambda: None):
    """Delete the queue with all that belongs to it, and make another one in its place."""
    for name in os.listdir(os.path.dirname(where.database)):
        if name.startswith("queue."):
            os.unlink(os.path.join(os.path.dirname(where.database), name))
    between()
    create(where.database)


@pytest.mark.parametrize("looks", [0, 1, 2])
def test_another_queue_in_its_place_is_never_taken_for_it(session, where, looks):
    """Q20: also not when the gap was met, the connection given up, and the new file got the number of the old one."""
    put(session)

    def between():
        for _ in range(looks):
            for using in (session.reading, session.writing):
                with pytest.raises(NoRoot), using():
                    pass
            session.abandon()
        assert os.listdir(os.path.dirname(where.database)) == []

    made_anew(where, between=between)
    for _ in range(2):
        for using in (session.reading, session.writing, session.changes):
            with pytest.raises(MadeAnew, match="made anew"), using() if using != session.changes else doing(using):
                pass
        session.abandon()
    assert opened(where.database) == []
    other = where.session(lock_wait_s=0.1)
    assert put(other) == [1]
    other.close()


@contextlib.contextmanager
def doing(call):
    call()
    yield


def test_what_comes_back_is_taken_for_what_it_is(session, where, tmp_path):
    """A queue that was only out of the way for a time is used again, behind its own gate."""
    put(session)
    aside = tmp_path / "aside"
    aside.mkdir()
    for name in os.listdir(tmp_path):
        if name.startswith("queue."):
            os.rename(tmp_path / name, aside / name)
    for using in (session.reading, session.writing):
        with pytest.raises(NoRoot), using():
            pass
    session.abandon()
    for name in os.listdir(aside):
        os.rename(aside / name, tmp_path / name)
    assert put(session) == [2]
    with session.writing():
        assert is_shut(where)


def test_a_queue_made_anew_while_a_writer_waits(where):
    """Q20: who waited for the gate of the old queue writes neither there nor into the new one."""
    session, holder = where.session(), Gate(where.lock, 1.0)
    put(session)
    holder.enter()
    entered = session.gate.enter

    def enter():
        made_anew(where)
        holder.leave()
        entered()

    session.gate.enter = enter
    with pytest.raises(MadeAnew), session.writing() as tx:
        jobs.submit(tx, submission(), [new_job()])
    other = where.session(lock_wait_s=0.1)
    assert put(other) == [1]
    other.close()
    holder.close()


def test_a_session_whose_queue_is_gone_ends_in_peace(session, where, tmp_path):
    """It makes nothing where the queue was, so that the directory can be deleted."""
    put(session)
    for name in os.listdir(tmp_path):
        os.unlink(tmp_path / name)
    with pytest.raises(NoRoot), session.writing():
        pass
    session.close()
    assert os.listdir(tmp_path) == []


def is_shut(where):
    """Whether somebody is behind the gate."""
    other = Gate(where.lock, 0.0)
    try:
        return not other.try_enter()
    finally:
        other.close()


def test_a_failed_opening_can_be_tried_again(where):
    """A file that is put right is opened by the same session."""
    aside = where.database + ".aside"
    os.rename(where.database, aside)
    session = where.session()
    for text in (None, b"spoiled" * 1000):
        if text is not None:
            with open(where.database, "wb") as file:
                file.write(text)
        with pytest.raises(TrainqError):
            session.connection()
    os.rename(aside, where.database)
    assert put(session) == [1]
    session.close()


@pytest.mark.parametrize(
    "name", ["a b", "100%", "a?mode=memory#x", "ünï", "a'b", os.fsdecode(b"\xff\xfe"), "new\nline"]
)
def test_any_directory_name(tmp_path, name):
    """A root of any name: the path goes through a URI."""
    directory = tmp_path / name
    directory.mkdir()
    where = place(directory)
    session = where.session()
    assert put(session) == [1]
    session.close()
    assert sorted(os.listdir(directory)) == ["queue.lock", "queue.sqlite"]


def test_killed_in_the_midst_of_writing(where, tmp_path):
    """Q03: 30 times kill -9 at a random moment: all that was acknowledged is there, nothing is half, the file is sound."""
    code = """
while True:
    ids = put(session, *[new_job(spec={"argv": ["x" * 5000]}, data=(data_set(os.urandom(3000)),)) for _ in range(3)])
    say(*ids)
"""
    dice = random.Random(7)
    acknowledged = []
    for _ in range(30):  # a death each
        with running(code, tmp_path) as writer:
            acknowledged += line(writer).split()
            time.sleep(dice.random() * 0.03)  # not to wait for anything: the moment of death is what varies
            writer.send_signal(signal.SIGKILL)
            acknowledged += writer.communicate()[0].split()
    session = where.session(lock_wait_s=1)
    with session.reading() as tx:
        found = [row[0] for row in tx.rows("SELECT id FROM job ORDER BY id")]
        assert {int(word) for word in acknowledged} <= set(found)
        assert found == list(range(1, len(found) + 1))
        for table, n in (("spec", 1), ("job_data", 1), ("history", 1), ("data", 1)):
            assert tx.value(f"SELECT count(*) FROM {table}") == n * len(found)
        assert tx.value("SELECT sum(count) FROM submission") == len(found)
        assert tx.value("SELECT total(n) FROM count") == len(found)
    session.close()
    assert is_sound(where.database)


def test_a_copy_of_a_killed_writers_files_opens(where, tmp_path):
    """What lies on the disk between COMMIT and close is enough: copied with its log it holds the job."""
    code = "put(session); say('ok'); sys.stdin.readline()"
    with running(code, tmp_path, stdin=-1) as writer:
        assert line(writer) == "ok"
        copy = tmp_path / "copy"
        copy.mkdir()
        for name in ("queue.sqlite", "queue.sqlite-wal"):
            shutil.copy(tmp_path / name, copy / name)
    session = place(copy, make=False).session()
    with session.reading() as tx:
        assert tx.value("SELECT count(*) FROM job") == 1
    session.close()


@pytest.mark.parametrize(("point", "there"), [("store.before_commit", 0), ("store.after_commit", 1)])
def test_a_crash_before_the_commit_and_after(where, tmp_path, point, there):
    """Q03: killed before COMMIT: nothing; killed after: all of it; and the gate is free."""
    killed = spawn("put(session)", tmp_path, crash=point)
    killed.communicate()
    assert killed.returncode == -9
    session = where.session(lock_wait_s=0.05)
    with session.reading() as tx:
        assert tx.value("SELECT count(*) FROM job") == there
        assert tx.value("SELECT count(*) FROM spec") == there
        assert tx.value("SELECT count(*) FROM submission") == there
    put(session)
    session.close()
