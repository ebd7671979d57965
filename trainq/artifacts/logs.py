"""Reading what a job wrote: the end of a log, a log that still grows, and any bytes shown on a terminal.

What must stay true: memory is bounded whatever the log holds (5 GB, or one line of 1 GB); no byte of a log is
ever an error; and none reaches a terminal as a command to it. Nothing here writes: a log is written by the
job itself, through a descriptor that it inherits.
"""

from __future__ import annotations

import codecs
import os
from typing import TYPE_CHECKING

from trainq.base import files

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_BLOCK = 1 << 16
TAIL_LIMIT = 64 << 20
"""Bytes that `tail` gives back at most."""


def start_of_tail(path: str, lines: int, *, limit: int | None = None) -> int:
    """The offset at which the last `lines` lines begin; 0 if there are fewer, or no such file.

    A last line without its end counts as a line. `limit`: look at no more than the last so many bytes, and
    begin there if the lines are longer.
    """
    try:
        fd = files.open_regular(path)
    except FileNotFoundError:
        return 0
    try:
        return _start(fd, lines, limit)
    finally:
        os.close(fd)


def _start(fd: int, lines: int, limit: int | None) -> int:
    end = os.fstat(fd).st_size
    floor = 0 if limit is None else max(0, end - limit)
    if lines <= 0:
        return end
    # The end of the last line is no beginning of another one: one more is looked for.
    wanted = lines + (end > 0 and os.pread(fd, 1, end - 1) == b"\n")
    position = end
    while position > floor:
        begin = max(floor, position - _BLOCK)
        block = os.pread(fd, position - begin, begin)
        found = block.count(b"\n")
        if found >= wanted:
            at = len(block)
            for _ in range(wanted):
                at = block.rindex(b"\n", 0, at)
            return begin + at + 1
        wanted -= found
        position = begin
    return floor


def tail(path: str, lines: int, *, limit: int = TAIL_LIMIT) -> bytes:
    """The last `lines` lines, at most `limit` bytes of them; empty if there is no log."""
    try:
        fd = files.open_regular(path)
    except FileNotFoundError:
        return b""
    try:
        start = _start(fd, lines, limit)
        parts = []
        # What is appended meanwhile is not waited for: a job may write faster than this reads.
        left = min(os.fstat(fd).st_size - start, limit)
        while left > 0 and (block := os.pread(fd, min(left, files.BLOCK), start)):
            parts.append(block)
            start += len(block)
            left -= len(block)
        return b"".join(parts)
    finally:
        os.close(fd)


def last_text(path: str, *, lines: int = 20, limit: int = 4096) -> str:
    """The last lines as text for a message or a row: valid, without control characters, at most `limit` bytes
    of the log; of a progress bar only what it showed last.
    """
    found = tail(path, lines, limit=limit).split(b"\n")
    return "\n".join(escape(line.rstrip(b"\r").rpartition(b"\r")[2]) for line in found).strip("\n")


def follow(path: str, start: int, is_over: Callable[[], bool], wait: Callable[[], None]) -> Iterator[bytes]:
    """What a log holds from `start` on, as it comes, until `is_over()` and all of it has been read.

    `wait` is called when nothing is there to read: it returns when something may have changed. A log that
    does not exist yet is waited for. One that was cut is read again from its beginning, as is one that was
    replaced (after the rest of the old one). Errors of the storage are raised.
    """
    fd = -1
    position = start
    try:
        while True:
            # Asked before the reading: what was written before the end is then read for certain.
            over = is_over()
            if fd >= 0 and _is_replaced(fd, path):
                yield from _rest(fd, position)
                position = 0
            fd = _reopened(fd, path)
            if fd >= 0:
                if position > os.fstat(fd).st_size:
                    position = 0
                for block in _rest(fd, position):
                    position += len(block)
                    yield block
            if over:
                return
            wait()
    finally:
        if fd >= 0:
            os.close(fd)


def _is_replaced(fd: int, path: str) -> bool:
    try:
        return not os.path.samestat(os.fstat(fd), os.lstat(path))
    except FileNotFoundError:
        return False


def _reopened(fd: int, path: str) -> int:
    """A fresh descriptor in place of `fd`, which stays if the file is gone; -1 if there never was one.

    Fresh each time: on a network file system only an open looks at what another host has written.
    """
    try:
        newer = files.open_regular(path)
    except FileNotFoundError:
        return fd
    if fd >= 0:
        os.close(fd)
    return newer


def _rest(fd: int, position: int) -> Iterator[bytes]:
    while block := os.pread(fd, _BLOCK, position):
        position += len(block)
        yield block


def _is_shown(character: str) -> bool:
    # The marks that turn the direction of writing can make a line read as another one.
    return character in "\n\t\r" or (
        not "\x7f" <= character <= "\x9f"
        and character >= " "
        and not "\u202a" <= character <= "\u202e"
        and not "\u2066" <= character <= "\u2069"
    )


class Escaper:
    """Turns the bytes of a log, chunk by chunk, into text that is safe on a terminal.

    A character that a chunk cuts in two is put together. Line ends, tabs and carriage returns (progress bars)
    stay; every other control character and every byte that is not UTF-8 is shown as its code.
    """

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("backslashreplace")

    def feed(self, data: bytes) -> str:
        """The text of this chunk, without a character that is not complete yet."""
        return _escaped(self._decoder.decode(data))

    def finish(self) -> str:
        """What is left of a character that was never completed."""
        return _escaped(self._decoder.decode(b"", final=True))


def escape(data: bytes) -> str:
    """All of `data` as `Escaper` shows it."""
    return _escaped(data.decode("utf-8", "backslashreplace"))


def _escaped(text: str) -> str:
    if text.isprintable():
        return text
    return "".join(c if _is_shown(c) else _as_code(c) for c in text)


def _as_code(character: str) -> str:
    return f"\\x{ord(character):02x}" if character <= "\xff" else f"\\u{ord(character):04x}"
