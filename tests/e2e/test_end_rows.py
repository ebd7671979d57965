"""How a job ends, and that nothing of it lives on: cancel, time limits, dead workers, and jobs that ask to be requeued."""

from __future__ import annotations

import concurrent.futures
import os
import signal
import sys
from datetime import datetime

import pytest
from e2e.kit import alive, children, status_of, until

# Everything that training scripts and worse leave running; then whatever is put in for `main`.
ZOO = """
import os, signal, subprocess, sys, time
sleep = ['sleep', '300']
subprocess.Popen(sleep)
subprocess.Popen(sleep, start_new_session=True)
subprocess.Popen(['sh', '-c', "trap '' TERM HUP INT; while :; do sleep 1; done"])
subprocess.run(['sh', '-c', 'setsid sleep 300 &'])
subprocess.run(['sh', '-c', "env -i setsid sh -c 'sleep 300 & sleep 300 &' &"])
subprocess.Popen([sys.executable, '-c', 'import os, time; os.close(0); os.close(1); os.close(2); time.sleep(300)'])
for _ in range(50): subprocess.Popen(sleep)
for _ in range(2):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0: time.sleep(300)
        os._exit(0)
    os.wait()
stopped = subprocess.Popen(sleep)
os.kill(stopped.pid, signal.SIGSTOP)
open('zoo', 'w').close()
{main}
"""
ANIMALS = 1 + 1 + 1 + 1 + 2 + 1 + 50 + 2 + 1
MAINS = {
    "waits": "time.sleep(300)",
    "is deaf": "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nwhile True: time.sleep(1)",
    "stops itself": "os.kill(os.getpid(), signal.SIGSTOP)",
    "closes its outputs": "os.close(0); os.close(1); os.close(2); time.sleep(300)",
    "forks and goes on": "while True:\n    if os.fork() == 0: time.sleep(0.01); os._exit(0)\n    time.sleep(0.005)",
}


def family(pid):
    """All below a process, however deep."""
    found = []
    for child in children(pid):
        try:
            found += [child, *family(child)]
        except FileNotFoundError:
            continue  # it has just gone
    return found


def zoo(tq, worker, main, *words):
    """Start the zoo as a job and wait until it is complete; its id, and the processes that live in it."""
    tq.script("zoo.py", ZOO.format(main=main))
    job = tq.submit(*words, "--", sys.executable, "zoo.py")
    until((tq.dir / "zoo").exists)

    def complete():
        found = [pid for keeper in children(worker.pid) for pid in family(keeper)]
        return found if len(found) > ANIMALS else None

    return job, until(complete)


# Q26, Q28 --------------------------------------------------------------------------------------------------------


def test_a_signal_is_named_and_what_kills_for_memory_hinted_at(tq):
    """Q26: os.kill(getpid(), 9): the error has signal 9, exit 137 and a hint on memory; another signal has no hint; a
    process that a kernel would have killed is `signal`, side user, with the pid it had."""
    killed = tq.submit(
        "--", sys.executable, "-c", "import os; print('last words', flush=True); os.kill(os.getpid(), 9)"
    )
    other = tq.submit("--", sys.executable, "-c", "import os; os.kill(os.getpid(), 11)")
    tq.work()
    card = tq.job(killed)
    assert (card["state"], card["reason"], card["side"]) == ("errored", "signal", "user")
    assert (card["result"]["signal"], card["result"]["exit_code"]) == (9, None)
    first, *rest = card["result"]["error"].splitlines()
    assert "signal 9 (SIGKILL), exit 137" in first
    assert "memory" in first
    assert rest == ["last words"]
    assert card["attempt"]["pid"] > 1
    error = tq.job(other)["result"]["error"]
    assert "signal 11 (SIGSEGV), exit 139" in error
    assert "memory" not in error


