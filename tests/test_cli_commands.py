"""The other commands, as real processes on a real queue."""

from __future__ import annotations

import json
import os
import sqlite3
import sys
import threading
import time

import pytest
from conftest import Trainq
from test_cli_frame import on_terminal

SAVE = 'echo {\\"a\\": 1} > "$TRAINQ_MODEL_DIR/weights.json"'
TYPES = f"""
[types.ok]
run = ["sh", "-c", '''trainq_args; {SAVE}''']
[types.ok.params]
a = {{ type = "int", default = 1 }}
b = {{ type = "text", default = "x" }}
"""


def type_file(trainq, text):
    with open(os.path.join(trainq.root, "trainq.toml"), "a", encoding="utf-8") as file:
        file.write(text.replace("trainq_args; ", ""))


# logs -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def logged(run_trainq):
    """A queue with a job that has written three lines, one of them of odd bytes."""
    run_trainq.ok("submit", "--", "printf", "one\\ntwo\\377\\033[31m\\nthree\\n")
    run_trainq.ok("worker", "--once")
    return run_trainq


def test_raw_bytes_into_a_pipe(logged):
    """E10: no byte is changed, none is an error."""
    assert logged.ok("logs", 1).raw == b"one\ntwo\xff\x1b[31m\nthree\n"
    assert logged.ok("logs", 1, "-n", 1).raw == b"three\n"
    assert logged.ok("logs", "last", "-f", "-n", 0).raw == b""
    assert logged.ok("logs", 1, "-f", "-n", 2).raw.endswith(b"three\n")


def test_escaped_on_a_terminal(logged):
    code, out = on_terminal(logged, "logs", "1", TERM="xterm")
    assert code == 0
    assert out.replace(b"\r", b"") == b"one\ntwo\\xff\\x1b[31m\nthree\n"


def test_a_log_as_json_lines(logged):
    items = [json.loads(line) for line in logged.ok("logs", 1, "--jsonl").raw.split(b"\n") if line]
    assert [item["text"] for item in items] == ["one", "two\ufffd\x1b[31m", "three"]
    assert [item["attempt"] for item in items] == [1, 1, 1]
    assert "text_b64" in items[1]


def test_where_the_log_is(logged):
    path = logged.ok("logs", 1, "--path").out.rstrip("\n")
    with open(path, "rb") as file:
        assert file.read().startswith(b"one\n")


def test_logs_of_what_is_not_there(logged):
    logged.ok("submit", "--", "true")
    logged.ok("cancel", 2)
    assert logged("logs", 2).code == 4
    assert logged("logs", 2, "-f").code == 4
    assert logged("logs", 1, "--attempt", 2).code == 3
    assert logged("logs", "1-2").code == 2
    assert logged("logs").code == 2
    gone = logged("logs", 1, "--stderr")
    assert gone.code == 3
    assert "no stderr of its own" in gone.err


def test_logs_outlive_the_row(logged):
    """A pruned job's log is there while its run directory is kept."""
    logged.ok("prune", "--older-than", "0s")
    assert logged.ok("logs", 1).raw.startswith(b"one\n")


def test_following_goes_on_to_the_end_over_a_retry(run_trainq):
    """Q50, E10: -f waits for the start, shows what comes, and ends by itself."""
    script = 'echo attempt $TRAINQ_ATTEMPT; until test -e go; do sleep 0.05; done; test "$TRAINQ_ATTEMPT" = 2'
    run_trainq.ok("submit", "--retries", 1, "--backoff", "0s", "--", "sh", "-c", script)
    with run_trainq.running("logs", "1", "-f") as process, run_trainq.running("worker", "--until", "empty"):
        assert process.stdout.readline() == b"attempt 1\n"
        with open(os.path.join(run_trainq.cwd, "go"), "w", encoding="ascii"):
            out, err = process.communicate(timeout=60)
        assert (out, err, process.returncode) == (b"attempt 2\n", b"", 0)
    assert run_trainq.ok("logs", 1, "--attempt", 1, "-f").raw == b"attempt 1\n"


