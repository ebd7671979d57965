"""Functions that a training wants called at a bad end: `job.on_error` and `job.on_cancel`.

What must stay true: the first error is told first, to stderr and to the worker, before any function runs, and the process
ends with the status it would have had without them; each function runs at most once, and one that raises takes nothing
from the others. They belong to the process that named them: a forked child has none.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import TYPE_CHECKING, Any

from trainq.job import stop

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType
    from typing import TypeAlias

    Function: TypeAlias = Callable[[], object]

_TOLD_CHARACTERS = 6000
_TOLD_S = 1.0

_on_error: list[Function] = []
_on_cancel: list[Function] = []
_before: Any = None  # the excepthook that was there
_busy = False  # functions run just now


def on_error(function: Function) -> None:
    """Take a function for the next uncaught exception."""
    _look_at_exceptions()
    _on_error.append(function)


def on_cancel(function: Function) -> None:
    """Take a function for the moment when the job is asked to end."""
    _look_at_exceptions()
    _on_cancel.append(function)
    stop.call(at_term=_asked_to_end, at_word=_told_to_end)


def _look_at_exceptions() -> None:
    """Once: a hook that came later may call this one, which then must not call that."""
    global _before
    if _before is None:
        _before, sys.excepthook = sys.excepthook, _uncaught


def _uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    _before(kind, error, trace)
    if hasattr(sys, "ps1"):
        return  # a session of a person goes on
    if issubclass(kind, KeyboardInterrupt):
        _run(_on_cancel, "on_cancel")
    elif _on_error:
        _tell(kind, error, trace)
        _run(_on_error, "on_error")


def _told_to_end() -> None:
    """By a word of the worker that `should_stop` has read."""
    status = _run(_on_cancel, "on_cancel", may_leave=True)
    if status is not None:
        raise SystemExit(status)


def _asked_to_end(handler: Any, frame: Any, *, polled: bool) -> None:
    """At SIGTERM, in the main thread. Who looks at `should_stop` leaves by itself, and so does whoever had a handler of
    its own; all else ends here, through its `finally` blocks."""
    if _busy:
        return  # it is ending already
    _told_to_end()
    if callable(handler):
        handler(signal.SIGTERM, frame)
    elif not polled:
        raise SystemExit(128 + signal.SIGTERM)


def _run(functions: list[Function], name: str, *, may_leave: bool = False) -> int | None:
    """Call each, the first named first, and forget it; what they raise is shown and goes no further."""
    global _busy  # noqa: PLW0603 - what a signal handler looks at
    outer, _busy = _busy, True
    status = None
    try:
        while functions:
            function = functions.pop(0)
            try:
                function()
            except SystemExit as error:
                if may_leave and isinstance(error.code, int) and status is None:
                    status = error.code
                elif not may_leave:
                    _show(name, function, error)
            except BaseException as error:  # noqa: BLE001 - a stranger's function may raise anything
                _show(name, function, error)
    finally:
        _busy = outer
    return status


def _show(name: str, function: Function, error: BaseException) -> None:
    import traceback

    from trainq.job import words

    trace = error.__traceback__.tb_next if error.__traceback__ else None
    text = "".join(traceback.format_exception(type(error), error, trace))
    shown = words.text(getattr(function, "__qualname__", repr(function)), words.NAME_LIMIT)
    try:
        sys.stderr.write(f"\ntrainq: the {name} function {shown} failed:\n{text}")
        sys.stderr.flush()
    except (OSError, ValueError, AttributeError, RuntimeError):
        pass  # a closed or missing stderr hides nothing that could still be shown


def _tell(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """The worker learns of the error before the functions write over the end of the log."""
    if "TRAINQ_SOCKET" not in os.environ:
        return
    import traceback

    from trainq.job import words
    from trainq.job.question import Question

    text = "".join(traceback.format_exception(kind, error, trace))[-_TOLD_CHARACTERS:]
    try:
        Question(_TOLD_S, do="failed", error=words.text(text, _TOLD_CHARACTERS)).close()
    except OSError:
        pass  # no worker, nobody to tell


def _forget() -> None:
    """In a forked child: these are its parent's."""
    global _busy  # noqa: PLW0603
    _on_error.clear()
    _on_cancel.clear()
    _busy = False


os.register_at_fork(after_in_child=_forget)
