"""What the benchmarks share: roots, sessions, and the bare SQLite that is the floor."""

from __future__ import annotations

import os
import sqlite3
import statistics
import subprocess
import sys
import time
from itertools import cycle
from typing import TYPE_CHECKING, Any

from trainq.domain.job import Actor, NewJob, Submission
from trainq.domain.offer import Offer, free
from trainq.ops.init import init
from trainq.ops.queue import open_queue
from trainq.store import jobs, workers
from trainq.store.claims import Claimant
from trainq.store.scheduler import Scheduler

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

ME = Actor("bench", os.getuid(), "bench")
ONE = Offer("h", 1)
SPEC = '{"cwd":"/tmp","argv":["true"]}'
_made = 0


def new_root(place: str) -> str:
    """A fresh queue; never removed before the very end."""
    global _made  # noqa: PLW0603
    _made += 1
    root = os.path.join(place, f"q{_made}")
    init(root)
    return root


def fill(queue: Any, count: int, spec: str = SPEC, shapes: Sequence[str] = ("",), **more: Any) -> None:
    """That many pending jobs, by the store's own submit; their requests have these shapes in turn."""
    for start in range(0, count, 100_000):
        n = min(100_000, count - start)
        with queue.session.writing() as tx:
            jobs.submit(
                tx,
                Submission(f"{time.time_ns()}", ME, 0o22, '{"env":{},"dropped":[]}'),
                [
                    NewJob("default", "true", spec, shape=shape, **more)
                    for _, shape in zip(range(n), cycle(shapes), strict=False)
                ],
            )


def join(queue: Any, name: str = "w") -> int:
    with queue.session.writing() as tx:
        return workers.join(
            tx, name=name, host="h", identity="i", pid=os.getpid(), pid_start=0, user_id=0, version="0", slots=1, queues=["default"]
        )  # fmt: skip


class Worker:
    """One that claims, with its row and its scheduler, as the worker's loop has them."""

    def __init__(self, queue: Any, offer: Offer = ONE) -> None:
        self.who = Claimant(join(queue), "w", "h")
        self.id, self.offer = self.who.id, offer
        self.scheduler = Scheduler(("default",), None, offer)

    def claim(self, tx: Any) -> Any:
        return self.scheduler.look(tx).claim(self.who, free(self.offer, ()))


def opened(place: str) -> Any:
    return open_queue(new_root(place))


class Bare:
    """The floor: a table, a partial index, and two FULL commits for a claim and a finish."""

    def __init__(self, path: str, rows: int) -> None:
        fresh = not os.path.exists(path)
        self.db = sqlite3.connect(path, isolation_level=None, timeout=30)
        self.db.execute("PRAGMA journal_mode = WAL")
        self.db.execute("PRAGMA synchronous = FULL")
        if fresh:
            self.db.execute("CREATE TABLE j(id INTEGER PRIMARY KEY, state TEXT, worker TEXT, at REAL)")
            self.db.execute("CREATE INDEX ready ON j(id) WHERE state = 'pending'")
            self.db.execute("BEGIN")
            self.db.executemany("INSERT INTO j VALUES(?, 'pending', NULL, NULL)", ((i,) for i in range(rows)))
            self.db.execute("COMMIT")

    def claim_and_finish(self) -> bool:
        db = self.db
        db.execute("BEGIN IMMEDIATE")
        rows = db.execute(
            "UPDATE j SET state = 'running', worker = 'w' WHERE id = (SELECT id FROM j WHERE state = 'pending' ORDER BY id LIMIT 1)"
            " RETURNING id"
        ).fetchall()
        db.execute("COMMIT")
        if not rows:
            return False
        db.execute("BEGIN IMMEDIATE")
        db.execute("UPDATE j SET state = 'done', at = 1.0 WHERE id = ?", rows[0])
        db.execute("COMMIT")
        return True


def interleaved(rounds: int, **measured: Callable[[], float]) -> dict[str, float]:
    """Run each in turn, `rounds` times; the median of what each answers."""
    found: dict[str, list[float]] = {name: [] for name in measured}
    for _ in range(rounds):
        for name, measure in measured.items():
            found[name].append(measure())
    return {name: statistics.median(values) for name, values in found.items()}


def seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def command(argv: list[str], env: dict[str, str] | None = None) -> float:
    """Wall seconds of a whole process, its output into a pipe."""
    start = time.perf_counter()
    done = subprocess.run(argv, capture_output=True, env=env, check=False)
    took = time.perf_counter() - start
    if done.returncode:
        raise SystemExit(f"{argv} failed: {done.stderr.decode()}")
    return took


def trainq_command() -> list[str]:
    """The installed command if this interpreter has one beside it, else the module."""
    script = os.path.join(os.path.dirname(sys.executable), "trainq")
    return [script] if os.path.exists(script) else [sys.executable, "-m", "trainq"]
