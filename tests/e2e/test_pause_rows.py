"""Queues that nothing is claimed from, jobs that stand still, workers that finish and go: asked for by other processes."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import sys
import time

import pytest
from e2e.kit import ELSEWHERE, FAR, Tq, alive, children, status_of, until

# Starts a program as another user, who may read and write all the same.
SOMEBODY = (
    "setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--inh-caps=+dac_override,+dac_read_search,+fowner",
    "--ambient-caps=+dac_override,+dac_read_search,+fowner",
)  # fmt: skip


def results(done):
    return [(item["id"], item["result"]) for item in done.json["items"]]


def kept(tq):
    """What is known of the queues, without when."""
    return tq.ok("resume", "--all", "--dry-run", "--json").json["items"]


# queues (Q59) -----------------------------------------------------------------------------------------------------


def test_a_worker_starts_nothing_while_all_is_paused(tq):
    """Q59: `pause --all`: a worker that finds work for two queues starts none of it, what runs goes on, and `resume --all`
    lets it start all; both say "already" when they are repeated."""
    tq.types(queues='names = ["default", "other"]')
    running = tq.submit("slow")
    with tq.worker("--slots", "3") as worker:
        until(lambda: "begun" in tq("logs", running).out)
        assert results(tq.ok("pause", "--all", "--json")) == [("default", "paused"), ("other", "paused")]
        waiting = [tq.submit("--", "true"), tq.submit("--queue", "other", "--", "true")]
        assert results(tq.ok("pause", "--all", "--json")) == [("default", "already"), ("other", "already")]
        (tq.dir / "go").touch()
        until(lambda: tq.state(running) == "done")
        assert tq.ok("worker", "--until", "idle").out == "nothing to do\n"
        assert [(tq.job(job)["state"], tq.job(job)["reason"]) for job in waiting] == [("pending", "queue_paused")] * 2
        assert len(worker.said("job started")) == 1
        assert results(tq.ok("resume", "--all", "--json")) == [("default", "resumed"), ("other", "resumed")]
        until(lambda: [tq.state(job) for job in waiting] == ["done", "done"])
    assert tq.ok("resume", "--all").out == "no queue is paused\n"


def test_one_queue_is_paused_and_people_see_who_when_and_what_for(tq):
    """Q59: the other goes on; `status`, `submit`, the card, `doctor` and a worker say who paused it, when and why."""
    tq.types(queues='names = ["default", "other"]')
    line = ("pause", "--queue", "default", "-m", "new drivers\n\x1b[1m")
    assert tq.ok(*line, "--dry-run").out == "default would be paused\n"
    assert kept(tq) == []
    assert tq.ok(*line).out == "default paused\n"
    assert tq.ok(*line).out == "default already is paused\n"
    waiting = tq.submit("--", "true")
    with tq.worker("--until", "idle", "--queue", "default", "--queue", "other") as worker:
        worker.end()
        (said,) = worker.said("queue paused")
        assert (said["queue"], said["reason"], said["message"]) == ("default", "queue_paused", "new drivers\n\x1b[1m")
    other = tq.submit("--queue", "other", "--", "true")
    tq.ok("worker", "--until", "idle")
    assert (tq.state(waiting), tq.state(other)) == ("pending", "done")
    sentence = tq.job(waiting)["waiting_for"]
    assert sentence.startswith("queue default is paused by ")
    assert " since " in sentence
    assert sentence.endswith(r": new drivers\n\x1b[1m")
    for shown in (tq.ok("status").out, tq.ok("submit", "--", "true").err, tq("doctor").out):
        assert sentence in shown
        assert "trainq resume --queue default" in shown
    tq.ok("resume", "--queue", "default")
    tq.work()
    assert {job["state"] for job in tq.jobs()} == {"done"}


def test_all_are_those_that_are_known_now(tq):
    """Q59: `--all` covers the queues of the settings, with a row or not, and a queue that only jobs know any more; one that
    is named later is open."""
    tq.types(queues='names = ["default", "old"]')
    old = tq.submit("--queue", "old", "--", "true")
    tq.types(queues='names = ["default", "new"]')
    assert results(tq.ok("pause", "--all", "--json")) == [(name, "paused") for name in ("default", "new", "old")]
    tq.types(queues='names = ["default", "old", "later"]')
    later = tq.submit("--queue", "later", "--", "true")
    tq.ok("worker", "--until", "idle")
    assert (tq.state(old), tq.state(later)) == ("pending", "done")
    tq.types(queues='names = ["default"]')
    assert results(tq.ok("resume", "--queue", "old", "--json")) == [("old", "resumed")]
    assert results(tq.ok("resume", "--all", "--json")) == [("default", "resumed"), ("new", "resumed")]


def test_what_is_no_queue_is_not_paused(tq):
    """Q59: without a queue 2, an unknown one 3, and then none of those named is paused."""
    for verb in ("pause", "resume"):
        assert tq(verb).code == 2
        done = tq(verb, "--queue", "default", "--queue", "nope")
        assert (done.code, "no such queue: 'nope'" in done.err) == (3, True)
    assert kept(tq) == []
    assert tq("pause", "--queue", "nope", "--json").json["error"] == "not_found"


# running jobs (E08) ----------------------------------------------------------------------------------------------

# A trainer and a child of it count, each in a file of its own, until the file `go` stands. What it does on TERM is heard.
COUNTS = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: (open('heard', 'w').close(), sys.exit(75)))
name = 'main' if os.fork() else 'child'
if name == 'child': signal.signal(signal.SIGTERM, signal.SIG_DFL)
n = 0
while not os.path.exists('go'):
    n += 1
    with open('counted-' + name, 'a') as file: file.write('.')
    time.sleep(0.01)
"""


