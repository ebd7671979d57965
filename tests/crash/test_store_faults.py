"""The nth system call of SQLite on the queue's own files fails (ENOSPC, EIO, ESTALE): the command says so in a line or
succeeds, its answer is true also after everybody who had the queue open was killed, and every job ends exactly once.

Some calls of each kind fail, the errors taking turns; with TRAINQ_TEST_FAULTS=all each call with each error.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import random
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from crash import harness, tracing
from crash.tracing import Fault
from trainq.ops.cancel import cancel

if TYPE_CHECKING:
    from collections.abc import Iterator

    from e2e.kit import Result

    from crash.harness import CrashTq

ALL = os.environ.get("TRAINQ_TEST_FAULTS") == "all"
pytestmark = pytest.mark.timeout(3600 if ALL else 120)
SOME = {"pwrite64": 5, "pread64": 4, "fcntl": 4, "fdatasync": 4, "openat": 3, "ftruncate": 2, "mmap": 1, "unlink": 2}
"""The calls, and how many of each fail when not all do."""
SAID = (0, 1, 6)
LARGE = random.Random(0).randbytes(3 << 19)
"""More than fits a column, packed."""
SET = hashlib.sha256(LARGE).hexdigest()
BYSTANDER = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1])
connection.execute("SELECT count(*) FROM job").fetchall()
print(flush=True)
sys.stdin.read()
"""
SAVES = """
import os
from trainq import job
job.checkpoint.save(b"1", step=1)
with open(os.environ["TRAINQ_MODEL_DIR"] + "/model", "w") as file:
    file.write("1")
"""


@pytest.fixture
def tq(tmp_path) -> CrashTq:
    tracing.skip_without()
    made = harness.CrashTq(tmp_path)
    made.ok("init", made.root, root=None)
    return made


def files(tq: CrashTq) -> list[str]:
    return [os.path.join(tq.root, f"queue.sqlite{end}") for end in ("", "-wal", "-shm", "-journal")]


def faults(tq: CrashTq, *words: object, children: bool = True) -> list[Fault]:
    """What is to fail in this command, which is run once to count its calls."""
    assert harness.find(tq) == []  # it was the last to close the queue, as it will be before each fault
    log = tq.dir / "calls"
    before = tracing.traced(files(tq), "-e", "trace=" + ",".join(SOME), log=log, children=children)
    with bystander(tq):
        tq.ok(*words, before=before)
    calls = tracing.counted(log)
    assert calls["pwrite64"] > 2
    assert calls["fdatasync"] > (words[0] != "prune")  # of the log's head, and of what is committed
    if ALL:
        return [Fault(call, n, error) for call in SOME for n in range(1, calls[call] + 1) for error in tracing.ERRORS]
    chosen = [(call, n) for call in SOME for n in tracing.spread(calls[call], SOME[call])]
    return [Fault(call, n, tracing.ERRORS[place % 3]) for place, (call, n) in enumerate(chosen)]


@contextlib.contextmanager
def bystander(tq: CrashTq, *, there: bool = True) -> Iterator[None]:
    """Somebody else who has the queue open, and is killed at the end: then nobody has closed it in order."""
    if not there:
        yield
        return
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", BYSTANDER, files(tq)[0]], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert process.stdout.readline() == b"\n"
        yield
    finally:
        process.kill()
        process.communicate()


def fail(tq: CrashTq, fault: Fault, *words: object, children: bool = True, place: int) -> Result:
    """Run the command with its fault; its answer, which is a line or a success. Every other time, and always when it is a
    sync that fails, somebody else has the queue open."""
    with bystander(tq, there=fault.call == "fdatasync" or place % 2 == 0):
        done = tq(*words, before=tracing.traced(files(tq), *fault.words, children=children))
    is_said(fault, done)
    return done


def is_said(fault: Fault, done: Result) -> None:
    """In a line, with an exit status that is documented."""
    said = [line for line in done.err.splitlines() if line.startswith("trainq: ")]
    assert done.code in SAID, (fault, done)
    assert "Traceback" not in done.err, (fault, done)
    assert done.code != 6 or len(said) == 1, (fault, done)


