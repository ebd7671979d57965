"""Checkpoints as training code meets them: saved whole or not at all, committed by the worker, kept, found again."""

from __future__ import annotations

import errno
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest
from listening import REPOSITORY, UID, Listening

from trainq.job import checkpoint_files, trigger
from trainq.job.trigger import Trigger

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

HEAD = "import os, sys, json\nfrom trainq import job\nck = job.checkpoint\n"


class Committing(Listening):
    """A worker that answers checkpoints: `decide(message)` says True, False, or None for not now."""

    def __init__(self) -> None:
        super().__init__()
        self.decide: Callable[[dict[str, Any]], bool | None] = lambda _message: True
        self.seen = 0

    def turn(self, timeout_s: float = 0.02) -> None:
        super().turn(timeout_s)
        while self.seen < len(self.heard):
            message = self.heard[self.seen][2]
            self.seen += 1
            if message["do"] == "checkpoint" and (ok := self.decide(message)) is not None:
                self.channel.ack(message["asker"], ok)

    def said(self, word: str) -> list[dict[str, Any]]:
        return [message for _, _, message in self.heard if message["do"] == word]


@pytest.fixture
def worker() -> Iterator[Committing]:
    listening = Committing()
    yield listening
    listening.close()


def by_hand(script: str, cwd: Path, **more: str) -> subprocess.CompletedProcess[str]:
    env = {name: value for name, value in os.environ.items() if not name.startswith(("TRAINQ_", "PYTHON"))}
    return subprocess.run(
        [sys.executable, "-c", HEAD + script],
        env={**env, "PYTHONPATH": REPOSITORY, **more},
        cwd=cwd,
        capture_output=True,
        text=True,
    )


def ok(script: str, cwd: Path, **more: str) -> str:
    done = by_hand(script, cwd, **more)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def names(directory: Path) -> list[str]:
    """The checkpoints, and anything else that a user sees or that takes space."""
    return sorted((name for name in os.listdir(directory) if not name.startswith(".taken-")), key=lambda n: (len(n), n))


def in_job(worker: Committing, directory: Path, script: str, **more: str) -> tuple[int, str, str]:
    directory.mkdir(exist_ok=True)
    return worker.run(HEAD + script, TRAINQ_CHECKPOINT_DIR=str(directory), TRAINQ_JOB_ID="12", **more)


# by hand ---------------------------------------------------------------------------------------------------------


def test_what_is_saved_comes_back(tmp_path: Path) -> None:
    """Outside a job: files, step, epoch and facts; a function, bytes, a file, a directory or nothing may be saved."""
    (tmp_path / "tree" / "sub").mkdir(parents=True)
    (tmp_path / "tree" / "sub" / "f").write_text("x")
    script = (
        "assert ck.latest() is None and ck.manifest() == {}\n"
        "def write(d): open(os.path.join(d, 'a'), 'w').write('1'); os.mkdir(d + '/e'); open(d + '/e/b', 'w').write('2')\n"
        "p = ck.save(write, step=7, epoch=0.5, facts={'n': float('nan'), 'l': (1, 'é', None, True), 3: 2**70}, keep=0)\n"
        "assert p == ck.latest(), (p, ck.latest())\n"
        "m = ck.manifest()\n"
        "print(json.dumps([p, m['step'], m['epoch'], m['facts'], m['number'], sorted(f['path'] for f in m['files'])]))\n"
        "print(open(ck.save(b'abc', keep=0) + '/data').read())\n"
        "print(open(ck.save('tree', keep=0) + '/sub/f').read())\n"
        "print(open(ck.save('tree/sub/f', keep=0) + '/f').read())\n"
        "print(ck.manifest(ck.save(None, facts={'count': 9}, keep=0))['facts'])\n"
    )
    saved, *others = ok(script, tmp_path).splitlines()
    facts = {"n": None, "l": [1, "é", None, True], "3": 2**70}
    assert json.loads(saved) == [str(tmp_path / "checkpoints" / "1"), 7, 0.5, facts, 1, ["a", "e/b"]]
    assert others == ["abc", "x", "x", "{'count': 9}"]
    assert names(tmp_path / "checkpoints") == ["1", "2", "3", "4", "5"]


