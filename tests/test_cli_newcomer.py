"""What somebody meets who knows nothing but the README: every dead end names the command that leads on."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import sqlite3
import time

import pytest
from conftest import Trainq, environment
from test_cli_frame import on_terminal

TYPES = """
[types.line]
run = ["true"]
[types.line.params]
lr = { type = "float", default = 0.1 }
batch_size = { type = "int", default = 8 }
"""


def type_file(trainq, text):
    with open(os.path.join(trainq.root, "trainq.toml"), "a", encoding="utf-8") as file:
        file.write(text)


def until(look, patience_s=60):
    """What `look` answers once it is true."""
    end = time.monotonic() + patience_s
    while not (seen := look()):
        assert time.monotonic() < end, "it did not come about"
        time.sleep(0.05)
    return seen


@contextlib.contextmanager
def at_work(trainq, *args):
    """A worker that is alive, and ended well."""
    with trainq.running("worker", *args) as process:
        until(lambda: trainq.ok("workers", "-q").out)
        yield process
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)


def lines_of_terminal(trainq, *args, columns):
    code, out = on_terminal(trainq, *args, TERM="xterm", NO_COLOR="1", COLUMNS=str(columns))
    assert code == 0, out
    return out.decode().replace("\r", "").splitlines()


# a queue that the breaker has closed -----------------------------------------------------------------------------


@pytest.fixture
def paused(run_trainq):
    """Five jobs have failed at once, and the breaker has closed the queue."""
    for _ in range(5):
        run_trainq.ok("submit", "--", "false")
    run_trainq.ok("worker", "--until", "empty", "--slots", "1")
    return run_trainq


SAID = "queue default is paused by the breaker after 5 failures in a row"
OPENS = "trainq resume --queue default"


def test_a_submit_into_a_paused_queue_says_so(paused):
    done = paused.ok("submit", "--", "true")
    assert (done.out, done.err) == ("6\n", f"trainq: {SAID}; {OPENS}\n")
    assert paused.ok("submit", "-q", "--", "true").err == ""
    paused.ok("resume", "--queue", "default")
    assert paused.ok("submit", "--", "true").err == ""


def test_a_paused_queue_shows_in_lists_cards_and_doctor(paused):
    assert OPENS not in paused.ok("status").out  # nothing waits for it
    paused.ok("submit", "--", "true")
    assert paused.ok("status").out.endswith(f"{SAID}\nnext: {OPENS}\n")
    card = paused.ok("status", 6)
    assert card.out.endswith(f"next: {OPENS}\n")
    assert paused.ok("status", 6, "--json").json["waiting_for"] == SAID
    sick = paused("doctor", "--json")
    assert sick.code == 1
    (check,) = [check for check in sick.json["checks"] if check["name"] == "queues"]
    assert (check["state"], check["message"]) == ("warning", f"{SAID}; {OPENS}")
    paused.ok("resume", "--all")
    assert "next:" not in paused.ok("status").out
    assert paused.ok("doctor", "--json").json["state"] == "ok"


def test_a_worker_says_that_its_queue_is_paused(run_trainq):
    for _ in range(5):
        run_trainq.ok("submit", "--", "false")
    closing = run_trainq.ok("worker", "--until", "empty", "--slots", "1").err
    assert f"{SAID}; {OPENS}\n" in closing
    run_trainq.ok("submit", "--", "true")
    assert f"{SAID}; {OPENS}\n" in run_trainq.ok("worker", "--until", "idle").err
    run_trainq.ok("resume", "--all")
    assert "paused" not in run_trainq.ok("worker", "--until", "idle").err


def test_resuming_where_nothing_is_paused(run_trainq):
    assert run_trainq.ok("resume", "--all").out == "no queue is paused\n"
    assert run_trainq.ok("resume", "--all", "--json").json["items"] == []
    assert run_trainq.ok("resume", "--queue", "default").out == "default already is open\n"


# the list on a terminal ------------------------------------------------------------------------------------------


def test_a_list_never_wraps_on_a_narrow_terminal(run_trainq):
    """Id, state, reason, run and submitted stay whole; name and info are cut; queue and user go first."""
    run_trainq.ok("submit", "--name", "n" * 60, "--", f"/no/such/{'e' * 150}")
    run_trainq.ok("submit", "--name", "列" * 40, "--", "true")
    run_trainq.ok("worker", "--until", "empty")
    for columns in (80, 100, 140):
        lines = lines_of_terminal(run_trainq, "status", columns=columns)
        assert len(lines) == 3
        heading = lines[0].split()
        assert [name for name in heading if name not in ("QUEUE", "USER")] == [
            "ID", "NAME", "STATE", "REASON", "SUBMITTED", "RUN", "INFO",
        ]  # fmt: skip
        (failed,) = [line for line in lines if line.startswith("1 ")]
        assert len(failed) <= columns
        assert re.search(r"n…  errored  spawn   .*…$", failed), failed
        (wide,) = [line for line in lines if line.startswith("2 ")]
        assert "列…" in wide
        assert wide.index("done") + wide.count("列") == failed.index("errored")  # these letters are two cells wide
    assert max(map(len, run_trainq.ok("status").out.splitlines())) > 150  # nothing is cut in a pipe


def test_what_is_the_same_in_all_rows_is_left_out_on_a_terminal(run_trainq):
    type_file(run_trainq, '[queues]\nnames = ["default", "gpu"]\n')
    run_trainq.ok("submit", "--", "true")
    assert "QUEUE" not in lines_of_terminal(run_trainq, "status", columns=200)[0]
    assert "USER" not in lines_of_terminal(run_trainq, "status", columns=200)[0]
    assert "USER" in run_trainq.ok("status").out
    assert "QUEUE" in lines_of_terminal(run_trainq, "status", "--columns", "id,queue", columns=20)[0]
    run_trainq.ok("submit", "--queue", "gpu", "--", "true")
    assert "QUEUE" in lines_of_terminal(run_trainq, "status", columns=200)[0]


def test_headings_look_the_same_in_colour(run_trainq):
    run_trainq.ok("submit", "--", "true")
    bare = run_trainq.ok("status").out
    colored = run_trainq.ok("status", "--color", "always").out
    assert re.sub(r"\x1b\[[0-9;]*m", "", colored) == bare
    assert colored.startswith("\x1b[1mID")


# what is pruned --------------------------------------------------------------------------------------------------


@pytest.fixture
def pruned(run_trainq):
    run_trainq.ok("submit", "--", "false")
    run_trainq.ok("submit", "--", "true")
    run_trainq.ok("worker", "--until", "empty", "--slots", "1")
    run_trainq.ok("prune", "1")
    return run_trainq


def test_retry_of_a_pruned_job_says_what_became_of_it(pruned):
    """Q41: the same answer as of status, with the line of its end."""
    refused = pruned("retry", 1)
    assert refused.code == 3
    assert re.match(r"trainq: job 1 is pruned; it ended errored \(exit\) at .*\nhint: trainq history 1\n$", refused.err)
    assert pruned("retry", 99).err.startswith("trainq: no such job: 99")
    several = pruned("retry", "1,2", "--json")
    assert several.code == 7
    assert [(item["id"], item["result"]) for item in several.json["items"]] == [(2, "ended"), (1, "unknown")]
    assert "pruned" in several.json["items"][1]["error"]


def test_a_list_of_all_says_how_many_are_pruned(pruned):
    assert pruned.ok("status", "--all").out.endswith("\n1 more is pruned; trainq history ID tells how it ended\n")
    assert "pruned" not in pruned.ok("status", "--state", "done").out
    assert pruned.ok("status", "--all", "--json").json["total"] == 1
    pruned.ok("prune", "2")
    assert pruned.ok("status", "--all").out == "no jobs\n2 more are pruned; trainq history ID tells how they ended\n"


# metrics and requests --------------------------------------------------------------------------------------------


def test_metrics_show_while_it_runs_and_after(run_trainq):
    """Q36: the newest value of each metric, in the card, in JSON and as a column."""
    script = "python -m trainq report --metric loss=0.5 --metric acc=0.25; until test -e go; do sleep 0.05; done"
    run_trainq.ok(
        "submit", "--param", "lr=0.1", "--", "sh", "-c", script.replace("python", __import__("sys").executable)
    )
    assert run_trainq.ok("status", 1, "--json").json["metrics"] is None
    with at_work(run_trainq):
        until(lambda: run_trainq.ok("status", 1, "--json").json["metrics"] == {"loss": 0.5, "acc": 0.25})
        assert re.search(r"^metrics +loss=0.5 acc=0.25$", run_trainq.ok("status", 1).out, re.MULTILINE)
        assert run_trainq.ok("status", "--columns", "id,metrics").out.splitlines()[1] == "1   loss=0.5 acc=0.25"
        with open(os.path.join(run_trainq.cwd, "go"), "w", encoding="ascii"):
            run_trainq.ok("wait", 1)
    assert run_trainq.ok("status", 1, "--json").json["metrics"] == {"loss": 0.5, "acc": 0.25}


def test_command_and_params_are_columns(run_trainq):
    run_trainq.ok("submit", "--param", "lr=0.1", "--", "echo", "a b")
    run_trainq.ok("submit", "--shell", "echo $HOME")
    out = run_trainq.ok("status", "--all", "--columns", "id,command,params").out
    assert out.splitlines()[1:] == ["2   echo $HOME  -", "1   echo 'a b'  lr=0.1"]


def test_what_is_asked_for_is_one_line_of_the_card(run_trainq):
    asked = ("--mem", "32G", "--vram", "18G", "--cpus", "4", "--on", "h1,h2", "--not-on", "h3")
    run_trainq.ok("submit", *asked, "--time", "2h", "--", "true")
    card = run_trainq.ok("status", 1).out
    said = "1 x any GPU, time 2h00m, 4 cpus, mem 32GiB, vram 18GiB, on h1 or h2, not on h3"
    assert re.search(f"^request +{said}$", card, re.MULTILINE)
    run_trainq.ok("submit", "--", "true")
    assert "request" not in run_trainq.ok("status", 2).out


# interrupted -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "args", [("submit", "-f"), ("submit", "--wait"), ("logs", "-f", "1"), ("wait", "1"), ("status", "-w")]
)
def test_an_interrupt_leaves_the_job_alone_and_says_so(run_trainq, args):
    """^C ends the command, not the job."""
    with at_work(run_trainq):
        job = ("sh", "-c", "echo begun; exec sleep 100")
        if args[0] != "submit":
            run_trainq.ok("submit", "--", *job)
        process = run_trainq.start(*args, *(("--", *job) if args[0] == "submit" else ()))
        if args[0] == "wait":
            run_trainq.ok("wait", "1", "--for", "running")
            until(lambda: os.path.exists(f"/proc/{process.pid}/fd/3"))
            time.sleep(1.0)  # there is nothing to be seen of its waiting
        else:
            process.stdout.readline()
        until(lambda: run_trainq("status", "1", "-q").out)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=30)
        assert process.returncode == 130
        told = b"trainq: interrupted; job 1 goes on\nhint: trainq logs -f 1; trainq cancel 1\n"
        assert err.endswith(b"" if args[0] == "status" else told)
        assert (args[0] == "status") == (b"interrupted" not in err)
        run_trainq.ok("wait", "1", "--for", "running", "--timeout", "60s")


# waiting for what nobody runs ------------------------------------------------------------------------------------


def test_waiting_without_a_worker_is_said_once(run_trainq):
    for flag in ("--wait", "-f"):
        with run_trainq.running("submit", flag, "--", "true") as process:
            assert process.stderr.readline() == b"trainq: no worker is running; trainq worker\n"


def test_the_end_of_a_wait_says_why(run_trainq):
    with at_work(run_trainq):
        for flag in ("--wait", "-f"):
            done = run_trainq("submit", flag, "--", "sh", "-c", "exit 3")
            number = run_trainq.ok("status", "last", "-q").ids[0]
            assert done.code == 1
            assert done.err.splitlines()[-1] == f"trainq: job {number} errored: exit 3; trainq logs {number}"
        assert run_trainq("submit", "-q", "--wait", "--", "false").err == ""
        killed = run_trainq("submit", "--wait", "--", "sh", "-c", "kill -9 $$").err
        assert re.search(r"job 4 errored: signal 9.*; trainq logs 4\n", killed)
        assert run_trainq.ok("submit", "--wait", "--", "true").err == ""
        lost = run_trainq("submit", "--wait", "--", "/no/such/program").err
        assert re.search(r"job 6 errored: .*/no/such/program.*; trainq logs 6\n", lost)


def test_a_pending_card_says_that_no_worker_lives(run_trainq):
    run_trainq.ok("submit", "--", "true")
    assert run_trainq.ok("status", 1, "--json").json["waiting_for"] == "no live worker"
    assert re.search(r"^waiting +no live worker$", run_trainq.ok("status", 1).out, re.MULTILINE)
    with at_work(run_trainq, "--slots", "0"):
        assert run_trainq.ok("status", 1, "--json").json["waiting_for"] == "no live worker"  # it never trains
    run_trainq.ok("submit", "--priority", "9", "--", "sleep", "100")
    with at_work(run_trainq, "--slots", "1"):
        run_trainq.ok("wait", 2, "--for", "running")
        assert run_trainq.ok("status", 1, "--json").json["waiting_for"].endswith(": its slot is taken")
        run_trainq.ok("submit", "--", "true")
        assert run_trainq.ok("status", 3, "--json").json["waiting_for"] == "1 before it"


def test_a_dead_worker_on_this_host_is_gone_at_once(run_trainq):
    """Q14: nobody waits for zombie-after to hear what can be proved."""
    run_trainq.ok("submit", "--", "sleep", "100")
    with run_trainq.running("worker", "--name", "anna"):
        until(lambda: run_trainq.ok("status", 1, "--json").json["state"] == "running")
    (worker,) = run_trainq.ok("workers", "--json").json["items"]
    assert (worker["state"], worker["jobs"]) == ("gone", [1])
    sick = run_trainq("doctor", "--json")
    assert sick.code == 1
    (check,) = [check for check in sick.json["checks"] if check["name"] == "workers" and check["state"] == "warning"]
    assert check["message"] == "worker anna is gone and still holds job 1; trainq prune gives it back"
    run_trainq.ok("prune")
    assert run_trainq.ok("doctor", "--json").json["state"] == "ok"


# hints -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "hint"),
    [
        (("submit", "line", "--lr", "0.2"), "trainq submit line --param lr=0.2"),
        (("submit", "line", "--lr=0.2"), "trainq submit line --param lr=0.2"),
        (("submit", "--name", "x", "line", "--batch-size", "4"), "trainq submit line --param batch_size=4"),
        (("submit", "line", "--nonsense", "1"), "trainq submit --help"),
        (("submit", "--lr", "1", "--", "true"), "trainq submit --help"),
        (("submit", "python train.py"), "trainq submit -- python train.py"),
        (("submit", "cat a | sort"), "trainq submit --shell 'cat a | sort'"),
        (("cancel", "all"), "name them by a filter, such as --state pending"),
        (("cancel", "*"), "name them by a filter, such as --state pending"),
    ],
)
def test_a_wrong_line_gets_the_right_one(run_trainq, args, hint):
    type_file(run_trainq, TYPES)
    refused = run_trainq(*args)
    assert refused.code in (2, 3)
    assert refused.err.splitlines()[1] == f"hint: {hint}"


def test_a_hint_names_the_forms_there_are(run_trainq):
    hint = run_trainq("status", "nope").err
    assert "key:K" in hint
    assert "'12[3]'" in hint


def test_a_program_that_is_not_there_is_noted(run_trainq):
    """It may be there on the worker's host, so the job is stored."""
    done = run_trainq.ok("submit", "--", "pyhton", "train.py")
    assert (done.out, done.err) == ("1\n", "trainq: pyhton is not found in PATH here; the job is stored all the same\n")
    for command in (("/no/such",), ("sh", "-c", "true")):
        assert run_trainq.ok("submit", "--", *command).err == ""
    assert run_trainq.ok("submit", "--env", "PATH=/elsewhere", "--", "pyhton").err == ""


