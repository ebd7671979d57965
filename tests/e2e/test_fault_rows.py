"""Faults around the queue: submits that are killed, hosts that start nothing, jobs that fail at once, memory, models
that cannot be stored."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import time

import pytest
from e2e.kit import COMMAND, alive, until

import trainq
from trainq.ops import invariants
from trainq.ops.queue import open_queue

# Q03 -------------------------------------------------------------------------------------------------------------


def test_submit_killed_at_fifty_moments(tq):
    """Q03: kill -9 of submit at 50 random moments, with a worker polling: every job that is there can be trained, each id
    that was printed is there, every other submit can be repeated, and no set is orphaned."""
    data = tq.dir / "large.bin"
    data.write_bytes(os.urandom(300_000))
    began = time.monotonic()
    tq.submit("ok", "--data", "large.bin", "--seed", "999")
    takes = time.monotonic() - began
    printed = []
    with tq.worker("--slots", "2"):
        for n in range(50):
            data.write_bytes(os.urandom(300_000) if n % 2 else b"[%d]" % n)
            words = ("submit", "ok", "--seed", str(n), "--data", "large.bin", "--keep", "1", "--env-keep", "MY_TOKEN")
            with subprocess.Popen(
                [*COMMAND, "--root", tq.root, *words], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                env=tq.environment({"MY_TOKEN": "x"}), cwd=tq.dir, start_new_session=True,
            ) as process:  # fmt: skip
                time.sleep(random.uniform(0.2, 1.1) * takes)
                process.send_signal(signal.SIGKILL)
                printed += process.stdout.read().split()
        until(lambda: {job["state"] for job in tq.jobs()} == {"done"}, 60)
    jobs = tq.jobs()
    assert {int(number) for number in printed} <= {job["id"] for job in jobs}
    again = tq.submit("ok", "--seed", "1000", "--data", "large.bin")
    tq.ok("cancel", again)
    tq.ok("prune", "--older-than", "0s", env={"TRAINQ_KEEP_FILE_GRACE": "0s"})
    assert invariants.find(open_queue(tq.root), deep=True, at_once=True) == []
    left = [names for place in ("data", "specs", "models/.staging") for _, _, *names in os.walk(f"{tq.root}/{place}")]
    assert not any(name for names in left for name in names), left


# Q47 -------------------------------------------------------------------------------------------------------------


def ordinary_user(tq):
    """The words of a program that starts another one without root's powers: as somebody else, whose the queue is then;
    or, where nobody else gets at this interpreter, as root without its capabilities, who may write no more than others."""
    if os.getuid() != 0:
        return ()
    user = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")
    place = os.path.dirname(tq.root)
    while os.stat(place).st_mode & 0o055 != 0o055:
        os.chmod(place, os.stat(place).st_mode | 0o055)
        place = os.path.dirname(place)
    for path in (os.path.realpath(sys.executable), trainq.__file__, os.path.dirname(tq.root)):
        if subprocess.run([*user, "test", "-r", path, "-a", "-x", os.path.dirname(path)], check=False).returncode:
            return ("setpriv", "--bounding-set=-all", "--inh-caps=-all")
    subprocess.run(["chown", "-R", "65534:65534", tq.home, tq.dir, tq.root], check=True)
    tq.env["PYTHONDONTWRITEBYTECODE"] = "1"
    return user


@pytest.mark.skipif(os.getuid() == 0 and not shutil.which("setpriv"), reason="root, and no setpriv")
def test_a_model_that_cannot_be_stored_is_kept(tq):
    """Q47: not as root: the model directory becomes unwritable while a job trains: errored store on the system's side, at
    once and not retried; the staged result is kept, whole, and named in the error, also when the job is retried; the next
    job is done."""
    tq.script(
        "shuts.py",
        "import os, sys\nopen(os.environ['TRAINQ_MODEL_DIR'] + '/weights', 'w').write('precious')\n"
        "if sys.argv[1:]: os.chmod(sys.argv[1], 0o500)\n",
    )
    models = os.path.join(tq.root, "models")
    user = ordinary_user(tq)
    tq.ok("submit", "--model", "m", "--retries", "3", "--", sys.executable, "shuts.py", models, before=user)
    tq.ok("submit", "--", "true", before=user)
    worked = tq.ok("worker", "--until", "empty", "--slots", "1", "--json", before=user)
    os.chmod(models, 0o700)
    card = tq.job(1)
    assert (card["state"], card["reason"], card["side"], card["attempt"]["n"]) == ("errored", "store", "system", 1)
    error = card["result"]["error"]
    assert error.startswith("the model could not be published: ")
    kept = error.rpartition("kept in ")[2]
    with open(os.path.join(kept, "weights"), encoding="utf-8") as file:
        assert file.read() == "precious"
    assert tq.models() == []
    assert [one["state"] for one in worked.json["jobs"]] == ["errored", "done"]
    tq.ok("prune", env={"TRAINQ_KEEP_FILE_GRACE": "0s"})
    assert os.path.exists(os.path.join(kept, "weights"))
    tq.ok("retry", 1)
    tq.ok("prune", env={"TRAINQ_KEEP_FILE_GRACE": "0s"})
    assert os.path.exists(os.path.join(kept, "weights"))


# E13 -------------------------------------------------------------------------------------------------------------


def one_worker(tq):
    (found,) = tq.ok("workers", "--json").json["items"]
    return found


def test_three_jobs_that_cannot_be_started_quarantine_the_worker(tq):
    """E13: three spawn failures in a row from different jobs: the worker claims no more, says so, and stays; `workers`
    and `status` show it; jobs that wait are not eaten; `workers clear` lets it go on."""
    with tq.worker("--name", "sick", "--slots", "1") as worker:
        failing = [tq.submit("--", f"no-such-program-{n}") for n in range(3)]
        until(lambda: worker.said("quarantined"))
        waiting = tq.submit("--", "true")
        seen = until(lambda: one_worker(tq)["state"] == "quarantined" and one_worker(tq))
        assert seen["reason"] == f"jobs {', '.join(map(str, failing))} could not be started here"
        assert "quarantined" in tq.ok("workers").out
        time.sleep(0.5)  # two polls and a beat in which it could have claimed
        assert tq.state(waiting) == "pending"
        assert tq.ok("workers", "clear", "sick").out
        until(lambda: tq.state(waiting) == "done")
        assert one_worker(tq)["state"] != "quarantined"
        assert "not in quarantine" in tq.ok("workers", "clear", "sick").out + tq.ok("workers", "clear", "sick").err
    assert [tq.job(job)["reason"] for job in failing] == ["spawn"] * 3
    assert tq("workers", "clear", "nobody").code == 3


# What a job may do to its own directories before it asks to be requeued, and what its next attempt ends as.
SPOILS = {
    "checkpoints are a link": ('rmdir "$TRAINQ_CHECKPOINT_DIR"; ln -s "$PWD" "$TRAINQ_CHECKPOINT_DIR"', "checkpoint"),
    "checkpoints are a file": ('rmdir "$TRAINQ_CHECKPOINT_DIR"; touch "$TRAINQ_CHECKPOINT_DIR"', "checkpoint"),
    "checkpoints are shut": ('chmod 0 "$TRAINQ_CHECKPOINT_DIR"', "checkpoint"),
    "its directory is a link": ('cd "$TRAINQ_RUN_DIR/.."; mv "$PWD" ../../moved; ln -s ../moved "$PWD"', "spawn"),
    "its directory is shut": ('chmod 0 "$TRAINQ_RUN_DIR/.."', "spawn"),
    "the next one is a file": ('touch "$TRAINQ_RUN_DIR/../2"', "spawn"),
}


@pytest.mark.parametrize(("spoils", "reason"), SPOILS.values(), ids=SPOILS.keys())
def test_a_job_that_spoils_its_own_directories(tq, spoils, reason):
    """E13, DESIGN 2.10: three jobs whose next attempts find a link, a file or a shut directory where theirs should be: each
    ends as errored, what they left elsewhere stays, and the same worker does the next job."""
    if os.getuid() == 0 and not shutil.which("setpriv"):
        pytest.skip("root, and no setpriv")
    user = ordinary_user(tq)
    own = tq.script(".new-own", "of somebody else's")
    for _ in range(3):
        tq.ok("submit", "--shell", f"test $TRAINQ_ATTEMPT = 1 && {{ {spoils}; exit 75; }}", before=user)
    tq.ok("submit", "--", "true", before=user)
    tq.ok("worker", "--until", "empty", "--slots", "1", before=user)
    *spoiled, after = tq.jobs()
    assert [(job["state"], job["reason"], job["attempt"]["n"]) for job in spoiled] == [("errored", reason, 2)] * 3
    assert after["state"] == "done"
    assert own.exists()


@pytest.mark.parametrize(
    "spoils",
    [
        'rm -r "$TRAINQ_ROOT/runs"',
        'rm -r "$TRAINQ_ROOT/runs"; touch "$TRAINQ_ROOT/runs"',
        'rm -r "$TRAINQ_ROOT/models/.staging"; touch "$TRAINQ_ROOT/models/.staging"',
    ],
)
def test_where_no_directory_can_be_made_the_host_is_to_blame(tq, spoils):
    """E13: where all jobs have their directories there is none or something else: the job goes back at no cost, and the
    worker takes no more."""
    tq.submit("--shell", spoils)
    jobs = [tq.submit("--model", "m", "--", "true") for _ in range(2)]
    with tq.worker("--slots", "1") as worker:
        until(lambda: worker.said("quarantined"))
        worker.signal(signal.SIGINT)
        worker.end()
    cards = [tq.job(job) for job in jobs]
    assert [(card["state"], card["reason"], card["attempt"]["n"]) for card in cards] == [
        ("pending", "drained", 1), ("pending", "no_worker", 0),
    ]  # fmt: skip


def test_a_quarantine_that_cannot_be_written_is_kept(tq):
    """E13: the full disk that brings a worker into quarantine takes no word of it either: it claims no more all the same,
    says so in its row as soon as it can, and is cleared by people only."""
    tq.submit("--shell", 'rm -r "$TRAINQ_ROOT/runs"')
    job = tq.submit("--", "true")
    with contextlib.closing(sqlite3.connect(os.path.join(tq.root, "queue.sqlite"))) as store:
        store.execute(
            "CREATE TRIGGER full BEFORE UPDATE OF quarantine ON worker WHEN NEW.quarantine NOT NULL"
            " BEGIN SELECT RAISE(ABORT, 'database or disk is full'); END"
        )
        with tq.worker("--name", "sick", "--slots", "1") as worker:
            until(lambda: worker.said("quarantined") and worker.said("trouble"))
            os.mkdir(os.path.join(tq.root, "runs"))
            for _ in range(5):
                tq.submit("--", "true")  # who is told of work looks at its row
            assert one_worker(tq)["state"] != "quarantined"
            store.execute("DROP TRIGGER full")
            until(lambda: one_worker(tq)["state"] == "quarantined")
            assert tq.job(job)["attempt"]["n"] == 1
            assert not worker.said("quarantine cleared")
            tq.ok("workers", "clear", "sick")
            until(lambda: {each["state"] for each in tq.jobs()} == {"done"})
            assert len(worker.said("quarantined")) == len(worker.said("quarantine cleared")) == 1
            assert worker.said("quarantine cleared")[0]["by"].endswith(f"@{os.uname().nodename.partition('.')[0]}")


def test_the_fourth_that_waits_is_not_eaten(tq):
    """E13: nor is it claimed in the very turn that settles the third."""
    jobs = [tq.submit("--", f"no-such-program-{n}") for n in range(4)]
    tq("worker", "--slots", "1", "--until", "empty")
    assert [tq.state(job) for job in jobs] == ["errored", "errored", "errored", "pending"]


def test_a_quarantine_is_said_with_what_ends_it(tq):
    """E13: in a sentence when it begins, with the command that ends it, and again at the worker's end."""
    jobs = [tq.submit("--", f"no-such-program-{n}") for n in range(4)]
    why = f"jobs {', '.join(map(str, jobs[:3]))} could not be started here"
    worked = tq("worker", "--slots", "1", "--until", "empty", "--name", "the sick")
    assert worked.code == 1  # cron and systemd hear of it
    assert f"quarantined: {why}; nothing more is claimed; hint: trainq workers clear 'the sick'" in worked.err
    assert worked.err.splitlines()[-1].endswith(f"ended: 3 attempts, in quarantine: {why}")
    assert worked.out == f"3 attempts: 3 errored\nended in quarantine: {why}\n"
    for job in jobs[:3]:
        tq.ok("retry", job)
    again = {"TRAINQ_LIMITS_BREAKER": "0"}
    assert tq("worker", "--slots", "1", "--until", "empty", "--json", env=again).json["quarantine"] == why
    assert tq.ok("worker", "--once", "--json", env=again).json["quarantine"] is None