def test_the_next_run_by_hand_goes_on(tmp_path: Path) -> None:
    """A script that is run again by hand finds the newest; numbers go on."""
    script = "print(ck.manifest().get('step', 0)); ck.save(b'', step=ck.manifest().get('step', 0) + 10)"
    assert [ok(script, tmp_path) for _ in range(3)] == ["0\n", "10\n", "20\n"]
    assert names(tmp_path / "checkpoints") == ["1", "2", "3"]


@pytest.mark.parametrize("how", ["truncated", "changed", "gone", "manifest"])
def test_by_hand_a_torn_newest_falls_back_and_says_so(tmp_path: Path, how: str) -> None:
    """Q84: the one before is taken, with a line on stderr; if none is whole it is an error, never a silent fresh start."""
    ok("for n in range(3): ck.save(b'abcd' * 1000, step=n)", tmp_path)
    directory = tmp_path / "checkpoints"
    damage(directory / "3", how)
    done = by_hand("print(ck.latest())", tmp_path)
    assert (done.returncode, done.stdout) == (0, f"{directory / '2'}\n")
    assert "checkpoint 3 is passed over: " in done.stderr
    damage(directory / "1", how)
    damage(directory / "2", how)
    done = by_hand("print(ck.latest())", tmp_path)
    assert done.returncode == 1
    assert "RuntimeError: no checkpoint in" in done.stderr


def damage(checkpoint: Path, how: str) -> None:
    data = checkpoint / "data"
    if how == "truncated":
        os.truncate(data, 100)
    elif how == "changed":
        data.write_bytes(b"abcx" * 1000)
    elif how == "gone":
        data.unlink()
    else:
        (checkpoint / "manifest.json").write_text("{")


def test_directories_of_the_user_are_left_alone(tmp_path: Path) -> None:
    """A number as a name, files, a `.new` directory: nothing that is not provably ours is taken or deleted."""
    directory = tmp_path / "checkpoints"
    for name in ("5", ".newest", "best"):
        (directory / name).mkdir(parents=True)
        (directory / name / "mine").write_text("x")
    (directory / "7").write_text("a file")
    ok("assert ck.latest() is None\nfor n in range(5): ck.save(b'', keep=1)", tmp_path)
    assert names(directory) == ["5", "7", "12", "best", ".newest"]


# kill ------------------------------------------------------------------------------------------------------------


