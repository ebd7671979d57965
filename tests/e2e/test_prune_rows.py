"""The janitor: what it removes, what it leaves, two of it at once, and its death at each of its steps."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
from pathlib import Path

import pytest
from e2e.kit import COMMAND, FAR, until

JANITOR_POINTS = ("prune.retired", "prune.data_forgotten", "store.before_commit", "store.after_commit")
NO_GRACE = {"TRAINQ_KEEP_FILE_GRACE": "0s"}


def back_date(tq, hours: float) -> None:
    """Make everything look so much older."""
    with sqlite3.connect(os.path.join(tq.root, "queue.sqlite")) as db:
        for table, columns in (
            ("job", ("submitted_at", "eligible_at", "changed_at", "ended_at", "started_at", "claimed_at")),
            ("past", ("submitted_at", "started_at", "ended_at")),
            ("data", ("at",)),
            ("event", ("at",)),
        ):
            for column in columns:
                db.execute(f"UPDATE {table} SET {column} = {column} - ?", (hours * 3600,))
    db.close()


def rows(tq, sql: str) -> list[tuple]:
    db = sqlite3.connect(os.path.join(tq.root, "queue.sqlite"))
    try:
        return db.execute(sql).fetchall()
    finally:
        db.close()


def sets_on_disk(tq) -> list[str]:
    return sorted(os.listdir(os.path.join(tq.root, "data")))


def files_of(root: Path) -> list[Path]:
    """All below the root but what SQLite keeps beside its file while it is open."""
    return sorted(path for path in root.rglob("*") if not path.name.startswith("queue.sqlite-"))


def large(tq, name: str) -> Path:
    """A training set that is too large for its column."""
    path = tq.dir / name
    path.write_bytes(os.urandom(2 << 20))
    return path


def three_ended(tq) -> tuple[int, int, int]:
    """A done, an errored and a canceled job with training sets, small and large."""
    (tq.dir / "small.json").write_text('{"x": 1}')
    done = tq.submit("ok", "--data", "small.json")
    errored = tq.submit("bad", "--data", large(tq, "large.bin"))
    canceled = tq.submit("slow", "--data", "small.json", "--param", "i=1")
    tq.ok("cancel", canceled)
    tq.work("--slots", "1")
    return done, errored, canceled


def test_only_old_ended_jobs_go_with_their_sets(tq):
    """Q42: two hours old: pending and running jobs stay with their sets, ended ones and theirs go, logs stay; a second
    run removes 0."""
    ended = three_ended(tq)
    running = tq.submit("slow", "--data", "small.json")
    with tq.worker("--slots", "1"):
        until(lambda: tq.state(running) == "running")
        other = tq.dir / "other.bin"
        other.write_bytes(os.urandom(2 << 20))
        pending = tq.submit("ok", "--data", other, "--param", "i=2")
        assert len(sets_on_disk(tq)) == 2
        back_date(tq, 2)
        first = tq.ok("prune", "--json", env=NO_GRACE).json
        removed = [item["id"] for item in first["items"] if item["result"] == "removed"]
        assert sorted(removed) == sorted(ended)
        assert [job["id"] for job in tq.jobs()] == [running, pending]
        assert tq.state(running) == "running"
        assert len(sets_on_disk(tq)) == 1
        assert rows(tq, "SELECT count(*) FROM data") == [(2,)]  # the pending one's and the running one's
        assert rows(tq, "SELECT count(*) FROM job_data") == [(2,)]
        assert "no such luck" in tq.ok("logs", ended[1]).out
        assert os.path.isdir(os.path.join(tq.root, "runs", str(ended[0])))
        second = tq.ok("prune", "--json", env=NO_GRACE).json
        assert second["items"] == []
        assert second["removed"] == {}
        (tq.dir / "go").touch()
        until(lambda: tq.state(pending) == "done")


def test_young_jobs_stay(tq):
    """Q42: nothing younger than an hour goes; `--dry-run` shows what `--older-than` would take and takes nothing."""
    ended = three_ended(tq)
    assert tq.ok("prune", "--json", env=NO_GRACE).json["items"] == []
    shown = tq.ok("prune", "--older-than", "0s", "--dry-run", "--json").json
    assert sorted(item["id"] for item in shown["items"]) == sorted(ended)
    assert len(tq.jobs()) == 3
    assert len(sets_on_disk(tq)) == 1


def test_what_would_go_is_what_goes(tq):
    """Q42: `--dry-run` counts each kind of thing that a pass deletes, and deletes none of it."""
    done, _, _ = three_ended(tq)
    tq.ok("prune", "--older-than", "0s")  # its training set is younger than the grace of files
    back_date(tq, 91 * 24)
    root = Path(tq.root)
    for directory in (f"runs/{done}/1/.unpacked", "runs/99/1", "models/ok/@7", "models/.staging/99-1-ab"):
        (root / directory).mkdir(parents=True)
        (root / directory / "left").touch()
    for file in ("specs/nobody.1.env", f"data/{'a' * 64}.zst", ".new-left"):
        (root / file).touch()
    connection = sqlite3.connect(root / "queue.sqlite")
    connection.execute("UPDATE worker SET ended_at = ended_at - 1e7, heartbeat_at = heartbeat_at - 1e7")
    connection.commit()
    connection.close()
    before = files_of(root)
    shown = tq.ok("prune", "--dry-run", "--json", env=NO_GRACE).json
    assert files_of(root) == before
    assert len(tq.history(done)) > 0
    assert tq.ok("prune", "--json", env=NO_GRACE).json["removed"] == shown["removed"]
    assert set(shown["removed"]) == {
        "training sets", "files of training sets", "orphaned models", "unpublished models", "unpacked training sets",
        "run directories", "kept variables", "temporary files", "histories", "workers",
    }  # fmt: skip
    assert tq.ok("prune", "--dry-run", "--json", env=NO_GRACE).json["removed"] == {"unpublished models": 1}


def test_a_named_job_that_would_go_keeps_its_run(tq):
    """Q42: with a selector too."""
    done, _, _ = three_ended(tq)
    shown = tq.ok("prune", done, "--dry-run", "--json").json
    assert shown["removed"] == {"run": 1}
    assert tq.ok("prune", done, "--json").json["removed"] == shown["removed"]


def test_a_named_job_goes_at_once_with_its_logs(tq):
    """Q42: with a selector an ended job goes now, logs included; one that waits is refused, unknown is 3."""
    done, errored, _ = three_ended(tq)
    waiting = tq.submit("ok", "--param", "i=9")
    assert tq.ok("prune", errored, "--json").json["items"] == [{"id": errored, "result": "removed", "error": None}]
    assert not os.path.exists(os.path.join(tq.root, "runs", str(errored)))
    assert tq("prune", waiting).code == 4
    assert tq("prune", 99).code == 3
    assert tq("prune", f"{done},99").code == 7
    assert tq.state(waiting) == "pending"


def test_logs_and_runs_have_their_own_age(tq):
    """Q42: runs go 30 days after the end, history after 90; until then `logs` and `history` answer, and ids are never
    used again."""
    done, errored, canceled = three_ended(tq)
    tq.ok("prune", "--older-than", "0s")
    back_date(tq, 29 * 24)
    tq.ok("prune", env=NO_GRACE)
    assert "no such luck" in tq.ok("logs", errored).out
    back_date(tq, 2 * 24)
    tq.ok("prune", env=NO_GRACE)
    assert tq("logs", errored).code != 0
    assert not os.path.exists(os.path.join(tq.root, "runs", str(errored)))
    assert tq.history(errored)[-1]["state"] == "errored"
    back_date(tq, 61 * 24)
    tq.ok("prune", env=NO_GRACE)
    assert tq("history", errored).code == 3
    assert rows(tq, "SELECT count(*) FROM history") == [(0,)]
    assert rows(tq, "SELECT count(*) FROM submission") == [(0,)]
    assert rows(tq, "SELECT count(*) FROM environ") == [(0,)]
    assert [model["job"] for model in tq.models()] == [done]  # models are never pruned by age
    assert tq.submit("--", "true") == canceled + 1


def test_strays_go_and_what_is_named_stays(tq):
    """Q42: files no row names go once they are older than file_grace, whatever they are; all that is named stays."""
    three_ended(tq)
    root = Path(tq.root)
    fresh = root / "data" / ("0" * 64 + ".zst")
    fresh.write_bytes(b"x")
    staged = root / "models" / ".staging" / "77-1-abcdef01"
    staged.mkdir()
    (staged / "m").write_text("x")
    orphan = root / "models" / "ok" / "@9"
    orphan.mkdir()
    secret = root / "specs" / "00000000000000000000000.0.env"
    secret.write_text("A=b\0")
    run = root / "runs" / "1234" / "1"
    run.mkdir(parents=True)
    tq.ok("prune")
    assert all(path.exists() for path in (fresh, staged, orphan, secret, run))
    tq.ok("prune", env=NO_GRACE)
    assert not any(path.exists() for path in (fresh, staged, orphan, secret, run))
    assert [model["version"] for model in tq.models()] == [1]
    assert len(sets_on_disk(tq)) == 1
    assert tq.submit("ok", "--param", "i=5")
    tq.work()
    assert tq.models()[-1]["version"] == 10  # an orphan's number is not given again while it lies aside


def test_two_janitors_at_once_do_no_harm(tq):
    """Q42: eight at once remove each job once between them; who comes too late says so and exits 0."""
    lines = [json.dumps({"argv": ["true"]})] * 40
    tq.ok("submit", "--from", "-", input="\n".join(lines))
    tq.ok("cancel", "1-40")
    keep = tq.submit("ok")
    many = [
        subprocess.Popen(
            [*COMMAND, "--root", tq.root, "--json", "prune", "--older-than", "0s"],
            env=tq.environment(NO_GRACE), cwd=tq.dir, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )
        for _ in range(8)
    ]  # fmt: skip
    answers = [(*process.communicate(timeout=60), process.returncode) for process in many]
    assert [code for _, _, code in answers] == [0] * 8, answers
    removed = [item["id"] for out, _, _ in answers for item in json.loads(out)["items"]]
    assert sorted(removed) == list(range(1, 41))
    assert [job["id"] for job in tq.jobs()] == [keep]
    tq.work()
    assert tq.state(keep) == "done"


@pytest.mark.parametrize("where", JANITOR_POINTS)
@pytest.mark.parametrize("time", [1, 2])
def test_a_janitor_killed_anywhere_leaves_work_for_the_next(tq, where, time):
    """Q42: killed at each of its points; what runs and waits is untouched, and the next pass completes it."""
    three_ended(tq)
    pending = tq.submit("ok", "--data", "small.json", "--param", "i=2")
    killed = tq("prune", "--older-than", "0s", env={**NO_GRACE, "TRAINQ_CRASH": f"{where}:{time}"})
    assert killed.code in (-9, 0)
    assert time > 1 or killed.code == -9
    assert tq.state(pending) == "pending"
    tq.ok("prune", "--older-than", "0s", env=NO_GRACE)
    assert [job["id"] for job in tq.jobs()] == [pending]
    assert sets_on_disk(tq) == []
    assert rows(tq, "SELECT count(*) FROM data") == [(1,)]
    assert tq.ok("prune", "--older-than", "0s", "--json", env=NO_GRACE).json["removed"] == {}
    tq.work()
    assert tq.state(pending) == "done"
    assert tq.history(1)[-1]["state"] == "done"


def test_a_janitor_killed_between_rename_and_deletion(tq):
    """Q42: a version that lies aside half deleted goes with the next pass; the key's other versions stay."""
    tq.types('[types.one]\nrun = ["python", "ok.py"]\nmodel = "required"\nkeep = 1')
    tq.submit("one", "--param", "i=1")
    tq.work()
    tq.submit("one", "--param", "i=2")
    tq("worker", "--once", env=NO_GRACE | {"TRAINQ_CRASH": "sweep.retired"})
    assert [model["version"] for model in tq.models()] == [2]
    assert os.listdir(os.path.join(tq.root, "models", ".aside", "one"))
    tq.ok("prune", env=NO_GRACE)
    assert os.listdir(os.path.join(tq.root, "models", "one", "@2"))
    assert not [name for _, _, names in os.walk(os.path.join(tq.root, "models", ".aside")) for name in names]
    assert os.readlink(os.path.join(tq.root, "models", "one", "@latest")) == "@2"


