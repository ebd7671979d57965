"""Making a queue, and making one of the other mode of it."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, NamedTuple

from trainq import wake
from trainq.artifacts.paths import Paths
from trainq.base import files, hosts, oserrors, sharing, trees, words
from trainq.base.crash import point
from trainq.base.errors import BadValue, Denied, NoRoot, NotPossible, UnsafeRoot
from trainq.base.setting_rows import sample
from trainq.base.settings import load
from trainq.ops.queue import (
    convert_line,
    find,
    group_name,
    init_line,
    is_there,
    no_server,
    require_open,
    session_of,
    trust,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trainq.base.mounts import Mount
    from trainq.store.session import Transaction


class Made(NamedTuple):
    """What `init` did."""

    root: str
    mode: str
    made: bool
    group: str | None = None
    unproved: str | None = None  # the file system, if its hosts may not see each other's locks


def init(root: str, mode: str | None = None, group: str | None = None) -> Made:
    """Make a queue in `root`, or find that it is one already. Any number of processes may do this at once.

    The mode, local or shared, is that of the file system unless it is given; `group` makes it one for all members of
    that group. Raises BadValue for a group that is not there or not this user's, UnsafeRoot, UnsafeMount, Unwritable,
    DiskFull, Damaged, NewerSchema, NotPossible, Unsupported; a root made by half is completed by the next call.
    """
    from trainq.base.mounts import mount_of

    if os.environ.get("TRAINQ_STORE_URL") or os.environ.get("TRAINQ_URL"):
        raise no_server(None)
    paths = Paths(root)
    group_id = None if group is None else _group_id(group)
    if trees.make_directory(paths.root, 0o700):
        files.sync_directory(os.path.dirname(paths.root))
    if group_id is not None and not is_there(paths):
        _give(paths.root, group_id, 0o2770)
    found = os.stat(paths.root)
    trust(paths, found, named=True)
    require_open(paths.root, found)
    is_for_group = sharing.is_for_group(paths.root)
    if is_for_group != (group is not None) and not is_there(paths):
        raise UnsafeRoot(f"{words.printable(paths.root)}: a group can write here", hint="--group NAME, or chmod g-w")
    mount = mount_of(paths.root)
    wanted = _mode_of(paths.root, mount, mode)
    if not is_there(paths) and wanted == "shared":
        paths.database = paths.shared_database
    for directory in paths.directories():
        is_new = trees.make_directory(directory)
        if is_for_group and (is_new or not is_there(paths)):
            _give(directory, found.st_gid, 0o3770 if paths.is_kept_apart(directory) else 0o2770)
    point("init.directories")
    if not os.path.exists(paths.config):
        try:
            files.create_exclusively(paths.config, sample().encode())
        except FileExistsError:
            pass  # another init was faster, with the same text
    point("init.configured")
    wake.ring(paths.bell_number)  # that there is no such file would be remembered on other hosts
    made = not is_there(paths) and _make_tables(paths, wanted)
    if not made:  # "already" is said only of a queue that can be used
        session = session_of(paths)
        with session.reading():
            pass
        session.close()
    is_mode = "shared" if paths.database == paths.shared_database else "local"
    if mode is not None and mode != is_mode:
        raise NotPossible(
            f"{words.printable(paths.root)}: already a {is_mode} queue",
            hint=convert_line(paths.root, mode),
        )
    if group_id is not None and not (is_for_group and found.st_gid == group_id):
        raise NotPossible(
            f"{words.printable(paths.root)}: already a queue, and not one of group {group}",
            hint=f"there is no conversion; a new one: trainq init --group {group} DIR",
        )
    unproved = mount.kind if is_mode == "shared" and mount.is_unproved else None
    return Made(paths.root, is_mode, made, group_name(found.st_gid) if is_for_group else None, unproved)


def _make_tables(paths: Paths, mode: str) -> bool:
    """Make the tables unless there are some, of either mode. True when this call made them.

    One host may see a disk of its own where another sees a network: they wait for each other at the lock that both have.
    """
    from trainq.store.create import create

    with _behind_gate(paths, is_shared=True):
        files.forget_names(paths.root)  # what the other has made is seen at once
        return not is_there(paths) and create(paths.database, mode=mode)


@contextlib.contextmanager
def _behind_gate(paths: Paths, wait_s: float = 30.0, *, is_shared: bool) -> Iterator[None]:
    """With the gate of a queue of that mode to oneself."""
    from trainq.store.gate import Gate

    gate = Gate(paths.gate, wait_s, is_shared=is_shared)
    gate.enter()
    try:
        yield
    finally:
        gate.leave()
        gate.close()


def _group_id(name: str) -> int:
    """The gid of a group that this user is in. Raises BadValue."""
    import grp

    try:
        group_id = int(name) if name.isdecimal() else grp.getgrnam(name).gr_gid
    except KeyError:
        raise BadValue(f"--group: there is no group {name!r}", hint="id -Gn lists yours") from None
    if os.geteuid() != 0 and group_id not in (os.getegid(), *os.getgroups()):
        raise BadValue(f"--group: you are not in group {name!r}", hint="id -Gn lists yours")
    return group_id


def _give(directory: str, group_id: int, mode: int) -> None:
    """Make a directory the group's. Whatever else can read it is not."""
    with oserrors.reporting(directory):
        fd = sharing.open_as_is(directory)
        try:
            sharing.set_group(fd, group_id)
            sharing.set_mode(fd, mode)
        finally:
            os.close(fd)


