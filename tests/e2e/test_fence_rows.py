"""Claims that are taken away, workers that are gone: an attempt that lost its claim writes nothing, and nothing is lost."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from e2e.kit import ELSEWHERE, alive, children, status_of, until

# Counts in a file of its own for each attempt; the first never ends, the next make a model. A TERM would be heard.
COUNTS = """
import os, signal, time
attempt = os.environ['TRAINQ_ATTEMPT']
signal.signal(signal.SIGTERM, lambda *_: open('heard', 'w').close())
with open('counted-' + attempt, 'a', buffering=1) as file:
    for n in range(6000):
        file.write('%d\\n' % n)
        with open(os.environ['TRAINQ_MODEL_DIR'] + '/model', 'w') as model: model.write(attempt)
        if attempt != '1' and n == 5: break
        time.sleep(0.01)
"""


# The name of the socket begins with the worker's pid.
KILLS_ITS_WORKER = "at=${TRAINQ_SOCKET##*/}; kill -9 ${at%-*}; sleep 60"


def counted(tq, attempt=1):
    path = tq.dir / f"counted-{attempt}"
    return len(path.read_text().splitlines()) if path.exists() else 0


def stop_outside_the_gate(tq, worker):
    """SIGSTOP it while it holds no lock, and put a job into the queue that only it serves; that job's id."""
    for _ in range(10):
        worker.signal(signal.SIGSTOP)
        until(lambda: status_of(worker.pid) == "T")
        done = tq("submit", "--queue", "other", "--", "true", env={"TRAINQ_TIMES_LOCK_WAIT": "1s"})
        if done.code == 0:
            return int(done.out)
        worker.signal(signal.SIGCONT)
        time.sleep(0.05)
    raise AssertionError("it always held the lock")


def test_a_worker_whose_claim_was_taken_writes_nothing(tq):
    """Q20: a worker is stopped past zombie-after while its job counts: the keeper freezes the job at the holder limit; a
    second worker finishes it; the first goes on: state, owner and model are the second's, the frozen copy is killed
    without running on, "claim lost" is said once, and the first takes another job and exits 1 at its own end."""
    tq.types(queues='names = ["default", "other"]')
    tq.script("count.py", COUNTS)
    job = tq.submit("--model", "m", "--", sys.executable, "count.py")
    with tq.worker("--name", "first", "--max-jobs", "2", "--slots", "1") as first:
        until(lambda: counted(tq))
        pid = until(lambda: tq.job(job)["attempt"]["pid"])
        other = stop_outside_the_gate(tq, first)
        until(lambda: status_of(pid) == "T")
        frozen = counted(tq)
        assert tq.state(job) == "running"
        tq.ok("worker", "--name", "second", "--queue", "default", "--max-jobs", "1")
        card = tq.job(job)
        assert (card["state"], card["attempt"]["n"], card["attempt"]["worker"]) == ("done", 2, "second")
        assert alive(pid)
        assert counted(tq) == frozen
        first.signal(signal.SIGCONT)
        end = first.end()
        assert end.code == 1
        assert not alive(pid)
        assert counted(tq) == frozen
        assert not (tq.dir / "heard").exists()
        (lost,) = first.said("claim lost")
        assert (lost["id"], lost["attempt"]) == (job, 1)
        assert [event["id"] for event in first.said("job ended")] == [other]
        assert first.said("ended")[0]["lost_claims"] == 1
    assert tq.job(job) | {"generated_at": None} == card | {"generated_at": None}
    (model,) = tq.models()
    assert (model["job"], model["attempt"]) == (job, 2)
    assert Path(model["path"], "model").read_text() == "2"
    assert [row["state"] for row in tq.history(job)].count("done") == 1
    assert os.listdir(os.path.join(tq.root, "models", ".staging")) == []


