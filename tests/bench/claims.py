"""Claim + finish through the store, against bare SQLite doing two FULL commits; one process."""

from __future__ import annotations

import os
from typing import Any

from tests.bench.common import Bare, Worker, fill, interleaved, opened, seconds
from trainq.domain.job import Outcome, Progress
from trainq.store import jobs

N = 500
ROUNDS = 7


def run(place: str) -> None:
    bare = Bare(os.path.join(place, "bare.sqlite"), N * ROUNDS * 2)
    queue = opened(place)
    fill(queue, N * ROUNDS * 4)
    worker = Worker(queue)
    found = interleaved(
        ROUNDS,
        bare=lambda: seconds(lambda: [bare.claim_and_finish() for _ in range(N)]),
        two=lambda: seconds(lambda: _two_commits(queue, worker)),
        shared=lambda: seconds(lambda: _shared_commit(queue, worker)),
    )
    print(f"bare two FULL commits {N / found['bare']:.0f}/s")
    print(
        f"claim + finish, two commits {N / found['two']:.0f}/s = {found['bare'] / found['two']:.2f} x (wanted >= 0.65)"
    )
    print(
        f"finish and next claim in one {N / found['shared']:.0f}/s = {found['bare'] / found['shared']:.2f} x (wanted >= 1.0)"
    )


def _two_commits(queue: Any, worker: Worker) -> None:
    session = queue.session
    for _ in range(N):
        with session.writing() as tx:
            claimed = worker.claim(tx)
        assert claimed is not None
        with session.writing() as tx:
            jobs.settle(tx, claimed.claim, Outcome(None, 0), Progress())


def _shared_commit(queue: Any, worker: Worker) -> None:
    session = queue.session
    with session.writing() as tx:
        claimed = worker.claim(tx)
    for _ in range(N - 1):
        with session.writing() as tx:
            jobs.settle(tx, claimed.claim, Outcome(None, 0), Progress())
            claimed = worker.claim(tx)
    with session.writing() as tx:
        jobs.settle(tx, claimed.claim, Outcome(None, 0), Progress())
