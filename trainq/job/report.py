"""One message to the worker from a process that lives only for it: what `trainq report` sends."""

from __future__ import annotations

import json
import os
import socket
import time
from typing import TYPE_CHECKING, Any

from trainq.job import words

if TYPE_CHECKING:
    from collections.abc import Mapping

_ACK = 1


def send(
    *,
    fraction: float | None = None,
    step: float | None = None,
    total: float | None = None,
    message: str | None = None,
    metrics: Mapping[str, Any] | None = None,
    group: str | None = None,
    timeout_s: float = 5.0,
) -> str:
    """Send progress and metrics (at `step`) and wait until the worker has read them.

    Answers "sent", "outside" (this is no job) or "gone" (no worker, or none that answered in time). Never
    raises. "sent" means that the worker knows; it is stored with the worker's next turn.
    """
    path = os.environ.get("TRAINQ_SOCKET")
    if not path or "TRAINQ_JOB_UID" not in os.environ:
        return "outside"
    lines = _lines(fraction=fraction, step=step, total=total, message=message, metrics=metrics, group=group)
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            return _sent(connection, path, lines, time.monotonic() + timeout_s)
    except OSError:
        return "gone"


def _lines(
    *, fraction: Any, step: Any, total: Any, message: Any, metrics: Mapping[str, Any] | None, group: Any
) -> bytes:
    at = words.finite(step)
    lines = words.hello()
    if metrics:
        found = {words.text(name, words.NAME_LIMIT): words.number(value) for name, value in metrics.items()}
        values = {name: value for name, value in found.items() if value is not None}
        where = None if group is None else words.text(group, words.NAME_LIMIT)
        lines += words.line(do="metric", values=values, step=at, group=where)
    return lines + words.line(
        do="progress",
        fraction=words.finite(fraction),
        step=at,
        total=words.finite(total),
        message=None if message is None else words.text(message),
        ack=_ACK,
    )


def _sent(connection: socket.socket, path: str, lines: bytes, until: float) -> str:
    connection.settimeout(max(until - time.monotonic(), 0.001))
    connection.connect(path)
    connection.sendall(lines)
    answer = b""
    while (left := until - time.monotonic()) > 0:
        connection.settimeout(left)
        received = connection.recv(4096)
        if not received:
            return "gone"
        *whole, answer = (answer + received).split(b"\n")
        if any(_is_ack(each) for each in whole):
            return "sent"
    return "gone"


def _is_ack(each: bytes) -> bool:
    try:
        said = json.loads(each)
    except ValueError:
        return False
    return isinstance(said, dict) and said.get("ack") == _ACK
