"""The processes below this one, as /proc shows them, and signals to them.

What must stay true:
- No process is signalled unless it was found among the descendants of this process just then.
- A process counts as still only if none of its threads can run an instruction of its own before a CONT.

Part of the keeper's program: it imports nothing of trainq but its siblings there, and little else.
"""

from __future__ import annotations

import errno
import os

from trainq.worker.kernel import signal_thread

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    from collections.abc import Collection, Iterator
else:  # The public module adds `enum`.
    import _signal as signal

NOBODY: frozenset[int] = frozenset()
DEAD, STOPPED = frozenset("ZXx"), frozenset("Tt")
STILL = DEAD | STOPPED | frozenset("D")  # in the kernel for as long as it takes; then its STOP comes first


def read(path: str) -> bytes:
    """The whole of a small file; empty if it, or the process it describes, is gone."""
    parts = []
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        while part := os.read(fd, 65536):
            parts.append(part)
    except ProcessLookupError:
        return b""
    finally:
        os.close(fd)
    return b"".join(parts)


class Stat:
    """The fields of /proc/PID/stat that matter here. `start` is in clock ticks since boot (field 22)."""

    __slots__ = ("group", "parent", "start", "state", "threads")

    def __init__(self, text: bytes) -> None:
        words = text[text.rindex(b")") + 2 :].split()
        self.state = words[0].decode()  # of the first thread
        self.parent = int(words[1])
        self.group = int(words[2])
        self.threads = int(words[17])
        self.start = int(words[19])


def stat(pid: int) -> Stat | None:
    """What the process is now; None if it is gone."""
    text = read(f"/proc/{pid}/stat")
    return Stat(text) if text else None


def threads(pid: int) -> list[int]:
    """The threads of a process; empty if it is gone."""
    try:
        return list(map(int, os.listdir(f"/proc/{pid}/task")))
    except OSError:
        return []


def children(pid: int, now: Stat | None = None) -> list[int]:
    """The children of all threads of a process; empty if it is gone. With its stat it is quicker for one thread."""
    found: list[int] = []
    for thread in (pid,) if now is not None and now.threads <= 1 else threads(pid):
        found.extend(map(int, read(f"/proc/{pid}/task/{thread}/children").split()))
    return found


def walk(spare: frozenset[int] = NOBODY, closed: Collection[int] = NOBODY) -> Iterator[tuple[int, int, Stat]]:
    """(pid, parent, stat) of all descendants of this process, parents first, but for `spare` and what is below.

    The children of a process are read after it was given out: if it was stopped then, all of them are seen; if the
    caller has put it in `closed` then, none. One that changes its parent meanwhile may be missed, or come twice.
    """
    me = os.getpid()
    found = [(pid, me) for pid in children(me) if pid not in spare]
    for pid, parent in found:  # grows while it is walked
        now = stat(pid)
        if now is None or now.parent not in (parent, me):
            continue
        yield pid, parent, now
        if pid not in closed:
            found.extend((child, pid) for child in children(pid, now))


def states(pid: int, now: Stat) -> set[str]:
    """The states of all its threads: the first one may be dead while others run."""
    if now.threads <= 1:
        return {now.state}
    texts = (read(f"/proc/{pid}/task/{thread}/stat") for thread in threads(pid))
    return {Stat(text).state for text in texts if text}


def lives_on(pid: int, now: Stat) -> bool:
    """Whether any thread of it does."""
    return bool(states(pid, now) - DEAD)


def send(pid: int, parent: int, number: int) -> bool:
    """Signal a process found by `walk`; False if it is gone, not there any more, or out of reach (setuid).

    The number of a child that only we can reap cannot be used again. That of a deeper descendant can, so it
    is held by a pidfd first and its parent looked at then: if that is still the one it was found under (or
    we, after that one died), the number still means the process that was found.
    """
    me = os.getpid()
    try:
        if parent == me:
            os.kill(pid, number)
            return True
        handle = os.pidfd_open(pid) if hasattr(os, "pidfd_open") else -1
    except OSError as error:
        if error.errno != errno.ENOSYS:  # Linux before 5.3: the look at the parent has to do
            return False
        handle = -1
    try:
        now = stat(pid)
        if now is None or now.parent not in (parent, me):
            return False
        if handle >= 0:
            signal.pidfd_send_signal(handle, number)
        else:
            os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        return False
    finally:
        if handle >= 0:
            os.close(handle)
    return True


def halt(pid: int, parent: int, now: Stat) -> bool:
    """STOP a process found by `walk`, each of its threads; False as for `send`.

    A STOP to the process is taken by one thread, and the others run on until that one comes out of the kernel,
    which takes as long as its disk or file server does. With one for each the first that can stops them all.
    """
    if not send(pid, parent, signal.SIGSTOP):
        return False
    for thread in threads(pid) if now.threads > 1 else ():
        signal_thread(pid, thread, signal.SIGSTOP)
    return True


def kill_family(spare: frozenset[int] = NOBODY, *, leaves_first: bool = False) -> set[int]:
    """KILL all descendants in one pass, so that the death of one wakes no stopped other; the pids hit.

    Leaves first is for a stopped family (when a parent dies the kernel continues the stopped groups it connected to
    their session), parents first for one that runs, so that it has less time to fork.
    """
    hit = set()
    found = list(walk(spare))
    for pid, parent, now in reversed(found) if leaves_first else found:
        lives = lives_on(pid, now)
        if send(pid, parent, signal.SIGKILL) and lives:  # a zombie gets it too, in case a thread came late
            hit.add(pid)
    return hit
