"""The session for a queue that several hosts see: gate, clock, open, one transaction, checkpoint, close, gate.

SQLite's log needs shared memory, which no network file system has, unless one process has the file all to itself and
says so before anything else. So every session, also one that only reads, holds the gate while it has the database
open, and leaves nothing open behind it. Each step and what it is against: DESIGN, section 4.
"""

from __future__ import annotations

import errno
import hashlib
import os
import time
from typing import TYPE_CHECKING, Any

from trainq.base import clock, files, oserrors, runtime
from trainq.base.crash import point
from trainq.base.errors import GateBusy, MadeAnew, NoRoot, Storage, TrainqError, WentBack
from trainq.store.driver import peewee, sqlite3
from trainq.store.gate import POLL_S, Gate
from trainq.store.session import Transaction, Unsure, connected, require_ours, storage_errors, translate

if TYPE_CHECKING:
    from types import TracebackType

LOOK_ANYWAY_S = 30.0
"""Who died between its commit and its mark at the gate left old news there: who waits goes in himself so often."""
HOLD_S = 60.0
"""No session holds the gate longer: who does was suspended, or its storage hangs, and others may have come in."""
_LOOK_AGAIN_S = 0.1
_YIELD_S = 2 * POLL_S
"""In that time everybody who waits for the gate has asked for it."""


class SharedSession:
    """One process's sessions with a queue on a network file system. One at a time."""

    is_cheap = False
    look_s = 1.0

    def __init__(self, database: str, lock: str, *, lock_wait_s: float = 30.0) -> None:
        self.database = database
        self.gate = Gate(lock, lock_wait_s, is_shared=True)
        self._line = _line_before(lock, lock_wait_s)
        self.uuid: str | None = None  # of the queue that was opened first
        self.visited_at = clock.boot_s()
        self._had_to_wait = False  # at the gate, the last time: others want it, too
        self._ahead_s = 0.0  # of the file server's clock before ours

    def enter(self) -> None:
        """Wait for the gate, in this user's line on this host. Raises as the gate does.

        A file server lets in who asks at the right moment, so of many processes some would wait for a long time; a
        host's own lock goes in turn, and leaves one of them at the server. There the host that was in last would be in again
        before the others ask: who had to wait the time before lets them.
        """
        began = time.monotonic()
        self._stand_in_line()
        try:
            if self._had_to_wait:
                time.sleep(_YIELD_S)
            self._had_to_wait = self.gate.enter(time.monotonic() - began)
        except BaseException:
            self._leave_line()
            raise

    def _stand_in_line(self) -> None:
        """Who is first in it may be stopped, or take too long: then the others go past."""
        if self._line is None:
            return
        try:
            if self._line.try_enter() or not self._line.is_stopped():
                self._line.enter()
        except TrainqError:
            pass  # out of turn, but not for that reason never

    def leave(self) -> None:
        """Let the next one in."""
        try:
            self.gate.leave()
        finally:
            self._leave_line()

    def _leave_line(self) -> None:
        if self._line is not None:
            self._line.leave()

    def reading(self) -> _Visit:
        """`with session.reading() as tx:` one consistent view, under the gate."""
        return _Visit(self, writes=False)

    def writing(self) -> _Visit:
        """`with session.writing() as tx:` one transaction under the gate, durable when the block is left.

        An error inside rolls back. Raises Unsure when COMMIT itself failed, GateBusy when the gate stayed shut,
        WentBack when the storage gives less than it had acknowledged.
        """
        return _Visit(self, writes=True)

    def changes(self) -> int:
        """The generation that the last commit left at the gate: one open, read and close."""
        if clock.boot_s() - self.visited_at > LOOK_ANYWAY_S:
            try:
                with self.reading():
                    pass  # it mends the mark
            except TrainqError:
                pass  # what is in the way is told by who wants in
        return self.gate.generation_from_outside()

    def now(self) -> float:
        """The file server's clock, as the last session found it against ours."""
        return clock.now() + self._ahead_s

    def ask_time(self) -> float:
        """The file server's clock: the time of a file just made. It also lets this host forget names it remembers."""
        path = os.path.join(os.path.dirname(self.database), files.temporary_name())
        try:
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                self._ahead_s = os.fstat(fd).st_mtime - clock.now()
            finally:
                os.close(fd)
                os.unlink(path)
        except FileNotFoundError as error:
            raise NoRoot(f"{os.path.dirname(path)}: there is no queue here") from error
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):  # a full disk can still be read
                raise oserrors.explain(error, path) from error
        return self.now()

    def close(self) -> None:
        """Nothing is open between two sessions but the descriptors of the gate and of the line before it."""
        self.gate.close()
        if self._line is not None:
            self._line.close()

    def abandon(self) -> None:
        """The same: what is behind the descriptors may be stale."""
        self.close()


