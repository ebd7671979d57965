"""Ending what a dead worker's jobs left on this host: processes that carry the job's uid in their environment.

Used only when the worker is provably gone, by whoever comes next on its host, before the job is given back. A process
is signalled through a descriptor of its own (pidfd), taken before its environment is read, so never one that is not
provably the job's. Nor is one of a later attempt: somebody else may have given the job back meanwhile, and a living
worker runs it here. One look at /proc serves all jobs that are looked for.
"""

from __future__ import annotations

import os
import select
import signal
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

_MARK = b"TRAINQ_JOB_UID"
_ATTEMPT = b"TRAINQ_ATTEMPT"
PATIENCE_S = 1.0  # a worker beats only after it; what takes longer to die is found dead by the next look


def end(attempts: Mapping[str, int], patience_s: float = PATIENCE_S) -> set[str]:
    """Kill every process on this host of these jobs (by uid) up to this attempt; the uids of which something is left
    (another user's, or stuck). What may not be killed is not waited for.
    """
    wanted = {os.fsencode(uid): attempt for uid, attempt in attempts.items()}
    until = time.monotonic() + patience_s
    left: set[bytes] = set()
    empty_looks = 0  # one alone may have missed a chain that forks and exits
    while True:
        try:
            found = list(_marked({uid: wanted[uid] for uid in wanted.keys() - left}))
        except OSError:
            return set(attempts)  # who cannot look has not seen that nothing is left
        try:
            left |= {uid for uid, fd in found if not _kill(fd)}
            _wait([fd for uid, fd in found if uid not in left], until)
        finally:
            for _, fd in found:
                os.close(fd)
        alive = {uid for uid, _ in found}
        empty_looks = 0 if alive - left else empty_looks + 1
        if empty_looks == 2 or time.monotonic() >= until:
            return {os.fsdecode(uid) for uid in left | alive}


def _marked(wanted: Mapping[bytes, int]) -> Iterator[tuple[bytes, int]]:
    """The uid and a pidfd of each process on this host of one of these attempts or an earlier one; ours to close."""
    for name in os.listdir("/proc"):
        if not name.isdecimal() or int(name) == os.getpid():
            continue
        try:
            fd = os.pidfd_open(int(name))
        except ProcessLookupError:
            continue  # it has gone
        environ = _environ(name)
        uid = _value(environ, _MARK)
        if uid and uid in wanted and _attempt(environ) <= wanted[uid]:
            yield uid, fd
        else:
            os.close(fd)


def _environ(name: str) -> bytes:
    try:
        with open(f"/proc/{name}/environ", "rb") as file:
            return b"\0" + file.read()
    except OSError:
        return b""  # gone, or another user's: not to be judged


def _value(environ: bytes, name: bytes) -> bytes:
    """What a variable says; nothing when it is not there, which is never taken for what is looked for."""
    return environ.partition(b"\0" + name + b"=")[2].partition(b"\0")[0]


def _attempt(environ: bytes) -> int:
    told = _value(environ, _ATTEMPT)
    return int(told) if told.isdigit() and len(told) < 20 else 0


def _kill(fd: int) -> bool:
    try:
        signal.pidfd_send_signal(fd, signal.SIGKILL)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return True


def _wait(fds: Collection[int], until: float) -> None:
    """Until they are all gone, or time is out."""
    poller = select.poll()
    left = set(fds)
    for fd in left:
        poller.register(fd, select.POLLIN)
    while left and (patience_s := until - time.monotonic()) > 0:
        for fd, _ in poller.poll(patience_s * 1000):
            poller.unregister(fd)
            left.discard(fd)
