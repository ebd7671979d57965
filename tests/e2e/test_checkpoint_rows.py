"""Checkpoints through the real command: what is saved under the claim is what the next attempt goes on from."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from e2e.kit import until

# Counts to 100 with a checkpoint every 10 steps; `at` is what happens after each step.
COUNTS = """
import json, os, signal, sys, time
from trainq import job
attempt = job.attempt
found = job.checkpoint.latest()
start = 0 if found is None else int(open(os.path.join(found, 'data')).read())
assert start == job.checkpoint.manifest().get('step', 0)
print('from', start, flush=True)
save = job.checkpoint.every(steps=10, keep={keep})
step = start
while step < 100:
    step += 1
    if save.due(step, last=step == 100):
        job.checkpoint.save(str(step).encode(), step=step)
    {at}
print('to', step, flush=True)
"""
DIES_AT_57 = "if step == 57 and attempt == 1: os.kill(os.getpid(), 9)"


def count(tq, at, *words, keep=3):
    """Put a counting job in; its id. The last of several equal options counts."""
    tq.script("count.py", COUNTS.format(at=at, keep=keep))
    return tq.submit("--retries", "5", "--backoff", "0.1s", *words, "--", sys.executable, "count.py")


def place(tq, job):
    return Path(tq.root, "runs", str(job), "checkpoints")


def saved(tq, job):
    """Number and step of the checkpoints that stand there."""
    found = [path for path in place(tq, job).iterdir() if path.name.isdecimal()]
    return sorted((int(path.name), json.loads((path / "manifest.json").read_text())["step"]) for path in found)


def one_attempt(tq):
    tq.ok("worker", "--once")


def started_from(tq, job, attempt):
    """What the attempt said that it began at, and trainq's own lines in its log."""
    log = tq.ok("logs", job, "--attempt", attempt).out
    (start,) = [int(line.split()[1]) for line in log.splitlines() if line.startswith("from ")]
    return start, log


# Q84 -------------------------------------------------------------------------------------------------------------


def test_the_next_attempt_starts_at_the_last_checkpoint(tq):
    """Q84: counts to 100 with a checkpoint every 10, killed at 57: the second attempt starts at 50, which status shows;
    the first had nothing to resume from."""
    job = count(tq, DIES_AT_57)
    tq.work()
    card = tq.job(job)
    assert (card["state"], card["attempt"]["n"], card["resumed_from"]) == ("done", 2, 5)
    assert started_from(tq, job, 1)[0] == 0
    assert started_from(tq, job, 2)[0] == 50
    assert [one.get("resumed_from") for one in card["attempts"]] in ([None, 5], [None, None])


def test_a_damaged_newest_falls_back(tq):
    """Q84: the newest truncated: the second attempt starts at 40, and its log says which was passed over and why; what
    is wrong is also seen when a single byte has changed, when its manifest is cut, and when it is gone altogether."""
    harms = (
        lambda path: os.truncate(path / "data", 1),
        lambda path: (path / "data").write_bytes(b"60"),
        lambda path: os.truncate(path / "manifest.json", 10),
        shutil.rmtree,
    )
    jobs = [count(tq, DIES_AT_57, "--retries", "0") for _ in harms]
    tq.work()
    for job, harm in zip(jobs, harms, strict=True):
        assert saved(tq, job)[-1] == (5, 50)
        harm(place(tq, job) / "5")
    tq.ok("retry", *jobs)
    tq.work()
    for job in jobs:
        seen, log = started_from(tq, job, 2)
        assert seen == 40
        assert "checkpoint 5 is passed over: " in log
        card = tq.job(job)
        assert (card["state"], card["resumed_from"]) == ("done", 4)


def test_what_is_saved_into_an_emptied_directory_counts(tq):
    """Q84: somebody has emptied the directory, so numbers begin anew: what the second attempt saves, the third goes on
    from."""
    job = count(tq, "if step == 57 // attempt and attempt < 3: os.kill(os.getpid(), 9)", "--retries", "0")
    tq.work()
    shutil.rmtree(place(tq, job))
    for starts in (0, 20):
        tq.ok("retry", job)
        tq.work()
        attempt = tq.job(job)["attempt"]["n"]
        assert started_from(tq, job, attempt)[0] == starts
    assert (attempt, tq.state(job)) == (3, "done")


