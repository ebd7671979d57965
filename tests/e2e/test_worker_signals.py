"""How a worker ends: signals, limits of its own, and names."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from datetime import UTC, datetime, timedelta

import pytest
from e2e.kit import alive, until

# Runs until the file `go` stands there; says that it heard a TERM and goes on.
DEAF = "trap 'echo heard' TERM; echo up; while [ ! -e go ]; do sleep 0.02; done"


def _at_work(tq, *jobs):
    """The pids of these jobs, once each has written."""
    until(lambda: all(tq("logs", str(job)).out for job in jobs))
    return [until(lambda job=job: tq.job(job)["attempt"]["pid"]) for job in jobs]


def _state(tq):
    (worker,) = tq.ok("workers", "--json").json["items"]
    return worker["state"]


def _drained(tq, job):
    card = tq.job(job)
    assert (card["state"], card["reason"]) == ("pending", "drained"), card
    assert card["retry"]["used"] == 0
    assert tq.history(job)[-1]["state"] == "pending"


def test_int_drains(tq):
    """Q92: INT lets what runs finish and claims nothing more; the exit status is 0."""
    first, second = tq.submit("slow"), tq.submit("--", "true")
    with tq.worker("--slots", "1") as worker:
        _at_work(tq, first)
        assert _state(tq) == "busy"
        worker.signal(signal.SIGINT)
        until(lambda: worker.said("draining"))
        until(lambda: _state(tq) == "draining")
        (tq.dir / "go").touch()
        assert worker.end().code == 0
    assert tq.job(first)["state"] == "done"
    assert tq.job(second)["state"] == "pending"
    assert tq.job(second)["reason"] == "no_worker"


@pytest.mark.parametrize("second", [signal.SIGINT, signal.SIGTERM])
def test_after_int_once_more_stops(tq, second):
    """Q92: INT again is as TERM, and so is TERM after INT: the job gets its TERM and goes back at no cost."""
    job = tq.submit(
        "--grace", "20s", "--shell", "trap 'echo heard; exit 3' TERM; echo up; while :; do sleep 0.02; done"
    )
    with tq.worker() as worker:
        _at_work(tq, job)
        worker.signal(signal.SIGINT)
        until(lambda: worker.said("draining"))
        worker.signal(second)
        assert worker.end().code == 0
    _drained(tq, job)
    assert tq.ok("logs", str(job)).out.count("heard") == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_term_and_hup_stop(tq, number):
    """Q92: TERM or HUP: jobs get TERM and the grace, and go back to pending drained; the next worker runs them."""
    jobs = [tq.submit("slow", "--seed", "1"), tq.submit("--", "sleep", "60"), tq.submit("--", "true")]
    with tq.worker() as worker:
        pids = [until(lambda job=job: tq.job(job)["attempt"]["pid"]) for job in jobs[:2]]
        worker.signal(number)
        assert worker.end().code == 0
    assert not any(map(alive, pids))
    _drained(tq, jobs[0])
    _drained(tq, jobs[1])
    assert tq.job(jobs[2])["attempt"]["n"] == 0
    tq.ok("cancel", str(jobs[1]))
    (tq.dir / "go").touch()
    tq.ok("worker", "--until", "empty")
    assert tq.job(jobs[0])["state"] == "done"
    assert tq.job(jobs[0])["attempt"]["n"] == 2
    assert tq.ok("workers", "--json").json["items"] == []


def test_the_grace_is_used(tq):
    """Q92: within the grace a job may still save; its own end comes after that."""
    line = "trap 'sleep 0.5; echo saved; exit 0' TERM; echo up; while :; do sleep 0.02; done"
    job = tq.submit("--grace", "20s", "--shell", line)
    with tq.worker() as worker:
        _at_work(tq, job)
        worker.signal(signal.SIGTERM)
        assert worker.end().code == 0
    _drained(tq, job)
    assert "saved" in tq.ok("logs", str(job)).out


def test_twice_kills_at_once(tq):
    """Q92: a second TERM kills at once, whatever the grace, and the job is requeued."""
    job = tq.submit("--grace", "10m", "--shell", DEAF)
    with tq.worker() as worker:
        (pid,) = _at_work(tq, job)
        worker.signal(signal.SIGTERM)
        until(lambda: "heard" in tq.ok("logs", str(job)).out)
        assert alive(pid)
        worker.signal(signal.SIGTERM)
        assert worker.end().code == 1  # it had to kill
    assert not alive(pid)
    _drained(tq, job)
    assert tq.ok("logs", str(job)).out.count("heard") == 1


def test_ignored_hup_stays_ignored(tq):
    """Q92: a worker started with nohup does not hear HUP, and the others still."""
    job = tq.submit("slow")
    with tq.worker("--until", "empty", before=("nohup",)) as worker:
        _at_work(tq, job)
        worker.signal(signal.SIGHUP)
        (tq.dir / "go").touch()
        assert worker.end().code == 0
        assert not worker.said("stopping")
    assert tq.job(job)["state"] == "done"


def test_jobs_of_a_nohup_worker_are_stopped_by_its_term(tq):
    """Q92: nohup takes HUP away and nothing else."""
    job = tq.submit("--", "sleep", "60")
    with tq.worker(before=("nohup",)) as worker:
        until(lambda: tq.job(job)["attempt"]["pid"])
        worker.signal(signal.SIGTERM)
        assert worker.end().code == 0
    _drained(tq, job)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_idle_worker_ends_at_once(tq, number):
    """Q92: with nothing at work each of the signals ends it, with 0 and nobody left in the list."""
    with tq.worker() as worker:
        worker.signal(number)
        assert worker.end().code == 0
    assert tq.ok("workers", "--json").json["items"] == []


def test_many_signals_at_once(tq):
    """Q92: a storm of signals ends the worker in good order, and the job goes back."""
    job = tq.submit("--shell", DEAF)
    with tq.worker() as worker:
        (pid,) = _at_work(tq, job)
        for _ in range(50):
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                worker.signal(number)
        assert worker.end().code == 1  # it had to kill
    assert not alive(pid)
    _drained(tq, job)


def test_signal_to_the_whole_group(tq):
    """Q92: a Ctrl-C of the terminal reaches the worker and not its jobs: it drains."""
    job = tq.submit("slow")
    with tq.worker(before=("setsid",)) as worker:
        _at_work(tq, job)
        os.killpg(worker.pid, signal.SIGINT)
        until(lambda: worker.said("draining"))
        assert tq.job(job)["state"] == "running"
        (tq.dir / "go").touch()
        assert worker.end().code == 0
    assert tq.job(job)["state"] == "done"


def test_killed_worker_leaves_no_job_behind(tq):
    """Q92: kill -9 of the worker alone ends its jobs too, and the job comes back as lost."""
    job = tq.submit("slow")
    with tq.worker() as worker:
        (pid,) = _at_work(tq, job)
        worker.signal(signal.SIGKILL)
        worker.process.wait()
        until(lambda: not alive(pid))
    until(lambda: tq.ok("prune") and tq.job(job)["state"] == "pending")
    assert tq.job(job)["reason"] == "zombie"


def test_once_runs_one(tq):
    """Q14: --once runs at most one job, and its exit status is not the job's."""
    jobs = [tq.submit("--", "false"), tq.submit("--", "true")]
    report = tq.ok("worker", "--once", "--json").json
    assert [(job["id"], job["state"]) for job in report["jobs"]] == [(jobs[0], "errored")]
    assert [tq.job(job)["state"] for job in jobs] == ["errored", "pending"]


