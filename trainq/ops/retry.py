"""Run jobs again that errored or were canceled: the same id, one more attempt, both costs back to 0."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

from trainq import wake
from trainq.base.crash import point
from trainq.base.errors import BadValue, Denied, Duplicate, NoSelector, NotFound, NotPossible
from trainq.ops.cancel import BATCH, may_change
from trainq.ops.change import Change
from trainq.ops.query import is_pruned
from trainq.ops.select import EVERYTHING, select
from trainq.store import jobs, reads

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trainq.domain.selectors import Filter
    from trainq.ops.queue import Queue
    from trainq.ops.select import Selected
    from trainq.store.reads import Row
    from trainq.store.session import Transaction


def retry(queue: Queue, words: Sequence[str], which: Filter = EVERYTHING, *, dry_run: bool = False) -> list[Change]:
    """Put the selected jobs back; what was done to each: retried, already (it waits or runs), ended, denied, unknown.

    Raises NoSelector without any; for a single one NotFound (also when pruned), NotPossible, Denied, Duplicate, and
    BadValue when a kept variable is not set here.
    """
    if not words and which == EVERYTHING:
        raise NoSelector("retry: which jobs?")
    session = queue.session
    with session.reading() as tx:
        found = _select(tx, words, which, queue.actor.user_id)
        unknown = [_unknown(tx, word) for word in found.unknown]
    changes: list[Change] = []
    for start in range(0, len(found.ids), BATCH):
        batch = found.ids[start : start + BATCH]
        with session.reading() if dry_run else session.writing() as tx:
            rows = reads.owned(tx, batch)
            done = [
                _retry(tx, queue, row, dry_run=dry_run, one=found.one)
                for row in map(rows.get, batch)  # one that was pruned meanwhile is no more selected
                if row is not None and (not which.state or row["state"] in which.state)
            ]
        point("retry.committed")
        changes += done
        if any(change.result == "retried" for change in done) and not dry_run:
            wake.ring(queue.paths.bell_number)
    return changes + unknown


def _select(tx: Transaction, words: Sequence[str], which: Filter, user_id: int) -> Selected:
    """The jobs that are there. Raises NotFound, with the line of its end when all that is meant is a pruned job."""
    try:
        return select(tx, words, which, user_id)
    except NotFound:
        rows = reads.past(tx, select(tx, words, which, user_id, past=True).ids)
        if not rows:
            raise
        raise is_pruned(rows[-1]) from None


def _unknown(tx: Transaction, word: str) -> Change:
    """What is said, among several, of a word that finds nothing."""
    rows = reads.past(tx, [int(word)]) if word.isdecimal() else []
    return (
        Change(rows[0]["id"], "unknown", is_pruned(rows[0]).message)
        if rows
        else Change(word, "unknown", f"no such job: {word}")
    )


def _retry(tx: Transaction, queue: Queue, row: Row, *, dry_run: bool, one: bool) -> Change:
    """One job; what cannot be is an error for a single one and a line of the answer among several."""
    number, state = row["id"], row["state"]
    if state in ("held", "pending", "running"):
        return Change(number, "already")
    trouble: Denied | NotPossible | Duplicate | BadValue | None = None
    secrets: dict[str, str] = {}
    if not may_change(queue, row):
        trouble = Denied(f"job {number} belongs to {row['user']}")
    elif state not in ("errored", "canceled"):
        trouble = NotPossible(
            f"job {number} is {state}; only errored and canceled jobs are retried", hint="trainq submit"
        )
    elif row["key"] and (other := jobs.active_with_key(tx, row["key"])) is not None:
        trouble = Duplicate(f"key {row['key']!r} is in use by job {other}", hint=f"trainq status {other}")
    else:
        spec = json.loads(reads.specs(tx, [number])[number])
        secrets, trouble = _secrets(spec, number)
    if trouble is not None:
        if one:
            raise trouble
        result = "denied" if isinstance(trouble, Denied) else "ended" if isinstance(trouble, NotPossible) else "refused"
        return Change(number, result, trouble.message)
    if not dry_run:
        if secrets:
            from trainq.artifacts import runs
            from trainq.ops.cards import uid_of

            runs.write_secret(queue.paths, uid_of(row), secrets)
            point("retry.secrets_kept")
        jobs.retry(tx, number, str(queue.actor))
    return Change(number, "retried")


def _secrets(spec: dict[str, Any], number: int) -> tuple[dict[str, str], BadValue | None]:
    """Kept values were deleted when the job ended: they are read again from this environment."""
    names = spec.get("secrets", ())
    missing = [name for name in names if name not in os.environ]
    if missing:
        trouble = BadValue(
            f"job {number} kept {', '.join(missing)} outside the store, and it is not set here",
            hint=f"export {missing[0]}=…",
        )
        return {}, trouble
    return {name: os.environ[name] for name in names}, None