def test_split_stderr(run_trainq):
    run_trainq.ok("submit", "--split-stderr", "--", "sh", "-c", "echo out; echo err >&2")
    run_trainq.ok("worker", "--once")
    assert run_trainq.ok("logs", 1).out == "out\n"
    assert run_trainq.ok("logs", 1, "--stderr").out == "err\n"


# history, models, types, workers ----------------------------------------------------------------------------------


def test_history_tells_when_where_and_why(run_trainq):
    """Q51: one row per change, in order; it outlives the row."""
    run_trainq.ok("submit", "--", "sh", "-c", "exit 3")
    run_trainq.ok("worker", "--once", "--name", "anna")
    run_trainq.ok("prune", "1")
    answer = run_trainq.ok("history", 1, "--json").json
    assert answer["kind"] == "history"
    items = answer["items"]
    assert [item["state"] for item in items] == ["pending", "running", "errored"]
    assert [item["at"] for item in items] == sorted(item["at"] for item in items)
    assert (items[2]["reason"], items[2]["exit_code"], items[2]["worker"], items[2]["cause"]) == (
        "exit",
        3,
        "anna",
        "exit",
    )
    text = run_trainq.ok("history", 1).out
    assert len(text.splitlines()) == 4
    assert "exit 3" in text


def make_models(trainq, *trainings):
    """Types, and a version of `ok` for each of these trainings."""
    type_file(trainq, TYPES)
    for params in trainings:
        trainq.ok("submit", "ok", *(word for param in params for word in ("--param", param)))
        trainq.ok("worker", "--once")


@pytest.fixture(scope="module")
def modelled(tmp_path_factory):
    """Three versions of one key: a=1, a=2, a=1 again with b=y. Nobody changes them."""
    place = tmp_path_factory.mktemp("models")
    trainq = Trainq(str(place / "queue"), str(place))
    trainq.ok("init", trainq.root)
    make_models(trainq, ("a=1",), ("a=2",), ("a=1", "b=y"))
    return trainq


@pytest.mark.parametrize(
    ("args", "found"),
    [
        ((), [1, 2, 3]),
        (("ok",), [1, 2, 3]),
        (("ok@2",), [2]),
        (("ok@latest",), [3]),
        (("--latest",), [3]),
        (("--param", "a=1"), [1, 3]),
        (("--param", "a=1.0"), [1, 3]),
        (("--param", "a=1", "--param", "b=x"), [1]),
        (("--param", "c=1"), []),
        (("--type", "ok", "--param", "a=2", "--latest"), [2]),
        (("--type", "other"), []),
    ],
)
def test_models_are_searched(modelled, args, found):
    """Q43: by type and parameters, and the newest of what fits."""
    answer = modelled.ok("models", "list", *args, "--json").json
    assert (answer["kind"], answer["total"]) == ("model_list", len(found))
    assert [item["version"] for item in answer["items"]] == found


def test_one_model(modelled):
    model = modelled.ok("models", "show", "ok", "--json").json
    assert (model["kind"], model["key"], model["version"], model["job"]) == ("model", "ok", 3, 3)
    for name in (
        "path", "created_at", "attempt", "type", "params", "metrics", "fingerprint", "files", "size", "pinned", "user", "owner",
    ):  # fmt: skip
        assert name in model
    assert [item["path"] for item in model["files"]] == ["weights.json"]
    assert modelled.ok("models", "path", "ok@1").out.rstrip("\n") == model["path"][:-1] + "1"
    assert modelled.ok("models", "list", "--fp", model["fingerprint"][:10], "-q").out == "ok@3\n"
    assert "weights.json" in modelled.ok("models", "show", "ok").out
    missing = modelled("models", "show", "ok@9")
    assert missing.code == 3
    assert "there are 1, 2, 3" in missing.err
    assert modelled("models", "show", "oky").code == 3
    assert modelled("models", "show", "ok@x").code == 2
    assert modelled("models", "show", "../etc").code == 2


