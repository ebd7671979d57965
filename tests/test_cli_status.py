"""`status`: lists, cards, counts and watching, with every key of the contract always there."""

from __future__ import annotations

import base64
import json
import os
import re
import select
import time

import pytest

KEYS = {
    "id": None, "ref": None, "uid": None, "name": None, "key": None, "fingerprint": None, "type": None, "queue": None,
    "state": None, "reason": None, "side": None, "stage": None, "priority": None, "tags": None, "user": None,
    "submit_host": None, "command": "argv argv_b64 shell cwd", "params": None, "seed": None, "data": "sha256 size",
    "array": "id index count", "after": None, "request": "gpus gpu_type vram_mib cpus mem_mib time_s grace_s",
    "retry": "max on used", "attempt": "n worker host pid gpus claimed_at started_at heartbeat_at", "attempts": None,
    "stages": "fetching_at training_at storing_at", "resumed_from": None, "save_failed": None,
    "chunks": "todo leased done failed pass", "progress": "fraction step total message eta_s",
    "result": "exit_code signal error ended_at", "times": "submitted_at eligible_at queued_s run_s",
    "paths": "log run checkpoints", "model": "key version path", "position": None, "waiting_for": None,
    "code": "commit dirty snapshot", "metrics": None,
}  # fmt: skip
TIME = r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\.[0-9]{3}Z"


def check_keys(job):
    for name, inner in KEYS.items():
        assert name in job, name
        for key in (inner or "").split():
            assert key in job[name], (name, key)


@pytest.fixture
def lived(run_trainq):
    """A queue with one job of each kind of end, one that was pruned, and one that waits."""
    run_trainq.ok("submit", "--", "true")
    run_trainq.ok("submit", "--tag", "t", "--", "sh", "-c", "echo out of luck; exit 3")
    run_trainq.ok("submit", "--", "/no/such/program")
    run_trainq.ok("submit", "--", "true")
    run_trainq.ok("cancel", "4", "--message", "not now")
    run_trainq.ok("worker", "--until", "empty", "--slots", "1")
    run_trainq.ok("submit", "--priority", "3", "--", "sleep", "60")
    return run_trainq


def test_no_key_ever_vanishes(lived):
    """Q96, Q36: every key of the contract in lists, cards and rows of the past; times are UTC with milliseconds."""
    listed = lived.ok("status", "--json").json
    assert (listed["kind"], listed["total"], listed["truncated"]) == ("job_list", 5, False)
    assert re.fullmatch(TIME, listed["generated_at"])
    lived.ok("prune", "4")
    pruned = lived.ok("status", "--json").json
    assert [job["id"] for job in pruned["items"]] == [job["id"] for job in listed["items"]]
    for job in (*listed["items"], *pruned["items"], lived.ok("status", 1, "--json").json):
        check_keys(job)
        assert re.fullmatch(TIME, job["times"]["submitted_at"])
        if job["state"] in ("done", "errored", "canceled"):
            assert re.fullmatch(TIME, job["result"]["ended_at"])
            assert job["times"]["run_s"] >= 0
            assert job["times"]["queued_s"] >= 0
            assert (job["reason"] is None) == (job["state"] == "done")


def test_the_order_and_the_cells_of_the_list(lived):
    """What is active first, then what ended, newest first; no cell is blank."""
    lines = lived.ok("status").out.splitlines()
    assert lines[0].split() == ["ID", "NAME", "STATE", "REASON", "QUEUE", "USER", "SUBMITTED", "RUN", "INFO"]
    assert [int(line.split()[0]) for line in lines[1:]] == [5, 3, 2, 1, 4]
    rows = {int(line.split()[0]): line.split() for line in lines[1:]}
    assert rows[2][2:4] == ["errored", "exit"]
    assert rows[3][2:4] == ["errored", "spawn"]
    assert rows[4][2:4] == ["canceled", "user"]
    assert rows[1][2:4] == ["done", "-"]


