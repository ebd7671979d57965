"""Completion in real shells, with what is in the queue now."""

from __future__ import annotations

import os
import shutil
import subprocess

import pytest
from conftest import REPOSITORY, Trainq
from store_builders import join
from test_cli_frame import on_terminal

from trainq.artifacts.paths import Paths
from trainq.cli.completion import FILES, SCRIPTS
from trainq.domain.devices import Device
from trainq.domain.offer import Offer, offer_document
from trainq.ops.queue import session_of
from trainq.store import workers

TYPES = "[limits.gpus]\nv100 = 4\n[types.wine]\nrun = ['true']\n[types.wings]\nrun = ['true']\n[queues]\nnames = ['default', 'gpu']\n"


@pytest.fixture(scope="module")
def filled(tmp_path_factory):
    """A queue with jobs, types and queues, and a directory with `trainq` in it for PATH. Nobody changes it."""
    tmp_path = tmp_path_factory.mktemp("completion")
    (tmp_path / "work").mkdir()
    run_trainq = Trainq(str(tmp_path / "queue"), str(tmp_path / "work"))
    run_trainq.ok("init", run_trainq.root)
    with open(os.path.join(run_trainq.root, "trainq.toml"), "a", encoding="utf-8") as file:
        file.write(TYPES)
    run_trainq.ok("submit", "--name", "first", "--key", "nightly", "--", "true")
    run_trainq.ok("submit", "--name", "second", "--", "true")
    session = session_of(Paths(run_trainq.root))
    with session.writing() as tx:
        offer = Offer("here", 1, (Device("GPU-1", "NVIDIA A100-SXM4-80GB"),))
        workers.offer(tx, join(tx, "the-worker"), offer_document(offer))
    session.close()
    place = tmp_path / "bin"
    place.mkdir()
    script = place / "trainq"
    script.write_text('#!/bin/sh\nexec "' + run_trainq.command()[0] + '" -m trainq "$@"\n')
    script.chmod(0o755)
    run_trainq.env["PATH"] = f"{place}:{run_trainq.env['PATH']}"
    (tmp_path / "work" / "file.txt").write_text("")
    return run_trainq


CASES = [
    ("trainq sta", ["status"]),
    ("trainq status --summ", ["--summary"]),
    ("trainq --quiet status --summ", ["--summary"]),
    ("trainq status ", ["1", "2", "key:", "last"]),
    ("trainq cancel la", ["last"]),
    ("trainq submit wi", ["wine", "wings"]),
    ("trainq types show wi", ["wine", "wings"]),
    ("trainq submit --queue g", ["gpu"]),
    ("trainq status --state err", ["errored"]),
    ("trainq models sh", ["show"]),
    ("trainq completion f", ["fish"]),
    ("trainq wait 1 --for run", ["running"]),
    ("trainq workers dr", ["drain"]),
    ("trainq workers drain the-", ["the-worker"]),
    ("trainq submit --after ", ["any:", "fail:", "ok:"]),
    ("trainq submit --after ok:", ["1", "2"]),
    ("trainq submit --after ok:1,any:", ["1", "2"]),
    ("trainq submit --after=ok:1,a", ["1,any:"]),
    ("trainq submit --on h1,he", ["h1,here"]),
    ("trainq submit --gpu-type ", ["cpu", "nvidia-a100-sxm4-80gb", "v100"]),
    ("trainq edit 1 --set pr", ["priority="]),
    ("trainq edit 1 --set queue=g", ["gpu"]),
    ("trainq edit ", ["1", "2", "key:", "last"]),
    ("trainq explain ", ["1", "2", "key:", "last"]),
    ("trainq hold @f", ["first"]),
    ("trainq pause --queue g", ["gpu"]),
    ("trainq init x y z ", []),
    ("trainq nothing ", []),
]


