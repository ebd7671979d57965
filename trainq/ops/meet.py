"""Two doctors meet: at the same time, on two hosts, they try whether the storage keeps them apart and lets each see
what the other wrote.

All they know of each other stands in one book, a file that is read and written under a lock of the gate's kind. That
the lock excludes is checked twice, by a sum that would lose what two write at once, and by a file that only one can make.

Every member of a group may write in the book, and where the lock excludes nobody it loses what is written: so each
doctor writes its own line anew at every look, and a book of another shape is a new one. Who is there is told by a count
in its line that goes on, not by a clock: a doctor that was killed is met by nobody, and not waited for; and one that is
only late has not looked yet, so that nothing of it is seen proves nothing.
"""

from __future__ import annotations

import errno
import json
import math
import os
import re
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from trainq.base import clock, files, hosts
from trainq.base.errors import NotPossible, TimedOut, TrainqError
from trainq.ops.queue import convert_line
from trainq.store.gate import Gate

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from trainq.ops.queue import Queue

WAIT_S = 60.0
"""How long to wait for the other one."""
TRY_S = 3.0
_DEAD_S = 10.0
"""Who has not written for so long, while somebody looked, was killed."""
_LOOK_S = 0.05
_LEAVE_S = 2.0
_NAME = re.compile(r"[0-9a-f]{16}")


class Result(NamedTuple):
    """What one doctor has found at the lock."""

    turns: int
    together: int  # times that somebody was inside already
    worst_s: float  # the longest wait


class Person(NamedTuple):
    """A doctor's line in the book."""

    host: str
    identity: str
    ahead_s: float  # of its host's clock before the queue's
    beat: int = 0
    other: str | None = None  # whom it wants to meet; two do, once each has named the other
    result: Result | None = None


class Book(NamedTuple):
    """Who is here, by name, and the turns that each pair has taken."""

    people: dict[str, Person]
    turns: dict[str, int]

    def drop_who_left(self, is_there: Callable[[str], bool]) -> None:
        """Take out whose file is gone, but for what the one it meets has yet to read."""
        for name, one in list(self.people.items()):
            if not is_there(name) and not (one.other and is_there(one.other)):
                del self.people[name]
        for pair in list(self.turns):
            if not any(name in self.people for name in pair.split("+")):
                del self.turns[pair]


def refuse_one_host(queue: Queue) -> None:
    """Raises NotPossible for a queue that no second host may use."""
    if not queue.is_shared:
        raise NotPossible(
            f"{queue.paths.root}: a queue for one host: no doctor of another one can come",
            hint=f"on the host of that disk: {convert_line(queue.paths.root)}",
        )


def meet(queue: Queue, wait_s: float = WAIT_S) -> Iterator[tuple[str, str, str]]:
    """What was found, as (name, state, message).

    Raises TimedOut when nobody came, GateBusy when the book is locked, NotPossible on a queue for one host and when two
    are meeting already.
    """
    refuse_one_host(queue)
    me = _Doctor(queue)
    try:
        me.sign_in()
        name, other = me.find_other(wait_s)
        same = other.identity == hosts.identity()
        yield (
            "hosts",
            "warning" if same else "ok",
            f"met the doctor on {other.host}" + (", which is this host: only two hosts prove a mount" if same else ""),
        )
        me.try_lock()
        late_s = me.try_reading(name)
        turns, expected, together, worst_s = me.compare(name, wait_s)
    finally:
        me.leave()
    if together or turns != expected:
        lost = f"{expected - turns} of {expected} writes lost"
        yield "exclusion", "bad", f"{together} times two were inside at once, {lost}"
    else:
        yield "exclusion", "ok", f"{turns} turns, never two at once; the longest wait {worst_s * 1e3:.0f} ms"
    if late_s is None:
        yield "visibility", "bad", f"nothing that {other.host} wrote was seen"
    else:
        yield "visibility", "ok", f"what {other.host} wrote was seen after at most {late_s * 1e3:.0f} ms"
    apart_s = abs(me.line.ahead_s - other.ahead_s)
    yield "clocks", "ok", f"{apart_s:.1f} s apart; trainq goes by the file server's"


