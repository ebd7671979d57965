"""Checkpoints as the worker sees them: which one the next attempt goes on from, and what is thrown away."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from listening import REPOSITORY

from trainq.artifacts import checkpoints, runs
from trainq.artifacts.paths import Paths
from trainq.base.errors import Storage
from trainq.job import checkpoint_files

if TYPE_CHECKING:
    from pathlib import Path

JOB = 12


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    found = Paths(str(tmp_path))
    os.mkdir(found.runs)
    return found


def save(paths: Paths, *steps: int, attempt: int = 1, job: int = JOB) -> list[tuple[int, str]]:
    """Checkpoints as a job leaves them, and what the store would know of them."""
    directory = runs.open_checkpoints(paths, job)
    known = {"job": f"uid-{job}", "job_id": job, "attempt": attempt, "epoch": None, "facts": {}}
    found = [
        checkpoint_files.create(
            directory,
            lambda made: checkpoint_files.write_file(os.path.join(made, "data"), b"x" * 1000),
            {**known, "step": step},
        )
        for step in steps
    ]
    return [(each.number, each.digest) for each in found]


def at(paths: Paths, number: int, *below: str) -> str:
    return os.path.join(paths.checkpoints(JOB), str(number), *below)


def names(paths: Paths) -> list[str]:
    return sorted(name for name in os.listdir(paths.checkpoints(JOB)) if not name.startswith(".taken-"))


def test_the_newest_committed_is_chosen(paths: Paths) -> None:
    """Q84: not merely the newest: what was never committed is no candidate, nor is one of another content."""
    committed = save(paths, 10, 20, 30)
    assert checkpoints.choose(paths, JOB, committed) == (at(paths, 3), 3, [], False)
    assert checkpoints.choose(paths, JOB, committed[:2]) == (at(paths, 2), 2, [], False)
    other = [*committed[:2], (3, "0" * 64)]
    why = [(3, "manifest.json is not the one that was committed")]
    assert checkpoints.choose(paths, JOB, other) == (at(paths, 2), 2, why, False)


def test_candidates(paths: Paths) -> None:
    """What the manifests say, newest first; a job without a directory has none."""
    assert checkpoints.candidates(paths, JOB) == []
    committed = save(paths, 10, 20)
    found = checkpoints.candidates(paths, JOB)
    assert [(each.number, each.digest) for each in reversed(found)] == committed
    assert [(each.step, each.attempt, each.size, each.is_own) for each in found] == [
        (20, 1, 1000, True),
        (10, 1, 1000, True),
    ]


def test_never_saved_is_a_fresh_start(paths: Paths) -> None:
    """Q84: never saved: at 0, with nothing to say; also when there are files that trainq does not know."""
    assert checkpoints.choose(paths, JOB, []) == (None, None, [], False)
    save(paths, 10)
    assert checkpoints.choose(paths, JOB, []) == (None, None, [], False)


def tear(path: str, how: str) -> None:
    data = os.path.join(path, "data")
    if how == "truncated":
        os.truncate(data, 999)
    elif how == "flipped":
        with open(data, "r+b") as file:
            file.write(b"y")
    elif how == "gone":
        os.unlink(data)
    elif how == "link":
        os.replace(data, path + ".data")
        os.symlink(path + ".data", data)
    elif how == "pipe":
        os.unlink(data)
        os.mkfifo(data)
    elif how == "no manifest":
        os.unlink(os.path.join(path, "manifest.json"))
    elif how == "torn manifest":
        os.truncate(os.path.join(path, "manifest.json"), 50)
    else:
        with open(os.path.join(path, "manifest.json"), "w", encoding="utf-8") as file:
            file.write(how)


@pytest.mark.parametrize(
    "how", ["truncated", "flipped", "gone", "link", "pipe", "no manifest", "torn manifest", "[]", "{}", "[" * 100_000]
)
def test_a_torn_one_falls_back_and_all_torn_is_an_end(paths: Paths, how: str) -> None:
    """Q84: with the newest torn, the one before, and why; all torn: broken, never a silent fresh start."""
    committed = save(paths, 10, 20, 30)
    tear(at(paths, 3), how)
    assert checkpoints.verify(at(paths, 3))
    choice = checkpoints.choose(paths, JOB, committed)
    assert (choice.path, choice.number, choice.broken) == (at(paths, 2), 2, False)
    assert [number for number, _ in choice.skipped] == [3]
    assert choice.skipped[0][1].isprintable()
    tear(at(paths, 2), how)
    tear(at(paths, 1), how)
    choice = checkpoints.choose(paths, JOB, committed)
    assert (choice.path, choice.number, choice.broken) == (None, None, True)
    assert [number for number, _ in choice.skipped] == [3, 2, 1]


def test_deleted_by_hand_is_a_fresh_start_that_says_so(paths: Paths) -> None:
    """Q84: missing means a fresh start, with the reasons; missing beside torn ones is still broken."""
    committed = save(paths, 10, 20)
    checkpoint_files.remove(at(paths, 2))
    tear(at(paths, 1), "gone")
    assert checkpoints.choose(paths, JOB, committed).broken
    checkpoint_files.remove(at(paths, 1))
    assert checkpoints.choose(paths, JOB, committed) == (None, None, [(2, "it is gone"), (1, "it is gone")], False)


def test_a_manifest_never_leads_out(paths: Paths) -> None:
    """A manifest that names files elsewhere makes nobody read them."""
    save(paths, 10)
    for name in ("../../secret", "/etc/passwd", "a//b", "", "nul\0"):
        manifest = {
            "schema": "trainq-checkpoint/1",
            "number": 1,
            "attempt": 1,
            "files": [{"path": name, "size": 1, "sha256": "0"}],
        }
        tear(at(paths, 1), json.dumps(manifest))
        assert "is no file of the checkpoint" in checkpoints.verify(at(paths, 1))[0]


def test_two_crashed_restores_fall_back_further(paths: Paths) -> None:
    """One crash is none of the checkpoint's doing; after two the one before is tried, then the one before that."""
    committed = save(paths, 10, 20, 30)
    chosen = [
        checkpoints.choose(paths, JOB, committed, suspects).number
        for suspects in ({3: 1}, {3: 2}, {3: 2, 2: 1}, {3: 2, 2: 2}, {3: 9, 2: 2, 1: 2}, {3: 2, 2: 2, 1: 2})
    ]
    assert chosen == [3, 2, 2, 1, 2, 3]
    choice = checkpoints.choose(paths, JOB, committed, {3: 2})
    assert choice.skipped == [(3, "2 attempts that went on from it failed")]