def test_a_fingerprint_finds_jobs_and_models(modelled):
    """Q06: `status fp:F` finds the jobs."""
    fingerprint = modelled.ok("status", 2, "--json").json["fingerprint"]
    assert modelled.ok("status", f"fp:{fingerprint[:12]}", "-q").ids == [2]


def test_a_pruned_job_with_a_model_is_done(run_trainq):
    """Q40: status says done and progress 1 while the model exists."""
    make_models(run_trainq, ("a=1",))
    run_trainq.ok("prune", "--older-than", "0s")
    job = run_trainq.ok("status", 1, "--json").json
    assert (job["state"], job["progress"]["fraction"], job["model"]["version"]) == ("done", 1.0, 1)
    assert run_trainq.ok("models", "list", "--json").json["total"] == 1


def test_a_model_that_was_damaged_is_not_reused(run_trainq):
    """Q46: only a verified version answers for a training."""
    make_models(run_trainq, ("a=2",))
    again = ("submit", "ok", "--param", "a=2", "--reuse", "--json")
    (item,) = run_trainq.ok(*again).json["items"]
    assert (item["result"], item["id"], item["state"]) == ("reused", 1, "done")
    path = run_trainq.ok("models", "path", "ok@1").out.rstrip("\n")
    os.chmod(os.path.join(path, "weights.json"), 0o600)
    with open(os.path.join(path, "weights.json"), "a", encoding="ascii") as file:
        file.write("x")
    (item,) = run_trainq.ok(*again).json["items"]
    assert item["result"] == "submitted"


def test_types(run_trainq):
    """Q04: the registry is listed, shown and checked."""
    assert "no types yet" in run_trainq.ok("types").out
    type_file(run_trainq, TYPES + '[types.lost]\nrun = ["/no/such/trainer"]\n')
    answer = run_trainq.ok("types", "--json").json
    assert (answer["kind"], [item["name"] for item in answer["items"]]) == ("type_list", ["ok", "lost"])
    (shown,) = run_trainq.ok("types", "show", "ok", "--json").json["items"]
    assert [(param["name"], param["default"]) for param in shown["params"]] == [("a", 1), ("b", "x")]
    checked = run_trainq("types", "check", "--json")
    assert checked.code == 1
    assert "/no/such/trainer" in checked.json["problems"][0]
    assert "a" in run_trainq.ok("types", "show", "ok").out


def test_workers(run_trainq):
    assert run_trainq.ok("workers", "--json").json["items"] == []
    with run_trainq.running("worker", "--name", "anna", "--slots", "1"):
        end = time.monotonic() + 60
        while not (items := run_trainq.ok("workers", "--json").json["items"]):
            assert time.monotonic() < end
    (item,) = items
    assert (item["name"], item["state"], item["slots"], item["jobs"]) == ("anna", "idle", 1, [])
    assert set(item) == {
        "name", "id", "host", "pid", "user_id", "state", "reason", "slots", "gpus", "queues", "jobs", "started_at",
        "heartbeat_at", "version",
    }  # fmt: skip
    assert "anna" in run_trainq.ok("workers").out


# wait, cancel, retry, prune ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (("true",), 0),
        (("sh", "-c", "exit 3"), 3),
        (("sh", "-c", "kill -9 $$"), 137),
        (("/no/such/program",), 127),
        (("/etc/passwd",), 126),
    ],
)
def test_wait_tells_exactly_what_happened(run_trainq, command, code):
    """E09: the job's own exit status, and else 0 or 1."""
    run_trainq.ok("submit", "--", *command)
    run_trainq.ok("worker", "--once")
    assert run_trainq("wait", 1, "--exit-code", "job").code == code
    waited = run_trainq("wait", 1, "--json")
    assert (waited.code, waited.json["kind"]) == (min(code, 1), "job")


