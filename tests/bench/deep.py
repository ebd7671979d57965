"""A claim with a million waiting jobs against one with a thousand, and with 100,000 ended jobs behind it."""

from __future__ import annotations

from typing import Any

from tests.bench.common import Worker, fill, interleaved, opened, seconds
from trainq.domain.job import Outcome, Progress
from trainq.store import jobs

N = 100
ROUNDS = 9


def run(place: str) -> None:
    small, ended, large = opened(place), opened(place), opened(place)
    workers = {id(queue): Worker(queue) for queue in (small, ended, large)}
    fill(small, 1_000 + N * ROUNDS)
    fill(large, 1_000_000)
    fill(ended, 100_000)
    _end_all(ended, workers[id(ended)])
    fill(ended, 1_000 + N * ROUNDS)
    found = interleaved(
        ROUNDS,
        small=lambda: seconds(lambda: _claim(small, workers[id(small)])),
        large=lambda: seconds(lambda: _claim(large, workers[id(large)])),
        ended=lambda: seconds(lambda: _claim(ended, workers[id(ended)])),
    )
    print(f"a claim among 1,000 {found['small'] / N * 1e6:.0f} us")
    print(f"among 1,000,000 {found['large'] / found['small']:.2f} x (wanted <= 1.2)")
    print(f"with 100,000 ended behind it {found['ended'] / found['small']:.2f} x (wanted <= 1.2)")


def _claim(queue: Any, worker: Worker) -> None:
    for _ in range(N):
        with queue.session.writing() as tx:
            worker.claim(tx)


def _end_all(queue: Any, worker: Worker) -> None:
    while True:
        with queue.session.writing() as tx:
            for _ in range(5_000):
                claimed = worker.claim(tx)
                if claimed is None:
                    return
                jobs.settle(tx, claimed.claim, Outcome(None, 0), Progress())
