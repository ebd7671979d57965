"""What lies under the root and is needed still, though no row names it: the same answer for the janitor and the check.

What a running attempt has made is its own whatever its age: it may only now be about to name it, since its commit failed
or its storage hangs. So is what a store failure has kept, whatever became of the job afterwards.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from trainq.artifacts import manifest
from trainq.base import files, trees
from trainq.base.errors import Damaged
from trainq.domain.states import ENDED
from trainq.store import models as model_rows
from trainq.store import reads

if TYPE_CHECKING:
    from trainq.artifacts.models import Leftover
    from trainq.artifacts.paths import Paths
    from trainq.store.session import Transaction

_MARGIN_S = 60.0
"""For the end of a line that has come to its limit, and a worker that is slow to begin it."""


def is_before(path: str, before: float) -> bool:
    """Whether it was made or moved before then; what has gone meanwhile was not."""
    found = files.status(path)
    return found is not None and found.st_ctime <= before


def unfinished(paths: Paths, before: float) -> list[str]:
    """The files that a crash left under a temporary name before then, where nothing else looks for them."""
    return [
        path
        for directory in (paths.root, paths.specs, paths.snapshots)
        for name, kind in trees.listed(directory)
        if kind == "file" and files.is_temporary(name) and is_before(path := os.path.join(directory, name), before)
    ]


def is_orphan(tx: Transaction, paths: Paths, key: str, version: int) -> bool:
    """Whether no row names this version, and no running attempt has placed it. Raises the errors of sick storage."""
    if model_rows.is_named(tx, key, version):
        return False
    maker = _maker(paths.version(key, version))
    return maker is None or not reads.is_running(tx, *maker)


def is_made(tx: Transaction, left: Leftover) -> bool:
    """Whether a running attempt makes it, or made it and may publish it still."""
    maker = _maker_of(left)
    return maker is not None and reads.is_running(tx, *maker)


def is_kept(tx: Transaction, left: Leftover) -> bool:
    """Whether it is a result that could not be stored: by the end of its attempt, not by what its job is now."""
    maker = _maker_of(left)
    end = None if maker is None else reads.end_of(tx, *maker)
    return end is not None and end["reason"] == "store"


def is_in_use(tx: Transaction, job: int, attempt: int, hook_limit_s: float) -> bool:
    """Whether an attempt runs, or has ended so lately that the line after it may run still."""
    if reads.is_running(tx, job, attempt):
        return True
    end = reads.end_of(tx, job, attempt)
    return end is not None and end["state"] in ENDED and end["at"] > tx.now - hook_limit_s - _MARGIN_S


def _maker_of(left: Leftover) -> tuple[int, int] | None:
    return _maker(left.path) if left.job is None or left.attempt is None else (left.job, left.attempt)


def _maker(directory: str) -> tuple[int, int] | None:
    """The job and attempt that a manifest names; None when there is none, or no whole one."""
    try:
        known = manifest.read_manifest(directory)
    except Damaged:
        return None
    job, attempt = known.get("job"), known.get("attempt")
    return (job, attempt) if isinstance(job, int) and isinstance(attempt, int) else None
