"""The claim: the step from `pending` to `running`, and what who claims gets with it.

Everything of a job that is needed to run it comes with its claim, read in the same transaction. What its rows say may have
been written by another member of a group: what trainq cannot have written is that job's end, not its worker's.
"""

from __future__ import annotations

import functools
import json
from typing import TYPE_CHECKING, Any, NamedTuple

from trainq.domain.job import Claim, Claimed, DataSet, Outcome, Progress
from trainq.domain.shape import PLAIN
from trainq.store import jobs

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from trainq.domain.schedule import Pick
    from trainq.domain.shape import Shape
    from trainq.store.session import Transaction


class Claimant(NamedTuple):
    """The worker that claims, by the number and name of its row and the name of its host."""

    id: int
    name: str
    host: str


class Unreadable(Exception):  # a fact, too
    """What the rows say of a job is nothing that trainq writes. A claim of it has ended, in the same transaction."""

    def __init__(self, job_id: int, why: object) -> None:
        super().__init__(f"job {job_id} cannot be read, its rows were changed: {why}")
        self.job_id = job_id


def claim(tx: Transaction, who: Claimant, pick: Pick) -> Claimed | None:
    """Claim what was picked; None when nothing waits in that lane, or the job that was picked waits no more.

    Raises Unreadable for one that ends here and now, errored as `poison`: the next call finds the next one.
    """
    devices = pick.devices
    rows = tx.named(
        "claim", lane_id=pick.lane.id, job_id=pick.job_id, worker_id=who.id, worker=who.name, host=who.host,
        gpus=",".join(device.id for device in devices) if devices else None,
        device=devices[0].name if devices else None,
    )  # fmt: skip
    if not rows:
        return None
    row = rows[0]
    try:
        claimed = _claimed(tx, row, who.id, pick.lane.shape, tuple(device.id for device in devices))
        return claimed if row["attempt"] == 1 else _with_past(tx, claimed)
    except Unreadable as error:
        jobs.settle(tx, Claim(row["id"], row["attempt"], who.id), Outcome("poison", error=str(error)), Progress())
        raise


def unknown_claims(tx: Transaction, worker_id: int, known: Iterable[Claim]) -> list[Claim]:
    """Claims of this worker that it does not know of: a commit answered with an error and had gone through."""
    sql = "SELECT id, attempt FROM job INDEXED BY job_open WHERE state = 'running' AND worker_id = ? ORDER BY id"
    ours = set(known)
    return [claim for row in tx.rows(sql, (worker_id,)) if (claim := Claim(row[0], row[1], worker_id)) not in ours]


def as_claimed(tx: Transaction, job_id: int) -> Claimed | None:
    """A job as who claims it would get it, for who looks at it only; None when there is no such job. Raises Unreadable."""
    row = tx.one("SELECT * FROM job WHERE id = ?", (job_id,))
    return None if row is None else _claimed(tx, row, row["worker_id"] or 0)


def _claimed(tx: Transaction, row: Any, worker_id: int, shape: Shape = PLAIN, gpus: tuple[str, ...] = ()) -> Claimed:
    try:
        claimed = _decoded(tx, row, worker_id, shape, gpus)
        _require_types(claimed)
    except (TypeError, ValueError, KeyError, RecursionError) as error:
        raise Unreadable(row["id"], error) from error
    return claimed


def _require_types(claimed: Claimed) -> None:
    """What is used before anything is proved, or by what ends a job, has its type. Raises TypeError."""
    spec: Any = claimed.spec
    environ: Any = claimed.environ
    data: Any = claimed.data
    is_right = (
        isinstance(spec, dict)
        and isinstance(environ, dict)
        and isinstance(claimed.row["attempt"], int)
        and isinstance(spec.get("cwd", "/"), str)
        and isinstance(spec.get("warn_s", 0), (int, float))
        and isinstance(spec.get("stall_after_s", 0), (int, float))
        and all(isinstance(one.name, str) and isinstance(one.z, (bytes, type(None))) for one in data)
    )
    if not is_right:
        raise TypeError("something of another type than trainq writes stands there")


def _decoded(tx: Transaction, row: Any, worker_id: int, shape: Shape, gpus: tuple[str, ...]) -> Claimed:
    number = row["id"]
    common = tx.one(
        "SELECT s.uid, s.first_id, s.umask, e.doc, p.doc AS spec,"
        " EXISTS(SELECT 1 FROM job_data WHERE job_id = p.job_id) AS has_data FROM submission s"
        " JOIN environ e ON e.id = s.environ_id JOIN spec p ON p.job_id = ? WHERE s.id = ?",
        (number, row["submission_id"]),
    )
    if common is None:
        raise ValueError("what belongs to them is gone")
    uid, first_id, umask, environ, spec, has_data = common
    return Claimed(
        claim=Claim(number, row["attempt"], worker_id),
        uid=f"{uid}.{number - first_id}",
        row=row,
        spec=json.loads(spec),
        environ=_parsed(environ),
        umask=umask,
        data=data_of(tx, number) if has_data else (),
        shape=shape,
        gpus=gpus,
    )


def _with_past(tx: Transaction, claimed: Claimed) -> Claimed:
    """The same with what earlier attempts left: committed checkpoints, which of them crashed, and why the last ended."""
    number = claimed.claim.job_id
    saved = tx.rows("SELECT number, digest FROM checkpoint WHERE job_id = ? ORDER BY number", (number,))
    cause = "SELECT cause FROM event WHERE job_id = ? AND claimed_at IS NOT NULL ORDER BY n DESC LIMIT 1"
    return claimed._replace(
        checkpoints=tuple((row[0], row[1]) for row in saved),
        suspects={row[0]: row[1] for row in tx.named("suspects", id=number)} if saved else {},
        last_cause=tx.value(cause, (number,)),
    )


@functools.lru_cache(maxsize=16)
def _parsed(doc: str) -> Mapping[str, Any]:
    """The environment of a submit call; its jobs share it, so nobody changes it."""
    return json.loads(doc)  # type: ignore[no-any-return]


def data_of(tx: Transaction, job_id: int) -> tuple[DataSet, ...]:
    """The training sets of a job, by name."""
    sql = (
        "SELECT n.name, d.sha256, d.size, d.stored_size, d.z FROM job_data n JOIN data d ON d.id = n.data_id"
        " WHERE n.job_id = ? ORDER BY n.name"
    )
    return tuple(DataSet(*row) for row in tx.rows(sql, (job_id,)))
