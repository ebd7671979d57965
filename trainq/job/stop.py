"""Was the job asked to end? By a word of the worker, or by SIGTERM."""

from __future__ import annotations

import os
import signal
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

_term = False
_looked = False
_polled = False  # the script asks, so it will leave by itself
_handler: Any = signal.SIG_DFL  # what TERM did before it was taken over
_at_term: Callable[..., None] | None = None
_at_word: Callable[[], None] | None = None
_masks: dict[int, set[int]] = {}


def should_stop() -> bool:
    """`job.should_stop` in a job. Once True it stays True."""
    global _term, _polled  # noqa: PLW0603 - what a signal handler sets and reads
    _polled = True
    if not _looked:
        _take_over_term()
    if not _term and "TRAINQ_SOCKET" in os.environ:
        from trainq.job import connection

        _term = connection.stop_was_pushed()
        if _term and _at_word is not None:
            _at_word()
    return _term


def call(*, at_term: Callable[..., None], at_word: Callable[[], None]) -> None:
    """Have functions called once the job is asked to end: `at_term(handler, frame, polled=…)` from the handler of
    SIGTERM, which is taken over for it (`handler` is what was there), or `at_word()` by `should_stop`."""
    global _at_term, _at_word, _handler  # noqa: PLW0603 - what a signal handler reads
    _at_term, _at_word = at_term, at_word
    now = signal.getsignal(signal.SIGTERM)
    if threading.current_thread() is not threading.main_thread() or now is _on_term:
        return
    if now == signal.SIG_DFL or callable(now):
        _handler = now
        signal.signal(signal.SIGTERM, _on_term)


def _take_over_term() -> None:
    """Handle SIGTERM if nobody else does; only the main thread can, so the first look from there does it."""
    global _looked  # noqa: PLW0603
    if threading.current_thread() is not threading.main_thread():
        return
    _looked = True
    if signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _on_term)


def _on_term(_signal: int, frame: Any) -> None:
    global _term  # noqa: PLW0603
    _term = True
    if _at_term is not None:
        _at_term(_handler, frame, polled=_polled)


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
    global _looked, _polled, _handler, _at_term, _at_word  # noqa: PLW0603
    if signal.getsignal(signal.SIGTERM) is _on_term:
        signal.signal(signal.SIGTERM, _handler)
    _looked = _polled = False
    _handler, _at_term, _at_word = signal.SIG_DFL, None, None
    _after_fork()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork_in_child)
