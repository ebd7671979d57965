"""A message to the worker whose answer matters, on a connection of its own.

The connection of progress and metrics belongs to the training, which never waits; here one caller waits for one
answer, and may come back for it later.
"""

from __future__ import annotations

import json
import os
import socket
import time
from typing import Any

from trainq.job import words

_ACK = 1
_BACKLOG_S = 0.02


class Question:
    """One question that is on its way. Raises `OSError` from anywhere when there is no worker (any more)."""

    def __init__(self, within_s: float, **message: Any) -> None:
        self._incoming = b""
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._connect(time.monotonic() + within_s)
            self._socket.settimeout(max(within_s, 0.001))
            # MSG_NOSIGNAL: a script may have set SIGPIPE back to its deadly default.
            self._socket.sendall(words.hello() + words.line(**message, ack=_ACK), socket.MSG_NOSIGNAL)
        except BaseException:
            self._socket.close()
            raise

    def _connect(self, until: float) -> None:
        self._socket.setblocking(False)
        while True:
            try:
                self._socket.connect(os.environ.get("TRAINQ_SOCKET", ""))
            except BlockingIOError:  # a full backlog is not waited for by the kernel
                if time.monotonic() >= until:
                    raise
                time.sleep(_BACKLOG_S)
            else:
                return

    def answer(self, within_s: float) -> bool | None:
        """Yes or no; None if it has not come in time."""
        until = time.monotonic() + within_s
        while True:
            self._socket.settimeout(max(until - time.monotonic(), 0.001))
            try:
                received = self._socket.recv(4096)
            except (TimeoutError, BlockingIOError, socket.timeout):  # noqa: UP041 - two classes before Python 3.10
                return None
            if not received:
                raise ConnectionResetError("the worker has closed the connection")
            *lines, self._incoming = (self._incoming + received).split(b"\n")
            for each in lines:
                answer = _answer(each)
                if answer is not None:
                    return answer

    def close(self) -> None:
        """Let go of the connection; what was said is still read."""
        try:
            self._socket.close()
        except OSError:
            pass  # what it was for is known


def _answer(line: bytes) -> bool | None:
    """What the line answers. A worker that does not know the question gives an ack that does not say ok."""
    try:
        said = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(said, dict) or said.get("ack") != _ACK:
        return None
    return said.get("ok") is True