def test_never_saved_starts_anew(tq):
    """Q84: no checkpoint was ever saved: the second attempt starts at 0, and says nothing of any."""
    job = count(tq, "if step == 7 and attempt == 1: os.kill(os.getpid(), 9)")
    tq.work()
    card = tq.job(job)
    assert (card["state"], card["attempt"]["n"], card["resumed_from"]) == ("done", 2, None)
    seen, log = started_from(tq, job, 2)
    assert seen == 0
    assert "passed over" not in log


def test_all_damaged_is_errored_and_never_a_silent_start_from_nothing(tq):
    """Q84: all corrupt: errored checkpoint on the user's side, each named; the script is not started again."""
    job = count(tq, DIES_AT_57)
    one_attempt(tq)
    for number, _ in saved(tq, job):
        os.truncate(place(tq, job) / str(number) / "data", 0)
    tq.work()
    card = tq.job(job)
    assert (card["state"], card["reason"], card["side"]) == ("errored", "checkpoint", "user")
    for number in (3, 4, 5):
        assert f"{number}: data has 0 bytes" in card["result"]["error"]
    assert "from" not in tq.ok("logs", job, "--attempt", 2).out.split()


def test_two_crashed_restores_fall_back_further(tq):
    """Q84: two attempts that went on from one checkpoint crash before they made a newer one: the next takes the one
    before, and says so."""
    at = "if step == 57 and attempt == 1 or (attempt in (2, 3) and step == 51): os.kill(os.getpid(), 9)"
    job = count(tq, at, "--backoff", "0s")
    tq.work()
    assert [started_from(tq, job, n)[0] for n in (1, 2, 3, 4)] == [0, 50, 50, 40]
    assert "2 attempts that went on from it failed" in started_from(tq, job, 4)[1]


def test_a_checkpoint_of_a_lost_claim_is_not_gone_on_from(tq):
    """Q84: what stands in the directory without having been committed, as the save of a worker that lost its claim
    does, is not resumed from, and goes."""
    job = count(tq, DIES_AT_57)
    one_attempt(tq)
    shutil.copytree(place(tq, job) / "5", place(tq, job) / "6")
    manifest = json.loads((place(tq, job) / "6" / "manifest.json").read_text())
    (place(tq, job) / "6" / "manifest.json").write_text(json.dumps({**manifest, "number": 6, "step": 60}))
    tq.work()
    assert started_from(tq, job, 2)[0] == 50
    assert tq.job(job)["resumed_from"] == 5


def test_who_keeps_its_own_files_there_is_told_to_resume(tq):
    """Q84: a program that knows nothing of trainq's checkpoints finds TRAINQ_RESUME=1 from its second attempt on when it
    has left something, else 0."""
    tells = 'echo "resume $TRAINQ_RESUME $TRAINQ_RESUME_REASON"; '
    writes = tq.submit(
        "--retries",
        "1",
        "--backoff",
        "0.1s",
        "--shell",
        tells + "touch $TRAINQ_CHECKPOINT_DIR/own; test $TRAINQ_ATTEMPT = 2",
    )
    nothing = tq.submit("--retries", "1", "--backoff", "0.1s", "--shell", tells + "test $TRAINQ_ATTEMPT = 2")
    tq.work()
    for job, seen in ((writes, "1"), (nothing, "0")):
        assert tq.ok("logs", job, "--attempt", 1).out == "resume 0 \n"
        assert tq.ok("logs", job, "--attempt", 2).out == f"resume {seen} exit\n"


# Q83 -------------------------------------------------------------------------------------------------------------

# Saves without a pause, each time with larger content, and is killed at some moment after its first save of the attempt.
SAVES = """
import os, subprocess, random, sys, time
from trainq import job
found = job.checkpoint.latest()
step = 0
if found is not None:
    data = open(os.path.join(found, 'data'), 'rb').read()
    step = int(data[:9])
    assert data == b'%09d' % step * 20000, 'not what was saved'
known = [int(line) for line in open('ledger-' + os.environ['TRAINQ_JOB_ID'])] if found else [0]
assert step >= known[-1], (step, known[-1])
if job.attempt > 25: sys.exit(0)
ledger = open('ledger-' + os.environ['TRAINQ_JOB_ID'], 'a')
killer = None
while True:
    step += 1
    assert job.checkpoint.save(b'%09d' % step * 20000, step=step, keep=2)
    os.write(ledger.fileno(), b'%d\\n' % step)
    if killer is None:
        killer = subprocess.Popen(['sh', '-c', 'sleep %f; kill -9 %d' % (random.random() * 0.05, os.getpid())])
"""


