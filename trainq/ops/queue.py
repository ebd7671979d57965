"""A queue as the verbs see it: where it is, its settings, its session, and who is asking.

One queue is one directory, the root. A root found by walking up must belong to this user, and a root that others can
write is refused: whoever can write it can make its workers run code. It may be a group's if it was made so (set-gid and
group-writable): then each job is proved to be its owner's (ops/proofs.py), and a worker runs the jobs of its own user.
"""

from __future__ import annotations

import os
import stat
from functools import cached_property
from typing import TYPE_CHECKING

from trainq.artifacts.paths import Paths
from trainq.base import files, hosts, sharing, words
from trainq.base.errors import NoRoot, UnsafeRoot, Unsupported, Unwritable
from trainq.base.settings import Settings, load
from trainq.domain.job import Actor
from trainq.store.session import LocalSession

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trainq.base.mounts import Mount
    from trainq.store.session import Session

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
            raise no_server(None if self.settings.origins.get("store.url") == "env" else self.paths.config)
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
        queue.made = _make(path)
        found = os.stat(path)
    except OSError as error:
        raise Unwritable(f"{words.printable(path)}: {error.strerror}") from error
    trust(queue.paths, found, named=named)
    require_open(path, found)
    queue.mount = _mount(path, found)
    there = is_there(queue.paths)
    if not queue.is_shared and not queue.hears_all:
        files.forget_names(path)  # it may have been made or converted on another host just now
        there = is_there(queue.paths)
    if not there:
        if named or os.path.dirname(path) != _home():
            raise NoRoot(f"{words.printable(path)}: there is no queue here", hint=init_line(path))
        queue.made = _make(path)
        is_there(queue.paths)
    if queue.mount is not None:
        _require_fit(queue, queue.mount)
    return queue


def _make(path: str) -> bool:
    from trainq.ops.init import init

    return init(path).made


def require_open(path: str, found: os.stat_result) -> None:
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


def group_name(group_id: int) -> str:
    """The name of a gid, or its digits when the group database does not know it."""
    import grp

    try:
        return grp.getgrgid(group_id).gr_name
    except KeyError:
        return str(group_id)


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


def no_server(config: str | None) -> Unsupported:
    """The url itself is not told: a password may be in it."""
    source, hint = ("[store] url", f"edit {config}") if config else ("TRAINQ_URL", "unset TRAINQ_URL TRAINQ_STORE_URL")
    return Unsupported(f"{source} names a database server, which is not supported by this version", hint=hint)


def trust(paths: Paths, found: os.stat_result, *, named: bool) -> None:
    """A root that nobody else can turn against this user. Raises NoRoot, UnsafeRoot."""
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