def test_submit(tq):
    """Q03: an id that was told is there, and what was refused is not and never comes to be."""
    words = ("submit", "--", "true")
    for place, fault in enumerate(faults(tq, *words)):
        before = harness.ends(tq).keys()
        done = fail(tq, fault, *words, place=place)
        told = {int(line) for line in done.out.split()}
        assert len(told) == (done.code == 0), (fault, done)
        assert harness.ends(tq).keys() - before == told, (fault, done)
    assert harness.find(tq) == []
    harness.check(tq)
    assert set(map(tuple, harness.ends(tq).values())) == {("done",)}


def test_submit_with_a_checkpoint(tq):
    """Q03: the same while a commit brings what is in the log into the file, which happens every thousand pages."""
    lines = "".join(json.dumps({"argv": ["true", "x" * 20000]}) + "\n" for _ in range(300))
    (tq.dir / "many.jsonl").write_text(lines)
    words, names, log = ("submit", "--from", "many.jsonl"), ("pwrite64", "fdatasync"), tq.dir / "calls"
    with bystander(tq):
        tq.ok(*words, before=tracing.traced(files(tq)[:1], "-e", "trace=" + ",".join(names), log=log))
    calls = tracing.counted(log)
    assert calls["pwrite64"] > 900  # of the database itself, not of its log
    chosen = [
        Fault(call, n, error) for call in names for n in tracing.spread(calls[call], 3) for error in tracing.ERRORS
    ]
    for fault in chosen if ALL else chosen[::3]:
        before = harness.ends(tq).keys()
        with bystander(tq):
            done = tq(*words, before=tracing.traced(files(tq)[:1], *fault.words))
        is_said(fault, done)
        assert harness.ends(tq).keys() - before == {int(line) for line in done.out.split()}, (fault, done)
    harness.check(tq, work=False)


def test_cancel(tq):
    """Q30: what is said of a cancel is so, and stays so; again it is done."""
    first, *numbers = many(tq, {"argv": ["true"]})
    for place, fault in enumerate(faults(tq, "cancel", first)):
        number = numbers[place]
        done = fail(tq, fault, "cancel", number, place=place)
        assert state(tq, number) == ("canceled" if done.code == 0 else "pending"), (fault, done)
        if done.code != 0:
            tq.ok("cancel", number)
        assert harness.find(tq) == [], fault
    harness.check(tq)
    assert set(map(tuple, harness.ends(tq).values())) == {("canceled",), ("done",)}


def test_edit(tq):
    """E08, E18: what is said of an edit is so, and stays so; on a group's queue, whatever has failed, the job is proved."""
    tq.root += "-group"
    tq.ok("init", tq.root, "--group", os.getgid(), root=None)
    first, *numbers = many(tq, {"argv": ["true"]})
    words = ("--set", "time=5m", "--set", "priority=3")
    for place, fault in enumerate(faults(tq, "edit", first, *words)):
        number = numbers[place]
        done = fail(tq, fault, "edit", number, *words, place=place)
        card = tq.job(number)
        found = card["priority"], card["request"]["time_s"], len(tq.history(number))
        assert found == ((3, 300.0, 2) if done.code == 0 else (0, None, 1)), (fault, done)
        assert harness.find(tq) == [], fault
    harness.check(tq)
    assert set(map(tuple, harness.ends(tq).values())) == {("done",)}


def test_retry(tq):
    """Q39: the same for a retry; the job then runs once more, with the variables that were kept for it."""
    tq.env |= harness.SECRET
    first, *numbers = many(tq, {"argv": ["sh", "-c", 'test "$MY_TOKEN" = x'], "env_keep": ["MY_TOKEN"]})
    tq.ok("cancel", first, *numbers)
    for place, fault in enumerate(faults(tq, "retry", first)):
        number = numbers[place]
        done = fail(tq, fault, "retry", number, place=place)
        assert state(tq, number) == ("pending" if done.code == 0 else "canceled"), (fault, done)
        if done.code != 0:
            tq.ok("retry", number)
        assert harness.find(tq) == [], fault
    harness.check(tq)
    assert set(map(tuple, harness.ends(tq).values())) == {("canceled",), ("canceled", "done")}


