"""What a worker does with jobs, and what the queue says of them afterwards."""

from __future__ import annotations

import contextlib
import os
from datetime import datetime

import pytest
from e2e.kit import alive, until

BARE = '[types.bare]\nrun = ["{program}"]\n'


def _overlap(spans):
    """The largest number of spans that share a moment."""
    moves = sorted([(begin, 1) for begin, _ in spans] + [(end, -1) for _, end in spans])
    count = most = 0
    for _, step in moves:
        count += step
        most = max(most, count)
    return most


def _run(tq, *words):
    """Submit, run once, and the card."""
    job = tq.submit(*words)
    tq.ok("worker", "--once")
    return tq.job(job)


def test_empty_queue_is_a_clean_outcome(tq):
    """Q14: a worker that finds nothing says so, exits 0, and changes no row."""
    ended = tq.submit("--", "true")
    tq.ok("cancel", str(ended))
    before = tq.jobs()
    done = tq.ok("worker", "--once")
    assert done.out == "nothing to do\n"
    report = tq.ok("worker", "--once", "--json").json
    assert (report["kind"], report["jobs"]) == ("worker_report", [])
    assert tq.jobs() == before


def test_a_long_worker_tells_the_last_and_counts_all(tq):
    """What a worker remembers of its attempts does not grow for ever: the last thousand are told, all are counted."""
    lines = "\n".join(['{"argv": ["true"]}'] * 1003 + ['{"argv": ["false"]}'])
    tq.ok("submit", "--from", "-", input=lines)
    report = tq("worker", "--until", "empty", "--slots", "2", "--json").json
    assert (report["total"], len(report["jobs"])) == (1004, 1000)
    assert max(job["id"] for job in report["jobs"]) == 1004
    tq.ok("submit", "--from", "-", input='{"argv": ["true"]}')
    assert tq.ok("worker", "--until", "empty").out.strip() == "1 attempt: 1 done"


def test_slots_are_never_exceeded(tq):
    """Q15: five jobs on a worker of two slots: two at once at most, and all end done."""
    ids = [tq.submit("--", "sleep", "0.3") for _ in range(5)]
    tq.ok("worker", "--slots", "2", "--until", "empty")
    spans = []
    for job in ids:
        moves = {move["state"]: move["at"] for move in tq.history(job)}
        spans.append((moves["running"], moves["done"]))
    assert _overlap(spans) == 2


def test_two_slots_are_the_default(tq):
    """Q15: the limit is two when nobody says another."""
    for n in range(3):
        tq.submit("slow", "--seed", str(n))
    with tq.worker() as worker:
        until(lambda: len(worker.said("job started")) == 2)
        assert tq.ok("status", "--summary", "--json").json["counts"]["running"] == 2
        assert worker.said("started")[0]["slots"] == 2
        tq.ok("submit", "--", "true")  # a reason to look for room
        (tq.dir / "go").touch()
        until(lambda: len(worker.said("job ended")) == 4)


def test_no_slots_answers_and_runs_nothing(tq):
    """Q15: a worker of no slots cares for the queue and trains nothing."""
    job = tq.submit("--", "true")
    with tq.worker("--slots", "0") as worker:
        until(lambda: tq.ok("workers", "--json").json["items"])
        assert tq.job(job)["state"] == "pending"
        assert worker.process.poll() is None


def test_eight_workers_share_two_hundred_jobs(tq):
    """Q19: eight workers drain 200 jobs: each has exactly one start per attempt, and 200 versions exist."""
    tq.types('[types.make]\nrun = ["sh", "-c", "echo m > $TRAINQ_MODEL_DIR/m"]\nmodel = "required"\nkeep = 0\n')
    lines = "".join(f'{{"type": "make", "params": {{"i": {n}}}}}\n' for n in range(200))
    ids = [int(word) for word in tq.ok("submit", "--from", "-", input=lines).out.split()]
    with contextlib.ExitStack() as crew:
        workers = [crew.enter_context(tq.worker("--slots", "1", "--until", "empty")) for _ in range(8)]
        for worker in workers:
            assert worker.end(110).code == 0, worker.log
        begun = [event["id"] for worker in workers for event in worker.said("job started")]
    assert sorted(begun) == ids
    assert {job["state"] for job in tq.jobs()} == {"done"}
    assert all(job["attempt"]["n"] == 1 for job in tq.jobs())
    versions = tq.ok("models", "list", "--json").json["items"]
    assert sorted(model["version"] for model in versions) == list(range(1, 201))
    moves = [move for job in ids[::20] for move in tq.history(job) if move["state"] == "running"]
    assert len(moves) == len(ids[::20])