def asked(trainq, shell, line):
    """What trainq itself answers a shell: how to take it, and the words."""
    if shell == "bash":
        done = trainq.ok(_TRAINQ_COMPLETE="bash", COMP_LINE=line, COMP_POINT=str(len(line.encode())))
    else:
        words = line.split()[1:] + ([""] if line.endswith(" ") else [])
        done = trainq.ok(*words, _TRAINQ_COMPLETE=shell)
    assert done.err == ""
    kind, *words = done.out.split("\n")
    return kind, [word for word in words if word]


@pytest.mark.parametrize(("line", "wanted"), CASES)
def test_the_words_that_can_follow(filled, line, wanted):
    """E24: ids, types, queues and keys complete live."""
    assert sorted(asked(filled, "bash", line)[1]) == wanted


def test_tasks_of_an_array(run_trainq):
    """E24: `12[` goes on with the tasks of the array; the list of jobs has the array once."""
    run_trainq.ok("submit", "--array", "0-2", "--", "true")
    assert asked(run_trainq, "zsh", "trainq cancel 1[") == ("words", ["1[0]:pending", "1[1]:pending", "1[2]:pending"])
    assert asked(run_trainq, "bash", "trainq cancel 1[2") == ("words", ["'1[2]'"])
    assert asked(run_trainq, "fish", "trainq cancel 7[") == ("words", [])
    assert asked(run_trainq, "fish", "trainq cancel 1") == ("words", ["1\tpending true"])


def test_after_a_colon_bash_wants_the_rest(filled):
    assert asked(filled, "bash", "trainq status key:n") == ("words", ["nightly"])
    assert asked(filled, "zsh", "trainq status key:n") == ("words", ["key\\:nightly"])
    assert asked(filled, "fish", "trainq status key:n") == ("words", ["key:nightly"])
    assert asked(filled, "bash", "trainq status ke") == ("open", ["key:"])
    assert asked(filled, "bash", "trainq status --state=err") == ("words", ["errored"])


@pytest.mark.parametrize(
    "line", ["trainq submit wine --data ", "trainq submit -- ", "trainq --root ", "trainq submit --from "]
)
def test_where_files_can_stand_the_shell_knows_better(filled, line):
    assert asked(filled, "bash", line)[0] == "files"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
@pytest.mark.parametrize(
    "line", ['trainq status "', "trainq status '1 2", "trainq status \\", "trainq", "", "trainq ¿ "]
)
def test_no_error_is_ever_printed(filled, shell, line):
    """E24: never prints an error, whatever is typed."""
    done = filled(*line.split()[1:], _TRAINQ_COMPLETE=shell, COMP_LINE=line, COMP_POINT=str(len(line.encode())))
    assert (done.code, done.err) == (0, "")


def test_a_broken_queue_offers_nothing(run_trainq, tmp_path):
    with open(os.path.join(run_trainq.root, "queue.sqlite"), "wb") as file:
        file.write(b"rubbish" * 1000)
    assert asked(run_trainq, "bash", "trainq status ") == ("", [])
    lonely = Trainq("", str(tmp_path))
    lonely.env |= {"TRAINQ_ROOT": str(tmp_path / "none")}
    assert asked(lonely, "bash", "trainq status ")[1] == []
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("shell", sorted(SCRIPTS))
def test_the_files_in_completions_are_fresh(run_trainq, shell):
    """E24: a stale file fails; `trainq completion SHELL` writes it anew."""
    with open(os.path.join(REPOSITORY, "completions", FILES[shell]), encoding="utf-8") as file:
        assert file.read() == run_trainq.ok("completion", shell).out


def test_completion_refuses_json(run_trainq):
    assert run_trainq("completion", "bash", "--json").code == 2


def script_of(shell):
    return os.path.join(REPOSITORY, "completions", FILES[shell])


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("trainq sta", ["status"]),
        ("trainq status ", ["2", "1", "last", "key:"]),
        ("trainq status key:n", ["nightly"]),
        ("trainq submit w", ["wine", "wings"]),
    ],
)
def test_in_real_bash(filled, line, wanted):
    """E24: tried in bash, with its own function called the way readline calls it."""
    code = (
        f'source "{script_of("bash")}"\n'
        "compopt() { :; }\n"
        f"COMP_LINE='{line}' COMP_POINT={len(line)}\n"
        "_trainq trainq\n"
        "printf '%s\\n' \"${COMPREPLY[@]}\"\n"
    )
    done = subprocess.run(["bash", "--norc", "-c", code], capture_output=True, text=True, env=filled.env)
    assert done.stderr == ""
    assert done.stdout.split() == wanted