def test_a_frozen_job_goes_on_when_the_claim_is_still_its_worker_s(tq):
    """Q20: stopped past the holder limit and not past zombie-after: the frozen job is thawed, on attempt 1, and neither
    its time limit nor its silence has run meanwhile."""
    tq.script("count.py", COUNTS.replace("attempt != '1' and n == 5", "os.path.exists('go')"))
    tq.env["TRAINQ_TIMES_ZOMBIE_AFTER"] = "60s"
    job = tq.submit("--model", "m", "--time", "3s", "--", sys.executable, "count.py")
    with tq.worker("--max-jobs", "1") as worker:
        until(lambda: counted(tq))
        pid = until(lambda: tq.job(job)["attempt"]["pid"])
        worker.signal(signal.SIGSTOP)
        until(lambda: status_of(pid) == "T")
        frozen = counted(tq)
        time.sleep(3.2)  # the time limit itself is what must not run on
        assert counted(tq) == frozen
        worker.signal(signal.SIGCONT)
        until(lambda: counted(tq) > frozen)
        (tq.dir / "go").touch()
        assert worker.end().code == 0
        assert not worker.said("claim lost")
    card = tq.job(job)
    assert (card["state"], card["attempt"]["n"]) == ("done", 1)


# Saves for two seconds when it is asked to stop.
SAVES_SLOWLY = """
import os, signal, sys, time
def save(*_):
    for n in range(20):
        print('saving', n, flush=True)
        time.sleep(0.1)
    print('saved', flush=True)
    sys.exit(75)
signal.signal(signal.SIGTERM, save)
print('up', flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("stop", ["time", "cancel", "drain", "drain while frozen"])
def test_a_job_that_is_being_stopped_is_thawed_too(tq, stop):
    """E17, Q28, Q31, Q92: the worker stands still while a job has its grace: the job is frozen, and when the claim is found
    to be its worker's still it is thawed, has the rest of its grace, and saves."""
    tq.env |= {
        "TRAINQ_TIMES_HEARTBEAT": "0.3s", "TRAINQ_TIMES_HOLDER_LIMIT": "1s", "TRAINQ_TIMES_ZOMBIE_AFTER": "60s",
    }  # fmt: skip
    tq.script("saves.py", SAVES_SLOWLY)
    limit = ("--time", "2s") if stop == "time" else ()
    job = tq.submit(*limit, "--grace", "3s", "--", sys.executable, "saves.py")
    with tq.worker("--max-jobs", "1") as worker:
        until(lambda: "up" in tq("logs", job).out)
        pid = until(lambda: tq.job(job)["attempt"]["pid"])
        if stop == "cancel":
            tq.ok("cancel", job)
        elif stop == "drain":
            worker.signal(signal.SIGTERM)
        if stop != "drain while frozen":
            until(lambda: "saving" in tq("logs", job).out)
        worker.signal(signal.SIGSTOP)
        until(lambda: status_of(pid) == "T")
        if stop == "drain while frozen":
            worker.signal(signal.SIGTERM)
        time.sleep(3.2)  # the grace itself is what must not run on
        assert "saved" not in tq("logs", job).out
        worker.signal(signal.SIGCONT)
        assert worker.end().code == 0
    assert "saved" in tq("logs", job).out
    card = tq.job(job)
    ended = ("canceled", "user") if stop == "cancel" else ("pending", "requeued")
    assert (card["state"], card["reason"], card["attempt"]["n"]) == (*ended, 1)
    assert not alive(pid)


@pytest.mark.parametrize("rest", ["", "subprocess.Popen(['sleep', '60'])"], ids=["alone", "with others"])
def test_what_could_not_be_frozen_is_not_the_jobs_fault(tq, rest):
    """Q20: a job that holds the queue's own lock keeps its worker from its beats, and is not stopped with it in its
    hands: at the end of the freeze's bound it is killed, and goes back as one that was lost, at no retry."""
    tq.script(
        "holds.py",
        f"""
        import fcntl, os, subprocess, time
        if os.environ["TRAINQ_ATTEMPT"] == "1":
            {rest}
            file = open(os.environ["TRAINQ_ROOT"] + "/queue.lock", "r+")
            fcntl.flock(file, fcntl.LOCK_EX)
            time.sleep(60)
        """,
    )
    job = tq.submit("--", sys.executable, "holds.py")
    assert tq("worker", "--until", "empty", "--slots", "1").code == 0
    card = tq.job(job)
    assert (card["state"], card["retry"]["used"]) == ("done", 0)
    assert [(one["n"], one["reason"]) for one in card["attempts"]] == [(1, "zombie"), (2, None)]


