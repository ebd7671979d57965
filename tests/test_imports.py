"""The house: imports point down, drivers and terminals stay in their rooms, short commands load little."""

from __future__ import annotations

import ast
import os
import subprocess
import sys

import pytest
from conftest import REPOSITORY

PACKAGE = os.path.join(REPOSITORY, "trainq")
RANK = {
    "base": 0, "job": 0, "domain": 1, "store": 2, "artifacts": 2, "executors": 2, "wake": 2, "ops": 3, "worker": 4,
    "cli": 5,
}  # fmt: skip
SIBLINGS = {"store", "artifacts", "executors", "wake"}
FREE = {"version", "trainers", "guest", "data"}
"""Rooms that anybody may look into, or that are no part of the tower."""


def modules():
    """(name of the room, path) of every module."""
    for directory, _, names in os.walk(PACKAGE):
        for name in names:
            if name.endswith(".py"):
                path = os.path.join(directory, name)
                room = os.path.relpath(path, PACKAGE).split(os.sep)[0].removesuffix(".py")
                yield room, path


def imports(path):
    """Every module that the file names in an import, also inside functions."""
    with open(path, encoding="utf-8") as file:
        tree = ast.parse(file.read())
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for name in node.names:
                yield name.name
        elif isinstance(node, ast.ImportFrom) and not node.level:
            for name in node.names:
                yield f"{node.module}.{name.name}"


def test_imports_point_down():
    wrong = []
    for room, path in modules():
        if room in ("__init__", "__main__", *FREE):
            continue
        for name in imports(path):
            parts = name.split(".")
            if (
                parts[0] != "trainq"
                or len(parts) < 2
                or parts[1] == room
                or parts[1] in FREE
                or parts[1] == "__version__"
            ):
                continue
            target = parts[1]
            ours, theirs = RANK[room], RANK[target]
            if theirs > ours or (theirs == ours and {room, target} <= SIBLINGS) or (theirs == ours and room == "job"):
                wrong.append(f"{os.path.relpath(path, PACKAGE)} imports {name}")
    assert not wrong


@pytest.mark.parametrize(
    ("tools", "rooms"),
    [
        (("peewee", "sqlite3", "psycopg"), ("store",)),
        (("typer", "rich", "click"), ("cli",)),
        (("watchdog",), ("wake",)),
    ],
)
def test_each_tool_has_one_room(tools, rooms):
    wrong = [
        f"{os.path.relpath(path, PACKAGE)} imports {name}"
        for room, path in modules()
        for name in imports(path)
        if name.split(".")[0] in tools and room not in rooms
    ]
    assert not wrong


def test_the_guest_room_is_standard_library_only():
    wrong = [
        f"{os.path.relpath(path, PACKAGE)} imports {name}"
        for room, path in modules()
        if room in ("job", "guest")
        for name in imports(path)
        if name.split(".")[0] not in sys.stdlib_module_names
        and name.split(".")[:2] not in (["trainq", "job"], ["trainq", "version"])
    ]
    assert not wrong


def loaded(run_trainq, *args):
    """The modules that a command has loaded when it ends."""
    code = (
        "import os, sys\n"
        "leave = os._exit\n"
        "def tell(code):\n"
        "    sys.stderr.write('\\n'.join(sys.modules)); sys.stderr.flush(); leave(code)\n"
        "os._exit = tell\n"
        "sys.argv[0] = 'trainq'\n"
        "from trainq.cli.main import main\n"
        "main()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *args], capture_output=True, text=True, env=run_trainq.env, cwd=run_trainq.cwd
    )
    assert done.returncode == 0, done
    return set(done.stderr.split("\n"))


HEAVY = {
    "rich", "pydantic", "watchdog", "zstandard", "psutil", "filelock", "asyncio", "importlib.metadata", "psycopg",
    "dataclasses", "tomllib", "multiprocessing", "concurrent.futures", "numpy", "email", "http",
}  # fmt: skip
OTHERS = {
    f"trainq.{name}"
    for name in ("worker", "executors", "ops.janitor", "ops.doctor", "ops.models", "cli.columns", "artifacts.datasets")
}


@pytest.mark.parametrize(
    ("args", "spared"),
    [
        (("submit", "--", "true"), HEAVY | OTHERS | {"trainq.cli.status", "trainq.ops.query"}),
        (("status",), (HEAVY | OTHERS | {"trainq.cli.submit", "trainq.ops.submit"}) - {"trainq.cli.columns"}),
        (("status", "--json"), HEAVY | OTHERS | {"trainq.cli.submit", "trainq.ops.submit", "trainq.cli.card"}),
        (("report", "--progress", "0.5"), HEAVY | {"peewee", "sqlite3", "trainq.store", "trainq.worker"}),
        (
            ("--help",),
            HEAVY | {"peewee", "sqlite3", *(f"trainq.cli.{name}" for name in ("status", "submit", "worker"))},
        ),
    ],
)
def test_a_short_command_loads_what_it_needs(run_trainq, args, spared):
    """The start of a short command is its whole cost: which modules a plain submit and status may load is held here."""
    run_trainq.ok("submit", "--", "true")
    found = loaded(run_trainq, *args)
    assert not sorted(found & spared)
    assert "trainq.cli.main" in found


def test_other_commands_do_load_them(run_trainq):
    """The test above can fail: a command that needs them is seen to load them."""
    assert {"filelock", "trainq.ops.janitor"} <= loaded(run_trainq, "prune")
