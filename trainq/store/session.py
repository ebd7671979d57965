"""A session: connection + transaction + clock. Here the local one; other backends give the same three things.

`LocalSession` keeps its connection open (normal WAL, synchronous=FULL). Writers take the gate, then BEGIN IMMEDIATE;
BEGIN and COMMIT are issued here and nowhere else. The connection belongs to the thread that made it and is never
carried over a fork. A short command ends without closing it: the last one to close would checkpoint the whole log.
"""

from __future__ import annotations

import functools
import os
import stat
from typing import TYPE_CHECKING, Any, Protocol

from trainq.base import clock, sharing
from trainq.base.crash import point
from trainq.base.errors import (
    Damaged,
    DiskFull,
    GateBusy,
    MadeAnew,
    NewerSchema,
    NoRoot,
    Storage,
    TrainqError,
    Unwritable,
)
from trainq.store.driver import peewee, sqlite3
from trainq.store.gate import Gate
from trainq.store.statements import NAMED

if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from types import TracebackType

APPLICATION_ID = 0x74726E71  # "trnq"
SCHEMA = 2
_BUSY_S = 10.0


class Unsure(TrainqError):
    """COMMIT answered with an error: what was written may or may not be there. Look it up in a new session.

    What that session sees stays so: the log was written over where the commit would have stood (`_write_over`).
    """

    exit, word = 6, "storage"
    hint = "trainq status"


class Transaction:
    """What the verbs get: named statements, and the time of this transaction."""

    __slots__ = ("_connection", "now")

    def __init__(self, connection: Any, now: float) -> None:
        self._connection = connection
        self.now = now

    def named(self, name: str, **values: Any) -> list[Any]:
        """Run the statement of that name; all its rows (fetched, or COMMIT would be refused)."""
        return self._execute(name, values).fetchall()  # type: ignore[no-any-return]

    def changes(self, name: str, **values: Any) -> int:
        """Run the statement of that name; how many rows it changed."""
        return self._execute(name, values).rowcount  # type: ignore[no-any-return]

    def _execute(self, name: str, values: dict[str, Any]) -> Any:
        values["now"] = self.now
        text, names = NAMED[name]
        return self._connection.execute(text, [values[each] for each in names])

    def rows(self, sql: str, values: Any = ()) -> list[Any]:
        """Run a statement; all its rows."""
        return self._connection.execute(sql, values).fetchall()  # type: ignore[no-any-return]

    def one(self, sql: str, values: Any = ()) -> Any:
        """The first row, or None."""
        return self._connection.execute(sql, values).fetchone()

    def value(self, sql: str, values: Any = ()) -> Any:
        """The first column of the first row, or None."""
        row = self._connection.execute(sql, values).fetchone()
        return None if row is None else row[0]

    def many(self, sql: str, values: Any) -> None:
        """Run a statement once for each of `values`."""
        self._connection.executemany(sql, values)

    def changed(self, sql: str, values: Any = ()) -> int:
        """Run a statement; how many rows it changed."""
        return self._connection.execute(sql, values).rowcount  # type: ignore[no-any-return]


class Session(Protocol):
    """What the verbs and the worker need of a backend: transactions, news, and the time."""

    @property
    def is_cheap(self) -> bool:
        """Whether a look costs next to nothing; if not, who waits for news goes by the bell alone."""

    @property
    def look_s(self) -> float:
        """How long who waits for news sleeps between two looks at `changes`."""

    def reading(self) -> AbstractContextManager[Transaction]:
        """`with session.reading() as tx:` one consistent view."""

    def writing(self) -> AbstractContextManager[Transaction]:
        """`with session.writing() as tx:` one transaction, durable when the block is left.

        An error inside rolls back. Raises Unsure when COMMIT itself failed, GateBusy when the gate stayed shut.
        """

    def changes(self) -> int:
        """A number that differs once any other process has committed."""

    def now(self) -> float:
        """The backend's clock, as far as it is known without asking it: seconds since 1970."""

    def close(self) -> None:
        """End it; the next use opens it again."""

    def abandon(self) -> None:
        """Forget what is open after a storage fault; the next use opens it anew."""


