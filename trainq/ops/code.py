"""Which code a job runs, as its document says it: the commit, whether the work tree differs from it, and what was frozen.

Asked once for each work tree, and frozen once for each directory, however many jobs a call puts in. Outside a work tree
it costs a few looks for `.git`, inside one git is asked while other things are done.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from trainq.base import git

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trainq.domain.request import Request
    from trainq.ops.queue import Queue
    from trainq.ops.snapshot import Snapshot


def ask_early() -> git.Asked | None:
    """Ask git about the directory of the call, for `Code`; None where there is nothing to ask."""
    try:
        top = git.top_of(os.getcwd())
    except OSError:
        return None  # the directory is gone, which is told by who needs it
    return None if top is None else git.Asked(top)


class Code:
    """The code of the jobs of one submit call."""

    def __init__(self, queue: Queue, asked: git.Asked | None = None) -> None:
        self._queue = queue
        self._asked = {} if asked is None else {asked.top: asked}
        self._states: dict[str, git.State] = {}
        self._snapshots: dict[tuple[str, str], Snapshot] = {}
        self._documents: dict[tuple[str, str], Mapping[str, Any]] = {}
        self.notes: list[str] = []

    def document(self, cwd: str, request: Request) -> Mapping[str, Any]:
        """What is recorded of a job that runs in `cwd`: nothing of what is not known. Raises BadSnapshot, and the errors of
        sick storage."""
        how = request.values.get("snapshot", "none")
        if (cwd, how) not in self._documents:
            self._documents[cwd, how] = self._look(cwd, how)
        if how != "none":
            self._tell(self._snapshots[cwd, how].remarks(request.argv or ()))
        return self._documents[cwd, how]

    def _look(self, cwd: str, how: str) -> dict[str, Any]:
        place = os.path.realpath(cwd)
        top = git.top_of(place)
        state = git.UNKNOWN if top is None else self._state(top)
        found = {"commit": state.commit, "dirty": state.dirty}
        if how != "none":
            from trainq.ops import snapshot

            taken = self._snapshots[cwd, how] = snapshot.take(self._queue, place, top, how)
            self._tell(taken.notes)
            found |= taken.document
        return {name: value for name, value in found.items() if value is not None}

    def _state(self, top: str) -> git.State:
        if top not in self._states:
            asked = self._asked.get(top) or git.Asked(top)
            self._states[top] = asked.answer(besides=os.path.realpath(self._queue.paths.root))
        return self._states[top]

    def _tell(self, notes: tuple[str, ...]) -> None:
        self.notes += [note for note in notes if note not in self.notes]