def kill_all_at_once(worker, *more):
    """SIGKILL for a worker, its keepers and their jobs in one instant."""
    keepers = children(worker.pid)
    jobs = [pid for keeper in keepers for pid in children(keeper)]
    assert jobs
    # The worker first, which lets a stopped keeper go on; then those, or one might end its job between two of our signals.
    for pid in (worker.pid, *keepers):
        os.kill(pid, signal.SIGSTOP)
        until(lambda pid=pid: status_of(pid) == "T")
    for pid in (worker.pid, *keepers, *jobs, *more):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    worker.process.wait()


def test_a_lost_job_comes_back_within_zombie_after(tq):
    """Q22: seen from another host: kill -9 of worker, keepers and trainer; passes each second show the job pending
    within zombie-after + 2 s, attempt 1 lost, reason zombie, progress reset; another worker ends it done."""
    job = tq.submit("slow")
    with tq.worker() as worker:
        until(lambda: tq("logs", job).out)
        tq.ok("status", job)
        kill_all_at_once(worker)
    began = time.monotonic()
    tq.ok("prune", before=ELSEWHERE)
    assert tq.state(job) == "running"
    while tq.state(job) == "running":
        assert time.monotonic() - began < 4 + 2 + 4, "later than zombie-after + 2 s and what this machine may be slow"
        time.sleep(max(0.0, 1 - (time.monotonic() - began) % 1))
        tq.ok("prune", before=ELSEWHERE)
    assert time.monotonic() - began >= 4
    card = tq.job(job)
    assert (card["state"], card["reason"], card["attempt"]["n"]) == ("pending", "zombie", 1)
    assert card["progress"]["fraction"] is None
    assert [(one["n"], one["reason"]) for one in card["attempts"]] == [(1, "zombie")]
    (tq.dir / "go").touch()
    tq.work()
    card = tq.job(job)
    assert (card["state"], card["attempt"]["n"], card["progress"]["fraction"]) == ("done", 2, 1.0)


def test_on_the_same_host_a_dead_worker_is_noticed_at_once(tq):
    """Q22: on the worker's own host the first pass gives the job back, however long zombie-after is; what the job left
    running (a daemon that left its session) is ended before."""
    tq.env["TRAINQ_TIMES_ZOMBIE_AFTER"] = "1h"
    line = "setsid sh -c 'echo $$ > stray; exec sleep 60' & while [ ! -e go ]; do sleep 0.02; done"
    job = tq.submit("--shell", line)
    with tq.worker() as worker:
        stray = int(until(lambda: (tq.dir / "stray").exists() and (tq.dir / "stray").read_text()))
        kill_all_at_once(worker)
    assert alive(stray)
    tq.ok("prune")
    assert not alive(stray)
    assert (tq.state(job), tq.job(job)["reason"]) == ("pending", "zombie")


# Starts a program as another user, who may read and write all the same.
SOMEBODY = (
    "setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--inh-caps=+dac_override,+dac_read_search,+fowner",
    "--ambient-caps=+dac_override,+dac_read_search,+fowner",
)  # fmt: skip


@pytest.mark.skipif(os.getuid() != 0 or not shutil.which("setpriv"), reason="a second uid needs root and setpriv")
def test_of_another_users_dead_worker_nothing_is_proved(tq):
    """Q22: who is not root cannot see what another user's job left running: it is not given back at a look of theirs,
    however dead its worker is; at the first look of that user it is, and what ran on is ended."""
    tq.env["TRAINQ_TIMES_ZOMBIE_AFTER"] = "1h"
    line = "setsid sh -c 'echo $$ > stray; exec sleep 60' & while [ ! -e go ]; do sleep 0.02; done"
    job = tq.submit("--shell", line)
    with tq.worker() as worker:
        stray = int(until(lambda: (tq.dir / "stray").exists() and (tq.dir / "stray").read_text()))
        kill_all_at_once(worker)
    for _ in range(3):
        tq.ok("prune", before=SOMEBODY)
    assert (tq.state(job), alive(stray)) == ("running", True)
    tq.ok("prune")
    assert (tq.state(job), alive(stray)) == ("pending", False)


