"""Logs and history: what is captured, how it is read, and that following ends by itself; waiting, and waking up."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import time

import pytest
from e2e.kit import COMMAND, FAR, alive, until

# What the command does to submit `true`, without its start-up.
SUBMITS = """
import sys
from trainq.domain.request import Request
from trainq.ops.queue import open_queue
from trainq.ops.submit import submit

def put(count):
    queue = open_queue(sys.argv[1])
    for _ in range(count):
        print(submit(queue, [Request({}, None, None, ("true",))]).changes[0].id)

"""


def raw(tq, *words: str, **how) -> bytes:
    """What `logs` writes into a pipe."""
    done = subprocess.run(
        [*COMMAND, "--root", tq.root, "logs", *words], env=tq.environment(), capture_output=True, check=True, **how
    )
    return done.stdout


def open_files(pid: int) -> list[str]:
    directory = f"/proc/{pid}/fd"
    return [os.readlink(f"{directory}/{fd}") for fd in os.listdir(directory) if os.path.lexists(f"{directory}/{fd}")]


def follower(tq, *words: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [*COMMAND, "--root", tq.root, "logs", *words],
        env=tq.environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def test_a_log_for_each_attempt_and_each_end(tq):
    """Q50: success, failure and cancel leave their logs, one for each attempt; the newest is shown, `--attempt K` any."""
    ok = tq.submit("--", "echo", "fine")
    bad = tq.submit("--shell", "echo out; echo err >&2; exit 3")
    again = tq.submit("--retries", "1", "--backoff", "0s", "--shell", "echo try $TRAINQ_ATTEMPT; exit 1")
    stopped = tq.submit("--shell", 'trap "echo last words; exit 1" TERM; echo begun; while :; do sleep 0.05; done')
    with tq.worker("--slots", "1"):
        until(lambda: tq.state(stopped) == "running" and b"begun" in raw(tq, str(stopped)))
        tq.ok("cancel", stopped, "--wait")
    assert raw(tq, str(ok)) == b"fine\n"
    assert raw(tq, str(bad)) == b"out\nerr\n"
    assert raw(tq, str(again)) == b"try 2\n"
    assert raw(tq, str(again), "--attempt", "1") == b"try 1\n"
    assert raw(tq, str(stopped)).startswith(b"begun\n")
    assert raw(tq, str(stopped)).endswith(b"last words\n")
    assert tq("logs", again, "--attempt", "3").code in (3, 4)
    path = tq.ok("logs", again, "--path").out.strip()
    assert path == os.path.join(tq.root, "runs", str(again), "2", "log")
    assert tq("logs", tq.submit("--", "true")).code == 4


def test_the_log_of_what_was_killed(tq):
    """Q50: kill -9 of the trainer: what it had flushed is there; of the worker: also, and the next attempt has its own."""
    killed = tq.submit("--shell", "echo flushed; kill -9 $$")
    tq.work()
    assert raw(tq, str(killed)) == b"flushed\n"
    lost = tq.submit("--shell", 'echo attempt $TRAINQ_ATTEMPT; test "$TRAINQ_ATTEMPT" = 2 || sleep 60')
    with tq.worker() as worker:
        until(lambda: tq.state(lost) == "running" and raw(tq, str(lost)))
        worker.signal(signal.SIGKILL)
    assert raw(tq, str(lost)) == b"attempt 1\n"
    with tq.worker():
        until(lambda: tq.state(lost) == "done")
    assert raw(tq, str(lost)) == b"attempt 2\n"
    assert raw(tq, str(lost), "--attempt", "1").startswith(b"attempt 1\n")


def test_following_ends_with_the_job(tq):
    """Q50: `-f` shows a log as it grows, from before the job began, and ends by itself when the job ends."""
    number = tq.submit("--shell", "echo one; while [ ! -e go ]; do sleep 0.02; done; printf 'two\\nno end'")
    early = follower(tq, str(number), "-f")
    with tq.worker():
        assert early.stdout is not None
        assert early.stdout.readline() == b"one\n"
        late = follower(tq, str(number), "-f", "-n", "1")
        assert late.stdout is not None
        assert late.stdout.readline() == b"one\n"
        assert early.poll() is None
        (tq.dir / "go").touch()
        out, err = early.communicate(timeout=20)
        assert (out, early.returncode) == (b"two\nno end", 0), err
        assert late.communicate(timeout=20)[0] == b"two\nno end"
    assert raw(tq, "-f", str(number)) == b"one\ntwo\nno end"


def test_following_over_a_retry_and_a_cancel(tq):
    """E10: `-f` ends also when the job is canceled before it ever ran; `submit -f` shows the log and exits as told."""
    waiting = tq.submit("--", "true")
    follow = follower(tq, str(waiting), "-f")
    tq.ok("cancel", waiting)
    out, _ = follow.communicate(timeout=20)
    assert (out, follow.returncode) == (b"", 4)
    with tq.worker():
        shown = tq("submit", "-f", "--exit-code", "job", "--shell", "echo hello; exit 7")
        assert (shown.out, shown.code) == ("hello\n", 7)
        assert tq("submit", "-f", "--", "true").code == 0
        assert tq("submit", "-f", "--", "false").code == 1


def test_the_last_lines_are_those_of_the_whole(tq):
    """Q50: `-n 5` is the end of the whole log, with a last line that has no end, and of a log without lines."""
    number = tq.submit("--shell", "seq 100000; printf tail")
    none = tq.submit("--", "true")
    tq.work()
    assert raw(tq, "-n", "5", str(number)) == b"99997\n99998\n99999\n100000\ntail"
    assert raw(tq, "-n", "0", str(number)) == b""
    assert raw(tq, "--lines", "1000000", str(number)).startswith(b"1\n2\n")
    assert raw(tq, "-n", "5", str(none)) == b""
    assert tq("logs", "-n", "-1", number).code == 2
    assert tq("logs", "-n", "x", number).code == 2


def test_any_bytes(tq):
    """E10: NUL, invalid UTF-8 and control bytes come out of a pipe as they went in; as JSON lines they are valid."""
    (tq.dir / "bytes").write_bytes(bytes(range(256)) * 300 + b"\n\x00\xff\xfe\n")
    number = tq.submit("--", "sh", "-c", "cat bytes; exit 1")
    tq.work()
    assert raw(tq, str(number)) == (tq.dir / "bytes").read_bytes()
    lines = [json.loads(line) for line in raw(tq, "--jsonl", str(number)).splitlines()]
    assert lines
    job = tq.job(number)
    assert job["state"] == "errored"
    assert "\x1b" not in tq.ok("status", number).out
    assert tq.ok("history", number).code == 0


def test_a_large_log_costs_the_worker_no_memory(tq):
    """E10: 300 MiB at full rate go past the worker: its own memory stays as it was."""
    number = tq.submit("--shell", "head -c 300M /dev/zero | tr '\\0' x")

    def peak(pid: int) -> int:
        with open(f"/proc/{pid}/status") as file:
            return int(file.read().partition("VmHWM:")[2].split()[0])

    with tq.worker() as worker:
        until(lambda: tq.state(number) == "done", 60)
        assert peak(worker.pid) < 120 << 10
    log = os.path.join(tq.root, "runs", str(number), "1", "log")
    assert os.path.getsize(log) == 300 << 20
    assert len(raw(tq, "-n", "1", str(number), preexec_fn=None)) <= 300 << 20
    os.truncate(log, 0)


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["/no/such/program"], 127, "no such file"),
        (["./plain"], 126, "permission"),
        (["."], 126, ""),
        (["./foreign"], 126, "format"),
    ],
)
def test_a_start_that_fails_is_in_the_log(tq, words, code, said):
    """E10: a spawn error is written into the job's own log, and names program and reason."""
    (tq.dir / "plain").write_text("#!/bin/sh\n")
    (tq.dir / "foreign").write_bytes(b"\x00\x01\x02")
    (tq.dir / "foreign").chmod(0o755)
    number = tq.submit("--", *words)
    tq.work()
    job = tq.job(number)
    assert (job["state"], job["reason"]) == ("errored", "spawn")
    log = raw(tq, str(number)).decode()
    assert words[0] in log
    assert said in log.lower()
    assert tq("wait", number, "--exit-code", "job").code == code