def test_a_kill_at_any_moment_leaves_the_latest_whole(tmp_path: Path) -> None:
    """Q83: kill -9 at 100 random moments during saves: the latest checkpoint always loads and its digest matches."""
    script = HEAD + (
        "n = ck.manifest().get('facts', {}).get('n', 0)\n"
        "os.write(1, b'.')\n"
        "while True:\n"
        "    n += 1\n"
        "    def write(d):\n"
        "        for k in range(3): open(f'{d}/{k}', 'w').write(str(n) * 5000)\n"
        "    ck.save(write, step=n, facts={'n': n}, keep=2)\n"
    )
    env = {**os.environ, "PYTHONPATH": REPOSITORY}
    before = 0
    interrupted = 0
    for _ in range(100):
        with subprocess.Popen([sys.executable, "-c", script], cwd=tmp_path, env=env, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            process.stdout.read(1)
            time.sleep(random.uniform(0, 0.02))  # the moment of the kill: nothing is waited for
            process.kill()
        directory = tmp_path / "checkpoints"
        found = checkpoint_files.numbers(str(directory))
        interrupted += any(name.startswith(".new-") for name in os.listdir(directory))
        if not found:
            assert not before
            continue
        for number in found:
            path = str(directory / str(number))
            assert checkpoint_files.problems(path) == []
        step = checkpoint_files.read(path).manifest["facts"]["n"]
        assert (directory / str(found[-1]) / "2").read_text() == str(step) * 5000
        assert step >= before
        before = step
    assert interrupted > 10
    ok("ck.save(b'', keep=2)", tmp_path)
    assert len(names(directory)) == 2, "left-overs of the killed are swept, old ones deleted"


POINTS = ["filled", "sealed", "renamed", "named", "committed", "unnamed"]


@pytest.mark.parametrize("point", POINTS)
def test_a_kill_between_any_two_steps(tmp_path: Path, point: str) -> None:
    """Q83: at every named point the old or the new one is whole, and the next save cleans up."""
    ok("ck.save(b'1', step=1, keep=1)", tmp_path)
    done = by_hand("ck.save(b'2', step=2, keep=1)", tmp_path, TRAINQ_CRASH=f"checkpoint.{point}")
    assert done.returncode == -signal.SIGKILL
    assert ok("print(ck.manifest()['step'])", tmp_path) == f"{1 if point in {'filled', 'sealed'} else 2}\n"
    ok("ck.save(b'3', step=3, keep=1)", tmp_path)
    assert names(tmp_path / "checkpoints") == ["2" if point == "filled" else "3"]


def test_numbers_are_never_used_again(tmp_path: Path) -> None:
    """Neither after a deletion nor by two at once: who took a number that somebody else passes takes a higher one."""
    directory = str(tmp_path)
    taken = [checkpoint_files.take_number(directory) for _ in range(3)]
    assert taken == [1, 2, 3]
    os.mkdir(tmp_path / "9")
    assert checkpoint_files.take_number(directory) == 10
    os.rmdir(tmp_path / "9")
    assert checkpoint_files.take_number(directory) == 11
    script = HEAD + "from trainq.job import checkpoint_files as f\nprint(*[f.take_number('.') for _ in range(200)])"
    env = {**os.environ, "PYTHONPATH": REPOSITORY}
    both = [
        subprocess.Popen([sys.executable, "-c", script], cwd=tmp_path, env=env, stdout=subprocess.PIPE)
        for _ in range(3)
    ]
    given = [int(word) for process in both for word in process.communicate()[0].split()]
    assert len(given) == len(set(given)) == 600
    assert len([name for name in os.listdir(tmp_path) if name.startswith(".taken-")]) < 5


# failures --------------------------------------------------------------------------------------------------------


def test_a_full_disk_costs_the_save_and_not_the_training(worker: Committing, tmp_path: Path) -> None:
    """Q94: with a full disk the job continues, the worker is told once per save, and the older ones are intact."""
    directory = tmp_path / "small"
    directory.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "none", directory], capture_output=True)
    if mounted.returncode:
        pytest.skip("no tmpfs can be mounted here; see the next test")
    try:
        script = (
            "assert ck.save(b'x' * 50_000, step=1)\n"
            "assert ck.save(b'x' * 500_000, step=2) is None\n"
            "assert ck.save(b'x' * 50_000, step=3)\n"
            "print(ck.manifest()['step'])"
        )
        status, out, err = in_job(worker, directory, script)
        assert (status, out) == (0, "3\n")
        assert "No space left on device" in err
        assert [failed["error"] for failed in worker.said("checkpoint_failed")] == [
            "OSError: [Errno 28] No space left on device"
        ]
        assert names(directory) == ["1", "2"]
        assert all(not checkpoint_files.problems(str(directory / name)) for name in names(directory))
    finally:
        subprocess.run(["umount", directory], check=True)


@pytest.mark.parametrize(
    ("write", "said"),
    [
        ("lambda d: (open(d + '/f', 'w').write('x'), 1 / 0)", "ZeroDivisionError"),
        (f"lambda d: (_ for _ in ()).throw(OSError({errno.ENOSPC}, 'full'))", "full"),
        ("lambda d: os.symlink('/etc/passwd', d + '/l')", "is a link"),
        ("lambda d: os.mkfifo(d + '/p')", "is a pipe"),
        ("lambda d: open(d + '/manifest.json', 'w')", "manifest.json"),
        ("'/no/such/file'", "/no/such/file"),
        ("{'state': 1}", "not dict"),
        ("lambda: None", "TypeError"),
    ],
)
def test_a_save_that_fails_is_told_and_leaves_nothing(
    worker: Committing, tmp_path: Path, write: str, said: str
) -> None:
    """Q94: an error in the function, odd files, wrong arguments: None, one word to the worker, nothing on the disk."""
    script = f"print(ck.save({write}))\nprint(ck.save(b'', facts={{'a': object()}}))\nprint(ck.latest())"
    status, out, err = in_job(worker, tmp_path / "c", script)
    assert (status, out) == (0, "None\nNone\nNone\n")
    first, second = [failed["error"] for failed in worker.said("checkpoint_failed")]
    assert said in first
    assert said in err
    assert "object" in second
    assert names(tmp_path / "c") == []
    assert worker.said("checkpoint") == []