def test_the_next_worker_takes_a_dead_one_s_job_at_once(tq):
    """Q22: nobody has to call prune: a worker that starts on the host takes the job back and runs it."""
    tq.env["TRAINQ_TIMES_ZOMBIE_AFTER"] = "1h"
    job = tq.submit("slow")
    with tq.worker() as worker:
        until(lambda: tq("logs", job).out)
        kill_all_at_once(worker)
    (tq.dir / "go").touch()
    tq.ok("worker", "--max-jobs", "1")
    card = tq.job(job)
    assert (card["state"], card["attempt"]["n"]) == ("done", 2)


@pytest.mark.parametrize("how", ["gone", "file", "loop"])
def test_who_takes_a_job_back_may_find_no_kept_variables(tq, how):
    """Q22, DESIGN 2.10: a worker ends a dead one's job for good while `specs/`, where the kept variables of such jobs are
    looked for, cannot be read: it goes on with its jobs."""
    job, *others = [tq.submit("slow", "--seed", n, "--max-attempts", "1") for n in range(3)]
    with tq.worker("--slots", "1") as dead:
        until(lambda: tq("logs", job).out)
        with tq.worker("--slots", "1", "--until", "empty") as worker:
            until(lambda: tq("logs", others[0]).out)
            specs = os.path.join(tq.root, "specs")
            os.rmdir(specs)
            if how == "file":
                Path(specs).touch()
            elif how == "loop":
                os.symlink("specs", specs)
            kill_all_at_once(dead)
            until(lambda: tq.state(job) == "errored")
            (tq.dir / "go").touch()
            assert worker.end().code == 0
    assert tq.job(job)["reason"] == "poison"
    assert [tq.state(other) for other in others] == ["done", "done"]


def test_a_stopped_worker_is_not_a_dead_one(tq):
    """Q22: a worker that is stopped, on this host, keeps its job until zombie-after: it may go on any moment."""
    tq.env["TRAINQ_TIMES_ZOMBIE_AFTER"] = "1h"
    job = tq.submit("slow")
    with tq.worker() as worker:
        until(lambda: tq("logs", job).out)
        other = stop_outside_the_gate_of_default(tq, worker)
        for _ in range(3):
            tq.ok("prune")
            assert tq.state(job) == "running"
        worker.signal(signal.SIGCONT)
        (tq.dir / "go").touch()
        until(lambda: tq.state(job) == tq.state(other) == "done")
    assert tq.job(job)["attempt"]["n"] == 1


def stop_outside_the_gate_of_default(tq, worker):
    tq.types(queues='names = ["default", "other"]')
    other = stop_outside_the_gate(tq, worker)
    tq.ok("cancel", other)
    return tq.submit("--", "true")


def test_a_type_that_kills_its_worker_is_poison(tq):
    """Q23: it ends errored poison with three attempts in history and no fourth start, each with its log."""
    kills = f'echo "attempt $TRAINQ_ATTEMPT"; {KILLS_ITS_WORKER}'
    job = tq.submit("--max-attempts", "3", "--shell", kills)
    for _ in range(3):
        with tq.worker() as worker:
            assert worker.end().code == -signal.SIGKILL
    tq.work()
    card = tq.job(job)
    assert (card["state"], card["reason"], card["side"]) == ("errored", "poison", "system")
    assert "lost 3 times" in card["result"]["error"]
    assert [(one["n"], one["reason"]) for one in card["attempts"]] == [(1, "zombie"), (2, "zombie"), (3, "poison")]
    assert [row["state"] for row in tq.history(job)].count("running") == 3
    for n in (1, 2, 3):
        assert f"attempt {n}\n" in tq.ok("logs", job, "--attempt", n).out


