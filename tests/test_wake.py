"""The bell: a hint that differs after every ring, and that never fails."""

from __future__ import annotations

import os
import threading

import pytest
from store_builders import finished, spawn, until

from trainq import wake


@pytest.fixture
def bell(tmp_path):
    (tmp_path / "bell").mkdir()
    return str(tmp_path / "bell" / "gen")


def test_every_ring_changes_what_is_read(bell):
    """E23: 1000 rings, 1000 different contents; the length never changes."""
    said = set()
    for _ in range(1000):
        wake.ring(bell)
        said.add(wake.read(bell))
    assert len(said) == 1000
    assert {len(text) for text in said} == {32}
    assert os.stat(bell).st_mode & 0o777 == 0o600


def test_a_bell_that_is_not_there_says_nothing(bell):
    """E23: no file, no directory: empty, and no error."""
    assert wake.read(bell) == b""
    assert wake.read(bell + "/deeper/gen") == b""


@pytest.mark.parametrize("spoil", ["no directory", "a directory", "a link", "a pipe"])
def test_ringing_never_fails(bell, spoil, tmp_path):
    """E23: a lost wake-up is no error; a link is not followed, and nobody hangs at a pipe."""
    if spoil == "no directory":
        os.rmdir(os.path.dirname(bell))
    elif spoil == "a directory":
        os.mkdir(bell)
    elif spoil == "a pipe":
        os.mkfifo(bell)
    else:
        os.symlink(tmp_path / "elsewhere", bell)
    wake.ring(bell)
    assert wake.read(bell) == b""
    assert not os.path.exists(tmp_path / "elsewhere")


def test_deleted_and_rung_again(bell):
    """E23: a bell that was deleted is back with the next ring, and says something new."""
    wake.ring(bell)
    before = wake.read(bell)
    os.unlink(bell)
    assert wake.read(bell) == b""
    wake.ring(bell)
    assert wake.read(bell) not in (b"", before)


def test_a_watch_hears_another_process_ring(bell):
    """E23: the kernel tells of a ring in another process."""
    heard = threading.Event()
    watch = wake.Watch(os.path.dirname(bell), heard.set)
    try:
        finished(spawn("from trainq import wake\nwake.ring(sys.argv[2])", os.path.dirname(bell), bell))
        assert heard.wait(60)
        heard.clear()
        wake.ring(bell)
        assert heard.wait(60)
        os.unlink(bell)
        heard.clear()
        wake.ring(bell)
        assert heard.wait(60)
    finally:
        watch.close()


def test_a_closed_watch_hears_no_more(bell):
    """Closing ends its thread; closing again is harmless."""
    before = threading.active_count()
    watch = wake.Watch(os.path.dirname(bell), lambda: None)
    assert threading.active_count() > before
    watch.close()
    watch.close()
    until(lambda: threading.active_count() == before)


def test_reading_does_not_ring(bell):
    """A worker that looks at the bell does not wake itself."""
    wake.ring(bell)
    heard = []
    watch = wake.Watch(os.path.dirname(bell), lambda: heard.append(1))
    try:
        for _ in range(50):
            wake.read(bell)
        seen = threading.Event()
        other = wake.Watch(os.path.dirname(bell), seen.set)
        assert heard == []
        wake.ring(bell)
        assert seen.wait(60)
        until(lambda: heard)
        other.close()
    finally:
        watch.close()


def test_a_watch_without_a_directory_leaves_the_poll(tmp_path):
    """Nothing can be watched: nothing is heard, nothing fails."""
    wake.Watch(str(tmp_path / "nowhere"), lambda: None).close()
