"""Builders for tests of the store: a queue's database, jobs to put in, full dumps, processes that use the store."""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from trainq.domain.job import Actor, DataSet, NewJob, NewModel, Outcome, Progress, Submission
from trainq.domain.offer import Offer
from trainq.store import jobs, workers
from trainq.store.claims import Claimant
from trainq.store.create import create
from trainq.store.scheduler import Scheduler
from trainq.store.session import LocalSession
from trainq.store.shared import SharedSession

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from trainq.domain.job import Claim, Claimed
    from trainq.store.session import Transaction

ACTOR = Actor("ann", 1000, "here")
OK = Outcome(None, 0)
NOTHING = Progress()
PATIENCE_S = 60.0
HOUSE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


class Place(NamedTuple):
    """Where a queue's database and its gate lie."""

    database: str
    lock: str
    kind: type[LocalSession | SharedSession] = LocalSession

    def session(self, *, lock_wait_s: float = PATIENCE_S) -> Any:
        return self.kind(self.database, self.lock, lock_wait_s=lock_wait_s)


def place(directory: object, *, make: bool = True, kind: Any = LocalSession) -> Place:
    where = Place(os.path.join(str(directory), "queue.sqlite"), os.path.join(str(directory), "queue.lock"), kind)
    if make:
        create(where.database)
    return where


BACKENDS = {
    "local": (lambda directory: place(directory).session(), LocalSession),
    "shared": (lambda directory: place(directory, kind=SharedSession).session(), SharedSession),
}
"""How to open a session of each backend in a directory, and the type it must turn out to be."""

_uids = iter(range(10**9))


def submission(uid: str | None = None, environ: str = '{"env":{}}') -> Submission:
    return Submission(uid or f"u{os.getpid()}x{next(_uids)}", ACTOR, 0o022, environ)


def new_job(name: str = "a job", *, spec: dict[str, Any] | None = None, **more: Any) -> NewJob:
    return NewJob(more.pop("queue", "default"), name, json.dumps(spec or {}), **more)


def data_set(content: bytes = b"content", name: str = "train") -> DataSet:
    import hashlib

    return DataSet(name, hashlib.sha256(content).hexdigest(), len(content), len(content), content)


def model(key: str = "ann/wine") -> NewModel:
    return NewModel(key, "wine", "{}", "{}", None, 10, "00" * 32)


def put(session: Any, *some: NewJob, **more: Any) -> list[int]:
    """Submit in a transaction of its own; one plain job when none is given."""
    with session.writing() as tx:
        return list(jobs.submit(tx, submission(**more), some or (new_job(),)))


def join(tx: Transaction, name: str = "w", identity: str = "here/1", **more: Any) -> int:
    return workers.join(
        tx, name=name, host="here", identity=identity, pid=os.getpid(), pid_start=1, user_id=1000, version="0",
        slots=1, queues=["default"], **more,
    )  # fmt: skip


ROOMY = Offer("here", 1, (), 1024, 2**40)


def claim_next(
    tx: Transaction, worker_id: int = 1, queues: Sequence[str] = ("default",), users: Any = None, offer: Offer = ROOMY
) -> Claimed | None:
    """Claim what comes next for a worker that has all of this free."""
    who = Claimant(worker_id, f"w{worker_id}", offer.host)
    return Scheduler(queues, users, offer).look(tx).claim(who, offer)


def is_work(tx: Transaction, queues: Sequence[str] = ("default",), users: Any = None, offer: Offer = ROOMY) -> bool:
    """Whether such a worker could claim something, or promote it first."""
    return jobs.is_due(tx) or Scheduler(queues, users, offer).look(tx).is_work(offer)


def take(session: Any, worker_id: int = 1, queues: Sequence[str] = ("default",)) -> Claimed:
    """Claim in a transaction of its own; there must be something."""
    with session.writing() as tx:
        claimed = claim_next(tx, worker_id, queues)
    assert claimed is not None
    return claimed