def test_a_time_limit(tq):
    """Q28: errored timeout at the limit, a TERM first, KILL after the grace; the child is gone; retried only if asked."""
    deaf = "trap 'echo heard' TERM; sleep 300 & echo up; while :; do sleep 0.02; done"
    job = tq.submit("--time", "1s", "--shell", deaf)
    again = tq.submit(
        "--time", "0.3s", "--retries", "1", "--retry-on", "timeout", "--backoff", "0.1s", "--", "sleep", "60"
    )
    tq.work("--slots", "2")
    card = tq.job(job)
    assert (card["state"], card["reason"], card["side"]) == ("errored", "timeout", "user")
    assert "time limit of 1 s" in card["result"]["error"]
    assert card["times"]["run_s"] >= 1
    assert tq.ok("logs", job).out.count("heard") == 1
    assert not alive(card["attempt"]["pid"])
    assert tq.job(again)["attempt"]["n"] == 2


def test_warn_brings_the_term_forward_and_the_kill_to_the_limit(tq):
    """Q28: with --warn the TERM comes so much before the limit, KILL at the limit, and the grace is not used; who leaves
    in between is on time and done only if it says so (75 is requeued)."""
    tq.script(
        "deaf.py",
        "import signal, time\nbegan = time.time()\n"
        "signal.signal(signal.SIGTERM, lambda *_: print(time.time() - began, flush=True))\n"
        "while True: time.sleep(0.01)\n",
    )
    deaf = tq.submit("--time", "3s", "--warn", "2s", "--grace", "10m", "--", sys.executable, "deaf.py")
    leaves = tq.submit(
        "--time",
        "10m",
        "--warn",
        "599s",
        "--shell",
        "trap 'exit 75' TERM; while [ $TRAINQ_ATTEMPT = 1 ]; do sleep 0.02; done",
    )
    tq.work("--slots", "2")
    card = tq.job(deaf)
    assert (card["reason"], card["result"]["signal"]) == ("timeout", signal.SIGKILL)
    assert 0.5 < float(tq.ok("logs", deaf).out) < 3
    assert card["times"]["run_s"] >= 2.9
    card = tq.job(leaves)
    assert (card["state"], card["attempt"]["n"], card["retry"]["used"]) == ("done", 2, 0)
    assert tq("submit", "--time", "5s", "--warn", "5s", "--", "true").code == 2


# Q31 -------------------------------------------------------------------------------------------------------------


def test_cancel_running_with_a_grandchild(tq):
    """Q31: `cancel --wait --timeout 5s` exits 0 for a job with a grandchild that ignores TERM: canceled, no error, and no
    process of its group is left."""
    line = "sh -c 'trap \"\" TERM; echo $$ > grandchild; while :; do sleep 1; done' & wait"
    job = tq.submit("--shell", line)
    with tq.worker():
        grandchild = int(until(lambda: (tq.dir / "grandchild").exists() and (tq.dir / "grandchild").read_text()))
        group = os.getpgid(grandchild)
        tq.ok("cancel", "--wait", "--timeout", "5s", job)
        card = tq.job(job)
        assert (card["state"], card["reason"], card["result"]["error"]) == ("canceled", "user", None)
        with pytest.raises(ProcessLookupError):
            os.killpg(group, 0)


def test_cancel_and_submit_fifty_times(tq):
    """Q31: fifty times cancel and submit again, five at once: none ends stuck, each is canceled once."""

    def cycles(_):
        jobs = []
        for n in range(10):
            jobs.append(tq.submit("--shell", "sleep 60 & wait"))
            if n % 2:
                tq.ok("wait", "--for", "running", jobs[-1])
            tq.ok("cancel", "--wait", "--timeout", "30s", jobs[-1])
        return jobs

    with tq.worker("--slots", "5") as worker, concurrent.futures.ThreadPoolExecutor(5) as pool:
        jobs = [job for found in pool.map(cycles, range(5)) for job in found]
        assert [pid for keeper in children(worker.pid) for pid in children(keeper)] == []
        assert tq.ok("workers", "--json").json["items"][0]["jobs"] == []
    assert sorted(jobs) == list(range(1, 51))
    assert {job["state"] for job in tq.jobs()} == {"canceled"}
    rows = tq.ok("history", "1-50", "--json").json["items"]
    assert sum(row["state"] == "canceled" for row in rows) == 50