# models, small things --------------------------------------------------------------------------------------------


def test_a_model_that_was_not_written_is_told(run_trainq):
    run_trainq.ok("submit", "--model", "mine", "--", "true")
    run_trainq.ok("submit", "--", "true")
    run_trainq.ok("worker", "--until", "empty")
    text = "nothing was written to TRAINQ_MODEL_DIR; no model"
    card = run_trainq.ok("status", 1, "--json").json
    assert (card["state"], card["message"]) == ("done", text)
    assert text in run_trainq.ok("logs", 1).out
    assert text in run_trainq.ok("history", 1).out
    assert text in run_trainq.ok("status", 1).out
    assert text in run_trainq.ok("status").out
    assert run_trainq.ok("logs", 2).out == ""
    assert run_trainq.ok("status", 2, "--json").json["message"] is None


def test_the_queue_of_the_home_is_named_when_it_is_made(tmp_path):
    if os.path.isdir("/.trainq"):
        pytest.skip("a queue in / is the nearest one from everywhere: remove /.trainq")
    trainq = Trainq("", "/")
    trainq.env = environment(HOME=str(tmp_path), TRAINQ_ROOT=None)
    assert trainq.ok("submit", "--", "true").err == f"trainq: made a queue in {tmp_path}/.trainq\n"
    assert trainq.ok("submit", "--", "true").err == ""


