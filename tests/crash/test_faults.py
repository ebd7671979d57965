"""The nth operation on a file fails (ENOSPC, EIO, ESTALE), for every n: the command says so in a line, nothing that was
acknowledged is lost, the check is clean, and the same again succeeds.

The three errors take turns over the operations; with TRAINQ_TEST_FAULTS=all each of them meets each operation.
"""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from e2e.kit import until

from crash import harness
from crash.harness import ONE, SECRET

if TYPE_CHECKING:
    from collections.abc import Iterator

    from e2e.kit import Result

    from crash.harness import CrashTq

ERRORS = ("ENOSPC", "EIO", "ESTALE")
SHIFTS = (0, 1, 2) if os.environ.get("TRAINQ_TEST_FAULTS") == "all" else (0,)
SAID = (0, 1, 2, 4, 6)
"""What a command may exit with when the storage is sick: done all the same, in part, refused, or the storage's word."""
COUNTING = """
import os, runpy, sys
from trainq.base import oserrors
file = os.open(sys.argv.pop(1), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
oserrors._fail = lambda path: os.write(file, os.fsencode(path) + b"\\n")
runpy.run_module("trainq", run_name="__main__", alter_sys=True)
"""


@pytest.fixture
def original(tmp_path) -> CrashTq:
    return harness.template(tmp_path)


def operations(tq: CrashTq, *words: object, root: str | None = None) -> list[str]:
    """The files of all operations of this command, which is run to see them."""
    counted = tq.home / "counted"  # not in what is frozen
    where = () if root else ("--root", tq.root)
    subprocess.run(
        [sys.executable, "-c", COUNTING, counted, *where, *map(str, words)], env=tq.environment(SECRET), cwd=tq.dir,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True, timeout=60,
    )  # fmt: skip
    return counted.read_text().splitlines()


def faults(tq: CrashTq, shift: int, *words: object, root: str | None = None) -> Iterator[str]:
    """`TRAINQ_FAULT` for each operation of this command."""
    most = len(operations(tq, *words, root=root))
    assert most > 5
    for n in [*range(1, min(most, 40) + 1), *range(41, most + 1, 7)]:
        yield f"{ERRORS[(n + shift) % 3]}:{n}"


def is_said(fault: str, done: Result) -> None:
    """In a line, with an exit status that is documented."""
    assert done.code in SAID, (fault, done)
    assert "Traceback" not in done.err, (fault, done)
    if done.code == 6:
        said = [line for line in done.err.splitlines() if line.startswith("trainq: ")]
        assert len(said) == 1, (fault, done)


@pytest.mark.parametrize("shift", SHIFTS)
def test_init(original, shift, tmp_path):
    """Q63: what could not be made is made by the next call."""
    tq = original
    for fault in faults(tq, shift, "init", str(tmp_path / "counted"), root="none"):
        tq.root = str(tmp_path / fault)
        done = tq("init", tq.root, root=None, env={"TRAINQ_FAULT": fault})
        is_said(fault, done)
        tq.ok("init", tq.root, root=None)
        assert tq.submit("--", "true") == 1
        harness.prune(tq, file_grace="0s")
        assert harness.find(tq, at_once=True) == [], fault


@pytest.mark.parametrize("shift", SHIFTS)
def test_submit(original, shift):
    """Q03: a submit that could not store its training set is none; one that was acknowledged is there."""
    tq = original
    words = ("submit", *ONE, "--seed")
    ids = []
    for n, fault in enumerate(faults(tq, shift, *words, 1), 2):
        done = tq(*words, n, env={**SECRET, "TRAINQ_FAULT": fault})
        is_said(fault, done)
        assert (done.code == 0) == (done.out != "")
        harness.prune(tq)
        assert harness.find(tq) == [], fault
        ids.append(int(done.out) if done.code == 0 else tq.submit(*words[1:], n, env=SECRET))
    assert ids == sorted(set(ids))
    assert sorted(harness.ends(tq)) == [1, 2, *ids]
    for number in ids[3:]:
        tq.ok("cancel", number)
    harness.check(tq)
    assert [harness.ends(tq)[number] for number in ids[:3]] == [["done"]] * 3


