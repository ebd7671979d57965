"""How often a worker goes to its queue: each session of one that several hosts share takes a turn at the gate over the
network, and the others wait."""

from __future__ import annotations

import os
import shutil
import signal
import threading
import time

import pytest
from e2e.kit import Tq, alive, status_of, until

from trainq.ops.cancel import cancel
from trainq.ops.queue import open_queue
from trainq.worker.loop import Worker
from trainq.worker.place import Options


@pytest.fixture
def tq(tmp_path):
    """The command on a fresh root for several hosts."""
    command = Tq(tmp_path)
    command.ok("init", "--shared", command.root, root=None)
    return command


def work(tq, on_event=lambda _kind, _facts: None):
    """Work here until nothing waits at all; the sessions that were opened."""
    queue = open_queue(tq.root)
    seen = noted(queue.session)
    Worker(queue, Options(slots=1, queues=("default",), until="empty", on_event=on_event)).run()
    return seen


def delete(root):
    """Delete a queue under its worker, which may be writing there."""
    until(lambda: shutil.rmtree(root, ignore_errors=True) or not os.path.exists(root))


def test_a_job_costs_one_session_for_its_claim_and_one_for_its_end(tq):
    """Q61: besides joining and leaving: the end of one and the claim of the next share one; kept variables are deleted, and
    that nothing waits is seen, in one that is there anyway."""
    for _ in range(3):
        tq.submit("--env-keep", "MY_TOKEN", "--", "true", env={"MY_TOKEN": "x"})
    assert len(os.listdir(f"{tq.root}/specs")) == 3
    assert work(tq) == ["writing"] * (1 + 1 + 3 + 1)
    assert {job["state"] for job in tq.jobs()} == {"done"}
    assert os.listdir(f"{tq.root}/specs") == []


def test_waiting_costs_nothing(tq):
    """Q14: a worker that stays until nothing waits does not ask for it again and again: it is told by the bell."""
    tq.submit("--retries", "1", "--backoff", "1h", "--", "false")

    def on_event(kind, _facts):
        if kind == "job ended":
            threading.Thread(target=cancel).start()

    def cancel():
        until(lambda: tq.state(1) == "held")
        time.sleep(2.5)  # two polls in which it could have asked
        tq.ok("cancel", 1)

    assert work(tq, on_event) == ["writing"] * (1 + 1 + 1 + 1 + 1 + 1)  # its own bell is one of them


@pytest.mark.parametrize("meets", ["the new one", "the gap"])
@pytest.mark.parametrize("mode", ["local", "shared"])
def test_a_queue_made_anew_ends_its_worker(tmp_path, mode, meets):
    """Q20: a worker whose queue was deleted and made anew says so, ends its job and exits 6: in the new queue the same
    numbers mean other jobs. So also if it looked while there was none, and has closed what it had open."""
    tq = Tq(tmp_path)
    tq.ok("init", f"--{mode}", tq.root, root=None)
    tq.submit("--", "sleep", "1000")
    with tq.worker("--slots", "1", env={"TRAINQ_TIMES_HEARTBEAT": "1s", "TRAINQ_TIMES_POLL": "0.2s"}) as worker:
        job = until(lambda: (tq.job(1)["attempt"] or {}).get("pid"))
        delete(tq.root)
        if meets == "the gap":
            until(lambda: worker.said("trouble"))
            time.sleep(1.5)  # one heartbeat more, which it cannot write either
        tq.ok("init", f"--{mode}", tq.root, root=None)
        tq.submit("--", "false")
        assert worker.process.wait(30) == 6
        assert "made anew" in worker.log
    assert not alive(job)
    assert tq.state(1) == "pending"
    assert [each["state"] for each in tq.history(1)] == ["pending"]


