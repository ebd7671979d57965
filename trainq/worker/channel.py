"""The worker's end of the line to its jobs: one unix stream socket, served by the worker's own poll loop.

The protocol: lines of UTF-8 JSON, one object a line, at most 1 MiB.

    job     {"hello": TRAINQ_JOB_UID, "attempt": N}                       the first line of every connection
            {"do": "progress", "fraction": F, "step": N, "total": N, "message": TEXT}      null: as it was
            {"do": "metric", "values": {NAME: NUMBER, …}, "step": N, "group": TEXT}
                                                         a NUMBER may be the text "nan", "inf" or "-inf"
            {"do": "checkpoint", "number": N, "step": N, "epoch": N, "digest": SHA256, "size": BYTES}
                                                         one stands complete in the checkpoint directory
            {"do": "checkpoint_failed", "error": TEXT}
            {"do": "failed", "error": TEXT}      the exception that ends it, told before the log goes on
            … with "ack": N                              asks for an answer once the line has been read
    worker  {"ack": N}
            {"ack": N, "ok": true | false}               to a checkpoint, once that is decided: committed or not
            {"do": "stop", "reason": "canceled" | "time" | "drained"}     said again to who connects later

Both sides pass over words and keys that they do not know: the other may be newer. A job may hold any number
of connections (each of its processes opens its own); where there are too many, who has the most loses one.

What must stay true: no client can make the worker wait, raise, or grow without bound. A line that is too long
or no JSON object costs the client its connection and nothing else. Only processes of the worker's own user
are listened to; which attempt they speak for is their word, so the receiver checks that it is one it runs.
"""

from __future__ import annotations

import errno
import itertools
import json
import os
import resource
import selectors
import socket
import stat
import struct
import time
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from trainq.base import runtime
from trainq.base.errors import Unwritable
from trainq.worker import messages

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

LINE_LIMIT = 1024 * 1024
PATH_LIMIT = 100
"""Bytes of a socket's path, of the 108 that the kernel takes."""
CONNECTIONS_LIMIT = 512
_READ_BYTES = 64 * 1024
_DRAIN_READS = 64
_OUT_LIMIT = 64 * 1024
_SWEEP_AGE_S = 60
_NO_DESCRIPTOR = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


class Asker(NamedTuple):
    """Who asked, on which connection, under which number (None: wants no answer)."""

    connection: int
    ack: int | None