def test_wait_for_a_time_limit_a_cancel_and_a_start(run_trainq):
    run_trainq.ok("submit", "--time", "0.3s", "--grace", "0s", "--", "sleep", "60")
    run_trainq.ok("submit", "--", "true")
    run_trainq.ok("cancel", 2)
    run_trainq.ok("worker", "--once")
    assert run_trainq("wait", 1, "--exit-code", "job").code == 124
    assert run_trainq("wait", 2, "--exit-code", "job").code == 125
    assert run_trainq("wait", "1,2", "--exit-code", "job").code == 2
    both = run_trainq("wait", "1,2", "--json")
    assert (both.code, both.json["kind"], both.json["total"]) == (1, "job_list", 2)
    run_trainq.ok("submit", "--", "sleep", "60")
    late = run_trainq("wait", 3, "--for", "running", "--timeout", "0.1s", "--json")
    assert (late.code, late.json["error"]) == (5, "timeout")
    with run_trainq.running("worker"):
        run_trainq.ok("wait", 3, "--for", "running", "--timeout", "60s")
        assert run_trainq("wait", "1-3", "--any").code == 1
        done = run_trainq.ok("cancel", 3, "--wait", "--timeout", "60s", "--json").json
        assert done["items"] == [{"id": 3, "result": "canceled", "error": None}]


def test_submit_and_wait(run_trainq):
    """E09: submit --wait and -f answer like wait, with one document in JSON."""
    with run_trainq.running("worker"):
        assert run_trainq.ok("submit", "--wait", "--", "true").out == "1\n"
        assert run_trainq("submit", "--wait", "--exit-code", "job", "--", "sh", "-c", "exit 5").code == 5
        done = run_trainq("submit", "--wait", "--json", "--", "false")
        assert done.code == 1
        assert done.json["items"][0]["job"]["state"] == "errored"
        followed = run_trainq("submit", "-f", "--", "sh", "-c", "echo shown; exit 1")
        assert (followed.code, followed.out) == (1, "shown\n")
        assert run_trainq("submit", "-f", "--json", "--", "true").code == 2


@pytest.mark.parametrize("how", [("--wait", "--exit-code", "job"), ("-f",)])
def test_what_is_for_one_job_stores_none_of_two(run_trainq, how):
    """E09: exit 2 is said before anything is stored."""
    two = b'{"argv": ["true"]}\n{"argv": ["true"]}\n'
    refused = run_trainq("submit", "--from", "-", *how, stdin=two, timeout=20)
    assert (refused.code, refused.out) == (2, "")
    assert "one job" in refused.err
    assert run_trainq.ok("status", "--all", "--json").json["total"] == 0


def test_an_own_status_of_several_is_refused_at_once(run_trainq):
    """E09: `wait --exit-code job` is for one job, and says so before they have ended."""
    run_trainq.ok("submit", "--from", "-", stdin=b'{"argv": ["true"]}\n{"argv": ["true"]}\n')
    for words in (("1,2",), ("1", "9"), ("--state", "pending"), ("--state", "errored")):
        refused = run_trainq("wait", *words, "--exit-code", "job", timeout=20)
        assert refused.code == 2, words
        assert "one job" in refused.err


def test_cancel_says_what_it_did_to_each(run_trainq):
    """Q30, Q32: at once, "already" the second time, and an ended one is passed over in a list."""
    run_trainq.ok("submit", "--", "true")
    run_trainq.ok("worker", "--once")
    run_trainq.ok("submit", "--", "true")
    assert run_trainq.ok("cancel", "1,2", "--dry-run").out == "1 ended: job 1 is already done\n2 would be canceled\n"
    assert run_trainq.ok("status", 2, "--json").json["state"] == "pending"
    assert run_trainq.ok("cancel", "1,2").out == "1 ended: job 1 is already done\n2 canceled\n"
    assert run_trainq.ok("cancel", 2).out == "2 already canceled\n"
    assert run_trainq("cancel", 1).code == 4
    assert run_trainq.ok("cancel", "--state", "pending").out == "no jobs fit: nothing to do\n"
    assert run_trainq.ok("cancel", "--state", "pending", "--json").json["items"] == []


