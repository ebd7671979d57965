"""`trainq doctor` looks without being in the way: nothing slow under a shared queue's gate, and no fork beside an open
database."""

from __future__ import annotations

import os

import pytest

from trainq.artifacts import proofs as proof_files
from trainq.ops import doctor, proofs
from trainq.ops.init import init
from trainq.ops.queue import open_queue
from trainq.ops.submit import submit
from trainq.store import reads

GROUP = str(os.getgid())


@pytest.fixture
def queue(tmp_path, monkeypatch):
    """A group's queue for several hosts, with three jobs."""
    from trainq.domain.request import Request

    monkeypatch.chdir(tmp_path)
    root = str(tmp_path / "queue")
    init(root, "shared", GROUP)
    opened = open_queue(root)
    submit(opened, [Request(values={}, argv=("true",)) for _ in range(3)])
    yield opened
    opened.session.close()


def holds_gate(queue) -> bool:
    """Whether this process has the lock of the gate."""
    inode = os.stat(queue.paths.gate).st_ino
    with open("/proc/locks", encoding="ascii") as file:
        rows = [line.split() for line in file]
    return any(row[4] == str(os.getpid()) and row[5].endswith(f":{inode}") for row in rows)


def messages(queue, name: str) -> list[tuple[str, str]]:
    return [(check.state, check.message) for check in doctor.examine(queue).checks if check.name == name]


def test_spec_files_are_read_while_others_have_their_turn(queue, monkeypatch):
    """A thousand files on a slow server would keep every worker waiting."""
    inside = []
    read = proof_files.read
    monkeypatch.setattr(proof_files, "read", lambda *what: (inside.append(holds_gate(queue)), read(*what))[1])
    assert messages(queue, "group") == [("ok", "every job that waits or runs is proved to be its owner's")]
    assert inside == [False] * 3


def test_what_is_not_proved_is_looked_at_again_under_the_gate(queue, monkeypatch):
    """A job may end, and its spec file go, between the look at its row and the look at its file: that is no finding."""
    with queue.session.writing() as tx:
        tx.changed("UPDATE job SET user_id = user_id + 1 WHERE id = 2")
    ((state, text),) = messages(queue, "group")
    assert (state, "job 2 is said to be that of" in text) == ("warning", True)
    read, left = proof_files.read, [3]

    def gone_meanwhile(*what):
        left[0] -= 1
        if left[0] == 0:
            with queue.session.writing() as tx:
                tx.changed("DELETE FROM job")
        return read(*what)

    monkeypatch.setattr(proof_files, "read", gone_meanwhile)
    assert messages(queue, "group") == [("ok", "every job that waits or runs is proved to be its owner's")]


def test_pieces_of_many_jobs(queue, monkeypatch):
    """Each piece is a turn of its own; nothing is left out."""
    monkeypatch.setattr(proofs, "PIECE", 2)
    with queue.session.writing() as tx:
        tx.changed("UPDATE job SET user_id = user_id + 1")
    assert [state for state, _ in messages(queue, "group")] == ["warning"] * 3
    assert len(list(proofs.unproved_outside(queue.session, queue.paths, 2))) == 2


def test_the_tables_are_checked_one_a_turn(queue, monkeypatch):
    """The quick check reads everything: on a shared queue a table at a time, each in a session of its own."""
    seen = []
    check = reads.integrity
    monkeypatch.setattr(reads, "integrity", lambda tx, table=None: (seen.append((id(tx), table)), check(tx, table))[1])
    assert messages(queue, "integrity") == [("ok", "quick check finds nothing")]
    with queue.session.reading() as tx:
        tables = reads.tables(tx)
    assert [table for _, table in seen] == tables
    assert {"job", "event", "spec"} <= set(tables)


def test_a_torn_table_is_found_by_either_check(queue, root):
    """A page that is overwritten: also table by table the fault is told, and the doctor goes on."""
    for one in (queue, open_queue(root)):
        with one.session.reading() as tx:
            page = tx.value("SELECT rootpage FROM sqlite_schema WHERE name = 'job'")
            size = tx.value("PRAGMA page_size")
        one.session.close()
        with open(one.paths.database, "r+b") as file:
            file.seek((page - 1) * size + 3)  # the number of cells
            file.write(b"\xff\x00")
        found = doctor.examine(one)
        assert found.exit == 6
        assert {"integrity", "store"} & {check.name for check in found.checks if check.state == "bad"}
        assert "room" in {check.name for check in found.checks}


@pytest.mark.parametrize("mode", ["local", "shared"])
def test_the_locks_are_tried_before_the_store_is_opened(mode, tmp_path, monkeypatch):
    """DESIGN 4: never fork with a connection open."""
    root = str(tmp_path / "queue")
    init(root, mode)
    queue = open_queue(root)
    fork, opened = os.fork, []

    def look_and_fork():
        links = [os.path.join("/proc/self/fd", name) for name in os.listdir("/proc/self/fd")]
        opened.extend(os.readlink(link) for link in links if os.path.islink(link))
        return fork()

    monkeypatch.setattr(os, "fork", look_and_fork)
    assert doctor.examine(queue).exit == 0
    assert opened
    assert not [path for path in opened if path.startswith(queue.paths.database)]