def test_once_does_not_wait_for_held_jobs(tq):
    """Q14: a job that waits for its second try is nothing to do for --once and --until idle, but not empty."""
    job = tq.submit("--retries", "1", "--backoff", "5s", "--", "false")
    tq.ok("worker", "--once")
    assert tq.job(job)["state"] == "held"
    assert tq.ok("worker", "--once").out == "nothing to do\n"
    assert tq.ok("worker", "--until", "idle").out == "nothing to do\n"
    tq.ok("worker", "--until", "empty")
    card = tq.job(job)
    assert (card["state"], card["attempt"]["n"]) == ("errored", 2)


def test_max_jobs(tq):
    """Q15: --max-jobs ends it after so many, also with more slots than that."""
    jobs = [tq.submit("--", "true") for _ in range(5)]
    report = tq.ok("worker", "--max-jobs", "3", "--slots", "4", "--json").json
    assert sorted(job["id"] for job in report["jobs"]) == jobs[:3]
    assert [tq.job(job)["state"] for job in jobs[3:]] == ["pending", "pending"]


def test_max_jobs_waits_for_them(tq):
    """Q15: without --until it stays until it has had its number."""
    with tq.worker("--max-jobs", "2") as worker:
        tq.submit("--", "true")
        until(lambda: worker.said("job ended"))
        assert worker.process.poll() is None
        tq.submit("--", "true")
        assert worker.end().code == 0


