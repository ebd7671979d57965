"""What the worker gave the job: parameters, data, directories, seed, read from the environment.

The variables count wherever they come from: somebody who runs a script by hand may set TRAINQ_PARAMS or
TRAINQ_DATA. Each value is worked out once, so that a later chdir of the script does not move its directories.
"""

from __future__ import annotations

import functools
import json
import os
from typing import Any


def inside() -> bool:
    """Is this process part of a job?"""
    return "TRAINQ_JOB_UID" in os.environ


@functools.cache
def params() -> dict[str, Any]:
    """The parameters from the file TRAINQ_PARAMS; {} without it.

    A file that cannot be read raises: to train with the defaults instead would be a wrong answer.
    """
    path = os.environ.get("TRAINQ_PARAMS")
    if not path:
        return {}
    with open(path, encoding="utf-8") as file:
        values = json.load(file)
    if not isinstance(values, dict):
        raise TypeError(f"{path}: expected a JSON object of parameters, got {type(values).__name__}")
    return values


def data(name: str | None) -> str | None:
    """Path in TRAINQ_DATA, or in TRAINQ_DATA_<NAME> (upper case, other characters `_`)."""
    return os.environ.get("TRAINQ_DATA" if name is None else "TRAINQ_DATA_" + variable(name)) or None


def variable(name: str) -> str:
    """A name's form in the name of a variable: upper case, `_` for all but ASCII letters and digits."""
    return "".join(c if c.isascii() and c.isalnum() else "_" for c in name.upper())


def seed() -> int:
    """The seed, 0 without one."""
    return int(os.environ.get("TRAINQ_SEED") or 0)


def attempt() -> int:
    """The attempt, 1 outside a job."""
    return int(os.environ.get("TRAINQ_ATTEMPT") or 1)


@functools.cache
def run_dir() -> str:
    """TRAINQ_RUN_DIR, else the current directory."""
    return os.path.abspath(os.environ.get("TRAINQ_RUN_DIR") or os.curdir)


@functools.cache
def model_dir() -> str:
    """TRAINQ_MODEL_DIR, else `model` in run_dir: a job without a model disturbs no other."""
    return _made("TRAINQ_MODEL_DIR", "model")


@functools.cache
def checkpoint_dir() -> str:
    """TRAINQ_CHECKPOINT_DIR, else `checkpoints` in run_dir."""
    return _made("TRAINQ_CHECKPOINT_DIR", "checkpoints")


def _made(name: str, otherwise: str) -> str:
    path = os.path.abspath(os.environ.get(name) or os.path.join(run_dir(), otherwise))
    os.makedirs(path, exist_ok=True)
    return path
