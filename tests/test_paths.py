"""Names under the root: what users type never leads out of its directory."""

from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainq.artifacts.paths import Paths, checked_key
from trainq.base.errors import BadValue

ROOT = "/srv/a root/ünï"


@pytest.mark.parametrize("key", ["wine", "anna/en", "ünïcode/a.b-c_1", "a", "a/b", "x" * 255])
def test_a_key_is_a_directory(key):
    """A good key is taken as it is, and its versions lie in it."""
    assert Paths(ROOT).version(key, 7) == f"{ROOT}/models/{key}/@7"
    assert Paths(ROOT).latest(key) == f"{ROOT}/models/{key}/@latest"


@pytest.mark.parametrize(
    "key",
    ["", "/", "/etc", "a/", "a//b", "..", "../x", "a/../b", ".", "a/.staging", ".aside", "@1", "a/@latest",
     "a\0b", "a\nb", "a\x1b[m", "x" * 256, "é" * 128, "a/\udcff"],
)  # fmt: skip
def test_a_key_that_leads_out_is_refused(key):
    """Empty, hidden, absolute, upward, too long or unprintable parts are refused in one valid line."""
    for name in (Paths(ROOT).key, Paths(ROOT).latest, Paths(ROOT).aside_key):
        with pytest.raises(BadValue) as told:
            name(key)
    assert "\n" not in told.value.message
    told.value.message.encode()


@given(st.text())
def test_no_key_escapes(key):
    """Whatever the text: refused, or a place strictly below models/ whose parts are the key's own."""
    try:
        checked_key(key)
    except BadValue:
        return
    path = Paths(ROOT).key(key)
    assert os.path.normpath(path) == path
    assert path.startswith(f"{ROOT}/models/")


@given(st.text(st.characters(codec=None)), st.text(st.characters(codec=None)))
def test_any_worker_name_has_a_lock_of_its_own(one, other):
    """A worker name is any text; its lock is one plain file in locks/, and two names never share one."""
    paths = Paths(ROOT)
    try:
        first, second = paths.worker_lock(one), paths.worker_lock(other)
    except UnicodeEncodeError:
        return  # a surrogate that no file system can give us
    assert os.path.dirname(first) == paths.locks
    assert len(os.fsencode(os.path.basename(first))) <= 255
    assert (first == second) == (one == other)


@pytest.mark.parametrize("word", ["", "../x", "..", "a/b", ".b", "x" * 129, "é", "a\n"])
def test_digests_and_uids_are_plain(word):
    """What this program makes itself is checked too: a row is not trusted with a path."""
    for name in (Paths(ROOT).training_set, Paths(ROOT).snapshot, Paths(ROOT).secret, Paths(ROOT).spec):
        with pytest.raises(BadValue):
            name(word)
    assert Paths(ROOT).training_set("ab" * 32) == f"{ROOT}/data/{'ab' * 32}.zst"


def test_the_layout():
    """The layout of a root, which people and scripts look at."""
    paths = Paths("/r")
    assert [paths.config, paths.database, paths.gate, paths.bell_number] == [
        "/r/trainq.toml", "/r/queue.sqlite", "/r/queue.lock", "/r/bell/gen",
    ]  # fmt: skip
    assert [paths.log(3, 1), paths.stderr(3, 1), paths.params(3, 1), paths.stdin(3, 1)] == [
        "/r/runs/3/1/log", "/r/runs/3/1/stderr", "/r/runs/3/1/params.json", "/r/runs/3/1/stdin",
    ]  # fmt: skip
    assert paths.checkpoints(3) == "/r/runs/3/checkpoints"
    assert (paths.code(3, 1), paths.snapshot("0a")) == ("/r/runs/3/1/code", "/r/snapshots/0a.tar.zst")
    assert paths.lock("janitor") == "/r/locks/janitor.lock"
    assert (paths.staging, paths.aside) == ("/r/models/.staging", "/r/models/.aside")
    assert all(os.path.dirname(d) in {"/r", "/r/models"} for d in paths.directories())


def test_a_relative_root_is_made_absolute(tmp_path, monkeypatch):
    """Names stay valid after the process has gone elsewhere."""
    monkeypatch.chdir(tmp_path)
    assert Paths("q").root == str(tmp_path / "q")
