"""Ending what a dead worker's jobs left on this host: processes that carry the job's uid in their environment.

Used only when the worker is provably gone, by whoever comes next on its host, before the job is given back. A process
is signalled through a descriptor of its own (pidfd), taken before its environment is read, so never one that is not
provably the job's. One look at /proc serves all jobs that are looked for.
"""

from __future__ import annotations

import os
import select
import signal
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

_MARK = b"TRAINQ_JOB_UID="
PATIENCE_S = 1.0  # a worker beats only after it; what takes longer to die is found dead by the next look


def end(uids: Collection[str], patience_s: float = PATIENCE_S) -> set[str]:
    """Kill every process of these jobs on this host; the uids of which something is left (another user's, or stuck).

    What may not be killed is not waited for.
    """
    wanted = {os.fsencode(uid) for uid in uids}
    until = time.monotonic() + patience_s
    left: set[bytes] = set()
    while True:
        found = list(_marked(wanted - left))
        try:
            left |= {uid for uid, fd in found if not _kill(fd)}
            _wait([fd for uid, fd in found if uid not in left], until)
        finally:
            for _, fd in found:
                os.close(fd)
        alive = {uid for uid, _ in found}
        if alive <= left or time.monotonic() >= until:
            return {os.fsdecode(uid) for uid in left | alive}


def _marked(wanted: Collection[bytes]) -> Iterator[tuple[bytes, int]]:
    """The uid and a pidfd of each process on this host that carries one of the marks; ours to close."""
    for name in os.listdir("/proc"):
        if not name.isdecimal() or int(name) == os.getpid():
            continue
        try:
            fd = os.pidfd_open(int(name))
        except OSError:
            continue  # it has gone
        uid = _mark_of(name)
        if uid is not None and uid in wanted:
            yield uid, fd
        else:
            os.close(fd)


def _mark_of(name: str) -> bytes | None:
    """The uid that a process carries; None if it carries none, which is never taken for one that is looked for."""
    try:
        with open(f"/proc/{name}/environ", "rb") as file:
            environ = b"\0" + file.read()
    except OSError:
        return None  # gone, or another user's: not to be judged
    _, mark, rest = environ.partition(b"\0" + _MARK)
    return rest.partition(b"\0")[0] or None if mark else None


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
