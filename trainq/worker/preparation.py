"""The first step of an attempt: what must be there before the process starts.

Fast things are done at once (the run directory, the log, an empty model directory), slow ones in the pool: unpacking
the code and the training sets, and choosing the checkpoint to go on from, which is hashed. What goes wrong here is the attempt's
outcome, and the worker's trouble only where no other job could be prepared either.
"""

from __future__ import annotations

import errno
import json
import os
from typing import TYPE_CHECKING, Any

from trainq.artifacts import checkpoints, datasets, logs, models, runs, snapshots
from trainq.base import clock, trees
from trainq.base.crash import point
from trainq.base.errors import BadData, DiskFull, Storage, TrainqError, Unwritable
from trainq.executors import local
from trainq.ops import proofs
from trainq.worker import variables
from trainq.worker.keepers import Plan

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trainq.artifacts.checkpoints import Choice
    from trainq.domain.job import Claimed
    from trainq.worker.place import Place


LOG_LINES = 40
_OF_A_JOB = frozenset(
    {
        errno.ENOENT,
        errno.EEXIST,
        errno.ENOTDIR,
        errno.EISDIR,
        errno.ELOOP,
        errno.ENXIO,
        errno.ENAMETOOLONG,
        errno.EACCES,
        errno.EPERM,
    }
)
"""What a job can make of its own directories: something else in their place, or shut. A sick disk answers otherwise."""


class BrokenCheckpoints(TrainqError):
    """There are committed checkpoints and none can be used: the job must not begin again from nothing in silence."""

    exit, word = 6, "checkpoint"


