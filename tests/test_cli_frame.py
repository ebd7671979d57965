"""The frame of the command line: help, global options, streams, and answers in the form asked for."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from conftest import REPOSITORY, Trainq, environment

from trainq.cli.commands import COMMANDS

SNAPSHOT = os.path.join(REPOSITORY, "tests", "snapshots", "help.txt")


def test_help_is_the_one_that_was_agreed_on(run_trainq):
    """Q96: a change of a command's words shows in tests/snapshots/help.txt (UPDATE_SNAPSHOTS=1 writes it anew)."""
    parts = [run_trainq.ok("--help").out]
    parts += [f"---- {name}\n{run_trainq.ok(name, '-h').out}" for name in COMMANDS]
    text = "\n".join(parts)
    if os.environ.get("UPDATE_SNAPSHOTS"):
        os.makedirs(os.path.dirname(SNAPSHOT), exist_ok=True)
        with open(SNAPSHOT, "w", encoding="utf-8") as file:
            file.write(text)
    with open(SNAPSHOT, encoding="utf-8") as file:
        assert text == file.read()


def test_bare_prints_help(run_trainq):
    bare = run_trainq.ok()
    assert bare.out == run_trainq.ok("--help").out
    for name in COMMANDS:
        assert f"\n  {name} " in bare.out


@pytest.mark.parametrize("args", [("--version",), ("status", "--version"), ("submit", "--version")])
def test_version_is_told_everywhere(run_trainq, args):
    from trainq.version import __version__

    assert run_trainq.ok(*args).out == f"trainq {__version__}\n"


def test_help_needs_no_queue(tmp_path):
    trainq = Trainq(str(tmp_path / "nothing"), str(tmp_path))
    assert trainq.ok("status", "--help").out.startswith("Usage: trainq status")


@pytest.mark.parametrize("args", [("--json", "status"), ("status", "--json")])
def test_global_options_stand_before_or_after_the_verb(run_trainq, args):
    assert run_trainq.ok(*args).json["kind"] == "job_list"


def test_root_before_or_after_the_verb(run_trainq, tmp_path):
    other = str(tmp_path / "other")
    run_trainq.ok("init", other)
    run_trainq.ok("--root", other, "submit", "--", "true")
    assert run_trainq.ok("status", "--json").json["total"] == 0
    assert run_trainq.ok("status", "--json", "--root", other).json["total"] == 1


def test_options_behind_two_dashes_are_the_jobs(run_trainq):
    """E01: nothing after -- is read as an option of trainq's."""
    number = run_trainq.ok("submit", "--name", "--", "--", "prog", "--json", "-q", "--", "x").ids[0]
    job = run_trainq.ok("status", number, "--json").json
    assert job["command"]["argv"] == ["prog", "--json", "-q", "--", "x"]
    assert job["name"] == "--"


@pytest.mark.parametrize(
    ("args", "near"),
    [
        (("statsu",), "trainq status"),
        (("status", "--al"), "trainq status --help"),
        (("--nonsense",), "trainq --help"),
        (("wait",), "name the jobs"),
        (("status", "--limit", "many"), "trainq status --help"),
        (("status", "--limit"), "trainq status --help"),
        (("--color", "blue", "status"), "trainq --help"),
        (("models", "shwo"), "trainq models --help"),
    ],
)
def test_wrong_usage_is_one_line_and_a_hint(run_trainq, args, near):
    """Q96: the same error is text on stderr, and with --json one document on stdout, both with status 2."""
    told = run_trainq(*args)
    assert (told.code, told.out) == (2, "")
    first, second = told.err.splitlines()
    assert first.startswith("trainq: ")
    assert first[8] == first[8].lower()
    assert second.startswith("hint: ")
    assert near in second
    for order in (("--json", *args), (*args, "--json")):
        asked = run_trainq(*order)
        if args[-1] == "--limit" and order[-1] == "--json":
            continue  # then --json is the value of --limit
        assert asked.code == 2
        assert asked.json["kind"] == "error"
        assert asked.json["code"] == 2


def test_quiet_prints_ids_and_no_notes(run_trainq):
    done = run_trainq.ok("submit", "-q", "--", "true", API_TOKEN="x")
    assert (done.out, done.err) == ("1\n", "")
    assert run_trainq.ok("status", "-q").out == "1\n"
    assert run_trainq.ok("-q", "status", "--json").json["total"] == 1


def test_a_closed_pipe_ends_quietly(run_trainq):
    lines = b"".join(json.dumps({"argv": ["true"], "name": "x" * 900}).encode() + b"\n" for _ in range(500))
    run_trainq.ok("submit", "--from", "-", stdin=lines)
    for args in (("status", "--limit", 0), ("status", "--limit", 0, "--json"), ("status", "--limit", 0, "--jsonl")):
        process = run_trainq.start(*args)
        process.stdout.read(1)
        process.stdout.close()
        assert process.stderr.read() == b""
        process.stderr.close()
        assert process.wait(30) == 0


def test_a_full_stdout_exits_1(run_trainq):
    with open("/dev/full", "wb") as full:
        process = run_trainq.start("status", "--json", stdout=full)
        _, err = process.communicate(timeout=30)
    assert process.returncode == 1
    assert err == b"trainq: stdout could not be written: no space left on device\n"


