"""The one gate: `queue.lock`, taken by every writing session before it touches the database.

SQLite's own busy-wait starves writers for seconds; a blocking flock is fair. The wait is bounded by an interval timer
whose handler raises out of the blocked call; a file server is asked again and again instead. The holder leaves its host and pid in the file for whoever runs out of
patience. The file is never deleted, and the kernel frees the lock when its holder dies.
"""

from __future__ import annotations

import errno
import fcntl
import os
import random
import signal
import threading
import time
from typing import TYPE_CHECKING, NamedTuple

from trainq.base import files, hosts
from trainq.base.errors import GateBusy, NoLocks, NoRoot, Storage, Unsupported, Unwritable

if TYPE_CHECKING:
    from types import FrameType

POLL_S = 0.02
_TEXT = 64
"""Bytes: first the holder's host and pid, then the mark."""


class _OutOfPatience(Exception):
    """Raised by the timer's handler; never leaves this module."""


class Mark(NamedTuple):
    """Whose gate this is, and the generation of the last commit behind it. Only a shared queue's gate has one."""

    uuid: str
    generation: int


class Gate:
    """One descriptor on the lock file, opened at the first need and kept.

    With `is_shared` the lock is one of POSIX: an NFS client turns every lock into such a one at the server, where a
    flock of the server's own processes would not meet it. It is lost when this process closes any descriptor of the
    file, so nobody else opens it while it is held. And the holder's name is written through, for waiting hosts to read.
    """

    def __init__(self, path: str, wait_s: float, *, is_shared: bool = False) -> None:
        self.path = path
        self.wait_s = wait_s
        self.is_shared = is_shared
        self._lock = fcntl.lockf if is_shared else fcntl.flock
        self._fd: int | None = None
        self._text = f"{hosts.hostname()} {os.getpid()}\n".encode().ljust(_TEXT)

    def enter(self, waited_s: float = 0.0) -> bool:
        """Wait for the gate, at most `wait_s` seconds in all; `waited_s` of them are over. Whether it had to be waited for.

        Raises GateBusy naming the holder, NoLocks when the file system has no locks, Unwritable when the lock file
        cannot be opened.
        """
        waited = False
        while True:
            fd = self._open()
            if not self._take(fd):
                waited = True
                self._wait(fd, self.wait_s - waited_s)
            # Not on a local disk, where the database's own file tells, and a look at this one's times makes each write of
            # the holder's name dirty its inode: a third more for a claim.
            if not self.is_shared or self._is_there(fd):
                break
            self.close()  # the file of this name is the gate, whatever was open
        try:
            os.pwrite(fd, self._text, 0)
            if self.is_shared:
                os.fdatasync(fd)
        except OSError:
            pass  # a full disk: the lock is ours all the same, and who waits in vain reads an older name or none
        return waited

    @property
    def is_open(self) -> bool:
        """Whether the lock file is open."""
        return self._fd is not None

    def is_stopped(self) -> bool:
        """Whether who was in last is a process of this host that stands still: ^Z, a debugger, a frozen job."""
        last = self._last()
        return last is not None and last[0] == hosts.hostname() and hosts.is_stopped(last[1])

    def try_enter(self) -> bool:
        """Whether the gate could be had at once; for who does not have it. Raises NoLocks, Unwritable, Storage."""
        return self._take(self._open())

    def leave(self) -> None:
        """Let the next one in."""
        if self._fd is not None:
            try:
                self._lock(self._fd, fcntl.LOCK_UN)
            except OSError:
                self.close()  # what was done inside is done; the lock goes with the descriptor

    def mark(self) -> Mark | None:
        """The mark, for who holds the gate; None before the first one. Raises Storage."""
        try:
            return _parsed(os.pread(self._open(), _TEXT, _TEXT))
        except OSError as error:
            raise Storage(f"{self.path}: {error.strerror}") from error

    def leave_mark(self, uuid: str, generation: int) -> None:
        """Write the mark, for who holds the gate; unlocking takes it to the file server."""
        os.pwrite(self._open(), f"{uuid} {generation}\n".encode().ljust(_TEXT), _TEXT)

    def generation_from_outside(self) -> int:
        """The generation as it is now, without waiting for the gate; 0 before the first mark. Raises Storage."""
        try:
            mark = _parsed(files.read_past_cache(self.path, 2 * _TEXT)[_TEXT:])
        except FileNotFoundError:
            return 0
        except OSError as error:
            raise Storage(f"{self.path}: {error.strerror}") from error
        return 0 if mark is None else mark.generation

    def close(self) -> None:
        """Drop the descriptor, and the lock with it."""
        if self._fd is not None:
            try:
                os.close(self._fd)
            except OSError:
                pass  # the descriptor is gone all the same: close(2)
            self._fd = None

    def _open(self) -> int:
        if self._fd is None:
            try:
                self._fd = files.open_shared(self.path)
            except FileNotFoundError as error:
                raise NoRoot(f"{os.path.dirname(self.path)}: there is no queue here") from error
            except OSError as error:
                raise Unwritable(f"{self.path}: the queue's lock cannot be opened: {error.strerror}") from error
        return self._fd

    def _is_there(self, fd: int) -> bool:
        """Whether the file has its name still: somebody may have deleted it, and others have made it anew."""
        try:
            return os.path.samestat(os.stat(self.path, follow_symlinks=False), os.fstat(fd))
        except FileNotFoundError:
            return False
        except OSError as error:
            self.leave()
            raise Storage(f"{self.path}: {error.strerror}") from error

    def _take(self, fd: int) -> bool:
        """Whether the lock is ours now. Asking for what is ours already is harmless."""
        try:
            self._lock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):  # POSIX leaves the choice
            return False
        except OSError as error:
            raise self._no_locks(error) from error
        return True

    def _wait(self, fd: int, left_s: float) -> None:
        if self.is_shared or threading.current_thread() is not threading.main_thread():  # no signals there
            self._wait_by_looking(fd, left_s)
        else:
            self._wait_by_timer(fd, left_s)

    def _wait_by_timer(self, fd: int, left_s: float) -> None:
        """Block in flock until the timer's handler raises out of it.

        A process has one such timer: what somebody else had set ends here. It fires again until the handler has run,
        since one signal alone could come just before the call blocks; the handler raises once, wherever that is.
        """
        raised = False

        def give_up(_signal: int, _frame: FrameType | None) -> None:
            nonlocal raised
            signal.setitimer(signal.ITIMER_REAL, 0)
            if not raised:
                raised = True
                raise _OutOfPatience

        before = signal.signal(signal.SIGALRM, give_up)
        try:
            try:
                signal.setitimer(signal.ITIMER_REAL, max(left_s, 1e-4), POLL_S)
                self._lock(fd, fcntl.LOCK_EX)
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
        except _OutOfPatience:
            if not self._take(fd):  # patience may have ended in the instant the lock became ours
                raise self._busy() from None
        except OSError as error:
            raise self._no_locks(error) from error
        finally:
            signal.signal(signal.SIGALRM, before)

    def _wait_by_looking(self, fd: int, left_s: float) -> None:
        """Ask again and again.

        A file server is asked so, too. One that cannot tell a waiting client that the lock is free (NFSv3 behind a firewall,
        NFSv4.0) gives it away all the same, and nobody has it until the client asks again, by itself after 30 s.
        """
        end = time.monotonic() + left_s
        while not self._take(fd):
            if time.monotonic() >= end:
                raise self._busy()
            time.sleep(POLL_S * (0.5 + random.random()))  # noqa: S311  # so that nobody is always a little late

    def _busy(self) -> GateBusy:
        who = self._holder() or "another program"
        return GateBusy(
            f"{self.path}: still held by {who} after {self.wait_s:g} s",
            hint=f"look at that process; TRAINQ_TIMES_LOCK_WAIT={self.wait_s * 4:g}s waits longer",
        )

    def _holder(self) -> str | None:
        """Who was in last, if it may be in still: whoever takes the lock without a gate writes no text."""
        last = self._last()
        if last is None or (last[0] == hosts.hostname() and not _lives(last[1])):
            return None
        return f"pid {last[1]} on {last[0]}"

    def _last(self) -> tuple[str, int] | None:
        """Host and pid of who was in last."""
        try:
            text = files.read_past_cache(self.path, _TEXT) if self.is_shared else os.pread(self._open(), _TEXT, 0)
        except OSError:
            return None
        host, _, pid = text.decode("utf-8", "replace").strip().partition(" ")
        return (host, int(pid)) if pid.isascii() and pid.isdigit() else None

    def _no_locks(self, error: OSError) -> Exception:
        if error.errno in (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL):
            return NoLocks(f"{self.path}: this file system gives no locks: {error.strerror}", hint="trainq doctor")
        return Storage(f"{self.path}: the lock cannot be taken: {error.strerror}")


def _parsed(text: bytes) -> Mark | None:
    words = text.decode("ascii", "replace").split()
    return Mark(words[0], int(words[1])) if len(words) == 2 and words[1].isdigit() else None


def _lives(pid: int) -> bool:
    try:
        return hosts.start_of(pid) is not None
    except Unsupported:
        return True  # as far as can be told