def typed(trainq, shell, start, keys, tmp_path):
    """What an interactive shell shows after these keys were typed on a terminal."""
    import pty
    import select
    import time

    master, slave = pty.openpty()
    env = trainq.env | {"TERM": "dumb", "PS1": "> ", "HOME": str(tmp_path), "ZDOTDIR": str(tmp_path)}
    with subprocess.Popen(
        [shell, *start], stdin=slave, stdout=slave, stderr=slave, env=env, cwd=trainq.cwd, start_new_session=True
    ) as process:
        os.close(slave)
        out = b""
        end = time.monotonic() + 60
        sent = False
        while time.monotonic() < end:
            if select.select([master], [], [], 0.2)[0]:
                try:
                    block = os.read(master, 65536)
                except OSError:
                    break
                out += block
            if b"ready" in out and not sent:
                os.write(master, keys)
                sent = True
            if b"<<" in out.partition(b"ready")[2] and b">>" in out.partition(b"ready")[2]:
                break
        process.kill()
    os.close(master)
    return out.decode("utf-8", "replace")


def test_in_an_interactive_bash(filled, tmp_path):
    """E24: the key is pressed on a terminal: one match is filled in, and the command runs with it."""
    rc = tmp_path / "rc"
    rc.write_text(f'source "{script_of("bash")}"\nbind "set bell-style none"\necho ready\n')
    keys = b"trainq sta\tkey:n\t-q | sed 's/^/<''</; s/$/>''>/'\r"
    out = typed(filled, "bash", ["--noprofile", "--rcfile", str(rc), "-i"], keys, tmp_path)
    assert "<<1>>" in out, out


@pytest.mark.skipif(shutil.which("zsh") is None, reason="zsh is not installed")
def test_in_an_interactive_zsh(filled, tmp_path):
    """E24: tried in zsh."""
    rc = f'autoload -Uz compinit; compinit -u -D\nsource "{script_of("zsh")}"\nunsetopt beep prompt_sp\nPS1="> "\necho ready\n'
    (tmp_path / ".zshrc").write_text(rc)
    keys = b"trainq sta\tkey:n\t-q | sed 's/^/<''</; s/$/>''>/'\r"
    out = typed(filled, "zsh", ["-d", "-i"], keys, tmp_path)
    assert "<<1>>" in out, out


@pytest.mark.skipif(shutil.which("fish") is None, reason="fish is not installed")
@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("trainq sta", ["status"]),
        ("trainq status ", ["1", "2", "key:", "last"]),
        ("trainq status key:n", ["key:nightly"]),
        ("trainq submit w", ["wine", "wings"]),
        ("trainq nothing ", []),
    ],
)
def test_in_real_fish(filled, line, wanted, tmp_path):
    """E24: tried in fish, by its own way to ask."""
    code = f'source "{script_of("fish")}"; complete -C "{line}"'
    env = filled.env | {"HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path)}
    done = subprocess.run(["fish", "--no-config", "-c", code], capture_output=True, text=True, env=env, cwd=filled.cwd)
    assert sorted(row.partition("\t")[0] for row in done.stdout.splitlines()) == wanted, done


def test_help_of_a_terminal_is_plain(filled):
    code, out = on_terminal(filled, "status", "--help", TERM="xterm")
    assert code == 0
    assert b"\x1b" not in out


def test_of_a_queue_for_several_hosts(tmp_path):
    """The words come from its tables, which have another name."""
    trainq = Trainq(str(tmp_path / "queue"), str(tmp_path))
    trainq.ok("init", "--shared", trainq.root)
    trainq.ok("submit", "--", "true")
    assert "1" in {word.split("\t")[0].split(":")[0] for word in asked(trainq, "bash", "trainq status ")[1]}
