"""`submit --from` of 100,000 lines, whole command, against a bare executemany of as many rows."""

from __future__ import annotations

import json
import os
import sqlite3
from typing import Any

from tests.bench.common import command, interleaved, opened, trainq_command

N = 100_000


def run(place: str) -> None:
    lines = os.path.join(place, "jobs.jsonl")
    with open(lines, "w", encoding="utf-8") as file:
        file.writelines(
            json.dumps({"argv": ["python", "train.py", "--fold", str(number)], "name": f"fold {number}"}) + "\n"
            for number in range(N)
        )
    found = interleaved(3, bare=lambda: _bare(place), ours=lambda: _ours(place, lines))
    print(
        f"bare executemany {N / found['bare']:.0f}/s, submit --from {N / found['ours']:.0f} jobs/s (wanted >= 40,000)"
    )
    print(f"{found['bare'] / found['ours']:.2f} x of bare")


def _ours(place: str, lines: str) -> float:
    return command([*trainq_command(), "--root", opened(place).paths.root, "-q", "submit", "--from", lines])


def _bare(place: str) -> float:
    import time

    path = os.path.join(place, f"bulk-{time.time_ns()}.sqlite")
    db: Any = sqlite3.connect(path, isolation_level=None)
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("CREATE TABLE j(id INTEGER PRIMARY KEY, state TEXT, doc TEXT)")
    start = time.perf_counter()
    db.execute("BEGIN")
    db.executemany("INSERT INTO j VALUES(?, 'pending', ?)", ((i, '{"argv":["true"]}') for i in range(N)))
    db.execute("COMMIT")
    return time.perf_counter() - start
