"""What must hold between rows and rows, and between rows and files: one list for the janitor, checks and tests.

`find` reads only. While others work it may see one of their changes half done, so only what is seen twice in a row is
told. What may lie about for a while (a directory whose row is about to be committed, the rest of a crash) has a least
age, and a step of the janitor that mends it.
"""

from __future__ import annotations

import hashlib
import os
from typing import TYPE_CHECKING, NamedTuple

from trainq.artifacts import checkpoints, datasets, manifest, models, runs, snapshots
from trainq.artifacts import proofs as spec_files
from trainq.base import files
from trainq.base.errors import TrainqError
from trainq.ops import needed, proofs, secrets
from trainq.store import models as model_rows
from trainq.store import pruning, rules

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from trainq.ops.queue import Queue
    from trainq.store.session import Transaction


class Finding(NamedTuple):
    """One thing that is not as it must be."""

    name: str
    what: str


class Look(NamedTuple):
    """What a rule may look at. `before` is the time (backend's clock) up to which what is old enough was made."""

    queue: Queue
    tx: Transaction
    before: float
    deep: bool


class Invariant(NamedTuple):
    """A rule. `find` yields a line for each thing that breaks it; `mend` is the janitor's step that puts it right."""

    name: str
    find: Callable[[Look], Iterator[str]]
    mend: str | None = None
    has_grace: bool = False
    """Whether only what is older than `[keep] file_grace` breaks it."""


def find(queue: Queue, *, deep: bool = False, at_once: bool = False) -> list[Finding]:
    """Everything that breaks a rule; `deep` reads every byte of every model, `at_once` leaves out the least ages.

    Raises the errors of storage.
    """
    found = _look(queue, deep, at_once)
    return [each for each in found if each in _look(queue, deep, at_once)] if found else []


def _look(queue: Queue, deep: bool, at_once: bool) -> list[Finding]:
    found = []
    with queue.session.reading() as tx:
        for rule in INVARIANTS:
            before = tx.now - queue.settings.keep.file_grace if rule.has_grace and not at_once else tx.now
            found += [Finding(rule.name, what) for what in rule.find(Look(queue, tx, before, deep))]
    return found


def _rows(rule: str) -> Callable[[Look], Iterator[str]]:
    return lambda look: iter(rules.broken(look.tx, rule))


def _models_are_whole(look: Look) -> Iterator[str]:
    """Every row of a model has its directory, whose manifest is the one that was committed."""
    for key, version, sha256 in rules.models(look.tx):
        path = look.queue.paths.version(key, version)
        try:
            found = hashlib.sha256(files.read_bytes(os.path.join(path, manifest.MANIFEST))).hexdigest()
            faults = manifest.verify(path, deep=look.deep) if found == sha256 else ["another manifest"]
        except (OSError, TrainqError) as error:
            faults = [str(error)]
        yield from (f"{key}@{version}: {fault}" for fault in faults)


def _versions_are_named(look: Look) -> Iterator[str]:
    paths = look.queue.paths
    for key in models.walk_keys(paths):
        for version in models.versions_on_disk(paths, key):
            is_old = needed.is_before(paths.version(key, version), look.before)
            if is_old and needed.is_orphan(look.tx, paths, key, version):
                yield f"{key}@{version} has no row"


def _latest_is_newest(look: Look) -> Iterator[str]:
    for key in sorted({*models.walk_keys(look.queue.paths), *model_rows.keys(look.tx)}):
        newest = model_rows.one(look.tx, key, None)
        wanted, found = newest and newest["version"], models.latest_on_disk(look.queue.paths, key)
        if wanted != found:
            yield f"{key}@latest is {found}, the newest is {wanted}"


def _nothing_is_staged(look: Look) -> Iterator[str]:
    """Staged or aside lies only what a running attempt makes, and results that could not be stored."""
    for left in models.leftovers(look.queue.paths):
        if left.changed_at <= look.before and not needed.is_made(look.tx, left) and not needed.is_kept(look.tx, left):
            yield f"{os.path.basename(left.path)} is nobody's"


def _data_has_files(look: Look) -> Iterator[str]:
    for sha256 in rules.filed_data(look.tx):
        if not datasets.stands(look.queue.paths.training_set(sha256)):
            yield f"the file of training set {sha256} is gone"