def test_what_never_started_did_not_run(run_trainq):
    run_trainq.ok("submit", "--", "true")
    run_trainq.ok("cancel", 1)
    assert run_trainq.ok("status", "--columns", "id,run").out.splitlines()[1] == "1   -"
    run_trainq.ok("submit", "--", "/no/such/program")
    run_trainq.ok("worker", "--once")
    assert run_trainq.ok("status", "2", "--columns", "id,run").out.splitlines()[1] == "2   -"
    assert not re.search("^ran ", run_trainq.ok("status", 2).out, re.MULTILINE)


def test_the_attempts_of_a_card_have_start_and_duration(run_trainq):
    run_trainq.ok("submit", "--", "false")
    run_trainq.ok("worker", "--once")
    lines = run_trainq.ok("status", 1).out.splitlines()
    assert lines[lines.index("attempts") + 1].split()[:5] == ["N", "STATE", "REASON", "STARTED", "RAN"]
    assert re.match(r"1  errored  exit    [0-9:]{8} +[0-9.]+s ", lines[lines.index("attempts") + 2])


def test_a_worker_that_is_stopped_gives_back(run_trainq):
    run_trainq.ok("submit", "--", "sleep", "100")
    with run_trainq.running("worker", "-q") as quiet:
        run_trainq.ok("wait", 1, "--for", "running")
        quiet.send_signal(signal.SIGTERM)
        assert quiet.communicate(timeout=60) == (b"", b"")  # nothing has ended
    with run_trainq.running("worker") as process:
        run_trainq.ok("wait", 1, "--for", "running")
        process.send_signal(signal.SIGTERM)
        assert process.communicate(timeout=60)[0] == b"1 attempt: 1 given back\n"


