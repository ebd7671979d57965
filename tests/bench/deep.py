"""A claim with a million waiting jobs against one with a thousand, with 100,000 ended jobs behind it, with 100,000 delayed
ones in front, and with a million in thirty shapes of request, all of which would fit."""

from __future__ import annotations

import time
from typing import Any

from tests.bench.common import Worker, fill, interleaved, opened, seconds
from trainq.domain.devices import Device
from trainq.domain.job import Outcome, Progress
from trainq.domain.offer import Offer
from trainq.domain.shape import Shape, encoded
from trainq.store import jobs

N = 100
KINDS = (("a100", 81920), ("v100", 32768), ("t4", 16384))
SHAPES = [
    encoded(Shape(gpus, kind, vram // part, cpus))
    for kind, vram in KINDS
    for gpus in (1, 2)
    for part in (1, 2)
    for cpus in (0, 4)
] + [encoded(Shape(cpus=cpus, mem_mib=1024)) for cpus in range(6)]
ROOMY = Offer(
    "h", 8, tuple(Device(f"{kind}-{n}", f"NVIDIA {kind}", vram) for kind, vram in KINDS for n in range(4)), 64, 2**20
)
ROUNDS = 9


def run(place: str) -> None:
    small, ended, large, delayed, mixed = (opened(place) for _ in range(5))
    workers = {id(queue): Worker(queue) for queue in (small, ended, large, delayed)} | {id(mixed): Worker(mixed, ROOMY)}
    fill(small, 1_000 + N * ROUNDS)
    fill(large, 1_000_000)
    fill(mixed, 1_000_000, shapes=SHAPES)
    fill(ended, 100_000)
    _end_all(ended, workers[id(ended)])
    fill(ended, 1_000 + N * ROUNDS)
    fill(delayed, 100_000, begin_at=time.time() + 1e6, priority=1)
    fill(delayed, 1_000 + N * ROUNDS)
    found = interleaved(
        ROUNDS,
        small=lambda: seconds(lambda: _claim(small, workers[id(small)])),
        large=lambda: seconds(lambda: _claim(large, workers[id(large)])),
        ended=lambda: seconds(lambda: _claim(ended, workers[id(ended)])),
        mixed=lambda: seconds(lambda: _claim(mixed, workers[id(mixed)])),
        delayed=lambda: seconds(lambda: _claim(delayed, workers[id(delayed)])),
    )
    print(f"a claim among 1,000 {found['small'] / N * 1e6:.0f} us")
    print(f"among 1,000,000 {found['large'] / found['small']:.2f} x (wanted <= 1.2)")
    print(f"among 1,000,000 in 30 shapes {found['mixed'] / found['large']:.2f} x of that (wanted <= 1.3)")
    print(f"with 100,000 ended behind it {found['ended'] / found['small']:.2f} x (wanted <= 1.2)")
    print(f"with 100,000 delayed in front {found['delayed'] / found['small']:.2f} x (wanted <= 1.2)")


def _claim(queue: Any, worker: Worker) -> None:
    for _ in range(N):
        with queue.session.writing() as tx:
            jobs.promote(tx)
            worker.claim(tx)


def _end_all(queue: Any, worker: Worker) -> None:
    while True:
        with queue.session.writing() as tx:
            for _ in range(5_000):
                claimed = worker.claim(tx)
                if claimed is None:
                    return
                jobs.settle(tx, claimed.claim, Outcome(None, 0), Progress())