# E11 -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("main", MAINS)
def test_cancel_ends_every_process(tq, main):
    """E11: daemons, sessions of their own, cleared environments, fifty children, a stopped one, one that ignores TERM:
    when the job is canceled none is left, whatever its main process does; and the worker runs the next job."""
    with tq.worker("--slots", "1") as worker:
        job, animals = zoo(tq, worker, MAINS[main])
        if main == "stops itself":
            pid = tq.job(job)["attempt"]["pid"]
            until(lambda: status_of(pid) == "T")
        tq.ok("cancel", "--wait", "--timeout", "30s", job)
        assert [pid for pid in animals if alive(pid)] == []
        assert [family(keeper) for keeper in children(worker.pid)] == [[]]
        following = tq.submit("--", "true")
        tq.ok("wait", following)
    assert tq.state(job) == "canceled"


def test_a_time_limit_ends_every_process(tq):
    """E11: the same at a time limit."""
    with tq.worker() as worker:
        job, animals = zoo(tq, worker, MAINS["waits"], "--time", "3s")
        assert tq("wait", job).code == 1
        assert [pid for pid in animals if alive(pid)] == []
    assert tq.job(job)["reason"] == "timeout"


@pytest.mark.parametrize(
    ("main", "state", "reason"),
    [
        ("sys.exit(0)", "done", None),
        ("os.kill(os.getpid(), 9)", "errored", "signal"),
        ("os.killpg(0, 9)", "errored", "signal"),
        ("signal.signal(15, lambda *_: os._exit(3)); os.killpg(0, 15); time.sleep(60)", "errored", "exit"),
    ],
)
def test_what_the_main_process_leaves_is_ended(tq, main, state, reason):
    """E11: what the main process leaves running when it ends, is killed, or kills its own group, is ended before the
    result is written, also where it holds the log open or ignores TERM; it delays the result and changes nothing."""
    with tq.worker() as worker:
        # Looked at in the middle: from the end of main to the KILL of the deaf one there are two seconds.
        job, animals = zoo(tq, worker, f"while not os.path.exists('go'): time.sleep(0.01)\n{main}")
        (tq.dir / "go").touch()
        tq("wait", job)
        assert [pid for pid in animals if alive(pid)] == []
    card = tq.job(job)
    assert (card["state"], card["reason"]) == (state, reason)


def test_a_dead_worker_leaves_no_process(tq):
    """E11: kill -9 of the worker: within two seconds no process of its job lives, wherever it had gone."""
    with tq.worker() as worker:
        _, animals = zoo(tq, worker, MAINS["is deaf"])
        keepers = children(worker.pid)
        worker.signal(signal.SIGKILL)
        worker.process.wait()
        until(lambda: not any(map(alive, animals + keepers)), 10)


def test_a_dead_keeper_leaves_no_process(tq):
    """E11: kill -9 of the keeper: its worker ends all of the job, gives the job back at the cost of an attempt, and goes
    on with a new keeper."""
    with tq.worker("--slots", "1") as worker:
        job, animals = zoo(tq, worker, "if os.environ['TRAINQ_ATTEMPT'] == '1': time.sleep(300)")
        (keeper,) = children(worker.pid)
        os.kill(keeper, signal.SIGKILL)
        until(lambda: not any(map(alive, animals)), 10)
        until(lambda: tq.state(job) == "done")
    assert [one["reason"] for one in tq.job(job)["attempts"]] == ["zombie", None]