class _Doctor:
    """This one, its line in the book, and whom it has seen there."""

    def __init__(self, queue: Queue) -> None:
        with queue.session.reading() as tx:
            ahead_s = clock.now() - tx.now
        self.name = os.urandom(8).hex()
        self.line = Person(hosts.hostname(), hosts.identity(), ahead_s)
        lock = queue.paths.lock("meeting")
        self._base = lock.removesuffix(".lock")
        self._inside = f"{self._base}.inside"
        self._gate = Gate(lock, queue.settings.times.lock_wait, is_shared=queue.is_shared)
        self._beats: dict[str, tuple[int, float]] = {}  # of the others: the last one, and since when
        self._stirred: set[str] = set()
        self._result = Result(0, 0, 0.0)

    def _file(self, name: str) -> str:
        return f"{self._base}.{name}"

    def _is_there(self, name: str) -> bool:
        return files.is_there(self._file(name))

    def _write(self) -> None:
        fd = files.open_shared(self._file(self.name))
        os.pwrite(fd, f"{clock.now() - self.line.ahead_s:.6f}\n".encode().ljust(32), 0)
        os.close(fd)

    def _look(self, change: Callable[[Book], None] = lambda _: None, *, is_new: bool = True) -> Book:
        """Read the book under the lock, write in it what `change` does and (`is_new`) this one's line, and give it back.

        It is opened anew each time, as the database is, so that what other hosts wrote in it is seen. This one's own file
        is written first: who sees that it has looked could have seen that, too.
        """
        if is_new:
            self._write()
        self._gate.enter()
        try:
            fd = files.open_shared(f"{self._base}.book")
            try:
                book = parsed(os.pread(fd, 1 << 16, 0))
                if is_new:
                    self.line = self.line._replace(beat=self.line.beat + 1)
                    book.people[self.name] = self.line
                change(book)
                new = json.dumps(_as_json(book)).encode()
                os.pwrite(fd, new, 0)
                os.ftruncate(fd, len(new))
                os.fsync(fd)
            finally:
                os.close(fd)
        finally:
            self._gate.leave()
        self._watch(book)
        return book

    def _watch(self, book: Book) -> None:
        """Remember whose count goes on."""
        now = time.monotonic()
        for name, one in book.people.items():
            beat, _ = self._beats.get(name, (one.beat, 0.0))
            if name not in self._beats or beat != one.beat:
                self._beats[name] = (one.beat, now)
            if beat != one.beat:
                self._stirred.add(name)

    def _is_gone(self, name: str) -> bool:
        """Whether a doctor has signed out, or has not looked for so long that it was killed."""
        return not self._is_there(name) or time.monotonic() - self._beats[name][1] > _DEAD_S

    def sign_in(self) -> None:
        """Write this one into the book."""
        self._look(self._tidy)  # its file comes first: that there is none would be remembered where it is looked for

    def _tidy(self, book: Book) -> None:
        files.remove(self._inside)  # whoever is in holds the lock: it was left by one who was killed
        book.drop_who_left(self._is_there)

    def find_other(self, wait_s: float) -> tuple[str, Person]:
        """Wait for another doctor: its name and line. Raises TimedOut, and NotPossible when two others are meeting."""
        end = time.monotonic() + wait_s
        while True:
            people = self._look(self._choose).people
            other = self.line.other
            if other is not None and people[other].other == self.name:
                return other, people[other]
            if other is None:
                self._refuse_a_third(people)
            if time.monotonic() > end:
                raise TimedOut(
                    f"no other doctor came within {wait_s:g} s", hint="start the same on a second host meanwhile"
                )
            time.sleep(_LOOK_S)

    def _choose(self, book: Book) -> None:
        """Name whom to meet: who has named this one, or else who is there, and named by nobody. It may turn out to want
        another one."""
        here = {name: one for name, one in self._others(book.people).items() if name in self._stirred}
        named = {one.other for one in here.values()}
        wants_me = [name for name, one in here.items() if one.other == self.name]
        free = [name for name, one in here.items() if one.other is None and name not in named]
        if self.line.other in free and not wants_me:
            return  # it has not looked yet
        self.line = self.line._replace(other=next(iter(wants_me + free), None))
        book.people[self.name] = self.line

    def _refuse_a_third(self, people: dict[str, Person]) -> None:
        others = self._others(people)
        meeting = [one.host for name, one in others.items() if name in self._stirred and one.other in others]
        if len(meeting) > 1:
            raise NotPossible(
                f"two doctors are meeting here already, on {' and '.join(meeting[:2])}",
                hint="two prove a mount: start the same on two hosts once they are done",
            )

    def _others(self, people: dict[str, Person]) -> dict[str, Person]:
        """Who is in the book besides, and has its file still."""
        return {name: one for name, one in people.items() if name != self.name and self._is_there(name)}

    def try_lock(self) -> None:
        """Take turns for a while."""
        pair = self._pair()
        end = time.monotonic() + TRY_S

        def take_turn(book: Book) -> None:
            try:
                os.close(os.open(self._inside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
            except FileExistsError:
                self._result = self._result._replace(together=self._result.together + 1)
            book.turns[pair] = book.turns.get(pair, 0) + 1
            time.sleep(0.001)
            try:
                os.unlink(self._inside)
            except OSError as error:
                if error.errno != errno.ENOENT:
                    raise

        while time.monotonic() < end:
            began = time.monotonic()
            self._look(take_turn)
            worst_s = max(self._result.worst_s, time.monotonic() - began)
            self._result = self._result._replace(turns=self._result.turns + 1, worst_s=worst_s)

    def _pair(self) -> str:
        return "+".join(sorted((self.name, self.line.other or "")))

    def try_reading(self, other: str) -> float | None:
        """Write, and read what the other one writes, without a lock, as for the bell: how old it was when first seen.

        None: it has looked, and so written, since, and nothing was seen. One that is late is waited for. Raises TimedOut
        when it is gone.
        """
        theirs = self._file(other)
        seen, worst_s = self._written_in(theirs), None
        self._look()
        enough = self._beats[other][0] + 2  # the next one may have been written already, and seen above
        end = time.monotonic() + TRY_S
        while time.monotonic() < end or (worst_s is None and self._beats[other][0] < enough):
            self._look()
            if worst_s is None and self._is_gone(other):
                raise _went_away()
            for _ in range(5):
                written = self._written_in(theirs)
                if written not in (seen, None):
                    seen = written
                    worst_s = max(worst_s or 0.0, clock.now() - self.line.ahead_s - (written or 0.0))
                time.sleep(_LOOK_S)
        return worst_s

    @staticmethod
    def _written_in(path: str) -> float | None:
        try:
            return written_in(path)
        except FileNotFoundError:
            return None  # it is done already, or went away: the book tells

    def compare(self, other: str, wait_s: float) -> tuple[int, int, int, float]:
        """Turns in the book, turns that both took, how often two were inside, and the longest wait of both (seconds)."""
        pair = self._pair()
        self.line = self.line._replace(result=self._result)
        end = time.monotonic() + wait_s
        while True:
            book = self._look()
            both = [
                one.result for one in (self.line, book.people.get(other)) if one is not None and one.result is not None
            ]
            if len(both) == 2:
                break
            if time.monotonic() > end or self._is_gone(other):
                raise _went_away()
            time.sleep(_LOOK_S)
        turns, together = sum(one.turns for one in both), sum(one.together for one in both)
        counted = book.turns.get(pair, 0)
        if together or turns != counted:
            self._tell_again()
        return counted, turns, together, max(one.worst_s for one in both)

    def _tell_again(self) -> None:
        """Where the lock keeps nobody out, what this one wrote may have been lost before the other one read it."""
        for _ in range(20):
            self._look()
            time.sleep(_LOOK_S)

    def leave(self) -> None:
        """Sign out, and clear away who was killed. Never fails: what stays is nobody's to meet."""
        try:
            files.remove(self._file(self.name))
            self._gate.wait_s = _LEAVE_S
            self._look(self._sign_out, is_new=False)
        except (TrainqError, OSError):
            pass  # its file is gone, or does not stir any more
        finally:
            self._gate.close()

    def _sign_out(self, book: Book) -> None:
        now = time.monotonic()
        for name in book.people:
            _, since = self._beats.get(name, (0, now))
            if name != self.name and now - since > _DEAD_S:
                files.remove(self._file(name))
        book.drop_who_left(self._is_there)


def _went_away() -> TimedOut:
    return TimedOut("the other doctor went away", hint="start both once more")


def written_in(path: str) -> float | None:
    """The time that a doctor wrote into its file; None if that is none. Raises OSError for what is no file."""
    fd = files.open_regular(path)
    try:
        number = float(os.pread(fd, 32, 0))
    except ValueError:
        return None
    finally:
        os.close(fd)
    return number if math.isfinite(number) else None


def parsed(text: bytes) -> Book:
    """The book of these bytes; a new one if they are none."""
    try:
        people, turns = (json.loads(text)[key] for key in ("people", "turns"))
        book = Book({name: _person(one) for name, one in people.items()}, dict(turns))
        words = [*book.people, *(name for pair in turns for name in pair.split("+"))]
        if all(map(_NAME.fullmatch, words)) and all(type(n) is int for n in turns.values()):
            return book
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError):
        pass
    return Book({}, {})


def _person(one: Any) -> Person:
    """Raises ValueError, TypeError, OverflowError."""
    result = one["result"] and Result(**one["result"])
    found = Person(**{**one, "result": result})
    numbers = [found.ahead_s, *(result or ())]
    if (
        not all(isinstance(word, str) for word in (found.host, found.identity, found.other or ""))
        or not all(type(number) in (int, float) and math.isfinite(number) for number in (found.beat, *numbers))
        or not (found.other is None or _NAME.fullmatch(found.other))
    ):
        raise ValueError("not a doctor's line")
    return found


def _as_json(book: Book) -> dict[str, Any]:
    people = {
        name: {**one._asdict(), "result": one.result and one.result._asdict()} for name, one in book.people.items()
    }
    return {"people": people, "turns": book.turns}
