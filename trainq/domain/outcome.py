"""How an attempt ended, from what was seen: exit code, signal, who stopped it, the end of its log. Pure."""

from __future__ import annotations

import errno
import os
import re
import signal
from typing import Final, NamedTuple

from trainq.domain.job import Outcome

REQUEUE: Final = 75
"""The exit code that means "checkpointed, requeue me": EX_TEMPFAIL of sysexits.h."""
IDLE_S: Final = 60.0
QUICK_S: Final = 10.0
_NOT_FOUND = 127
_NOT_EXECUTABLE = 126
_NOT_IMPORTED = re.compile(r"^(?:\w+\.)*(?:ModuleNotFoundError|ImportError): ", re.MULTILINE)
# What the usual allocators say last. A line must begin with the exception, or hold the allocator's own words.
_OUT_OF_MEMORY = re.compile(
    r"^(?:\w+\.)*(?:OutOfMemoryError|(?:_Array)?MemoryError)\b"
    r"|CUDA out of memory|CUDA error: out of memory|CUDA_ERROR_OUT_OF_MEMORY|cudaErrorMemoryAllocation"
    r"|CUBLAS_STATUS_ALLOC_FAILED|HIP out of memory|RESOURCE_EXHAUSTED: Out of memory|OOM when allocating"
    r"|\[Errno 12\] Cannot allocate memory|std::bad_alloc|DefaultCPUAllocator: (?:can't|not enough)"
    r"|OpenBLAS.*allocation failed",
    re.MULTILINE,
)


class Seen(NamedTuple):
    """What the worker saw of an ended process."""

    exit_code: int | None
    signal: int | None
    stopped_for: str | None  # canceled, timeout, stalled or drained when the worker ended it
    limit_s: float | None
    spoke: bool  # it had reported progress or a metric, or saved
    log_end: str
    run_s: float = QUICK_S
    saved: bool = False  # it had committed a checkpoint
    oom_killed: bool = False  # the kernel has killed for memory in this cgroup meanwhile
    stall_s: float | None = None


def classify(seen: Seen) -> Outcome:
    """The outcome of a process that ran. Whoever the worker stopped did not succeed, whatever code it left with; only
    exit 75 is the job's own word that it has saved and wants to go on later."""
    if seen.exit_code == REQUEUE and seen.stopped_for != "stalled":
        return _failed(
            "requeued", "exit 75: it wants to be requeued", seen, idle=seen.run_s < IDLE_S and not seen.saved
        )
    if seen.stopped_for == "timeout":
        return _failed("timeout", f"stopped at its time limit of {seen.limit_s:g} s", seen)
    if seen.stopped_for == "stalled":
        return _failed("stalled", f"no progress was reported for {seen.stall_s:g} s", seen)
    if seen.stopped_for == "drained":
        return _failed("drained", "the worker was stopped", seen)
    if seen.exit_code == 0:
        return Outcome(None, 0)
    text = (
        f"exit {seen.exit_code}"
        if seen.signal is None
        else _signal_text(seen.signal, by_us=seen.stopped_for is not None)
    )
    if (seen.signal == signal.SIGKILL and seen.oom_killed) or _OUT_OF_MEMORY.search(seen.log_end):
        return _failed("oom", f"out of memory: {text}", seen)
    if seen.signal is not None:
        return _failed("signal", text, seen)
    if not seen.spoke and _NOT_IMPORTED.search(seen.log_end):
        return _failed("import", f"{text} before any progress", seen)
    return _failed("exit", text, seen)


def not_started(step: str, number: int, program: str, cwd: str) -> Outcome:
    """The outcome of a program that could not be started; 127 when it is not there, else 126, as shells say."""
    why = errno_text(number)
    what = f"cannot go to {cwd}" if step == "chdir" else f"cannot start {program}"
    missing = number in (errno.ENOENT, errno.ENOTDIR)
    code = None if step != "exec" else _NOT_FOUND if missing else _NOT_EXECUTABLE
    return Outcome("spawn", exit_code=code, error=f"{what}: {why}", quick=True)


def joined(first: str, log_end: str) -> str:
    """The end of a log, after the first error of the job where that is not in it any more; what both have once."""
    told, end = first.splitlines(), log_end.splitlines()
    if not told or first.strip() in log_end:
        return log_end
    if not end:
        return first
    for cut in range(len(told)):
        # The end of a log may begin in the middle of a line.
        if told[cut].endswith(end[0]) and end[1 : len(told) - cut] == told[cut + 1 :]:
            return "\n".join([*told, *end[len(told) - cut :]])
    return "\n".join([*told, "…", *end])


def errno_text(number: int) -> str:
    """The system's words for an error number, lower case."""
    return os.strerror(number).lower()


def _failed(cause: str, text: str, seen: Seen, *, idle: bool = False) -> Outcome:
    error = f"{text}\n{seen.log_end}" if seen.log_end else text
    quick = seen.run_s < QUICK_S
    return Outcome(cause, exit_code=seen.exit_code, signal=seen.signal, error=error, idle=idle, quick=quick)


def _signal_text(number: int, *, by_us: bool) -> str:
    try:
        name = signal.Signals(number).name
    except ValueError:
        name = "unknown"
    hint = ": often the kernel's answer when memory ran out" if number == signal.SIGKILL and not by_us else ""
    return f"killed by signal {number} ({name}), exit {128 + number}{hint}"