def test_strict_raises(worker: Committing, tmp_path: Path) -> None:
    """`strict=True` gives the training what happened; and what ends a process passes without it."""
    worker.decide = lambda _message: False
    script = (
        "for write in (lambda d: 1 / 0, b''):\n"
        "    try: ck.save(write, strict=True)\n"
        "    except Exception as error: print(type(error).__name__)\n"
        "ck.save(lambda d: sys.exit(3))"
    )
    status, out, _ = in_job(worker, tmp_path / "c", script)
    assert (status, out) == (3, "ZeroDivisionError\nNotSaved\n")
    assert names(tmp_path / "c") == []


# the commit ------------------------------------------------------------------------------------------------------


def test_the_worker_is_told_what_it_commits(worker: Committing, tmp_path: Path) -> None:
    """The word has number, step, epoch, size and the digest of the manifest, and the directory is complete by then."""
    problems = []

    def decide(message: dict[str, Any]) -> bool:
        problems.append(checkpoint_files.problems(str(tmp_path / "c" / str(message["number"])), message["digest"]))
        return True

    worker.decide = decide
    _, out, err = in_job(worker, tmp_path / "c", "print(ck.save(b'abc', step=3, epoch=0.25))", TRAINQ_ATTEMPT="2")
    assert (out, err, problems) == (f"{tmp_path / 'c' / '1'}\n", "", [[]])
    [(uid, attempt, message)] = [heard for heard in worker.heard if heard[2]["do"] == "checkpoint"]
    digest = checkpoint_files.read(str(tmp_path / "c" / "1")).digest
    assert (uid, attempt) == (UID, 2)
    assert message.pop("asker").ack == 1
    assert message == {"do": "checkpoint", "number": 1, "step": 3, "epoch": 0.25, "digest": digest, "size": 3}


def test_a_refused_checkpoint_is_deleted(worker: Committing, tmp_path: Path) -> None:
    """Claim lost: None, its directory goes, and nothing older is deleted, nor the one resumed from."""
    worker.decide = lambda message: message["number"] < 3
    script = "ck.keep = 2\nprint([bool(ck.save(b'', step=n)) for n in range(5)], ck.manifest()['step'])"
    _, out, err = in_job(worker, tmp_path / "c", script)
    assert out == "[True, True, False, False, False] 1\n"
    assert "checkpoint 3 does not count: the worker refused it" in err
    assert names(tmp_path / "c") == ["1", "2"]


def test_a_late_yes_counts_and_until_then_nothing_is_deleted(worker: Committing, tmp_path: Path) -> None:
    """No answer in time: the path is given and said; the old ones stay until the answer has come."""
    script = (
        "ck.keep, ck.wait_s = 1, 0.05\n"
        "print([os.path.basename(ck.save(b'', step=n)) for n in range(4)], ck.latest(), flush=True)\n"
        "sys.stdin.read(1)\n"
        "print(os.path.basename(ck.latest()), flush=True)\n"
        "ck.wait_s = 30\n"
        "print(os.path.basename(ck.save(b'', step=9)))"
    )
    (tmp_path / "c").mkdir()
    waiting: list[dict[str, Any]] = []
    worker.decide = lambda message: True if message["number"] == 5 else waiting.append(message)
    with worker.start(HEAD + script, TRAINQ_CHECKPOINT_DIR=str(tmp_path / "c")) as process:
        worker.until(lambda: len(waiting) == 4)
        assert process.stdout is not None
        assert process.stdout.readline() == "['1', '2', '3', '4'] None\n"
        assert names(tmp_path / "c") == ["1", "2", "3", "4"]
        for message in waiting:
            worker.channel.ack(message["asker"], message["number"] != 3)
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
        worker.until(lambda: process.poll() is not None)
        out, err = process.communicate()
    assert out.split() == ["4", "5"]
    assert "checkpoint 1: the worker has not answered in 0.05 s; it may still count" in err
    assert "checkpoint 3 does not count: the worker refused it" in err
    assert names(tmp_path / "c") == ["5"]