def test_a_closed_stdout_exits_1_and_hits_no_file(run_trainq):
    """Nothing that is opened later gets the number 1 and is written to by mistake."""
    script = 'exec "$@" >&-'
    done = subprocess.run(
        ["sh", "-c", script, "sh", *run_trainq.command("status", "--json")], capture_output=True, env=run_trainq.env
    )
    assert done.returncode == 1, done
    assert run_trainq.ok("doctor", "--json").json["state"] == "ok"


def test_a_bug_is_one_line_and_status_70(run_trainq):
    """Q96: what trainq did not expect is told as its own bug, with a traceback only on request."""
    code = (
        "import sys, trainq.ops.query as q; from trainq.cli.main import main\n"
        "q.overview = None; sys.argv[0] = 'trainq'; main()"
    )
    for flags in ((), ("--json",), ("--debug",)):
        command = [sys.executable, "-c", code, "status", *flags]
        done = subprocess.run(command, capture_output=True, env=run_trainq.env, text=True)
        assert done.returncode == 70
        assert ("Traceback" in done.stderr) == ("--debug" in flags)
        if flags == ("--json",):
            assert json.loads(done.stdout)["error"] == "bug"
        else:
            assert "a bug in trainq: TypeError" in done.stderr


def test_an_interrupt_exits_130(run_trainq):
    """It is the usual end of watching, so nothing is said."""
    import signal

    run_trainq.ok("submit", "--", "true")
    process = run_trainq.start("status", "--watch", "--jsonl")
    process.stdout.readline()
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert err == b""


def test_colours_only_when_asked_for(run_trainq):
    run_trainq.ok("submit", "--", "true")
    assert "\x1b" not in run_trainq.ok("status").out
    assert "\x1b[" in run_trainq.ok("status", "--color", "always").out


def on_terminal(trainq, *args, **env):
    """What the command writes to a terminal."""
    import pty

    master, slave = pty.openpty()
    with subprocess.Popen(
        trainq.command(*args), stdin=slave, stdout=slave, stderr=slave, env=trainq.env | env, cwd=trainq.cwd
    ) as process:
        os.close(slave)
        out = b""
        while True:
            try:
                block = os.read(master, 65536)
            except OSError:  # the terminal's end
                break
            out += block
    os.close(master)
    return process.returncode, out


def test_tables_and_colours_on_a_terminal(run_trainq):
    run_trainq.ok("submit", "--name", "a\x1b[31mred", "--", "true")
    code, out = on_terminal(run_trainq, "status", TERM="xterm")
    assert code == 0
    assert b"\x1b[1m" in out
    assert b"\x1b[31m" not in out
    _, plain = on_terminal(run_trainq, "status", TERM="xterm", NO_COLOR="1")
    assert b"\x1b" not in plain
    _, card = on_terminal(run_trainq, "status", "1", TERM="xterm")
    assert b"\x1b[31m" not in card


def test_without_home_and_root(tmp_path):
    """~/.trainq is made on first use; without a home the error says what to set."""
    if os.path.isdir("/.trainq"):
        pytest.skip("a queue in / is the nearest one from everywhere: remove /.trainq")
    home = tmp_path / "home"
    home.mkdir()
    trainq = Trainq("", "/")  # above a temporary directory somebody's .trainq might lie
    trainq.env = environment(HOME=str(home), TRAINQ_ROOT=None)
    assert trainq.ok("status", "--json").json["total"] == 0
    assert (home / ".trainq" / "queue.sqlite").exists()
    trainq.env = environment(HOME=None, TRAINQ_ROOT=None)
    code = "import os, pwd; pwd.getpwuid = lambda _: (_ for _ in ()).throw(KeyError()); from trainq.cli.main import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code, "status"], capture_output=True, text=True, env=trainq.env, cwd="/"
    )
    assert done.returncode == 6, done
    assert "no home directory" in done.stderr


def test_the_nearest_root_above_is_found(tmp_path):
    deep = tmp_path / "a" / "b"
    deep.mkdir(parents=True)
    trainq = Trainq("", str(tmp_path))
    trainq.env = environment(HOME=str(tmp_path), TRAINQ_ROOT=None)
    made = trainq.ok("init", "--json").json
    assert made["root"] == str(tmp_path / ".trainq")
    trainq.cwd = str(deep)
    number = trainq.ok("submit", "--", "true").ids[0]
    assert trainq.ok("status", number, "--json").json["command"]["cwd"] == str(deep)


def test_a_long_root_with_spaces_and_other_scripts(tmp_path):
    """A root path with spaces, unicode and 200 characters works to the end of a job."""
    root = str(tmp_path / ("Übung mit Leerzeichen, 列車 " + "x" * 150))
    assert len(root) > 200
    trainq = Trainq(root, str(tmp_path))
    trainq.ok("init", root)
    trainq.ok("submit", "--", sys.executable, "-m", "trainq", "report", "--strict", "--progress", "0.5")
    trainq.ok("worker", "--once")
    job = trainq.ok("status", 1, "--json").json
    assert job["state"] == "done", trainq("logs", 1)
    assert os.path.exists(job["paths"]["log"])


def test_a_root_of_odd_bytes(tmp_path):
    root = os.fsencode(tmp_path) + b"/odd\xff\nroot"
    trainq = Trainq(os.fsdecode(root), str(tmp_path))
    assert trainq.ok("init", "--json").json["root_b64"]
    trainq.ok("submit", "--", "true")
    trainq.ok("worker", "--once")
    assert trainq.ok("status", 1, "--json").json["state"] == "done"
    assert "\\n" in trainq.ok("status", 1).out