def test_failures_and_lost_workers_are_counted_apart(tq):
    """Q23: a lost worker uses none of --retries, and a retry none of --max-attempts; each attempt is kept."""
    line = f"case $TRAINQ_ATTEMPT in 1|3) exit 3;; 2) {KILLS_ITS_WORKER};; esac"
    job = tq.submit("--max-attempts", "2", "--retries", "2", "--backoff", "0.1s", "--shell", line)
    with tq.worker() as worker:
        worker.end()
    tq.work()
    card = tq.job(job)
    assert (card["state"], card["attempt"]["n"], card["retry"]["used"]) == ("done", 4, 2)
    assert [one["reason"] for one in card["attempts"]] == ["backoff", "zombie", "backoff", None]


def test_heartbeat_does_not_depend_on_progress(tq):
    """Q24: a job that computes past zombie-after without a word of progress ends done on attempt 1, though others look."""
    job = tq.submit("--", sys.executable, "-c", "import time\nend = time.time() + 6\nwhile time.time() < end: pass")
    with tq.worker("--max-jobs", "1") as worker:
        while worker.process.poll() is None:
            tq.ok("prune", before=ELSEWHERE)
            time.sleep(0.5)
    card = tq.job(job)
    assert (card["state"], card["attempt"]["n"]) == ("done", 1)


def test_a_type_may_say_how_long_silence_may_be(tq):
    """Q24: with stall_after a job that says nothing for so long is errored stalled, on the user's side, and is ended as a
    time limit ends one; one that goes on saying something, or whose type says nothing of it, is not."""
    speaks = "import time\nfrom trainq import job\nfor n in range(60): job.progress(step=n); time.sleep(0.05)\n"
    tq.script("speaks.py", speaks)
    tq.types("".join(
        f'[types.{name}]\nrun = ["python", "{file}.py"]\nstall_after = "1s"\n'
        for name, file in (("hang", "slow"), ("speaks", "speaks"))
    ))  # fmt: skip
    hang, speaking = tq.submit("hang"), tq.submit("speaks")
    tq.work("--slots", "2")
    card = tq.job(hang)
    assert (card["state"], card["reason"], card["side"]) == ("errored", "stalled", "user")
    assert "no progress was reported for 1 s" in card["result"]["error"]
    assert not alive(card["attempt"]["pid"])
    assert tq.job(speaking)["state"] == "done"


def test_cancel_of_a_zombie_works_without_its_worker(tq):
    """Q33: kill -9 of the worker: cancel exits 0 and the job is canceled at once, with nobody to see the flag, also on its
    last attempt; and so it is on another host, once zombie-after has passed."""
    here, there = tq.submit("slow"), tq.submit("--", "sleep", "60")
    last = tq.submit("--max-attempts", "1", "--", "sleep", "60")
    with tq.worker("--slots", "3") as worker:
        until(lambda: all(tq.job(job)["attempt"]["pid"] for job in (here, there, last)))
        kill_all_at_once(worker)
    for job in (here, last):
        assert tq.ok("cancel", job, "--json").json["items"] == [{"id": job, "result": "canceled", "error": None}]
        assert tq.state(job) == "canceled"
    assert tq.ok("cancel", there, before=ELSEWHERE).out
    assert tq.job(there)["reason"] == "canceling"
    until(lambda: tq.ok("cancel", there, before=ELSEWHERE) and tq.state(there) == "canceled")
    assert [row["state"] for row in tq.history(there)].count("canceled") == 1
    assert tq.ok("worker", "--once").out == "nothing to do\n"