def _wants_model(line):
    return f"[types.fails]\nrun = ['sh', '-c', '''{line}''']\nmodel = 'required'\n"


@pytest.mark.parametrize(
    ("line", "words", "state", "reason"),
    [
        ("echo m > $TRAINQ_MODEL_DIR/m; exit 1", (), "errored", "exit"),
        ("echo m > $TRAINQ_MODEL_DIR/m; kill -9 $$", (), "errored", "signal"),
        ("echo m > $TRAINQ_MODEL_DIR/m; sleep 60", ("--time", "0.3s"), "errored", "timeout"),
        ("true", (), "errored", "model"),
        ("mkfifo $TRAINQ_MODEL_DIR/pipe", (), "errored", "model"),
        ("rmdir $TRAINQ_MODEL_DIR", (), "errored", "model"),
        ("rmdir $TRAINQ_MODEL_DIR; ln -s / $TRAINQ_MODEL_DIR", (), "errored", "model"),
    ],
    ids=["exit 1", "SIGKILL", "timeout", "no model", "a pipe", "directory gone", "directory a link"],
)
def test_failed_run_is_never_done(tq, line, words, state, reason):
    """Q21: whatever a failed run had written, it is not done and no model is listed."""
    tq.types(_wants_model(line))
    job = _run(tq, "fails", *words)
    assert (job["state"], job["reason"]) == (state, reason), job["result"]
    assert job["model"] is None or job["model"]["version"] is None
    assert tq.ok("models", "list", "--json").json["items"] == []


def test_canceled_run_is_never_done(tq):
    """Q21: a job that answers the cancel's TERM with exit 0 is canceled, and its model is not listed."""
    tq.types(_wants_model('echo m > $TRAINQ_MODEL_DIR/m; trap "exit 0" TERM; echo up; while :; do sleep 0.02; done'))
    job = tq.submit("fails")
    with tq.worker():
        until(lambda: tq("logs", str(job)).out == "up\n")
        assert (
            tq.ok("cancel", str(job), "--wait", "--timeout", "20s", "--json").json["items"][0]["result"] == "canceled"
        )
    card = tq.job(job)
    assert (card["state"], card["reason"]) == ("canceled", "user")
    assert tq.ok("models", "list", "--json").json["items"] == []


def test_done_means_a_complete_model(tq):
    """Q21: what is listed is on the disk, whole; a command that makes none is done without."""
    job = _run(tq, "ok")
    assert job["state"] == "done"
    assert os.listdir(job["model"]["path"]).count("model.json") == 1
    assert _run(tq, "--", "true")["state"] == "done"
    assert len(tq.ok("models", "list", "--json").json["items"]) == 1


@pytest.mark.parametrize("how", ['call = "no_such_module:train"', 'run = ["python", "imports.py"]'])
def test_import_error_is_errored_at_once(tq, how):
    """Q25: a trainer that does not import is errored `import`, with its last lines, and is not retried unasked."""
    tq.types(f"[types.broken]\n{how}\n")
    (tq.dir / "imports.py").write_text("import no_such_module\n")
    job = _run(tq, "broken", "--retries", "3")
    assert (job["state"], job["reason"], job["side"]) == ("errored", "import", "user")
    assert "ModuleNotFoundError" in job["result"]["error"]
    assert "no_such_module" in tq.ok("status", str(job["id"])).out
    assert job["attempt"]["n"] == 1


@pytest.mark.parametrize(
    "said",
    [
        "job.progress(step=5000)",
        "job.progress(message='epoch 3')",
        "job.progress(0.5)",
        "job.metric(loss=0.1)",
        "job.checkpoint.save(b'x')",
    ],
)
def test_import_error_after_any_word_is_an_exit(tq, said):
    """Q25: a training that has told anything of how far it is was imported before."""
    job = tq.submit("--", "python", "-c", f"from trainq import job; {said}; import no_such_module")
    tq("worker", "--until", "empty")
    assert (tq.job(job)["state"], tq.job(job)["reason"]) == ("errored", "exit")
    assert "before any progress" not in tq.job(job)["result"]["error"]