def test_one_that_may_still_count_is_neither_kept_nor_deleted(worker: Committing, tmp_path: Path) -> None:
    """Keep 2, the answer to the second is missing: it does not push the first out, and stays itself."""
    worker.decide = lambda message: None if message["number"] == 2 else True
    script = "ck.keep = 2\nck.save(b'')\nck.wait_s = 0.05\nck.save(b'')\nck.wait_s = 30\nck.save(b'')\n{}"
    assert in_job(worker, tmp_path / "c", script.format(""))[0] == 0
    assert names(tmp_path / "c") == ["1", "2", "3"]
    assert in_job(worker, tmp_path / "d", script.format("ck.save(b'')"))[0] == 0
    assert names(tmp_path / "d") == ["2", "3", "4"]


def test_a_copy_of_another_jobs_checkpoint_stays(worker: Committing, tmp_path: Path) -> None:
    """What a user has copied there by hand is not this job's to delete."""
    ok("ck.save(b'')", tmp_path)
    assert in_job(worker, tmp_path / "checkpoints", "for _ in range(3): ck.save(b'', keep=1)")[0] == 0
    assert names(tmp_path / "checkpoints") == ["1", "4"]


def test_a_worker_that_is_gone_commits_nothing(worker: Committing, tmp_path: Path) -> None:
    """None and a line; the directory stays, as the commit may have happened before the worker died."""

    def decide(message: dict[str, Any]) -> None:
        worker.channel.drop(UID, 1)

    worker.decide = decide
    _, out, err = in_job(worker, tmp_path / "c", "print(ck.save(b''), ck.latest())")
    assert out == "None None\n"
    assert "the worker does not answer any more" in err
    assert names(tmp_path / "c") == ["1"]
    _, out, err = in_job(
        worker, tmp_path / "c", "print(ck.save(b''), ck.save(lambda d: 1 / 0))", TRAINQ_SOCKET="/no/socket"
    )
    assert out == "None None\n"
    assert "the worker does not answer any more" in err


def test_a_checkpoint_without_a_word_of_yes_does_not_count(worker: Committing, tmp_path: Path) -> None:
    """An ack that does not say ok (from a worker that knows no checkpoints) is a no."""
    path = str(tmp_path / "socket")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        (tmp_path / "c").mkdir()
        with worker.start(
            HEAD + "print(ck.save(b''))", TRAINQ_CHECKPOINT_DIR=str(tmp_path / "c"), TRAINQ_SOCKET=path
        ) as job:
            client, _ = listener.accept()
            with client, client.makefile("rwb") as lines:
                while b'"checkpoint"' not in lines.readline():
                    pass
                lines.write(b'{"do":"stop","reason":"time"}\nrubbish\n{"ack":2,"ok":true}\n{"ack":1}\n')
                lines.flush()
                out, _ = job.communicate()
    assert out == "None\n"


def test_the_worker_answers_after_its_turn(worker: Committing) -> None:
    """A checkpoint gets no ack when it is read, only when it is decided; who is gone by then is passed over."""
    worker.decide = lambda _message: None
    word = {"do": "checkpoint", "number": 1, "digest": "0" * 64, "size": 0}
    client = worker.connect({**word, "ack": 7}, {"do": "progress", "step": 1, "ack": 8})
    silent = worker.connect({**word, "number": 2})
    worker.until(lambda: len(worker.heard) == 3)
    assert client.recv(100) == b'{"ack":8}\n'
    first, second = worker.said("checkpoint")
    assert (first["step"], first["epoch"], second["asker"].ack) == (None, None, None)
    worker.channel.ack(first["asker"], True)
    worker.channel.ack(second["asker"], True)
    assert client.recv(100) == b'{"ack":7,"ok":true}\n'
    silent.setblocking(False)
    with pytest.raises(BlockingIOError):
        silent.recv(1)
    client.close()
    worker.settle()
    worker.channel.ack(first["asker"], False)


