"""The rows of model versions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trainq.store.session import Transaction


_MODEL = (
    "SELECT m.*, coalesce(j.user, p.user) AS user FROM model m"
    " LEFT JOIN job j ON j.id = m.job_id LEFT JOIN past p ON p.id = m.job_id"
)
"""With whose job made it, as long as anything is left of that job."""


def versions(tx: Transaction, key: str) -> list[Any]:
    """All versions of a key, oldest first."""
    return tx.rows(f"{_MODEL} WHERE m.key = ? ORDER BY m.version", (key,))


def one(tx: Transaction, key: str, version: int | None) -> Any:
    """That version of a key, or its newest; None when there is none."""
    if version is None:
        return tx.one(f"{_MODEL} WHERE m.key = ? ORDER BY m.version DESC LIMIT 1", (key,))
    return tx.one(f"{_MODEL} WHERE m.key = ? AND m.version = ?", (key, version))


def keys(tx: Transaction) -> list[str]:
    """Every key that has a version."""
    return [row[0] for row in tx.rows("SELECT DISTINCT key FROM model ORDER BY key")]


def search(
    tx: Transaction, *, key: str | None = None, type_: str | None = None, fingerprint: str | None = None
) -> list[Any]:
    """Versions that match, by key and number; a fingerprint may be cut short."""
    where, values = ["1"], []
    if key is not None:
        where.append("m.key = ?")
        values.append(key)
    if type_ is not None:
        where.append("m.type = ?")
        values.append(type_)
    if fingerprint is not None:
        where.append("m.fingerprint >= ? AND m.fingerprint < ?")
        values += [fingerprint, fingerprint + "g"]
    return tx.rows(f"{_MODEL} WHERE {' AND '.join(where)} ORDER BY m.key, m.version", values)


def newest_of(tx: Transaction, fingerprint: str) -> Any:
    """The newest version made by this very training, or None."""
    return tx.one(f"{_MODEL} WHERE m.fingerprint = ? ORDER BY m.at DESC, m.version DESC LIMIT 1", (fingerprint,))


def of_job(tx: Transaction, job_id: int) -> Any:
    """The version this job made, if it still exists."""
    return tx.one("SELECT * FROM model WHERE job_id = ? ORDER BY version DESC LIMIT 1", (job_id,))


def forget(tx: Transaction, key: str, version: int) -> bool:
    """Un-name a version; its directory is removed after the commit."""
    return tx.changed("DELETE FROM model WHERE key = ? AND version = ?", (key, version)) > 0


def is_named(tx: Transaction, key: str, version: int) -> bool:
    """Whether a row names this version."""
    return tx.value("SELECT 1 FROM model WHERE key = ? AND version = ?", (key, version)) is not None
