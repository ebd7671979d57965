"""The kept variables of jobs, which are deleted at the job's end.

They are written in the transaction that puts the job in or retries it. So they are deleted under the gate, after a
look at the row: a retry that came in meanwhile has written them anew. Whoever dies in between leaves a file that the
janitor's next pass takes.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from trainq.artifacts import runs
from trainq.base import files
from trainq.base.crash import point
from trainq.base.errors import TrainqError
from trainq.store import jobs

if TYPE_CHECKING:
    from collections.abc import Iterable

    from trainq.artifacts.paths import Paths
    from trainq.store.session import LocalSession

_SUFFIX = ".env"


def kept(paths: Paths) -> list[str]:
    """The uids of all jobs that have kept variables on the disk."""
    return [
        name.removesuffix(_SUFFIX)
        for name, kind in files.listed(paths.specs)
        if kind == "file" and name.endswith(_SUFFIX) and not files.is_temporary(name)
    ]


def drop(session: LocalSession, paths: Paths, uid: str) -> bool:
    """Delete the kept variables of a job that does not wait or run; false if there were none, or it does.

    Raises the errors of sick storage.
    """
    if not os.path.lexists(paths.secret(uid)):
        return False
    with session.writing() as tx:
        is_gone = not jobs.is_active_uid(tx, uid) and runs.drop_secret(paths, uid)
        point("secrets.dropped")
        return is_gone


def drop_ended(session: LocalSession, paths: Paths) -> None:
    """The same for all that are kept, as far as it can be done."""
    try:
        uids = kept(paths)
    except (TrainqError, OSError):
        return  # specs/ cannot be read: the janitor says so
    drop_all(session, paths, uids)


def drop_all(session: LocalSession, paths: Paths, uids: Iterable[str]) -> None:
    """The same for several, as far as it can be done."""
    for uid in uids:
        try:
            drop(session, paths, uid)
        except (TrainqError, OSError):
            pass  # another user's, or sick storage: the janitor tries again, and says what is in its way