@pytest.mark.parametrize(
    "odd",
    [
        {"number": 0}, {"number": True}, {"number": 2**63}, {"number": "1"}, {"size": -1}, {"size": None},
        {"digest": "0" * 63}, {"digest": "Z" * 64}, {"digest": None},
    ],
)  # fmt: skip
def test_an_odd_checkpoint_is_not_delivered(worker: Committing, odd: dict[str, Any]) -> None:
    """What no row could hold is answered without ok, which is a no."""
    client = worker.connect({"do": "checkpoint", "number": 1, "digest": "0" * 64, "size": 0, "ack": 3, **odd})
    worker.connect({"do": "checkpoint_failed", "error": ["x"]}, {"do": "checkpoint_failed", "error": "y" * 2000})
    worker.until(lambda: len(worker.heard) == 2)
    assert [failed["error"] for failed in worker.said("checkpoint_failed")] == ["no reason given", "y" * 1000]
    assert client.recv(100) == b'{"ack":3}\n'


# keep ------------------------------------------------------------------------------------------------------------


def test_every_10_steps_keep_3(worker: Committing, tmp_path: Path) -> None:
    """Q94: every 10 steps, keep 3, 100 steps: those of 80, 90, 100 remain."""
    script = (
        "trigger = ck.every(steps=10, keep=3)\n"
        "for step in range(1, 101):\n"
        "    if trigger.due(step, last=step == 100): assert ck.save(b'', step=step)\n"
    )
    assert in_job(worker, tmp_path / "c", script)[::2] == (0, "")
    assert [message["step"] for message in worker.said("checkpoint")] == list(range(10, 101, 10))
    steps = [checkpoint_files.read(str(tmp_path / "c" / name)).manifest["step"] for name in names(tmp_path / "c")]
    assert steps == [80, 90, 100]


def test_a_later_attempt_goes_on_and_keeps(worker: Committing, tmp_path: Path) -> None:
    """Q84: what the worker chose is found; it stays until a newer one is committed; what it passed over goes then."""
    directory = tmp_path / "c"
    assert in_job(worker, directory, "for n in (10, 20, 30): ck.save(b'', step=n)")[0] == 0
    resume = {"TRAINQ_ATTEMPT": "2", "TRAINQ_RESUME": "1", "TRAINQ_RESUME_FROM": str(directory / "2")}
    script = (
        "print(ck.manifest()['step'], os.path.basename(ck.latest()))\n"
        "t = ck.every(steps=10)\nprint([n for n in range(20, 42) if t.due(n)])\n"
        "ck.save(lambda d: 1 / 0)\nprint(len(os.listdir(job.checkpoint_dir)))\n"
        "ck.save(b'', step=30, keep=2)\nprint(ck.manifest()['step'])"
    )
    _, out, _ = in_job(worker, directory, script, **resume)
    assert out.splitlines() == ["20 2", "[30, 40]", "4", "30"]
    assert names(directory) == ["2", "4"], "3 was made by the attempt before and passed over by the worker"
    _, out, _ = in_job(worker, directory, "print(ck.latest())", **{**resume, "TRAINQ_RESUME": "0"})
    assert out == "None\n"


def test_a_sibling_that_is_ahead_costs_nothing(worker: Committing, tmp_path: Path) -> None:
    """Keep 1, with a newer one of another process that nobody has committed yet: the committed one stays."""
    directory = tmp_path / "c"
    script = (
        "from trainq.job import checkpoint_files as f\n"
        "def write(d):\n"
        "    for _ in range(3): f.create(job.checkpoint_dir, lambda d: None, {'job': os.environ['TRAINQ_JOB_UID'], 'attempt': 1})\n"
        "a = ck.save(b'', keep=1); b = ck.save(b'', keep=1)\n"
        "real = f.remove_old\n"
        "f.remove_old = lambda *args, **more: (write(None), real(*args, **more))\n"
        "ck.save(b'', keep=1)"
    )
    assert in_job(worker, directory, script)[::2] == (0, "")
    assert names(directory) == ["3", "4", "5", "6"]


# threads, forks, signals -----------------------------------------------------------------------------------------


