"""A reader that stalls does not stop the worker."""

from __future__ import annotations

import fcntl
import os
import subprocess

from e2e.kit import COMMAND, until

F_SETPIPE_SZ = 1031


def test_nobody_reads_the_workers_words(tq):
    """DESIGN 2.10: a full pipe on stderr keeps the worker neither from its jobs nor from its beats."""
    for _ in range(120):
        tq.submit("--name", "n" * 60, "--", "true")
    out, into = os.pipe()
    fcntl.fcntl(into, F_SETPIPE_SZ, 4096)
    worker = subprocess.Popen(
        [*COMMAND, "--root", tq.root, "worker", "--until", "idle"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
        stderr=into, env=tq.environment(None), cwd=tq.dir,
    )  # fmt: skip
    os.close(into)
    try:
        until(lambda: worker.poll() is not None, 60)
        assert worker.returncode == 0
    finally:
        worker.kill()
        worker.wait()
        os.close(out)
    assert {job["state"] for job in tq.ok("status", "--all", "--limit", "200", "--json").json["items"]} == {"done"}
