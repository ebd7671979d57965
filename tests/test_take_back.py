"""Taking jobs back from a worker that is really dead, and from none that is not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest
from store_builders import job_row, line, new_job, place, put, running, settle, take, until

from trainq.base import hosts
from trainq.base.errors import Unsupported
from trainq.domain.job import Outcome
from trainq.ops import lost as ops_lost
from trainq.ops.lost import take_back
from trainq.store import jobs, workers

ZOMBIE_S = 300.0
ENTER = """
from trainq.base import hosts
with session.writing() as tx:
    me = workers.join(tx, name="w", host="here", identity=hosts.identity(), pid=os.getpid(),
        pid_start=hosts.start_of(os.getpid()), user_id=os.getuid(), version="0", slots=1, queues=["default"])
    claims = [claim_next(tx, me, ("default",)) for _ in range(int(sys.argv[2]))]
say(me)
signal.pause()
"""


@pytest.fixture
def where(tmp_path):
    return place(tmp_path)


@pytest.fixture
def session(where):
    opened = where.session()
    yield opened
    opened.close()


@pytest.fixture
def stray():
    """Start what a job left behind: its mark, and nobody who waits for it."""
    started = []

    def run(uid, attempt=1):
        code = "import time; print(flush=True); time.sleep(1000)"
        env = {"TRAINQ_JOB_UID": uid, "TRAINQ_ATTEMPT": str(attempt)}
        process = subprocess.Popen(
            [sys.executable, "-c", code], env=env, stdout=subprocess.PIPE, start_new_session=True
        )
        started.append(process)
        process.stdout.readline()
        return process

    yield run
    for process in started:
        process.kill()
        process.communicate()


def take_back_from_the_dead(session):
    """What a worker does after its turn, with what that turn has seen."""
    with session.reading() as tx:
        held = ops_lost.held_here(tx)
    return ops_lost.take_back_from_the_dead(session, held)


def dead_worker(session, tmp_path, holds):
    """A worker that has claimed so many jobs and was killed; its id."""
    with running(ENTER, tmp_path, holds) as process:
        worker = int(line(process))
        assert take_back_from_the_dead(session) == []  # it lives
    return worker


def uid_of(session, job_id):
    with session.reading() as tx:
        return tx.value(
            "SELECT s.uid || '.' || (j.id - s.first_id) FROM job j JOIN submission s ON s.id = j.submission_id WHERE j.id = ?",
            (job_id,),
        )


@pytest.mark.parametrize("take", [take_back_from_the_dead, lambda session: take_back(session, ZOMBIE_S)])
def test_jobs_of_a_dead_worker_are_back_at_once_and_its_strays_gone(session, tmp_path, stray, take):
    """Q22, E11: no wait for zombie-after; what the job left is ended before, what others left is not touched."""
    put(session, *[new_job() for _ in range(4)])
    left, other = stray(uid_of(session, 1)), stray(uid_of(session, 4))
    dead_worker(session, tmp_path, 3)
    found = take(session)
    assert [(one.job_id, one.attempt, one.state) for one in found] == [(n, 1, "pending") for n in (1, 2, 3)]
    assert left.wait(60) == -signal.SIGKILL
    assert other.poll() is None
    row = job_row(session, 1)
    assert (row["reason"], row["system_used"]) == ("zombie", 1)
    assert "worker w is gone" in row["message"]
    assert take(session) == []


def test_only_the_jobs_that_were_asked_for(session, tmp_path, stray):
    """Q33: `cancel ID` judges that job; another one of the same worker stays, and so does what belongs to it."""
    put(session, new_job(), new_job())
    other = stray(uid_of(session, 2))
    dead_worker(session, tmp_path, 2)
    assert [one.job_id for one in take_back(session, ZOMBIE_S, only={1})] == [1]
    assert job_row(session, 2)["state"] == "running"
    assert other.poll() is None


def test_a_canceled_job_of_a_dead_worker_ends_canceled(session, tmp_path):
    """Q33: without its worker, at once."""
    put(session)
    dead_worker(session, tmp_path, 1)
    with session.writing() as tx:
        jobs.request_cancel(tx, 1, "ann", grace_s=None, message=None)
    assert [one.state for one in take_back(session, ZOMBIE_S)] == ["canceled"]


@pytest.mark.parametrize("state", ["stopped", "running"])
def test_a_living_worker_keeps_its_jobs(session, tmp_path, state):
    """DESIGN 5: also one that stands still; only its beat can tell that it is lost."""
    put(session)
    with running(ENTER, tmp_path, 1) as process:
        line(process)
        if state == "stopped":
            process.send_signal(signal.SIGSTOP)
            os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
        assert take_back(session, ZOMBIE_S) == []
    assert job_row(session, 1)["state"] == "running"


def join(session, pid, start, identity):
    with session.writing() as tx:
        return workers.join(
            tx, name="w", host="here", identity=identity, pid=pid, pid_start=start, user_id=1, version="0", slots=1,
            queues=["default"],
        )  # fmt: skip


def test_a_pid_that_was_used_again_is_not_the_worker(session):
    """DESIGN 5: the same number with another start is somebody else, and the worker is gone."""
    put(session)
    start = hosts.start_of(os.getpid())
    same = join(session, os.getpid(), start, hosts.identity())
    claim = take(session, same).claim
    assert take_back_from_the_dead(session) == []
    settle(session, claim, Outcome("drained"))
    other = join(session, os.getpid(), start - 1, hosts.identity())
    take(session, other)
    assert [one.attempt for one in take_back_from_the_dead(session)] == [2]


def test_a_worker_of_another_host_is_not_judged_by_its_pid(session, tmp_path, stray):
    """DESIGN 4: any difference of the identity, and neither its pid nor what carries its jobs' mark here is looked at."""
    put(session)
    left = stray(uid_of(session, 1))
    join(session, 1, 1, "another/host/with/pids")
    take(session, 1)
    assert take_back(session, ZOMBIE_S) == []
    assert left.poll() is None
    assert job_row(session, 1)["state"] == "running"


