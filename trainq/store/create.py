"""Makes the database of a queue, once, and checks what version a found one has.

It is built under a temporary name and linked into place, since a file seen at size 0 makes SQLite delete a live log.
Twenty processes may do this at once: one link wins, the others find a queue.
"""

from __future__ import annotations

import os
import secrets
from typing import TYPE_CHECKING, Any

from trainq.base import clock, files, sharing
from trainq.base.crash import point
from trainq.base.errors import Damaged, GateBusy, NotPossible, Storage
from trainq.domain.states import MOVES
from trainq.store.driver import peewee
from trainq.store.session import APPLICATION_ID, SCHEMA, Transaction, connected, require_ours, storage_errors

if TYPE_CHECKING:
    from collections.abc import Callable

_HERE = os.path.dirname(__file__)
LOCKS = {"local": "flock", "shared": "posix"}
"""The kind of lock at the gate, by mode."""


def schema_text() -> str:
    """The SQL of the schema, with the table of moves of domain/states.py in its trigger."""
    with open(os.path.join(_HERE, "schema.sql"), encoding="utf-8") as file:
        text = file.read()
    moves = "|".join(f"{old}>{new}" for old, news in MOVES.items() for new in news)
    return text.replace("/*moves*/", f"|{moves}|")


def create(database: str, *, mode: str = "local") -> bool:
    """Make the database unless it is there. True when this call made it."""
    if files.is_there(database):
        return False
    temporary = os.path.join(os.path.dirname(database), files.temporary_name())
    try:
        with storage_errors(temporary):
            _build(temporary, mode)
        sharing.change_mode(temporary, sharing.shared_mode(os.path.dirname(database)))
        point("init.before_link")
        _refuse_old_log(database)
        try:
            os.link(temporary, database)
        except FileExistsError:
            return False
        point("init.linked")
        files.sync_directory(os.path.dirname(database))
        return True
    finally:
        for left in (temporary, temporary + "-wal", temporary + "-shm", temporary + "-journal"):
            if os.path.exists(left):
                os.unlink(left)


def _build(path: str, mode: str) -> None:
    db = peewee.SqliteDatabase(path, autoconnect=False, thread_safe=False)
    db.connect()
    try:
        connection = db.connection()
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
        connection.execute("PRAGMA journal_mode = WAL")
        connection.executescript("BEGIN;" + schema_text() + "COMMIT;")
        connection.execute("BEGIN")
        facts = {
            "uuid": secrets.token_hex(16),
            "mode": mode,
            "lock": LOCKS[mode],
            "generation": "0",
            "created_at": str(clock.now()),
        }
        connection.executemany("INSERT INTO meta VALUES(?, ?)", facts.items())
        connection.execute("COMMIT")
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {SCHEMA}")
        _empty_log(connection, path)
    finally:
        db.close()
    _make_durable(path)


def _empty_log(connection: Any, path: str) -> None:
    """Put all that stands in the log into the tables: close() tries, and hides that there was no room. Raises Storage."""
    answer = tuple(connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone())
    if answer != (0, 0, 0):
        raise Storage(f"{path}: its log could not be emptied")


def _make_durable(path: str) -> None:
    """For a closed database that goes to another name without its log. Raises Storage when the log holds anything.

    Nobody else has it open, so opening it here drops nobody's lock.
    """
    log = files.status(path + "-wal")
    if log is not None and log.st_size > 0:
        raise Storage(f"{path}: its log could not be emptied")
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        files.sync(fd, path)
    finally:
        os.close(fd)


def _refuse_old_log(database: str) -> None:
    """Raises Damaged where a log stands without its database: SQLite would write it into any that gets this name."""
    log = files.status(database + "-wal")
    if log is not None and log.st_size > 0 and not files.is_there(database):
        raise Damaged(f"{database}-wal: the log of a queue that is gone", hint="move it away, then once more")


def convert(source: str, target: str, mode: str, now: float, require_unused: Callable[[Transaction], None]) -> None:
    """Make the database of a queue one of the other mode, and give it that mode's name. Under the gate only.

    Raises NotPossible when anybody has it open, and what `require_unused` does when its rows tell of somebody who uses
    it, though he has nothing open just `now`; then, or when killed before the rename, it is what it was: its name
    says its mode, and `meta` only tells of it.
    """
    if files.is_there(target):
        raise NotPossible(f"{target}: there is one already", hint=f"see which is the queue: it is used as {source}")
    _refuse_old_log(target)
    try:
        with storage_errors(source):
            db = connected(source, "busy_timeout = 0", "locking_mode = EXCLUSIVE")
            try:
                connection = db.connection()
                require_ours(connection, source)
                _empty_log(connection, source)  # what takes room comes first
                connection.execute("BEGIN IMMEDIATE")
                require_unused(Transaction(connection, now))
                for k, v in (("mode", mode), ("lock", LOCKS[mode])):
                    connection.execute("UPDATE meta SET v = ? WHERE k = ?", (v, k))
                connection.execute("COMMIT")
                _empty_log(connection, source)
            finally:
                db.close()
    except GateBusy as error:
        raise NotPossible("the queue is in use", hint="end its workers and who waits for it, then once more") from error
    _make_durable(source)
    point("convert.written")
    files.replace(source, target)
    files.sync_directory(os.path.dirname(target))
    files.remove(source + "-shm")  # left by who was killed; it says nothing without its database
