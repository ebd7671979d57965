"""The plans that run on the worker's own host: a command, a line for the shell, a Python callable."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

CALL_PROGRAM = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "job", "call.py")


def argv(spec: Mapping[str, Any]) -> tuple[str, ...]:
    """The words to execute, as they were submitted; no shell but for `--shell`."""
    if "argv" in spec:
        return tuple(spec["argv"])
    if "shell" in spec:
        return ("/bin/sh", "-c", spec["shell"])
    return (spec["python"], CALL_PROGRAM, spec["call"])
