"""The files of an attempt: what goes wrong with them is not the worker's end."""

from __future__ import annotations

import os
from types import SimpleNamespace

from trainq.artifacts import runs
from trainq.artifacts.paths import Paths
from trainq.worker.preparation import Preparation


def test_a_log_that_cannot_be_closed(tmp_path):
    """DESIGN 2.10: a network file system may refuse at the close what it could not keep; nothing is left open."""
    os.mkdir(tmp_path / "runs")
    files = Preparation(SimpleNamespace(), SimpleNamespace())
    files.run = runs.open_run(Paths(str(tmp_path)), 1, 1, split_stderr=True)
    os.close(files.run.log_fd)
    assert files.close() is False
    assert not os.path.exists(f"/proc/self/fd/{files.run.stderr_fd}")
