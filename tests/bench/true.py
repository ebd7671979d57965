"""500 jobs of `true` from one bulk submit on 2 slots, against a bare loop of Popen and wait."""

from __future__ import annotations

import os
import re
import subprocess
import time

from tests.bench.common import fill, interleaved, opened, trainq_command

N = 500


def run(place: str) -> None:
    found = interleaved(5, bare=_bare, ours=lambda: _ours(place))
    print(
        f"Popen loop {found['bare'] / N * 1e3:.2f} ms each, trainq {found['ours'] / N * 1e3:.2f} ms each (wanted <= 2.5)"
    )
    print(f"{found['ours'] / found['bare']:.1f} x of the loop")


def _bare() -> float:
    start = time.perf_counter()
    for _ in range(N):
        subprocess.Popen(["true"]).wait()
    return time.perf_counter() - start


def _ours(place: str) -> float:
    """From the first claim to the last end, as the history tells."""
    queue = opened(place)
    fill(queue, N, '{"cwd":"/","argv":["true"]}')
    argv = [*trainq_command(), "--root", queue.paths.root, "worker", "--slots", "2", "--until", "idle"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, env={**os.environ, "NO_COLOR": "1"})
    if done.returncode:
        raise SystemExit(done.stderr)
    with queue.session.reading() as tx:
        states = dict(tx.rows("SELECT state, count(*) FROM job GROUP BY state"))
        first, last = tx.rows("SELECT min(claimed_at), max(ended_at) FROM job")[0]
    assert states == {"done": N}, re.sub(r"\s+", " ", str(states))
    return float(last - first)