def test_worker_and_keeper_killed_at_once(tq):
    """E11: kill -9 of worker and keepers in one instant: the next who comes ends what carries the job's mark before it
    gives the job back; only what also cleared its environment is out of reach (and said to be so)."""
    with tq.worker() as worker:
        job, animals = zoo(tq, worker, MAINS["waits"])
        marked = [pid for pid in animals if b"TRAINQ_JOB_UID" in environment(pid)]
        bare = [pid for pid in animals if alive(pid) and pid not in marked]
        for pid in (worker.pid, *children(worker.pid)):
            os.kill(pid, signal.SIGKILL)
        worker.process.wait()
    assert len(marked) > 50
    assert len(bare) == 2
    try:
        tq.ok("prune")
        assert [pid for pid in marked if alive(pid)] == []
        assert tq.job(job)["reason"] == "zombie"
    finally:
        for pid in bare:
            os.kill(pid, signal.SIGKILL)


def environment(pid):
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return file.read()
    except OSError:
        return b""


def test_the_mark_of_another_job_is_left_alone(tq):
    """E11: taking back one job ends nothing of another that runs, nor what only has a like environment."""
    first, second = tq.submit("--", "sleep", "61"), tq.submit("--", "sleep", "62")
    with tq.worker("--slots", "1") as one:
        until(lambda: tq.job(first)["attempt"]["pid"])
        with tq.worker("--slots", "1"):
            pid = until(lambda: tq.job(second)["attempt"]["pid"])
            for killed in (one.pid, *children(one.pid)):
                os.kill(killed, signal.SIGKILL)
            one.process.wait()
            tq.ok("cancel", first)
            assert tq.state(first) == "canceled"
            assert alive(pid)
            assert tq.state(second) == "running"


# E12 -------------------------------------------------------------------------------------------------------------

PIECES = """
import signal
stop = []
signal.signal(signal.SIGTERM, lambda *_: stop.append(1))
import os, sys, time
path = os.path.join(os.environ['TRAINQ_CHECKPOINT_DIR'], 'step')
step = int(open(path).read()) if os.path.exists(path) else 0
print('from', step, os.environ['TRAINQ_RESUME'], os.environ.get('TRAINQ_RESUME_REASON'), flush=True)
while step < 250:
    step += 1
    time.sleep(0.02)
    if stop:
        with open(path + '.new', 'w') as file: file.write(str(step))
        os.replace(path + '.new', path)
        sys.exit(75)
"""


def test_a_script_runs_to_its_end_in_pieces(tq):
    """E12: a script that saves on TERM and exits 75 runs to its end under a time limit much shorter than itself; no
    attempt costs anything, each begins where the one before ended."""
    tq.script("pieces.py", PIECES)
    job = tq.submit("--time", "2s", "--grace", "30s", "--max-attempts", "1", "--", sys.executable, "pieces.py")
    tq.work()
    card = tq.job(job)
    assert card["state"] == "done", card
    assert card["retry"]["used"] == 0
    *pieces, last = card["attempts"]
    assert len(pieces) >= 2
    assert {(piece["state"], piece["reason"], piece["result"]["exit_code"]) for piece in pieces} == {
        ("pending", "requeued", 75)
    }
    assert last["result"]["exit_code"] == 0
    starts = [tq.ok("logs", job, "--attempt", n + 1).out.split() for n in range(len(pieces) + 1)]
    assert starts[0] == ["from", "0", "0", "None"]
    assert all(start[2:] == ["1", "requeued"] for start in starts[1:])
    reached = [int(start[1]) for start in starts]
    assert reached == sorted(set(reached))


def test_ten_requeues_that_get_nowhere_are_a_loop(tq):
    """E12: ten attempts in a row that ask at once to be requeued, without a new checkpoint: errored requeue_loop."""
    job = tq.submit("--", "sh", "-c", "exit 75")
    tq.work()
    card = tq.job(job)
    assert (card["state"], card["reason"], card["side"], card["attempt"]["n"]) == (
        "errored",
        "requeue_loop",
        "user",
        10,
    )
    tq.ok("retry", job)
    tq.work()
    assert tq.job(job)["attempt"]["n"] == 20


