"""Killed (-9) at every named point between two durable steps, in every flow that comes by: what was acknowledged is
there, one pass of the janitor makes the check clean, and a normal worker ends each job exactly once."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from e2e.kit import until

import trainq
from crash import harness
from crash.harness import ONE, SECRET

if TYPE_CHECKING:
    from collections.abc import Callable

    from crash.harness import CrashTq

STORE = ("store.before_commit", "store.after_commit")


def _turns(most: int) -> tuple[str, ...]:
    """Around each of a process's commits, one after the other."""
    return tuple(f"{point}:{n}" for n in range(1, most + 1) for point in STORE)


POINTS = {
    "init": ("init.directories", "init.configured", "init.before_link", "init.linked"),
    "convert": ("convert.written",),
    "submit": (
        "pack.written", "pack.published", "submit.after_data", "snapshot.written", "snapshot.published", "submit.before_commit", "submit.secrets_kept", *STORE,
        "submit.after_commit",
    ),
    "group submit": ("submit.proved", *STORE, "submit.after_commit"),
    "group prune": ("proofs.dropped",),
    "work": (
        "worker.joined", "claim.committed", "prepare.opened", "prepare.staged", "prepare.code_unpacked", "prepare.unpacked", "start.handed",
        "beat.committed", "publish.hashed", "publish.sealed", "publish.renamed", "publish.placed",
        "publish.before_commit", "finish.committed", "secrets.dropped", "latest.made", "latest.replaced",
        "publish.retired", "sweep.retired", "clean.data_removed", *_turns(7),
    ),
    "lost": ("expire.strays_ended", "expire.committed", *_turns(3)),
    "zombie": ("expire.looked",),
    "checkpoint": (
        "checkpoint.filled", "checkpoint.sealed", "checkpoint.renamed", "checkpoint.named", "checkpoint.committed",
        "checkpoint.unnamed",
    ),
    "sweep": ("checkpoint.aside",),
    "cancel": (*_turns(2), "cancel.committed", "secrets.dropped"),
    "cancel running": (*_turns(2), "cancel.committed"),
    "hold": (*_turns(2), "hold.committed"),
    "edit": (*_turns(2), "edit.committed"),
    "group edit": ("edit.proved", *STORE, "edit.committed"),
    "after": (*_turns(4), "finish.committed"),
    "reopen": (*STORE, "retry.committed"),
    "retry": ("retry.secrets_kept", *STORE, "retry.committed"),
    "prune": ("prune.retired", "prune.data_forgotten", *(f"prune.step:{n}" for n in range(1, 11)), *_turns(9)),
    "orphan": ("publish.renamed", *_turns(4)),
    "prune one": (*STORE, "prune.selected"),
}  # fmt: skip
WALK = [
    pytest.param(mode, flow, point, id=f"{mode}-{flow}-{point}")
    for mode in ("local", "shared")
    for flow, points in POINTS.items()
    for point in points
    if mode == "local" or point.startswith("store.")  # all between two commits is the same for both
]


def test_every_point_is_in_a_flow():
    """A point that no flow reaches would be one that nobody has died at; one that is gone would be walked in vain."""
    house = Path(trainq.__file__).parent
    found = {name for path in house.rglob("*.py") for name in re.findall(r'\bpoint\("([^"]+)"\)', path.read_text())}
    assert found == {point.partition(":")[0] for points in POINTS.values() for point in points}


@pytest.fixture(scope="module")
def originals(tmp_path_factory) -> dict[str, CrashTq]:
    return {mode: harness.template(tmp_path_factory.mktemp(mode), mode) for mode in ("local", "shared")}


@pytest.mark.parametrize(("mode", "flow", "point"), WALK)
def test_killed_at(mode, flow, point, originals, tmp_path):
    """Q03: kill -9 at this point of this flow, on a queue for one host and on one for several."""
    tq = harness.copy(originals[mode], tmp_path)
    FLOWS[flow.replace(" ", "_")](tq, point)


