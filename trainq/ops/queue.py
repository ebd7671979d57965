"""A queue as the verbs see it: where it is, its settings, its session, and who is asking.

One queue is one directory, the root. A root found by walking up must belong to this user, and a root that others can
write is refused: whoever can write it can make its workers run code. It may be a group's if it was made so (set-gid and
group-writable): then each job is proved to be its owner's (ops/proofs.py), and a worker runs the jobs of its own user.
"""

from __future__ import annotations

import contextlib
import os
import stat
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from trainq import wake
from trainq.artifacts.paths import Paths
from trainq.base import files, hosts, oserrors, sharing, trees, words
from trainq.base.crash import point
from trainq.base.errors import BadValue, Denied, NoRoot, NotPossible, UnsafeRoot, Unsupported, Unwritable
from trainq.base.setting_rows import sample
from trainq.base.settings import Settings, load
from trainq.domain.job import Actor
from trainq.store.session import LocalSession

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from trainq.base.mounts import Mount
    from trainq.store.session import Session, Transaction

HIDDEN = ".trainq"


class Queue:
    """An opened root. Cheap until its session is used."""

    def __init__(self, root: str, *, named: bool, flags: Mapping[str, str] | None = None) -> None:
        self.paths = Paths(root)
        self.named = named
        self.made = False  # just now, being the one of the home
        self.mount: Mount | None = None  # None: a disk of this host
        self._flags = dict(flags or {})

    @cached_property
    def settings(self) -> Settings:
        """The settings of this root. Raises BadSettings."""
        return load(self.paths.root, flags=self._flags)

    @property
    def is_shared(self) -> bool:
        """Whether several hosts may use it."""
        return self.paths.database == self.paths.shared_database

    @property
    def hears_all(self) -> bool:
        """Whether the kernel here tells of every change of a file of the root, whoever made it."""
        return self.mount is None or not self.mount.is_network

    @cached_property
    def session(self) -> Session:
        """The session with the tables. Raises Unsupported for a queue whose tables are elsewhere."""
        if self.settings.store.url:
            raise _no_server(None if self.settings.origins.get("store.url") == "env" else self.paths.config)
        return session_of(self.paths, self.settings.times.lock_wait)

    @cached_property
    def actor(self) -> Actor:
        """Who types, by uid."""
        user_id = os.getuid()
        return Actor(hosts.user_name(user_id), user_id, hosts.hostname())

    @cached_property
    def is_for_group(self) -> bool:
        """Whether it was made for a group."""
        return sharing.is_for_group(self.paths.root)

    @cached_property
    def owner_id(self) -> int:
        """The uid whose root this is."""
        return os.stat(self.paths.root).st_uid


def session_of(paths: Paths, lock_wait_s: float = 30.0) -> Session:
    """The session with the tables of this root, after its mode."""
    if paths.database == paths.shared_database:
        from trainq.store.shared import SharedSession

        return SharedSession(paths.database, paths.gate, lock_wait_s=lock_wait_s)
    return LocalSession(paths.database, paths.gate, lock_wait_s=lock_wait_s)


class Made(NamedTuple):
    """What `init` did."""

    root: str
    mode: str
    made: bool
    group: str | None = None
    unproved: str | None = None  # the file system, if its hosts may not see each other's locks


def find(root: str | None) -> tuple[str, bool]:
    """The root that is meant, and whether it was named: `--root`, TRAINQ_ROOT, the nearest .trainq/, ~/.trainq.

    Only ~/.trainq need not exist. Raises NoRoot.
    """
    named = root or os.environ.get("TRAINQ_ROOT")
    if named:
        return os.path.abspath(named), True
    here = _working_directory()
    while True:
        candidate = os.path.join(here, HIDDEN)
        if _is_seen(candidate):
            return candidate, False
        above = os.path.dirname(here)
        if above == here:
            return os.path.join(_home(), HIDDEN), False
        here = above


def found_from_here(root: str) -> bool:
    """Whether a command without `--root` means this queue."""
    try:
        return os.path.realpath(find(None)[0]) == os.path.realpath(root)
    except NoRoot:
        return False


def _is_seen(candidate: str) -> bool:
    """Whether there is such a directory, as far as this user may look."""
    try:
        return files.is_directory(candidate)
    except Unwritable:
        return False


