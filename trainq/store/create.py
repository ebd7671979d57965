"""Makes the database of a queue, once, and checks what version a found one has.

It is built under a temporary name and linked into place, since a file seen at size 0 makes SQLite delete a live log.
Twenty processes may do this at once: one link wins, the others find a queue.
"""

from __future__ import annotations

import os
import secrets

from trainq.base import clock, files, sharing
from trainq.base.crash import point
from trainq.base.errors import GateBusy, NotPossible
from trainq.domain.states import MOVES
from trainq.store.driver import peewee
from trainq.store.session import APPLICATION_ID, SCHEMA, connected, require_ours, storage_errors

_HERE = os.path.dirname(__file__)
LOCKS = {"local": "flock", "shared": "posix"}
"""The kind of lock at the gate, by mode."""


def schema_text() -> str:
    """The SQL of schema 1, with the table of moves of domain/states.py in its trigger."""
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
        os.chmod(temporary, sharing.shared_mode(os.path.dirname(database)))
        _sync(temporary)
        point("init.before_link")
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
    db.close()


def _sync(path: str) -> None:
    """The file is ours alone until it is linked, so opening it here drops nobody's lock."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        files.sync(fd, path)
    finally:
        os.close(fd)


def convert(source: str, target: str, mode: str) -> None:
    """Make the database of a queue one of the other mode, and give it that mode's name. Under the gate only.

    Raises NotPossible when anybody has it open; then, or when killed before the rename, it is what it was.
    """
    try:
        with storage_errors(source):
            db = connected(source, "busy_timeout = 0", "locking_mode = EXCLUSIVE")
            try:
                connection = db.connection()
                connection.execute("BEGIN IMMEDIATE")
                require_ours(connection, source)
                for k, v in (("mode", mode), ("lock", LOCKS[mode])):
                    connection.execute("UPDATE meta SET v = ? WHERE k = ?", (v, k))
                connection.execute("COMMIT")
            finally:
                db.close()
    except GateBusy as error:
        raise NotPossible("the queue is in use", hint="end its workers and who waits for it, then once more") from error
    point("convert.written")
    for left in (source + "-wal", source + "-shm"):
        files.remove(left)  # nobody has it open, and all of it is in the tables
    os.rename(source, target)
    files.sync_directory(os.path.dirname(target))
