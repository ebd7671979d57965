"""Runs the benchmarks that are named, or all."""

from __future__ import annotations

import importlib
import shutil
import sys
import tempfile

NAMES = ("cold", "claims", "crowd", "deep", "bulk", "true", "wake", "idle", "lists", "complete")


def main() -> None:
    names = sys.argv[1:] or NAMES
    place = tempfile.mkdtemp(prefix="trainq-bench-")
    try:
        for name in names:
            print(f"== {name}", flush=True)
            importlib.import_module(f"tests.bench.{name}").run(place)
    finally:
        shutil.rmtree(place, ignore_errors=True)


main()
