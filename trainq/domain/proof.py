"""Whose a job is, on a group's queue: a digest of all that is executed and accounted of it, in a file of its owner's.

Every member can write every row. What nobody can is make a file that belongs to somebody else, so each submit call leaves
one, with a digest for each of its jobs. What was changed in the rows since, or taken from another job, has another digest.
Pure; the file is read and written by artifacts/proofs.py.
"""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from trainq.domain.job import Claimed, DataSet, NewJob, Submission

_GROWN = ("mem", "vram")
"""What an attempt that ran out of memory changes in the document (`grow`); it is recorded and not executed."""

_encode = json.JSONEncoder(separators=(",", ":")).encode


def of_submission(submission: Submission, jobs: Iterable[NewJob]) -> Iterator[str]:
    """The digest of each job of a call, in their order."""
    actor, environ = submission.actor, _digest(json.loads(submission.environ))
    for place, job in enumerate(jobs):
        row = {**job._asdict(), "user": actor.user, "user_id": actor.user_id}
        yield _of(f"{submission.uid}.{place}", row, json.loads(job.spec), environ, submission.umask, job.data)


def of_claimed(claimed: Claimed) -> str:
    """The digest of a job as its rows are now."""
    environ = _digest(claimed.environ)
    return _of(claimed.uid, claimed.row, claimed.spec, environ, claimed.umask, claimed.data)


def _of(
    uid: str, row: Mapping[str, Any], spec: Mapping[str, Any], environ: str, umask: int, data: Iterable[DataSet]
) -> str:  # fmt: skip
    facts = [
        row[name] for name in ("user", "user_id", "queue", "type", "name", "model_key", "fingerprint", "max_attempts")
    ]
    limits = [None if row[name] is None else float(row[name]) for name in ("time_s", "grace_s")]
    executed = {name: value for name, value in spec.items() if name not in _GROWN}
    sets = sorted((item.name, item.sha256, item.size) for item in data)
    return _digest([uid, *facts, *limits, umask, environ, executed, sets])


def _digest(value: Any) -> str:
    return hashlib.sha256(_encode(value).encode()).hexdigest()