def test_a_pass_while_jobs_run_and_end(tq):
    """Q42: janitors that never stop, with no grace and no age, while workers train: every job ends done and every model
    is whole."""
    (tq.dir / "small.json").write_text('{"x": 1}')
    large(tq, "large.bin")
    lines = [
        json.dumps({"type": "ok", "params": {"i": i}, "data": "large.bin" if i % 2 else "small.json", "keep": 0})
        for i in range(30)
    ]
    with tq.worker("--slots", "2") as worker:
        tq.ok("submit", "--from", "-", input="\n".join(lines))
        while tq.ok("status", "--summary", "--json").json["counts"]["pending"] or [
            job for job in tq.jobs() if job["state"] == "running"
        ]:
            tq.ok("prune", "--older-than", "0s", env=NO_GRACE)
        assert worker.process.poll() is None
    models = tq.models()
    assert len(models) == 30
    assert sorted(model["job"] for model in models) == list(range(1, 31))
    assert all(os.path.exists(model["path"] + "/manifest.json") for model in models)
    tq.ok("prune", "--older-than", "0s", env=NO_GRACE)
    assert sets_on_disk(tq) == []


def test_what_a_job_wrote_into_its_run_directory_stays(tq):
    """Q42: `data` in $TRAINQ_RUN_DIR is the job's, with or without training sets: neither its end nor prune takes it."""
    (tq.dir / "small.json").write_text("{}")
    line = 'mkdir -p "$TRAINQ_RUN_DIR/data" && cp "${TRAINQ_DATA:-/dev/null}" "$TRAINQ_RUN_DIR/data/own"'
    with_set = tq.submit("--data", "small.json", "--shell", line)
    without = tq.submit("--shell", line)
    tq.work()
    tq.ok("prune", env=NO_GRACE)
    for job in (with_set, without):
        assert os.path.exists(os.path.join(tq.root, "runs", str(job), "1", "data", "own"))
        assert not os.path.exists(os.path.join(tq.root, "runs", str(job), "1", ".unpacked"))