def test_stderr_in_a_file_of_its_own(tq):
    """E10: `--split-stderr` keeps both apart; without it `logs --stderr` says so; the error shows stderr's end."""
    split = tq.submit("--split-stderr", "--shell", "echo out; echo err >&2; exit 2")
    plain = tq.submit("--shell", "echo out; echo err >&2")
    tq.work()
    assert raw(tq, str(split)) == b"out\n"
    assert raw(tq, "--stderr", str(split)) == b"err\n"
    assert "err" in tq.job(split)["result"]["error"]
    assert raw(tq, str(plain)) == b"out\nerr\n"
    refused = tq("logs", "--stderr", plain)
    assert refused.code != 0
    assert "no stderr of its own" in refused.err


def test_history_is_one_row_a_change(tq):
    """Q51: pending, running, done in the order of time with worker and reason; asking twice adds nothing."""
    number = tq.submit("--", "true")
    tq.work("--name", "w one")
    rows = tq.history(number)
    assert [row["state"] for row in rows] == ["pending", "running", "done"]
    assert [row["at"] for row in rows] == sorted(row["at"] for row in rows)
    assert [row["worker"] for row in rows] == [None, "w one", "w one"]
    for _ in range(2):
        assert tq("cancel", number).code == 4
        assert tq("retry", number).code == 4
        tq.ok("prune")
    assert tq.history(number) == rows
    waiting = tq.submit("--", "true")
    for _ in range(3):
        tq.ok("cancel", waiting, "--message", "not needed")
    last = tq.history(waiting)
    assert [row["state"] for row in last] == ["pending", "canceled"]
    assert (last[-1]["reason"], last[-1]["message"]) == ("user", "not needed")