def _line_before(lock: str, lock_wait_s: float) -> Gate | None:
    """Where this user's processes on this host wait for their turn at a gate; none where there is no place for it."""
    directory = runtime.common()
    if directory is None:
        return None
    name = hashlib.sha256(os.fsencode(os.path.realpath(lock))).hexdigest()[:16]
    return Gate(os.path.join(directory, f"{name}.line"), lock_wait_s / 2)


class _Visit:
    """Context of one transaction, from gate to gate."""

    __slots__ = ("_connection", "_db", "_entered_at", "_session", "_writes")

    def __init__(self, session: SharedSession, *, writes: bool) -> None:
        self._session = session
        self._writes = writes
        self._db: Any = None
        self._connection: Any = None
        self._entered_at = 0.0

    def __enter__(self) -> Transaction:
        session = self._session
        session.enter()
        self._entered_at = session.visited_at = clock.boot_s()
        try:
            now = session.ask_time()
            with storage_errors(session.database):
                self._open()
            return Transaction(self._connection, now)
        except BaseException:
            self._leave()
            raise

    def _open(self) -> None:
        """Open the tables as they were left. Raises WentBack."""
        self._connect()
        if self._is_behind():
            self._close()
            time.sleep(_LOOK_AGAIN_S)
            self._connect()
        if self._is_behind():
            raise WentBack(f"{self._session.database}: older than what was acknowledged before")

    def _connect(self) -> None:
        self._db = connected(self._session.database, "locking_mode = EXCLUSIVE")
        self._connection = self._db.connection()
        self._connection.execute("BEGIN IMMEDIATE" if self._writes else "BEGIN")
        require_ours(self._connection, self._session.database)

    def _is_behind(self) -> bool:
        """Whether the gate knows of a later commit than the tables."""
        facts = dict(self._connection.execute("SELECT k, v FROM meta WHERE k IN ('uuid', 'generation')").fetchall())
        session = self._session
        if session.uuid is not None and facts["uuid"] != session.uuid:
            raise MadeAnew(f"{session.database}: deleted and made anew since it was opened")
        session.uuid = facts["uuid"]
        mark, generation = session.gate.mark(), int(facts["generation"])
        if mark is not None and mark.uuid != facts["uuid"]:
            raise Storage(f"{session.database}: its lock file is that of another queue")
        if mark is None or mark.generation < generation:
            self._leave_mark(generation)  # who committed this died before it could
        return mark is not None and mark.generation > generation

    def _leave_mark(self, generation: int) -> None:
        session = self._session
        assert session.uuid is not None
        try:
            session.gate.leave_mark(session.uuid, generation)
        except (TrainqError, OSError):
            pass  # whoever comes next finds the tables newer than the mark, and writes it

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        session = self._session
        try:
            if self._writes and error is None:
                self._commit()
            elif self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
        except sqlite3.Error as other:
            if error is None:
                raise translate(other, session.database) from other
        finally:
            self._leave()
        if isinstance(error, sqlite3.Error):
            raise translate(error, session.database) from error

    def _commit(self) -> None:
        run = self._connection.execute
        if not self._connection.total_changes:
            run("ROLLBACK")
            return
        held_s = clock.boot_s() - self._entered_at
        if held_s > HOLD_S:
            run("ROLLBACK")
            raise GateBusy(f"{self._session.database}: held for {held_s:.0f} s, and so given up", hint="type it again")
        run("UPDATE meta SET v = v + 1 WHERE k = 'generation'")
        generation = int(run("SELECT v FROM meta WHERE k = 'generation'").fetchone()[0])
        point("store.before_commit")
        try:
            run("COMMIT")
        except sqlite3.Error as error:
            cause = translate(error, self._session.database)
            unsure = Unsure(cause.message, hint=cause.hint)
            unsure.exit, unsure.word = cause.exit, cause.word
            raise unsure from error
        point("store.after_commit")
        try:  # from here on it is durable, in the log if not in the tables
            run("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
            self._close()
        except (sqlite3.Error, peewee.PeeweeException):
            pass  # the next session reads the log
        self._leave_mark(generation)

    def _close(self) -> None:
        if self._db is not None:
            try:
                self._db.close()
            finally:
                self._db = self._connection = None

    def _leave(self) -> None:
        try:
            self._close()
        except (sqlite3.Error, peewee.PeeweeException):
            pass  # it was broken already; the next session rolls back what it had not committed
        finally:
            self._session.leave()