def test_one_job_that_cannot_be_started_does_not(tq):
    """E13: the same job three times, and three with one between them that could be started, are no sign of a sick host."""
    same = tq.submit("--retries", "4", "--retry-on", "spawn", "--backoff", "0s", "--", "no-such-program")
    with tq.worker("--slots", "1", "--until", "empty") as worker:
        worker.end()
        assert not worker.said("quarantined")
    assert tq.job(same)["attempt"]["n"] == 5
    for words in ("no-such", "no-such", "true", "no-such", "no-such", "true"):
        tq.submit("--", words)
    with tq.worker("--slots", "1", "--until", "empty") as worker:
        worker.end()
        assert not worker.said("quarantined")
    assert {job["state"] for job in tq.jobs()} == {"done", "errored"}


def test_a_worker_in_quarantine_finishes_what_it_runs(tq):
    """E13: what it runs goes on to its end and is done; a drained one leaves as any other."""
    running = tq.submit("slow")
    with tq.worker("--slots", "2") as worker:
        until(lambda: tq.state(running) == "running")
        for n in range(3):
            tq.submit("--", f"no-such-program-{n}")
        until(lambda: worker.said("quarantined"))
        assert tq.state(running) == "running"
        (tq.dir / "go").touch()
        until(lambda: tq.state(running) == "done")
        worker.signal(signal.SIGINT)
        assert worker.end().code == 1


