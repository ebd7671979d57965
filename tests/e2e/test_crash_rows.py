"""Killed (-9) at every named point between two durable steps: each job ends exactly once, models are whole, and what
was left half done is gone after the next pass."""

from __future__ import annotations

import hashlib
import json
import os
import re
import signal
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from e2e.kit import until

import trainq

SUBMIT = (
    "submit.after_data", "pack.written", "pack.published", "submit.before_commit", "store.before_commit",
    "store.after_commit", "submit.after_commit",
)  # fmt: skip
PUBLISH = (
    "publish.hashed", "publish.sealed", "publish.renamed", "publish.placed", "publish.before_commit", "latest.made",
    "latest.replaced", "delete.aside",
)  # fmt: skip
# A worker's transactions, one after the other: it joins, claims, says that it started, settles, leaves.
TURNS = tuple(f"store.{when}_commit:{n}" for n in range(1, 6) for when in ("before", "after"))
NO_GRACE = {"TRAINQ_KEEP_FILE_GRACE": "0s"}


def check_models(tq) -> list[Any]:
    """Every version with a row is whole on the disk, and no other is visible; the rows."""
    models = tq.models()
    for model in models:
        manifest = json.loads(Path(model["path"], "manifest.json").read_bytes())
        assert manifest["job"] == model["job"]
        for file in manifest["files"]:
            data = Path(model["path"], file["path"]).read_bytes()
            assert hashlib.sha256(data).hexdigest() == file["sha256"]
    return models


def on_disk(tq) -> set[str]:
    """The directories of all versions."""
    top = os.path.join(tq.root, "models")
    found = set()
    for directory, names, _ in os.walk(top):
        names[:] = [name for name in names if name not in (".staging", ".aside")]
        found |= {os.path.join(directory, name) for name in names if re.fullmatch("@[0-9]+", name)}
    return found


def leftovers(tq) -> list[str]:
    """What lies where nothing may lie once all jobs have ended and a pass was made."""
    places = ("models/.staging", "models/.aside", "data", "specs")
    return [
        os.path.join(directory, name)
        for place in places
        for directory, _, names in os.walk(os.path.join(tq.root, place))
        for name in names
    ]


def ends(tq, number: int) -> list[str]:
    return [row["state"] for row in tq.history(number) if row["state"] in ("done", "errored", "canceled")]


def queue_names(count: int) -> str:
    return f"names = {json.dumps(['default', *(f'q{n}' for n in range(count))])}"


def is_whole(tq) -> None:
    db = sqlite3.connect(os.path.join(tq.root, "queue.sqlite"))
    assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    counted = db.execute("SELECT state, sum(n) FROM count GROUP BY state HAVING sum(n) <> 0").fetchall()
    assert sorted(counted) == sorted(db.execute("SELECT state, count(*) FROM job GROUP BY state").fetchall())
    db.close()


def test_every_point_is_died_at():
    """Q03: each crash point of the sources is named by a test. (Those of checkpoints are looked at by their own.)"""
    house = Path(trainq.__file__).parent
    points = {name for path in house.rglob("*.py") for name in re.findall(r'\bpoint\("([^"]+)"\)', path.read_text())}
    tests = "".join(path.read_text() for path in Path(__file__).parent.parent.rglob("*.py"))
    assert points
    ours = {name for name in points if not name.startswith("checkpoint.")}
    assert sorted(name for name in ours if f'"{name}' not in tests) == []


def test_submit_killed_at_every_point(tq):
    """Q03: with a worker polling, kill -9 of submit leaves a whole job or none; the same submit again is one job; no
    training set and no kept variable is orphaned."""
    data = tq.dir / "large.bin"
    with tq.worker() as worker:
        for n, point in enumerate(SUBMIT):
            data.write_bytes(os.urandom(2 << 20))
            words = (
                "submit",
                "ok",
                "--param",
                f"i={n}",
                "--data",
                "large.bin",
                "--env-keep",
                "MY_TOKEN",
                "--key",
                f"k{n}",
            )
            killed = tq(*words, env={"MY_TOKEN": "x", "TRAINQ_CRASH": point})
            assert killed.code == -signal.SIGKILL, (point, killed)
            assert killed.out == ""  # nothing was acknowledged
            stored = tq.jobs()
            again = tq.submit(*words[1:], env={"MY_TOKEN": "x"})
            assert len(tq.jobs()) - len(stored) in (0, 1), point
            until(lambda number=again: tq.state(number) == "done")
        assert worker.process.poll() is None
        assert not worker.said("trouble")
        for job in tq.jobs():
            until(lambda number=job["id"]: tq.state(number) == "done")
            assert ends(tq, job["id"]) == ["done"]
    tq.ok("prune", "--older-than", "0s", env=NO_GRACE)
    assert leftovers(tq) == []
    is_whole(tq)