def convert(root: str | None, mode: str) -> Made:
    """Make a queue one of this mode; `made` is false when it is one already. For its owner and root.

    Raises NotPossible while a worker lives, a job runs, or anybody has it open; Denied, NoRoot, UnsafeRoot, DiskFull, and
    UnsafeMount where the mode does not fit.
    """
    from trainq.base.mounts import mount_of

    path, named = find(root)
    paths = Paths(path)
    try:
        found = os.stat(paths.root)
    except OSError as error:
        raise NoRoot(f"{words.printable(paths.root)}: there is no queue here", hint=init_line(paths.root)) from error
    trust(paths, found, named=named)
    require_open(paths.root, found)
    if os.geteuid() not in (0, found.st_uid):
        owner = hosts.user_name(found.st_uid)
        raise Denied(
            f"{words.printable(paths.root)}: belongs to {owner}, who alone converts it", hint="ask them, or root"
        )
    if not is_there(paths):
        raise NoRoot(f"{words.printable(paths.root)}: there is no queue here", hint=init_line(paths.root))
    _mode_of(paths.root, mount_of(paths.root), mode)
    source, target = paths.local_database, paths.shared_database
    if mode == "local":
        source, target = target, source
    made = paths.database == source and _convert_tables(paths, source, target, mode)
    return Made(paths.root, mode, made)


def _convert_tables(paths: Paths, source: str, target: str, mode: str) -> bool:
    """Whether this call has done it, and not another one that was faster."""
    from trainq.store.create import convert as convert_database

    times = load(paths.root).times
    session = session_of(paths, times.lock_wait)
    with session.reading() as tx:  # names who keeps it open, too
        _require_unused(tx, times.zombie_after)
        now = tx.now
    session.close()
    with contextlib.ExitStack() as gates:
        gates.enter_context(_behind_gate(paths, times.lock_wait, is_shared=True))  # of `init`, whatever the mode
        if mode == "shared":
            gates.enter_context(_behind_gate(paths, times.lock_wait, is_shared=False))
        files.forget_names(paths.root)
        if not files.is_there(source):
            return False
        convert_database(source, target, mode, now, lambda tx: _require_unused(tx, times.zombie_after))
    return True


def _require_unused(tx: Transaction, zombie_after_s: float) -> None:
    """No worker lives and no job runs. Raises NotPossible naming one."""
    from trainq.ops.workers import crew_of
    from trainq.store import reads

    for one in crew_of(tx, zombie_after_s):
        if one["state"] != "gone":
            name, host = words.printable(one["name"]), words.printable(one["host"])
            raise NotPossible(
                f"worker {name} (pid {one['pid']} on {host}) uses the queue",
                hint=f"end it: kill {one['pid']} on {host}",
            )
    for job in reads.running(tx, 1):
        raise NotPossible(
            f"job {job['id']} is running, and its worker may come back",
            hint="trainq prune gives it back once its worker is taken for dead",
        )


def _mode_of(root: str, mount: Mount, mode: str | None) -> str:
    """The mode that is asked for, or else the file system's. Raises UnsafeMount where hosts would not keep each other out."""
    from trainq.base.errors import UnsafeMount
    from trainq.base.mounts import LOCKLESS, require_honest

    if mount.kind not in LOCKLESS and (not mount.is_network or (mode == "local" and not mount.is_remote)):
        return mode or "local"
    require_honest(words.printable(root), mount)
    if mode == "local":
        raise UnsafeMount(f"{words.printable(root)}: other hosts see it, too: this is {mount.kind}", hint="--shared")
    return "shared"