def test_a_worker_that_lives_keeps_its_row(tq):
    """Q42: a laptop after a weekend, a clock that was set: a worker of this host that was not heard of for days and is
    there keeps its row; one that is gone, or that said good-bye, is forgotten."""
    tq("worker", "--once", "--name", "left")
    assert tq("worker", "--name", "killed", env={"TRAINQ_CRASH": "worker.joined"}).code == -9
    with tq.worker("--name", "lives", env=FAR):
        set_workers_back(tq)
        assert tq.ok("prune", "--json").json["removed"] == {"workers": 2}
        assert rows(tq, "SELECT name FROM worker") == [("lives",)]


def test_a_worker_that_was_forgotten_is_there_again(tq):
    """Q42: whoever has deleted the row of a living worker (another host's clock says nothing of it): at its next beat it
    is there again, and its jobs have a worker."""
    with tq.worker("--name", "lives", "--slots", "1") as worker:
        (before,) = rows(tq, "SELECT id FROM worker")
        with sqlite3.connect(os.path.join(tq.root, "queue.sqlite")) as db:
            db.execute("DELETE FROM worker")
        db.close()
        number = tq.submit("slow")
        until(lambda: [item["state"] for item in tq.ok("workers", "--json").json["items"]] == ["busy"])
        assert rows(tq, "SELECT id, name FROM worker") == [(*before, "lives")]
        assert rows(tq, "SELECT id, worker_id FROM job WHERE state = 'running'") == [(number, *before)]
        (tq.dir / "go").touch()
        until(lambda: tq.state(number) == "done")
        assert worker.said("trouble") == []


def set_workers_back(tq) -> None:
    """Make all workers look as if they were last heard of two days ago."""
    with sqlite3.connect(os.path.join(tq.root, "queue.sqlite")) as db:
        for column in ("started_at", "heartbeat_at", "ended_at"):
            db.execute(f"UPDATE worker SET {column} = {column} - 172800")
    db.close()