def test_cancel_of_a_running_job_is_one_event(tq):
    """Q51: five cancels of a running job are one row `canceling` and one `canceled`."""
    number = tq.submit("slow")
    with tq.worker():
        until(lambda: tq.state(number) == "running")
        for _ in range(5):
            tq.ok("cancel", number)
        tq("wait", number)
    states = [(row["state"], row["reason"]) for row in tq.history(number)]
    assert states == [("pending", None), ("running", None), ("running", "canceling"), ("canceled", "user")]


def test_wait_tells_exactly_what_happened(tq):
    """E09: exit 3, kill -9, time limit, missing program, not executable: five different, documented codes; 0 and 1
    without `--exit-code job`."""
    (tq.dir / "plain").write_text("")
    tq.env["TRAINQ_LIMITS_BREAKER"] = "0"  # so many failures in a row would pause the queue
    jobs = {
        3: ("--", "sh", "-c", "exit 3"),
        137: ("--", "sh", "-c", "kill -9 $$"),
        124: ("--time", "0.3s", "--", "sleep", "60"),
        127: ("--", "no-such-program-anywhere"),
        126: ("--", "./plain"),
        0: ("--", "true"),
        255: ("--", "sh", "-c", "exit 255"),
        143: ("--", "sh", "-c", "kill -TERM $$"),
    }
    with tq.worker():
        numbers = {code: tq.submit(*words) for code, words in jobs.items()}
        for code, number in numbers.items():
            assert tq("wait", number, "--exit-code", "job").code == code
            assert tq("wait", number).code == (1 if code else 0)
        assert tq("submit", "--wait", "--exit-code", "job", "--", "sh", "-c", "exit 42").code == 42
        assert tq("submit", "--wait", "--", "sh", "-c", "exit 42").code == 1
        assert tq("submit", "--wait", "--", "true").code == 0
        canceled = tq.submit("slow")
        tq.ok("cancel", canceled, "--wait")
        assert tq("wait", canceled, "--exit-code", "job").code == 125
    assert tq("wait", f"{numbers[3]},{numbers[0]}", "--exit-code", "job").code == 2
    assert tq("wait", f"{numbers[3]},{numbers[0]}").code == 1
    waiting = tq.submit("--", "true")
    late = tq("wait", waiting, "--timeout", "0.2s")
    assert late.code == 5
    assert tq("wait", waiting, "--timeout", "5").code == 2
    assert tq("wait", 99).code == 3
    assert tq("wait", f"{numbers[0]},{waiting}", "--any").code == 0
    with tq.worker():
        assert tq("wait", tq.submit("slow"), "--for", "running", "--timeout", "20s").code == 0


