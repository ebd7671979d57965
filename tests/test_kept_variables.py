"""When the files of kept variables are written and deleted: before the gate, and never while somebody needs them."""

from __future__ import annotations

import json
import os
import time

import pytest

from trainq.base.errors import Duplicate
from trainq.ops import janitor
from trainq.ops.queue import open_queue
from trainq.ops.retry import retry
from trainq.store import jobs

KEEP = ("submit", "--env-keep", "MY_TOKEN", "--", "true")


@pytest.fixture
def queue(run_trainq):
    run_trainq.env["MY_TOKEN"] = "x"
    queue = open_queue(run_trainq.root)
    yield queue
    queue.session.close()


def kept(queue):
    return sorted(name for name in os.listdir(queue.paths.specs) if name.endswith(".env"))


def waits_for_a_lock(pid):
    with open("/proc/locks", encoding="ascii") as file:
        return any("->" in line and line.split()[5] == str(pid) for line in file)


def until(look):
    end = time.monotonic() + 30
    while not look():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_submit_writes_them_before_the_gate(queue, run_trainq):
    """Nobody waits at the gate while the disk syncs them; and no janitor takes them before the row names them."""
    with queue.session.writing():
        process = run_trainq.start(*KEEP)
        until(lambda: waits_for_a_lock(process.pid) or process.poll() is not None)
        found = kept(queue)
    process.communicate(timeout=30)
    assert process.returncode == 0
    assert found == kept(queue)
    assert len(found) == 1


def test_a_janitor_leaves_those_of_a_call_that_it_does_not_know(queue):
    """They may be about to be named: until file_grace they stay."""
    path = queue.paths.secret("0" * 23 + ".0")
    with open(path, "wb"):
        pass
    janitor.prune(queue)
    assert os.path.exists(path)
    old = open_queue(queue.paths.root, {"keep.file_grace": "0s"})
    janitor.prune(old)
    old.session.close()
    assert not os.path.exists(path)


def test_a_submit_that_is_refused_leaves_none(queue, run_trainq):
    """Neither a duplicate, nor a refusal; and after a duplicate the others have the place that they have."""
    key = ("submit", "--env-keep", "MY_TOKEN", "--key", "k")
    run_trainq.ok(*key, "--", "true")
    run_trainq.ok(*key, "--", "true")
    assert run_trainq(*key, "--on-duplicate", "fail", "--", "true").code == 8
    (first,) = kept(queue)
    lines = [{"argv": ["true"], "env_keep": ["MY_TOKEN"], **more} for more in ({"key": "k"}, {"key": "l"})]
    run_trainq.ok("submit", "--from", "-", stdin="\n".join(map(json.dumps, lines)).encode())
    with queue.session.reading() as tx:
        assert all(jobs.is_active_uid(tx, name.removesuffix(".env")) for name in kept(queue))
    assert len(kept(queue)) == 2
    assert first in kept(queue)


def test_a_retry_writes_them_before_the_gate(queue, run_trainq):
    """As a submit does."""
    run_trainq.ok(*KEEP)
    run_trainq.ok("cancel", "1")
    assert kept(queue) == []
    with queue.session.writing():
        process = run_trainq.start("retry", "1")
        until(lambda: waits_for_a_lock(process.pid) or process.poll() is not None)
        assert len(kept(queue)) == 1
        for name in kept(queue):
            os.unlink(os.path.join(queue.paths.specs, name))  # as a janitor does, to whom the job has ended
    process.communicate(timeout=30)
    assert process.returncode == 0
    assert len(kept(queue)) == 1


def test_a_retry_that_is_refused_leaves_none(queue, run_trainq, monkeypatch):
    """What was written for a job that then is not retried goes again."""
    monkeypatch.setenv("MY_TOKEN", "x")
    run_trainq.ok("submit", "--key", "k", "--env-keep", "MY_TOKEN", "--", "true")
    run_trainq.ok("cancel", "1")
    writing = queue.session.writing

    def first_somebody_else():
        queue.session.writing = writing
        assert len(kept(queue)) == 1
        run_trainq.ok("submit", "--key", "k", "--", "true")
        return writing()

    queue.session.writing = first_somebody_else
    with pytest.raises(Duplicate):
        retry(queue, ["1"])
    assert kept(queue) == []