def open_queue(root: str | None = None, flags: Mapping[str, str] | None = None) -> Queue:
    """The queue that is meant, checked for trust; ~/.trainq is made on its first use.

    Raises NoRoot, UnsafeRoot.
    """
    path, named = find(root)
    queue = Queue(path, named=named, flags=flags)
    try:
        found = os.stat(path)
    except (FileNotFoundError, NotADirectoryError) as error:
        if named:
            raise NoRoot(f"{words.printable(path)}: there is no queue here", hint=init_line(path)) from error
        queue.made = init(path).made
        found = os.stat(path)
    except OSError as error:
        raise Unwritable(f"{words.printable(path)}: {error.strerror}") from error
    _trust(queue.paths, found, named=named)
    _require_open(path, found)
    queue.mount = _mount(path, found)
    there = is_there(queue.paths)
    if not queue.is_shared and not queue.hears_all:
        files.forget_names(path)  # it may have been made or converted on another host just now
        there = is_there(queue.paths)
    if not there:
        if named or os.path.dirname(path) != _home():
            raise NoRoot(f"{words.printable(path)}: there is no queue here", hint=init_line(path))
        queue.made = init(path).made
        is_there(queue.paths)
    if queue.mount is not None:
        _require_fit(queue, queue.mount)
    return queue


def _require_open(path: str, found: os.stat_result) -> None:
    """Raises Unwritable naming whose it is when this user may not go in."""
    try:
        os.stat(os.path.join(path, "."))
    except PermissionError as error:
        name, owner = words.printable(path), hosts.known_as(found.st_uid)
        if found.st_mode & sharing.GROUP == sharing.GROUP:
            group = group_name(found.st_gid)
            whose, hint = f"it is that of group {group} and belongs to {owner}", f"ask to be put into group {group}"
        else:
            whose, hint = f"it belongs to {owner}", "a queue for several users: trainq init --group NAME DIR"
        raise Unwritable(f"{name}: this queue is not open to you: {whose}", hint=hint) from error


def is_there(paths: Paths) -> bool:
    """Whether the root has tables; `paths.database` is then the one of its mode."""
    for database in (paths.local_database, paths.shared_database):
        if files.is_there(database):
            paths.database = database
            return True
    return False


def _mount(path: str, found: os.stat_result) -> Mount | None:
    """The mount, if it may be one that other hosts see, too, as far as a short command looks."""
    from trainq.base import mounts

    return mounts.mount_of(path) if mounts.may_be_network(found) else None


def require_mount(queue: Queue) -> None:
    """Look closely at the mount, for who stays. Raises UnsafeMount when this queue must not be used through it."""
    from trainq.base import mounts

    queue.mount = mounts.mount_of(queue.paths.root)
    _require_fit(queue, queue.mount)


def _require_fit(queue: Queue, mount: Mount) -> None:
    """Raises UnsafeMount when this host, by this mount, must not use a queue of this mode."""
    from trainq.base.errors import UnsafeMount
    from trainq.base.mounts import LOCKLESS, require_honest

    root = words.printable(queue.paths.root)
    if queue.is_shared or mount.kind in LOCKLESS:
        require_honest(root, mount)
    elif mount.is_remote:
        raise UnsafeMount(
            f"{root}: a queue for one host's disk, seen here through {mount.kind}",
            hint=f"on the host of that disk: {convert_line(queue.paths.root)}",
        )


def convert_line(root: str, mode: str = "shared") -> str:
    """The command that makes a queue there one for several hosts, or for one."""
    import shlex

    return f"trainq --root {shlex.quote(words.printable(root))} db convert --{mode}"


def meet_line(root: str) -> str:
    """The command that proves a mount, on two hosts at the same time."""
    import shlex

    return f"trainq --root {shlex.quote(words.printable(root))} doctor --meet"


def init(root: str, mode: str | None = None, group: str | None = None) -> Made:
    """Make a queue in `root`, or find that it is one already. Any number of processes may do this at once.

    The mode, local or shared, is that of the file system unless it is given; `group` makes it one for all members of
    that group. Raises BadValue for a group that is not there or not this user's, UnsafeRoot, UnsafeMount, Unwritable,
    DiskFull, Damaged, NewerSchema, NotPossible, Unsupported; a root made by half is completed by the next call.
    """
    from trainq.base.mounts import mount_of

    if os.environ.get("TRAINQ_STORE_URL") or os.environ.get("TRAINQ_URL"):
        raise _no_server(None)
    paths = Paths(root)
    group_id = None if group is None else _group_id(group)
    if trees.make_directory(paths.root, 0o700):
        files.sync_directory(os.path.dirname(paths.root))
    if group_id is not None and not is_there(paths):
        _give(paths.root, group_id, 0o2770)
    found = os.stat(paths.root)
    _trust(paths, found, named=True)
    _require_open(paths.root, found)
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


