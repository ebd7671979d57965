"""Trainers to start from: short scripts that read `trainq.job` and write a scikit-learn model.

Each runs as a job and by hand (`python -m trainq.trainers.wine`); copy one and change it. `types.toml` is how
they are declared in a queue's `trainq.toml`. Nothing outside this package imports scikit-learn.
"""

from __future__ import annotations

import json
import os

INTENTS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "intents.json")
"""The bundled training set of `intents`."""


def types_toml(python: str = "python") -> str:
    """The `[types]` of the trainers for a trainq.toml, run by an interpreter that has scikit-learn."""
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "types.toml")
    with open(path, encoding="utf-8") as file:
        return file.read().replace('run = ["python"', f"run = [{json.dumps(python, ensure_ascii=False)}")