def test_a_wait_in_the_dark_is_interrupted_at_once(tq):
    """E09: INT ends a wait with 130, TERM with 143, and the job goes on."""
    number = tq.submit("--", "true")
    for what, code in ((signal.SIGINT, 130), (signal.SIGTERM, 143)):
        process = subprocess.Popen(
            [*COMMAND, "--root", tq.root, "wait", str(number)], env=tq.environment(), stderr=subprocess.PIPE
        )
        until(lambda pid=process.pid: any("queue.sqlite" in path for path in open_files(pid)))
        process.send_signal(what)
        _, err = process.communicate(timeout=20)
        assert b"Traceback" not in err
        assert abs(process.returncode) in (code, code - 128)
    assert tq.state(number) == "pending"


def test_a_submit_wakes_an_idle_worker(tq):
    """E23: with a poll of a minute a worker starts a job at once: the bell woke it."""
    with tq.worker(
        env={
            "TRAINQ_TIMES_POLL": "60s",
            "TRAINQ_TIMES_HEARTBEAT": "20s",
            "TRAINQ_TIMES_HOLDER_LIMIT": "100s",
            "TRAINQ_TIMES_ZOMBIE_AFTER": "200s",
        }
    ):
        for _ in range(3):
            number = tq.submit("--", "true")
            until(lambda n=number: tq.state(n) == "done", 15)


@pytest.mark.parametrize("harm", ["bell file", "bell directory", "event"])
def test_a_lost_wake_up_costs_a_poll(tq, harm):
    """E23: with the bell deleted and made again, or an event that never came, the job starts within a poll."""
    bell = os.path.join(tq.root, "bell")
    mute = tq.script("mute.py", "from trainq import wake\nwake.ring = lambda _path: None\n" + SUBMITS + "put(1)\n")
    with tq.worker():
        first = tq.submit("--", "true")
        until(lambda: tq.state(first) == "done")
        if harm == "bell file":
            os.unlink(os.path.join(bell, "gen"))
        elif harm == "bell directory":
            shutil.rmtree(bell)
            os.mkdir(bell, 0o700)
        if harm == "event":
            second = int(
                subprocess.run(["python", str(mute), tq.root], env=tq.environment(), capture_output=True).stdout
            )
        else:
            second = tq.submit("--", "true")
        until(lambda: tq.state(second) == "done", 10)


def test_fifty_processes_submit_at_once(tq):
    """Q61: 50 processes submit 20 jobs each against 4 workers: 1000 ids, 1000 rows, nobody hears of a locked database.
    (They call the library's own submit in one process each, which is what 20 commands do, without 20 start-ups.)"""
    script = tq.script("many.py", SUBMITS + "put(20)\n")
    with contextlib.ExitStack() as stack:
        workers = [stack.enter_context(tq.worker("--slots", "1")) for _ in range(4)]
        many = [
            subprocess.Popen(
                ["python", str(script), tq.root], env=tq.environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE
            )
            for _ in range(50)
        ]
        answers = [process.communicate(timeout=110) for process in many]
        assert [err for _, err in answers if err] == []
        ids = sorted(int(word) for out, _ in answers for word in out.split())
        assert ids == list(range(1, 1001))
        until(lambda: tq.ok("status", "--summary", "--json").json["counts"]["done"] == 1000, 60)
        assert all(worker.process.poll() is None for worker in workers)
        assert not [event for worker in workers for event in worker.said("trouble")]
    db = sqlite3.connect(os.path.join(tq.root, "queue.sqlite"))
    assert db.execute("SELECT count(*), max(attempt) FROM job").fetchone() == (1000, 1)
    assert db.execute("SELECT count(*) FROM history").fetchone() == (3000,)
    db.close()