def counted(tq):
    """How far the two have come."""
    paths = [tq.dir / f"counted-{name}" for name in ("main", "child")]
    return [path.stat().st_size if path.exists() else 0 for path in paths]


def goes_on(tq):
    """Wait until both have counted on."""
    before = counted(tq)
    until(lambda: all(now > then for now, then in zip(counted(tq), before, strict=True)))


def stands_still(tq):
    """Wait until neither counts; how far they have come."""

    def look():
        before = counted(tq)
        time.sleep(0.2)
        return before if counted(tq) == before else None

    return until(look)


def reason(tq, job):
    card = tq.job(job)
    return card["state"], card["reason"]


@pytest.fixture(params=["local", "shared"])
def either(request, tmp_path):
    """A queue of each mode, on a disk of this host."""
    command = Tq(tmp_path)
    command.ok("init", command.root, f"--{request.param}", root=None)
    command.types()
    command.script("count.py", COUNTS)
    return command


@pytest.fixture
def counting(tq):
    tq.script("count.py", COUNTS)
    return tq


@contextlib.contextmanager
def paused(tq, *words, worker=()):
    """A job that has counted and is paused, and its worker."""
    job = tq.submit(*words, "--", sys.executable, "count.py")
    with tq.worker("--slots", "1", *worker) as process:
        goes_on(tq)
        assert results(tq.ok("pause", job, "--json")) == [(job, "paused")]
        stands_still(tq)
        yield job, process


def test_a_paused_job_stands_still_and_goes_on(either):
    """E08: it and its child stop, its slot stays taken, it is no zombie to anybody, its time limit of 3 s does not run in
    5; asked for by another process, also one of another host; it goes on, on attempt 1. History tells who, from where and
    why; both say "already"."""
    tq = either
    job = tq.submit("--time", "3s", "--", sys.executable, "count.py")
    with tq.worker("--slots", "1") as worker:
        goes_on(tq)
        line = ("pause", job, "-m", "a demo")
        assert tq.ok(*line, "--dry-run").out == f"{job} would be paused\n"
        assert tq.ok(*line, before=ELSEWHERE).out == f"{job} paused\n"
        far = stands_still(tq)
        began = time.monotonic()
        waiting = tq.submit("--", "true")
        assert reason(tq, job) == ("running", "frozen")
        assert tq.ok("status", job).out.endswith(f"next: trainq resume {job}\n")
        assert tq.ok(*line).out == f"{job} already is paused\n"
        (said,) = until(lambda: worker.said("job paused"))
        assert (said["id"], said["by"].partition("@")[2]) == (job, "elsewhere")
        beat = tq.job(job)["attempt"]["heartbeat_at"]
        while time.monotonic() - began < 5:  # the time limit, and zombie-after, are what must not run on
            tq.ok("prune", before=ELSEWHERE)
            time.sleep(0.5)
        assert counted(tq) == far
        assert tq.job(job)["attempt"]["heartbeat_at"] > beat
        assert tq.state(waiting) == "pending"
        assert tq.ok("resume", job).out == f"{job} resumed\n"
        goes_on(tq)
        assert reason(tq, job) == ("running", None)
        assert tq.ok("resume", job).out == f"{job} already goes on\n"
        assert len(worker.said("job resumed")) == 1
        (tq.dir / "go").touch()
        until(lambda: tq.state(waiting) == "done")
    card = tq.job(job)
    assert (card["state"], card["reason"], card["attempt"]["n"]) == ("done", None, 1)
    steps = [(row["state"], row["reason"], row["message"]) for row in tq.history(job)]
    assert steps == [
        ("pending", None, None), ("running", None, None), ("running", "frozen", "a demo"), ("running", "resumed", None),
        ("done", None, None),
    ]  # fmt: skip
    assert tq.history(job)[2]["by"].endswith("@elsewhere")