def test_what_stands_still_elsewhere_is_lost_by_its_beat(session):
    """Q22: with the real boot clock, and looks often enough."""
    put(session)
    join(session, 1, 1, "another/host/with/pids")
    take(session, 1)
    assert take_back(session, 0.2) == []
    [one] = until(lambda: take_back(session, 0.2))
    assert (one.job_id, one.state) == (1, "pending")


def test_a_worker_does_not_look_at_its_own(session):
    """`mine`: nobody takes back from itself by its beat."""
    put(session)
    join(session, 1, 1, "another/host/with/pids")
    take(session, 1)
    for _ in range(3):
        assert take_back(session, 0.0, mine=1) == []
    assert [one.job_id for one in take_back(session, 0.0)] == [1]


def test_while_something_of_it_is_left_the_job_stays(session, tmp_path, monkeypatch):
    """DESIGN 5: strays that cannot be ended: the job is not given back, until its beat stood still for zombie-after;
    the worker's other jobs are."""
    put(session, new_job(), new_job())
    dead_worker(session, tmp_path, 2)
    stuck = uid_of(session, 1)
    monkeypatch.setattr("trainq.ops.strays.end", lambda attempts: {stuck} & attempts.keys())
    assert [one.job_id for one in take_back(session, ZOMBIE_S)] == [2]
    assert take_back_from_the_dead(session) == []
    assert job_row(session, 1)["state"] == "running"
    [one] = until(lambda: take_back(session, 0.2))
    assert one.job_id == 1


def test_whoever_was_faster_the_next_attempt_is_not_touched(session, tmp_path, stray, monkeypatch):
    """DESIGN 6: the job is given back and runs again here between this look and its end of strays: that runs on."""
    from trainq.ops import strays

    put(session)
    uid = uid_of(session, 1)
    old = stray(uid, 1)
    dead_worker(session, tmp_path, 1)
    end, again = strays.end, []

    def late(attempts):
        if not again:
            again.append(None)
            assert len(take_back_from_the_dead(session)) == 1  # somebody else, with the same look
            alive = join(session, os.getpid(), hosts.start_of(os.getpid()), hosts.identity())
            assert take(session, alive).claim.attempt == 2
            again[0] = stray(uid, 2)
        return end(attempts)

    monkeypatch.setattr(strays, "end", late)
    assert take_back_from_the_dead(session) == []
    assert old.wait(60) == -signal.SIGKILL
    assert again[0].poll() is None
    row = job_row(session, 1)
    assert (row["state"], row["attempt"]) == ("running", 2)


def test_where_proc_cannot_be_judged_a_cancel_is_said_all_the_same(session, tmp_path, monkeypatch):
    """Q22, DESIGN 5: that nothing can be proved of a worker only means that its beat has to stand still first."""
    put(session)
    dead_worker(session, tmp_path, 1)

    def start_of(_pid):
        raise Unsupported("/proc cannot be read: operation not permitted")

    monkeypatch.setattr(hosts, "start_of", start_of)
    assert take_back_from_the_dead(session) == []
    with session.reading() as tx:
        assert [ops_lost.is_alive(one) for one in ops_lost.held_here(tx)] == [True]