def die(tq: CrashTq, point: str, *words: object, env: dict[str, str] | None = None) -> str:
    """Run the command, which is killed at the point; a later commit than the last is none. What it said."""
    done = tq(*words, env={**(env or {}), "TRAINQ_CRASH": point})
    counted = point.partition(":")[2] not in ("", "1")
    assert done.code == -signal.SIGKILL or (counted and done.code == 0), (point, done)
    return done.out


def init(tq: CrashTq, point: str) -> None:
    """Q63: a root made by half is no queue, and the next `init` completes it."""
    tq.root += "-half"
    done = tq("init", tq.root, root=None, env={"TRAINQ_CRASH": point})
    assert done.code == -signal.SIGKILL
    if point != "init.linked":
        refused = tq("status")
        assert (refused.code, f"trainq init {tq.root}" in refused.err) == (6, True)
    tq.ok("init", tq.root, root=None)
    assert tq.submit("--", "true") == 1
    harness.check(tq)
    assert harness.ends(tq) == {1: ["done"]}


def convert(tq: CrashTq, point: str) -> None:
    """A queue whose conversion was killed is what it was; the next call converts it."""
    number = tq.submit(*ONE, "--seed", "2", env=SECRET)
    die(tq, point, "db", "convert", "--shared")
    harness.check(tq)
    tq.ok("db", "convert", "--shared")
    tq.submit(*ONE, "--seed", "3", env=SECRET)
    harness.check(tq)
    assert [len(each) for each in harness.ends(tq).values()] == [1] * (number + 1)


def submit(tq: CrashTq, point: str) -> None:
    """Q03: nothing was acknowledged; the same submit again is one job."""
    words = ("submit", *ONE, "--seed", "2", "--key", "k")
    assert die(tq, point, *words, env=SECRET) == ""
    is_in = len(harness.ends(tq)) == 2
    assert is_in == (point in ("store.after_commit", "submit.after_commit"))
    assert tq.ok(*words, env=SECRET).out == "2\n"
    harness.check(tq)
    assert harness.ends(tq) == {1: ["done"], 2: ["done"]}


def group_submit(tq: CrashTq, point: str) -> None:
    """E18: the spec file is there before the row; without a row the janitor takes it, and the same submit again is one job."""
    make_group_queue(tq)
    words = ("submit", "--key", "k", "--", "true")
    die(tq, point, *words)
    assert len(os.listdir(os.path.join(tq.root, "specs"))) == 1
    assert tq.ok(*words).out == "1\n"
    harness.check(tq)
    assert harness.ends(tq) == {1: ["done"]}
    assert len(os.listdir(os.path.join(tq.root, "specs"))) == 1


def group_prune(tq: CrashTq, point: str) -> None:
    """A spec file is deleted or it is not, and the next pass does the rest."""
    make_group_queue(tq)
    for _ in range(2):
        tq.ok("cancel", tq.submit("--", "true"))
    die(tq, point, "prune", "--older-than", "0s")
    harness.check(tq)
    assert os.listdir(os.path.join(tq.root, "specs")) == []


def make_group_queue(tq: CrashTq) -> None:
    tq.root += "-group"
    tq.ok("init", tq.root, "--group", os.getgid(), root=None)


def work(tq: CrashTq, point: str) -> None:
    """Q44: the job is done once and has one model, whatever its first worker had done."""
    number = tq.submit(*ONE, "--seed", "2", env=SECRET)
    die(tq, point, "worker", "--once", env={"TRAINQ_KEEP_FILE_GRACE": "0s"})
    harness.check(tq)
    assert harness.ends(tq) == {1: ["done"], number: ["done"]}
    (model,) = tq.models()
    assert model["job"] == number
    assert Path(model["path"], "model").read_text() == str(number)


def lost(tq: CrashTq, point: str) -> None:
    """Q22: who takes back what a dead worker had is killed too."""
    number = tq.submit(*ONE, "--seed", "2", env=SECRET)
    die(tq, "start.handed", "worker", "--once")
    die(tq, point, "prune")
    harness.check(tq)
    assert harness.ends(tq) == {1: ["done"], number: ["done"]}
    assert tq.job(number)["attempt"]["n"] == 2