def test_retry_says_what_it_did_to_each(run_trainq):
    """Q39: the same id, one more attempt."""
    run_trainq.ok("submit", "--", "false")
    run_trainq.ok("worker", "--once")
    assert run_trainq.ok("retry", 1).out == "1 retried\n"
    assert run_trainq.ok("retry", 1).out == "1 already waits or runs\n"
    run_trainq.ok("worker", "--once")
    assert len(run_trainq.ok("status", 1, "--json").json["attempts"]) == 2
    mixed = run_trainq("retry", "1,9", "--json")
    assert mixed.code == 7
    assert [item["result"] for item in mixed.json["items"]] == ["retried", "unknown"]


def test_prune_says_what_it_did(run_trainq):
    """Q42: a second pass removes nothing; what waits is refused."""
    run_trainq.ok("submit", "--", "true")
    run_trainq.ok("submit", "--", "true")
    run_trainq.ok("worker", "--once")
    assert run_trainq.ok("prune", "--older-than", "0s", "--dry-run").out == "1 would be removed\n"
    answer = run_trainq.ok("prune", "--older-than", "0s", "--json").json
    assert (answer["kind"], answer["items"]) == ("changes", [{"id": 1, "result": "removed", "error": None}])
    assert run_trainq.ok("prune", "--older-than", "0s").out == "nothing to do\n"
    assert run_trainq("prune", 2).code == 4
    assert run_trainq("prune", "1", "--older-than", "0s").code == 2


# submit -----------------------------------------------------------------------------------------------------------


def test_from_a_file(run_trainq):
    """E04: a job a line, blank lines skipped; one bad line and nothing is stored."""
    good = b'{"argv": ["true"], "name": "a", "tag": ["x"]}\n\n{"shell": "echo hi", "params": {"n": 1}}\n'
    assert run_trainq.ok("submit", "--from", "-", stdin=good).out == "1\n2\n"
    assert run_trainq.ok("status", 2, "--json").json["command"]["shell"] == "echo hi"
    for bad, said in (
        (b'{"argv": ["true"]}\n{"argv": []}\n', "line 2: argv: a list of texts"),
        (b'{"argv": ["true"], "prio": 1}\n', "line 1: unknown field 'prio'"),
        (b'\n\n{"argv"', "line 3: not JSON"),
        (b'{"argv": ["\xff"]}\n', "line 1: not JSON: not UTF-8"),
        (b'{"argv": ["true"], "time": 5}\n', "line 1: time: "),
        (b"\n\n", "no job in it"),
    ):
        refused = run_trainq("submit", "--from", "-", stdin=bad)
        assert (refused.code, refused.out) == (2, ""), bad
        assert said in refused.err
    assert run_trainq("submit", "--from", "nothing.jsonl").code == 2
    assert run_trainq("submit", "--from", "-", "--", "true", stdin=good).code == 2
    assert run_trainq.ok("status", "--all", "--json").json["total"] == 2


TYPE_OF_ANY = '[types.any]\nrun = ["true"]\n[types.text]\nrun = ["true"]\n[types.text.params]\na = { type = "text" }\n'


@pytest.mark.parametrize(
    "params", ['{"a": NaN}', '{"a": [1e999]}', '{"a": "\\ud800"}', '{"a": {"\\ud800": 1}}', '{"": 1}']
)
@pytest.mark.parametrize("what", ['"argv": ["true"]', '"shell": "true"', '"type": "any"'])
def test_parameters_of_a_line_are_json_and_text(run_trainq, what, params):
    """E04: what neither JSON nor UTF-8 can hold is refused with its line and name, and nothing is stored."""
    type_file(run_trainq, TYPE_OF_ANY)
    line = f'{{"argv": ["true"]}}\n{{{what}, "params": {params}}}\n'
    refused = run_trainq("submit", "--from", "-", stdin=line.encode())
    assert (refused.code, refused.out) == (2, "")
    assert "line 2: " in refused.err
    assert "parameter" in refused.err
    assert "\n" not in refused.err.rstrip("\n").partition("hint")[0].rstrip("\n")
    assert run_trainq.ok("status", "--all", "--json").json["total"] == 0


