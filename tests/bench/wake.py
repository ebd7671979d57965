"""From the commit of a submit to the first clock that the job's process reads, on an idle local worker."""

from __future__ import annotations

import os
import statistics
import subprocess
import time

from tests.bench.common import opened, trainq_command
from trainq.domain.request import Request
from trainq.ops.submit import submit

ROUNDS = 30


def run(place: str) -> None:
    queue = opened(place)
    out = os.path.join(place, "first-clock")
    worker = subprocess.Popen([*trainq_command(), "--root", queue.paths.root, "worker"], stderr=subprocess.DEVNULL)
    try:
        took = [_one(queue, out) for _ in range(ROUNDS)][3:]
    finally:
        worker.terminate()
        worker.wait()
    plain = statistics.median(_plain(out) for _ in range(ROUNDS))
    median = statistics.median(took)
    print(f"commit to first clock {median * 1e3:.1f} ms, at most {max(took) * 1e3:.1f} ms (wanted <= 8)")
    print(f"{median / plain:.1f} x of a plain Popen of the same ({plain * 1e3:.1f} ms)")


def _line(out: str) -> tuple[str, ...]:
    return ("/bin/sh", "-c", f"date +%s.%N > {out}.new; mv {out}.new {out}")


def _one(queue: object, out: str) -> float:
    time.sleep(0.2)  # let the worker fall idle: this is what is measured
    if os.path.exists(out):
        os.unlink(out)
    submit(queue, [Request({}, argv=_line(out))])  # type: ignore[arg-type]
    committed = time.time()
    while not os.path.exists(out):
        time.sleep(0.0005)
    with open(out, encoding="ascii") as file:
        return float(file.read()) - committed


def _plain(out: str) -> float:
    start = time.time()
    subprocess.run(_line(out), check=True)
    with open(out, encoding="ascii") as file:
        return float(file.read()) - start
