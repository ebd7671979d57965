"""The job's end of the socket to its worker, one per process, opened at the first word.

What must stay true: training never waits (the socket does not block, what does not fit is collected here, and
the collection is bounded), nothing raises, and a forked child never writes into its parent's stream. If the
worker is gone, one line on stderr says so and everything after it is silent.
"""

from __future__ import annotations

import atexit
import json
import os
import socket
import sys
import threading
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from trainq.job import words

if TYPE_CHECKING:
    from typing import TypeAlias

    Number: TypeAlias = int | float | None

INTERVAL_S = 0.1
"""One value is sent at most this often; what comes in between is collected."""
POINTS_LIMIT = 5000
"""Calls of metric() that are collected between two sends."""
LAST_WORDS_S = 1.0
"""How long the exit of the process may wait for a busy worker."""
_LOCK_WAIT_S = 1.0
_INCOMING_LIMIT = 64 * 1024


class Connection:
    """The stream to the worker, and what has not been written to it yet. Its callers hold the lock."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._socket: socket.socket | None = None
        self._gone = False
        self._out = bytearray(words.hello())
        self._incoming = bytearray()
        self._numbers: dict[str, Number] = {"fraction": None, "step": None, "total": None}
        self._message: str | None = None
        self._progress_waits = False
        self._points: list[tuple[str | None, Number, dict[str, int | float | str]]] = []
        self._sent_at: dict[Any, float] = {}
        self._flushed_at = 0.0
        self.stop = False

    def progress(self, fraction: Number, step: Number, total: Number, message: str | None) -> None:
        """Note the newest progress and send it if the last one is old enough."""
        if fraction is not None or step is not None or total is not None:
            known = self._numbers["total"] if total is None else total
            self._numbers = {"fraction": fraction, "step": step, "total": known}
        if message is not None:
            self._message = message
        self._progress_waits = True
        self._flush_if_due("progress")

    def metric(self, values: dict[str, int | float | str], step: Number, group: str | None) -> None:
        """Note the points of one call and send them if the last ones of this kind are old enough."""
        self._points.append((group, step, values))
        if len(self._points) > POINTS_LIMIT:
            self._points = thinned(self._points)
        self._flush_if_due((group, *values))

    def listen(self) -> bool:
        """Send what waits, read what the worker pushed; True once it said stop."""
        if time.monotonic() - self._flushed_at >= INTERVAL_S:
            self.flush()
        while not self.stop and self._open():
            assert self._socket is not None
            try:
                received = self._socket.recv(4096)
            except (BlockingIOError, InterruptedError):
                break
            except OSError:
                received = b""
            if not received:
                self._lose()
                break
            self._take(received)
        return self.stop

    def flush(self) -> None:
        """Write as much as the socket takes now; only when all lines are out is more made into lines."""
        self._flushed_at = time.monotonic()
        if not self._open():
            return
        self._write()
        if not self._out and self._waits():
            self._encode()
            self._write()

    def last_words(self) -> None:
        """Write all that is left, waiting for the worker a little; for the exit of the process."""
        until = time.monotonic() + LAST_WORDS_S
        while self._waits() and self._open() and time.monotonic() < until:
            assert self._socket is not None
            self._socket.settimeout(LAST_WORDS_S)
            self.flush()

    def close(self) -> None:
        """Let go of the descriptor, which says nothing to the worker while another process holds it too."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _waits(self) -> bool:
        return bool(self._out or self._progress_waits or self._points)

    def _flush_if_due(self, key: Any) -> None:
        if time.monotonic() - self._sent_at.get(key, -INTERVAL_S) >= INTERVAL_S:
            if len(self._sent_at) > POINTS_LIMIT:
                self._sent_at.clear()
            self._sent_at[key] = time.monotonic()
            self.flush()

    def _encode(self) -> None:
        """Turn what is collected into lines. All of it counts as sent now: its next send is due together."""
        now = time.monotonic()
        if self._progress_waits:
            self._out += words.line(do="progress", message=self._message, **self._numbers)
            self._sent_at["progress"] = now
            self._progress_waits = False
        for group, step, values in self._points:
            encoded = words.line(do="metric", values=values, step=step, group=group)
            if not encoded:
                complain(f"{len(values)} metrics of one call left out: too many for one line")
            self._out += encoded
            self._sent_at[(group, *values)] = now
        self._points = []

    def _open(self) -> bool:
        """Is there a connection? Opens it at the first use. A full backlog counts as not yet, not as gone."""
        if self._socket is not None or self._gone:
            return self._socket is not None
        opened = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        opened.setblocking(False)
        try:
            opened.connect(self._path)
        except BlockingIOError:
            opened.close()
            return False
        except OSError:
            opened.close()
            self._lose()
            return False
        self._socket = opened
        return True

    def _write(self) -> None:
        while self._out and self._socket is not None:
            try:
                # MSG_NOSIGNAL: a script may have set SIGPIPE back to its deadly default.
                sent = self._socket.send(self._out, socket.MSG_NOSIGNAL)
            except (BlockingIOError, InterruptedError, TimeoutError):
                return
            except OSError:
                self._lose()
                return
            del self._out[:sent]

    def _take(self, received: bytes) -> None:
        self._incoming += received
        *lines, rest = self._incoming.split(b"\n")
        self._incoming = rest if len(rest) <= _INCOMING_LIMIT else bytearray()
        for each in lines:
            try:
                message = json.loads(each)
            except (ValueError, RecursionError):
                continue  # a newer worker's word that this client cannot read
            if isinstance(message, dict) and message.get("do") == "stop":
                self.stop = True

    def _lose(self) -> None:
        self.close()
        self._gone = True
        self._out.clear()
        self._points.clear()
        self._progress_waits = False
        complain("the worker does not answer any more; progress and metrics are not sent")