def test_a_pause_is_seen_at_once(counting):
    """E08: as a cancel is, without waiting for a heartbeat or a poll."""
    counting.env |= FAR
    with paused(counting) as (job, _):
        counting.ok("resume", job)
        goes_on(counting)


def test_silence_does_not_count_while_paused(tq):
    """E08: a type's `stall_after` of 2 s does not run in a pause of 3."""
    tq.script(
        "speaks.py",
        """
        import os, time
        from trainq import job
        n = 0
        while not os.path.exists('go'):
            job.progress(step=(n := n + 1))
            for name in ('main', 'child'):
                with open('counted-' + name, 'a') as file: file.write('.')
            time.sleep(0.05)
        """,
    )
    tq.types('[types.speaks]\nrun = ["python", "speaks.py"]\nstall_after = "2s"\n')
    job = tq.submit("speaks")
    with tq.worker():
        goes_on(tq)
        tq.ok("pause", job)
        stands_still(tq)
        time.sleep(3)  # the silence is what must not count
        tq.ok("resume", job)
        goes_on(tq)
        (tq.dir / "go").touch()
        until(lambda: tq.state(job) == "done")


@pytest.mark.parametrize("now", [False, True])
def test_a_cancel_wins_over_a_pause(counting, now):
    """E08, Q31: canceled while it is paused it gets its TERM, and acts on it; with `--now` it is killed where it stands."""
    tq = counting
    with paused(tq, "--grace", "20s") as (job, _):
        far = counted(tq)
        tq.ok("cancel", job, "--wait", *(["--now"] if now else []))
        assert (counted(tq) == far) or not now
    assert reason(tq, job) == ("canceled", "user")
    assert (tq.dir / "heard").exists() != now
    assert tq.job(job)["result"]["signal"] == (signal.SIGKILL if now else None)


def test_what_is_being_canceled_is_not_paused(tq):
    """E08: in its grace, which a pause would make stand still: 4 and refused, and it ends; to resume it is nothing new."""
    (tq.dir / "deaf.sh").write_text("trap 'touch heard' TERM; touch begun; while [ ! -e go ]; do sleep 0.02; done")
    job = tq.submit("--grace", "50s", "--", "sh", "deaf.sh")
    with tq.worker():
        until((tq.dir / "begun").exists)
        assert tq.ok("cancel", job, "--json").json["items"][0]["result"] == "canceling"
        until((tq.dir / "heard").exists)
        done = tq("pause", job)
        assert (done.code, f"job {job} is being canceled" in done.err) == (4, True), done
        assert results(tq("pause", f"{job},99", "--json")) == [(job, "refused"), (99, "unknown")]
        assert results(tq.ok("resume", job, "--json")) == [(job, "already")]
        (tq.dir / "go").touch()
        until(lambda: reason(tq, job) == ("canceled", "user"))


def test_a_worker_that_stops_thaws_its_job(counting):
    """E08, Q92: TERM of the worker: the job hears its TERM, has its grace, goes back at no cost, and runs with the next."""
    tq = counting
    with paused(tq, "--grace", "20s") as (job, worker):
        worker.signal(signal.SIGTERM)
        assert worker.end().code == 0
    assert (tq.dir / "heard").exists()
    assert reason(tq, job) == ("pending", "requeued")
    with tq.worker():
        goes_on(tq)
        assert reason(tq, job) == ("running", None)
        (tq.dir / "go").touch()
        until(lambda: tq.state(job) == "done")


def test_a_worker_that_drains_waits_for_its_paused_job(counting):
    """E08, Q92: INT of the worker: what runs is finished, also what stands still meanwhile, once somebody lets it go on."""
    tq = counting
    with paused(tq) as (job, worker):
        worker.signal(signal.SIGINT)
        (said,) = until(lambda: worker.said("draining"))
        assert said["paused"] == [job]
        (tq.dir / "go").touch()
        far = stands_still(tq)
        assert worker.process.poll() is None
        tq.ok("resume", job)
        assert worker.end().code == 0
        assert counted(tq) >= far
    assert tq.state(job) == "done"