def test_quick_failures_in_a_row_pause_the_queue(tq):
    """E13: five quick ends in error pause the queue: what waits stays pending with the reason breaker, another queue is
    served, people see it, and `resume --queue` opens it again at a count of 0."""
    tq.types(queues='names = ["default", "other"]')
    failing = [tq.submit("--", "false") for _ in range(5)]
    waiting = tq.submit("--", "true")
    other = tq.submit("--queue", "other", "--", "true")
    with tq.worker("--slots", "1") as worker:
        until(lambda: worker.said("queue paused"))
        until(lambda: tq.state(other) == "done")
        assert [tq.state(job) for job in failing] == ["errored"] * 5
        card = tq.job(waiting)
        assert (card["state"], card["reason"]) == ("pending", "breaker")
        assert "breaker" in tq.ok("status").out
        paused = tq.ok("resume", "--queue", "default", "--json").json["items"]
        assert [(item["id"], item["result"]) for item in paused] == [("default", "resumed")]
        until(lambda: tq.state(waiting) == "done")
        assert tq.job(waiting)["reason"] is None
        for _ in range(4):
            failing.append(tq.submit("--", "false"))
        assert tq("wait", failing[-1]).code == 1
        assert len(worker.said("queue paused")) == 1
    assert tq.ok("resume", "--queue", "default", "--json").json["items"][0]["result"] == "already"
    assert tq("resume", "--queue", "nope").code == 3
    assert tq("resume").code == 2


