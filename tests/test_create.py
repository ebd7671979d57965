"""Making a queue and changing its mode: all of it or nothing, also where there is no room, and never under anybody's hands."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess

import pytest
from e2e.kit import ELSEWHERE, Tq, until
from store_builders import dump, is_sound, join, place, put

from trainq import wake
from trainq.base.errors import Denied, NotPossible
from trainq.ops.init import convert, init
from trainq.store import workers
from trainq.store.create import convert as convert_database
from trainq.store.gate import Gate
from trainq.store.session import LocalSession
from trainq.store.shared import SharedSession

KIB = 1024


@contextlib.contextmanager
def disk(directory, kib):
    """A file system of its own, this small, in the directory."""
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"mode=700,size={kib}k", "tmpfs", directory], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("mounting is not permitted here")
    try:
        yield
    finally:
        subprocess.run(["umount", directory], check=True)


def fill(directory, but_kib):
    """Take all room of a file system but this much; the file that takes it."""
    path = os.path.join(directory, "ballast")
    found = os.statvfs(directory)
    size = found.f_bavail * found.f_frsize - but_kib * KIB
    with open(path, "wb") as file:
        os.posix_fallocate(file.fileno(), 0, size)
    return path


@pytest.fixture
def tq(tmp_path):
    """The command on a root that is a directory, not a queue."""
    command = Tq(tmp_path)
    os.mkdir(command.root)
    return command


@pytest.mark.parametrize("free_kib", range(40, 400, 40))
def test_a_queue_is_made_whole_or_not_at_all(tq, free_kib):
    """Q63: with hardly any room either a queue that can be used, or "no room" and no queue; with room it is then made."""
    with disk(tq.root, 2048):
        ballast = fill(tq.root, free_kib)
        done = tq("init", "--local", tq.root, root=None)
        is_made = os.path.exists(f"{tq.root}/queue.sqlite")
        if done.code == 0:
            assert is_sound(f"{tq.root}/queue.sqlite")
        else:
            assert (done.code, "no room" in done.err or "no space" in done.err, is_made) == (6, True, False), done
        os.unlink(ballast)
        tq.ok("init", "--local", tq.root, root=None)
        assert tq.submit("--", "true") == 1
        assert [name for name in os.listdir(tq.root) if name.startswith(".new-")] == []


@pytest.mark.parametrize("free_kib", [0, 24, 96])
def test_a_queue_is_converted_whole_or_not_at_all(tq, free_kib):
    """Q63: what stands in the log alone is not lost for want of room: the queue stays what it was, and says so."""
    with disk(tq.root, 6 * 1024):
        tq.ok("init", "--local", tq.root, root=None)
        line = json.dumps({"argv": ["true", "x" * 4000]}) + "\n"
        for _ in range(6):
            tq.ok("submit", "--from", "-", input=line * 30)
        assert os.stat(f"{tq.root}/queue.sqlite-wal").st_size > 500 * KIB
        ballast = fill(tq.root, free_kib)
        refused = tq("db", "convert", "--shared")
        assert (refused.code, "no room" in refused.err) == (6, True), refused
        assert not os.path.exists(f"{tq.root}/shared.sqlite")
        os.unlink(ballast)
        assert len(tq.jobs()) == 180
        tq.ok("db", "convert", "--shared")
        assert len(tq.jobs()) == 180
        assert is_sound(f"{tq.root}/shared.sqlite")


def test_a_log_without_its_database_is_not_given_another(tq):
    """Q63: what is left of a deleted queue would be written into the new one, so it is named and stays where it is."""
    for made, other in (("local", "queue.sqlite"), ("shared", "shared.sqlite")):
        root = f"{tq.root}/{made}"
        tq.ok("init", "--local", root, root=None)
        tq.ok("submit", "--", "true", root=root)
        log = f"{root}/{other}-wal"
        os.rename(f"{root}/queue.sqlite", f"{root}/aside")
        os.rename(f"{root}/queue.sqlite-wal", log)
        refused = tq("init", f"--{made}", root, root=None)
        assert (refused.code, f"{log}: " in refused.err) == (6, True), refused
        os.rename(f"{root}/aside", f"{root}/queue.sqlite")
        if made == "shared":
            refused = tq("db", "convert", "--shared", root=root)
            assert (refused.code, f"{log}: " in refused.err) == (6, True), refused
            assert os.path.exists(f"{root}/queue.sqlite")
        assert os.stat(log).st_size > 0


def test_no_database_is_written_over(tq):
    """Where there are two databases, as nobody should make them, converting one does not end the other."""
    tq.ok("init", "--local", tq.root, root=None)
    with open(f"{tq.root}/shared.sqlite", "wb") as file:
        file.write(b"not to be touched")
    refused = tq("db", "convert", "--shared")
    assert (refused.code, "shared.sqlite: there is one already" in refused.err) == (4, True), refused
    with open(f"{tq.root}/shared.sqlite", "rb") as file:
        assert file.read() == b"not to be touched"
    assert tq.submit("--", "true") == 1


def test_a_link_in_the_place_of_the_database_is_told(tq):
    """DESIGN 8: wherever it leads, it is neither used nor taken for nothing, and no queue is made over it."""
    tq.ok("init", "--local", f"{tq.root}/private", root=None)
    tq.ok("init", "--local", f"{tq.root}/group", root=None)
    os.unlink(f"{tq.root}/group/queue.sqlite")
    for name in ("queue.sqlite", "shared.sqlite"):
        for leads_to in ("../private/queue.sqlite", "nowhere"):
            os.symlink(leads_to, f"{tq.root}/group/{name}")
            for words in (
                ("status",),
                ("submit", "--", "true"),
                ("init", f"{tq.root}/group"),
                ("db", "convert", "--local"),
            ):
                done = tq(*words, root=f"{tq.root}/group")
                if words[0] != "db" or name == "shared.sqlite":
                    assert (done.code, f"{name}: this is a link, not a queue" in done.err) == (6, True), done
            os.unlink(f"{tq.root}/group/{name}")
    assert tq.ok("status", "--all", "--json", root=f"{tq.root}/private").json["items"] == []


@pytest.mark.parametrize("mode", ["local", "shared"])
def test_a_queue_with_workers_is_not_converted(tq, mode):
    """A shared worker has nothing open between two turns: it is its row, or that of its job, that tells of it."""
    other = "shared" if mode == "local" else "local"
    tq.ok("init", f"--{mode}", tq.root, root=None)

    def refused(*words):
        done = tq("db", "convert", f"--{other}")
        assert (done.code, [word for word in words if word not in done.err]) == (4, []), done
        assert tq("db", "convert", f"--{mode}").out.startswith("already")

    with tq.worker("--slots", "1", "--name", "w1") as worker:
        refused(f"worker w1 (pid {worker.pid} on ", f"kill {worker.pid}")
        tq.submit("--", "sleep", "1000")
        until(lambda: tq.state(1) == "running")
        refused("worker w1")
        worker.process.kill()
        worker.process.wait()
        refused("job 1 is running", "trainq prune")
    tq.ok("cancel", 1)
    until(lambda: tq("prune").code == 0 and tq.state(1) == "canceled")
    assert tq.ok("db", "convert", f"--{other}").out.startswith("now")
    assert tq.ok("db", "convert", f"--{mode}").out.startswith("now")
    assert tq.state(1) == "canceled"


def test_a_worker_of_another_host_is_gone_when_it_was_not_heard(tq):
    """What cannot be looked at from here is gone after zombie-after, as everywhere."""
    tq.ok("init", "--shared", tq.root, root=None)
    with tq.worker("--slots", "1", "--name", "far", before=ELSEWHERE) as worker:
        worker.process.kill()
        worker.process.wait()
        assert tq("db", "convert", "--local").code == 4
    until(lambda: tq("db", "convert", "--local").code == 0)
    assert tq.submit("--", "true") == 1


@pytest.mark.parametrize("kind", ["local", "shared"])
def test_who_came_in_before_the_gate_is_seen_behind_it(tmp_path, kind):
    """The rows are looked at again with the database to oneself; refused, it is what it was."""
    where = place(tmp_path, kind={"local": LocalSession, "shared": SharedSession}[kind])
    session = where.session()
    with session.writing() as tx:
        join(tx, "late")
    before = dump(session)
    session.close()

    def require_unused(tx):
        assert [row["name"] for row in workers.everyone(tx)] == ["late"]
        raise NotPossible(f"seen at {tx.now}")

    with pytest.raises(NotPossible, match="seen at 5"):
        convert_database(where.database, str(tmp_path / "other.sqlite"), "shared", 5.0, require_unused)
    assert not (tmp_path / "other.sqlite").exists()
    assert dump(session) == before
    assert put(session) == [1]
    session.close()


def test_only_its_owner_converts_a_queue(tq, monkeypatch):
    """Whoever else may write in it, a member of its group; root may."""
    tq.ok("init", "--local", tq.root, root=None)
    with monkeypatch.context() as as_somebody:
        as_somebody.setattr(os, "geteuid", lambda: 65533)
        with pytest.raises(Denied, match="belongs to ") as caught:
            convert(tq.root, "shared")
    assert caught.value.exit == 4
    for path in (tq.root, f"{tq.root}/specs"):
        os.chown(path, 65533, 65533)
    assert convert(tq.root, "shared").made


def test_two_that_make_a_queue_at_once_make_one(tq):
    """DESIGN 4: on the file server a queue for one host, on a client one for several: who comes second finds the first."""
    lock = os.path.realpath(f"{tq.root}/queue.lock")
    gate = Gate(lock, 0.0, is_shared=True)  # what holds up both, wherever they are
    gate.enter()

    def is_at_gate(process):
        fds = f"/proc/{process.pid}/fd"
        return any(os.path.realpath(f"{fds}/{fd}") == lock for fd in os.listdir(fds))

    inits = [
        subprocess.Popen(
            [*tq.command, "init", mode, tq.root], env=tq.environment(), cwd=tq.dir, stderr=subprocess.PIPE, text=True
        )
        for mode in ("--local", "--shared")
    ]
    until(lambda: all(is_at_gate(each) for each in inits))
    gate.leave()
    gate.close()
    said = [each.communicate(timeout=30)[1] for each in inits]
    assert sorted(each.returncode for each in inits) == [0, 4], said
    assert any("already a " in each for each in said)
    assert len({"queue.sqlite", "shared.sqlite"} & set(os.listdir(tq.root))) == 1
    assert tq.submit("--", "true") == 1


@pytest.mark.parametrize("mode", ["local", "shared"])
def test_what_another_has_made_meanwhile_is_found(tq, monkeypatch, mode):
    """The same, where the other one comes between the look and the making."""
    other = "shared" if mode == "local" else "local"
    ring = wake.ring

    def made_by_another(bell):
        monkeypatch.setattr(wake, "ring", ring)
        assert init(tq.root, other).made
        ring(bell)

    monkeypatch.setattr(wake, "ring", made_by_another)
    with pytest.raises(NotPossible, match=f"already a {other} queue"):
        init(tq.root, mode)
    assert len({"queue.sqlite", "shared.sqlite"} & set(os.listdir(tq.root))) == 1