def test_killed_with_its_worker_it_is_a_lost_job_like_any_other(counting):
    """E08, Q22: kill -9 of the worker and its keepers while the job is paused: nothing of it is left, it goes back, and
    the next attempt runs."""
    tq = counting
    with paused(tq) as (job, worker):
        keepers = children(worker.pid)
        mine = [pid for keeper in keepers for pid in tree(keeper)]
        assert len(mine) == 2
        for pid in (worker.pid, *keepers):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        worker.process.wait()
        tq.ok("prune")
        assert not any(map(alive, mine))
        assert reason(tq, job) == ("pending", "zombie")
    with tq.worker():
        goes_on(tq)
        assert reason(tq, job) == ("running", None)
        assert tq.job(job)["attempt"]["n"] == 2


def tree(pid):
    """All below a process."""
    below = children(pid)
    return below + [each for one in below for each in tree(one)]


def test_a_renewed_lease_does_not_thaw_a_paused_job(counting):
    """E08, E17: the worker stands still past the holder limit and comes back, its claim still its own: the job that was
    paused before stays so, and goes on when people want it."""
    tq = counting
    tq.env["TRAINQ_TIMES_ZOMBIE_AFTER"] = "60s"
    with paused(tq) as (job, worker):
        far = counted(tq)
        beat = tq.job(job)["attempt"]["heartbeat_at"]
        worker.signal(signal.SIGSTOP)
        time.sleep(3)  # past the holder limit
        worker.signal(signal.SIGCONT)
        until(lambda: tq.job(job)["attempt"]["heartbeat_at"] > beat)
        time.sleep(1)  # two more beats
        assert counted(tq) == far
        tq.ok("resume", job)
        goes_on(tq)
        assert tq.job(job)["attempt"]["n"] == 1


def test_what_is_not_paused(counting):
    """E08: what waits 4, with the command for it; what has ended 4; nobody's 3; nothing or both 2; among several the answer
    tells of each."""
    tq = counting
    ended, waiting = tq.submit("--", "true"), tq.submit("--", "true")
    tq.ok("worker", "--max-jobs", "1")
    with paused(tq, "--priority", "5") as (job, _):
        for verb, word in (("pause", "hold"), ("resume", None)):
            done = tq(verb, waiting)
            assert (done.code, f"trainq {word} {waiting}" in done.err) == ((4, True) if word else (0, False))
            done = tq(verb, ended)
            assert (done.code, f"job {ended} is already done" in done.err) == (4, True)
            assert tq(verb, 99).code == 3
            assert tq(verb).code == 2
            assert tq(verb, job, "--queue", "default").code == 2
        several = tq("pause", f"{ended},{waiting},{job},99", "--json")
        assert several.code == 7
        assert results(several) == [(ended, "ended"), (waiting, "refused"), (job, "already"), (99, "unknown")]
        assert [row["reason"] for row in tq.history(waiting)] == [None]
        tq.ok("cancel", job)
        until(lambda: reason(tq, job) == ("canceled", "user"))
        assert tq("pause", job).code == 4


@pytest.mark.skipif(os.getuid() != 0 or not shutil.which("setpriv"), reason="a second uid needs root and setpriv")
def test_only_ones_own_jobs_are_paused(counting):
    """E08: by another user it is refused with 4, and nothing is changed; so is the way back."""
    tq = counting
    job = tq.submit("--", sys.executable, "count.py")
    with tq.worker():
        goes_on(tq)
        assert tq("pause", job, before=SOMEBODY).code == 4
        assert reason(tq, job) == ("running", None)
        tq.ok("pause", job)
        assert tq("resume", job, before=SOMEBODY).code == 4
        assert reason(tq, job) == ("running", "frozen")


# workers that finish and go ---------------------------------------------------------------------------------------


def one_worker(tq):
    (worker,) = tq.ok("workers", "--json").json["items"]
    return worker