def test_the_cards_of_ended_jobs(lived):
    """Q38, Q39: an attempt with its own end; whose fault it was."""
    errored = lived.ok("status", 2, "--json").json
    assert (errored["state"], errored["reason"], errored["side"]) == ("errored", "exit", "user")
    assert errored["result"]["exit_code"] == 3
    (attempt,) = errored["attempts"]
    assert attempt["result"]["exit_code"] == 3
    assert attempt["worker"] == errored["attempt"]["worker"]
    assert attempt["claimed_at"] <= attempt["started_at"] <= attempt["ended_at"]
    assert os.path.exists(errored["paths"]["log"])
    text = lived.ok("status", 2).out
    assert "errored (exit)" in text
    assert "trainq retry 2" in text


def test_a_pending_card_tells_its_place(lived):
    lived.ok("submit", "--", "true")
    waiting = lived.ok("status", 6, "--json").json
    assert (waiting["position"], waiting["waiting_for"]) == (2, "no live worker")
    assert lived.ok("status", 5, "--json").json["position"] == 1
    assert lived.ok("status", "5-6", "--json").json["items"][1]["position"] is None


@pytest.mark.parametrize(
    ("args", "ids"),
    [
        (("--all",), [5, 4, 3, 2, 1]),
        (("--state", "errored"), [3, 2]),
        (("--state", "errored,done"), [3, 2, 1]),
        (("--tag", "t"), [2]),
        (("--since", "1h"), [5, 4, 3, 2, 1]),
        (("--before", "1h"), []),
        (("--user", "nobody-here"), []),
        (("--all", "--limit", "2"), [5, 4]),
        (("--all", "--limit", "0"), [5, 4, 3, 2, 1]),
        (("--sort", "id"), [1, 2, 3, 4, 5]),
        (("--sort=-priority", "--limit", "1"), [5]),
        (("3,1", "--limit", "1"), [3, 1]),
        (("1-5", "--state", "done"), [1]),
        (("last",), [5]),
        (("last~1",), [4]),
    ],
)
def test_filters_and_limits(lived, args, ids):
    """Q57: filters, order and limit; a limit never cuts an explicit selector."""
    found = lived.ok("status", *args, "-q").ids
    assert found == ids


def test_truncation_is_said(lived):
    cut = lived.ok("status", "--all", "--limit", 2, "--json").json
    assert (len(cut["items"]), cut["total"], cut["truncated"]) == (2, 5, True)
    assert "3 more; --limit 0 shows all" in lived.ok("status", "--all", "--limit", 2).out


@pytest.mark.parametrize("args", [(), ("--all",), ("--sort", "id")])
def test_a_limit_of_any_size(lived, args):
    """Q57: more rows than the store can count to are all rows."""
    for limit in (2**31, 2**63 - 1, 2**63, 10**30):
        assert lived.ok("status", *args, "-q", "--limit", limit).ids == lived.ok("status", *args, "-q").ids


def test_columns(lived):
    out = lived.ok("status", "2", "--columns", "id,exit_code,tags").out
    assert out.splitlines() == ["ID  EXIT_CODE  TAGS", "2   3          t"]
    assert lived("status", "--columns", "id,colour").code == 2


def test_summary_counts(lived):
    found = lived.ok("status", "--summary", "--json").json
    assert found["kind"] == "summary"
    assert found["counts"] == {
        "held": 0, "pending": 1, "running": 0, "done": 1, "errored": 2, "canceled": 1, "skipped": 0,
    }  # fmt: skip
    assert found["queues"]["default"] == found["counts"]
    assert lived.ok("status", "--summary").out.splitlines()[-1].split()[:3] == ["total", "0", "1"]


def test_a_pruned_job_without_a_model_is_not_found(lived):
    """Q41: 3, with the line of its end and where more is known."""
    lived.ok("prune", "2")
    gone = lived("status", 2)
    assert gone.code == 3
    assert re.search(r"job 2 is pruned; it ended errored \(exit\) at " + TIME, gone.err)
    assert "hint: trainq history 2" in gone.err
    several = lived("status", "1,2", "--json")
    assert (several.code, several.json["unknown"]) == (7, ["2"])


