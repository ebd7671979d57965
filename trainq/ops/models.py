"""Model versions: search, show, and whether what lies on the disk is what was published."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trainq.base import hosts
from trainq.base.errors import Damaged, NotFound
from trainq.base.files import status
from trainq.base.units import rfc3339
from trainq.base.words import did_you_mean
from trainq.domain.documents import document as document_of
from trainq.domain.keys import parse_model_ref
from trainq.domain.params import parse_value
from trainq.store import models

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trainq.artifacts.paths import Paths
    from trainq.ops.queue import Queue

Model = dict[str, Any]


def search(
    queue: Queue, *, name: str | None = None, type_: str | None = None, fingerprint: str | None = None,
    params: Mapping[str, str] | None = None, latest: bool = False,
) -> list[Model]:  # fmt: skip
    """Versions that fit, by key and number; with `latest` only the newest of each key.

    `params` as typed: each must be among those the version was trained with. Raises NotFound for a key without
    versions, BadValue for a broken word.
    """
    key, version = (None, None) if name is None else parse_model_ref(name)
    with queue.session.reading() as tx:
        rows = models.search(tx, key=key, type_=type_, fingerprint=fingerprint)
        if key is not None and not rows and models.one(tx, key, None) is None:
            raise _no_key(key, models.keys(tx))
    rows = [row for row in rows if _fits(document_of(row["params"]), params or {})]
    if isinstance(version, int):
        rows = [row for row in rows if row["version"] == version]
    if latest or version == "latest":
        rows = list({row["key"]: row for row in rows}.values())
    return [document(queue.paths, row) for row in rows]


def one(queue: Queue, name: str) -> Model:
    """The version that `KEY`, `KEY@latest` or `KEY@VERSION` names, with its files. Raises NotFound, BadValue."""
    key, version = parse_model_ref(name)
    number = version if isinstance(version, int) else None
    with queue.session.reading() as tx:
        row = models.one(tx, key, number)
        if row is None:
            versions = [known["version"] for known in models.versions(tx, key)]
            if not versions:
                raise _no_key(key, models.keys(tx))
            shown = ", ".join(map(str, versions[-20:]))
            raise NotFound(f"no such version: {key}@{number}; there are {shown}", hint=f"trainq models show {key}")
    return document(queue.paths, row, files=True)


def verified(queue: Queue, fingerprint: str) -> Model | None:
    """The newest version made by this very training, if it is whole on the disk; else None."""
    from trainq.artifacts.manifest import verify

    with queue.session.reading() as tx:
        row = models.newest_of(tx, fingerprint)
    if row is None:
        return None
    try:
        faults = verify(queue.paths.version(row["key"], row["version"]))
    except Damaged:
        return None  # it cannot answer for the training; training again is always right
    return None if faults else document(queue.paths, row, files=True)


def document(paths: Paths, row: Any, *, files: bool = False) -> Model:
    """A version as JSON. `files` come from its manifest; without, or when that is gone, they are null,
    as is whose the directory is."""
    path = paths.version(row["key"], row["version"])
    return {
        "key": row["key"],
        "version": row["version"],
        "path": path,
        "created_at": rfc3339(row["at"]),
        "job": row["job_id"],
        "attempt": row["attempt"],
        "type": row["type"],
        "params": document_of(row["params"]),
        "metrics": document_of(row["metrics"]),
        "fingerprint": row["fingerprint"],
        "files": _files(path) if files else None,
        "size": row["size"],
        "pinned": bool(row["pinned"]),
        "user": row["user"],
        "owner": _owner(path) if files else None,
    }


def whose(model: Model) -> str | None:
    """A word where the directory is not that of the user whose job made the version: what is in it is its owner's."""
    if None in (model["owner"], model["user"]) or model["owner"] == model["user"]:
        return None
    return f"its directory belongs to {model['owner']}, its job to {model['user']}"


def of_others(queue: Queue) -> list[str]:
    """The same of all versions."""
    with queue.session.reading() as tx:
        rows = models.search(tx)
    found = [document(queue.paths, row) for row in rows]
    told = [(model, whose({**model, "owner": _owner(model["path"])})) for model in found]
    return [f"{model['key']}@{model['version']}: {text}" for model, text in told if text]


def _owner(path: str) -> str | None:
    found = status(path)
    return None if found is None else hosts.user_name(found.st_uid)


def _files(path: str) -> list[dict[str, Any]] | None:
    from trainq.artifacts.manifest import read_manifest

    try:
        return list(read_manifest(path)["files"])
    except Damaged:
        return None  # shown as unknown; `models verify` says what is wrong with it


def _fits(given: Mapping[str, Any], wanted: Mapping[str, str]) -> bool:
    """Each wanted value equals the one given, as JSON or as the text it is."""
    return all(name in given and _is_same(given[name], text) for name, text in wanted.items())


def _is_same(value: Any, text: str) -> bool:
    if isinstance(value, str):
        return value == text or value == parse_value(text)
    typed = parse_value(text)
    return typed == value and (type(typed) is type(value) or (_is_number(typed) and _is_number(value)))


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _no_key(key: str, known: Sequence[str]) -> NotFound:
    near = did_you_mean(key, known) if len(known) <= 20 else ""
    return NotFound(f"no such model: {key}{near}", hint="trainq models list")