def settle(session: Any, claim: Claim, outcome: Outcome = OK, last: Progress = NOTHING) -> Any:
    with session.writing() as tx:
        return jobs.settle(tx, claim, outcome, last)


def job_row(session: Any, job_id: int) -> dict[str, Any]:
    with session.reading() as tx:
        return dict(tx.one("SELECT * FROM job WHERE id = ?", (job_id,)))


def history(session: Any, job_id: int) -> list[dict[str, Any]]:
    with session.reading() as tx:
        return [dict(row) for row in tx.rows("SELECT * FROM history WHERE job_id = ? ORDER BY n", (job_id,))]


def dump_in(tx: Transaction) -> dict[str, list[tuple[Any, ...]]]:
    """Every row of every table, as this transaction sees them."""
    tables = [row[0] for row in tx.rows("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name")]
    found = {table: sorted((tuple(row) for row in tx.rows(f"SELECT * FROM {table}")), key=repr) for table in tables}
    found["meta"] = [row for row in found["meta"] if row[0] != "generation"]  # counts commits, whatever they change
    return found


def dump(session: Any) -> dict[str, list[tuple[Any, ...]]]:
    with session.reading() as tx:
        return dump_in(tx)


def counts_are_real(tx: Transaction) -> None:
    """The counters say what counting says."""
    kept = {(row[0], row[1]): row[2] for row in tx.rows("SELECT queue, state, n FROM counts WHERE n <> 0")}
    real = {(row[0], row[1]): row[2] for row in tx.rows("SELECT queue, state, count(*) FROM job GROUP BY 1, 2")}
    assert kept == real


def looked_at(path: str) -> contextlib.closing[sqlite3.Connection]:
    """A connection of our own to a database nobody else in this process has open."""
    return contextlib.closing(sqlite3.connect(path))


def is_sound(path: str) -> bool:
    with looked_at(path) as connection:
        return bool(connection.execute("PRAGMA integrity_check").fetchone()[0] == "ok")


# processes ---------------------------------------------------------------------------------------------------------

PRELUDE = """
import json, os, signal, sys, time
from store_builders import *
from trainq.domain.job import Claim
from trainq.base import errors
from trainq.store import jobs, lost, pruning, workers
from trainq.store.gate import Gate
place = Place(sys.argv[1] + "/queue.sqlite", sys.argv[1] + "/queue.lock")
session = place.session()
def say(*words): print(*words, flush=True)
"""


def spawn(code: str, directory: object, *argv: object, crash: str = "", **options: Any) -> subprocess.Popen[str]:
    """A process of its own that runs `code` with `place` and `session` at hand, and dies at the point `crash`."""
    path = os.pathsep.join((HOUSE, os.path.join(HOUSE, "tests")))
    return subprocess.Popen(
        [sys.executable, "-c", PRELUDE + code, str(directory), *map(str, argv)],
        env={**os.environ, "PYTHONPATH": path, "TRAINQ_CRASH": crash}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options,
    )  # fmt: skip


def finished(process: subprocess.Popen[str]) -> str:
    """What a process printed; it must have ended well."""
    out, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, err
    return out


@contextlib.contextmanager
def running(code: str, directory: object, *argv: object, **options: Any) -> Iterator[subprocess.Popen[str]]:
    """As `spawn`; ended with the block."""
    process = spawn(code, directory, *argv, **options)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def line(process: subprocess.Popen[str]) -> str:
    """The next line a process says."""
    assert process.stdout is not None
    said = process.stdout.readline()
    assert said, process.stderr.read() if process.stderr else ""
    return said.strip()


def until(what: Callable[[], Any]) -> Any:
    """Wait until `what()` is true; its value."""
    end = time.monotonic() + PATIENCE_S
    while not (value := what()):
        assert time.monotonic() < end, "it never came"
        time.sleep(0.01)
    return value
