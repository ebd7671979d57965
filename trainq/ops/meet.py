"""Two doctors meet: at the same time, on two hosts, they try whether the storage keeps them apart and lets each see
what the other wrote.

All they know of each other stands in one file that is read and written under a lock of the gate's kind. That the lock
excludes is checked twice, by a sum that would lose what two write at once, and by a file that only one can make.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import time
from typing import TYPE_CHECKING, Any

from trainq.base import clock, files, hosts
from trainq.base.errors import TimedOut

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trainq.ops.queue import Queue

WAIT_S = 60.0
"""How long to wait for the other one."""
TRY_S = 3.0
_STALE_S = 600.0
_LOOK_S = 0.05


def meet(queue: Queue, wait_s: float = WAIT_S) -> Iterator[tuple[str, str, str]]:
    """What was found, as (name, state, message). Raises TimedOut when nobody came."""
    me = _Doctor(queue)
    try:
        other = me.find_other(wait_s)
        same = other["identity"] == hosts.identity()
        yield (
            "hosts",
            "warning" if same else "ok",
            f"met the doctor on {other['host']}"
            + (", which is this host: only two hosts prove a mount" if same else ""),
        )
        me.try_lock()
        late_s = me.try_reading(other["name"])
        result = me.compare(other["name"], wait_s)
    finally:
        me.leave()
    turns, expected, together, worst_s = result
    if together or turns != expected:
        yield (
            "exclusion",
            "bad",
            f"{together} times two were inside at once, {expected - turns} of {expected} writes lost",
        )
    else:
        yield "exclusion", "ok", f"{turns} turns, never two at once; the longest wait {worst_s * 1e3:.0f} ms"
    if late_s is None:
        yield "visibility", "bad", f"nothing that {other['host']} wrote was seen"
    else:
        yield "visibility", "ok", f"what {other['host']} wrote was seen after at most {late_s * 1e3:.0f} ms"
    apart_s = abs(me.ahead_s - other["ahead_s"])
    yield "clocks", "ok", f"{apart_s:.1f} s apart; trainq goes by the file server's"


class _Doctor:
    """This one. Its open file is the meeting's book."""

    def __init__(self, queue: Queue) -> None:
        with queue.session.reading() as tx:
            self.ahead_s = clock.now() - tx.now  # of this host's clock before the queue's
        self.name = f"{hosts.hostname()}-{os.getpid()}-{os.urandom(3).hex()}"
        self._base = queue.paths.lock("meeting").removesuffix(".lock")
        self._fd = files.open_shared(queue.paths.lock("meeting"))
        self._lock = fcntl.lockf if queue.is_shared else fcntl.flock
        self._turns = self._together = 0
        self._worst_s = 0.0
        self._write()  # before the other one knows of it: that there is no such file would be remembered there
        self._book(self._sign_in)

    def _write(self) -> None:
        fd = files.open_shared(f"{self._base}.{self.name}")
        os.pwrite(fd, f"{clock.now() - self.ahead_s:.6f}\n".encode().ljust(32), 0)
        os.close(fd)

    def _book(self, change: Any) -> dict[str, Any]:
        """Read the book under the lock, let `change` write in it, and give back what stands there then."""
        self._lock(self._fd, fcntl.LOCK_EX)
        try:
            text = os.pread(self._fd, 1 << 16, 0)
            try:
                book = json.loads(text)
            except ValueError:
                book = {"people": {}, "turns": 0}
            change(book)
            new = json.dumps(book).encode()
            os.pwrite(self._fd, new, 0)
            os.ftruncate(self._fd, len(new))
            os.fsync(self._fd)
            return book  # type: ignore[no-any-return]
        finally:
            self._lock(self._fd, fcntl.LOCK_UN)

    def _sign_in(self, book: dict[str, Any]) -> None:
        now = clock.now() - self.ahead_s
        people = {
            name: one for name, one in book["people"].items() if now - one["at"] < _STALE_S and "turns" not in one
        }
        if not people:
            book["turns"] = 0
        people[self.name] = {
            "name": self.name, "host": hosts.hostname(), "identity": hosts.identity(), "ahead_s": self.ahead_s, "at": now,
        }  # fmt: skip
        book["people"] = people

    def find_other(self, wait_s: float) -> dict[str, Any]:
        """Wait for another doctor. Raises TimedOut."""
        end = time.monotonic() + wait_s
        while True:
            people = self._book(lambda _: None)["people"]
            others = [one for name, one in people.items() if name != self.name]
            if others:
                return others[0]  # type: ignore[no-any-return]
            if time.monotonic() > end:
                raise TimedOut(
                    f"no other doctor came within {wait_s:g} s", hint="start the same on a second host meanwhile"
                )
            time.sleep(_LOOK_S)

    def try_lock(self) -> None:
        """Take turns for a while."""
        inside = f"{self._base}.inside"
        end = time.monotonic() + TRY_S

        def take_turn(book: dict[str, Any]) -> None:
            try:
                os.close(os.open(inside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
            except FileExistsError:
                self._together += 1
            book["turns"] += 1
            time.sleep(0.001)
            try:
                os.unlink(inside)
            except OSError as error:
                if error.errno != errno.ENOENT:
                    raise

        while time.monotonic() < end:
            began = time.monotonic()
            self._book(take_turn)
            self._turns += 1
            self._worst_s = max(self._worst_s, time.monotonic() - began)

    def try_reading(self, other: str) -> float | None:
        """Write, and read what the other one writes, without a lock, as for the bell: how old it was when first seen."""
        theirs = f"{self._base}.{other}"
        end = time.monotonic() + TRY_S
        seen, worst_s = _read(theirs), None
        while time.monotonic() < end:
            self._write()
            for _ in range(5):
                text = _read(theirs)
                if text not in (seen, b""):
                    seen = text
                    worst_s = max(worst_s or 0.0, clock.now() - self.ahead_s - float(text))
                time.sleep(_LOOK_S)
        return worst_s

    def compare(self, other: str, wait_s: float) -> tuple[int, int, int, float]:
        """Turns in the book, turns that both took, how often two were inside, and the longest wait of both (seconds)."""

        def tell(book: dict[str, Any]) -> None:
            book["people"][self.name] |= {"turns": self._turns, "together": self._together, "worst_s": self._worst_s}

        self._book(tell)
        end = time.monotonic() + wait_s
        while True:
            book = self._book(lambda _: None)
            both = [book["people"].get(name, {}) for name in (self.name, other)]
            if all("turns" in one for one in both):
                turns, together = (sum(one[what] for one in both) for what in ("turns", "together"))
                return book["turns"], turns, together, max(one["worst_s"] for one in both)
            if time.monotonic() > end:
                raise TimedOut("the other doctor went away", hint="start both once more")
            time.sleep(_LOOK_S)

    def leave(self) -> None:
        """Take away what is ours alone; the book stays for the other one."""
        os.close(self._fd)
        files.remove(f"{self._base}.{self.name}")


def _read(path: str) -> bytes:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.pread(fd, 32, 0)
    finally:
        os.close(fd)
