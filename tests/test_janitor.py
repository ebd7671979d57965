"""What `prune SEL` takes: only what is ended, its own, and unchanged when the gate opens."""

from __future__ import annotations

import contextlib
import os
import subprocess
import time

import pytest
from e2e.kit import Tq

from trainq.base.errors import Denied, NotPossible, Storage
from trainq.ops import janitor
from trainq.ops.queue import open_queue
from trainq.store import jobs, pruning


@pytest.fixture
def queue(run_trainq):
    """A queue with two canceled jobs that have a log each."""
    run_trainq.ok("submit", "--", "true")
    run_trainq.ok("submit", "--", "true")
    run_trainq.ok("cancel", "1,2")
    for job in (1, 2):
        os.makedirs(log_of(run_trainq.root, job))
    queue = open_queue(run_trainq.root)
    yield queue
    queue.session.close()


def log_of(root, job):
    return os.path.join(root, "runs", str(job), "1")


def waits_for_a_lock(pid):
    with open("/proc/locks", encoding="ascii") as file:
        return any("->" in line and line.split()[5] == str(pid) for line in file)


def until(look):
    end = time.monotonic() + 30
    while not look():
        assert time.monotonic() < end
        time.sleep(0.01)


def pruned_during_a_retry(queue, run_trainq, *words):
    """Prune, while job 1 is retried between prune's look and its own turn at the gate."""
    with queue.session.writing() as tx:
        process = run_trainq.start("prune", "--json", *words)
        until(lambda: waits_for_a_lock(process.pid) or process.poll() is not None)
        assert process.poll() is None
        jobs.retry(tx, 1, "ann@here")
    out, _ = process.communicate(timeout=30)
    return process.returncode, out


def test_a_job_retried_meanwhile_keeps_its_files(queue, run_trainq):
    """Q42: prune with a selector never takes a job that waits: not one retried after it had looked either."""
    code, out = pruned_during_a_retry(queue, run_trainq, "1")
    assert code == 4, out
    assert b"job 1 is pending" in out
    assert os.path.isdir(log_of(run_trainq.root, 1))


def test_of_several_the_one_retried_meanwhile_is_refused(queue, run_trainq):
    """Q42: the others go, and each is told apart."""
    code, out = pruned_during_a_retry(queue, run_trainq, "1,2")
    assert code == 7, out
    assert b'"id":1,"result":"refused"' in out.replace(b" ", b"")
    assert b'"id":2,"result":"removed"' in out.replace(b" ", b"")
    assert os.path.isdir(log_of(run_trainq.root, 1))
    assert not os.path.exists(log_of(run_trainq.root, 2))


def test_an_error_in_the_midst_tells_what_was_removed_before_it(queue, monkeypatch):
    """DESIGN 2.6: jobs that went are told, and their files go; the others are refused, and why."""
    monkeypatch.setattr("trainq.ops.change.BATCH", 1)
    retire = pruning.retire

    def sick(tx, ids):
        if 2 in ids:
            raise Storage("disk I/O error")
        return retire(tx, ids)

    monkeypatch.setattr(pruning, "retire", sick)
    done = janitor.prune_selected(queue, ["1,2"])
    assert [(one.id, one.result, one.error) for one in done.changes] == [
        (1, "removed", None),
        (2, "refused", "disk I/O error"),
    ]
    assert [os.path.exists(log_of(queue.paths.root, job)) for job in (1, 2)] == [False, True]
    with pytest.raises(Storage):
        janitor.prune_selected(queue, ["2"])


def test_a_strangers_job_is_denied(queue, monkeypatch):
    """Q58: prune with a selector takes a job of its user, or as the owner of the root, and of nobody else."""
    monkeypatch.setattr(os, "getuid", lambda: 4711)
    with pytest.raises(Denied):
        janitor.prune_selected(queue, ["1"])
    done = janitor.prune_selected(queue, ["1,2"])
    assert [(change.id, change.result) for change in done.changes] == [(1, "denied"), (2, "denied")]
    assert os.path.isdir(log_of(queue.paths.root, 1))


def test_what_waits_is_refused(queue, run_trainq):
    """Q42: refused before anything is done."""
    run_trainq.ok("retry", "1")
    with pytest.raises(NotPossible):
        janitor.prune_selected(queue, ["1"])


