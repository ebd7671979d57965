"""Many processes at one queue: throughput of 8 against the floor with 8; shares and the longest wait of 16."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from typing import Any

from tests.bench.common import Bare, Worker, fill, opened
from trainq.domain.job import Outcome, Progress
from trainq.ops.queue import open_queue
from trainq.store import jobs

SECONDS = 3.0


def run(place: str) -> None:
    ratios = []
    for _ in range(3):
        bare, _ = _crowd(place, "bare", 8)
        ours, _ = _crowd(place, "shared", 8)
        ratios.append(ours / bare)
        print(f"8 processes: floor {bare:.0f}/s, trainq {ours:.0f}/s = {ours / bare:.2f} x")
    print(f"median {sorted(ratios)[1]:.2f} x (wanted >= 0.6)")
    for _ in range(3):
        _, found = _crowd(place, "shared", 16)
        shares = sorted(one["n"] for one in found)
        waits = max(one["wait"] for one in found)
        print(f"16 processes: shares {shares[0]} to {shares[-1]}, longest wait {waits * 1e3:.0f} ms (wanted < 500)")


def _crowd(place: str, kind: str, processes: int) -> tuple[float, list[dict[str, Any]]]:
    queue = opened(place)
    target = queue.paths.root
    rows = 60_000
    if kind == "bare":
        target = os.path.join(place, f"floor-{time.time_ns()}.sqlite")
        Bare(target, rows).db.close()
    else:
        fill(queue, rows)
    start = time.time() + 1.0
    argv = [sys.executable, "-m", "tests.bench.crowd", kind, target, str(start)]
    running = [subprocess.Popen(argv, stdout=subprocess.PIPE) for _ in range(processes)]
    found = [json.loads(one.communicate()[0]) for one in running]
    return sum(one["n"] for one in found) / SECONDS, found


def _work(kind: str, target: str, start: float) -> None:
    turn = _bare_turn(target) if kind == "bare" else _our_turn(target)
    time.sleep(max(0.0, start - time.time()))
    end = time.perf_counter() + SECONDS
    n, wait = 0, 0.0
    while time.perf_counter() < end:
        before = time.perf_counter()
        turn()
        wait = max(wait, time.perf_counter() - before)
        n += 1
    print(json.dumps({"n": n, "wait": wait}))


def _bare_turn(target: str) -> Any:
    return Bare(target, 0).claim_and_finish


def _our_turn(root: str) -> Any:
    queue = open_queue(root)
    worker = Worker(queue)
    held: list[Any] = []

    def turn() -> None:
        with queue.session.writing() as tx:
            if held:
                jobs.settle(tx, held.pop(), Outcome(None, 0), Progress())
            claimed = worker.claim(tx)
            if claimed is not None:
                held.append(claimed.claim)

    return turn


if __name__ == "__main__":
    _work(sys.argv[1], sys.argv[2], float(sys.argv[3]))
