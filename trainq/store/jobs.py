"""The verbs of a job's life: submit, beat, finish, cancel, retry; claims.py has the claim. Each takes the transaction.

A verb that writes for a running attempt takes its claim and raises LostClaim when that is not current; then nothing
was changed. Who calls is `worker/` for the claim's side and `ops/` for the people's.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

from trainq.domain import held
from trainq.domain.documents import document
from trainq.domain.job import Budget, Claim, Decision, Outcome, Progress, decide, grow
from trainq.domain.shape import encoded, shape_of
from trainq.store import dependants, holds, lanes
from trainq.store.holds import note

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from trainq.domain.job import DataSet, NewArray, NewJob, NewModel, Submission
    from trainq.store.session import Transaction


class LostClaim(Exception):  # a fact, not a fault
    """The claim is not current any more: stop working, publish nothing."""

    def __init__(self, claim: Claim) -> None:
        super().__init__(f"job {claim.job_id}, attempt {claim.attempt}: the claim is lost")
        self.claim = claim


DONE = Decision("done")
CANCELED = Decision("canceled", "user")


class Promoted(NamedTuple):
    """What came due. `ended` never started: skipped, or past their deadline. `told`: of somebody's end. Not `is_all`: more
    deadlines have passed than were worked off, so nothing is to be claimed before the next call."""

    ended: list[int]
    told: bool
    is_all: bool


class Flags(NamedTuple):
    """What people want of a running job: whether a cancel was asked for, and the grace it named (None: the job's own);
    and who wants it to stand still."""

    cancel: bool = False
    grace_s: float | None = None
    frozen_by: str | None = None


NOTHING = Flags()


def submit(tx: Transaction, submission: Submission, jobs: Sequence[NewJob], array: NewArray | None = None) -> range:
    """Put jobs in, all or none; their ids, one after the other in the order given. With `array` they are its tasks, and
    the number before theirs is its own.

    Repeating a call with the same submission uid changes nothing and answers the same ids.
    """
    known = find_submission(tx, submission.uid)
    if known is not None:
        return known
    environ_id = _keep_environ(tx, submission.environ)
    last = tx.value("SELECT seq FROM sqlite_sequence WHERE name = 'job'") or 0
    array_id = None if array is None else last + 1
    first = last + 1 if array is None else last + 2
    ids = range(first, first + len(jobs))
    actor = submission.actor
    tx.rows(
        "INSERT INTO submission(uid, first_id, count, at, user, user_id, host, umask, environ_id)"
        " VALUES(?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (submission.uid, ids.start, len(ids), tx.now, actor.user, actor.user_id, actor.host, submission.umask, environ_id),
    )  # fmt: skip
    submission_id = tx.value("SELECT id FROM submission WHERE uid = ?", (submission.uid,))
    by = str(actor)
    in_lanes = {}
    for kind, n in Counter((job.queue, job.shape) for job in jobs).items():
        limit = (array_id, array.most) if array_id and array is not None and array.most else (0, None)
        in_lanes[kind] = lanes.intern(tx, kind[0], actor.user_id, kind[1], *limit)
        lanes.join(tx, in_lanes[kind], n)
    edges = dependants.of_new(tx, ids, jobs)
    free, of_held = holds.free(tx.now), holds.of_new(tx.now, ids, jobs, edges)
    tx.many(
        "INSERT INTO job(id, submission_id, lane_id, queue, priority, type, name, key, fingerprint, model_key, tags, user,"
        f" user_id, submitted_at, changed_at, changed_by, max_attempts, retries, time_s, grace_s, array_id, array_index, {holds.COLUMNS})"
        f" VALUES({', '.join('?' * 31)})",
        (
            (
                number, submission_id, in_lanes[job.queue, job.shape], job.queue, job.priority, job.type, job.name, job.key, job.fingerprint,
                job.model_key, job.tags, actor.user, actor.user_id, tx.now, tx.now, by, job.max_attempts,
                job.retries, job.time_s, job.grace_s, array_id, job.array_index, *of_held.get(number, free),
            )
            for number, job in zip(ids, jobs, strict=True)
        ),
    )  # fmt: skip
    tx.many("INSERT INTO spec VALUES(?, ?)", zip(ids, (job.spec for job in jobs), strict=True))
    for number, job in zip(ids, jobs, strict=True):
        for item in job.data:
            _name_data(tx, number, item)
    tx.named("count_in", first=ids.start, last=ids.stop - 1)
    if array is not None:
        tx.named("count_into_array", array_id=array_id, most=array.most, first=ids.start, last=ids.stop - 1)
    dependants.put_in(tx, edges)
    dependants.tell(tx)
    return ids


def find_submission(tx: Transaction, uid: str) -> range | None:
    """The ids of a submit call that went through, None if it did not."""
    row = tx.one("SELECT CAST(first_id AS INTEGER), CAST(count AS INTEGER) FROM submission WHERE uid = ?", (uid,))
    return None if row is None else range(row[0], row[0] + row[1])


def active_with_key(tx: Transaction, key: str) -> int | None:
    """The job that waits or runs under this key."""
    sql = "SELECT id FROM job WHERE key = ? AND state IN ('held','pending','running') ORDER BY id DESC LIMIT 1"
    found: int | None = tx.value(sql, (key,))
    return found


def active_with_fingerprint(tx: Transaction, fingerprint: str) -> int | None:
    """The job that waits or runs for this very training."""
    sql = "SELECT id FROM job WHERE fingerprint = ? AND state IN ('held','pending','running') ORDER BY id DESC LIMIT 1"
    found: int | None = tx.value(sql, (fingerprint,))
    return found


def active_of(tx: Transaction, fingerprints: Sequence[str]) -> dict[str, int]:
    """Of these trainings those that wait or run, each with its job."""
    sql = (
        "SELECT j.fingerprint, j.id FROM json_each(?) f JOIN job j ON j.fingerprint = f.value"
        " WHERE j.state IN ('held','pending','running')"
    )
    return {row[0]: row[1] for row in tx.rows(sql, (json.dumps(fingerprints),))}


def count_active(tx: Transaction) -> int:
    """How many jobs wait or run, from the counters."""
    return int(tx.value("SELECT total(n) FROM count WHERE counted_as IN ('held','open')"))


def promote(tx: Transaction) -> Promoted:
    """End what has not started by its deadline, make due jobs eligible, and tell the dependants of what has ended."""
    if not is_due(tx):
        return Promoted([], told=False, is_all=True)
    late = [row[0] for row in tx.named("too_late")]
    tx.named("promote")
    is_told = dependants.is_any(tx)
    skipped = dependants.tell(tx)
    return Promoted([*late, *skipped], is_told, is_all=len(late) < dependants.MOST)


def is_active_uid(tx: Transaction, uid: str) -> bool:
    """Whether the job of this uid waits or runs."""
    call, _, place = uid.rpartition(".")
    known = find_submission(tx, call) if place.isdecimal() else None
    if known is None or int(place) >= len(known):
        return False
    sql = "SELECT 1 FROM job WHERE id = ? AND state IN ('held','pending','running')"
    return tx.value(sql, (known[int(place)],)) is not None


def has_jobs(tx: Transaction, uid: str) -> bool:
    """Whether a job of this submit call has a row still."""
    sql = (
        "SELECT EXISTS(SELECT 1 FROM job WHERE job.id BETWEEN s.first_id AND s.first_id + s.count - 1)"
        " FROM submission s WHERE s.uid = ?"
    )
    return bool(tx.value(sql, (uid,)))


def to_prove(tx: Transaction, limit: int) -> list[int]:
    """Jobs of which it matters whose they are: those that wait or run, and those that were not run for that."""
    sql = (
        "SELECT id FROM job WHERE state IN ('held','pending','running') OR (state = 'errored' AND reason = 'poison')"
        " ORDER BY id LIMIT ?"
    )
    return [row[0] for row in tx.rows(sql, (limit,))]


def next_due(tx: Transaction) -> float | None:
    """When the next held job comes due, or a deadline passes, in the backend's time; in the past, if somebody has to be told
    of an end."""
    found: float | None = tx.named("next_due")[0][0]
    return found


def is_due(tx: Transaction) -> bool:
    """Whether `promote` has something to do now."""
    due = next_due(tx)
    return due is not None and due <= tx.now


def waiting(tx: Transaction, queues: Iterable[str], states: Sequence[str]) -> int:
    """How many jobs are in these states in these queues, from the counters."""
    pairs = [(queue, state) for queue in queues for state in states]
    return sum(tx.value("SELECT n FROM counts WHERE queue = ? AND state = ?", pair) or 0 for pair in pairs)


def asked_of(tx: Transaction, worker_id: int) -> dict[int, Flags]:
    """The running jobs of a worker of which somebody wants something."""
    sql = (
        "SELECT id, cancel_at IS NOT NULL, CAST(cancel_grace_s AS REAL),"
        " CASE WHEN freeze_at IS NOT NULL THEN coalesce(CAST(freeze_by AS TEXT), '') END FROM job INDEXED BY job_open"
        " WHERE state = 'running' AND worker_id = ? AND coalesce(cancel_at, freeze_at) IS NOT NULL"
    )
    return {row[0]: Flags(bool(row[1]), *row[2:]) for row in tx.rows(sql, (worker_id,))}


def has_ended(tx: Transaction, claim: Claim, decision: Decision | None) -> bool:
    """Whether this attempt's end is written already, and is the one that was decided here, not somebody else's."""
    if decision is None:
        return False
    sql = "SELECT state, reason FROM event WHERE job_id = ? AND attempt = ? AND claimed_at IS NOT NULL"
    row = tx.one(sql, (claim.job_id, claim.attempt))
    return row is not None and (row[0], row[1]) == (decision.state, decision.reason)


def beat(tx: Transaction, claim: Claim, progress: Progress) -> Flags:
    """Renew the lease and store the newest progress; what is asked of the job. Raises LostClaim."""
    rows = tx.named("beat", **claim_values(claim), **progress._asdict())
    if not rows:
        raise LostClaim(claim)
    return Flags(bool(rows[0][0]), *rows[0][1:])


def settle(tx: Transaction, claim: Claim, outcome: Outcome, last: Progress) -> Decision:
    """End an attempt; where the job went. Raises LostClaim.

    A success with a model goes through `publish`, so that the number, the row and `done` are one transaction.
    """
    if outcome.cause is None and _done(tx, claim, outcome, last, None):
        return DONE
    return _finish(tx, claim, outcome, last)


def publish(
    tx: Transaction, claim: Claim, outcome: Outcome, last: Progress, model: NewModel, on_disk: int
) -> int | None:
    """End an attempt that made a model: its version number, or None when a cancel won (then there is no model row).

    `on_disk` is the highest number that lies in the key's directory or aside. The caller moves the sealed directory
    to the number answered before the transaction commits. Raises LostClaim.
    """
    if outcome.cause is not None:
        raise ValueError(f"{outcome.cause}: only a success is published")
    if current(tx, claim)["cancel_at"] is not None:
        _finish(tx, claim, outcome, last)
        return None
    version = int(tx.named("next_version", key=model.key, on_disk=on_disk)[0][0])
    tx.rows(
        "INSERT INTO model(key, version, at, job_id, attempt, type, params, metrics, fingerprint, size, manifest_sha256)"
        " VALUES(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (model.key, version, tx.now, claim.job_id, claim.attempt, *model[1:]),
    )
    if not _done(tx, claim, outcome, last, version):
        raise LostClaim(claim)
    return version


def _done(tx: Transaction, claim: Claim, outcome: Outcome, last: Progress, version: int | None) -> bool:
    """Write a success; false when the claim is not current or a cancel is asked for."""
    return tx.changes(
        "done", id=claim.job_id, attempt=claim.attempt, worker_id=claim.worker_id, exit_code=outcome.exit_code,
        metrics=last.metrics, model_version=version, step=last.step, total=last.total, note=last.note,
        save_failed=last.save_failed, resumed_from=last.resumed_from, pid=last.pid, started_ago_s=last.started_ago_s,
        storing_ago_s=last.storing_ago_s,
    ) > 0  # fmt: skip


def say(tx: Transaction, claim: Claim, message: str) -> None:
    """A word for people on a running attempt; it stays with its end, in the row and in history. Nobody's word is
    written over: not that of a cancel."""
    tx.rows(
        "UPDATE job SET message = ? WHERE id = ? AND attempt = ? AND worker_id = ? AND state = 'running'"
        " AND cancel_at IS NULL",
        (message, claim.job_id, claim.attempt, claim.worker_id),
    )


def claim_values(claim: Claim) -> dict[str, int]:
    """The fence of a statement."""
    return {"id": claim.job_id, "attempt": claim.attempt, "worker_id": claim.worker_id}


def current(tx: Transaction, claim: Claim) -> Any:
    """The job's row if the claim is current. Raises LostClaim."""
    rows = tx.named("held_by", **claim_values(claim))
    if not rows:
        raise LostClaim(claim)
    return rows[0]


def _finish(tx: Transaction, claim: Claim, outcome: Outcome, last: Progress) -> Decision:
    row = current(tx, claim)
    spec = document(tx.value("SELECT doc FROM spec WHERE job_id = ?", (claim.job_id,))) if outcome.cause else {}
    decision = decide(outcome, budget_of(row, spec))
    values = last._asdict()
    del values["stage"]
    changed = tx.changes(
        "finish", **claim_values(claim), **values, state=decision.state, reason=decision.reason, side=decision.side,
        by=row["cancel_by"] if decision.state == "canceled" else None,
        due_at=None if decision.delay_s is None else tx.now + decision.delay_s, user_cost=decision.user_cost,
        system_cost=decision.system_cost, cause=outcome.cause, exit_code=outcome.exit_code, signal=outcome.signal,
        error=None if decision.state == "canceled" else outcome.error, message=_why(decision, outcome, row),
        idle_requeues=decision.idle_requeues,
    )  # fmt: skip
    if not changed:
        raise LostClaim(claim)
    if outcome.cause == "oom" and decision.state == "held" and spec.get("retry_grow"):
        try:
            grown = json.dumps(grow(spec))
        except (TypeError, ValueError):
            return decision  # its document was changed: what is not in it does not grow
        tx.rows("UPDATE spec SET doc = ? WHERE job_id = ?", (grown, claim.job_id))
        _move_to_lane(tx, claim.job_id, json.loads(grown))
    return decision


def _move_to_lane(tx: Transaction, job_id: int, spec: Mapping[str, Any]) -> None:
    """A job that asks for something else now waits with those that ask for the same; not if its document was changed."""
    try:
        shape = encoded(shape_of(spec))
    except (TypeError, ValueError):
        return
    row = tx.one("SELECT l.* FROM job j JOIN lane l ON l.id = j.lane_id WHERE j.id = ?", (job_id,))
    if row is not None:
        lane_id = lanes.intern(tx, row["queue"], row["user_id"], shape, row["array_id"], row["most"])
        tx.rows("UPDATE job SET lane_id = ? WHERE id = ?", (lane_id, job_id))


def _why(decision: Decision, outcome: Outcome, row: Any) -> str | None:
    if decision.state == "canceled":
        return row["message"]  # type: ignore[no-any-return]
    if decision.state == "held":
        return f"{outcome.error}; retry {row['user_used'] + 1} of {row['retries']} in {decision.delay_s:g} s"
    return outcome.error


def budget_of(row: Any, spec: Mapping[str, Any]) -> Budget:
    """What the job may still cost; none of its user's retries when its document was changed."""
    try:
        retry_on, backoff_s = tuple(spec.get("retry_on", ())), float(spec.get("backoff_s", 10.0))
    except (TypeError, ValueError, OverflowError):
        retry_on, backoff_s = (), 0.0
    return Budget(
        cancel_requested=row["cancel_at"] is not None,
        user_used=row["user_used"],
        retries=row["retries"],
        retry_on=retry_on,
        backoff_s=backoff_s,
        system_used=row["system_used"],
        max_attempts=row["max_attempts"],
        idle_requeues=row["idle_requeues"],
    )


def request_cancel(tx: Transaction, job_id: int, by: str, *, grace_s: float | None, message: str | None) -> str:
    """Cancel a job: `canceled` at once, `canceling` when it runs, `already`, or the state it has ended in."""
    row = tx.one("SELECT state, cancel_at FROM job WHERE id = ?", (job_id,))
    if row is None:
        return "unknown"
    if row["state"] in ("held", "pending"):
        tx.named("cancel_waiting", id=job_id, by=by, message=message)
        return "canceled"
    if row["state"] == "running":
        asked = row["cancel_at"] is not None
        tx.named("cancel_running", id=job_id, by=by, grace_s=grace_s, message=message)
        if not asked:
            note(tx, job_id, "running", "canceling", by, message)
        return "canceling"
    return "already" if row["state"] == "canceled" else str(row["state"])


def are_canceled(tx: Transaction, ids: Iterable[int], *, at_once: bool) -> bool:
    """Whether each of these is canceled, or runs and is asked to end (`at_once`: without any grace)."""
    sql = (
        "SELECT 1 FROM job WHERE id = ? AND (state = 'canceled'"
        " OR (state = 'running' AND cancel_at IS NOT NULL AND (NOT ? OR cancel_grace_s = 0)))"
    )
    return all(tx.value(sql, (job_id, at_once)) for job_id in ids)


def retry(tx: Transaction, job_id: int, by: str) -> bool:
    """Run an errored or canceled job again under its id, once what it comes after and its begin allow it; a person's hold
    is none any more. False when its state does not allow it."""
    sql = "SELECT CAST(begin_at AS REAL) AS begin_at FROM job WHERE id = ? AND state IN ('errored', 'canceled')"
    row = tx.one(sql, (job_id,))
    if row is None:
        return False
    begin_at = row["begin_at"]
    due_at = begin_at if begin_at is not None and begin_at > tx.now else None
    reason = held.holds(False, dependants.wait_again(tx, job_id), due_at, begin_at, tx.now)
    state = "held" if reason else "pending"
    return bool(tx.named("retry", id=job_id, by=by, state=state, reason=reason, due_at=due_at))


def note_hook(tx: Transaction, job_id: int, message: str) -> None:
    """A row of history for a hook that failed; the job stays as it is."""
    state = tx.value("SELECT state FROM history WHERE job_id = ? ORDER BY n DESC LIMIT 1", (job_id,))
    if state is not None:
        note(tx, job_id, state, "hook", None, message)


def _keep_environ(tx: Transaction, doc: str) -> int:
    digest = hashlib.sha256(doc.encode()).hexdigest()
    tx.rows("INSERT INTO environ(sha256, doc) VALUES(?, ?) ON CONFLICT(sha256) DO NOTHING", (digest, doc))
    return int(tx.value("SELECT id FROM environ WHERE sha256 = ?", (digest,)))


def _name_data(tx: Transaction, job_id: int, item: DataSet) -> None:
    tx.rows(
        "INSERT INTO data(sha256, size, stored_size, at, z) VALUES(?, ?, ?, ?, ?) ON CONFLICT(sha256) DO NOTHING",
        (item.sha256, item.size, item.stored_size, tx.now, item.z),
    )
    tx.rows(
        "INSERT INTO job_data SELECT ?, ?, id FROM data WHERE sha256 = ?",
        (job_id, item.name, item.sha256),
    )
