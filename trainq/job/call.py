"""Runs `module:function` of a type's `call`: executed by the job's own Python, standard library only.

The function gets the job's parameters by keyword if it takes any, else nothing. What it returns is not looked at: a
model is what it writes to `job.model_dir`. An exception ends the process with its traceback, as any script's would.
"""

from __future__ import annotations

import importlib
import inspect
import json
import os
import sys
from typing import Any


def main(target: str) -> None:
    """Import the module from the working directory or the installed packages, then call the function."""
    sys.path[0] = os.getcwd()  # instead of this file's directory
    module_name, _, name = target.partition(":")
    function: Any = importlib.import_module(module_name)
    for part in name.split("."):
        function = getattr(function, part)
    if inspect.signature(function).parameters:
        function(**_params())
    else:
        function()


def _params() -> dict[str, Any]:
    path = os.environ.get("TRAINQ_PARAMS")
    if not path:
        return {}
    with open(path, encoding="utf-8") as file:
        return json.load(file)  # type: ignore[no-any-return]


if __name__ == "__main__":
    main(sys.argv[1])
