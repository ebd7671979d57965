"""How an attempt ended, from what was seen: exit code, signal, who stopped it, the end of its log. Pure."""

from __future__ import annotations

import errno
import os
import re
import signal
from typing import NamedTuple

from trainq.domain.job import Outcome

_NOT_IMPORTED = re.compile(r"^(?:\w+\.)*(?:ModuleNotFoundError|ImportError): ", re.MULTILINE)
_NOT_FOUND = 127
_NOT_EXECUTABLE = 126


class Seen(NamedTuple):
    """What the worker saw of an ended process."""

    exit_code: int | None
    signal: int | None
    stopped_for: str | None  # canceled, timeout or drained when the worker ended it
    limit_s: float | None
    spoke: bool  # it had reported progress or a metric
    log_end: str


def classify(seen: Seen) -> Outcome:
    """The outcome of a process that ran. Whoever the worker stopped did not succeed, whatever code it left with."""
    if seen.stopped_for == "timeout":
        return _failed("timeout", f"stopped at its time limit of {seen.limit_s:g} s", seen)
    if seen.stopped_for == "drained":
        return _failed("drained", "the worker was stopped", seen)
    if seen.signal is not None:
        return _failed("signal", _signal_text(seen.signal), seen)
    if seen.exit_code == 0:
        return Outcome(None, 0)
    if not seen.spoke and _NOT_IMPORTED.search(seen.log_end):
        return _failed("import", f"exit {seen.exit_code} before any progress", seen)
    return _failed("exit", f"exit {seen.exit_code}", seen)


def not_started(step: str, number: int, program: str, cwd: str) -> Outcome:
    """The outcome of a program that could not be started; 127 when it is not there, else 126, as shells say."""
    why = errno_text(number)
    what = f"cannot go to {cwd}" if step == "chdir" else f"cannot start {program}"
    missing = number in (errno.ENOENT, errno.ENOTDIR)
    code = None if step != "exec" else _NOT_FOUND if missing else _NOT_EXECUTABLE
    return Outcome("spawn", exit_code=code, error=f"{what}: {why}")


def errno_text(number: int) -> str:
    """The system's words for an error number, lower case."""
    return os.strerror(number).lower()


def _failed(cause: str, text: str, seen: Seen) -> Outcome:
    error = f"{text}\n{seen.log_end}" if seen.log_end else text
    return Outcome(cause, exit_code=seen.exit_code, signal=seen.signal, error=error)


def _signal_text(number: int) -> str:
    try:
        name = signal.Signals(number).name
    except ValueError:
        name = "unknown"
    hint = ": often the kernel's answer when memory ran out" if number == signal.SIGKILL else ""
    return f"killed by signal {number} ({name}){hint}"
