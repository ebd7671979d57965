"""Waiting for many costs what is left, not what was asked for; and it ends only when all have."""

from __future__ import annotations

import threading
import time

import pytest
from store_builders import new_job, put

from trainq.base.errors import TimedOut
from trainq.ops.queue import open_queue
from trainq.ops.wait import job_code, wait
from trainq.store import jobs

MANY = 1100


@pytest.fixture
def queue(root):
    queue = open_queue(root)
    put(queue.session, *[new_job() for _ in range(MANY)])
    yield queue
    queue.session.close()


class Waiting:
    """A wait in a thread of its own, with what it asked the database."""

    def __init__(self, root, **how):
        self.said, self.rows = [], None
        self._thread = threading.Thread(target=self._wait, args=(root, how), daemon=True)
        self._thread.start()

    def _wait(self, root, how):
        queue = open_queue(root)
        queue.session.connection().set_trace_callback(self.said.append)
        try:
            self.rows = wait(queue, [f"1-{MANY}"], timeout_s=60, **how).rows
        finally:
            queue.session.close()

    def looks(self, n, what="SELECT id, state FROM job"):
        """Wait until it has asked so often."""
        end = time.monotonic() + 30
        while sum(what in line for line in self.said) < n:
            assert time.monotonic() < end, self.said[-5:]
            time.sleep(0.01)

    def end(self):
        self._thread.join(60)
        return self.rows


def cancel(queue, *ids):
    with queue.session.writing() as tx:
        for number in ids:
            jobs.request_cancel(tx, number, "ann", grace_s=None, message=None)


def test_a_look_reads_what_is_left(queue):
    """Ids and states of what has not ended, by the batch; whole rows once, at the end."""
    waiting = Waiting(queue.paths.root)
    waiting.looks(3)
    cancel(queue, *range(1, MANY))
    waiting.looks(6)
    at = len(waiting.said)
    cancel(queue, MANY)
    assert {row["state"] for row in waiting.end()} == {"canceled"}
    assert sum("SELECT id, state FROM job" in line for line in waiting.said[at:]) == 1
    assert sum(line.startswith("SELECT j.*") for line in waiting.said[:at]) == 0
    assert sum(line.startswith("SELECT j.*") for line in waiting.said) == 3


def test_what_is_retried_meanwhile_is_waited_for(queue):
    """All have ended when the wait ends, also one that had ended before and ran again."""
    waiting = Waiting(queue.paths.root)
    waiting.looks(3)
    cancel(queue, 1)
    waiting.looks(6)
    with queue.session.writing() as tx:
        jobs.retry(tx, 1, "ann")
    cancel(queue, *range(2, MANY + 1))
    waiting.looks(3, "SELECT j.*")  # all have ended, it thought
    assert waiting.rows is None
    cancel(queue, 1)
    assert {row["state"] for row in waiting.end()} == {"canceled"}


def test_too_late_names_what_is_left(queue):
    """How many and which."""
    cancel(queue, *range(2, MANY))
    with pytest.raises(TimedOut, match=f"2 of {MANY} jobs after 0.1 s: 1, {MANY}"):
        wait(queue, [f"1-{MANY}"], timeout_s=0.1)


@pytest.mark.parametrize(
    ("state", "reason", "exit_code", "signal", "code"),
    [
        ("done", None, 0, None, 0),
        ("errored", "exit", 3, None, 3),
        ("errored", "import", 1, None, 1),
        ("errored", "oom", 3, None, 3),
        ("errored", "oom", None, 9, 137),
        ("errored", "signal", None, 15, 143),
        ("errored", "requeue_loop", 75, None, 75),
        ("errored", "spawn", 127, None, 127),
        ("errored", "spawn", None, None, 125),
        ("errored", "timeout", None, 15, 124),
        ("errored", "stalled", None, 15, 125),
        ("errored", "model", 0, None, 125),
        ("errored", "store", 0, None, 125),
        ("errored", "poison", None, 9, 125),
        ("canceled", "user", 0, None, 125),
    ],
)
def test_the_own_status_of_each_end(state, reason, exit_code, signal, code):
    """E09: what the program itself ended with, whatever its reason is called; all else is 124 or 125."""
    row = {"state": state, "reason": reason, "exit_code": exit_code, "signal": signal}
    assert job_code(row) == code