def test_a_worker_killed_at_every_point(tq):
    """Q44: kill -9 of the worker at every point of publishing and around every commit: after a normal worker came each
    job is done exactly once, its model is whole and named, and the pass after it leaves nothing else."""
    points = PUBLISH + TURNS
    keys = 'model = "required"\nkeep = 1\nkey = "k/{param.i}"'
    tq.types(f'[types.one]\nrun = ["python", "ok.py"]\n{keys}\n', queues=queue_names(len(points)))
    lines = [json.dumps({"type": "one", "queue": "default", "params": {"i": n}, "seed": 1}) for n in range(len(points))]
    tq.ok("submit", "--from", "-", input="\n".join(lines))
    tq.work("--queue", "default")
    numbers = []
    for n, point in enumerate(points):
        number = tq.submit("one", "--queue", f"q{n}", "--param", f"i={n}")
        numbers.append(number)
        killed = tq("worker", "--once", "--queue", f"q{n}", env={"TRAINQ_CRASH": point})
        assert killed.code == -signal.SIGKILL or point in TURNS[6:], (point, killed)
        models = check_models(tq)
        assert {model["path"] for model in models if model["params"]["i"] == n}, (point, models)
    with tq.worker():
        until(lambda: all(job["state"] == "done" for job in tq.jobs()), 60)
    for number, point in zip(numbers, points, strict=True):
        assert ends(tq, number) == ["done"], point
    models = check_models(tq)
    assert sorted(model["job"] for model in models) == numbers
    for _ in range(2):  # one puts the orphans aside, the next one deletes them
        tq.ok("prune", "--older-than", "0s", env=NO_GRACE)
    assert {model["path"] for model in check_models(tq)} == on_disk(tq)
    assert leftovers(tq) == []
    for model in models:
        link = os.path.join(os.path.dirname(model["path"]), "@latest")
        assert os.readlink(link) == f"@{model['version']}"
    is_whole(tq)


def test_a_worker_killed_while_its_job_runs(tq):
    """Q50: worker and job killed in the middle of a training: the log stays, the attempt is lost, the next one is done;
    used up it is errored poison, with every attempt kept."""
    twice = tq.submit("--shell", 'echo $TRAINQ_ATTEMPT; test "$TRAINQ_ATTEMPT" = 2 || sleep 60')
    poison = tq.submit("--max-attempts", "2", "--shell", "echo $TRAINQ_ATTEMPT; sleep 60")
    for _ in range(2):
        with tq.worker("--slots", "2") as worker:
            until(lambda: tq.state(poison) == "running")
            until(lambda: tq.ok("status", "--summary", "--json").json["counts"]["pending"] == 0)
            worker.signal(signal.SIGKILL)
            worker.process.wait()
        until(lambda: tq.ok("prune") and tq.state(poison) != "running")
    job = tq.job(poison)
    assert (job["state"], job["reason"], job["side"]) == ("errored", "poison", "system")
    assert len(job["attempts"]) == 2
    assert [row["reason"] for row in tq.history(poison) if row["state"] == "pending"] == [None, "zombie"]
    tq.work()
    assert ends(tq, twice) == ["done"]
    assert tq.job(twice)["attempt"]["n"] == 2
    assert tq.ok("logs", poison, "--attempt", "1").out.startswith("1\n")


@pytest.mark.parametrize("point", ["store.before_commit", "store.after_commit"])
def test_a_change_killed_around_its_commit(tq, point):
    """Q30: cancel and retry killed around their commit did it or did not; repeated they do it, and say so."""
    number = tq.submit("--env-keep", "MY_TOKEN", "--", "true", env={"MY_TOKEN": "x"})
    killed = tq("cancel", number, env={"TRAINQ_CRASH": point})
    assert killed.code == -signal.SIGKILL
    assert tq.state(number) == ("pending" if point == "store.before_commit" else "canceled")
    tq.ok("cancel", number)
    assert ends(tq, number) == ["canceled"]
    killed = tq("retry", number, env={"MY_TOKEN": "y", "TRAINQ_CRASH": point})
    assert killed.code == -signal.SIGKILL
    tq.ok("prune")
    done = tq("retry", number, env={"MY_TOKEN": "y"})
    assert done.code == 0, done
    tq.work()
    assert tq.state(number) == "done"
    tq.ok("prune")
    assert leftovers(tq) == []


def test_init_killed_before_its_last_step(tq, tmp_path):
    """Q63: a root made by half is completed by the next `init`, and until then is no queue."""
    root = str(tmp_path / "half")
    killed = tq("init", root, root=None, env={"TRAINQ_CRASH": "init.before_link"})
    assert killed.code == -signal.SIGKILL
    refused = tq("status", root=root)
    assert refused.code == 6
    assert f"trainq init {root}" in refused.err
    tq.ok("init", root, root=None)
    assert tq.submit("--", "true", root=root) == 1
    tq.ok("worker", "--once", root=root)
    assert tq.ok("status", "1", "--json", root=root).json["state"] == "done"
