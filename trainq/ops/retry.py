"""Run jobs again that errored or were canceled: the same id, one more attempt, both costs back to 0.

What was skipped because of them stays so, unless it is asked for: then it is held again under its own id, as far as all
that it comes after can still end as it asks.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, NamedTuple

from trainq import wake
from trainq.base.crash import point
from trainq.base.errors import BadValue, Denied, Duplicate, NoSelector, NotFound, NotPossible
from trainq.domain.array import ref_of
from trainq.domain.documents import document
from trainq.ops import secrets
from trainq.ops.cancel import may_change
from trainq.ops.cards import uid_of
from trainq.ops.change import Change, in_batches, ref_facts
from trainq.ops.query import is_pruned
from trainq.ops.select import EVERYTHING, select
from trainq.ops.sure import surely
from trainq.store import arrays, jobs, reads
from trainq.store import dependants as waits

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from trainq.domain.selectors import Filter
    from trainq.ops.queue import Queue
    from trainq.ops.select import Selected
    from trainq.store.reads import Row
    from trainq.store.session import Transaction


def retry(
    queue: Queue, words: Sequence[str], which: Filter = EVERYTHING, *, dependants: bool = False, dry_run: bool = False
) -> list[Change]:
    """Put the selected jobs back, with `dependants` also what was skipped because of them, or is named and was skipped;
    what was done to each: retried, already (it waits or runs), ended, denied, unknown.

    Raises NoSelector without any; for a single one NotFound (also when pruned), NotPossible, Denied, Duplicate, and
    BadValue when a kept variable is not set here.
    """
    if not words and which == EVERYTHING:
        raise NoSelector("retry: which jobs?")
    session = queue.session
    with session.reading() as tx:
        found = _select(tx, words, which, queue.actor.user_id)
        unknown = [_unknown(tx, word) for word in found.unknown]

    def change(batch: Sequence[int]) -> list[Change]:
        specs = _specs(queue, batch)
        kept = [] if dry_run else _keep(queue, {number: spec.get("secrets", ()) for number, spec in specs.items()})

        def decide(tx: Transaction) -> tuple[list[Change], dict[int, Row]]:
            rows = reads.owned(tx, batch)
            how = _How(queue, kept, dependants=dependants, dry_run=dry_run)
            done: list[Change] = []
            for row in [rows[one] for one in batch if one in rows]:  # one that was pruned meanwhile is no more selected
                if which.state and row["state"] not in which.state:
                    continue
                one = _retry(tx, row, specs.get(row["id"], {}), how, one=found.one)
                done.append(one)
                if dependants and one.result in ("retried", "already"):
                    done += _reopen(tx, row, how, rows)
            if not dry_run:
                waits.tell(tx)
            return [*{one.id: one for one in done}.values()], rows

        if dry_run:
            with session.reading() as tx:
                return decide(tx)[0]
        try:
            done = surely(session, decide, _are_retried)[0]
        finally:
            secrets.drop_all(session, queue.paths, kept)  # of what was refused: what waits now keeps its own
        point("retry.committed")
        if any(one.result == "retried" for one in done):
            wake.ring(queue.paths.bell_number)
        return done

    return in_batches(found.ids, change) + unknown


class _How(NamedTuple):
    """How a call retries."""

    queue: Queue
    kept: Collection[str]
    """Uids of jobs whose kept variables were written already."""
    dependants: bool
    dry_run: bool


def _reopen(tx: Transaction, job: Row, how: _How, rows: dict[int, Row]) -> list[Change]:
    """What was skipped because of this job, or of the array whose task it is, and because of that; `rows` gets what they
    were. One that comes after another job that has failed stays skipped until all it waits for is reopened."""
    done: dict[int, Change] = {}
    todo = _waited_for(job)
    for on_id in todo:
        found = [each for each in waits.skipped_by(tx, on_id) if each not in todo]
        specs = {each: document(doc) for each, doc in reads.specs(tx, found).items()}
        for row in reads.owned(tx, found).values():
            rows.setdefault(row["id"], row)
            done[row["id"]] = _retry(tx, row, specs.get(row["id"], {}), how, one=False, reopened=todo)
            if done[row["id"]].result == "retried":
                todo += [each for each in _waited_for(row) if each not in todo]
    return [*done.values()]


def _waited_for(job: Row) -> list[int]:
    """The numbers under which others may wait for a job: its own, and that of its array."""
    return [job["id"]] if job["array_id"] is None else [job["id"], job["array_id"]]


def _are_retried(tx: Transaction, answer: tuple[list[Change], dict[int, Row]]) -> bool:
    """Whether those that were put back are not what they had been, or have begun one more attempt since."""
    done, before = answer
    ids = [one.id for one in done if one.result == "retried" and isinstance(one.id, int)]
    return all(
        (row["state"], row["attempt"]) != (before[number]["state"], before[number]["attempt"])
        for number, row in reads.owned(tx, ids).items()
    )


def _select(tx: Transaction, words: Sequence[str], which: Filter, user_id: int) -> Selected:
    """The jobs that are there. Raises NotFound, with the line of its end when all that is meant is a pruned job."""
    try:
        return select(tx, words, which, user_id)
    except NotFound:
        found = select(tx, words, which, user_id, past=True)
        if found.array is not None:
            raise is_pruned(arrays.rows(tx, [found.array])[found.array], "array") from None
        rows = reads.past(tx, found.ids)
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


def _retry(
    tx: Transaction, row: Row, spec: Mapping[str, Any], how: _How, *, one: bool, reopened: Collection[int] = ()
) -> Change:  # fmt: skip
    """One job; what cannot be is an error for a single one and a line of the answer among several. `reopened`: jobs that
    wait again by this very call, or would."""
    number, state, names = row["id"], row["state"], spec.get("secrets", ())
    ref, facts = ref_of(row), ref_facts(row)
    if state in ("held", "pending", "running"):
        return Change(number, "already", None, facts)
    trouble: Denied | NotPossible | Duplicate | BadValue | None = None
    failed = [each for each in waits.unmet(tx, number) if each[0] not in reopened]
    if not may_change(how.queue, row):
        trouble = Denied(f"job {ref} belongs to {row['user']}")
    elif state == "done":
        trouble = NotPossible(f"job {ref} is done; only errored and canceled jobs are retried", hint="trainq submit")
    elif failed:
        on_id, ended = failed[0]
        hint = f"trainq retry {on_id} --with-dependants" if ended != "done" else "trainq submit"
        trouble = NotPossible(f"job {ref} comes after job {on_id}, which is {ended}", hint=hint)
    elif state == "skipped" and not how.dependants:
        trouble = NotPossible(f"job {ref} is skipped", hint=f"trainq retry {number} --with-dependants")
    elif duplicate := _duplicate(tx, row, spec):
        trouble = duplicate
    elif missing := [name for name in names if name not in os.environ]:
        trouble = BadValue(
            f"job {ref} kept {', '.join(missing)} outside the store, and it is not set here",
            hint=f"export {missing[0]}=…",
        )
    if trouble is not None:
        if one:
            raise trouble
        result = "denied" if isinstance(trouble, Denied) else "ended" if isinstance(trouble, NotPossible) else "refused"
        return Change(number, result, trouble.message, facts)
    if not how.dry_run:
        queue = how.queue
        if names and not (uid_of(row) in how.kept and os.path.lexists(queue.paths.secret(uid_of(row)))):
            _write(queue, row, names)  # it has ended, or a janitor has come by, between that look and this one
        if state == "skipped":
            waits.reopen(tx, number, str(queue.actor))
        else:
            jobs.retry(tx, number, str(queue.actor))
    return Change(number, "retried", None, facts)


def _duplicate(tx: Transaction, row: Row, spec: Mapping[str, Any]) -> Duplicate | None:
    """What the rule for duplicates of a submit says: one active job a key, and one a training unless that was waived."""
    if row["key"]:
        what, other = f"key {row['key']!r} is in use by", jobs.active_with_key(tx, row["key"])
    elif row["fingerprint"] and spec.get("on_duplicate") != "run":
        other = jobs.active_with_fingerprint(tx, row["fingerprint"])
        what = "this training is already waiting or running as"
    else:
        return None
    return None if other is None else Duplicate(f"{what} job {other}", hint=f"trainq status {other}")


def _specs(queue: Queue, batch: Sequence[int]) -> dict[int, Mapping[str, Any]]:
    """What was asked for at the submit, of those jobs for which a retry must know it."""
    with queue.session.reading() as tx:
        docs = reads.specs(tx, batch)
    return {number: document(doc) for number, doc in docs.items() if '"secrets"' in doc or '"on_duplicate"' in doc}


def _keep(queue: Queue, names: Mapping[int, Sequence[str]]) -> list[str]:
    """Write the values of what looks as if it will be retried, before the gate, where nobody waits; the jobs' uids.

    The values were deleted when the jobs ended: they are read again from this environment.
    """
    with queue.session.reading() as tx:
        rows = reads.owned(tx, list(names)).values()
    chosen = [
        row for row in rows
        if row["state"] in ("errored", "canceled") and may_change(queue, row) and os.environ.keys() >= {*names[row["id"]]}
    ]  # fmt: skip
    for row in chosen:
        if names[row["id"]]:
            _write(queue, row, names[row["id"]])
    return [uid_of(row) for row in chosen]


def _write(queue: Queue, row: Row, names: Sequence[str]) -> None:
    from trainq.artifacts import runs

    runs.write_secret(queue.paths, uid_of(row), {name: os.environ[name] for name in names})
    point("retry.secrets_kept")