def test_a_quiet_worker_prints_the_ids_of_what_has_ended(run_trainq):
    run_trainq.ok("submit", "--retries", "1", "--backoff", "0s", "--", "false")
    assert run_trainq.ok("worker", "-q", "--until", "empty").out == "1\n"
    run_trainq.ok("retry", 1)
    again = run_trainq.ok("worker", "--until", "empty").out
    assert again == "2 attempts: 1 to be retried, 1 errored\n"
    run_trainq.ok("submit", "--", "sh", "-c", "test $TRAINQ_ATTEMPT = 2 || exit 75")
    assert run_trainq.ok("worker", "--until", "empty").out == "2 attempts: 1 requeued, 1 done\n"


@pytest.mark.parametrize(
    ("cause", "code", "said"),
    [
        ("spawn", 4, "attempt 1 of job 1 never ran: no such program"),
        ("zombie", 3, "the log of job 1, attempt 1, is deleted"),
    ],
)
def test_logs_of_an_attempt_that_never_started(run_trainq, cause, code, said):
    """It is not said to be deleted: why nothing was run is. Of a lost worker's nobody knows."""
    run_trainq.ok("submit", "--", "true")
    run_trainq.ok("worker", "--until", "idle")
    os.unlink(os.path.join(run_trainq.root, "runs", "1", "1", "log"))
    with contextlib.closing(sqlite3.connect(os.path.join(run_trainq.root, "queue.sqlite"))) as db, db:
        changed = (
            "UPDATE event SET started_at = NULL, cause = ?, error = 'no such program' WHERE claimed_at IS NOT NULL"
        )
        db.execute(changed, (cause,))
    told = run_trainq("logs", 1)
    assert (told.code, said in told.err) == (code, True), told
    assert "hint: trainq history 1" in told.err


def test_doctor_shows_the_settings_that_were_changed(run_trainq):
    run_trainq.env["TRAINQ_TIMES_POLL"] = "2s"
    shown = run_trainq.ok("doctor").out
    assert "times.poll" in shown
    assert "times.grace" not in shown
    assert "--all" in shown
    assert "times.grace" in run_trainq.ok("doctor", "--all").out
    assert "times.grace" in json.dumps(run_trainq.ok("doctor", "--json").json["settings"])


def test_doctor_is_never_cut(paused):
    """What is wrong stands there with the command that mends it, however narrow the terminal is."""
    _, out = on_terminal(paused, "doctor", TERM="xterm", NO_COLOR="1", COLUMNS="60")
    assert f"{SAID}; {OPENS}" in out.decode()
