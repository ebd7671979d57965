"""The kept variables of jobs, which are deleted at the job's end.

They are written before the transaction that puts the job in or retries it, and looked for again inside it. They are
deleted under the gate, after a look at the row. Those of a call that no row names may be about to be named: only the
janitor takes them, after `file_grace`. Whoever dies in between leaves a file that the janitor takes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainq.artifacts import runs
from trainq.base import files, trees
from trainq.base.crash import point
from trainq.base.errors import TrainqError
from trainq.store import jobs

if TYPE_CHECKING:
    from collections.abc import Iterable

    from trainq.artifacts.paths import Paths
    from trainq.store.session import Session, Transaction

_SUFFIX = ".env"


def kept(paths: Paths) -> list[str]:
    """The uids of all jobs that have kept variables on the disk."""
    return [
        name.removesuffix(_SUFFIX)
        for name, kind in trees.listed(paths.specs)
        if kind == "file" and name.endswith(_SUFFIX) and not files.is_temporary(name)
    ]


def is_needed(tx: Transaction, paths: Paths, uid: str, before: float | None) -> bool:
    """Whether the job waits or runs, or may be about to: its call is not known, and the file not older than `before`."""
    if jobs.find_submission(tx, uid.rpartition(".")[0]) is not None:
        return jobs.is_active_uid(tx, uid)
    if before is None:
        return True
    found = files.status(paths.secret(uid))
    return found is None or found.st_ctime > before


def is_due(session: Session, paths: Paths, uid: str, before: float | None = None) -> bool:
    """Whether `drop` would delete them."""
    if not files.is_there(paths.secret(uid)):
        return False
    with session.reading() as tx:
        return not is_needed(tx, paths, uid, before)


def drop(session: Session, paths: Paths, uid: str, before: float | None = None) -> bool:
    """Delete the kept variables of a job that does not wait or run; false if there were none, or it does.

    Those of a call that is not known go only if written before `before`. Raises the errors of sick storage.
    """
    if not is_due(session, paths, uid, before):
        return False
    with session.writing() as tx:
        is_gone = not is_needed(tx, paths, uid, before) and runs.drop_secret(paths, uid)
        point("secrets.dropped")
        return is_gone


def drop_first(tx: Transaction, paths: Paths, uids: Iterable[str]) -> None:
    """The same for several as the first thing in a transaction that is there anyway, as far as it can be done.

    Whether that commits does not matter: what is looked at was committed before.
    """
    for uid in uids:
        try:
            if not is_needed(tx, paths, uid, None):
                runs.drop_secret(paths, uid)
                point("secrets.dropped")
        except (TrainqError, OSError):
            pass  # another user's, or sick storage: the janitor tries again, and says what is in its way


def drop_ended(session: Session, paths: Paths) -> None:
    """The same for all that are kept, as far as it can be done."""
    try:
        uids = kept(paths)
    except (TrainqError, OSError):
        return  # specs/ cannot be read: the janitor says so
    drop_all(session, paths, uids)


def drop_all(session: Session, paths: Paths, uids: Iterable[str]) -> None:
    """The same for several, as far as it can be done."""
    for uid in uids:
        try:
            drop(session, paths, uid)
        except (TrainqError, OSError):
            pass  # another user's, or sick storage: the janitor tries again, and says what is in its way