def test_many_start_at_once(tq, tmp_path):
    """Q63: 20 processes init and submit on one path at once: no error, one schema, one settings file, 20 jobs."""
    root = str(tmp_path / "new" / "root")
    os.mkdir(os.path.dirname(root))
    line = 'python -m trainq init "$0" >/dev/null && python -m trainq --root "$0" submit -- true'
    many = [
        subprocess.Popen(["sh", "-c", line, root], env=tq.environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        for _ in range(20)
    ]
    answers = [(*process.communicate(timeout=60), process.returncode) for process in many]
    assert [(err, code) for _, err, code in answers] == [(b"", 0)] * 20
    assert sorted(int(out) for out, _, _ in answers) == list(range(1, 21))
    assert tq.ok("doctor", "--json", root=root).json
    assert "already" in tq.ok("init", root, root=None).out


def test_a_newer_schema_is_refused(tq):
    """Q63: a queue of a newer trainq exits 6 and says both numbers; nothing is changed."""
    db = sqlite3.connect(os.path.join(tq.root, "queue.sqlite"))
    db.execute("PRAGMA user_version = 99")
    db.close()
    for words in (
        ("status",),
        ("submit", "--", "true"),
        ("worker", "--once"),
        ("prune",),
        ("doctor",),
        ("init", tq.root),
    ):
        done = tq(*words)
        assert done.code == 6, (words, done)
        assert "99" in done.out + done.err, (words, done)


@pytest.mark.parametrize("name", ["models", "models/.staging", "runs", "data", "bell", "specs", "locks"])
def test_a_missing_directory_is_named(tq, name):
    """Q63: a missing directory of the root exits 6 naming it and the command that makes it, which does."""
    path = os.path.join(tq.root, name)
    shutil.rmtree(path)
    for words in (("submit", "--", "true"), ("worker", "--once"), ("doctor",)):
        done = tq(*words)
        assert done.code == 6, (words, done)
        assert path in done.out + done.err, (words, done)
    assert tq.ok("status").code == 0
    tq.ok("init", tq.root, root=None)
    tq.submit("ok")
    tq.work()
    assert tq.models()


def test_an_unwritable_model_directory_is_named(tq):
    """Q63: not as root: a model directory that cannot be written exits 6 naming it."""
    if os.getuid() == 0 and shutil.which("setpriv") is None:
        pytest.skip("needs setpriv to be somebody else than root")
    path = os.path.join(tq.root, "models")
    user = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups") if os.getuid() == 0 else ()
    if user:
        subprocess.run(["chown", "-R", "65534:65534", tq.root], check=True)
        place = os.path.dirname(tq.root)
        while place != "/tmp" and len(place) > 1:
            os.chmod(place, os.stat(place).st_mode | 0o055)
            place = os.path.dirname(place)
    os.chmod(path, 0o500)
    for words in (("submit", "--", "true"), ("worker", "--once"), ("doctor",)):
        done = subprocess.run(
            [*user, *COMMAND, "--root", tq.root, *words],
            env=tq.environment({"PYTHONDONTWRITEBYTECODE": "1"}),
            cwd="/",
            capture_output=True,
            check=False,
        )
        assert done.returncode == 6, (words, done)
        assert path.encode() in done.stdout + done.stderr, (words, done)
    os.chmod(path, 0o700)


def test_cancel_ends_the_whole_tree(tq):
    """Q31: cancel with `--wait` ends a job that ignores TERM, its grandchild too, within the grace; no error is shown."""
    line = "trap '' TERM; (trap '' TERM; echo $$ >a; exec sleep 1000) & setsid sh -c 'echo $$ >b; exec sleep 1000' & echo $$ >c; wait; sleep 1000"
    number = tq.submit("--grace", "0.3s", "--shell", line)
    with tq.worker():
        until(lambda: all((tq.dir / name).exists() and (tq.dir / name).read_text().strip() for name in "abc"))
        pids = [int((tq.dir / name).read_text()) for name in "abc"]
        started = time.monotonic()
        tq.ok("cancel", number, "--wait", "--timeout", "10s")
        assert time.monotonic() - started < 10
        assert [pid for pid in pids if alive(pid)] == []
        job = tq.job(number)
        assert (job["state"], job["reason"], job["result"]["error"]) == ("canceled", "user", None)


def test_cancel_now_after_a_plain_cancel(tq):
    """Q31: `--now` after a plain cancel is heard at once, and ends what ignores TERM long before its grace is over."""
    tq.env.update(FAR)
    number = tq.submit("--grace", "10m", "--shell", "trap 'touch heard' TERM; touch up; while :; do sleep 0.02; done")
    with tq.worker():
        until((tq.dir / "up").exists)
        tq.ok("cancel", number)
        until((tq.dir / "heard").exists)
        tq.ok("cancel", number, "--now")
        until(lambda: tq.state(number) == "canceled")


def test_exit_0_after_term_is_still_canceled(tq):
    """Q31: a job that answers TERM by saving a model and exit 0 is canceled, and the model is not published."""
    line = "trap 'echo x >$TRAINQ_MODEL_DIR/m; exit 0' TERM; touch up; while :; do sleep 0.02; done"
    number = tq.submit("--model", "m", "--shell", line)
    with tq.worker():
        until((tq.dir / "up").exists)
        tq.ok("cancel", number, "--wait")
    job = tq.job(number)
    assert (job["state"], job["model"]["version"]) == ("canceled", None)
    assert tq.models() == []
    until(lambda: not os.listdir(os.path.join(tq.root, "models", ".staging")))


def test_cancel_wins_at_every_moment(tq):
    """Q31: cancel and the job's own end race ten times: each ends done or canceled, one way in row, history and
    model."""
    numbers = []
    with tq.worker("--slots", "2"):
        for n in range(10):
            number = tq.submit("--model", f"m{n}", "--shell", "echo x >$TRAINQ_MODEL_DIR/m")
            numbers.append(number)
            if n % 3:
                until(lambda i=number: tq.state(i) != "pending")
            tq("cancel", number)
        until(lambda: not tq.ok("status", "--summary", "--json").json["counts"]["running"])
    published = {model["job"] for model in tq.models()}
    rows = tq.history(f"1-{len(numbers)}")
    for job in tq.jobs():
        assert job["state"] in ("done", "canceled")
        assert (job["id"] in published) == (job["state"] == "done")
        moves = [row["state"] for row in rows if row["job"] == job["id"]]
        assert moves.count("done") + moves.count("canceled") == 1
    assert sorted(os.listdir(os.path.join(tq.root, "models", ".aside"))) == []


def test_retries_and_their_end(tq):
    """Q23: `--retries N` repeats what `--retry-on` names, held in between with a doubling backoff; used up it is
    errored, each attempt kept; what is not named is not repeated."""
    number = tq.submit("--retries", "2", "--backoff", "0.2s", "--shell", "exit 3")
    once = tq.submit("--retries", "2", "--retry-on", "signal", "--shell", "exit 3")
    killed = tq.submit("--retries", "1", "--retry-on", "signal", "--backoff", "0s", "--shell", "kill -9 $$")
    with tq.worker("--slots", "3"):
        until(lambda: all(tq.state(one) == "errored" for one in (number, once, killed)))
    rows = tq.history(number)
    states = [row["state"] for row in rows]
    assert states == ["pending", "running", "held", "pending", "running", "held", "pending", "running", "errored"]
    assert [row["reason"] for row in rows if row["state"] == "held"] == ["backoff", "backoff"]
    job = tq.job(number)
    assert (job["reason"], job["attempt"]["n"], job["retry"]["used"]) == ("exit", 3, 2)
    assert len(job["attempts"]) == 3
    assert [row["state"] for row in tq.history(once)].count("running") == 1
    assert (tq.job(killed)["reason"], tq.job(killed)["attempt"]["n"]) == ("signal", 2)


def test_a_held_backoff_can_be_canceled_and_is_waited_for(tq):
    """Q23: during the backoff the job is held, `worker --until empty` waits for it, and cancel ends it at once."""
    number = tq.submit("--retries", "5", "--backoff", "1h", "--shell", "exit 3")
    with tq.worker():
        job = until(lambda: (found := tq.job(number))["state"] == "held" and found)
        assert (job["reason"], job["retry"]["used"]) == ("backoff", 1)
        assert tq.ok("worker", "--until", "idle").code == 0
        tq.ok("cancel", number)
        assert tq.state(number) == "canceled"
    assert tq.ok("worker", "--until", "empty").code == 0
    tq.ok("retry", number)
    assert tq.job(number)["retry"]["used"] == 0


def test_bad_retry_words_are_refused(tq):
    """Q23: an unknown reason, a system's cause and a bare number are refused with the right spelling."""
    for words in (
        ("--retry-on", "nope"),
        ("--retry-on", "poison"),
        ("--backoff", "10"),
        ("--retries", "-1"),
        ("--retries", "x"),
    ):
        done = tq("submit", *words, "--", "true")
        assert done.code == 2, (words, done)
    assert "10s" in tq("submit", "--backoff", "10", "--", "true").err
    assert tq.jobs() == []