def thinned(points: list[Any]) -> list[Any]:
    """About half of the points: every second one, and of each name the newest."""
    seen: set[str] = set()
    kept = []
    for index, point in enumerate(reversed(points)):
        if index % 2 == 0 or not seen.issuperset(point[2]):
            kept.append(point)
        seen.update(point[2])
    kept.reverse()
    return kept[-POINTS_LIMIT * 3 // 4 :]


_said: set[str] = set()


def complain(what: str) -> None:
    """Say something on stderr, once, if there is a stderr."""
    if what in _said or len(_said) > 20:
        return
    _said.add(what)
    try:
        sys.stderr.write(f"trainq: {what}\n")
    except (OSError, ValueError, AttributeError, RuntimeError):
        pass  # a closed, missing or (in a handler) busy stderr is no reason to stop a training


_lock = threading.RLock()
_busy = False
_current: Connection | None = None


def progress(fraction: Any, step: Any, total: Any, message: Any) -> None:
    """`job.progress` in a job."""
    numbers = words.finite(fraction), words.finite(step), words.finite(total)
    told = None if message is None else words.text(message)
    if _enter():
        try:
            _connection().progress(*numbers, told)
        finally:
            _leave()


def metric(name: Any, value: Any, step: Any, group: Any) -> None:
    """`job.metric` in a job. Values become numbers before the lock is taken: that may wait for a device."""
    values = _numbers(name if isinstance(name, Mapping) else {words.text(name): value})
    at = words.finite(step)
    where = None if group is None else words.text(group, words.NAME_LIMIT)
    if values and _enter():
        try:
            _connection().metric(values, at, where)
        finally:
            _leave()


def _numbers(values: Mapping[Any, Any]) -> dict[str, int | float | str]:
    kept: dict[str, int | float | str] = {}
    for name, value in values.items():
        found = words.number(value)
        if found is None:
            complain(f"metric {words.text(name, 60)!r} left out: a {type(value).__name__} that is not one number")
        else:
            kept[words.text(name, words.NAME_LIMIT)] = found
    return kept


def stop_was_pushed() -> bool:
    """Has the worker said stop? Connects if need be: only connected processes hear it."""
    if not _enter():
        return False
    try:
        return _connection().listen()
    finally:
        _leave()


def _enter() -> bool:
    """Take the lock; False, and the word is dropped, in a signal handler that interrupted its holder."""
    global _busy  # noqa: PLW0603
    if not _lock.acquire(timeout=_LOCK_WAIT_S):
        return False
    if _busy:  # only the thread that holds it comes here: by a handler, in the middle of its own words
        _lock.release()
        return False
    _busy = True
    return True


def _leave() -> None:
    global _busy  # noqa: PLW0603
    _busy = False
    _lock.release()


def _connection() -> Connection:
    global _current  # noqa: PLW0603 - one per process is the point
    if _current is None:
        _current = Connection(os.environ.get("TRAINQ_SOCKET", ""))
        _at_exit_of_child()
    return _current


def _at_exit_of_child() -> None:
    """Forked children of multiprocessing leave by os._exit, past atexit; their own finalizers run."""
    util = sys.modules.get("multiprocessing.util")
    process = sys.modules.get("multiprocessing.process")
    if util is not None and process is not None and process.parent_process() is not None:
        util.Finalize(None, _last_words, exitpriority=10)


def _last_words() -> None:
    if _current is not None and _enter():
        try:
            _current.last_words()
        finally:
            _leave()


def _after_fork() -> None:
    """In the child: forget the parent's stream and lock; the first word opens a connection of its own."""
    global _lock, _busy, _current  # noqa: PLW0603
    _lock, _busy = threading.RLock(), False
    if _current is not None:
        _current.close()
        _current = None


os.register_at_fork(after_in_child=_after_fork)
atexit.register(_last_words)