class Channel:
    """One listener and its connections.

    Everything is registered in `selector` with `data` = a callable without arguments; the loop calls it when
    its key is ready. `on_message(uid, attempt, message)` gets well-formed messages only: {"do": "progress",
    "fraction", "step", "total", "message"}, each None or a finite number (fraction from 0 to 1) or text, or
    {"do": "metric", "values", "step", "group"} with values {text: float, NaN and infinities included}, or
    {"do": "checkpoint_failed", "error"}, or {"do": "failed", "error"}, or {"do": "checkpoint", "number", "step", "epoch",
    "digest", "size", "asker"}. It may call push, and drop (what else that process had said is then not delivered).

    A checkpoint is not answered here: whoever commits it calls `ack(message["asker"], ok)`, at once or later, when the
    transaction is over. Those that `drop` still delivers are part of what the attempt did: commit them with its end.
    """

    def __init__(
        self, selector: selectors.BaseSelector, on_message: Callable[[str, int, dict[str, Any]], None]
    ) -> None:
        self._selector = selector
        self._on_message = on_message
        self._connections: set[_Connection] = set()
        self._numbers = itertools.count(1)
        self._stops: dict[tuple[str, int], bytes] = {}
        self._directory, self._own_directory = _private_directory()
        _sweep(self._directory)
        self.path = os.path.join(self._directory, f"{os.getpid()}-{os.urandom(4).hex()}")
        """The value of TRAINQ_SOCKET."""
        self._listener = self._listen(self.path)
        self._resting = False  # no descriptor was left to accept with
        self._most = _most_connections()

    def ensure(self) -> None:
        """Make the socket again if somebody swept it away, elsewhere if its directory is no longer this user's alone.

        For the start of each job; costs two stats. Raises Unwritable; then the old socket is served on.
        """
        is_private = runtime.is_private(self._directory)
        if is_private and os.path.exists(self.path):
            return
        directory, own = self._directory, self._own_directory
        if not (own and is_private):
            directory, own = _private_directory()
        path = os.path.join(directory, os.path.basename(self.path))
        listener = self._listen(path)
        self._close_listener()
        self._listener, self.path, self._directory, self._own_directory = listener, path, directory, own

    def push(self, uid: str, attempt: int, message: dict[str, Any]) -> None:
        """Say something to all processes of an attempt; a `stop` is also said to those that connect later."""
        line = _line(message)
        if message.get("do") == "stop":
            self._stops[(uid, attempt)] = line
        for connection in self._of((uid, attempt)):
            self._send(connection, line)

    def ack(self, asker: Asker, ok: bool) -> None:
        """Answer a checkpoint: `ok` once it is committed. Nothing happens if who asked is gone."""
        for connection in self._connections:
            if connection.number == asker.connection and asker.ack is not None:
                self._send(connection, _line({"ack": asker.ack, "ok": ok}))
                return

    def drop(self, uid: str, attempt: int) -> None:
        """The attempt has ended: deliver what its processes had said by now, then close their connections.

        Who connects later still reaches `on_message`, with an attempt that the receiver no longer runs.
        """
        self._accept()
        for connection in [each for each in self._connections if each.address is None]:
            self._read(connection)
        for connection in self._of((uid, attempt)):
            for _ in range(_DRAIN_READS):
                if not self._read(connection):
                    break
            self._close(connection)
        self._stops.pop((uid, attempt), None)

    def listen_again(self) -> None:
        """After a rest, if there was one. For each poll: meanwhile descriptors may have become free."""
        if self._resting:
            self._resting = False
            self._selector.register(self._listener, selectors.EVENT_READ, self._accept)

    def close(self) -> None:
        """Close everything and remove the socket."""
        for connection in list(self._connections):
            self._close(connection)
        self._close_listener()
        try:
            os.unlink(self.path)
            if self._own_directory:
                os.rmdir(self._directory)
        except OSError:
            pass  # swept away before, or in a directory that is no longer writable: the next worker sweeps it

    def _listen(self, path: str) -> socket.socket:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.setblocking(False)
        try:
            listener.bind(path)
            listener.listen(128)
        except OSError as error:
            listener.close()
            raise Unwritable(f"cannot make the socket {path}: {error.strerror}") from error
        self._selector.register(listener, selectors.EVENT_READ, self._accept)
        return listener

    def _close_listener(self) -> None:
        if not self._resting:
            self._selector.unregister(self._listener)
        self._resting = False
        self._listener.close()

    def _accept(self) -> None:
        for _ in range(128):
            try:
                accepted, _address = self._listener.accept()
            except OSError as error:
                if error.errno in _NO_DESCRIPTOR:
                    self._rest()
                return  # nobody is left, or waits in the backlog
            if not _is_ours(accepted):
                accepted.close()
                continue
            if len(self._connections) >= self._most:
                self._make_room()
            accepted.setblocking(False)
            connection = _Connection(accepted, next(self._numbers))
            self._connections.add(connection)
            self._selector.register(accepted, selectors.EVENT_READ, partial(self._serve, connection))

    def _rest(self) -> None:
        """Do not listen for a while: who waits would keep the loop awake."""
        if not self._resting:
            self._resting = True
            self._selector.unregister(self._listener)

    def _make_room(self) -> None:
        """Close a connection of who has the most: the last one of an attempt; of those without a hello the first."""
        counts = Counter(each.address for each in self._connections)
        greedy = max(counts, key=counts.__getitem__)
        choose = min if greedy is None else max
        self._close(
            choose((each for each in self._connections if each.address == greedy), key=lambda each: each.number)
        )

    def _of(self, address: tuple[str, int]) -> list[_Connection]:
        return [each for each in self._connections if each.address == address]

    def _serve(self, connection: _Connection) -> None:
        # One read a turn: a job that never stops talking shares the loop with all others.
        if connection.out:
            self._send(connection, b"")
        self._read(connection)

    def _read(self, connection: _Connection) -> bool:
        """Read once and deliver; False if there was nothing, or the connection is closed."""
        if connection not in self._connections:
            return False  # closed by an earlier callback of the same turn
        try:
            received = connection.socket.recv(_READ_BYTES)
        except (BlockingIOError, InterruptedError):
            return False
        except OSError:
            received = b""
        if not received:
            self._close(connection)
            return False
        for line in connection.lines(received):
            if not self._take(connection, line):
                self._close(connection)
            if connection not in self._connections:
                return False
        if len(connection.incoming) > LINE_LIMIT:
            self._close(connection)
            return False
        return True

    def _take(self, connection: _Connection, line: bytes) -> bool:
        """Act on one line; False if the client has to go."""
        message = _parsed(line)
        if message is None:
            return False
        if connection.address is None:
            connection.address = _address(message)
            if connection.address in self._stops:
                self._send(connection, self._stops[connection.address])
            return connection.address is not None
        checked = messages.checked(message)
        ack = message.get("ack")
        answered_later = checked is not None and checked["do"] == "checkpoint"
        if checked is not None and answered_later:
            checked["asker"] = Asker(connection.number, ack if isinstance(ack, int) else None)
        if checked is not None:
            self._on_message(*connection.address, checked)
        if isinstance(ack, int) and not answered_later:
            self._send(connection, _line({"ack": ack}))
        return True

    def _send(self, connection: _Connection, line: bytes) -> None:
        """Write what fits; the rest waits for the loop. Who lets too much pile up is closed."""
        if connection not in self._connections:
            return
        connection.out += line
        try:
            while connection.out:
                del connection.out[: connection.socket.send(connection.out, socket.MSG_NOSIGNAL)]
        except (BlockingIOError, InterruptedError):
            if len(connection.out) > _OUT_LIMIT:
                self._close(connection)
                return
        except OSError:
            connection.out.clear()  # its end is seen, after its last words, by the next read
        wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if connection.out else 0)
        if wanted != connection.events:
            connection.events = wanted
            self._selector.modify(connection.socket, wanted, partial(self._serve, connection))

    def _close(self, connection: _Connection) -> None:
        if connection in self._connections:
            self._connections.remove(connection)
            self._selector.unregister(connection.socket)
            connection.socket.close()