def test_import_error_is_retried_when_asked(tq):
    """Q25: --retry-on import retries it."""
    tq.types('[types.broken]\ncall = "no_such_module:train"\n')
    job = tq.submit("broken", "--retries", "1", "--retry-on", "import", "--backoff", "0s")
    tq("worker", "--until", "empty")
    assert (tq.job(job)["attempt"]["n"], tq.job(job)["reason"]) == (2, "import")


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("--", "./plain"), 126),
        (("--", "absent-program"), 127),
        (("--", "./absent/program"), 127),
        (("--", "."), 126),
        (("--", "./no-interpreter"), 127),
        (("--", "./empty"), None),
        (("--", b"./\xff\n"), 127),
        (("--cwd", "gone", "--", "true"), None),
        (("--cwd", "plain", "--", "true"), None),
    ],
)
def test_failed_launch_is_errored(tq, words, code):
    """Q27: what cannot be started is errored `spawn` at once, and the slot takes the next job."""
    (tq.dir / "plain").write_text("no program")
    (tq.dir / "no-interpreter").write_text("#!/absent/interpreter\n")
    (tq.dir / "no-interpreter").chmod(0o755)
    (tq.dir / "empty").touch(0o755)
    job = tq.submit(*words)
    after = tq.submit("--", "true")
    tq.ok("worker", "--slots", "1", "--until", "empty")
    card = tq.job(job)
    if words[-1] != "./empty":
        assert (card["state"], card["reason"], card["side"]) == ("errored", "spawn", "user")
        assert card["result"]["error"]
    else:
        assert card["state"] in ("done", "errored")  # shells run an empty file, exec does not
    if code is not None:
        assert card["result"]["exit_code"] == code
        assert tq("wait", str(job), "--exit-code", "job").code == code
    assert tq.job(after)["state"] == "done"


def test_canceled_before_it_starts(tq):
    """Q30: a waiting job is canceled at once and never starts."""
    job = tq.submit("--", "touch", "started")
    assert tq.ok("cancel", str(job), "--json").json["items"][0]["result"] == "canceled"
    card = tq.job(job)
    assert (card["state"], card["reason"]) == ("canceled", "user")
    assert tq.ok("worker", "--once").out == "nothing to do\n"
    assert not (tq.dir / "started").exists()
    assert [move["state"] for move in tq.history(job)] == ["pending", "canceled"]


def test_cancel_of_unknown_and_of_ended(tq):
    """Q32: an unknown id exits 3, an ended job 4; the row stays as it was."""
    job = _run(tq, "ok")
    before = tq.ok("status", str(job["id"]), "--json").json
    for word in ("nope", "77", "0", "1[3]", "last~9", "key:nope", "fp:dead", "9" * 30):
        done = tq("cancel", word)
        assert done.code == 3, (word, done)
        assert len(done.err.splitlines()) == 2
    done = tq("cancel", str(job["id"]))
    assert done.code == 4
    assert "already done" in done.err
    after = tq.ok("status", str(job["id"]), "--json").json
    assert {**before, "generated_at": None} == {**after, "generated_at": None}
    assert tq("cancel").code == 2


def test_cancel_of_several(tq):
    """Q32: among several, what ended is passed over and what is unknown is told, and the rest is canceled."""
    ended = _run(tq, "ok")["id"]
    waits = tq.submit("--", "true")
    done = tq("cancel", f"{ended},{waits},77", "--json")
    assert done.code == 7
    assert {item["id"]: item["result"] for item in done.json["items"]} == {
        ended: "ended",
        waits: "canceled",
        77: "unknown",
    }
    again = tq.ok("cancel", f"{ended},{waits}", "--json").json["items"]
    assert {item["id"]: item["result"] for item in again}[waits] in ("already", "ended")


def _instant(text):
    at = datetime.fromisoformat(text)
    assert at.tzinfo is not None
    return at


def test_stages_have_their_times(tq):
    """Q35: submitted, claimed, started, storing and ended come in this order, each with its zone."""
    (tq.dir / "d").write_text("1")
    job = _run(tq, "ok", "--data", "d")
    times = [
        job["times"]["submitted_at"], job["attempt"]["claimed_at"], job["attempt"]["started_at"],
        job["stages"]["storing_at"], job["result"]["ended_at"],
    ]  # fmt: skip
    instants = [_instant(text) for text in times]
    assert instants == sorted(instants)
    stages = [_instant(job["stages"][f"{name}_at"]) for name in ("fetching", "training", "storing")]
    assert stages == sorted(stages)


def test_stage_of_a_running_job(tq):
    """Q35: a job that computes is in its stage `training`."""
    job = tq.submit("slow")
    with tq.worker():
        card = until(lambda: (found := tq.job(job))["stage"] == "training" and found)
        assert card["stages"]["training_at"]
        assert card["stages"]["storing_at"] is None
        (tq.dir / "go").touch()
        until(lambda: tq.job(job)["state"] == "done")
    assert tq.job(job)["stage"] is None