def test_killed_at_a_hundred_moments_while_it_saves(tq):
    """Q83: kill -9 at 100 random moments during saves: the latest checkpoint always loads, its digest matches, and it is
    never older than the last save that was answered; nothing else is left there but what counts."""
    tq.script("saves.py", SAVES)
    words = ("--retries", "100", "--backoff", "0s", "--max-attempts", "100")
    jobs = [tq.submit(*words, "--", sys.executable, "saves.py") for _ in range(4)]
    tq.work("--slots", "4", timeout=110)
    for job in jobs:
        card = tq.job(job)
        assert (card["state"], card["attempt"]["n"]) == ("done", 26), tq("logs", job).out
        assert all(one["result"]["signal"] == 9 for one in card["attempts"][:-1])
        notes = "".join(tq.ok("logs", job, "--attempt", n).out for n in range(1, 27))
        assert "passed over" not in notes
        assert 1 <= len(saved(tq, job)) <= 3


# Q92 -------------------------------------------------------------------------------------------------------------

SAVES_ON_TERM = "while step == 57 and attempt == 1 and not job.should_stop(): time.sleep(0.01)\n    if job.should_stop():\n        {end}"


@pytest.mark.parametrize(
    ("end", "reason"),
    [
        ("job.checkpoint.save(b'57', step=57); sys.exit(75)", "requeued"),
        ("job.checkpoint.save(b'57', step=57); sys.exit(1)", "drained"),
        ("job.checkpoint.save(b'57', step=57); sys.exit(0)", "drained"),
    ],
)
def test_term_at_step_57(tq, end, reason):
    """Q92: SIGTERM to a worker at step 57: the job saves within the grace and is pending, at no cost, whatever it leaves
    with; the next attempt starts at 57."""
    job = count(tq, SAVES_ON_TERM.format(end=end), "--grace", "20s", "--max-attempts", "1")
    with tq.worker() as worker:
        until(lambda: "from 0" in tq("logs", job).out and saved(tq, job)[-1:] == [(5, 50)])
        worker.signal(signal.SIGTERM)
        assert worker.end().code == 0
    card = tq.job(job)
    assert (card["state"], card["reason"], card["retry"]["used"], card["attempt"]["n"]) == ("pending", reason, 0, 1)
    tq.work()
    card = tq.job(job)
    assert (card["state"], card["attempt"]["n"], card["resumed_from"]) == ("done", 2, 6)
    assert started_from(tq, job, 2)[0] == 57


def test_a_second_term_kills_at_once_and_requeues(tq):
    """Q92: the second TERM does not wait for the save: the job is killed, pending, and starts at the checkpoint before."""
    at = "while step == 57 and attempt == 1:\n        open('there', 'w').close()\n        if job.should_stop(): open('heard', 'w').close()\n        time.sleep(0.01)"
    job = count(tq, at, "--grace", "10m")
    with tq.worker() as worker:
        until(lambda: (tq.dir / "there").exists() and saved(tq, job)[-1:] == [(5, 50)])
        worker.signal(signal.SIGTERM)
        until((tq.dir / "heard").exists)
        worker.signal(signal.SIGTERM)
        assert worker.end().code == 1  # it had to kill
    card = tq.job(job)
    assert (card["state"], card["reason"], card["retry"]["used"]) == ("pending", "drained", 0)
    tq.work()
    assert started_from(tq, job, 2)[0] == 50


# Q94 -------------------------------------------------------------------------------------------------------------


def test_the_last_few_are_kept(tq):
    """Q94: every 10 steps, keep 3, 100 steps: those of 80, 90 and 100 remain; with keep 0 all do."""
    job = count(tq, "pass")
    tq.work()
    assert [step for _, step in saved(tq, job)] == [80, 90, 100]
    everything = count(tq, "pass", keep=0)
    tq.work()
    assert [step for _, step in saved(tq, everything)] == list(range(10, 101, 10))