def test_prune(tq):
    """Q03: a pass that meets a sick store takes out a job whole or not at all, and the next one makes it good."""
    (tq.dir / "set").write_bytes(b"x" * 50000)
    waits, *numbers = many(tq, {"argv": ["true"], "data": ["set"]})
    words = ("prune", "--older-than", "0s")
    tq.ok("cancel", numbers.pop())
    for place, fault in enumerate(faults(tq, *words)):
        queue = tq.queue()
        cancel(queue, [str(numbers[place])])
        queue.session.close()
        fail(tq, fault, *words, place=place)
        assert state(tq, waits) == "pending"
        assert harness.find(tq) == [], fault
    harness.check(tq)
    assert set(map(tuple, harness.ends(tq).values())) == {("canceled",), ("done",)}


@pytest.mark.parametrize("words", [("--once",), ("--until", "empty")], ids=["once", "until empty"])
def test_worker(tq, words):
    """Q44: a worker whose store fails at one call goes on, or ends and says so; the job ends once, with its model."""
    tq.script("saves.py", SAVES)
    submit = ("--model", "m", "--", "python", "saves.py")
    tq.submit(*submit)
    chosen = faults(tq, "worker", *words, children=False)
    for place, fault in enumerate(chosen if ALL else chosen[words == ("--once",) :: 2]):
        number = tq.submit(*submit)
        done = fail(tq, fault, "worker", *words, children=False, place=place)
        was = state(tq, number)
        assert was in ("done", "pending", "running", "errored"), (fault, done)
        if was != "done":
            harness.prune(tq)
            assert harness.find(tq) == [], fault
            if was == "errored":
                assert tq.job(number)["reason"] == "store"
                tq.ok("retry", number)
            tq.work()
        assert state(tq, number) == "done", (fault, tq.job(number), done)
    harness.check(tq)
    assert all(each.count("done") == 1 for each in harness.ends(tq).values())
    assert tq.models()[-1]["job"] == number


LOOKS = ("stat", "lstat", "newfstatat", "statx")


@pytest.mark.parametrize("error", ["EIO", "ESTALE"])
@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("queue.sqlite", ("status",)),
        ("queue.sqlite", ("init",)),
        ("data", ("submit", "--", "true")),
        (f"data/{SET}.zst", ("submit", "--data", "set", "--", "true")),
        ("runs/1/1/log", ("logs", "1")),
        (".", ("status",)),
    ],
)
def test_what_cannot_be_looked_at_is_not_gone(tq, path, words, error):
    """DESIGN 10: a storage that cannot tell is said to be sick; nothing is made in the place of what it does not show,
    and no other queue is taken for it."""
    (tq.dir / "set").write_bytes(LARGE)
    tq.submit("--data", "set", "--", "true")
    tq.work()
    tq.root = os.path.join(tq.env["HOME"], ".trainq")
    shutil.copytree(os.path.join(tq.home.parent, "root"), tq.root)
    sick = os.path.join(tq.root, path) if path != "." else os.path.join(tq.dir, ".trainq")
    if path == ".":
        shutil.copytree(tq.root, sick)
    if words == ("init",):
        words = ("init", tq.root)
    before = tracing.traced([sick], "-e", f"trace={','.join(LOOKS)}", "-e", f"inject={','.join(LOOKS)}:error={error}")
    done = tq(*words, root=None, before=before)
    assert (done.code, done.out) == (6, ""), done
    assert len(done.err.splitlines()) == 2, done
    for wrong in ("no queue here", "missing", "vanished", "deleted", "gone"):
        assert wrong not in done.err, done
    assert [name for name in os.listdir(tq.root) if name.endswith(".sqlite")] == ["queue.sqlite"]
    assert [job["id"] for job in tq.jobs()] == [1]


def many(tq: CrashTq, request: dict[str, Any]) -> list[int]:
    """As many jobs as a walk has faults, and some."""
    (tq.dir / "many.jsonl").write_text((json.dumps(request) + "\n") * (1000 if ALL else 60))
    return [int(line) for line in tq.ok("submit", "--from", "many.jsonl").out.split()]


def state(tq: CrashTq, number: int) -> str:
    queue = tq.queue()
    try:
        with queue.session.reading() as tx:
            return tx.value("SELECT state FROM job WHERE id = ?", (number,))
    finally:
        queue.session.close()