@pytest.mark.parametrize("words", [("any",), ("text",), ("--", "true")])
def test_a_typed_half_of_a_pair_is_shown(run_trainq, words):
    """Q07: a typed value that JSON spells and UTF-8 does not have is passed on as it is, and breaks no card."""
    type_file(run_trainq, TYPE_OF_ANY)
    run_trainq.ok("submit", "--param", 'a="\\ud800"', *words)
    assert "a=" in run_trainq.ok("status", 1).out
    assert run_trainq.ok("status", 1, "--json").json["params"]["a"]


def test_odd_parameters_of_before_are_shown(run_trainq):
    """Q96: a job that was stored with values that are no text breaks neither its card nor the document."""
    run_trainq.ok("submit", "--param", "a=1", "--", "true")
    db = sqlite3.connect(os.path.join(run_trainq.root, "queue.sqlite"))
    db.execute("""UPDATE spec SET doc = replace(doc, '"a":1', '"a":["\\ud800",NaN,"\\udcff"]')""")
    db.commit()
    db.close()
    assert "a=[" in run_trainq.ok("status", 1).out
    run_trainq.ok("status", "--columns", "id,params")
    assert run_trainq.ok("status", 1, "--json").json["params"]["a"][1] is None


def test_every_field_of_the_table_is_an_option(run_trainq):
    from trainq.domain.request import FIELDS

    text = run_trainq.ok("submit", "--help").out
    for field in FIELDS:
        for flag in field.flags:
            assert flag in text


@pytest.mark.parametrize("word", ["train.py", "./train.sh", "python"])
def test_a_command_without_dashes_gets_the_right_line(run_trainq, word):
    refused = run_trainq("submit", word)
    assert refused.code == 2
    assert f"hint: trainq submit -- {'python ' if word.endswith('.py') else ''}{word}\n" in refused.err


# worker, report ---------------------------------------------------------------------------------------------------


def test_a_worker_with_nothing_to_do(run_trainq):
    """Q14: a clean outcome."""
    done = run_trainq.ok("worker", "--once")
    assert done.out == "nothing to do\n"
    report = run_trainq.ok("worker", "--until", "idle", "--json").json
    assert (report["kind"], report["jobs"], report["lost_claims"]) == ("worker_report", [], 0)


def test_what_a_worker_says(run_trainq):
    run_trainq.ok("submit", "--name", "odd\nname", "--", "sh", "-c", "echo no; exit 3")
    said = run_trainq.ok("worker", "--once")
    assert "job 1 (odd\\nname) errored (exit)" in said.err
    assert said.out == "1 attempt: 1 errored\n"
    run_trainq.ok("retry", 1)
    events = [json.loads(line) for line in run_trainq.ok("worker", "--once", "--jsonl").out.splitlines()]
    assert "job ended" in [event["event"] for event in events]
    run_trainq.ok("retry", 1)
    told = run_trainq.ok("worker", "--once", "--log-format", "json")
    assert all(json.loads(line)["at"] for line in told.err.splitlines())


@pytest.mark.parametrize(
    "args",
    [
        ("--until", "tomorrow"),
        ("--max-jobs", "0"),
        ("--slots", "many"),
        ("--once", "--until", "idle"),
        ("--log-format", "xml"),
    ],
)
def test_a_worker_refuses(run_trainq, args):
    refused = run_trainq("worker", *args)
    assert refused.code == 2, refused


