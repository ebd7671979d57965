"""The pipe by which what happens elsewhere reaches the loop: nudges of the bell, signals, slow work that is done.

Everything that arrives is acted upon in the loop's own thread.
"""

from __future__ import annotations

import os
import signal
from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class News(NamedTuple):
    """What has arrived: whether somebody nudged, and which signals, in order."""

    nudged: bool
    signals: list[int]


class Inbox:
    """Opened in the main thread; `nudge` and the ends of slow work come from any."""

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._pool: Any = None
        self._done: deque[tuple[Callable[[BaseException | None], None], BaseException | None]] = deque()
        self.slow_jobs = 0
        self._ear, self._mouth = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._wakeup_fd = signal.set_wakeup_fd(self._mouth, warn_on_full_buffer=False)
        self._handlers = [
            (number, signal.signal(number, _heard))
            for number in SIGNALS
            if signal.getsignal(number) is not signal.SIG_IGN  # ignored at the start (nohup) stays ignored
        ]

    def fileno(self) -> int:
        """Readable when there is news."""
        return self._ear

    def nudge(self) -> None:
        """Wake the loop."""
        try:
            os.write(self._mouth, b"\0")
        except OSError:
            pass  # full of nudges, or closed at the very end

    def read(self) -> News:
        """What has arrived; the ends of slow work are called here."""
        try:
            data = os.read(self._ear, 4096)
        except BlockingIOError:
            data = b""
        while self._done:
            then, error = self._done.popleft()
            self.slow_jobs -= 1
            then(error)
        return News(0 in data, [number for number in data if number in SIGNALS])

    def slow(self, work: Callable[[], None], then: Callable[[BaseException | None], None]) -> None:
        """Do slow work in a thread; `then` is called by `read`, with the error if there was one."""
        if self._pool is None:
            from concurrent.futures import ThreadPoolExecutor

            self._pool = ThreadPoolExecutor(self._threads)
        self.slow_jobs += 1

        def done(future: Any) -> None:
            self._done.append((then, future.exception()))
            self.nudge()

        self._pool.submit(work).add_done_callback(done)

    def close(self) -> None:
        """Wait for the slow work, and give the signals back."""
        if self._pool is not None:
            self._pool.shutdown(wait=True)
        signal.set_wakeup_fd(self._wakeup_fd)
        for number, handler in self._handlers:
            signal.signal(number, handler)
        os.close(self._ear)
        os.close(self._mouth)


def _heard(_number: int, _frame: Any) -> None:
    """The number is in the pipe already."""