def test_every_ended_job_has_an_end(tq):
    """Q36: each ended job has its end, a duration, and a reason unless it is done; no row of a list is blank."""
    done, failed, waits, spawn = (
        tq.submit("ok"), tq.submit("bad"), tq.submit("--priority", "-1", "--", "true"), tq.submit("--", "absent"),
    )  # fmt: skip
    tq.ok("cancel", str(waits))
    tq.ok("worker", "--until", "empty")
    jobs = {job["id"]: job for job in tq.jobs()}
    for job in (done, failed, waits, spawn):
        card = jobs[job]
        assert card["result"]["ended_at"], card
        assert card["times"]["run_s"] is not None, card
        assert (card["reason"] is None) == (card["state"] == "done"), card
    lines = tq.ok("status", "--all").out.splitlines()
    assert len(lines) >= 5
    assert all(len(line.split()) >= 5 for line in lines[:5])


def test_reasons_of_what_the_user_broke(tq):
    """Q38: crash, signal, time limit, launch and missing model have each their own reason, and the user's side."""
    tq.types('[types.empty]\nrun = ["true"]\nmodel = "required"\n')
    expected = {
        tq.submit("bad"): "exit",
        tq.submit("--shell", "kill -11 $$"): "signal",
        tq.submit("--time", "0.2s", "--", "sleep", "60"): "timeout",
        tq.submit("--", "absent"): "spawn",
        tq.submit("empty"): "model",
        tq.submit("--", "python", "-c", "import absent"): "import",
    }
    tq.ok("worker", "--until", "empty")
    found = {job["id"]: (job["state"], job["reason"], job["side"]) for job in tq.jobs()}
    assert found == {job: ("errored", reason, "user") for job, reason in expected.items()}


def test_reason_of_a_training_set_that_vanished(tq):
    """Q38: a stored set that is missing when the job is claimed is `data`."""
    (tq.dir / "d").write_bytes(os.urandom(3 << 20))
    job = tq.submit("ok", "--data", "d")
    (name,) = os.listdir(os.path.join(tq.root, "data"))
    os.unlink(os.path.join(tq.root, "data", name))
    tq.ok("worker", "--once")
    card = tq.job(job)
    assert (card["state"], card["reason"], card["side"]) == ("errored", "data", "user")
    assert name.partition(".")[0][:12] in card["result"]["error"]


def test_reason_of_a_training_set_that_rotted(tq):
    """Q38: one whose bytes have changed too; the trainer never sees it."""
    (tq.dir / "d").write_bytes(os.urandom(3 << 20))
    job = tq.submit("ok", "--data", "d")
    (name,) = os.listdir(os.path.join(tq.root, "data"))
    with open(os.path.join(tq.root, "data", name), "r+b") as file:
        file.seek(1 << 20)
        file.write(b"rot")
    tq.ok("worker", "--once")
    card = tq.job(job)
    assert (card["state"], card["reason"]) == ("errored", "data")
    assert tq.ok("logs", str(job)).out.count("\n") == 1


def test_reason_of_a_lost_worker(tq):
    """Q38: a job whose workers are lost as often as it may be is `poison`, on the system's side."""
    job = tq.submit("--max-attempts", "1", "slow")
    with tq.worker() as worker:
        pid = until(lambda: tq.job(job)["attempt"]["pid"])
        worker.process.kill()
        worker.process.wait()
        until(lambda: not alive(pid))
    until(lambda: tq.ok("prune") and tq.job(job)["state"] == "errored")
    card = tq.job(job)
    assert (card["reason"], card["side"]) == ("poison", "system")


def test_reason_of_a_store_failure(tq):
    """Q38: a model that cannot be put in its place is `store`, the system's side, and is kept where the error says."""
    job = tq.submit("ok")
    with open(os.path.join(tq.root, "models", "ok"), "w") as file:
        file.write("in the way")
    tq.ok("worker", "--once")
    card = tq.job(job)
    assert (card["state"], card["reason"], card["side"]) == ("errored", "store", "system")
    kept = card["result"]["error"].rpartition("kept in ")[2]
    assert os.listdir(kept).count("model.json") == 1
    assert tq.ok("models", "list", "--json").json["items"] == []