def test_threads_and_forks_save_beside_each_other(worker: Committing, tmp_path: Path) -> None:
    """Each save of any thread and process gets its number and its own answer; none disturbs another."""
    script = (
        "import threading\n"
        "ck.keep = 0\n"
        "def many(): [ck.save(b'x') for _ in range(5)]\n"
        "threads = [threading.Thread(target=many) for _ in range(3)]\n"
        "for t in threads: t.start()\n"
        "children = []\n"
        "for _ in range(3):\n"
        "    pid = os.fork()\n"
        "    if not pid:\n"
        "        many()\n"
        "        os._exit(0)\n"
        "    children.append(pid)\n"
        "many()\n"
        "for t in threads: t.join()\n"
        "print([os.waitpid(pid, 0)[1] for pid in children])\n"
    )
    status, out, err = in_job(worker, tmp_path / "c", script)
    assert (status, out, err) == (0, "[0, 0, 0]\n", "")
    assert len(names(tmp_path / "c")) == 35
    assert sorted(message["number"] for message in worker.said("checkpoint")) == [
        int(name) for name in names(tmp_path / "c")
    ]


def test_a_fork_inside_of_a_save(worker: Committing, tmp_path: Path) -> None:
    """A child that comes back from the function does not finish, or spoil, its parent's checkpoint."""
    script = (
        "def write(d):\n"
        "    open(d + '/f', 'w').write('x')\n"
        "    pid = os.fork()\n"
        "    if pid: print('child', os.waitpid(pid, 0)[1])\n"
        "path = ck.save(write)\n"
        "if path is None: os._exit(0)\n"
        "print(sorted(os.listdir(path)))"
    )
    _, out, err = in_job(worker, tmp_path / "c", script)
    assert out == "child 0\n['f', 'manifest.json']\n"
    assert "forked while" in err
    assert checkpoint_files.problems(str(tmp_path / "c" / "1")) == []
    assert len(worker.said("checkpoint")) == 1


def test_on_stop_is_due_once_after_a_real_term(worker: Committing, tmp_path: Path) -> None:
    """Q92 E12: TERM between two steps: due once, at once; the training saves and leaves with 75."""
    script = (
        "import signal\n"
        "t = ck.every(steps=1000)\n"
        "due = []\n"
        "for step in range(1, 10):\n"
        "    if step == 5: os.kill(os.getpid(), signal.SIGTERM)\n"
        "    if t.due(step): due.append(step); assert ck.save(b'', step=step)\n"
        "print(due)\n"
        "sys.exit(75 if job.should_stop() else 0)"
    )
    assert in_job(worker, tmp_path / "c", script) == (75, "[5]\n", "")


def test_a_term_during_the_first_step_is_kept(worker: Committing, tmp_path: Path) -> None:
    """every() takes over SIGTERM when it is made; with on_stop=False it does not."""
    script = "import signal\nt = ck.every(steps=5{})\nos.kill(os.getpid(), signal.SIGTERM)\nprint(t.due(1))"
    assert in_job(worker, tmp_path / "c", script.format(""))[:2] == (0, "True\n")
    assert in_job(worker, tmp_path / "c", script.format(", on_stop=False"))[0] == -signal.SIGTERM


def test_a_handler_may_save_in_the_middle_of_a_save(worker: Committing, tmp_path: Path) -> None:
    """A signal handler that saves while a save is being written neither hangs nor mixes them up."""
    script = (
        "import signal\n"
        "signal.signal(signal.SIGUSR1, lambda *_: print('inner', os.path.basename(ck.save(b'2', step=2))))\n"
        "def write(d):\n    os.kill(os.getpid(), signal.SIGUSR1); open(d + '/data', 'wb').write(b'1')\n"
        "print('outer', os.path.basename(ck.save(write, step=1)), ck.manifest()['step'])"
    )
    assert in_job(worker, tmp_path / "c", script) == (0, "inner 1\nouter 2 1\n", "")


# triggers --------------------------------------------------------------------------------------------------------


def made(**more: Any) -> Trigger:
    return Trigger(
        **{"steps": None, "epochs": None, "minutes": None, "on_stop": False, "resumed": (None, None), **more}
    )


