"""Put jobs in: checked first, then files, then one transaction, and only then the id is told.

A row names a training set only once that is complete and synced. Nothing is stored when one of the jobs of a call is
refused. When COMMIT answers with an error the call's uid is looked up in a new session before anything is said.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, NamedTuple

from trainq import wake
from trainq.base import clock
from trainq.base.crash import point
from trainq.base.errors import BadData, BadSnapshot, Denied, Duplicate, LimitReached, TrainqError, Unsupported, Usage
from trainq.domain.array import ref_of
from trainq.domain.documents import document
from trainq.domain.job import Submission
from trainq.ops import after
from trainq.ops.change import Change
from trainq.ops.draft import Shared, draft, encode, share
from trainq.ops.queue import require_directories
from trainq.store import jobs, queues, reads
from trainq.store.session import Unsure

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from trainq.base.git import Asked
    from trainq.domain.job import NewArray
    from trainq.domain.request import Request
    from trainq.ops.draft import Draft
    from trainq.ops.queue import Queue
    from trainq.store.queues import Closed
    from trainq.store.session import Transaction


class Submitted(NamedTuple):
    """What became of each request, in order, and what the user should hear besides."""

    changes: list[Change]
    left_out: tuple[str, ...]  # secret-looking variables that were not kept
    paused: Mapping[str, Closed]  # their queues that nothing is started from
    notes: tuple[str, ...] = ()  # of the code that was frozen


def submit(
    queue: Queue, requests: Sequence[Request], asked: Asked | None = None, array: NewArray | None = None
) -> Submitted:
    """Put the jobs in, all or none; with `array` as the tasks of one, and there is one change, that of the array. `asked`:
    what git was asked already about the working directory (ops/code.py).

    Raises what the checks raise (exit 2), Duplicate (8), LimitReached (9), and the errors of storage (6).
    """
    _require_proc()
    if array is not None:
        _refuse_for_array(requests[0])
    require_directories(queue)
    after.require_earlier(requests)
    shared = share(queue, asked)
    drafts = [draft(request, shared) for request in requests]
    found = [
        _reusable(queue, item) if request.values.get("reuse") else None
        for request, item in zip(requests, drafts, strict=True)
    ]
    ready = [item for item, change in zip(drafts, found, strict=True) if change is None]
    reused = {
        item.job.key: int(change.id or 0) for item, change in zip(drafts, found, strict=True) if change and item.job.key
    }
    stored, paused = _store(shared, ready, reused, array) if ready else ([], {})
    changes = iter(stored)
    kept_by_name = {name for item in ready for name in item.secrets}
    left_out = tuple(name for name in shared.kept.dropped if name not in kept_by_name)
    whole = stored if array is not None else [change or next(changes) for change in found]
    return Submitted(whole, left_out, paused, tuple(shared.code.notes))


def _refuse_for_array(request: Request) -> None:
    """What is said of one job and cannot be of an array. Raises Usage."""
    for name in ("key", "reuse"):
        if request.values.get(name):
            raise Usage(f"--{name} is for one job, not for an array")
    if request.values.get("on_duplicate") in ("return", "replace"):
        raise Usage(f"--on-duplicate {request.values['on_duplicate']} is for one job; of an array it is fail or run")


def _require_proc() -> None:
    if not os.path.exists("/proc/self/stat"):
        raise Unsupported("trainq needs /proc, which this platform lacks", hint="run it on Linux")


def _reusable(queue: Queue, item: Draft) -> Change | None:
    """The model that this very training has made already, verified; None when it must be trained."""
    from trainq.ops.models import verified

    print_ = item.job.fingerprint
    if print_ is None:
        raise Usage("--reuse is for types: a command has no fingerprint")
    model = verified(queue, print_)
    return None if model is None else Change(model["job"], "reused", None, {"model": model})


def _store(
    shared: Shared, ready: list[Draft], reused: Mapping[str, int], array: NewArray | None
) -> tuple[list[Change], dict[str, Closed]]:
    """The one transaction; then the bell. What became of each, and which of their queues are paused."""
    queue = shared.queue
    closed: dict[str, Closed] = {}
    umask = os.umask(0o077)  # there is no other way to ask
    os.umask(umask)
    submission = Submission(
        uid=f"{int(clock.now() * 1000):011x}{os.urandom(6).hex()}",
        actor=queue.actor,
        umask=umask,
        environ=encode({"env": shared.kept.plain, "dropped": shared.kept.dropped}),
    )
    _keep_secrets(queue, submission.uid, ready)
    _prove(queue, submission, ready)
    point("submit.before_commit")
    try:
        with queue.session.writing() as tx:
            closed = queues.closed(tx)
            changes = _decide(tx, queue, ready) if array is None else _decide_array(tx, ready)
            new = after.resolved(tx, queue.actor.user_id, ready, changes, reused)
            _check_room(tx, queue, len(new))
            _check_data(queue, new)
            if len(new) < len(ready):
                _drop_secrets(queue, submission.uid, ready)  # what comes after a duplicate has another place now
                _prove(queue, submission, new)
            _keep_secrets(queue, submission.uid, new)  # those that are there still cost a look
            put = jobs.submit(tx, submission, [item.job for item in new], array) if new else range(0)
    except Unsure:
        queue.session.abandon()
        with queue.session.reading() as tx:
            known = jobs.find_submission(tx, submission.uid)
        if known is None:
            raise
        put = known
    except TrainqError:
        _drop_secrets(queue, submission.uid, ready)
        _prove(queue, submission, ())
        raise
    point("submit.after_commit")
    wake.ring(queue.paths.bell_number)
    if any(item.on_duplicate == "replace" for item in ready):
        from trainq.ops import secrets

        secrets.drop_ended(queue.session, queue.paths)  # of what was replaced
    paused = {name: closed[name] for name in dict.fromkeys(item.job.queue for item in ready) if name in closed}
    if array is not None:
        return [Change(put.start - 1, "submitted", None, {"tasks": len(put)})], paused
    ids = iter(put)
    return [change or Change(next(ids), "submitted") for change in changes], paused


def _decide_array(tx: Transaction, ready: list[Draft]) -> list[Change | None]:
    """An array is put in as a whole or not at all: one training in it that waits or runs already, or stands in it twice,
    refuses it. Raises Duplicate."""
    refusing = [item for item in ready if item.on_duplicate == "fail" and item.job.fingerprint is not None]
    tasks: dict[str, int | None] = {}
    for item in refusing:
        mark, index = item.job.fingerprint or "", item.job.array_index
        if mark in tasks:
            raise Duplicate(
                f"tasks {tasks[mark]} and {index} are the same training (fingerprint {mark})",
                hint="--on-duplicate run trains it twice",
            )
        tasks[mark] = index
    known = jobs.active_of(tx, list(tasks)) if tasks else {}
    for mark, number in known.items():
        ref = ref_of(reads.owned(tx, [number])[number])
        raise Duplicate(
            f"the training of task {tasks[mark]} (fingerprint {mark}) is already waiting or running as job {ref},"
            f" and {len(known) - 1} more are",
            hint=f"trainq status {number}; another --seed trains all of it anew",
        )
    return [None] * len(ready)


def _decide(tx: Transaction, queue: Queue, ready: Iterable[Draft]) -> list[Change | None]:
    """What happens to each: None is a job to put in."""
    seen: dict[str, str] = {}
    return [_duplicate(tx, queue, item, seen) if item.on_duplicate != "run" else None for item in ready]


def _duplicate(tx: Transaction, queue: Queue, item: Draft, seen: dict[str, str]) -> Change | None:
    """What the rule for duplicates says of this one. Raises Duplicate, Denied."""
    job = item.job
    mark = job.key or job.fingerprint
    if mark is None:
        return None
    what = f"key {job.key!r}" if job.key else f"this training (fingerprint {job.fingerprint})"
    if mark in seen:
        raise Duplicate(f"{what} stands twice in this submit", hint="give each its own --key or --seed")
    seen[mark] = what
    known = jobs.active_with_key(tx, job.key) if job.key else jobs.active_with_fingerprint(tx, mark)
    if known is None:
        return None
    if item.on_duplicate == "return":
        is_same = _executed(document(reads.specs(tx, [known]).get(known))) == _executed(document(job.spec))
        user = reads.owned(tx, [known])[known]["user"]
        return Change(known, "duplicate", None, {"user": user, "command": "same" if is_same else "another"})
    if item.on_duplicate == "replace":
        from trainq.ops.cancel import may_change

        if not may_change(queue, row := reads.owned(tx, [known])[known]):
            raise Denied(f"{what} is waiting or running as job {known}, which belongs to {row['user']}")
        jobs.request_cancel(tx, known, str(queue.actor), grace_s=None, message="replaced")
        return None
    raise Duplicate(
        f"{what} is already waiting or running as job {known}",
        hint=f"trainq status {known}; another --seed trains it anew",
    )


def _executed(spec: Mapping[str, Any]) -> list[Any]:
    """What a job runs, as far as two that stand under one key are compared by it."""
    return [spec.get(name) for name in ("argv", "shell", "call", "params", "seed")]


def _check_room(tx: Transaction, queue: Queue, new: int) -> None:
    size = queue.settings.limits.queue_size
    if size:
        waiting = jobs.count_active(tx)
        if waiting + new > size:
            raise LimitReached(
                f"the queue holds {waiting} of at most {size} jobs, {new} more do not fit",
                hint="wait for some to end, or raise [limits] queue_size",
            )


def _check_data(queue: Queue, new: Sequence[Draft]) -> None:
    """A training set in a file, and frozen code, must still be there: from this transaction on a row names it, and it stays."""
    large = {item.sha256 for each in new for item in each.job.data if item.z is None}
    if large:
        from trainq.artifacts import datasets

        for sha256 in large:
            if not datasets.stands(queue.paths.training_set(sha256)):
                raise BadData(f"the stored training set {sha256} vanished meanwhile", hint="type the command again")
    frozen = {item.snapshot for item in new if item.snapshot is not None}
    if frozen:
        from trainq.artifacts import snapshots

        for sha256 in frozen:
            if not snapshots.stands(queue.paths, sha256):
                raise BadSnapshot(f"the snapshot {sha256} vanished meanwhile", hint="type the command again")


def _prove(queue: Queue, submission: Submission, drafts: Sequence[Draft]) -> None:
    """On a group's queue: whose these jobs are, in a file before a row says so; none when no row will."""
    if not queue.is_for_group:
        return
    from trainq.artifacts import proofs
    from trainq.domain import proof

    if drafts:
        proofs.write(queue.paths, submission.uid, proof.of_submission(submission, [item.job for item in drafts]))
        point("submit.proved")
    else:
        proofs.drop(queue.paths, submission.uid)


def _keep_secrets(queue: Queue, uid: str, drafts: Sequence[Draft]) -> None:
    """A file for each job that keeps secrets, named by the uid it will have; the janitor takes those no row names."""
    for place, item in enumerate(drafts):
        if item.secrets and not os.path.lexists(queue.paths.secret(f"{uid}.{place}")):
            from trainq.artifacts import runs

            runs.write_secret(queue.paths, f"{uid}.{place}", item.secrets)
            point("submit.secrets_kept")


def _drop_secrets(queue: Queue, uid: str, drafts: Sequence[Draft]) -> None:
    """Delete what was kept for a call that no row names and none will."""
    for place, item in enumerate(drafts):
        if item.secrets:
            from trainq.artifacts import runs

            runs.drop_secret(queue.paths, f"{uid}.{place}")