def _files_have_data(look: Look) -> Iterator[str]:
    for kept in datasets.kept(look.queue.paths):
        is_named = kept.sha256 is not None and pruning.data_is_named(look.tx, kept.sha256)
        if not is_named and kept.written_at <= look.before:
            yield f"{os.path.basename(kept.path)} has no row"


def _data_is_named(look: Look) -> Iterator[str]:
    yield from (f"no job names training set {sha}" for _, sha, _ in pruning.unnamed_data(look.tx, look.before, -1))


def _snapshots_stand(look: Look) -> Iterator[str]:
    there = {kept.sha256 for kept in snapshots.kept(look.queue.paths)}
    yield from (f"snapshot {sha} is gone" for sha in sorted(pruning.named_snapshots(look.tx) - there))


def _checkpoints_stand(look: Look) -> Iterator[str]:
    """The newest that was committed is the one thing that retention leaves."""
    for job_id, number, digest in rules.newest_checkpoints(look.tx):
        found = {one.number: one.digest for one in checkpoints.candidates(look.queue.paths, job_id)}
        if found.get(number) != digest:
            path = os.path.join(look.queue.paths.checkpoints(job_id), f"{number:d}")
            yield f"job {job_id}: checkpoint {number} is " + ("another one" if files.is_there(path) else "gone")


def _secrets_are_needed(look: Look) -> Iterator[str]:
    for uid in secrets.kept(look.queue.paths):
        if not secrets.is_needed(look.tx, look.queue.paths, uid, look.before):
            yield f"kept variables of {uid}, which does not wait or run"


def _specs_are_needed(look: Look) -> Iterator[str]:
    for call in spec_files.kept(look.queue.paths):
        if not proofs.is_needed(look.tx, look.queue.paths, call, look.before):
            yield f"spec file of call {call}, of which there is no job"


def _jobs_are_proved(look: Look) -> Iterator[str]:
    if look.queue.is_for_group:
        yield from proofs.unproved(look.tx, look.queue.paths)


def _nothing_is_half_written(look: Look) -> Iterator[str]:
    yield from (f"{path} was never finished" for path in needed.unfinished(look.queue.paths, look.before))


def _runs_have_jobs(look: Look) -> Iterator[str]:
    for number in runs.runs(look.queue.paths):
        if not rules.has_job(look.tx, number) and needed.is_before(look.queue.paths.run(number), look.before):
            yield f"runs/{number}: there was no such job"


def _unpacked_sets_are_in_use(look: Look) -> Iterator[str]:
    limit_s = look.queue.settings.times.hook_limit
    for job in runs.runs(look.queue.paths):
        for attempt, _ in runs.unpacked(look.queue.paths, job):
            if not needed.is_in_use(look.tx, job, attempt, limit_s):
                yield f"the unpacked training sets of job {job}, attempt {attempt}, which does not run"


INVARIANTS: tuple[Invariant, ...] = (
    *(Invariant(name, _rows(name)) for name in rules.RULES),
    Invariant("model.whole", _models_are_whole),
    Invariant("model.named", _versions_are_named, "models", has_grace=True),
    Invariant("model.latest", _latest_is_newest, "models"),
    Invariant("model.staged", _nothing_is_staged, "staging", has_grace=True),
    Invariant("data.file", _data_has_files),
    Invariant("data.file_named", _files_have_data, "training sets", has_grace=True),
    Invariant("data.named", _data_is_named, "training sets", has_grace=True),
    Invariant("snapshot.file", _snapshots_stand),
    Invariant("checkpoint.stands", _checkpoints_stand),
    Invariant("secret.needed", _secrets_are_needed, "kept variables", has_grace=True),
    Invariant("spec.needed", _specs_are_needed, "spec files", has_grace=True),
    Invariant("spec.proved", _jobs_are_proved),
    Invariant("file.whole", _nothing_is_half_written, "temporary files", has_grace=True),
    Invariant("run.unpacked", _unpacked_sets_are_in_use, "unpacked training sets"),
    Invariant("run.job", _runs_have_jobs, "runs", has_grace=True),
)