def test_triggers_of_epochs_minutes_the_end_and_stop(tq):
    """Q94: every n epochs, every so many minutes, at the end, and on a signal: each is due when it should be."""
    tq.script(
        "triggers.py",
        "import time\nfrom trainq import job\n"
        "epochs = job.checkpoint.every(epochs=2, on_stop=False)\n"
        "print('epochs', [n for n in range(1, 6) if epochs.due(epoch=n, last=n == 5)], flush=True)\n"
        "minutes = job.checkpoint.every(minutes=0.005, on_stop=False)\n"
        "first = minutes.due(); time.sleep(0.31); print('minutes', first, minutes.due(), minutes.due(), flush=True)\n"
        "stop = job.checkpoint.every()\nprint('up', stop.due(), flush=True)\n"
        "while not stop.due(): time.sleep(0.01)\nprint('stop', stop.due(), flush=True)\n",
    )
    job = tq.submit("--grace", "20s", "--", sys.executable, "triggers.py")
    with tq.worker():
        until(lambda: "up" in tq("logs", job).out)
        tq.ok("cancel", "--wait", "--timeout", "15s", job)
    assert tq.ok("logs", job).out.splitlines() == [
        "epochs [2, 4, 5]", "minutes False True False", "up False", "stop False",
    ]  # fmt: skip


def small_disk(path):
    """The words of a program that starts another one with 2 MiB of room in this directory, or None."""
    words = (
        "unshare",
        "--user",
        "--map-root-user",
        "--mount",
        "sh",
        "-c",
        'mount -t tmpfs -o size=2m tmpfs "$0"; exec "$@"',
    )
    probe = subprocess.run([*words[:-1], 'mount -t tmpfs tmpfs "$0"', path], capture_output=True, check=False)
    return (*words, str(path)) if probe.returncode == 0 else None


def test_a_full_disk_does_not_end_the_training(tq):
    """Q94: with a full disk for checkpoints the save fails, is counted in status and said in the log, the job goes on,
    and the checkpoints before and after it are whole."""
    tq.script(
        "fills.py",
        "import os\nfrom trainq import job\n"
        "assert job.checkpoint.save(b'a' * 100, step=1)\n"
        "assert job.checkpoint.save(b'b' * (3 << 20), step=2) is None\n"
        "assert job.checkpoint.save(b'c' * 100, step=3)\n"
        "assert job.checkpoint.manifest()['step'] == 3\n"
        "print(sorted(n for n in os.listdir(job.checkpoint_dir) if n.isdecimal()))\n",
    )
    job = tq.submit("--", sys.executable, "fills.py")
    where = place(tq, job)
    where.mkdir(parents=True)
    before = small_disk(where)
    if before is None:
        pytest.skip("a file system cannot be mounted here")
    with tq.worker("--until", "empty", before=before) as worker:
        assert worker.end().code == 0
    card, log = tq.job(job), tq.ok("logs", job).out
    assert (card["state"], card["save_failed"]) == ("done", 1), log
    assert "No space left on device" in log
    assert log.rstrip().endswith("['1', '2']")


def test_checkpoints_stay_while_the_job_may_be_retried(tq):
    """Q94: prune takes no checkpoint of a job that waits or runs; with the job's runs they go."""
    job = count(tq, "if step == 57 and attempt == 1: sys.exit(3)", "--retry-on", "oom")
    tq.work()
    assert tq.state(job) == "errored"
    tq.ok("prune")
    assert [step for _, step in saved(tq, job)] == [30, 40, 50]
    tq.ok("retry", job)
    tq.ok("prune", env={"TRAINQ_KEEP_FILE_GRACE": "0s"})
    tq.work()
    assert started_from(tq, job, 2)[0] == 50
    tq.ok("prune", job)
    assert not place(tq, job).exists()


def test_what_a_canceled_job_saves_counts_for_its_retry(tq):
    """Q94: asked to stop by a cancel a job may save still; it ends canceled, and a retry goes on from there."""
    tq.script(
        "long.py",
        """
        import os, sys, time
        from trainq import job
        step = job.checkpoint.manifest().get("step", 0)
        print("from", step, flush=True)
        if step: sys.exit(0)
        while not job.should_stop():
            step += 1
            time.sleep(0.01)
        print(job.checkpoint.save(b"x", step=step) is not None, flush=True)
        """,
    )
    job = tq.submit("--", sys.executable, "long.py")
    with tq.worker():
        until(lambda: "from 0" in tq("logs", job).out)
        tq.ok("cancel", "--wait", job)
        assert tq.state(job) == "canceled"
        assert tq.ok("logs", job).out.split()[-1] == "True"
        tq.ok("retry", job)
        until(lambda: tq.state(job) == "done")
    ((_, step),) = saved(tq, job)
    assert step > 0
    assert f"from {step}" in tq.ok("logs", job).out
