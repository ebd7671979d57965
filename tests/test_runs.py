"""Run directories: one per attempt, private, quick to open; secrets that only their user reads."""

from __future__ import annotations

import os
import stat
import subprocess
import sys

import pytest

from trainq.artifacts import runs
from trainq.artifacts.paths import Paths
from trainq.base import files, oserrors, trees
from trainq.base.errors import BadValue, Denied, DiskFull, Storage


def mode(path: str) -> int:
    return stat.S_IMODE(os.lstat(path).st_mode)


@pytest.fixture
def paths(tmp_path):
    """A root with a long and odd path."""
    made = Paths(f"{tmp_path}/" + "a root ünï".ljust(200, "x"))
    os.makedirs(made.runs)
    os.makedirs(made.specs)
    return made


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o777])
def test_a_run_is_private_whatever_the_umask(paths, umask):
    """Directories are 0700, files 0600, descriptors append and are closed in children."""
    before = os.umask(umask)
    try:
        run = runs.open_run(paths, 12, 3, params=b'{"alpha": 1}', split_stderr=True)
        checkpoints = runs.open_checkpoints(paths, 12)
        runs.write_secret(paths, "ab12", {"A": "b"})
    finally:
        os.umask(before)
    assert run.dir == paths.attempt(12, 3)
    assert [mode(d) for d in (paths.run(12), run.dir, checkpoints)] == [0o700] * 3
    named = [run.log, run.stderr, run.params, paths.secret("ab12")]
    assert [mode(f) for f in named] == [0o600] * 4
    assert files.read_bytes(run.params) == b'{"alpha": 1}'
    assert not os.get_inheritable(run.log_fd)
    os.write(run.log_fd, b"one")
    os.write(run.stderr_fd, b"two")
    run.close()
    assert (files.read_bytes(run.log), files.read_bytes(run.stderr)) == (b"one", b"two")


def test_a_plain_run_has_a_log_only(paths):
    """Without parameters there is no file of them, and no checkpoints until somebody asks."""
    run = runs.open_run(paths, 1, 1)
    run.close()
    assert os.listdir(run.dir) == ["log"]
    assert os.listdir(paths.run(1)) == ["1"]
    assert (run.params, run.stderr, run.stderr_fd) == (None, None, None)


def test_attempts_do_not_share(paths):
    """Q50: each attempt has its own log; opening one again adds to it and takes nothing away."""
    for text in (b"a", b"b"):
        run = runs.open_run(paths, 1, 1, params=b"{}")
        os.write(run.log_fd, text)
        run.close()
    runs.append_note(paths, 1, 1, "could not start: no such file 'x\udcff'")
    runs.open_run(paths, 1, 2).close()
    assert files.read_bytes(paths.log(1, 1)) == b"abtrainq: could not start: no such file 'x\xff'\n"
    assert files.read_bytes(paths.log(1, 2)) == b""


@pytest.mark.parametrize("where", ["run", "attempt", "log"])
def test_links_are_not_followed(paths, tmp_path, where):
    """A link in the place of a directory or of the log is refused, and what it points to is not written."""
    os.mkdir(tmp_path / "out")
    (tmp_path / "out" / "log").touch()
    os.makedirs(paths.attempt(1, 1))
    path = {"run": paths.run(1), "attempt": paths.attempt(1, 1), "log": paths.log(1, 1)}[where]
    trees.remove_tree(path) if where != "log" else None
    os.symlink(tmp_path / "out" if where != "log" else tmp_path / "out" / "log", path)
    with pytest.raises(Storage, match="1"):
        runs.open_run(paths, 1, 1)
    assert os.listdir(tmp_path / "out") == ["log"]


def test_every_step_may_fail(paths, monkeypatch):
    """A full disk at any step is said, leaks no descriptor, and the same attempt can be opened afterwards."""
    before = len(os.listdir("/proc/self/fd"))
    for n in range(1, 30):
        monkeypatch.setenv("TRAINQ_FAULT", f"ENOSPC:{n}")
        monkeypatch.setattr(oserrors, "_fail", oserrors._armed())
        try:
            run = runs.open_run(paths, 1, 1, params=b"{}", split_stderr=True)
        except DiskFull:
            assert len(os.listdir("/proc/self/fd")) == before
        else:
            break
    assert n > 5
    run.close()


def test_few_system_calls(paths):
    """Opening a run is on the path of every job: two directories and a log, no more."""
    steps = []
    oserrors._fail, before = steps.append, oserrors._fail
    try:
        runs.open_run(paths, 1, 1).close()
    finally:
        oserrors._fail = before
    assert len(steps) == 3


def test_a_run_is_removed_whole(paths, tmp_path):
    """Removing takes the attempts and checkpoints, also shut directories, and leaves what links point to."""
    (tmp_path / "dear").mkdir()
    (tmp_path / "dear" / "file").touch()
    for job in (3, 12):
        runs.open_run(paths, job, 1).close()
    os.symlink(tmp_path / "dear", f"{runs.open_checkpoints(paths, 3)}/link")
    os.mkdir(f"{paths.checkpoints(3)}/shut")
    open(f"{paths.checkpoints(3)}/shut/f", "w").close()
    os.chmod(f"{paths.checkpoints(3)}/shut", 0o500)
    assert runs.runs(paths) == [3, 12]
    assert runs.remove_run(paths, 3) is True
    assert runs.remove_run(paths, 3) is False
    assert runs.runs(paths) == [12]
    os.symlink(tmp_path / "dear", paths.run(4))
    assert runs.remove_run(paths, 4) is True
    assert os.listdir(tmp_path / "dear") == ["file"]
    assert runs.runs(Paths("/nonexistent")) == []


def test_secrets_keep_any_bytes(paths):
    """Kept variables come back as they were: empty, with line ends, "=" and bytes that are not UTF-8."""
    kept = {"EMPTY": "", "LINES": "a\nb=c\n", "ODD\udcff": "\udcfe", "ünï": "ü"}
    runs.write_secret(paths, "ab-12", kept)
    assert runs.read_secret(paths, "ab-12") == kept
    runs.write_secret(paths, "ab-12", {})
    assert runs.read_secret(paths, "ab-12") == {}
    assert runs.drop_secret(paths, "ab-12") is True
    assert runs.drop_secret(paths, "ab-12") is False
    assert runs.read_secret(paths, "ab-12") is None
    with pytest.raises(BadValue):
        runs.write_secret(paths, "../x", kept)
    assert os.listdir(paths.specs) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as two users")
def test_secrets_of_another_user_are_denied(paths):
    """A worker of another uid cannot read them and is told so; nor does root use what another user planted."""
    runs.write_secret(paths, "ab", {"A": "b"})
    os.chown(paths.secret("ab"), 12345, -1)
    with pytest.raises(Denied, match="another user"):
        runs.read_secret(paths, "ab")
    os.chown(paths.secret("ab"), 0, -1)
    code = """if 1:
        import os, sys
        from trainq.artifacts import paths, runs
        from trainq.base.errors import Denied
        here = paths.Paths(".")
        os.chdir(sys.argv[1])
        here.specs = "specs"
        os.setuid(12345)
        try:
            runs.read_secret(here, "ab")
        except Denied:
            sys.exit(44)
    """
    assert subprocess.run([sys.executable, "-c", code, paths.root]).returncode == 44