def test_until_idle_and_queues(tq):
    """Q14: idle looks at the worker's own queues only, and an unknown queue is refused."""
    tq.types(queues='names = ["default", "other"]')
    job = tq.submit("--queue", "other", "--", "true")
    assert tq.ok("worker", "--queue", "default", "--until", "idle").out == "nothing to do\n"
    assert tq.ok("worker", "--queue", "default", "--until", "empty").out == "nothing to do\n"
    assert tq.job(job)["state"] == "pending"
    assert tq("worker", "--queue", "nope", "--once").code == 2
    tq.ok("worker", "--queue", "other", "--until", "empty")
    assert tq.job(job)["state"] == "done"


def test_until_idle_sees_what_its_jobs_submit(tq):
    """Q14: what a job puts in while it runs is still done."""
    line = 'python -m trainq --root "$TRAINQ_ROOT" submit -- touch inner'
    tq.submit("--shell", line)
    tq.ok("worker", "--until", "idle")
    assert (tq.dir / "inner").exists()


def test_until_a_time(tq):
    """Q14: a time ends the claims; what runs then is finished."""
    job = tq.submit("slow")
    with tq.worker("--until", "+1s") as worker:
        _at_work(tq, job)
        until(
            lambda: datetime.now(UTC) > datetime.fromisoformat(worker.said("started")[0]["at"]) + timedelta(seconds=1.5)
        )
        late = tq.submit("--", "true")
        assert worker.process.poll() is None
        (tq.dir / "go").touch()
        assert worker.end().code == 0
    assert tq.job(job)["state"] == "done"
    assert tq.job(late)["state"] == "pending"
    assert tq.ok("worker", "--until", "+1s").code == 0


def test_after_its_time_a_worker_waits_without_work(tq):
    """Q14: a worker whose time has come, with a job that still runs, waits for its end and does not turn in circles."""
    job = tq.submit("slow")
    with tq.worker("--until", "+2s") as worker:
        _at_work(tq, job)
        until(
            lambda: datetime.now(UTC) > datetime.fromisoformat(worker.said("started")[0]["at"]) + timedelta(seconds=2)
        )
        before = cpu_s(worker.pid)
        time.sleep(2)  # in which one that turns in circles takes all it can get
        assert cpu_s(worker.pid) - before < 0.5
        (tq.dir / "go").touch()
        assert worker.end().code == 0
    assert tq.state(job) == "done"


def cpu_s(pid):
    """Seconds that a process has computed."""
    with open(f"/proc/{pid}/stat", "rb") as file:
        words = file.read().rpartition(b")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.parametrize(
    "words",
    [
        ("--until", "soon"), ("--until", "90"), ("--until", ""), ("--slots", "-1"), ("--slots", "many"), ("--max-jobs", "0"),
        ("--once", "--until", "idle"), ("--log-format", "xml"), ("--queue", ""), ("--slots", "1" * 30),
        ("--json", "--jsonl"), ("extra",),
    ],
)  # fmt: skip
def test_wrong_words_are_refused(tq, words):
    """Q14: a worker that was told nonsense does not start: exit 2, one line and a hint."""
    done = tq("worker", *words)
    assert done.code == 2, done
    if "--json" not in words:
        assert len(done.err.splitlines()) == 2


@pytest.mark.parametrize("name", ["ada", "../../x y", "ünï☃", "a\nb", "x" * 400])
def test_name_belongs_to_one(tq, name):
    """Q14: a name that a worker has is refused to the next with 4, and is free when it has ended, even killed."""
    with tq.worker("--name", name, "--slots", "0") as worker:
        until(lambda: tq.ok("workers", "--json").json["items"])
        done = tq("worker", "--name", name, "--once")
        assert done.code == 4, done
        assert len(done.err.splitlines()) == 2
        worker.signal(signal.SIGKILL)
        worker.process.wait()
    tq.ok("worker", "--name", name, "--once")
    assert tq("worker", "--name", "", "--once").code == 2


def test_json_is_one_report_and_jsonl_a_stream(tq):
    """Q96: `worker --json` prints one document at its end, --jsonl an object a line."""
    tq.submit("--", "true")
    lines = tq.ok("worker", "--once", "--jsonl").out.splitlines()
    assert [json.loads(line)["event"] for line in lines] == ["started", "job started", "job ended", "ended"]


def test_reader_of_its_words_may_leave(tq):
    """Q92: a worker whose stdout and stderr are closed pipes goes on with its jobs."""
    jobs = [tq.submit("--", "true") for _ in range(3)]
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        ["python", "-m", "trainq", "--root", tq.root, "worker", "--until", "empty", "--jsonl"],
        stdout=write, stderr=write, env=tq.environment(), cwd=tq.dir, timeout=60, check=False,
    )  # fmt: skip
    os.close(write)
    assert done.returncode == 0
    assert {tq.job(job)["state"] for job in jobs} == {"done"}
