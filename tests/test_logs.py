"""Logs: the end of any file in bounded memory, following to the very end, and no byte that harms a terminal."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from trainq.artifacts import logs

MIB = 1 << 20
ODD = b"\0 \xff\xfe \x1b[31mred\x1b[0m \x9b \r\n"


@pytest.fixture
def log(tmp_path):
    return str(tmp_path / "a log ü")


def write(path: str, data: bytes, how: str = "wb") -> None:
    with open(path, how) as file:
        file.write(data)


def last_lines(data: bytes, n: int) -> bytes:
    """What `tail -n` gives, written the plain way."""
    return b"".join(data.splitlines(keepends=True)[-n:]) if n else b""


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    lines=st.lists(st.sampled_from([b"", b"a", b"\xff\0", b"x" * 40]), max_size=12),
    end=st.sampled_from([b"", b"\n"]),
    n=st.integers(0, 15),
    block=st.integers(1, 7),
)
@example(lines=[], end=b"", n=5, block=4)
@example(lines=[b"", b""], end=b"\n", n=1, block=1)
def test_the_last_lines(log, lines, end, n, block):
    """Q50: `-n N` is the end of the whole, wherever the blocks of the reading fall."""
    data = b"\n".join(lines) + end
    write(log, data)
    before, logs._BLOCK = logs._BLOCK, block
    try:
        assert logs.tail(log, n) == last_lines(data, n)
        assert data[logs.start_of_tail(log, n) :] == last_lines(data, n)
    finally:
        logs._BLOCK = before


def test_no_log_has_no_lines(log):
    """A job that never started has no log: nothing is shown, nothing raised."""
    assert (logs.tail(log, 5), logs.start_of_tail(log, 5), logs.last_text(log)) == (b"", 0, "")


def test_a_huge_log_costs_no_memory(log):
    """E10: the end of a log of 5 GB, and of one line of 1 GB, in a process that may have 150 MB."""
    with open(log, "wb") as file:
        file.truncate(5 << 30)
        file.seek(0, os.SEEK_END)
        file.write(b"\nlast but one\nlast\n")
    code = """if 1:
        import os, resource, sys
        from trainq.artifacts import logs
        resource.setrlimit(resource.RLIMIT_DATA, (150 << 20, 150 << 20))
        assert logs.tail(sys.argv[1], 2) == b"last but one\\nlast\\n"
        assert logs.start_of_tail(sys.argv[1], 3, limit=1 << 20) == os.path.getsize(sys.argv[1]) - (1 << 20)
        assert len(logs.tail(sys.argv[1], 3)) == logs.TAIL_LIMIT
        text = logs.last_text(sys.argv[1], lines=3)
        assert text.endswith("last but one\\nlast") and len(text) < 5 * 4096
        os.truncate(sys.argv[1], 1 << 30)
        assert logs.start_of_tail(sys.argv[1], 1) == 0
        pieces = logs.follow(sys.argv[1], 0, lambda: True, lambda: None)
        assert sum(map(len, pieces)) == 1 << 30
    """
    done = subprocess.run([sys.executable, "-c", code, log], capture_output=True, text=True)
    assert done.stderr == ""


def test_the_text_for_a_message(log):
    """An error quotes the end of the log as valid text without control characters; a progress bar's last state."""
    write(log, b"start\n" + ODD + b"10%\r20%\r30%\rdone\r\n\xc3\xbcber\xc3")
    text = logs.last_text(log)
    assert text == "start\n\\x00 \\xff\\xfe \\x1b[31mred\\x1b[0m \\x9b \ndone\nüber\\xc3"
    assert logs.last_text(log, lines=1) == "über\\xc3"
    assert logs.last_text(log, limit=3) == "er\\xc3"
    text.encode()


class Turns:
    """The waits of a follower, each doing the next thing to the log; over when all are done."""

    def __init__(self, *things):
        self.things = list(things)

    def wait(self):
        self.things.pop(0)()

    def is_over(self):
        return not self.things