def test_report_from_any_program(run_trainq):
    """Progress and metrics of a job come from a program of any language; outside of one it warns and exits 0."""
    tool = f"{sys.executable} -m trainq report"
    script = f"{tool} --step 3/4 --metric loss=0.5 --message 'so far' && {tool} --progress 40% --strict"
    run_trainq.ok("submit", "--", "sh", "-c", f"{script}; exit 3")
    run_trainq.ok("worker", "--once")
    job = run_trainq.ok("status", 1, "--json").json
    assert (job["progress"]["fraction"], job["progress"]["message"]) == (0.4, "so far")
    outside = run_trainq("report", "--progress", "0.5")
    assert (outside.code, outside.out) == (0, "")
    assert "no job of trainq" in outside.err
    for args in ((), ("--progress", "2"), ("--step", "x"), ("--metric", "loss"), ("--progress", "nan")):
        assert run_trainq("report", *args).code == 2


# doctor, init, demo -----------------------------------------------------------------------------------------------


def test_doctor_on_a_healthy_queue(run_trainq):
    run_trainq.env["TRAINQ_TIMES_POLL"] = "2s"
    answer = run_trainq.ok("doctor", "--json").json
    assert (answer["kind"], answer["state"]) == ("doctor", "ok")
    settings = {row["name"]: (row["value"], row["origin"]) for row in answer["settings"]}
    assert settings["times.poll"] == ("2s", "env")
    assert settings["keep.models"] == (3, "default")
    assert {check["name"] for check in answer["checks"]} >= {"root", "store", "integrity", "locks", "room", "settings"}
    assert "times.poll" in run_trainq.ok("doctor").out


def test_doctor_goes_on_after_a_fault(run_trainq):
    type_file(run_trainq, "\n[times]\nhartbeat = '1s'\n")
    os.rmdir(os.path.join(run_trainq.root, "models", ".aside"))
    sick = run_trainq("doctor", "--json")
    assert sick.code == 6
    bad = {check["name"] for check in sick.json["checks"] if check["state"] == "bad"}
    assert {"directories", "settings"} <= bad
    assert "locks" in {check["name"] for check in sick.json["checks"] if check["state"] == "ok"}


def test_init_twice_and_many_at_once(run_trainq, tmp_path):
    """Q63: twenty at once make one queue, and each says what it found."""
    root = str(tmp_path / "fresh")
    answers = []
    threads = [
        threading.Thread(target=lambda: answers.append(run_trainq.ok("init", root, "--json").json["result"]))
        for _ in range(20)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(answers) == ["already"] * 19 + ["made"]
    assert run_trainq.ok("init", root).out == f"already a queue: {root}\n"


def test_the_demo(run_trainq, tmp_path):
    """A real training end to end: models with metrics, and commands to go on with."""
    pytest.importorskip("sklearn")
    run_trainq.env["TMPDIR"] = str(tmp_path)
    shown = run_trainq.ok("demo", "--json", timeout=110).json
    assert shown["kind"] == "demo"
    assert {job["state"] for job in shown["jobs"]} == {"done"}
    assert {model["type"] for model in shown["models"]} == {"wine", "diabetes", "intents"}
    assert all(model["metrics"] and os.path.isdir(model["path"]) for model in shown["models"])
    assert shown["root"].startswith(str(tmp_path))
    assert run_trainq.ok("--root", shown["root"], "status", "-q").ids


def test_the_demo_without_its_library(run_trainq):
    code = (
        "import sys, importlib.util as u; find = u.find_spec\n"
        "u.find_spec = lambda name, *more: None if name == 'sklearn' else find(name, *more)\n"
        "sys.argv = ['trainq', 'demo']\n"
        "from trainq.cli.main import main; main()"
    )
    import subprocess

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=run_trainq.env)
    assert done.returncode == 2
    assert "scikit-learn" in done.stderr
    assert "pip install 'trainq-cli[demo]'" in done.stderr
