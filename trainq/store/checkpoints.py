"""The rows of checkpoints: committed under a claim, or they do not count."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from trainq.store.jobs import current

if TYPE_CHECKING:
    from trainq.domain.job import Claim
    from trainq.store.session import Transaction


class NewCheckpoint(NamedTuple):
    """A complete checkpoint directory, as the job announced it."""

    number: int
    step: int | None
    epoch: int | None
    digest: str
    size: int


def commit(tx: Transaction, claim: Claim, checkpoint: NewCheckpoint) -> None:
    """Name a checkpoint for the attempts to come. Raises LostClaim.

    Saying it twice changes nothing. Another one of a number that was given before takes its place: the job has it on the
    disk under that name, so the earlier one is gone.
    """
    current(tx, claim)
    tx.rows(
        "INSERT INTO checkpoint(job_id, number, attempt, at, step, epoch, digest, size) VALUES(?, ?, ?, ?, ?, ?, ?, ?)"
        " ON CONFLICT(job_id, number) DO UPDATE SET attempt = excluded.attempt, at = excluded.at, step = excluded.step,"
        " epoch = excluded.epoch, digest = excluded.digest, size = excluded.size WHERE digest <> excluded.digest",
        (claim.job_id, checkpoint.number, claim.attempt, tx.now, *checkpoint[1:]),
    )
