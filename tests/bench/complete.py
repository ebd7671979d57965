"""What the shell waits for when a word is completed, in a queue of a million jobs, against the imports of typer and
peewee alone."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from tests.bench.common import command, fill, interleaved, opened, trainq_command

if TYPE_CHECKING:
    from collections.abc import Callable

LINES = {
    "command": "trainq sta",
    "option": "trainq submit --gp",
    "id": "trainq cancel ",
    "name": "trainq explain @",
    "queue": "trainq submit --queue ",
}


def run(place: str) -> None:
    queue = opened(place)
    fill(queue, 1_000_000)
    found = interleaved(
        25,
        imports=lambda: command([sys.executable, "-c", "import typer, peewee"]),
        **{name: _asked(queue.paths.root, line) for name, line in LINES.items()},
    )
    for name in LINES:
        print(
            f"completing a {name}: {found[name] * 1e3:.0f} ms (wanted < 200) = {found[name] / found['imports']:.2f} x of the imports"
        )


def _asked(root: str, line: str) -> Callable[[], float]:
    env = {"TRAINQ_ROOT": root, "_TRAINQ_COMPLETE": "bash", "COMP_LINE": line, "COMP_POINT": str(len(line))}
    return lambda: command(trainq_command(), {**os.environ, **env})