@pytest.mark.parametrize("kind", ["model", "data", "checkpoint"])
def test_which_ends_are_quick(tq, kind):
    """E13: the breaker counts what could not be started or ended within 10 s of its start, also one whose model was not
    what it should be; not what never came to a start for want of its data or of a whole checkpoint."""
    (tq.dir / "set").write_bytes(os.urandom(2 << 20))
    words = {
        "model": ("--model", "m", "--shell", 'mkfifo "$TRAINQ_MODEL_DIR/pipe"'),
        "data": ("--data", "set", "--", "true"),
        "checkpoint": ("--shell", 'rmdir "$TRAINQ_CHECKPOINT_DIR"; touch "$TRAINQ_CHECKPOINT_DIR"; exit 75'),
    }[kind]
    for _ in range(5):
        tq.submit(*words)
    if kind == "data":
        for name in os.listdir(os.path.join(tq.root, "data")):
            os.truncate(os.path.join(tq.root, "data", name), 0)
    with tq.worker("--slots", "1", "--until", "idle") as worker:
        worker.end()
        assert bool(worker.said("queue paused")) == (kind == "model")
    assert [(job["state"], job["reason"]) for job in tq.jobs()] == [("errored", kind)] * 5


def test_what_does_not_count_for_the_breaker(tq):
    """E13: ends that were asked for, retries that go on, and anything after a success pause nothing; 0 turns it off."""
    for n in range(8):
        tq.submit("--retries", "1", "--backoff", "0s", "--shell", f"test $TRAINQ_ATTEMPT = 2 || exit {n + 1}")
    tq.work()
    assert {job["state"] for job in tq.jobs()} == {"done"}
    tq.env["TRAINQ_LIMITS_BREAKER"] = "0"
    for _ in range(7):
        tq.submit("--", "false")
    tq.work()
    assert tq.ok("status", "--summary", "--json").json["counts"]["pending"] == 0


