"""What an idle worker costs in a minute (TRAINQ_BENCH_IDLE_S), against a process that sleeps."""

from __future__ import annotations

import os
import subprocess
import sys
import time

from tests.bench.common import opened, trainq_command


def run(place: str) -> None:
    queue = opened(place)
    seconds = float(os.environ.get("TRAINQ_BENCH_IDLE_S", "60"))
    worker = subprocess.Popen([*trainq_command(), "--root", queue.paths.root, "worker"], stderr=subprocess.DEVNULL)
    sleeper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"])
    try:
        time.sleep(2)
        before = _cpu_s(worker.pid), _cpu_s(sleeper.pid)
        time.sleep(seconds)
        after = _cpu_s(worker.pid), _cpu_s(sleeper.pid)
    finally:
        for process in (worker, sleeper):
            process.terminate()
            process.wait()
    used = (after[0] - before[0]) / seconds * 100
    print(
        f"idle worker with its keepers {used:.3f} % of a core (wanted < 0.2), a sleeping python {(after[1] - before[1]) / seconds * 100:.3f} %"
    )


def _cpu_s(pid: int) -> float:
    """CPU seconds of a process and its descendants."""
    with open(f"/proc/{pid}/stat", "rb") as file:
        fields = file.read().rpartition(b")")[2].split()
    own = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    with open(f"/proc/{pid}/task/{pid}/children", "rb") as file:
        return own + sum(_cpu_s(int(child)) for child in file.read().split())