def test_what_crashed_is_better_than_nothing(paths: Paths) -> None:
    """With the only other one torn, the whole one is taken again rather than the job ended; it is not in `skipped`."""
    committed = save(paths, 10, 20)
    tear(at(paths, 1), "truncated")
    choice = checkpoints.choose(paths, JOB, committed, {2: 2})
    assert (choice.number, choice.broken) == (2, False)
    assert [number for number, _ in choice.skipped] == [1]


def test_what_cannot_be_read_is_no_verdict(paths: Paths, monkeypatch: pytest.MonkeyPatch) -> None:
    """An I/O error: another whole one is taken; if there is none it is raised, for it is not the job's fault."""
    committed = save(paths, 10, 20)
    real = checkpoint_files.problems
    sick = {at(paths, 2)}

    def problems(path: str, digest: str | None = None) -> list[str]:
        if path in sick:
            raise OSError(5, "Input/output error", path)
        return real(path, digest)

    monkeypatch.setattr(checkpoint_files, "problems", problems)
    choice = checkpoints.choose(paths, JOB, committed)
    assert (choice.number, choice.skipped[0][0]) == (1, 2)
    sick.add(at(paths, 1))
    with pytest.raises(Storage, match="input/output"):
        checkpoints.choose(paths, JOB, committed)


def test_left_overs_of_a_lost_attempt_go(paths: Paths) -> None:
    """Renamed but not committed, temporary names: gone. Committed ones, copies and the user's own files stay."""
    committed = save(paths, 10, 20)
    save(paths, 30)
    save(paths, 1, 2, 3, 4, job=99)
    os.rename(os.path.join(paths.checkpoints(99), "4"), at(paths, 4))
    for name in (".new-host-1-abcd", ".new-0123456789abcdef", "8", "mine"):
        os.mkdir(os.path.join(paths.checkpoints(JOB), name))
    with open(os.path.join(paths.checkpoints(JOB), ".new-x"), "w", encoding="utf-8"):
        pass
    removed = checkpoints.remove_uncommitted(paths, JOB, committed)
    assert sorted(removed) == [".new-0123456789abcdef", ".new-host-1-abcd", ".new-x", "3"]
    assert names(paths) == ["1", "2", "4", "8", "mine"]
    assert checkpoints.remove_uncommitted(paths, JOB, committed) == []
    assert checkpoints.remove_uncommitted(paths, 77, []) == []
    assert save(paths, 40)[0][0] == 9, "the number of what was deleted is not given again"


def test_a_number_that_was_committed_with_another_content_is_not_it(paths: Paths) -> None:
    """The digest tells one attempt's number from another's."""
    save(paths, 10)
    assert checkpoints.remove_uncommitted(paths, JOB, [(1, "0" * 64)]) == ["1"]
    assert names(paths) == []


def test_a_kill_while_left_overs_are_deleted(paths: Paths) -> None:
    """No half of a checkpoint has a number, and the next call deletes the rest."""
    save(paths, 10)
    code = (
        "from trainq.artifacts import checkpoints\nfrom trainq.artifacts.paths import Paths\n"
        f"checkpoints.remove_uncommitted(Paths({paths.root!r}), {JOB}, [])"
    )
    env = {**os.environ, "PYTHONPATH": REPOSITORY, "TRAINQ_CRASH": "checkpoint.aside"}
    assert subprocess.run([sys.executable, "-c", code], env=env, check=False).returncode == -9
    [name] = names(paths)
    assert name.startswith(".new-")
    assert checkpoints.remove_uncommitted(paths, JOB, []) == [name]
    assert names(paths) == []


def test_own_files_are_seen(paths: Paths) -> None:
    """A job that writes there without trainq's help has something to resume from; our bookkeeping is not that."""
    assert not checkpoints.has_own_files(paths, JOB)
    save(paths, 10)
    os.mkdir(os.path.join(paths.checkpoints(JOB), ".new-x"))
    assert not checkpoints.has_own_files(paths, JOB)
    with open(os.path.join(paths.checkpoints(JOB), "state"), "w", encoding="utf-8"):
        pass
    assert checkpoints.has_own_files(paths, JOB)


def test_names_of_any_bytes(paths: Paths) -> None:
    """A file of a checkpoint may have any name."""
    directory = runs.open_checkpoints(paths, JOB)
    made = checkpoint_files.create(
        directory,
        lambda new: checkpoint_files.write_file(os.path.join(new, os.fsdecode(b"a\xff\n")), b"1"),
        {"job": "u", "job_id": JOB, "attempt": 1},
    )
    assert checkpoints.verify(made.path, made.digest) == []
    os.unlink(os.path.join(os.fsencode(made.path), b"a\xff\n"))
    assert checkpoints.verify(made.path) == ["'a\\udcff\\n' is missing"]
