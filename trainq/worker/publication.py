"""The last step of an attempt that made a model: sealed outside the transaction, numbered and named inside it.

A crash between the rename and the COMMIT leaves a directory no row names: the next publisher counts over it, the
janitor puts it aside. What could not be published is kept where it lies.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

from trainq.artifacts import manifest
from trainq.artifacts import models as model_files
from trainq.base import sharing
from trainq.base.crash import point
from trainq.base.errors import TrainqError
from trainq.domain.job import NewModel
from trainq.domain.retention import to_remove
from trainq.store import jobs, models

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from trainq.artifacts.paths import Paths
    from trainq.base.settings import Keep
    from trainq.domain.job import Claimed, Decision, Outcome, Progress
    from trainq.store.session import Transaction


class Removed(NamedTuple):
    """A version that has no row any more; its directory is put aside after the commit."""

    key: str
    version: int


class Publication:
    """A staged directory on its way to a version."""

    def __init__(self, claimed: Claimed, paths: Paths, staged: str, keep: Keep, now: Callable[[], float]) -> None:
        self.claimed = claimed
        self.paths = paths
        self.staged: str | None = staged
        self.keep = claimed.spec.get("keep", keep.models)
        self.file_grace_s = keep.file_grace
        self.now = now
        self.model: NewModel | None = None
        self.version: int | None = None
        self.removed: list[Removed] = []

    def seal(self, metrics: Mapping[str, float | None]) -> None:
        """Hash and sync what the job left; no model when it left nothing. For the pool. Raises ModelError and the
        errors of sick storage."""
        assert self.staged is not None
        row, spec = self.claimed.row, self.claimed.spec
        facts: dict[str, Any] = {
            "key": row["model_key"], "job": row["id"], "job_uid": self.claimed.uid, "attempt": row["attempt"],
            "type": row["type"], "params": spec.get("params") or {}, "seed": spec.get("seed", 0), "metrics": dict(metrics),
            "fingerprint": row["fingerprint"], "data": {item.name: item.sha256 for item in self.claimed.data},
        }  # fmt: skip
        sealed = manifest.seal(self.staged, facts)
        if sealed is not None:
            self.model = NewModel(
                row["model_key"], row["type"], json.dumps(facts["params"]), json.dumps(facts["metrics"]),
                row["fingerprint"], sealed.size, sealed.digest,
            )  # fmt: skip

    def publish(self, tx: Transaction, outcome: Outcome, last: Progress) -> Decision:
        """Number, rename, row, `done` and retention in the caller's transaction. Raises LostClaim, and what the rename
        raises. May be called again when the commit failed."""
        assert self.model is not None
        key = self.model.key
        placed = self.version  # by a turn whose commit failed
        on_disk = model_files.highest_version(self.paths, key)
        if placed is not None and placed == on_disk:
            on_disk -= 1
        if placed is not None:
            self.staged = model_files.find_placed(self.paths, key, placed)
        self.version = jobs.publish(tx, self.claimed.claim, outcome, last, self.model, on_disk)
        if self.version is None:
            if placed is not None:
                self.staged, self.removed = None, [Removed(key, placed)]
            return jobs.CANCELED
        assert self.staged is not None
        self.staged = model_files.place(self.paths, self.staged, key, self.version)
        self.removed = self._retire(tx, key)
        point("publish.before_commit")
        return jobs.DONE

    def _retire(self, tx: Transaction, key: str) -> list[Removed]:
        old = to_remove([(row["version"], bool(row["pinned"])) for row in models.versions(tx, key)], self.keep)
        for version in old:
            models.forget(tx, key, version)
        return [Removed(key, version) for version in old]

    @property
    def published(self) -> str | None:
        """The directory of the version, once it is committed; None when there is none."""
        return None if self.version is None else self.staged

    def give_up(self) -> None:
        """It could not be stored: nothing is named, and what was staged stays."""
        self.model, self.version, self.removed = None, None, []

    def point_latest(self) -> None:
        """After the commit, for who looks at the link before `clean` has come to it."""
        if self.version is not None:
            try:
                model_files.advance_latest(self.paths, self.claimed.row["model_key"])
            except (TrainqError, OSError):
                pass  # the link is a hint, and `clean` tells what is in its way

    def clean(self, *, keep_staged: bool, lost: bool = False) -> None:
        """After the commit, repairable: the link to the newest, what has no row any more put aside and deleted once it
        has lain there for `file_grace`, an unused stage.

        Of a lost claim nothing was named: what was placed is an orphan, which the janitor puts aside.
        """
        if lost and self.version is not None:
            return
        if self.version is not None:
            model_files.advance_latest(self.paths, self.claimed.row["model_key"])
        elif self.staged is not None and not keep_staged:
            model_files.discard(self.paths, self.staged)
        for item in self.removed:
            if sharing.is_ours(self.paths.version(item.key, item.version)):
                model_files.put_aside(self.paths, item.key, item.version, retired=True)
            point("publish.retired")
        model_files.sweep_retired(self.paths, self.claimed.row["model_key"], self.now() - self.file_grace_s)
