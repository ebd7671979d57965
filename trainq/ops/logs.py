"""What a job wrote: which file it is, and following it to the job's end.

The log is a file that the job itself writes; here it is only found and read. Following goes on over retries and ends
by itself when the job has ended and all of it is read.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple

from trainq.artifacts import logs
from trainq.base import files
from trainq.base.errors import NotFound, NotPossible, Usage
from trainq.domain.array import ref_of
from trainq.domain.states import ENDED
from trainq.ops.select import EVERYTHING, select
from trainq.store import reads

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from trainq.ops.queue import Queue
    from trainq.store.reads import Row


class Log(NamedTuple):
    """One attempt's log."""

    job_id: int
    attempt: int
    path: str


def find(queue: Queue, words: Sequence[str], *, attempt: int | None = None, stderr: bool = False) -> Log:
    """The log of the job that is meant, of its last attempt unless told otherwise; pruned jobs too.

    Raises NotFound (no such job, attempt or file any more), NotPossible when it never ran, Usage for several jobs.
    """
    row = _one(queue, words)
    if not row["attempt"]:
        raise NotPossible(f"job {row['id']} is {row['state']} and never ran", hint=f"trainq status {row['id']}")
    number = row["attempt"] if attempt is None else attempt
    if not 1 <= number <= row["attempt"]:
        raise NotFound(f"job {row['id']} has no attempt {number}; its last is {row['attempt']}")
    path = path_of(queue, row["id"], number, stderr=stderr)
    if row["state"] != "running" and not files.is_there(path):
        _require_run(queue, row["id"], number)
        raise _gone(queue, row, number, stderr=stderr)
    return Log(row["id"], number, path)


def path_of(queue: Queue, job_id: int, attempt: int, *, stderr: bool = False) -> str:
    """Where an attempt's log lies."""
    return queue.paths.stderr(job_id, attempt) if stderr else queue.paths.log(job_id, attempt)


def start_of(log: Log, lines: int | None) -> int:
    """The offset at which the last `lines` lines begin; 0 for all of it."""
    return 0 if lines is None else logs.start_of_tail(log.path, lines)


def read(log: Log, start: int = 0) -> Iterator[bytes]:
    """What is in the log now, in pieces."""
    return logs.follow(log.path, start, lambda: True, lambda: None)


def follow(queue: Queue, log: Log, start: int = 0, *, stderr: bool = False, one: bool = False) -> Iterator[bytes]:
    """What is in the log and what comes, until the job has ended; with `one`, until this attempt has.

    When the job is started again, its next attempt's log comes after that of the one before.
    """
    news = _News(queue, log.job_id)
    while True:
        number = log.attempt
        yield from logs.follow(log.path, start, lambda: news.is_over(number), lambda: time.sleep(queue.session.look_s))  # noqa: B023
        row = news.row
        while not one and row["state"] not in ENDED and row["attempt"] <= number:
            time.sleep(queue.session.look_s)
            row = news.look()
        if one or row["attempt"] <= number:
            return
        log = Log(log.job_id, number + 1, path_of(queue, log.job_id, number + 1, stderr=stderr))
        start = 0


def await_start(queue: Queue, words: Sequence[str]) -> None:
    """Wait until the job runs, or has ended without."""
    news = _News(queue, _one(queue, words)["id"])
    while not news.row["attempt"] and news.row["state"] not in ENDED:
        time.sleep(queue.session.look_s)
        news.look()


def job_of(queue: Queue, words: Sequence[str]) -> int:
    """The job that is meant. Raises NotFound, Usage for several."""
    return int(_one(queue, words)["id"])


def has_run(queue: Queue, words: Sequence[str]) -> bool:
    """Whether the job that is meant was ever started."""
    return bool(_one(queue, words)["attempt"])


class _News:
    """The job's row, read again only when somebody has committed."""

    def __init__(self, queue: Queue, job_id: int) -> None:
        self._queue = queue
        self._job_id = job_id
        self._changes: int | None = None
        self.row: Row = {}
        self.look()

    def look(self) -> Row:
        changes = self._queue.session.changes()
        if changes != self._changes:
            self.row = _row(self._queue, self._job_id)
            self._changes = changes
        return self.row

    def is_over(self, attempt: int) -> bool:
        """Whether nothing more will be written by this attempt."""
        row = self.look()
        return bool(row["attempt"] > attempt or row["state"] != "running")


def _one(queue: Queue, words: Sequence[str]) -> Row:
    if not words:
        raise Usage("of which job?", hint="trainq logs ID")
    with queue.session.reading() as tx:
        found = select(tx, words, EVERYTHING, queue.actor.user_id, past=True)
    if found.array is not None:
        with queue.session.reading() as tx:
            rows = reads.jobs(tx, found.ids[:1]) or reads.past(tx, found.ids[:1])
        raise Usage(f"{found.array} is an array, and a log is one task's", hint=f"trainq logs '{ref_of(rows[0])}'")
    if len(found.ids) != 1 or found.unknown:
        raise Usage(f"one job's log at a time, and {len(found.ids)} are named", hint="trainq logs ID")
    return _row(queue, found.ids[0])


def _row(queue: Queue, job_id: int) -> Row:
    with queue.session.reading() as tx:
        rows = reads.jobs(tx, [job_id]) or reads.past(tx, [job_id])
    if not rows:
        raise NotFound(f"no such job: {job_id}; it was deleted while we looked")
    return rows[0]


def _require_run(queue: Queue, job_id: int, attempt: int) -> None:
    """Raises NotPossible, with the reason, when nothing was started in this attempt, so far as that is remembered."""
    with queue.session.reading() as tx:
        ended = [row for row in reads.attempts(tx, [job_id]).get(job_id, []) if row["attempt"] == attempt]
    # Of one whose worker was lost nobody knows: that it had started may not have been written yet.
    if ended and ended[0]["started_at"] is None and ended[0]["cause"] != "zombie":
        why = (ended[0]["error"] or ended[0]["message"] or ended[0]["reason"] or "").strip().partition("\n")[0]
        raise NotPossible(
            f"attempt {attempt} of job {job_id} never ran" + (f": {why}" if why else ""),
            hint=f"trainq history {job_id}",
        )


def _gone(queue: Queue, row: Row, attempt: int, *, stderr: bool) -> NotFound:
    job_id = row["id"]
    if stderr and files.is_there(queue.paths.log(job_id, attempt)):
        return NotFound(f"job {job_id} has no stderr of its own", hint=f"trainq logs {job_id}")
    return NotFound(f"the log of job {job_id}, attempt {attempt}, is deleted", hint=f"trainq history {job_id}")
