"""Every class of error a user can meet: its exit status, its word, one line of text, one document of JSON."""

from __future__ import annotations

import fcntl
import os
import sqlite3
import sys
import tempfile

import pytest
from conftest import Trainq

from trainq.base import files
from trainq.ops.init import init


def type_file(trainq, text):
    with open(os.path.join(trainq.root, "trainq.toml"), "a", encoding="utf-8") as file:
        file.write(text)


TYPES = """
[queues]
names = ["default", "gpu"]
[types.ok]
run = ["true"]
data = "optional"
[types.ok.params]
lr = { type = "float", default = 0.1 }
[types.fed]
run = ["true"]
data = "required"
"""


@pytest.mark.parametrize(
    ("code", "word", "args"),
    [
        (2, "usage", ("submit",)),
        (2, "usage", ("submit", "train.py")),
        (2, "usage", ("logs", "1", "--json")),
        (2, "bad_value", ("submit", "--time", "5", "--", "true")),
        (2, "bad_value", ("status", "--limit", "-1")),
        (2, "bad_value", ("status", "--sort", "beauty")),
        (2, "bad_value", ("status", "--state", "sleeping")),
        (2, "no_selector", ("cancel",)),
        (2, "no_selector", ("retry",)),
        (2, "no_selector", ("history",)),
        (2, "unknown_type", ("submit", "nope")),
        (2, "unknown_queue", ("submit", "--queue", "nope", "--", "true")),
        (2, "unknown_queue", ("worker", "--queue", "nope")),
        (2, "bad_param", ("submit", "ok", "--param", "lr=abc")),
        (2, "bad_param", ("submit", "ok", "--param", "learn=1")),
        (2, "bad_data", ("submit", "fed")),
        (2, "bad_data", ("submit", "ok", "--data", "nothing.json")),
        (3, "not_found", ("status", "99")),
        (3, "not_found", ("cancel", "nope")),
        (3, "not_found", ("history", "key:none")),
        (3, "not_found", ("logs", "last~7")),
        (3, "not_found", ("types", "show", "nope")),
        (3, "not_found", ("models", "show", "nope")),
        (4, "not_possible", ("logs", "1")),
        (4, "not_possible", ("report", "--progress", "0.1", "--strict")),
        (5, "timeout", ("wait", "1", "--timeout", "0.1s")),
        (8, "duplicate", ("submit", "ok")),
    ],
)
def test_each_error_has_its_status_and_its_word(run_trainq, code, word, args):
    """Q96, Q05, Q08, Q09, Q32: the text and the document say the same, and nothing is stored."""
    type_file(run_trainq, TYPES)
    run_trainq.ok("submit", "ok")
    if "--json" not in args:
        told = run_trainq(*args)
        assert (told.code, told.out) == (code, ""), told
        assert "Traceback" not in told.err
        said = told.err.splitlines()
        assert said[0].startswith("trainq: ")
    if args[0] == "logs" and "--json" not in args:
        return  # a stream: it has --jsonl only, and its errors are text
    answered = run_trainq(*args, "--json") if "--" not in args else run_trainq("--json", *args)
    assert answered.code == code
    document = answered.json
    assert (document["schema"], document["kind"]) == ("trainq/1", "error")
    assert (document["code"], document["error"]) == (code, word)
    assert document["message"]
    assert "hint" in document
    assert run_trainq.ok("status", "--all", "--json").json["total"] == 1


def test_a_limit_is_9(run_trainq):
    type_file(run_trainq, "[limits]\nqueue_size = 1\n")
    run_trainq.ok("submit", "--", "true")
    full = run_trainq("--json", "submit", "--", "true")
    assert (full.code, full.json["error"]) == (9, "limit")
    assert run_trainq.ok("status", "--json").json["total"] == 1