@pytest.mark.parametrize("half", [0, 1])
@pytest.mark.parametrize("shift", SHIFTS)
def test_worker(original, shift, half):
    """Q47: whatever fails while a job is prepared, goes on from a checkpoint and is published, it is the storage's fault:
    the job waits for a better worker, or ends `store` with its result kept."""
    tq = original
    (tq.dir / "twice.py").write_text(
        'import os\nif os.environ["TRAINQ_ATTEMPT"] == "1": os.environ["TRAINQ_CRASH"] = "checkpoint.renamed:2"\n'
        + harness.TRAINER
    )
    words = (
        "--data", "large.bin", "--env-keep", "MY_TOKEN", "--retries", "1", "--retry-on", "signal", "--backoff", "0s", "--model",
        "twice", "--snapshot", "copy", "--", "python", "twice.py",
    )  # fmt: skip
    tq.submit(*words, env=SECRET)
    for fault in list(faults(tq, shift, "worker", "--until", "empty"))[half::2]:
        number = tq.submit(*words, env=SECRET)
        done = tq("worker", "--until", "empty", env={"TRAINQ_FAULT": fault})
        is_said(fault, done)
        assert done.code in (0, 1, 6), (fault, done)
        job = tq.job(number)
        assert (job["state"], job["reason"]) in (
            ("done", None), ("pending", None), ("pending", "drained"), ("pending", "zombie"), ("held", "backoff"),
            ("errored", "store"),
            ("pending", "no_worker"),
        ), (fault, job)  # fmt: skip
        harness.prune(tq)
        assert harness.find(tq) == [], fault
        if job["state"] == "errored":
            tq.ok("retry", number, env=SECRET)
        if job["state"] != "done":
            tq.work()
        assert tq.state(number) == "done", (fault, tq.job(number))
    harness.check(tq)
    assert all(each.count("done") == 1 for each in harness.ends(tq).values())


@pytest.mark.parametrize("error", ["ENOSPC", "EIO", "EROFS"])
@pytest.mark.parametrize("name", ["the-set", "checkpoints"])
def test_preparation(original, name, error):
    """E13: a disk that is full, sick or shut while a training set is unpacked, or while the start is planned: the job goes
    back at no cost, its worker takes no more, and another one does it."""
    tq = original
    tq.submit("one", "--data", "large.bin", "--seed", "2")
    done = operations(tq, "worker", "--until", "empty")
    n = next(n for n, path in enumerate(done, 1) if os.path.basename(path) == name)
    job = tq.submit("one", "--data", "large.bin", "--seed", "3")
    with tq.worker("--name", "sick", env={"TRAINQ_FAULT": f"{error}:{n}"}) as sick:
        (said,) = until(lambda: sick.said("quarantined"))
        card = tq.job(job)
        assert (card["state"], card["reason"], card["retry"]["used"]) == ("pending", "drained", 0)
        assert name in said["message"]
        tq.work("--name", "well")
        (worker,) = tq.ok("workers", "--json").json["items"]
        assert (worker["name"], worker["state"], worker["reason"]) == ("sick", "quarantined", said["message"])
    assert [one["worker"] for one in tq.job(job)["attempts"]] == ["sick", "well"]
    assert tq.state(job) == "done"


def test_a_file_that_is_sick_by_itself(original, tmp_path):
    """E13, DESIGN 2.10: a fault that a job meets again on the next host, where others can be prepared, is its own: it is
    errored, and that worker does the next job."""
    tq = original
    words = ("--max-attempts", "1", "--", "true")
    tq.submit(*words)
    n = next(
        n for n, path in enumerate(operations(tq, "worker", "--until", "empty"), 1) if path.endswith("/checkpoints")
    )
    job = tq.submit(*words)
    with tq.worker("--name", "first", env={"TRAINQ_FAULT": f"EIO:{n}"}) as first:
        until(lambda: first.said("quarantined"))
    other = tq.submit("--", "true")
    done = operations(harness.copy(tq, _made(tmp_path / "copy")), "worker", "--until", "empty")
    n = next(n for n, path in enumerate(done, 1) if path.endswith("/checkpoints"))
    tq.ok("worker", "--until", "empty", "--slots", "1", env={"TRAINQ_FAULT": f"EIO:{n}"})
    card = tq.job(job)
    assert (card["state"], card["reason"], card["attempt"]["n"]) == ("errored", "checkpoint", 2)
    assert tq.state(other) == "done"


@pytest.mark.parametrize("shift", SHIFTS)
def test_prune(original, shift, tmp_path):
    """Q03: a pass that meets a sick corner does the rest, says so, and is made good by the next one."""
    number = original.submit(*ONE, "--seed", "2", env=SECRET)
    (original.dir / "other").write_bytes(os.urandom(2 << 20))
    original.ok("cancel", original.submit("--data", "other", "--", "true"))
    original("worker", "--once", env={"TRAINQ_CRASH": "publish.before_commit"})
    words = ("prune", "--older-than", "0s")
    counted = harness.copy(original, _made(tmp_path / "counted"))
    counted.env["TRAINQ_KEEP_FILE_GRACE"] = "0s"
    for fault in faults(counted, shift, *words):
        tq = harness.copy(original, _made(tmp_path / fault))
        done = tq(*words, env={"TRAINQ_KEEP_FILE_GRACE": "0s", "TRAINQ_FAULT": fault})
        is_said(fault, done)
        assert len(tq.models()) == 1
        harness.check(tq, work=False)
    tq.work()
    harness.check(tq)
    assert harness.ends(tq)[number] == ["done"]


def _made(directory):
    directory.mkdir()
    return directory