def zombie(tq: CrashTq, point: str) -> None:
    """Q22: a worker that has just taken a job back from one that was stopped."""
    tq.env |= {
        "TRAINQ_TIMES_HEARTBEAT": "0.2s",
        "TRAINQ_TIMES_HOLDER_LIMIT": "0.8s",
        "TRAINQ_TIMES_ZOMBIE_AFTER": "1.5s",
    }
    number = tq.submit("--shell", 'test "$TRAINQ_ATTEMPT" != 1 || sleep 60')
    with tq.worker() as stopped:
        until(lambda: tq.job(number)["attempt"]["pid"])
        stopped.signal(signal.SIGSTOP)
        die(tq, point, "worker")
        stopped.signal(signal.SIGCONT)
        until(lambda: stopped.said("claim lost") or harness.ends(tq)[number])
    harness.check(tq)
    assert harness.ends(tq)[number] == ["done"]


def checkpoint(tq: CrashTq, point: str) -> None:
    """Q83: a training that dies while it saves goes on from what was committed; none of it is lost."""
    line = f"if [ $TRAINQ_ATTEMPT = 1 ]; then export TRAINQ_CRASH={point}; fi; exec python one.py"
    words = ("--data", "large.bin", "--retries", "1", "--retry-on", "signal", "--backoff", "0s", "--shell", line)
    number = tq.submit(*words)
    harness.check(tq)
    assert harness.ends(tq)[number] == ["done"]
    job = tq.job(number)
    assert [one["result"]["signal"] for one in job["attempts"]] == [9, None]
    assert os.listdir(os.path.join(job["paths"]["checkpoints"])) != []
    is_committed = point in ("checkpoint.committed", "checkpoint.unnamed")
    assert (job["resumed_from"] is not None) == is_committed


def sweep(tq: CrashTq, point: str) -> None:
    """A worker that dies while it clears away what was not committed."""
    line = "if [ $TRAINQ_ATTEMPT = 1 ]; then export TRAINQ_CRASH=checkpoint.named; fi; exec python one.py"
    words = ("--data", "large.bin", "--retries", "1", "--retry-on", "signal", "--backoff", "0s", "--shell", line)
    number = tq.submit(*words)
    tq.ok("worker", "--once")
    die(tq, point, "worker", "--until", "empty")
    harness.check(tq)
    assert harness.ends(tq)[number] == ["done"]


def cancel(tq: CrashTq, point: str) -> None:
    """Q30: it was done or it was not; again it is done, and says so."""
    number = tq.submit(*ONE, "--seed", "2", env=SECRET)
    die(tq, point, "cancel", number)
    assert tq.state(number) == ("pending" if point == "store.before_commit:1" else "canceled")
    tq.ok("cancel", number)
    harness.check(tq)
    assert harness.ends(tq)[number] == ["canceled"]


def cancel_running(tq: CrashTq, point: str) -> None:
    """Q31: the same for a job that runs: its worker hears of it or does not."""
    number = tq.submit("--", "sleep", "60")
    with tq.worker():
        until(lambda: tq.job(number)["attempt"]["pid"])
        die(tq, point, "cancel", number)
        if point == "store.before_commit:1":  # the second one looks whether its worker is gone
            assert tq.job(number)["reason"] is None
            tq.ok("cancel", number)
        until(lambda: tq.state(number) == "canceled")
    harness.check(tq)
    assert harness.ends(tq)[number] == ["canceled"]


def hold(tq: CrashTq, point: str) -> None:
    """E08: held and released, it was done or it was not; again it is done, and the job runs once."""
    number = tq.submit("--", "true")
    for verb in ("hold", "release"):
        die(tq, point, verb, number)
        harness.check(tq, work=False)
        tq.ok(verb, number)
    assert len(tq.history(number)) == 3
    harness.check(tq)
    assert harness.ends(tq)[number] == ["done"]


def edit(tq: CrashTq, point: str) -> None:
    """E08: it was done or it was not, as a whole; again it is done, and there is one row of it."""
    number = tq.submit("--", "true")
    words = ("edit", number, "--set", "name=new", "--set", "priority=3", "--set", "begin=2000-01-01")
    die(tq, point, *words)
    assert tq.job(number)["priority"] == (3 if tq.job(number)["name"] == "new" else 0)
    harness.check(tq, work=False)
    tq.ok(*words)
    assert [row["reason"] for row in tq.history(number)] == [None, "edited"]
    harness.check(tq)
    assert harness.ends(tq)[number] == ["done"]