@pytest.mark.parametrize(
    ("steps", "resumed", "seen", "due"),
    [
        (10, None, range(1, 31), [10, 20, 30]),
        (10, None, range(31), [10, 20, 30]),
        (10, None, [7, 14, 21, 28, 35, 42], [14, 21, 35, 42]),
        (10, None, [10, 10, 10, 20, 20], [10, 20]),
        (10, None, [95, 99, 1, 9, 10, 12], [10]),
        (10, 50, range(50, 72), [60, 70]),
        (10, 57, [58, 59, 60, 61], [60]),
        (10, 50, range(1, 21), [10, 20]),
        (10, None, [None, "x", float("nan"), 10, None, 20], [10, 20]),
        (1, None, range(4), [1, 2, 3]),
        (0.5, None, [0.25, 0.5, 0.75, 1.0], [0.5, 1.0]),
        (3, None, [100, 1000], [1000]),
        (None, None, range(100), []),
    ],
)
@pytest.mark.parametrize("of", ["step", "epoch"])
def test_steps_and_epochs(of: str, steps: Any, resumed: Any, seen: Any, due: list[Any]) -> None:
    """Q94: due once at or after each multiple, also when numbers jump, repeat or start anew; not at the resumed one."""
    before = (resumed, None) if of == "step" else (None, resumed)
    trigger = made(**{f"{of}s": steps, "resumed": before})
    assert [number for number in seen if trigger.due(**{of: number})] == due


def test_minutes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Q94: due when so long has passed since the last one, and a save's own time does not count."""
    now = 1000.0
    monkeypatch.setattr(trigger, "monotonic", lambda: now)
    monkeypatch.setattr(trigger, "_saved_at", float("-inf"))
    timer = made(minutes=5, steps=100)
    due = []
    for second in range(0, 1400, 50):
        now = 1000.0 + second
        if timer.due(step=100 if second == 400 else None):
            due.append(second)
        if second == 700:
            trigger.saved()
    assert due == [300, 400, 700, 1000, 1300]
    now = 3000.0
    trigger.saved()
    now = 3299.0
    assert not timer.due()
    now = 3300.0
    assert timer.due()
    assert not timer.due()


def test_last() -> None:
    """Q94: at the end it is due, unless this very step just was."""
    assert [made(steps=10).due(step, last=True) for step in (7, 10)] == [True, True]
    trigger = made(steps=10)
    assert (trigger.due(10), trigger.due(10, last=True), trigger.due(10, last=True)) == (True, False, False)
    trigger = made(steps=10)
    assert (trigger.due(10), trigger.due(13, last=True), trigger.due(13, last=True)) == (True, True, False)
    trigger = made()
    assert (trigger.due(), trigger.due(last=True), trigger.due(last=True)) == (False, True, False)


def test_several_reasons_at_once_are_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step, an epoch and the clock that come due together ask for one save, not three in a row."""
    now = 0.0
    monkeypatch.setattr(trigger, "monotonic", lambda: now)
    monkeypatch.setattr(trigger, "_saved_at", float("-inf"))
    all_three = made(steps=10, epochs=1, minutes=1)
    now = 60.0
    assert [all_three.due(10, 1), all_three.due(10, 1), all_three.due(11, 1)] == [True, False, False]


@pytest.mark.parametrize("wrong", [0, -1, "x", float("nan")])
def test_an_interval_is_above_zero(wrong: Any) -> None:
    """A mistake in every() is told where it is made, before any training."""
    for name in ("steps", "epochs", "minutes"):
        with pytest.raises(ValueError, match="above 0"):
            made(**{name: wrong})


def test_importing_job_does_not_load_it(tmp_path: Path) -> None:
    """Who does not save checkpoints does not pay for them; `from trainq.job import checkpoint` works too."""
    script = (
        "import sys\nfrom trainq import job\nassert 'trainq.job.checkpoint' not in sys.modules and 'hashlib' not in sys.modules\n"
        "from trainq.job import checkpoint\nassert job.checkpoint is checkpoint\n"
    )
    env = {**os.environ, "PYTHONPATH": REPOSITORY}
    subprocess.run([sys.executable, "-c", script], cwd=tmp_path, env=env, check=True)