class _Connection:
    """One process of a job, known by its address (uid, attempt) once it has said hello."""

    def __init__(self, accepted: socket.socket, number: int) -> None:
        self.socket = accepted
        self.number = number
        self.address: tuple[str, int] | None = None
        self.incoming = bytearray()
        self.out = bytearray()
        self.events = selectors.EVENT_READ

    def lines(self, received: bytes) -> Iterator[bytes]:
        """The whole lines that `received` completes; each is taken out before it is given."""
        self.incoming += received
        if b"\n" not in received:
            return
        while (end := self.incoming.find(b"\n")) >= 0:
            line = bytes(self.incoming[:end])
            del self.incoming[: end + 1]
            yield line


def guest_directory() -> str:
    """The directory that makes `from trainq import job` work in any interpreter when it is on PYTHONPATH."""
    return os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "guest")


def with_guest(python_path: str | None) -> str:
    """A job's PYTHONPATH: the user's own entries, then the guest directory, once."""
    guest = guest_directory()
    entries = [entry for entry in python_path.split(os.pathsep) if entry != guest] if python_path else []
    return os.pathsep.join([*entries, guest])


def _line(message: dict[str, Any]) -> bytes:
    return json.dumps(message, separators=(",", ":"), allow_nan=False).encode("ascii") + b"\n"


def _parsed(line: bytes) -> dict[str, Any] | None:
    """The object that the line holds, else None."""
    if len(line) > LINE_LIMIT:
        return None
    try:
        message = json.loads(line.decode("utf-8"))
    except (ValueError, RecursionError):
        return None
    return message if isinstance(message, dict) else None


def _address(message: dict[str, Any]) -> tuple[str, int] | None:
    uid, attempt = message.get("hello"), message.get("attempt")
    if not isinstance(uid, str) or not isinstance(attempt, int):
        return None
    return uid[: messages.NAME_LIMIT], attempt


def _is_ours(accepted: socket.socket) -> bool:
    packed = accepted.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    _pid, uid, _gid = struct.unpack("3i", packed)
    return bool(uid == os.geteuid())


def _most_connections() -> int:
    """Half of the descriptors that this process may have: the rest is for the store and the logs."""
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if descriptors == resource.RLIM_INFINITY:
        return CONNECTIONS_LIMIT
    return max(1, min(CONNECTIONS_LIMIT, descriptors // 2))


def _private_directory() -> tuple[str, bool]:
    """A short directory of this user only, and whether it is this worker's alone: somebody else may sit on the name of
    the one that all workers of the user share.
    """
    shared = runtime.directory(PATH_LIMIT - 32)
    if shared is not None:
        return shared, False
    import tempfile

    try:
        return tempfile.mkdtemp(prefix=f"trainq-{os.geteuid()}-", dir="/tmp"), True
    except OSError as error:
        raise Unwritable(f"no directory for the worker's socket: /tmp: {error.strerror}") from error


def _sweep(directory: str) -> None:
    """Remove sockets that nobody listens on.

    The kernel is asked, not the pid in the name: another container may share the directory but not the pids.
    A socket is left alone in its first minute, since a worker that has just bound its own does not listen
    yet.
    """
    for name in os.listdir(directory):
        path = os.path.join(directory, name)
        try:
            found = os.lstat(path)
        except OSError:
            continue  # its worker was faster
        if stat.S_ISSOCK(found.st_mode) and abs(time.time() - found.st_mtime) > _SWEEP_AGE_S and _is_dead(path):
            try:
                os.unlink(path)
            except OSError:
                continue


def _is_dead(path: str) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            return True
        except OSError:
            return False
    return False