def group_name(group_id: int) -> str:
    """The name of a gid, or its digits when the group database does not know it."""
    import grp

    try:
        return grp.getgrgid(group_id).gr_name
    except KeyError:
        return str(group_id)


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
    _trust(paths, found, named=named)
    _require_open(paths.root, found)
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


def require_directories(queue: Queue) -> None:
    """Every directory of the root is there and can be written. Raises Unwritable naming the first that is not, and
    UnsafeRoot."""
    require_real_directories(queue)
    for path in queue.paths.directories():
        name = words.printable(path)
        if not files.is_directory(path):
            raise Unwritable(f"{name}: this directory of the queue is missing", hint=init_line(queue.paths.root))
        if not os.access(path, os.R_OK | os.W_OK | os.X_OK):
            if is_read_only(path):
                raise Unwritable(f"{name}: read-only file system", hint="mount it so that it can be written")
            raise Unwritable(f"{name}: this directory of the queue cannot be written", hint=f"chmod u+rwx {name}")


def is_read_only(path: str) -> bool:
    """Whether the file system, as it is mounted here, takes no writes from anybody."""
    return bool(os.statvfs(path).f_flag & os.ST_RDONLY)


def require_real_directories(queue: Queue) -> None:
    """On a group's queue, no directory of the root is one that somebody else of the group has put in its place: what is
    written and deleted there would be elsewhere. Raises UnsafeRoot."""
    for path in queue.paths.directories():
        if not is_real(queue, path):
            raise UnsafeRoot(
                f"{words.printable(path)}: not the directory that {hosts.known_as(queue.owner_id)} made here",
                hint="look whose it is: ls -l",
            )


def is_real(queue: Queue, path: str) -> bool:
    """Whether a directory of a group's root is that of its owner, or not there. Another one of the owner's is not sticky
    where it must be."""
    if not queue.is_for_group:
        return True
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return True
    is_fit = bool(found.st_mode & stat.S_ISVTX) or not queue.paths.is_kept_apart(path)
    return stat.S_ISDIR(found.st_mode) and found.st_uid == queue.owner_id and is_fit


def init_line(root: str) -> str:
    """The command that makes a queue there."""
    import shlex

    return f"trainq init {shlex.quote(words.printable(root))}"


def _no_server(config: str | None) -> Unsupported:
    """The url itself is not told: a password may be in it."""
    source, hint = ("[store] url", f"edit {config}") if config else ("TRAINQ_URL", "unset TRAINQ_URL TRAINQ_STORE_URL")
    return Unsupported(f"{source} names a database server, which is not supported by this version", hint=hint)


def _trust(paths: Paths, found: os.stat_result, *, named: bool) -> None:
    name = words.printable(paths.root)
    if not stat.S_ISDIR(found.st_mode):
        raise NoRoot(f"{name}: this is not a directory", hint="name another one")
    if found.st_mode & stat.S_IWOTH:
        raise UnsafeRoot(
            f"{name}: everybody can write here, and so make your workers run code", hint=f"chmod o-w {name}"
        )
    if found.st_mode & (stat.S_IWGRP | stat.S_ISGID) == stat.S_IWGRP:
        raise UnsafeRoot(
            f"{name}: its group can write here, and so make your workers run code",
            hint=f"chmod g-w {name}; a queue for a group: trainq init --group",
        )
    if not found.st_mode & stat.S_IWGRP and _was_for_group(paths, found):
        raise UnsafeRoot(
            f"{name}: this was a group's queue, and what its members have written is in it still",
            hint=f"chmod 2770 {name}",
        )
    if not named and found.st_uid != os.getuid():
        owner = hosts.user_name(found.st_uid)
        raise UnsafeRoot(f"{name}: belongs to {owner}, not to you", hint=f"trainq --root {name} if you mean it")


def _was_for_group(paths: Paths, found: os.stat_result) -> bool:
    """Whether a root that no group may write in now once was a group's: the mode of specs/ tells, which nobody but its
    owner changes, and so does another directory that a member has put in its place."""
    specs = files.status(paths.specs) if os.access(paths.root, os.X_OK) else None
    if specs is None or not stat.S_ISDIR(specs.st_mode):
        return False
    return bool(specs.st_mode & (stat.S_ISVTX | stat.S_IWGRP)) or specs.st_uid != found.st_uid


def _working_directory() -> str:
    try:
        return os.getcwd()
    except OSError:
        return "/"  # the directory was removed under us: only the home can be meant


def _home() -> str:
    home = os.path.expanduser("~")
    if home.startswith("~") or os.environ.get("HOME") == "":
        raise NoRoot("no --root, no TRAINQ_ROOT, and no home directory", hint="trainq --root DIR, or set HOME")
    return home