# the gate --------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def gate_held(tq):
    """A process that holds the queue's lock, as a writer does that hangs."""
    script = (
        "import fcntl, os, sys, time\nfile = os.fdopen(os.open(sys.argv[1], os.O_RDWR | os.O_CREAT), 'r+')\nfcntl.flock(file, fcntl.LOCK_EX)\n"
        "file.write(('%s %d\\n' % (os.uname().nodename.partition('.')[0], os.getpid())).ljust(64)); file.flush()\n"
        "print('held', flush=True)\ntime.sleep(60)\n"
    )
    path = os.path.join(tq.root, "queue.lock")
    with subprocess.Popen([sys.executable, "-c", script, path], stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        try:
            yield process
        finally:
            process.kill()


def started(tq, *words):
    """A command that goes on while something else happens."""
    command = [sys.executable, "-m", "trainq", "--root", tq.root, *words]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=tq.environment(), cwd=tq.dir)


def waits_for_a_lock(pid):
    with open("/proc/locks", encoding="ascii") as file:
        return any("->" in line and line.split()[5] == str(pid) for line in file)


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_a_submit_waits_for_the_gate(tq, how):
    """Q60: with the gate held a submit waits, and goes through as soon as the holder has let go or is killed."""
    with gate_held(tq) as holder:
        submit = started(tq, "submit", "--", "true")
        until(lambda: waits_for_a_lock(submit.pid))
        assert submit.poll() is None
        holder.send_signal(how)
        out, err = submit.communicate(timeout=30)
    assert (submit.returncode, out, err) == (0, b"1\n", b"")
    assert tq.state(1) == "pending"


def test_a_gate_that_is_held_too_long_names_its_holder(tq):
    """Q60: beyond lock_wait a submit exits 5 and names host and pid, nothing is stored, and readers need no gate."""
    tq.env["TRAINQ_TIMES_LOCK_WAIT"] = "0.3s"
    with gate_held(tq) as holder:
        done = tq("submit", "--", "true")
        assert done.code == 5, done
        assert f"pid {holder.pid} on {os.uname().nodename.partition('.')[0]}" in done.err
        assert len(done.err.splitlines()) == 2
        document = tq("submit", "--json", "--", "true")
        assert (document.code, json.loads(document.out)["code"]) == (5, 5)
        assert tq.jobs() == []
    assert tq.submit("--", "true") == 1


def test_a_worker_outlives_a_gate_that_is_held(tq):
    """Q60: a worker that cannot get the gate says so, loses nothing, and settles when it is free."""
    tq.env |= {"TRAINQ_TIMES_LOCK_WAIT": "0.3s", "TRAINQ_TIMES_HOLDER_LIMIT": "30s", "TRAINQ_TIMES_ZOMBIE_AFTER": "60s"}
    job = tq.submit("slow")
    with tq.worker("--max-jobs", "1") as worker:
        until(lambda: tq("logs", job).out)
        with gate_held(tq):
            (tq.dir / "go").touch()
            until(lambda: worker.said("trouble"))
            assert re.search(r"held by pid \d+", worker.said("trouble")[0]["message"])
        assert worker.end().code == 0
    assert (tq.state(job), tq.job(job)["attempt"]["n"]) == ("done", 1)


@pytest.mark.parametrize("paused", [False, True])
def test_a_worker_that_is_to_stop_does_not_wait_for_ever_for_the_queue(tq, paused):
    """E17, Q92: its job is frozen and cannot act on a TERM; once others may have it, it is killed where it stands, and the
    worker ends. Who comes next gives the job back, and runs it."""
    tq.env["TRAINQ_TIMES_LOCK_WAIT"] = "0.3s"
    job = tq.submit("slow")
    with tq.worker() as worker:
        until(lambda: tq("logs", job).out)
        pid = until(lambda: tq.job(job)["attempt"]["pid"])
        if paused:
            tq.ok("pause", job)
        with gate_held(tq):
            until(lambda: worker.said("trouble"))
            time.sleep(2.5)  # one that stands still for people shows nothing when its lease has passed
            until(lambda: status_of(pid) == "T")
            worker.signal(signal.SIGTERM)
            ended = worker.end()
        assert ended.code == 1
        assert [event["at_once"] for event in worker.said("stopping")] == [False, True]
        assert not alive(pid)
    (tq.dir / "go").touch()
    tq.work()
    assert (tq.state(job), tq.job(job)["attempt"]["n"]) == ("done", 2)
