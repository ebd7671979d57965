"""The one gate: `queue.lock`, taken by every writing session before it touches the database.

SQLite's own busy-wait starves writers for seconds; a blocking flock is fair. The wait is bounded by an interval timer
whose handler raises out of the blocked call. The holder leaves its host and pid in the file for whoever runs out of
patience. The file is never deleted, and the kernel frees the lock when its holder dies.
"""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import time
from typing import TYPE_CHECKING

from trainq.base import hosts
from trainq.base.errors import GateBusy, NoLocks, Unwritable

if TYPE_CHECKING:
    from types import FrameType

_POLL_S = 0.02


class _OutOfPatience(Exception):
    """Raised by the timer's handler; never leaves this module."""


class Gate:
    """One descriptor on the lock file, opened at the first need and kept."""

    def __init__(self, path: str, wait_s: float) -> None:
        self.path = path
        self.wait_s = wait_s
        self._fd: int | None = None
        self._text = f"{hosts.hostname()} {os.getpid()}\n".encode()

    def enter(self) -> None:
        """Wait for the gate, at most `wait_s` seconds.

        Raises GateBusy naming the holder, NoLocks when the file system has no locks, Unwritable when the lock file
        cannot be opened.
        """
        fd = self._open()
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._wait(fd)
        except OSError as error:
            raise self._no_locks(error) from error
        if self._text:
            os.pwrite(fd, self._text.ljust(64), 0)

    def leave(self) -> None:
        """Let the next one in."""
        if self._fd is not None:
            fcntl.flock(self._fd, fcntl.LOCK_UN)

    def close(self) -> None:
        """Drop the descriptor, and the lock with it."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _open(self) -> int:
        if self._fd is None:
            try:
                self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            except OSError as error:
                raise Unwritable(f"{self.path}: the queue's lock cannot be opened: {error.strerror}") from error
        return self._fd

    def _wait(self, fd: int) -> None:
        try:
            self._wait_by_timer(fd)
        except _OutOfPatience:
            raise self._busy() from None
        except ValueError:  # not the main thread: signals cannot be had, so look again and again
            self._wait_by_looking(fd)

    def _wait_by_timer(self, fd: int) -> None:
        before = signal.signal(signal.SIGALRM, _give_up)
        signal.setitimer(signal.ITIMER_REAL, self.wait_s)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
        except OSError as error:
            raise self._no_locks(error) from error
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)

    def _wait_by_looking(self, fd: int) -> None:
        end = time.monotonic() + self.wait_s
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() >= end:
                    raise self._busy() from None
                time.sleep(_POLL_S)
            else:
                return

    def _busy(self) -> GateBusy:
        holder = os.pread(self._open(), 64, 0).decode("utf-8", "replace").split()
        who = f"pid {holder[1]} on {holder[0]}" if len(holder) == 2 else "another process"
        return GateBusy(
            f"{self.path}: still held by {who} after {self.wait_s:g} s",
            hint=f"look at that process; TRAINQ_TIMES_LOCK_WAIT={self.wait_s * 4:g}s waits longer",
        )

    def _no_locks(self, error: OSError) -> Exception:
        if error.errno in (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL):
            return NoLocks(f"{self.path}: this file system gives no locks: {error.strerror}", hint="trainq doctor")
        return error


def _give_up(_signal: int, _frame: FrameType | None) -> None:
    raise _OutOfPatience