class LocalSession:
    """One process's session with a queue on a local disk."""

    is_cheap = True
    look_s = 0.05

    def __init__(self, database: str, lock: str, *, lock_wait_s: float = 30.0) -> None:
        self.database = database
        self.gate = Gate(lock, lock_wait_s)
        self._db: Any = None
        self._connection: Any = None
        self._file = (0, 0)  # device and inode of what the connection is open on
        self._uuid: str | None = None  # of the queue that was opened first
        self._reading = _Reading(self)
        self._writing = _Writing(self)

    def reading(self) -> _Reading:
        """`with session.reading() as tx:` one consistent view; needs no gate."""
        return self._reading

    def writing(self) -> _Writing:
        """`with session.writing() as tx:` the gate, then one transaction, durable when the block is left.

        An error inside rolls back. Raises Unsure when COMMIT itself failed, GateBusy when the gate stayed shut.
        """
        return self._writing

    def connection(self) -> Any:
        """The open connection; opened and checked at the first call."""
        if self._connection is None:
            with storage_errors(self.database):
                self._connection = self._connect()
        return self._connection

    def standing(self) -> Any:
        """The open connection, looked at whether it leads to the queue of this name still. Raises NoRoot, MadeAnew."""
        try:
            connection = self.connection()
            if _look(self.database) != self._file:
                raise self._made_anew()
        except NoRoot:
            self.gate.close()  # it was that of the deleted queue: what comes here has another one
            raise
        return connection

    @property
    def is_open(self) -> bool:
        """Whether connection and gate are open, of whatever queue had the name then."""
        return self._connection is not None and self.gate.is_open

    def changes(self) -> int:
        """A number that differs once any other process has committed. Raises NoRoot, MadeAnew."""
        connection = self.standing()
        with storage_errors(self.database):
            return int(connection.execute("PRAGMA data_version").fetchone()[0])

    def now(self) -> float:
        """This host's clock."""
        return clock.now()

    def close(self) -> None:
        """Close the connection under the gate, so that no checkpoint of ours meets another's write.

        What was deleted has no gate, and SQLite makes no checkpoint there.
        """
        if self._db is not None:
            if os.path.exists(self.database):
                self.gate.enter()
            self._db.close()
            self._db = self._connection = None
        self.gate.close()

    def abandon(self) -> None:
        """Forget the connection after a storage fault; the next use opens a new one.

        Closed under the gate, like every other. If that cannot be had at once the connection goes on to be used: if it
        is broken, the next fault leads here again. Where there is no queue no gate is made.
        """
        try:
            _look(self.database)
            is_inside = self.gate.try_enter()
        except TrainqError:
            return  # the file is not there, or it is the lock that is sick
        if is_inside:
            try:
                self.drop()
            finally:
                self.gate.leave()

    def drop(self) -> None:
        """Close the connection, for who has the gate; the next use opens a new one."""
        if self._db is not None:
            try:
                self._db.close()
            except sqlite3.Error:
                pass  # it was broken already; what it had not committed is rolled back by the next opener
        self._db = self._connection = None

    def _connect(self) -> Any:
        file = _look(self.database)
        db = connected(self.database)
        try:
            connection = db.connection()
            require_ours(connection, self.database)
            self._require_same(connection)
        except BaseException:
            db.close()
            raise
        self._file, self._db = file, db
        return connection

    def _require_same(self, connection: Any) -> None:
        """It is the queue that was opened first. Raises MadeAnew, and Damaged for one without a uuid."""
        row = connection.execute("SELECT v FROM meta WHERE k = 'uuid'").fetchone()
        if row is None:
            raise Damaged(f"{self.database}: this queue has no uuid")
        if self._uuid not in (None, row[0]):
            raise self._made_anew()
        self._uuid = row[0]

    def _made_anew(self) -> MadeAnew:
        return MadeAnew(f"{self.database}: deleted and made anew since it was opened")


def connected(path: str, *first: str) -> Any:
    """Peewee's database of this file, connected; `first` are pragmas that must come before all others."""
    _look(path)
    from urllib.parse import quote

    uri = f"file:{quote(os.fsencode(path))}?mode=rw"
    db = peewee.SqliteDatabase(uri, uri=True, timeout=_BUSY_S, autoconnect=False, thread_safe=False)
    db.connect()
    try:
        connection = db.connection()
        connection.row_factory = sqlite3.Row
        if sharing.is_for_group(os.path.dirname(path)):  # another member may have written a text that is no UTF-8
            connection.text_factory = functools.partial(str, encoding="utf-8", errors="replace")
        for pragma in (*first, "synchronous = FULL", "mmap_size = 0"):
            connection.execute(f"PRAGMA {pragma}")
    except BaseException:
        db.close()  # it may hold SQLite's locks
        raise
    return db


def require_ours(connection: Any, path: str) -> None:
    """Raises Damaged for another program's database, NewerSchema for that of a newer trainq."""
    application = connection.execute("PRAGMA application_id").fetchone()[0]
    schema = connection.execute("PRAGMA user_version").fetchone()[0]
    if application != APPLICATION_ID:
        raise Damaged(f"{path}: this is not a trainq queue")
    if schema > SCHEMA:
        raise NewerSchema(f"{path}: schema {schema}, this trainq knows {SCHEMA}")
    if schema < SCHEMA:
        raise Damaged(
            f"{path}: schema {schema} of a trainq that was never released", hint="make a new queue: trainq init DIR"
        )


class _Reading:
    """Context of a read transaction."""

    __slots__ = ("_session",)

    def __init__(self, session: LocalSession) -> None:
        self._session = session

    def __enter__(self) -> Transaction:
        connection = self._session.standing()
        with storage_errors(self._session.database):
            connection.execute("BEGIN")
        return Transaction(connection, clock.now())

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        connection = self._session.connection()
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        if isinstance(error, sqlite3.Error):
            raise translate(error, self._session.database) from error


