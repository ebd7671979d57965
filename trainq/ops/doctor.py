"""What is wrong with a queue, as seen from here: settings, directories, store, locks, room. Changes nothing."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from trainq.base import clock, hosts
from trainq.base.errors import GateBusy, NotPossible, TimedOut, TrainqError
from trainq.base.files import is_directory
from trainq.base.mounts import mount_of
from trainq.base.units import show_size
from trainq.base.words import printable
from trainq.ops.paused import warning
from trainq.ops.queue import group_name, is_read_only, is_real, meet_line
from trainq.store import queues, reads

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from trainq.ops.queue import Queue

LITTLE_ROOM = 1 << 30
PROVED_AT_MOST = 1000
"""So many jobs are looked at, the oldest first."""
LOCK_WAIT_S = 5.0
"""So long another doctor may be at the lock that is tried."""


class Check(NamedTuple):
    """One thing that was looked at. `state` is `ok`, `warning` or `bad` (the queue cannot be used so)."""

    name: str
    state: str
    message: str


class Report(NamedTuple):
    """All that was looked at, and every setting with its value and origin."""

    checks: list[Check]
    settings: list[tuple[str, Any, str]]

    @property
    def exit(self) -> int:
        """0 fine, 1 warnings, 6 unusable."""
        states = {check.state for check in self.checks}
        return 6 if "bad" in states else 1 if "warning" in states else 0


def examine(queue: Queue, *, meets: bool = False) -> Report:
    """Look at everything; a fault of one thing does not keep the others from being looked at.

    `meets`: first wait for another doctor, on a second host, and try the storage with it. Raises NotPossible when it
    cannot come, or two others are meeting.
    """
    looks = {"hosts": _meeting, **_LOOKS} if meets else {**_LOOKS, "hosts": _hosts}
    checks = [check for name, look in looks.items() for check in _found(name, look, queue)]
    try:
        settings = queue.settings.rows()
    except TrainqError:
        settings = []  # the check above says what is wrong with them
    return Report(checks, settings)


def _found(name: str, look: Callable[[Queue], Iterator[Check]], queue: Queue) -> list[Check]:
    """What one look finds, its own failure if it has one."""
    try:
        return list(look(queue))
    except NotPossible:
        raise
    except TrainqError as error:
        return [Check(name, "bad", error.message)]
    except OSError as error:
        return [Check(name, "bad", f"{printable(str(error.filename))}: {(error.strerror or str(error)).lower()}")]


def _settings(queue: Queue) -> Iterator[Check]:
    changed = [name for name, _, origin in queue.settings.rows() if origin != "default"]
    yield Check("settings", "ok", f"{queue.paths.config}: {len(changed)} not at their default")


def _types(queue: Queue) -> Iterator[Check]:
    from trainq.domain.types import load_types
    from trainq.ops.types import problems

    found = problems(queue)
    for text in found:
        yield Check("types", "warning", text)
    if not found:
        yield Check("types", "ok", ", ".join(load_types(queue.settings)) or "none yet")


def _root(queue: Queue) -> Iterator[Check]:
    path = queue.paths.root
    found = os.stat(path)
    mount = mount_of(path)
    mode = "for several hosts" if queue.is_shared else "for one host"
    whose = f"of {hosts.known_as(found.st_uid)}"
    if queue.is_for_group:
        whose += f", group {group_name(found.st_gid)} (gid {found.st_gid})"
    yield Check("root", "ok", f"{path}, {mode}, mode {found.st_mode & 0o7777:04o}, {whose}, on {mount.kind}")
    if not queue.is_shared and not mount.is_network:
        return
    words = f"{mount.source or mount.kind} ({','.join(mount.options)})"
    fault = mount.fault or ("this queue is for one host's disk" if not queue.is_shared else None)
    yield Check(
        "mount", "bad" if mount.fault else "warning" if fault else "ok", f"{words}: {fault}" if fault else words
    )


def _directories(queue: Queue) -> Iterator[Check]:
    faults = list(_faulty(queue))
    yield from (Check("directories", "bad", text) for text in faults)
    if not faults:
        yield Check("directories", "ok", "all there and writable")


def _faulty(queue: Queue) -> Iterator[str]:
    for path in (queue.paths.root, *queue.paths.directories()):
        if not is_directory(path):
            yield f"{path}: missing"
        elif path != queue.paths.root and not is_real(queue, path):
            yield f"{path}: not that of the queue's owner"
        elif not os.access(path, os.R_OK | os.W_OK | os.X_OK):
            yield f"{path}: {'read-only file system' if is_read_only(path) else 'not writable'}"


def _store(queue: Queue) -> Iterator[Check]:
    began = time.monotonic()
    with queue.session.reading() as tx:
        now, took_s = tx.now, time.monotonic() - began
        library, facts = reads.engine(tx), reads.facts(tx)
        counts = sum(n for _, _, n in reads.counts(tx))
    # What SQLite calls wal is on a shared queue the log of who is in alone, and gone with it.
    how = "shared mode: one host at a time" if queue.is_shared else f"{facts['mode']} mode, {library['journal']}"
    words = f"SQLite {library['sqlite']}, schema {library['schema']}, {how}"
    yield Check("store", "ok", f"{words}, {counts} jobs, {show_size(os.stat(queue.paths.database).st_size)}")
    if queue.is_shared:
        ahead_s = clock.now() - now
        what = f"this host's clock is {abs(ahead_s):.1f} s {'ahead of' if ahead_s > 0 else 'behind'} the file server's"
        yield Check("clock", "ok", what)
        yield Check("latency", "ok", f"a look at the queue took {took_s * 1e3:.0f} ms")
    faults = _torn(queue)
    for text in faults:
        yield Check("integrity", "bad", text)
    if not faults:
        yield Check("integrity", "ok", "quick check finds nothing")


def _torn(queue: Queue) -> list[str]:
    """What the quick check finds. It reads every page, so on a shared queue each table has a turn of its own."""
    with queue.session.reading() as tx:
        if not queue.is_shared:
            return reads.integrity(tx)
        tables = reads.tables(tx)
    faults = []
    for table in tables:
        with queue.session.reading() as tx:
            faults += reads.integrity(tx, table)
    return faults


def _locks(queue: Queue) -> Iterator[Check]:
    """Two processes: the second must not get what the first one has."""
    from trainq.store.gate import Gate

    gate = Gate(queue.paths.lock("doctor"), LOCK_WAIT_S, is_shared=queue.is_shared)
    try:
        gate.enter()
        child = os.fork()
        if child == 0:
            try:
                os._exit(0 if Gate(gate.path, 0, is_shared=gate.is_shared).try_enter() else 1)
            except BaseException:  # noqa: BLE001  # nothing of this may go on in the child
                os._exit(2)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    except GateBusy as error:
        yield Check("locks", "warning", f"not tried: {error.message}")
        return
    finally:
        gate.close()
    if code == 1:
        yield Check("locks", "ok", "a held lock keeps others out")
    else:
        said = "two got one lock at the same time" if code == 0 else "no locks here"
        yield Check("locks", "bad", f"{gate.path}: {said}")


def _room(queue: Queue) -> Iterator[Check]:
    found = os.statvfs(queue.paths.root)
    free = found.f_bavail * found.f_frsize
    state = "bad" if not free else "warning" if free < LITTLE_ROOM else "ok"
    yield Check("room", state, f"{show_size(free)} free")
    if found.f_files and not found.f_favail:
        yield Check("room", "bad", "no inodes free")


def _workers(queue: Queue) -> Iterator[Check]:
    from trainq.ops.workers import crew

    items = crew(queue).items
    words = [item["state"] for item in items]
    alive = [word for word in words if word != "gone"]
    silent = words.count("silent")
    yield Check(
        "workers", "warning" if silent else "ok", f"{len(alive)} alive" + (f", {silent} silent" if silent else "")
    )
    for item in items:
        if item["state"] == "gone" and item["jobs"]:
            held = f"job{'s' if len(item['jobs']) > 1 else ''} {', '.join(map(str, item['jobs']))}"
            text = f"worker {item['name']} is gone and still holds {held}; trainq prune gives"
            yield Check("workers", "warning", f"{text} {'them' if len(item['jobs']) > 1 else 'it'} back")


def _queues(queue: Queue) -> Iterator[Check]:
    with queue.session.reading() as tx:
        closed = queues.closed(tx)
    yield from (Check("queues", "warning", warning(name, one)) for name, one in closed.items())
    if not closed:
        yield Check("queues", "ok", f"{', '.join(queue.settings.queues.names)}: none is paused")


def _group(queue: Queue) -> Iterator[Check]:
    """On a group's queue: jobs that are not what their owner has submitted, or not that of who they say."""
    if not queue.is_for_group:
        return
    from trainq.ops.models import of_others
    from trainq.ops.proofs import unproved_outside

    found = list(unproved_outside(queue.session, queue.paths, PROVED_AT_MOST))
    yield from (Check("group", "warning", text) for text in found)
    # Not a fault by itself: a worker with `--user` makes such a model, too.
    yield from (Check("models", "ok", text) for text in of_others(queue))
    if not found:
        yield Check("group", "ok", "every job that waits or runs is proved to be its owner's")


def _hosts(queue: Queue) -> Iterator[Check]:
    if queue.is_shared:
        how = f"to prove it with a second host, start there and here at the same time: {meet_line(queue.paths.root)}"
        yield Check("hosts", "ok", how)


def _meeting(queue: Queue) -> Iterator[Check]:
    """That nobody came proves nothing, also nothing bad."""
    from trainq.ops import meet

    try:
        for found in meet.meet(queue, meet.WAIT_S):
            yield Check(*found)
    except TimedOut as error:
        yield Check("hosts", "warning", f"nothing is proved: {error.message}; {error.hint}")
    except GateBusy as error:
        yield Check("hosts", "warning", f"nothing is proved: {error.message}")


_LOOKS: dict[str, Callable[[Queue], Iterator[Check]]] = {
    "root": _root,
    "directories": _directories,
    "settings": _settings,
    "types": _types,
    "locks": _locks,  # it forks, and so comes before anything that opens the store
    "store": _store,
    "room": _room,
    "workers": _workers,
    "queues": _queues,
    "group": _group,
}
