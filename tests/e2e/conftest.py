"""A fresh queue for each end-to-end test."""

from __future__ import annotations

import pytest
from e2e.kit import Tq


@pytest.fixture
def tq(tmp_path):
    """The command on a fresh root that has the types ok, slow and bad."""
    command = Tq(tmp_path)
    command.ok("init", command.root, root=None)
    command.types()
    return command