def test_requeues_with_a_new_checkpoint_are_none(tq):
    """E12: a job that saves in each attempt may ask as often as it likes."""
    tq.script(
        "saves.py",
        "import os, sys\nfrom trainq import job\nstep = job.checkpoint.manifest().get('step', 0) + 1\n"
        "if step > 12: sys.exit(0)\njob.checkpoint.save(b'', step=step)\nsys.exit(75)\n",
    )
    job = tq.submit("--", sys.executable, "saves.py")
    tq.work()
    card = tq.job(job)
    assert (card["state"], card["attempt"]["n"], card["resumed_from"]) == ("done", 13, 12)


def test_exit_75_after_a_cancel_is_canceled(tq):
    """E12: a cancel wins over the wish to be requeued; outside of any stop the wish is heard."""
    job = tq.submit("--shell", "trap 'exit 75' TERM; echo up; while :; do sleep 0.02; done")
    with tq.worker():
        until(lambda: tq("logs", job).out)
        tq.ok("cancel", "--wait", "--timeout", "30s", job)
    card = tq.job(job)
    assert (card["state"], card["reason"], card["attempt"]["n"]) == ("canceled", "user", 1)


def test_the_times_of_pieces_are_their_own(tq):
    """E12: a job that is requeued stands behind what waited meanwhile, and each attempt has times of its own."""
    job = tq.submit("--", "sh", "-c", "test $TRAINQ_ATTEMPT = 2 || exit 75")
    tq.submit("--", "true")
    tq.work("--slots", "1")
    card = tq.job(job)
    first, second = card["attempts"]
    times = [datetime.fromisoformat(one[name]) for one in (first, second) for name in ("claimed_at", "started_at")]
    assert times == sorted(times)


def stopped_keepers(worker):
    """Stop its keepers, as a stray SIGSTOP would; their pids."""
    pids = children(worker.pid)
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    return pids


def test_a_keeper_that_was_stopped_is_woken(tq):
    """E13: a job, or a hand that slips, stops the process that keeps it: its time limit and a cancel act all the same."""
    with tq.worker("--slots", "2") as worker:
        limited = tq.submit("--time", "2s", "--", "sleep", "100")
        other = tq.submit("--", "sh", "-c", "kill -STOP $PPID; echo stopped; exec sleep 100")
        until(lambda: tq.state(limited) == tq.state(other) == "running")
        stopped_keepers(worker)
        until(lambda: tq.state(limited) == "errored")
        tq.ok("cancel", "--wait", other)
        assert (tq.job(limited)["reason"], tq.state(other)) == ("timeout", "canceled")


def test_a_stopped_keeper_does_not_outlive_its_worker(tq):
    """DESIGN 6: kill -9 of a worker whose keepers are stopped leaves neither them nor their jobs."""
    with tq.worker() as worker:
        job = tq.submit("--", "sleep", "100")
        until(lambda: tq.job(job)["attempt"]["pid"])
        pid = tq.job(job)["attempt"]["pid"]
        keepers = stopped_keepers(worker)
        worker.process.kill()
        until(lambda: not any(alive(one) for one in [pid, *keepers]))


def test_a_worker_that_had_to_kill_says_so_by_its_exit_status(tq):
    """Exit 1: told to stop, it gave back a job that had to be killed; 0 when the job left in its grace."""
    for line, code in (('trap "" TERM; echo up; while :; do sleep 0.1; done', 1), ("echo up; exec sleep 100", 0)):
        job = tq.submit("--", "sh", "-c", line)
        with tq.worker("--once") as worker:
            until(lambda job=job: tq("logs", job).out == "up\n")
            worker.process.terminate()
            assert worker.process.wait(60) == code
        tq.ok("cancel", job)