def test_bytes_that_are_not_text(run_trainq):
    """E01: an argument of any bytes has its twin in JSON, and breaks no row."""
    word = b"a\xff\n\x1b[31m'"
    run_trainq.ok("submit", "--", b"echo", word)
    job = run_trainq.ok("status", 1, "--json").json
    assert [base64.b64decode(text) for text in job["command"]["argv_b64"]] == [b"echo", word]
    assert job["command"]["argv"][1] == "a\ufffd\n\x1b[31m'"
    assert "\x1b" not in run_trainq.ok("status", 1).out
    listed = run_trainq.ok("status", "--jsonl").out
    assert json.loads(listed)["command"]["argv_b64"]


def test_a_name_with_control_bytes_stays_in_its_row(run_trainq):
    run_trainq.ok("submit", "--name", "two\nlines\x1b[2J", "--", "true")
    out = run_trainq.ok("status").out
    assert len(out.splitlines()) == 2
    assert "two\\nlines\\x1b[2J" in out
    assert run_trainq.ok("status", 1, "--json").json["name"] == "two\nlines\x1b[2J"


def test_show_env(run_trainq):
    """Environment values appear only when asked for, and never a secret."""
    run_trainq.ok("submit", "--", "true", SOME_VALUE="some value", MY_PASSWORD="hidden")
    assert "env" not in run_trainq.ok("status", 1, "--json").json
    env = run_trainq.ok("status", 1, "--json", "--show-env").json["env"]
    assert env["SOME_VALUE"] == "some value"
    assert "MY_PASSWORD" not in env
    assert "SOME_VALUE" in run_trainq.ok("status", 1, "--show-env").out
    assert run_trainq("status", "--show-env").code == 2


def lines_of(process, until, patience_s=60):
    """Lines of a process until one fits."""
    end = time.monotonic() + patience_s
    while time.monotonic() < end:
        if select.select([process.stdout], [], [], 0.2)[0]:
            line = process.stdout.readline()
            if until(line):
                return line
            assert line, process.stderr.read()
    raise AssertionError("nothing fitting came")


def test_watching_a_job_to_its_end(run_trainq):
    """Every change is a line, and it ends by itself when what was named has ended."""
    run_trainq.ok("submit", "--", "true")
    with run_trainq.running("status", "1", "--watch", "--jsonl") as process:
        lines_of(process, lambda line: json.loads(line)["state"] == "pending")
        run_trainq.ok("worker", "--once")
        lines_of(process, lambda line: json.loads(line)["state"] == "done")
        assert process.wait(30) == 0


def test_watching_for_people(run_trainq):
    with run_trainq.running("status", "--watch") as process:
        lines_of(process, lambda line: line.startswith(b"no jobs"))
        run_trainq.ok("submit", "--name", "newcomer", "--", "true")
        lines_of(process, lambda line: b"newcomer" in line)


def test_a_silent_worker_shows(run_trainq):
    """A running job whose heartbeat is late is `silent`; the word is for people, and nothing else changes."""
    import signal

    fast = {"TRAINQ_TIMES_HEARTBEAT": "0.2s", "TRAINQ_TIMES_HOLDER_LIMIT": "0.6s", "TRAINQ_TIMES_ZOMBIE_AFTER": "2s"}
    run_trainq.env |= fast
    run_trainq.ok("submit", "--", "sleep", "60")
    worker = run_trainq.start("worker")
    try:
        end = time.monotonic() + 60
        while run_trainq.ok("status", 1, "--json").json["state"] != "running":
            assert time.monotonic() < end
        worker.send_signal(signal.SIGSTOP)
        while run_trainq.ok("status", 1, "--json").json["reason"] != "silent":
            assert time.monotonic() < end
        assert run_trainq.ok("workers", "--json").json["items"][0]["state"] in ("silent", "gone")
        assert run_trainq.ok("status", 1, "--json").json["state"] == "running"
    finally:
        worker.send_signal(signal.SIGCONT)
        worker.send_signal(signal.SIGTERM)
        worker.send_signal(signal.SIGTERM)
        worker.communicate(timeout=60)
