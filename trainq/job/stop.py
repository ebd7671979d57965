"""Was the job asked to end? By a word of the worker, or by SIGTERM."""

from __future__ import annotations

import os
import signal
import threading
from typing import Any

_term = False
_looked = False
_masks: dict[int, set[int]] = {}


def should_stop() -> bool:
    """`job.should_stop` in a job. Once True it stays True."""
    global _term  # noqa: PLW0603 - what a signal handler sets
    if not _looked:
        _take_over_term()
    if not _term and "TRAINQ_SOCKET" in os.environ:
        from trainq.job import connection

        _term = connection.stop_was_pushed()
    return _term


def _take_over_term() -> None:
    """Handle SIGTERM if nobody else does; only the main thread can, so the first look from there does it."""
    global _looked  # noqa: PLW0603
    if threading.current_thread() is not threading.main_thread():
        return
    _looked = True
    if signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _on_term)


def _on_term(_signal: int, _frame: Any) -> None:
    global _term  # noqa: PLW0603
    _term = True


# A child that a training forks must die of TERM again: pools and data loaders end theirs with it. TERM is
# kept back around the fork, since one that reached the child before its handler is gone would be lost.


def _before_fork() -> None:
    if signal.getsignal(signal.SIGTERM) is _on_term:
        _masks[threading.get_ident()] = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})


def _after_fork() -> None:
    mask = _masks.pop(threading.get_ident(), None)
    if mask is not None:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _after_fork_in_child() -> None:
    global _looked  # noqa: PLW0603
    _looked = False
    if signal.getsignal(signal.SIGTERM) is _on_term:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    _after_fork()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork_in_child)