# E14 -------------------------------------------------------------------------------------------------------------

CUDA = "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB (GPU 0; 7.93 GiB total capacity)"


@pytest.mark.parametrize(
    ("last", "reason"),
    [
        (CUDA, "oom"),
        ("RuntimeError: CUDA error: out of memory", "oom"),
        ("MemoryError", "oom"),
        ("numpy.core._exceptions._ArrayMemoryError: Unable to allocate 74.5 GiB for an array", "oom"),
        ("terminate called after throwing an instance of 'std::bad_alloc'", "oom"),
        ("ValueError: I am not out of memory, only of ideas", "exit"),
        ("the last MemoryError was long ago", "exit"),
    ],
)
def test_out_of_memory_is_recognised_by_the_log(tq, last, reason):
    """E14: what allocators say last makes the reason oom, side user; a mention does not."""
    tq.script("dies.py", f"import sys\nprint('Traceback (most recent call last):')\nprint({last!r})\nsys.exit(1)\n")
    job = tq.submit("--", sys.executable, "dies.py")
    tq.work()
    card = tq.job(job)
    assert (card["state"], card["reason"], card["side"]) == ("errored", reason, "user")


def test_a_retry_after_oom_may_ask_for_more(tq):
    """E14: --retry-on oom with --retry-grow raises --mem and --vram by the factor at each retry, in status and in what
    the next attempt is given; other causes raise nothing."""
    grows = ("--retries", "2", "--backoff", "0s", "--retry-grow", "1.5", "--mem", "1G", "--vram", "8G")
    line = f"test $TRAINQ_ATTEMPT = 3 || {{ echo '{CUDA}'; exit 1; }}"
    job = tq.submit("--retry-on", "oom", *grows, "--shell", line)
    other = tq.submit(*grows, "--shell", "test $TRAINQ_ATTEMPT = 2")
    before = tq.job(job)["request"]
    tq.ok("worker", "--until", "empty", "--sim-gpus", "2:sim:80G")
    after = tq.job(job)
    assert (after["state"], after["attempt"]["n"], after["retry"]["used"]) == ("done", 3, 2)
    for name in ("mem_mib", "vram_mib"):
        assert after["request"][name] == pytest.approx(before[name] * 2.25, abs=2)
        assert tq.job(other)["request"][name] == before[name]
    assert [one["reason"] for one in after["attempts"]] == ["backoff", "backoff", None]
    assert tq.job(other)["state"] == "done"


def test_memory_that_really_runs_out(tq):
    """E14: a process that meets its own limit of address space is oom, as it is told by Python itself."""
    line = f"ulimit -v 400000; exec {sys.executable} -c 'x = bytearray(1 << 30)'"
    job = tq.submit("--shell", line)
    tq.work()
    card = tq.job(job)
    assert (card["reason"], card["result"]["exit_code"]) == ("oom", 1)
    assert not alive(card["attempt"]["pid"])


def test_the_report_names_what_went_wrong(tq):
    """E13: a worker that ends has counted what it ran; errors are in the report, one document."""
    tq.submit("--", "no-such-program")
    report = json.loads(tq.ok("worker", "--once", "--json").out)
    assert [(job["state"], job["reason"]) for job in report["jobs"]] == [("errored", "spawn")]
