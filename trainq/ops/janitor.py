"""The janitor: one pass, made for cron, harmless when two run at once and when it is killed anywhere.

It takes back what is lost, moves ended jobs past their age to the past, and deletes files: only after no row names
them, and after `file_grace`. Waiting and running jobs are never touched; models are never removed by age. On a group's
queue what belongs to somebody else is left to a pass of theirs, or of root's.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, NamedTuple

from trainq import wake
from trainq.artifacts import datasets, models, runs, snapshots
from trainq.artifacts import proofs as spec_files
from trainq.base import files, hosts, oserrors, sharing, trees
from trainq.base.crash import point
from trainq.base.errors import Denied, DiskFull, NotPossible, TrainqError
from trainq.domain.states import ENDED
from trainq.ops import needed, proofs, secrets
from trainq.ops.cancel import may_change
from trainq.ops.change import Change, in_batches
from trainq.ops.lost import take_back
from trainq.ops.queue import require_real_directories
from trainq.ops.select import EVERYTHING, select
from trainq.ops.sure import surely
from trainq.store import jobs, pruning, reads
from trainq.store import models as model_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trainq.domain.selectors import Filter
    from trainq.ops.queue import Queue
    from trainq.store.session import Transaction

WORKER_AGE_S = 86400.0
BUSY = "another janitor is at work"


class Pass(NamedTuple):
    """What one pass did, or with `dry_run` would do."""

    changes: list[Change]  # a line for each job
    removed: dict[str, int]  # how many of what else
    trouble: list[str]  # what could not be done, and is left for the next pass


def prune(queue: Queue, *, older_than_s: float | None = None, dry_run: bool = False) -> Pass:
    """One pass over everything that is past its age. `older_than_s` replaces `[keep] jobs`; a shorter one for the jobs
    that this user may change."""
    from filelock import FileLock, Timeout

    require_real_directories(queue)
    mode = sharing.shared_mode(queue.paths.locks, 0o644)
    lock = FileLock(queue.paths.lock("janitor"), timeout=0, fallback_to_soft=False, mode=mode)
    try:
        with lock:
            return _Pass(queue, dry_run=dry_run).everything(older_than_s)
    except Timeout:
        return Pass([], {}, [BUSY])
    except OSError as error:
        raise oserrors.explain(error, queue.paths.locks) from error


def prune_selected(queue: Queue, words: Sequence[str], which: Filter = EVERYTHING, *, dry_run: bool = False) -> Pass:
    """Take out these ended jobs now, logs included; what waits or runs is refused.

    Raises NotFound, and for a single job Denied, or NotPossible when it has not ended, or is retried meanwhile.
    """
    require_real_directories(queue)
    session = queue.session
    with session.reading() as tx:
        found = select(tx, words, which, queue.actor.user_id)
        rows = reads.jobs(tx, found.ids)
    work = _Pass(queue, dry_run=dry_run)
    denied = {row["id"]: f"job {row['id']} belongs to {row['user']}" for row in rows if not may_change(queue, row)}
    if found.one and denied:
        raise Denied(*denied.values())
    gone = work.retire([row["id"] for row in rows if row["state"] in ENDED and row["id"] not in denied])
    point("prune.selected")
    for number in gone:
        work.attempt_to("run", work.drop_run, number, due=work.has_run)
    told = {change.id for change in work.changes}
    left = [row["id"] for row in rows if row["id"] not in {*told, *denied}]
    with session.reading() as tx:  # once more: what was retried meanwhile is refused for what it is now
        states = reads.states(tx, left)
    if found.one and left:
        raise NotPossible(f"job {left[0]} is {states.get(left[0], 'pruned')}", hint=f"trainq cancel {left[0]}")
    work.step("training sets", _Pass.stray_data)
    changes = work.changes + [Change(number, "denied", why) for number, why in denied.items()]
    changes += [Change(number, "refused", f"it is {states.get(number, 'pruned')}") for number in left]
    changes += [Change(word, "unknown", f"no such job: {word}") for word in found.unknown]
    return Pass(changes, work.removed, work.trouble)


class _Pass:
    """The steps of one pass, and what they have done so far."""

    def __init__(self, queue: Queue, *, dry_run: bool) -> None:
        self.queue = queue
        self.paths = queue.paths
        self.session = queue.session
        self.dry_run = dry_run
        self.keep = queue.settings.keep
        with self.session.reading() as tx:
            self.now = tx.now
        self.before_files = self.now - self.keep.file_grace
        self.changes: list[Change] = []
        self.removed: dict[str, int] = {}
        self.trouble: list[str] = []

    def everything(self, older_than_s: float | None) -> Pass:
        age_s = self.keep.jobs if older_than_s is None else older_than_s
        for what, rows in (("lost jobs", self.take_back), ("ended jobs", lambda: self.old_jobs(age_s))):
            try:
                rows()
            except TrainqError as error:
                if error.word != DiskFull.word and not self.changes:
                    raise
                # On a full disk what is deleted below may make the room for the next pass; and what is done has to be told.
                self.trouble.append(f"{what}: {error}")
        for what, step in STEPS:
            self.step(what, step)
            point("prune.step")
        return Pass(self.changes, self.removed, self.trouble)

    def step(self, what: str, step: Callable[[_Pass, float], None]) -> None:
        """Do one step; one sick corner does not stop the others."""
        try:
            step(self, self.before_files)
        except (TrainqError, OSError) as error:
            self.trouble.append(f"{what}: {error}")

    def count(self, what: str, n: int = 1) -> None:
        if n:
            self.removed[what] = self.removed.get(what, 0) + n

    def attempt_to(
        self, what: str, step: Callable[..., bool], *values: object, due: Callable[..., bool] = lambda *_: True
    ) -> None:
        """Do one deletion, or with `dry_run` only ask whether it is due; what fails is left for the next pass."""
        try:
            if due(*values) if self.dry_run else step(*values):
                self.count(what)
        except (TrainqError, OSError) as error:
            self.trouble.append(f"{what}: {error}")

    # what is lost ------------------------------------------------------------------------------------------------

    def take_back(self) -> None:
        """One look at every running job; those that stood still for zombie-after go back."""
        if self.dry_run:
            return
        found = take_back(self.session, self.queue.settings.times.zombie_after)
        self.changes += [Change(one.job_id, "requeued" if one.state == "pending" else "ended") for one in found]
        if found:
            wake.ring(self.paths.bell_number)
        with self.session.reading() as tx:
            is_due = jobs.is_due(tx)
        if is_due:  # nobody works here who would have seen to it
            with self.session.writing() as tx:
                jobs.promote(tx)
            wake.ring(self.paths.bell_number)

    # rows --------------------------------------------------------------------------------------------------------

    def old_jobs(self, age_s: float) -> None:
        """Ended jobs past their age, a batch a transaction."""
        before, user_id = self.now - age_s, self.queue.actor.user_id
        is_ours = user_id in (0, self.queue.owner_id)
        whose = None if is_ours else pruning.Whose(user_id, self.now - self.keep.jobs)
        if self.dry_run:
            with self.session.reading() as tx:
                ids = pruning.old_jobs(tx, before, -1, whose)
            self.changes += [Change(number, "removed") for number in ids]
            return
        while True:
            done = self._retire(lambda tx: pruning.old_jobs(tx, before, whose=whose))
            self.changes += done
            if len(done) < pruning.BATCH:
                return

    def retire(self, ids: Sequence[int]) -> list[int]:
        """These jobs as far as they have ended still, whatever their age, a batch a transaction; those that went."""
        if self.dry_run:
            done = [Change(number, "removed") for number in ids]
        else:
            done = in_batches(ids, lambda batch: self._retire(lambda _tx: batch))
        self.changes += done
        return [one.id for one in done if one.result == "removed" and isinstance(one.id, int)]

    def _retire(self, which: Callable[[Transaction], Sequence[int]]) -> list[Change]:
        gone = surely(
            self.session, lambda tx: pruning.retire(tx, which(tx)), lambda tx, gone: not reads.states(tx, gone)
        )
        point("prune.retired")
        return [Change(number, "removed") for number in gone]

    def old_history(self, _before: float) -> None:
        """History and workers past their age (not that of files), and free pages."""
        old = self.now - self.keep.history
        if self.dry_run:
            with self.session.reading() as tx:
                self.count("histories", pruning.old_past(tx, old))
                self.count("workers", len(self._gone_workers(tx)))
            return
        while True:
            with self.session.writing() as tx:
                forgotten = pruning.forget_past(tx, old)
            self.count("histories", forgotten)
            if forgotten < pruning.BATCH:
                break
        with self.session.writing() as tx:
            gone = self._gone_workers(tx)
            pruning.forget_workers(tx, gone)
        self.count("workers", len(gone))
        pruning.give_back_pages(self.session)

    def _gone_workers(self, tx: Transaction) -> list[int]:
        return [row["id"] for row in pruning.old_workers(tx, self.now - WORKER_AGE_S) if _may_be_gone(row)]

    # files -------------------------------------------------------------------------------------------------------

    def stray_data(self, before: float) -> None:
        """Training sets that no job names: the row first, the file after the commit, under the gate."""
        while True:
            with self.session.reading() as tx:
                found = pruning.unnamed_data(tx, before, -1 if self.dry_run else pruning.BATCH)
            if self.dry_run or not found:
                self.count("training sets", len(found))
                break
            gone = surely(self.session, lambda tx: self._forget_data(tx, before), _are_forgotten)
            self.count("training sets", len(gone))
            point("prune.data_forgotten")
        going = {sha256 for _, sha256, _ in found}  # of a dry run: the rows are there still
        for kept in datasets.kept(self.paths):
            if kept.written_at <= before:
                due = self._is_unnamed if kept.sha256 not in going else lambda *_: True
                self.attempt_to("files of training sets", self._drop_data, kept, before, due=due)

    def _is_unnamed(self, kept: datasets.Kept, _before: float) -> bool:
        with self.session.reading() as tx:
            return kept.sha256 is None or not pruning.data_is_named(tx, kept.sha256)

    def _forget_data(self, tx: Transaction, before: float) -> list[str]:
        found = pruning.unnamed_data(tx, before)
        pruning.forget_data(tx, [data_id for data_id, _, _ in found])
        return [sha256 for _, sha256, _ in found]

    def _drop_data(self, kept: datasets.Kept, before: float) -> bool:
        if kept.sha256 is None:
            return files.remove(kept.path)
        if not self._is_unnamed(kept, before):
            return False
        with self.session.writing() as tx:  # under the gate: a submit that is about to name it looks there too
            is_needed = pruning.data_is_named(tx, kept.sha256) or not needed.is_before(kept.path, before)
            return not is_needed and datasets.drop(self.paths, kept.sha256)

    def old_snapshots(self, before: float) -> None:
        """Frozen code that no job names: `[keep] snapshots` from the last submit that froze it."""
        before = min(before, self.now - self.keep.snapshots)
        old = [kept for kept in snapshots.kept(self.paths) if kept.written_at <= before]
        if not old:
            return
        with (
            self.session.reading() as tx
        ):  # every document is read: not under the gate, unless there is something to do
            named = pruning.named_snapshots(tx)
        old = [kept for kept in old if kept.sha256 not in named]
        if self.dry_run or not old:
            self.count("snapshots", len(old))
            return
        with self.session.writing() as tx:  # under the gate: a submit that is about to name it looks there too
            named = pruning.named_snapshots(tx)
            for kept in old:
                if kept.sha256 not in named and needed.is_before(kept.path, before):
                    self.attempt_to("snapshots", snapshots.drop, self.paths, kept.sha256)

    def stray_models(self, before: float) -> None:
        """Directories that no row names go aside; `@latest` points to the newest row."""
        for key in list(models.walk_keys(self.paths)):
            for version in models.versions_on_disk(self.paths, key):
                path = self.paths.version(key, version)
                if needed.is_before(path, before) and sharing.is_ours(path):
                    self.attempt_to("orphaned models", self._put_aside, key, version, due=self._is_orphan)
            with self.session.reading() as tx:
                newest = model_rows.one(tx, key, None)
            if not self.dry_run and models.latest_on_disk(self.paths, key) != (newest and newest["version"]):
                self._mend_latest(key)

    def _mend_latest(self, key: str) -> None:
        with self.session.writing() as tx:  # under the gate: nobody publishes a newer one meanwhile
            newest = model_rows.one(tx, key, None)
            models.point_latest(self.paths, key, newest and newest["version"])

    def _is_orphan(self, key: str, version: int) -> bool:
        with self.session.reading() as tx:
            return needed.is_orphan(tx, self.paths, key, version)

    def _put_aside(self, key: str, version: int) -> bool:
        if not self._is_orphan(key, version):
            return False
        with self.session.writing() as tx:  # under the gate: no publisher is between its rename and its commit
            if not needed.is_orphan(tx, self.paths, key, version):
                return False
            return models.put_aside(self.paths, key, version) is not None

    def old_staging(self, before: float) -> None:
        """What lies staged or aside: not while its attempt runs, and a result that could not be stored as long as logs."""
        for left in list(models.leftovers(self.paths)):
            if left.changed_at <= before and sharing.is_ours(left.path):
                self.attempt_to("unpublished models", self._discard, left, due=self._is_spent)

    def _is_spent(self, left: models.Leftover) -> bool:
        with self.session.reading() as tx:
            if needed.is_made(tx, left):
                return False
            return left.changed_at <= self.now - self.keep.runs or not needed.is_kept(tx, left)

    def _discard(self, left: models.Leftover) -> bool:
        return self._is_spent(left) and models.discard(self.paths, left.path)

    def old_runs(self, before: float) -> None:
        """Run directories: while the job has a row, then `[keep] runs` from its end."""
        for number in runs.runs(self.paths):
            if not sharing.is_ours(self.paths.run(number)):
                continue
            with self.session.reading() as tx:
                if reads.jobs(tx, [number]):
                    continue
                past = reads.past(tx, [number])
            ended = past[0]["ended_at"] + self.keep.runs if past else self._changed_at(number)
            if ended <= (self.now if past else before):
                self.attempt_to("run directories", self.drop_run, number)

    def unpacked_data(self, _before: float) -> None:
        """Training sets that a killed worker left unpacked, whatever their age: who runs now was claimed before."""
        found = []
        for job in runs.runs(self.paths):
            try:
                found += [(job, attempt, directory) for attempt, directory in runs.unpacked(self.paths, job)]
            except (TrainqError, OSError) as error:
                self.trouble.append(f"unpacked training sets: {error}")
        limit_s = self.queue.settings.times.hook_limit
        with self.session.reading() as tx:
            found = [each for each in found if not needed.is_in_use(tx, *each[:2], limit_s)]
        for _, _, directory in found:
            if sharing.is_ours(directory):
                self.attempt_to("unpacked training sets", trees.remove_tree, directory)

    def _changed_at(self, number: int) -> float:
        found = files.status(self.paths.run(number))
        return self.now if found is None else found.st_mtime

    def has_run(self, number: int) -> bool:
        return files.is_there(self.paths.run(number)) and sharing.is_ours(self.paths.run(number))

    def drop_run(self, number: int) -> bool:
        return sharing.is_ours(self.paths.run(number)) and runs.remove_run(self.paths, number)

    def ended_secrets(self, before: float) -> None:
        """Kept variables: of jobs that have ended whatever their age, of those that never came to be after their age."""
        for uid in secrets.kept(self.paths):
            if not sharing.is_ours(self.paths.secret(uid)):
                continue
            self.attempt_to("kept variables", secrets.drop, self.session, self.paths, uid, before, due=secrets.is_due)

    def stray_specs(self, before: float) -> None:
        """Spec files of calls whose jobs are all gone, or never came to be."""
        for call in spec_files.kept(self.paths):
            if sharing.is_ours(self.paths.spec(call)):
                self.attempt_to("spec files", proofs.drop, self.session, self.paths, call, before, due=proofs.is_due)

    def temporary_files(self, before: float) -> None:
        """What a crash left under a temporary name, where no other step looks."""
        for path in needed.unfinished(self.paths, before):
            if sharing.is_ours(path):
                self.attempt_to("temporary files", files.remove, path)


def _may_be_gone(worker: Any) -> bool:
    """Of a worker that was not heard of for so long: here it counts whether it is there, elsewhere nothing can be seen."""
    if worker["ended_at"] is not None or worker["host_identity"] != hosts.identity():
        return True
    return os.getuid() in (0, worker["user_id"]) and not hosts.is_same_process(worker["pid"], worker["pid_start"])


def _are_forgotten(tx: Transaction, digests: Sequence[str]) -> bool:
    return not any(pruning.data_is_named(tx, sha256) for sha256 in digests)


STEPS: tuple[tuple[str, Callable[[_Pass, float], None]], ...] = (
    ("training sets", _Pass.stray_data),
    ("snapshots", _Pass.old_snapshots),
    ("staging", _Pass.old_staging),
    ("models", _Pass.stray_models),  # after it: what is put aside here lies there until another pass at least
    ("unpacked training sets", _Pass.unpacked_data),
    ("runs", _Pass.old_runs),
    ("kept variables", _Pass.ended_secrets),
    ("spec files", _Pass.stray_specs),
    ("temporary files", _Pass.temporary_files),
    ("history", _Pass.old_history),
)
"""What a pass does after the rows of jobs, by the words that ops/invariants.py names a mend with."""