def followed(log: str, start: int, *things) -> bytes:
    turns = Turns(*things)
    return b"".join(logs.follow(log, start, turns.is_over, turns.wait))


def test_following_reads_to_the_very_end(log):
    """Q50: `-f` ends by itself when the job ends, with all that was written, also between the last looks."""
    write(log, b"one")
    assert followed(log, 0) == b"one"
    assert followed(log, 1, lambda: write(log, b"two", "ab"), lambda: write(log, b"three", "ab")) == b"netwothree"
    assert followed(log, logs.start_of_tail(log, 0), lambda: write(log, b"new", "ab")) == b"new"


def test_following_misses_no_last_line(log):
    """Q50: what was written just before the end is read, since the end is looked at before the log."""
    write(log, b"first ")

    def ends() -> bool:
        write(log, b"last", "ab")
        return True

    read = b"".join(logs.follow(log, 0, ends, lambda: None))
    with open(log, "rb") as file:
        assert read == file.read()


def test_following_waits_for_the_log(log):
    """A log that does not exist yet is waited for; one that never comes gives nothing."""
    assert followed(log, 0, lambda: None, lambda: None) == b""
    assert followed(log, 0, lambda: None, lambda: write(log, b"here")) == b"here"


def test_following_survives_what_is_done_to_the_log(log):
    """Cut, replaced (the old one's rest first) or removed: what is read is what was there."""
    write(log, b"0123456789")
    assert followed(log, 0, lambda: write(log, b"abc")) == b"0123456789abc"
    write(log, b"0123456789")

    def replace():
        write(log, b"rest", "ab")
        write(f"{log}.new", b"a longer one than before")
        os.replace(f"{log}.new", log)

    assert followed(log, 0, replace) == b"0123456789resta longer one than before"
    assert followed(log, 0, lambda: os.unlink(log), lambda: write(log, b"again")) == b"a longer one than beforeagain"
    assert followed(log, 1000) == b"again"


def test_following_a_fast_writer(log):
    """E10: 64 MiB written as fast as possible arrive whole and in order; no descriptor stays open."""
    before = len(os.listdir("/proc/self/fd"))
    writer = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import sys\nfor n in range(64):\n open(sys.argv[1], 'ab').write(bytes([n]) * (1 << 20))",
            log,
        ]
    )
    turn = threading.Event()
    follower = logs.follow(log, 0, lambda: writer.poll() is not None, lambda: turn.wait(0.001))
    position = 0
    for chunk in follower:
        for at in range(0, len(chunk), 4096):
            assert chunk[at] == (position + at) >> 20
        position += len(chunk)
    assert position == 64 * MIB
    assert writer.returncode == 0
    given_up = logs.follow(log, 0, lambda: False, lambda: None)
    next(given_up)
    given_up.close()
    assert len(os.listdir("/proc/self/fd")) == before


@given(st.lists(st.binary(max_size=8)))
@example([b"\xc3", b"\xbc", b"\xf0\x9f", b"\x98\x80", b"\xe2", b"\x82"])
def test_chunks_do_not_cut_characters(chunks):
    """E10: any bytes in any chunks are shown as the whole would be; never an error, never a control character."""
    escaper = logs.Escaper()
    text = "".join([*map(escaper.feed, chunks), escaper.finish()])
    assert text == logs.escape(b"".join(chunks))
    assert all(c.isprintable() or c in "\n\t\r" or ord(c) > 0x9F for c in text)
    text.encode()


def test_what_a_terminal_gets():
    """Sequences, NUL, C1 and marks of direction are shown as codes; letters, tabs and progress bars as they are."""
    assert logs.escape(ODD) == "\\x00 \\xff\\xfe \\x1b[31mred\\x1b[0m \\x9b \r\n"
    assert logs.escape("ü\t😀\u202e\u009b\x7f\n".encode()) == "ü\t😀\\u202e\\x9b\\x7f\n"
    assert logs.escape(b"10%\r20%") == "10%\r20%"
