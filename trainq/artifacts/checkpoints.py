"""The checkpoints of a job from the worker's side: which to go on from, and what to throw away.

The job writes them (trainq/job/checkpoint_files.py has the layout) and the store knows which count: (number, digest of
the manifest) of each that was committed under a claim. What must stay true: an attempt goes on from a committed one
whose every byte is as it was written, or anew because none was ever committed, never anew because none can be read;
what an attempt that lost its claim left behind is not used by any other.

Who calls what: the worker, after it has claimed a job and before the job starts, first `remove_uncommitted`, then
`choose`. Both read the disk (`choose` hashes a whole checkpoint): not inside a transaction.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple

from trainq.base import crash, files, oserrors, trees
from trainq.base.errors import TrainqError
from trainq.job import checkpoint_files

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from trainq.artifacts.paths import Paths

CRASHED_LIMIT = 2
"""So many attempts may fail after going on from a checkpoint, without making a newer one, before an older is tried."""


class Candidate(NamedTuple):
    """A checkpoint that stands in a job's directory, committed or not; nothing but its manifest was looked at."""

    number: int
    path: str
    digest: str
    attempt: int
    step: int | float | None
    epoch: int | float | None
    size: int | None
    is_own: bool
    """False for a copy that a user made of another job's."""


class Choice(NamedTuple):
    """What the next attempt goes on from."""

    path: str | None
    number: int | None
    skipped: list[tuple[int, str]]
    """Newer ones that were passed over, and why: for the log and history."""
    broken: bool
    """There are committed ones and none can be used: the attempt ends `errored checkpoint`."""


def candidates(paths: Paths, job: int) -> list[Candidate]:
    """The checkpoints of a job on the disk, newest first."""
    directory = paths.checkpoints(job)
    with oserrors.reporting(directory):
        paths_of = [(number, os.path.join(directory, f"{number:d}")) for number in reversed(_numbers(directory))]
    return [found for number, path in paths_of if (found := _candidate(number, path, job)) is not None]


def _candidate(number: int, path: str, job: int) -> Candidate | None:
    try:
        known, digest = checkpoint_files.read(path)
    except (checkpoint_files.Broken, OSError):
        return None  # not known to be one of ours, so nobody's to delete
    if known["number"] != number:
        return None
    own = known.get("job_id") == job
    return Candidate(
        number, path, digest, known["attempt"], known.get("step"), known.get("epoch"), known.get("size"), own
    )


def _numbers(directory: str) -> list[int]:
    try:
        return checkpoint_files.numbers(directory)
    except FileNotFoundError:
        return []


def verify(path: str, digest: str | None = None) -> list[str]:
    """What is wrong with a checkpoint, a line each, all of it read; with `digest`, of exactly this manifest.

    Raises the errors of sick storage when it cannot be looked at.
    """
    with oserrors.reporting(path):
        return checkpoint_files.problems(path, digest)


def choose(
    paths: Paths, job: int, committed: Iterable[tuple[int, str]], suspects: Mapping[int, int] | None = None
) -> Choice:
    """The newest committed checkpoint that is as it was written; `suspects` counts the crashed restores of each.

    One that is torn is passed over, and so is one with two crashed restores as long as another is whole; if all
    whole ones have crashed, the one that did least often is taken again (retries are what ends this). Nothing committed,
    or nothing of it left on the disk at all: a fresh start, the latter with its reasons. Raises the errors of sick
    storage if none is whole and one could not be looked at: that is no verdict on the job.
    """
    crashed = suspects or {}
    skipped: list[tuple[int, str]] = []
    whole: list[tuple[int, str]] = []
    sick: TrainqError | None = None
    is_left = False
    for number, digest in sorted(committed, reverse=True):
        path = os.path.join(paths.checkpoints(job), f"{number:d}")
        if checkpoint_files.is_gone(path):
            skipped.append((number, "it is gone"))
            continue
        is_left = True
        try:
            problems = verify(path, digest)
        except TrainqError as error:
            sick, problems = error, [error.message]
        if problems:
            skipped.append((number, problems[0]))
        elif crashed.get(number, 0) < CRASHED_LIMIT:
            return Choice(path, number, skipped, broken=False)
        else:
            whole.append((number, path))
            skipped.append((number, f"{crashed[number]} attempts that went on from it failed"))
    if whole:
        number, path = min(whole, key=lambda found: (crashed[found[0]], -found[0]))
        return Choice(path, number, [each for each in skipped if each[0] != number], broken=False)
    if sick is not None:
        raise sick
    return Choice(None, None, skipped, broken=is_left)


def remove_uncommitted(paths: Paths, job: int, committed: Iterable[tuple[int, str]]) -> list[str]:
    """Delete what earlier attempts left that does not count, and give back its names.

    That is: what was never finished, and finished checkpoints of this job that are not in `committed`. Only while no
    process of the job runs and under its claim. What the user has put there is not touched.
    """
    directory = paths.checkpoints(job)
    counts = set(committed)
    with oserrors.reporting(directory):
        try:
            found = trees.listed(directory)
        except FileNotFoundError:
            return []
        removed = [name for name, _kind in found if files.is_temporary(name)]
        for name in removed:
            trees.remove_tree(os.path.join(directory, name))
        for candidate in candidates(paths, job):
            if (candidate.number, candidate.digest) not in counts and candidate.is_own:
                _remove(directory, candidate.path)
                removed.append(f"{candidate.number:d}")
    return removed


def _remove(directory: str, path: str) -> None:
    """The name goes first: no half of a checkpoint ever has a number."""
    aside = os.path.join(directory, files.temporary_name())
    files.replace(path, aside)
    crash.point("checkpoint.aside")
    trees.remove_tree(aside)


def has_own_files(paths: Paths, job: int) -> bool:
    """Whether the job keeps files of its own making there, which trainq knows nothing of but that they exist."""
    directory = paths.checkpoints(job)
    ours = {f"{candidate.number:d}" for candidate in candidates(paths, job)}
    with oserrors.reporting(directory):
        try:
            found = trees.listed(directory)
        except FileNotFoundError:
            return False
    return any(name not in ours and not checkpoint_files.is_bookkeeping(name) for name, _kind in found)