def test_several_ids_of_which_some_failed_is_7(run_trainq):
    """One unknown id alone is an error 3; among several it is reported, and the others are done."""
    run_trainq.ok("submit", "--", "true")
    done = run_trainq("cancel", "1,99", "--json")
    assert done.code == 7
    assert [(item["id"], item["result"]) for item in done.json["items"]] == [(1, "canceled"), (99, "unknown")]
    seen = run_trainq("status", "1,99", "--json")
    assert seen.code == 7
    assert [job["id"] for job in seen.json["items"]] == [1]
    assert seen.json["unknown"] == ["99"]


def test_the_lock_names_its_holder(run_trainq):
    """Q60: exit 5 with host and pid of who holds the gate."""
    run_trainq.ok("submit", "--", "true")
    with open(os.path.join(run_trainq.root, "queue.lock"), "r+b") as gate:
        fcntl.flock(gate, fcntl.LOCK_EX)
        gate.write(b"somewhere 4242".ljust(64))
        gate.flush()
        busy = run_trainq("--json", "submit", "--", "true", TRAINQ_TIMES_LOCK_WAIT="0.2s")
    assert (busy.code, busy.json["error"]) == (5, "locked")
    assert "pid 4242 on somewhere" in busy.json["message"]


def no_root(trainq):
    trainq.env["TRAINQ_ROOT"] = os.path.join(trainq.cwd, "nothing")


def a_file_as_root(trainq):
    path = os.path.join(trainq.cwd, "file")
    with open(path, "w", encoding="ascii"):
        trainq.env["TRAINQ_ROOT"] = path


def everybody_writes(trainq):
    os.chmod(trainq.root, 0o707)


def truncated(trainq):
    os.truncate(os.path.join(trainq.root, "queue.sqlite"), 8192)


def emptied(trainq):
    os.truncate(os.path.join(trainq.root, "queue.sqlite"), 0)


def garbage(trainq):
    with open(os.path.join(trainq.root, "queue.sqlite"), "wb") as file:
        file.write(os.urandom(65536))


def foreign(trainq):
    path = os.path.join(trainq.root, "queue.sqlite")
    os.unlink(path)
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE job(id INTEGER)")
    database.close()


def newer(trainq):
    with sqlite3.connect(os.path.join(trainq.root, "queue.sqlite")) as database:
        database.execute("PRAGMA user_version = 99")
    database.close()


def broken_toml(trainq):
    type_file(trainq, '\n[times]\nheartbeat = "10s\n')


def unknown_setting(trainq):
    type_file(trainq, "\n[times]\nhartbeat = '10s'\n")


def unknown_variable(trainq):
    trainq.env["TRAINQ_TIMES_HARTBEAT"] = "10s"


@pytest.mark.parametrize(
    ("harm", "word"),
    [
        (no_root, "no_root"),
        (a_file_as_root, "no_root"),
        (everybody_writes, "unsafe_root"),
        (truncated, "damaged"),
        (emptied, "damaged"),
        (garbage, "damaged"),
        (foreign, "damaged"),
        (newer, "newer_schema"),
        (broken_toml, "bad_settings"),
        (unknown_setting, "bad_settings"),
        (unknown_variable, "bad_settings"),
    ],
)
def test_an_unusable_queue_is_6(run_trainq, harm, word):
    """Q63: every way in which a queue can be unusable is told in one line with status 6, by every command."""
    harm(run_trainq)
    for args in (("status",), ("submit", "--", "true"), ("worker", "--once"), ("prune",), ("history", "1")):
        told = run_trainq("--json", *args)
        assert (told.code, told.json["error"]) == (6, word), (args, told)
        assert told.json["hint"]
        assert "Traceback" not in told.err


def test_a_broken_file_is_named_with_line_and_column(run_trainq):
    broken_toml(run_trainq)
    with open(os.path.join(run_trainq.root, "trainq.toml"), encoding="utf-8") as file:
        line = file.read().count("\n")
    said = run_trainq("status").err
    assert f"trainq.toml: line {line}, column " in said
    assert "trainq doctor" in said or "edit " in said