@pytest.mark.parametrize("word", ["name", "id", "all"])
def test_a_worker_that_is_drained_finishes_what_it_runs_and_ends(either, word):
    """Q92, E08: asked for by another process, also one of another host: it claims nothing more, `workers` says draining, its
    log says who has asked, and it exits 0 once its job is done. Repeated it is "already"."""
    tq = either
    job = tq.submit("--", sys.executable, "count.py")
    with tq.worker("--slots", "2", "--name", "the one") as worker:
        goes_on(tq)
        which = {"name": "the one", "id": one_worker(tq)["id"], "all": "--all"}[word]
        assert results(tq.ok("workers", "drain", which, "--json", before=ELSEWHERE)) == [("the one", "drained")]
        waiting = tq.submit("--", "true")
        assert one_worker(tq)["state"] == "draining"
        assert tq.ok("workers", "drain", which).out == "the one already is draining\n"
        (said,) = until(lambda: worker.said("draining"))
        assert (said["running"], said["by"].partition("@")[2]) == (1, "elsewhere")
        (tq.dir / "go").touch()
        assert worker.end().code == 0
        assert len(worker.said("draining")) == 1
    assert (tq.state(job), tq.state(waiting)) == ("done", "pending")
    assert tq.ok("workers", "drain", "--all").out == "no workers: nothing to do\n"


def stopped_outside_the_gate(tq, worker, *words):
    """SIGSTOP it, and do this while it stands still; false, and it goes on, when it holds the lock."""
    worker.signal(signal.SIGSTOP)
    until(lambda: status_of(worker.pid) == "T")
    if tq(*words, env={"TRAINQ_TIMES_LOCK_WAIT": "1s"}).code == 0:
        return True
    worker.signal(signal.SIGCONT)
    return False


def test_a_drained_worker_takes_nothing_in_that_turn(tq):
    """Q92: a worker that is asked before it looks, and finds work at the same look, claims none of it."""
    tq.env |= FAR
    with tq.worker("--name", "idle") as worker:
        until(lambda: stopped_outside_the_gate(tq, worker, "workers", "drain", "idle"))
        job = tq.submit("--", "true")
        worker.signal(signal.SIGCONT)
        assert worker.end().code == 0
    assert tq.job(job)["attempt"]["n"] == 0


def test_a_job_may_drain_its_own_worker(tq):
    """Q92: the last job of a worker says so, and the log tells people who has asked."""
    line = ("--", sys.executable, "-m", "trainq", "--root", tq.root, "workers", "drain", "mine")
    last, never = tq.submit(*line), tq.submit("--", "true")
    said = tq.ok("worker", "--slots", "1", "--name", "mine").err
    assert re.search(r"draining, as \S+@\S+ has asked: ", said)
    assert (tq.state(last), tq.state(never)) == ("done", "pending")


def test_a_drained_worker_heeds_its_signals(counting):
    """Q92: the first INT after a drain asks for no more than that, the second stops the job."""
    tq = counting
    job = tq.submit("--", sys.executable, "count.py")
    with tq.worker("--name", "one") as worker:
        goes_on(tq)
        tq.ok("workers", "drain", "one")
        until(lambda: worker.said("draining"))
        worker.signal(signal.SIGINT)
        until(lambda: len(worker.said("draining")) == 2)
        goes_on(tq)
        worker.signal(signal.SIGINT)
        assert worker.end().code == 0
    assert (tq.dir / "heard").exists()
    assert reason(tq, job) == ("pending", "requeued")


def test_which_workers_can_be_drained(tq):
    """Q92: nobody 2, an unknown one 3, one that is gone is told of, several among which one is unknown 7."""
    assert tq("workers", "drain").code == 2
    assert tq("workers", "drain", "nobody").code == 3
    with tq.worker("--name", "dead") as dead, tq.worker("--name", "one") as worker:
        os.kill(dead.pid, signal.SIGKILL)
        dead.process.wait()
        several = tq("workers", "drain", "dead", "nobody", "one", "--json")
        assert (several.code, results(several)) == (7, [("dead", "ended"), ("nobody", "unknown"), ("one", "drained")])
        assert worker.end().code == 0


@pytest.mark.skipif(os.getuid() != 0 or not shutil.which("setpriv"), reason="a second uid needs root and setpriv")
def test_only_ones_own_worker_is_drained(tq):
    """Q92: by another user it is refused with 4; `--all` means their own, of which there are none."""
    with tq.worker("--name", "one"):
        assert tq("workers", "drain", "one", before=SOMEBODY).code == 4
        assert tq.ok("workers", "drain", "--all", before=SOMEBODY).out == "no workers: nothing to do\n"
        assert one_worker(tq)["state"] == "idle"