class Preparation:
    """The files of one attempt, from the claim to its end."""

    def __init__(self, claimed: Claimed, place: Place) -> None:
        self.claimed = claimed
        self.place = place
        self.fails_as = "spawn"  # the cause of an end at the step it is at
        self.run: runs.RunFiles | None = None
        self.staged: str | None = None
        self.resumed_from: int | None = None
        self.environment: dict[str, str] = {}
        self._choice: Choice | None = None
        self._data: dict[str, str] = {}

    def open(self) -> None:
        """The run directory, the log, the parameters, the place for a model. Raises Denied for a job that is not proved."""
        if self.place.users is not None:
            proofs.require(self.place.paths, self.claimed, self.place.users)
        row, spec = self.claimed.row, self.claimed.spec
        params = spec.get("params")
        self.run = runs.open_run(
            self.place.paths, row["id"], row["attempt"],
            params=None if params is None else json.dumps(params).encode(), split_stderr=spec.get("split_stderr", False),
        )  # fmt: skip
        point("prepare.opened")
        if row["model_key"] is not None:
            self.staged = models.stage(self.place.paths, row["id"], row["attempt"])
            point("prepare.staged")

    @property
    def is_slow(self) -> bool:
        """Whether `fetch` has anything to do."""
        return bool(self.claimed.data) or "snapshot" in self._code or self.claimed.row["attempt"] > 1

    def fetch(self) -> None:
        """Unpack code and training sets and choose the checkpoint. For the pool. Raises BadData, Damaged, BrokenCheckpoints."""
        self.fails_as = "data"
        if "snapshot" in self._code:
            self._unpack_code(self._code)
        for item in self.claimed.data:
            self._unpack(item.name, item.z, item.sha256, item.size)
        if self.claimed.row["attempt"] > 1:
            self._choose()

    def _unpack(self, name: str, stored: bytes | None, sha256: str, size: int) -> None:
        assert self.run is not None
        # No name that a user can give has a "-" in it.
        own = name if name.isidentifier() else f"{name.strip('<>') or 'the'}-set"
        directory = os.path.join(self._unpacked, own)
        trees.make_directories(self.run.dir, os.path.relpath(directory, self.run.dir))
        target = os.path.join(directory, self.claimed.spec.get("files", {}).get(name) or "data")
        datasets.unpack(stored if stored is not None else self.place.paths.training_set(sha256), target, sha256, size)
        self._data[name] = target
        point("prepare.unpacked")

    def _unpack_code(self, code: Mapping[str, Any]) -> None:
        """The code that was frozen at the submit, anew for each attempt: what another one did to its copy is its own."""
        snapshots.unpack(self.place.paths, code["snapshot"], code["size"], self._own_code)
        if code.get("below"):  # git knows no empty directories
            trees.make_directories(self._own_code, code["below"])
        point("prepare.code_unpacked")

    def _choose(self) -> None:
        paths, number = self.place.paths, self.claimed.row["id"]
        committed = self.claimed.checkpoints
        self.fails_as = "checkpoint"
        runs.open_checkpoints(
            paths, number
        )  # a link in its place leads to what is not the job's: nothing is deleted there
        checkpoints.remove_uncommitted(paths, number, committed)
        choice = checkpoints.choose(paths, number, committed, self.claimed.suspects)
        for skipped, why in choice.skipped:
            runs.append_note(paths, number, self.claimed.row["attempt"], f"checkpoint {skipped} is passed over: {why}")
        if choice.broken:
            raise BrokenCheckpoints(
                "no checkpoint can be used: " + "; ".join(f"{skipped}: {why}" for skipped, why in choice.skipped)
            )
        self._choice = choice
        self.resumed_from = choice.number

    def plan(self) -> Plan:
        """What the keeper executes. Raises BadData when kept variables are gone."""
        assert self.run is not None
        row, spec = self.claimed.row, self.claimed.spec
        self.fails_as = "checkpoint"
        place = runs.open_checkpoints(self.place.paths, row["id"])
        path = None if self._choice is None else self._choice.path
        own = row["attempt"] > 1 and checkpoints.has_own_files(self.place.paths, row["id"])
        self.fails_as = "data"
        secrets = self._secrets()
        self.fails_as = "spawn"
        self.place.channel.ensure()
        ours = variables.ours(
            self.claimed, root=self.place.paths.root, worker=self.place.name, socket=self.place.channel.path, run=self.run,
            data={name: file for name, file in self._data.items() if not name.startswith("<")}, model_dir=self.staged,
            checkpoints=place, resume=path is not None or own, resume_from=path, resume_reason=self.claimed.last_cause,
            deadline=None if row["time_s"] is None else clock.now() + row["time_s"],
        )  # fmt: skip
        self.environment = {**variables.base(self.claimed, secrets), **ours}
        if "snapshot" in self._code:
            self.environment |= variables.frozen(self.environment, self._code["top"], self._own_code, self._cwd)
        return self._plan(tuple(os.fsencode(word) for word in local.argv(spec)), self.environment)

    def hook_plan(self, line: str, more: dict[str, str]) -> Plan:
        """The plan of a shell line that runs after the job, with the job's variables and some more.

        What was its model directory then has another name, if it is there at all.
        """
        kept = {name: value for name, value in self.environment.items() if name != "TRAINQ_MODEL_DIR"}
        return self._plan((b"/bin/sh", b"-c", os.fsencode(line)), {**kept, **more})

    def _plan(self, argv: tuple[bytes, ...], env: dict[str, str]) -> Plan:
        return Plan(argv, variables.complete(env), os.fsencode(self._cwd), self.claimed.umask)

    def _secrets(self) -> dict[str, str]:
        names = self.claimed.spec.get("secrets")
        if not names:
            return {}
        found = runs.read_secret(self.place.paths, self.claimed.uid)
        if found is None:
            raise BadData("the kept variables of this job are gone: " + ", ".join(names))
        return found

    def is_hosts_fault(self, error: BaseException) -> bool:
        """Whether no other job could be prepared here either: the disk is full, or sick, or takes no directories.

        A file that is sick by itself must not go from host to host with its job: met again after the last attempt was
        given back, it is the job's.
        """
        if isinstance(error, DiskFull):
            return True
        if not isinstance(error, (Storage, Unwritable)):
            return False
        seen = error.__cause__.errno if isinstance(error.__cause__, OSError) else None
        if seen not in _OF_A_JOB and self.claimed.last_cause != "drained":
            return True
        paths = self.place.paths
        shared = [paths.runs] if self.claimed.row["model_key"] is None else [paths.runs, paths.staging]
        return not all(map(trees.takes_directories, shared))

    def open_stdin(self) -> int:
        """What the job reads; the caller closes it."""
        path = next((path for name, path in self._data.items() if name.startswith("<")), os.devnull)
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    @property
    def output(self) -> tuple[int, int]:
        """The descriptors of stdout and stderr."""
        assert self.run is not None
        return self.run.log_fd, self.run.log_fd if self.run.stderr_fd is None else self.run.stderr_fd

    def log_end(self) -> str:
        """The last lines that the job wrote; none when it took its log away or put something else there."""
        assert self.run is not None
        try:
            return logs.last_text(self.run.stderr or self.run.log, lines=LOG_LINES)
        except (TrainqError, OSError):
            return ""

    def note(self, text: str) -> None:
        """A line of trainq's own in the attempt's log; the row says it too, so a sick disk is passed over."""
        try:
            runs.append_note(
                self.place.paths, self.claimed.row["id"], self.claimed.row["attempt"], text.partition("\n")[0]
            )
        except (TrainqError, OSError):
            pass

    def close(self) -> bool:
        """Close what is open; whether there are unpacked sets to remove."""
        if self.run is not None:
            try:
                self.run.close()
            except OSError:
                pass  # a network file system could not keep the end of the log, which may be lost
        return bool(self._data)

    def remove_data(self) -> None:
        """Delete the unpacked training sets."""
        if self.run is not None:
            trees.remove_tree(self._unpacked)

    @property
    def _code(self) -> Mapping[str, Any]:
        """Which code it runs, as it was recorded; looked at once the job is proved."""
        found: Mapping[str, Any] = self.claimed.spec.get("code", {})
        return found

    @property
    def _cwd(self) -> str:
        """Where it runs: where it was submitted, or the same place in its own copy of the code."""
        if "snapshot" not in self._code:
            return str(self.claimed.spec["cwd"])
        return os.path.normpath(os.path.join(self._own_code, self._code.get("below", "")))

    @property
    def _own_code(self) -> str:
        return self.place.paths.code(self.claimed.row["id"], self.claimed.row["attempt"])

    @property
    def _unpacked(self) -> str:
        return self.place.paths.unpacked(self.claimed.row["id"], self.claimed.row["attempt"])