def test_a_new_root_is_durable(tmp_path, monkeypatch):
    """Its name, too, is on the disk before init says that there is a queue."""
    synced = []
    sync = files.sync_directory
    monkeypatch.setattr(files, "sync_directory", lambda path: (synced.append(path), sync(path)))
    init(str(tmp_path / "queue"))
    assert synced[0] == str(tmp_path)


def test_a_full_disk_at_init_is_6(tmp_path):
    """Every write that init makes may find the disk full: one line, status 6, and the next init completes it."""
    for step in range(1, 40):
        root = str(tmp_path / f"queue{step}")
        trainq = Trainq(root, str(tmp_path))
        done = trainq("init", root, "--json", TRAINQ_FAULT=f"ENOSPC:{step}")
        if done.code == 0:
            break
        assert (done.code, done.json["error"]) == (6, "disk_full"), (step, done)
        assert trainq.ok("init", root).code == 0
        assert trainq.ok("status", "--json").json["total"] == 0
    else:
        pytest.fail("init has more writes than this test takes away")
    assert step > 3


@pytest.mark.skipif(os.getuid() != 0, reason="another uid is needed")
def test_a_models_directory_that_cannot_be_written_is_6():
    """Q63: not as root, doctor names the directory and exits 6."""
    with tempfile.TemporaryDirectory() as place:
        os.chmod(place, 0o777)
        root = os.path.join(place, "queue")
        trainq = Trainq(root, "/")
        trainq.env |= {"HOME": "/", "PYTHONDONTWRITEBYTECODE": "1"}
        trainq.command = lambda *args: [
            "setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", sys.executable, "-m", "trainq", *args,
        ]  # fmt: skip
        if trainq("--version").code != 0:
            pytest.skip("the interpreter is shut for other users")
        trainq.ok("init", root)
        os.chmod(os.path.join(root, "models"), 0o500)
        found = trainq("doctor", "--json")
        assert found.code == 6
        assert any("models: not writable" in check["message"] for check in found.json["checks"])
        os.rmdir(os.path.join(root, "models", ".staging"))
        assert any("missing" in check["message"] for check in trainq("doctor", "--json").json["checks"])


@pytest.mark.parametrize(
    "words",
    [
        ("cancel", "--state", "held", "--since="), ("cancel", "--state", "held", "--before="), ("cancel", "--root=", "1"),
        ("--root=", "cancel", "1"), ("submit", "--array=", "--", "true"), ("submit", "--params=", "--", "true"),
        ("submit", "--sample=", "--", "true"), ("submit", "--sweep=", "--", "true"),
        ("submit", "--from", "lines", "--name="), ("submit", "--from", "lines", "--array="),
        ("worker", "--gpus=", "--once"), ("worker", "--once", "--until="), ("init", ""),
    ],
)  # fmt: skip
def test_an_empty_word_is_not_a_missing_one(run_trainq, words):
    """Q08: an option with nothing in it (a script's variable that was not set) is refused, and not as if it were not there:
    nothing is stored, nothing canceled, no worker gives out every GPU."""
    job = run_trainq.ok("submit", "--hold", "--", "true").out.strip()
    with open(os.path.join(run_trainq.cwd, "lines"), "w", encoding="utf-8") as file:
        file.write('{"argv": ["true"]}\n')
    refused = run_trainq(*words)
    assert (refused.code, refused.out, refused.err.count("hint: ")) == (2, "", 1), refused
    assert run_trainq.ok("status", "-q").out.split() == [job]
    assert run_trainq.ok("status", job, "--json").json["state"] == "held"


def test_a_mark_before_the_first_line_is_none_of_it(run_trainq):
    """E04: what an editor of Windows writes (a BOM, CRLF) is read as in a file of parameters."""
    lines = b'\xef\xbb\xbf{"argv": ["true"]}\r\n\r\n{"argv": ["true"]}\r\n'
    assert len(run_trainq.ok("submit", "-q", "--from", "-", stdin=lines).ids) == 2
