"""Calls of the kernel that Python has no words for. Part of the keeper's program: nothing of trainq, and little else."""

from __future__ import annotations

import ctypes
import os
import time

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
TFD_TIMER_ABSTIME = 1
LONGEST_S = 1e9  # beyond it a time is never

_libc = ctypes.CDLL(None, use_errno=True)
_libc.prctl.argtypes = [ctypes.c_int] + [ctypes.c_ulong] * 4


def prctl(option: int, value: int) -> None:
    """Set one attribute of this process. Raises OSError."""
    _check(_libc.prctl(option, value, 0, 0, 0))


def signal_thread(pid: int, thread: int, number: int) -> None:
    """Signal one thread of a process; nothing if it is gone, or the C library has no such call (glibc before 2.30)."""
    if hasattr(_libc, "tgkill"):
        _libc.tgkill(pid, thread, number)


def boot_s() -> float:
    """Seconds since boot, a suspend counted too."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Alarm:
    """A descriptor that becomes readable at a moment of `boot_s`, after a suspend at once if that has passed."""

    def __init__(self) -> None:
        self._fd: int = _check(_libc.timerfd_create(time.CLOCK_BOOTTIME, os.O_CLOEXEC | os.O_NONBLOCK))

    def fileno(self) -> int:
        """For `poll`."""
        return self._fd

    def set(self, at_s: float) -> None:
        """Put it on this moment instead of the last; infinity is never."""
        at_ns = int(max(at_s, 0.001) * 1e9) if at_s < LONGEST_S else 0  # 0 puts it off
        spec = (ctypes.c_long * 4)(0, 0, *divmod(at_ns, 1_000_000_000))
        _check(_libc.timerfd_settime(self._fd, TFD_TIMER_ABSTIME, spec, None))

    def hear(self) -> None:
        """Let the descriptor be unreadable until the next moment."""
        try:
            os.read(self._fd, 8)
        except BlockingIOError:
            pass  # put on another moment since


def _check(answer: int) -> int:
    if answer < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return answer