def group_edit(tq: CrashTq, point: str) -> None:
    """E08, E18: between file and row the job is still its owner's, as it was and as it will be."""
    make_group_queue(tq)
    number = tq.submit("--", "true")
    words = ("edit", number, "--set", "name=new")
    die(tq, point, *words)
    if point == "edit.committed":
        tq.ok(*words)
    harness.check(tq)
    assert harness.ends(tq) == {number: ["done"]}


def after(tq: CrashTq, point: str) -> None:
    """E06: a worker dies around an end that others wait for: who comes next tells them, and no end is told twice."""
    first = tq.submit("--", "true")
    good, bad = tq.submit("--after", first, "--", "true"), tq.submit("--after", f"fail:{first}", "--", "true")
    last = tq.submit("--after", f"{good},any:{bad}", "--", "true")
    die(tq, point, "worker", "--once")
    harness.check(tq)
    assert [harness.ends(tq)[number] for number in (first, good, bad, last)] == [["done"], ["done"], [], ["done"]]
    assert [row["state"] for row in tq.history(bad)] == ["held", "skipped"]


def reopen(tq: CrashTq, point: str) -> None:
    """E06: what was skipped is reopened with what it waits for, or neither is."""
    first = tq.submit("--shell", "test -e good")
    second = tq.submit("--after", first, "--", "true")
    tq.ok("worker", "--once")
    (tq.dir / "good").touch()
    die(tq, point, "retry", first, "--with-dependants")
    harness.check(tq, work=False)
    assert tq.state(second) == ("skipped" if tq.state(first) == "errored" else "held")
    tq.ok("retry", first, "--with-dependants")
    harness.check(tq)
    assert [harness.ends(tq)[number] for number in (first, second)] == [["errored", "done"], ["done"]]


def retry(tq: CrashTq, point: str) -> None:
    """It was done or it was not; again it is done, and the job runs once more."""
    number = tq.submit(*ONE, "--seed", "2", env=SECRET)
    tq.ok("cancel", number)
    die(tq, point, "retry", number, env=SECRET)
    harness.check(tq, work=False)
    tq.ok("retry", number, env=SECRET)
    harness.check(tq)
    assert harness.ends(tq)[number] == ["canceled", "done"]


def prune(tq: CrashTq, point: str) -> None:
    """A pass that was killed is made good by the next one; models and what waits stay."""
    number = tq.submit(*ONE, "--seed", "2", env=SECRET)
    (tq.dir / "other").write_bytes(os.urandom(2 << 20))
    canceled = tq.submit("--data", "other", "--", "true")
    tq.ok("cancel", canceled)
    die(tq, point, "prune", "--older-than", "0s", env={"TRAINQ_KEEP_FILE_GRACE": "0s", "TRAINQ_KEEP_SNAPSHOTS": "0s"})
    assert len(tq.models()) == 1
    harness.check(tq)
    assert harness.ends(tq) == {1: ["done"], number: ["done"], canceled: ["canceled"]}


def orphan(tq: CrashTq, point: str) -> None:
    """The same while it puts aside what a dead publisher left."""
    number = tq.submit(*ONE, "--seed", "2", env=SECRET)
    die(tq, "publish.before_commit", "worker", "--once")
    die(tq, point, "prune", env={"TRAINQ_KEEP_FILE_GRACE": "0s"})
    harness.check(tq)
    assert harness.ends(tq) == {1: ["done"], number: ["done"]}


def prune_one(tq: CrashTq, point: str) -> None:
    """The same for a job that was named."""
    die(tq, point, "prune", "1")
    harness.check(tq)
    assert len(tq.models()) == 1


FLOWS: dict[str, Callable[[CrashTq, str], None]] = {
    each.__name__: each
    for each in (
        init, convert, submit, group_submit, group_prune, work, lost, zombie, checkpoint, sweep, cancel, cancel_running, hold, edit, group_edit, after, reopen, retry, prune, orphan, prune_one
    )
}  # fmt: skip
