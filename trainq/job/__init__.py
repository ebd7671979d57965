"""What training code imports: `from trainq import job`.

A guest in somebody's training run: standard library only, nothing imported before it is needed, never an
exception for an odd value, never a wait for the worker (but in `checkpoint.save`). Outside a job every call is a silent no-op and the
values are those of a run by hand, so the same script works in both places:

    from trainq import job

    alpha = job.params.get("alpha", 0.1)
    for epoch in range(100):
        if job.should_stop():
            sys.exit("stopped")
        ...
        job.progress(step=epoch + 1, total=100)
        job.metric("loss", loss, step=epoch)
    model.save(os.path.join(job.model_dir, "model.bin"))

`job.checkpoint` saves and finds checkpoints: see trainq/job/checkpoint.py. Functions given to `job.on_error` and
`job.on_cancel` are called when the training fails and when it is asked to end.

It runs in the interpreter of the job, which may be older than the one of the worker: keep it to what Python
3.9 reads.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False  # `import typing` would be most of this module's cost
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any, TypeVar

    from trainq.job import checkpoint as checkpoint

    Function = TypeVar("Function", bound=Callable[[], object])

# Looked up at first use by __getattr__; these lines only declare the types.
inside: bool
"""True in a job of a trainq worker."""
params: dict[str, Any]
"""The job's parameters with the types they were submitted with; {} outside a job."""
seed: int
"""The job's seed; 0 outside a job."""
attempt: int
"""The number of this attempt, from 1."""
model_dir: str
"""Directory whose content is published as the model at exit 0. Outside a job: ./model, made at first use; in
a job that publishes no model: `model` in run_dir."""
checkpoint_dir: str
"""Directory that all attempts of the job share. Outside a job: ./checkpoints, made at first use."""
run_dir: str
"""Directory of this attempt (log, parameters). Outside a job: the current directory."""

__all__ = [
    "attempt",
    "checkpoint",
    "checkpoint_dir",
    "data",
    "inside",
    "metric",
    "model_dir",
    "on_cancel",
    "on_error",
    "params",
    "progress",
    "run_dir",
    "seed",
    "should_stop",
]

_VALUES = frozenset(("inside", "params", "seed", "attempt", "model_dir", "checkpoint_dir", "run_dir"))


def __getattr__(name: str) -> Any:
    if name == "checkpoint":
        import trainq.job.checkpoint as module

        return module
    if name not in _VALUES:
        raise AttributeError(f"module 'trainq.job' has no attribute {name!r}")
    from trainq.job import given

    return getattr(given, name)()


def __dir__() -> list[str]:
    return __all__


def data(name: str | None = None) -> str | None:
    """Path of the job's training set, or of the one submitted as `--data NAME=FILE`; None without one."""
    from trainq.job import given

    return given.data(name)


def progress(
    fraction: float | None = None,
    *,
    step: float | None = None,
    total: float | None = None,
    message: str | None = None,
) -> None:
    """Tell how far the training is: a fraction from 0 to 1, or a step of a total.

    Costs microseconds: what changes more often than ten times a second is sent ten times a second, and the
    last value at the exit of the process. `total` and `message` need not be repeated.
    """
    if "TRAINQ_SOCKET" in os.environ:
        from trainq.job import connection

        connection.progress(fraction, step, total, message)


def metric(
    name: str | Mapping[str, Any],
    value: Any = None,
    *,
    step: float | None = None,
    group: str | None = None,
) -> None:
    """Log one value, or a mapping of names to values, at a step, in a group such as "train".

    A value is anything `float()` takes (numpy and torch scalars); one it does not take is left out, with one
    line on stderr. Points are collected and sent ten times a second; of more than 5,000 in between, part is
    left out, never the newest of a name.
    """
    if "TRAINQ_SOCKET" in os.environ:
        from trainq.job import connection

        connection.metric(name, value, step, group)


def should_stop() -> bool:
    """True once the job has been asked to end (cancel, time limit, the worker stops): save and exit now.

    The first call from the main thread takes over SIGTERM, if nothing else handles it, so that the process
    lives on to save within the grace (`--grace`, 30 s) instead of dying at once. A script that uses this has
    to look at it often enough: after the grace everything is killed. Exit with a status other than 0, or 75
    after a checkpoint.
    """
    if "TRAINQ_JOB_UID" in os.environ:
        from trainq.job import stop

        return stop.should_stop()
    return False


def on_error(function: Function) -> Function:
    """Have a function without arguments called when an exception ends the script: it may still save. Also a decorator.

    The traceback is written first, and the job's error begins with it; what the function raises comes after that, and
    the process exits with 1 as it would have. Several are called in the order they were given, each once. `sys.exit()`
    and exceptions of other threads are not meant. Outside a job it is the same.
    """
    from trainq.job import hooks

    hooks.on_error(function)
    return function


def on_cancel(function: Function) -> Function:
    """Have a function without arguments called once the job is asked to end (cancel, time limit, the worker stops). Also
    a decorator.

    It has the grace (`--grace`, 30 s), and is called by the main thread at SIGTERM, between two of its steps wherever
    they are; then the script ends by `SystemExit` (143, or what the function gives to `sys.exit`, such as 75 after a
    checkpoint), unless it asks `should_stop` and so leaves by itself, or had a handler of SIGTERM, which is called then.
    Several are called in the order they were given, each once; what one raises is shown and takes nothing from the
    others. Call this from the main thread. Outside a job it is the same, and a KeyboardInterrupt that ends the script
    counts too.
    """
    from trainq.job import hooks

    hooks.on_cancel(function)
    return function