class _Writing:
    """Context of a write transaction: gate, BEGIN IMMEDIATE, COMMIT, gate."""

    __slots__ = ("_session",)

    def __init__(self, session: LocalSession) -> None:
        self._session = session

    def __enter__(self) -> Transaction:
        session = self._session
        if not session.is_open:
            session.standing()  # where there is no queue no gate is made
        session.gate.enter()
        try:
            connection = session.standing()  # it may have been a long wait
            connection.execute("BEGIN IMMEDIATE")
        except sqlite3.Error as error:
            session.gate.leave()
            raise translate(error, session.database) from error
        except BaseException:
            session.gate.leave()
            raise
        return Transaction(connection, clock.now())

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        session = self._session
        try:
            if error is None:
                point("store.before_commit")
                self._commit()
                point("store.after_commit")
            else:
                self._roll_back()
        finally:
            session.gate.leave()
        if isinstance(error, sqlite3.Error):
            raise translate(error, session.database) from error

    def _commit(self) -> None:
        try:
            self._session.connection().execute("COMMIT")
        except sqlite3.Error as error:
            self._roll_back()
            self._write_over()
            cause = translate(error, self._session.database)
            unsure = Unsure(cause.message, hint=cause.hint)
            unsure.exit, unsure.word = cause.exit, cause.word
            raise unsure from error

    def _write_over(self) -> None:
        """Commit a page as it is, still under the gate.

        A commit whose sync failed stands complete in the log, unseen as long as anybody has the queue open; were all of
        them killed, or the power cut, whoever opens it next would find it there and make it true after all.
        """
        self._session.drop()
        try:
            connection = self._session.connection()
            connection.execute("BEGIN IMMEDIATE")
            schema = connection.execute("PRAGMA user_version").fetchone()[0]
            connection.execute(f"PRAGMA user_version = {schema}")
            connection.execute("COMMIT")
        except (sqlite3.Error, TrainqError):
            self._session.drop()  # the storage is sick for good; the look afterwards says what it can see

    def _roll_back(self) -> None:
        connection = self._session.connection()
        if connection.in_transaction:  # a full disk has rolled back already
            try:
                connection.execute("ROLLBACK")
            except sqlite3.Error:
                self._session.drop()  # the next opener rolls back what this one could not


class storage_errors:  # noqa: N801  # reads as a phrase: with storage_errors(path):
    """Turns the driver's errors into trainq's."""

    __slots__ = ("_path",)

    def __init__(self, path: str) -> None:
        self._path = path

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if isinstance(error, (sqlite3.Error, peewee.PeeweeException)):
            raise translate(error, self._path) from error


def translate(error: BaseException, path: str) -> TrainqError:
    """The trainq error for what SQLite answered."""
    error = getattr(error, "orig", error)  # what peewee has wrapped: only the driver's own error knows its number
    text = str(error)
    code = getattr(error, "sqlite_errorcode", None)
    primary = code & 0xFF if code is not None else None
    if primary == sqlite3.SQLITE_FULL or "disk is full" in text or (primary == sqlite3.SQLITE_IOERR and _is_full(path)):
        return DiskFull(f"{path}: no room left on the disk")
    if primary == sqlite3.SQLITE_BUSY or "database is locked" in text:
        return GateBusy(f"{path}: held by a program other than trainq for {_BUSY_S:g} s", hint="close that program")
    if primary in (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT) or "malformed" in text:
        return Damaged(f"{path}: {text}")
    if primary in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_CANTOPEN):
        return Unwritable(f"{path}: {text}")
    if "no such table" in text or "no such column" in text:
        return Damaged(f"{path}: {text}")
    return Storage(f"{path}: {text}")


def _is_full(path: str) -> bool:
    """Whether the disk has no room: then SQLite calls it an I/O error that it could not make its shared memory."""
    try:
        return os.statvfs(path).f_bavail == 0
    except OSError:
        return False


def _look(path: str) -> tuple[int, int]:
    """Which file it is, by device and inode. Refuse what SQLite must not be let near: no file, one of size 0 (it would
    delete a live log beside it), or a link, which in a group's directory may lead to somebody's own queue."""
    try:
        found = os.lstat(path)
    except FileNotFoundError as error:
        raise NoRoot(f"{os.path.dirname(path)}: there is no queue here") from error
    except OSError as error:
        raise Unwritable(f"{path}: {error.strerror}") from error
    if stat.S_ISLNK(found.st_mode):
        raise Damaged(f"{path}: this is a link, not a queue")
    if not stat.S_ISREG(found.st_mode):
        raise Damaged(f"{path}: this is not a file")
    if found.st_size < 512:
        raise Damaged(f"{path}: {found.st_size} bytes, cut short")
    return found.st_dev, found.st_ino