def test_a_deleted_queue_is_told(tmp_path):
    """Q22: while its queue is gone a worker says so; its job cannot be given away, so it is frozen, and goes on when the
    queue is back."""
    tq = Tq(tmp_path)
    tq.ok("init", tq.root, root=None)
    tq.submit("--", "sleep", "1000")
    times = {"HEARTBEAT": "0.5s", "HOLDER_LIMIT": "2s", "ZOMBIE_AFTER": "6s", "POLL": "0.2s"}
    with tq.worker("--slots", "1", env={f"TRAINQ_TIMES_{name}": value for name, value in times.items()}) as worker:
        job = until(lambda: (tq.job(1)["attempt"] or {}).get("pid"))
        os.rename(tq.root, f"{tq.root}-elsewhere")
        until(lambda: "there is no queue here" in worker.log)
        until(lambda: "T" in status_of(job))
        os.rename(f"{tq.root}-elsewhere", tq.root)
        until(lambda: "S" in status_of(job))
        assert tq.state(1) == "running"


def test_a_cancel_costs_one_turn_at_the_gate(tq):
    """Q29: whatever the job is doing, and however many there are; only a dead worker's strays take more."""
    for _ in range(4):
        tq.submit("--", "sleep", "1000")

    def sessions(*words):
        queue = open_queue(tq.root)
        seen = noted(queue.session)
        results = [one.result for one in cancel(queue, words)]
        return seen, results

    with tq.worker("--slots", "1"):
        until(lambda: tq.state(1) == "running")
        assert sessions("4") == (["writing"], ["canceled"])
        assert sessions("1-4") == (["writing"], ["canceling", "canceled", "canceled", "already"])
        until(lambda: tq.state(1) == "canceled")


def noted(session):
    """The sessions that are opened from now on."""
    seen = []
    for kind in ("reading", "writing"):
        opens = getattr(session, kind)
        setattr(session, kind, lambda kind=kind, opens=opens: seen.append(kind) or opens())
    return seen


def test_a_job_that_waits_for_its_backoff_is_known_to_all(tq):
    """Q61: an idle worker is told of it by the bell, or it would sleep on until its next beat."""
    slow = {"TRAINQ_TIMES_ZOMBIE_AFTER": "1200s", "TRAINQ_TIMES_HOLDER_LIMIT": "600s"}
    with tq.worker("--slots", "1", "--max-jobs", "1", env=slow) as first:
        until(lambda: first.said("started"))
        job = tq.submit("--retries", "1", "--backoff", "3s", "--", "sh", "-c", "sleep 2; false")
        until(lambda: tq.state(job) == "running")
        with tq.worker("--slots", "1", env=slow):
            until(lambda: tq.state(job) == "held")
            until(lambda: tq.state(job) in ("running", "errored"))


@pytest.mark.parametrize("mode", ["local", "shared"])
def test_a_worker_without_a_queue_can_be_stopped(tmp_path, mode):
    """Q22: its root is deleted, and it is told to stop: there is nobody left to give its job back to."""
    tq = Tq(tmp_path)
    tq.ok("init", f"--{mode}", tq.root, root=None)
    tq.submit("--", "sleep", "1000")
    with tq.worker("--slots", "1", env={"TRAINQ_TIMES_HEARTBEAT": "1s", "TRAINQ_TIMES_POLL": "0.2s"}) as worker:
        job = until(lambda: (tq.job(1)["attempt"] or {}).get("pid"))
        delete(tq.root)
        until(lambda: worker.said("trouble"))
        worker.signal(signal.SIGTERM)
        assert worker.process.wait(60) == 1
    assert not alive(job)


@pytest.mark.parametrize("mode", ["local", "shared"])
def test_a_worker_until_idle_ends_without_a_queue(tmp_path, mode):
    """Q14: who was told to work until nothing waits does not wait for a queue to come back."""
    tq = Tq(tmp_path)
    tq.ok("init", f"--{mode}", tq.root, root=None)
    tq.submit("--", "sleep", "3")
    times = {"TRAINQ_TIMES_HEARTBEAT": "1s", "TRAINQ_TIMES_POLL": "0.2s"}
    with tq.worker("--slots", "1", "--until", "idle", env=times) as worker:
        until(lambda: (tq.job(1)["attempt"] or {}).get("pid"))
        delete(tq.root)
        assert worker.process.wait(60) == 6