HOSTILE = {
    "kills its keeper": "kill -9 $PPID; sleep 60",
    "stops its keeper": "kill -STOP $PPID; kill -CONT $PPID; exit 3",
    "deletes its run": 'rm -rf "$TRAINQ_RUN_DIR" "$TRAINQ_CHECKPOINT_DIR"; exit 3',
    "deletes the log": 'rm "$TRAINQ_RUN_DIR/log"; mkdir "$TRAINQ_RUN_DIR/log"; exit 3',
    "a pipe for a log": 'rm "$TRAINQ_RUN_DIR/log"; mkfifo "$TRAINQ_RUN_DIR/log"; exit 3',
    "deletes the socket": 'rm -f "$TRAINQ_SOCKET"; exit 3',
    "noise in the socket": (
        "exec python -c \"import os, socket; s = socket.socket(socket.AF_UNIX); s.connect(os.environ['TRAINQ_SOCKET']);"
        " s.sendall(os.urandom(1 << 16) + b'\\n{}\\n[]\\nnull\\n' + b'{' * 100000 + b'\\n'); exit(3)\""
    ),
    "many connections": (
        'exec python -c "import os, socket; all = [socket.socket(socket.AF_UNIX) for _ in range(500)];'
        " [s.settimeout(1) or s.connect_ex(os.environ['TRAINQ_SOCKET']) for s in all]; exit(3)\""
    ),
    "a flood of words": "exec python -c \"import sys; [print('x' * 10000) for _ in range(2000)]; exit(3)\"",
    "many children": "for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do sleep 60 & done; exit 3",
    "stops itself": "kill -STOP $$",
    "a session of its own": "setsid sleep 60 & exit 3",
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_one_broken_job_never_stops_the_worker(tq, kind):
    """Q27: whatever a job does to its surroundings, it ends, and the worker runs the next one."""
    job = tq.submit("--time", "3s", "--max-attempts", "1", "--shell", HOSTILE[kind])
    after = tq.submit("--", "true")
    with tq.worker("--slots", "1") as worker:
        until(lambda: tq.job(after)["state"] == "done")
        assert worker.process.poll() is None
        assert not worker.said("claim lost")
    card = tq.job(job)
    assert card["state"] == "errored"
    expected = {"kills its keeper": "poison", "stops itself": "timeout"}.get(kind, "exit")
    assert card["reason"] == expected, card["result"]
    assert tq("logs", str(job)).code in (0, 3, 6)
    assert tq("status", str(job)).code == 0


GREEDY = """
import json, os, resource, socket, time
resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 1024))
hello = {"hello": os.environ["TRAINQ_JOB_UID"], "attempt": int(os.environ["TRAINQ_ATTEMPT"])}
held = []
for _ in range(200):
    held.append(socket.socket(socket.AF_UNIX))
    held[-1].connect(os.environ["TRAINQ_SOCKET"])
    held[-1].send(json.dumps(hello).encode() + b"\\n", socket.MSG_NOSIGNAL)
open("full", "w").close()
while not os.path.exists("go"): time.sleep(0.02)
"""


def test_a_job_that_connects_without_end(tq):
    """Q27, DESIGN 2.10: it leaves the worker descriptors to work with, and the other jobs a line to it."""
    tq.script("greedy.py", GREEDY)
    tq.script(
        "told.py", "import os\nfrom trainq import job\njob.metric('loss', 1)\nopen(job.model_dir + '/m', 'w').close()\n"
    )
    greedy = tq.submit("--", "python", "greedy.py")
    with tq.worker("--slots", "2", before=("prlimit", "--nofile=64:1024")) as worker:
        until((tq.dir / "full").exists)
        told = tq.submit("--model", "told", "--", "python", "told.py")
        until(lambda: tq.state(told) == "done")
        (tq.dir / "go").touch()
        until(lambda: tq.state(greedy) == "done")
        assert worker.said("trouble") == []
    assert tq.models("told")[0]["metrics"] == {"loss": 1}


def test_large_commands_and_environments(tq):
    """Q27: a command and an environment as large as the system takes reach the job whole."""
    words = ["x" * 100_000] * 5
    env = {f"BIG_{n}": "y" * 100_000 for n in range(5)}
    program = "import os, sys; print(sum(map(len, sys.argv[1:])), sum(len(os.environ[f'BIG_{n}']) for n in range(5)))"
    job = tq.submit("--", "python", "-c", program, *words, env=env)
    tq.ok("worker", "--once")
    assert tq.ok("logs", str(job)).out == "500000 500000\n", tq.job(job)["result"]


def test_command_larger_than_the_system_takes(tq):
    """Q27: one that the system refuses is errored `spawn`, and the next job runs."""
    line = '{"argv": ["true", "%s"]}\n{"argv": ["true"]}\n' % ("x" * 200_000)
    large, after = (int(word) for word in tq.ok("submit", "--from", "-", input=line).out.split())
    tq.ok("worker", "--until", "empty")
    assert tq.job(large)["reason"] == "spawn"
    assert tq.job(after)["state"] == "done"
