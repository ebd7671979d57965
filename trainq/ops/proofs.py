"""Whose the jobs of a group's queue are: the owner of a spec file, if it is of the job that the rows speak of.

A column can be written by every member of the group. A file that belongs to somebody else cannot be made, so a worker
believes the file. Files of calls whose jobs are all gone are deleted like kept variables: under the gate, after a look.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from trainq.artifacts import proofs
from trainq.base import files, hosts
from trainq.base.crash import point
from trainq.base.errors import Denied
from trainq.domain import proof
from trainq.store import claims, jobs

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

    from trainq.artifacts.paths import Paths
    from trainq.domain.job import Claimed
    from trainq.ops.queue import Queue
    from trainq.store.session import Session, Transaction


PIECE = 100
"""So many jobs are read at a time by who goes on without the gate."""


def require(paths: Paths, claimed: Claimed, users: Collection[int] | None = None) -> None:
    """A job is its owner's, as it was submitted, and (`users`) the owner is one of these. Raises Denied, and the errors
    of sick storage."""
    row = claimed.row
    said = f"job {row['id']} is said to be that of {row['user']} (uid {row['user_id']})"
    try:
        found = proofs.read(paths, claimed.uid)
    except Denied as error:
        raise Denied(f"{said}, and nothing proves it: {error.message}") from None
    if found.user_id != row["user_id"]:
        raise Denied(f"{said}, but its spec file belongs to {hosts.known_as(found.user_id)}")
    if users is not None and found.user_id not in users:
        raise Denied(f"{said}, whose jobs are not run here")
    try:
        digest = proof.of_claimed(claimed)
    except (TypeError, ValueError, RecursionError):  # of another type than trainq writes
        digest = ""
    if digest not in found.digests:
        raise Denied(f"{said}, but it is not what {hosts.known_as(found.user_id)} has submitted: its rows were changed")


class Renewal(NamedTuple):
    """What a spec file has to tell of a job that is edited: its uid, the digest that it has and the one that it will have."""

    uid: str
    old: str
    new: str


def renewal(
    tx: Transaction, queue: Queue, job_id: int, columns: Mapping[str, Any], spec: Mapping[str, Any]
) -> Renewal | None:
    """What must be renewed before a job has these columns and this document; None: nothing of it is proved by the file.

    Raises Denied for who is not its owner, and where the rows are not what the owner has submitted.
    """
    try:
        claimed = claims.as_claimed(tx, job_id)
    except claims.Unreadable as error:
        raise Denied(str(error)) from None
    if claimed is None:
        return None
    try:
        old, new = (
            proof.of_claimed(one) for one in (claimed, claimed._replace(row={**claimed.row, **columns}, spec=spec))
        )
    except (TypeError, ValueError, RecursionError):  # of another type than trainq writes
        raise Denied(f"job {job_id} is not what was submitted: its rows were changed") from None
    if old == new:
        return None
    if queue.actor.user_id != claimed.row["user_id"]:
        whose = f"job {job_id} belongs to {claimed.row['user']}"
        raise Denied(f"{whose}, and only its owner may edit what its spec file proves")
    require(queue.paths, claimed)
    return Renewal(claimed.uid, old, new)


def renew(paths: Paths, renewals: Iterable[Renewal]) -> None:
    """Let the spec files tell of what these jobs will be, and still of what they are: the rows may not change after all."""
    by_call: dict[str, dict[int, tuple[str, str]]] = {}
    for one in renewals:
        call, _, place = one.uid.rpartition(".")
        by_call.setdefault(call, {})[int(place)] = (one.old, one.new)
    for call, digests in by_call.items():
        proofs.renew(paths, call, digests)


def unproved(tx: Transaction, paths: Paths) -> Iterator[str]:
    """Of the jobs that wait or run, or were not run for that: what is wrong with each that is not proved."""
    for job_id in jobs.to_prove(tx, -1):
        fault = _fault(paths, _read(tx, job_id))
        if fault is not None:
            yield fault


def unproved_outside(session: Session, paths: Paths, limit: int) -> Iterator[str]:
    """The same for the oldest jobs, for who shall keep nobody from the gate: rows are read a piece at a time, and files
    without it. What is found so may have ended meanwhile, and is looked at again."""
    with session.reading() as tx:
        ids = jobs.to_prove(tx, limit)
    for first in range(0, len(ids), PIECE):
        with session.reading() as tx:
            found = {job_id: _read(tx, job_id) for job_id in ids[first : first + PIECE]}
        doubtful = [job_id for job_id, one in found.items() if _fault(paths, one) is not None]
        if doubtful:
            with session.reading() as tx:
                still = set(jobs.to_prove(tx, -1)).intersection(doubtful)
                faults = [_fault(paths, _read(tx, job_id)) for job_id in sorted(still)]
            yield from (fault for fault in faults if fault is not None)


def _read(tx: Transaction, job_id: int) -> Claimed | claims.Unreadable | None:
    try:
        return claims.as_claimed(tx, job_id)
    except claims.Unreadable as error:
        return error


def _fault(paths: Paths, found: Claimed | claims.Unreadable | None) -> str | None:
    """What is wrong with a job, if it is there and not proved."""
    if isinstance(found, claims.Unreadable):
        return str(found)
    try:
        if found is not None:
            require(paths, found)
    except Denied as error:
        return error.message
    return None


def is_needed(tx: Transaction, paths: Paths, call: str, before: float) -> bool:
    """Whether a job of this call has a row, or may be about to: the call is not known, and the file not older than that."""
    if jobs.find_submission(tx, call) is not None:
        return jobs.has_jobs(tx, call)
    found = files.status(paths.spec(call))
    return found is None or found.st_ctime > before


def is_due(session: Session, paths: Paths, call: str, before: float) -> bool:
    """Whether `drop` would delete it."""
    with session.reading() as tx:
        return not is_needed(tx, paths, call, before)


def drop(session: Session, paths: Paths, call: str, before: float) -> bool:
    """Delete the spec file of a call of which no row tells. Raises the errors of sick storage."""
    if not is_due(session, paths, call, before):
        return False
    with session.writing() as tx:
        is_gone = not is_needed(tx, paths, call, before) and proofs.drop(paths, call)
        point("proofs.dropped")
        return is_gone