def training_set(root):
    """A training set in a file that no row names."""
    path = os.path.join(root, "data", "0" * 64 + ".zst")
    with open(path + ".other", "wb"):
        pass
    os.replace(path + ".other", path)
    return path


def test_a_named_prune_leaves_young_training_sets(queue):
    """Q42: a set that somebody has packed and not yet named stays for file_grace, whoever prunes what."""
    path = training_set(queue.paths.root)
    janitor.prune_selected(queue, ["1"])
    assert os.path.exists(path)


def test_a_set_packed_anew_meanwhile_is_young(queue, run_trainq):
    """Q42: its age is looked at again under the gate: a submit packed the same set a moment ago and names it next."""
    run_trainq.ok("retry", "1,2")
    path = training_set(run_trainq.root)
    run_trainq.env["TRAINQ_KEEP_FILE_GRACE"] = "0s"
    with queue.session.writing():
        process = run_trainq.start("prune", "1,2")
        until(lambda: waits_for_a_lock(process.pid) or process.poll() is not None)
        training_set(run_trainq.root)
    out, _ = process.communicate(timeout=30)
    assert process.returncode == 7, out
    assert os.path.exists(path)
    run_trainq("prune", "1,2")
    assert not os.path.exists(path)


def test_what_is_named_costs_no_turn_at_the_gate(queue):
    """Models and training sets that rows name are passed over without the gate."""
    path = training_set(queue.paths.root)
    os.makedirs(os.path.join(queue.paths.key("wine"), "@1"))
    os.symlink("@1", queue.paths.latest("wine"))
    impatient = open_queue(queue.paths.root, {"times.lock_wait": "0.1s", "keep.file_grace": "0s"})
    with queue.session.writing() as tx:
        tx.rows("INSERT INTO data(sha256, size, stored_size, at) VALUES(?, 1, 1, ?)", ("0" * 64, tx.now + 60))
        tx.rows("INSERT INTO model VALUES('wine', 1, 0, 1, 1, NULL, '{}', '{}', NULL, 0, '', 0)")
    with queue.session.writing():
        work = janitor._Pass(impatient, dry_run=False)
        work.stray_models(work.before_files)
        work.stray_data(work.before_files)
    impatient.session.close()
    assert work.trouble == []
    assert os.path.exists(path)


def test_a_run_that_cannot_be_listed_hides_no_other(queue):
    """Q42: what a pass cannot look at is its trouble, and it goes on with the others."""
    runs = os.path.join(queue.paths.root, "runs")
    os.symlink("0", os.path.join(runs, "0"))  # to itself
    left = queue.paths.unpacked(2, 1)
    os.mkdir(left)
    done = janitor.prune(queue)
    assert done.removed["unpacked training sets"] == 1
    assert not os.path.exists(left)
    assert [word for word in done.trouble if "runs/0" in word] == done.trouble != []


def test_a_pass_on_a_full_disk_frees_what_needs_no_commit(tmp_path):
    """Q42: on a disk that is full no row can be moved, but what lies aside is deleted; then the next pass has room."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", disk], capture_output=True)
    if mounted.returncode:
        pytest.skip("mounting is not permitted here")
    try:
        tq = Tq(disk)
        tq.ok("init", tq.root, root=None)
        tq.ok("cancel", tq.submit("--", "true"))
        aside = os.path.join(tq.root, "models", ".aside", "k", "@1-00000000.retired")
        os.makedirs(aside)
        with open(os.path.join(aside, "model"), "wb") as file:
            file.write(b"m" * (1 << 20))
        with open(disk / "ballast", "wb", buffering=0) as file, contextlib.suppress(OSError):
            while file.write(b"x" * 4096):
                pass
        full = tq("prune", "--older-than", "0s", "--json", env={"TRAINQ_KEEP_FILE_GRACE": "0s"})
        assert (full.code, full.json["items"], full.json["removed"]) == (1, [], {"unpublished models": 1}), full
        assert full.json["trouble"][0].startswith("ended jobs: ")
        assert "no room left" in full.json["trouble"][0]
        assert not os.path.exists(aside)
        assert [change["id"] for change in tq.ok("prune", "--older-than", "0s", "--json").json["items"]] == [1]
    finally:
        subprocess.run(["umount", disk], check=True)
