"""Durable files: every change under a root that must survive a crash goes through here.

What must stay true: a name shows either the whole old content or the whole new one; what a function has
returned from is on the disk (unless it says otherwise); modes are exact whatever the caller's umask; the last
part of a name is never followed if it is a symbolic link. A crash leaves at worst a file with a temporary
name (`is_temporary`), which the janitor removes.

Errors: what says "the storage is sick" (full, read-only, not ours, broken) is raised as the error a user can
read. What is an answer (`FileNotFoundError`, `FileExistsError` and the like) passes as it is, for the caller
to decide; `reporting` turns these too into errors, where no answer is expected.

`TRAINQ_FAULT=ENOSPC:3` makes the third operation of this process fail with that error, `ENOSPC:3+` the third
and all after it. So a test can fail every step of a flow in turn.
"""

from __future__ import annotations

import errno
import os
import stat
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple, Self

from trainq.base.errors import DiskFull, Storage, TrainqError, Unwritable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import TracebackType

BLOCK = 1 << 20
"""Bytes read or written at a time."""

_TEMPORARY = ".new-"
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_SHUT = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})
_ANSWERS = frozenset(
    {
        errno.ENOENT,
        errno.EEXIST,
        errno.ENOTEMPTY,
        errno.ENOTDIR,
        errno.EISDIR,
        errno.ELOOP,
        errno.ENXIO,
    }
)
_NOT_THERE = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG})
# Some file systems (FUSE, CIFS) have nothing to sync for a directory, or for any file, and say so in one of
# these ways. Such a file system gives no better promise than the write itself; every real failure has another
# number.
_NOTHING_TO_SYNC = frozenset({errno.EINVAL, errno.ENOTSUP})


def _armed() -> Callable[[str], None] | None:
    text = os.environ.get("TRAINQ_FAULT")
    if not text:
        return None
    name, _, count = text.partition(":")
    number: int = getattr(errno, name)
    lasting = count.endswith("+")
    left = int(count.rstrip("+"))

    def fail(path: str) -> None:
        nonlocal left
        left -= 1
        if left == 0 or (lasting and left < 0):
            raise OSError(number, os.strerror(number), path)

    return fail


_fail: Callable[[str], None] | None = _armed()


def explain(error: OSError, path: str | None = None) -> TrainqError:
    """The error a user can read for this one: what was seen, on which file."""
    name = path if path is not None else error.filename
    if isinstance(name, bytes):
        name = os.fsdecode(name)
    said = (error.strerror or str(error)).lower()
    where = printable(name) if isinstance(name, str) else "a file"
    if error.errno in _FULL:
        return DiskFull(f"{where} could not be written: {said}")
    if error.errno in _SHUT:
        return Unwritable(f"{where} cannot be used: {said}")
    return Storage(f"{where}: {said}")


def printable(path: str) -> str:
    """A path as one line of valid text, whatever its bytes."""
    try:
        text = os.fsencode(path).decode("utf-8", "backslashreplace")
    except UnicodeEncodeError:  # no path: half a UTF-16 pair, as JSON can spell
        text = path.encode("utf-8", "backslashreplace").decode()
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


class _Reporting:
    __slots__ = ("_answers", "_path")

    def __init__(self, path: str, answers: frozenset[int]) -> None:
        self._path = path
        self._answers = answers

    def __enter__(self) -> None:
        if _fail is not None and self._answers:
            try:
                _fail(self._path)
            except OSError as error:
                self.__exit__(type(error), error, None)
                raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, OSError) and error.errno not in self._answers:
            raise explain(error, self._path) from error


_EVERYTHING: frozenset[int] = frozenset()


def reporting(path: str) -> _Reporting:
    """Around a flow in which no `OSError` is an answer: each becomes an error that names `path`."""
    return _Reporting(path, _EVERYTHING)


def _step(path: str) -> _Reporting:
    """Around one operation: counts for `TRAINQ_FAULT`, and turns what is no answer into an error."""
    return _Reporting(path, _ANSWERS)


class NewFile:
    """A file that gets its name when it is complete: write, then `publish`; left without it, nothing stays.

    `directory` is where it will stand (its temporary name is made there). Use as a context manager.
    """

    __slots__ = ("_directory", "_fd", "_mode", "path", "size")

    def __init__(self, directory: str, mode: int | None = None) -> None:
        self._directory = directory
        self._mode = mode
        self._fd = -1
        self.path = os.path.join(directory, temporary_name())
        self.size = 0

    def __enter__(self) -> Self:
        self._fd = open_new(self.path, self._mode)
        return self

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Write all of `data`."""
        write_all(self._fd, data, self.path)
        self.size += len(data)

    def publish(self, target: str, *, durable: bool = True, exclusively: bool = False) -> None:
        """Give it its name: over what stands there, or (`exclusively`) `FileExistsError` if something does.

        `durable=False` leaves the syncs out, for what may be lost with the machine.
        """
        if durable:
            sync(self._fd, self.path)
        if exclusively:
            with _step(target):
                os.link(self.path, target)
            _forget(self.path)
        else:
            replace(self.path, target)
        self.path = ""
        if durable:
            sync_directory(self._directory)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            # A network file system may tell only now that it could not keep what was not synced.
            with reporting(self.path or self._directory):
                os.close(self._fd)
        finally:
            if self.path:
                _forget(self.path)


def temporary_name() -> str:
    """A fresh name that `is_temporary` knows."""
    return _TEMPORARY + os.urandom(8).hex()


def forget_names(directory: str) -> None:
    """Let this host forget which names it remembers to be there, or not to be, in a directory of a network file system:
    it does when it makes something there."""
    path = os.path.join(directory, temporary_name())
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))
        os.unlink(path)
    except OSError:
        pass  # what is wrong here is told by who looks next


def is_temporary(name: str) -> bool:
    """Whether this is a name that a crash may have left behind."""
    return name.startswith(_TEMPORARY)


def _forget(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        # The name is a temporary one: the janitor takes it later, and the error that matters is already on
        # its way.
        pass


def write_durably(path: str, data: bytes, mode: int | None = None) -> None:
    """Make `path` hold exactly `data`: either the old content or all of the new, on the disk on return."""
    with NewFile(os.path.dirname(path) or ".", mode) as new:
        new.write(data)
        new.publish(path)


def create_exclusively(path: str, data: bytes = b"", mode: int | None = None) -> None:
    """As `write_durably`, but `FileExistsError` if the name is taken; of two racing callers one wins."""
    with NewFile(os.path.dirname(path) or ".", mode) as new:
        new.write(data)
        new.publish(path, exclusively=True)


def write_new(path: str, data: bytes, mode: int | None = None) -> None:
    """Make a new file without a sync, for what may be lost; `FileExistsError` if the name is taken."""
    fd = open_new(path, mode)
    try:
        write_all(fd, data, path)
    finally:
        os.close(fd)


def open_new(path: str, mode: int | None = None) -> int:
    """A descriptor for writing to a file that was not there before."""
    with _step(path):
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    return _with_mode(fd, mode, path)


def open_append(path: str, mode: int | None = None) -> int:
    """A descriptor that appends, of a file that is made if it is not there. A pipe in its place blocks nobody."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    with _step(path):
        fd = os.open(path, flags, 0o600)
    return _with_mode(fd, mode, path)


def open_shared(path: str) -> int:
    """A descriptor for reading and writing of a file that all who use the queue write, made if it is not there."""
    with _step(path):
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
    share(fd, path)
    return fd


def share(fd: int, path: str) -> None:
    """Let all who may write in its directory write this file, too, if it is ours to say so."""
    found = os.fstat(fd)
    mode = shared_mode(os.path.dirname(path))
    if found.st_uid == os.geteuid() and stat.S_IMODE(found.st_mode) != mode:
        with reporting(path):
            os.fchmod(fd, mode)


def shared_mode(directory: str, alone: int = 0o600) -> int:
    """The mode of a file in this directory that all who use the queue write; `alone` where that is one user."""
    return 0o660 if is_for_group(directory) else alone


def is_for_group(directory: str) -> bool:
    """Whether a group may write in it, and what is made in it is the group's: so is the root of a group's queue."""
    return _mode_of(directory) & GROUP == GROUP


def is_ours(path: str) -> bool:
    """Whether this user may clear it away: in a group's directory what somebody else has made is left to them."""
    try:
        found, above = os.lstat(path), os.stat(os.path.dirname(path))
    except OSError:
        return True  # gone, or what is done with it next says what is wrong
    return os.geteuid() in (0, found.st_uid) or not above.st_mode & stat.S_ISGID


GROUP = stat.S_ISGID | stat.S_IWGRP
OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


def _mode_of(directory: str) -> int:
    with reporting(directory):
        return os.stat(directory or ".").st_mode


def _with_mode(fd: int, mode: int | None, path: str) -> int:
    """Give a file its mode, of which open() has taken the umask."""
    try:
        if mode is None:
            mode = 0o640 if _mode_of(os.path.dirname(path)) & stat.S_ISGID else 0o600
        with reporting(path):
            os.fchmod(fd, mode)
    except (TrainqError, OSError):
        os.close(fd)
        raise
    return fd


def open_regular(path: str, *, follow: bool = False) -> int:
    """A descriptor for reading a regular file; a directory, a pipe or a device is `IsADirectoryError` or
    ENXIO.

    Never blocks: a pipe without a writer is refused, not waited for.
    """
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | (0 if follow else os.O_NOFOLLOW)
    with _step(path):
        fd = os.open(path, flags)
    kind = os.fstat(fd).st_mode
    if stat.S_ISREG(kind):
        return fd
    os.close(fd)
    if stat.S_ISDIR(kind):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    raise OSError(errno.ENXIO, "not a regular file", path)


def write_all(fd: int, data: bytes | bytearray | memoryview, path: str) -> None:
    """Write every byte; `path` is for the message."""
    with memoryview(data) as view:
        done = 0
        while done < len(view):
            with _step(path):
                done += os.write(fd, view[done : done + BLOCK])


def blocks(fd: int, path: str) -> Iterator[bytes]:
    """What is left to read, a block at a time."""
    while True:
        with _step(path):
            block = os.read(fd, BLOCK)
        if not block:
            return
        yield block


def read_bytes(path: str) -> bytes:
    """All of a regular file; `FileNotFoundError` if it is not there."""
    fd = open_regular(path)
    try:
        return b"".join(blocks(fd, path))
    finally:
        os.close(fd)


def sync(fd: int, path: str) -> None:
    """Put an open file or directory on the disk. After an error the content must be taken for lost: no second
    try.
    """
    with _step(path):
        try:
            os.fsync(fd)
        except OSError as error:
            if error.errno not in _NOTHING_TO_SYNC:
                raise


def sync_directory(path: str) -> None:
    """Put the names in a directory on the disk."""
    with _step(path):
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        sync(fd, path)
    finally:
        os.close(fd)


class Entry(NamedTuple):
    """One thing below a directory: where, under which name seen from the top, and what it is."""

    path: str
    name: str
    kind: str
    """`file`, `directory`, `link` or `other`."""


def walk(top: str) -> Iterator[Entry]:
    """Everything below a directory, names sorted, a directory before its content; links are not followed."""
    waiting = [""]
    while waiting:
        inside = waiting.pop()
        directory = os.path.join(top, inside) if inside else top
        found = listed(directory)
        for name, kind in found:
            below = f"{inside}/{name}" if inside else name
            yield Entry(os.path.join(directory, name), below, kind)
        waiting.extend(f"{inside}/{name}" if inside else name for name, kind in reversed(found) if kind == "directory")


def listed(directory: str) -> list[tuple[str, str]]:
    """The (name, kind) pairs in a directory, sorted by name; `FileNotFoundError` if it is not there."""
    with _step(directory), os.scandir(directory) as entries:
        return sorted((entry.name, _kind(entry)) for entry in entries)


def _kind(entry: os.DirEntry[str]) -> str:
    if entry.is_symlink():
        return "link"
    if entry.is_dir(follow_symlinks=False):
        return "directory"
    return "file" if entry.is_file(follow_symlinks=False) else "other"


def status(path: str, *, follow: bool = False) -> os.stat_result | None:
    """What the file system says of this name, None if nothing has it. Only "no such file" says so: else it is an error."""
    try:
        return os.stat(path, follow_symlinks=follow)
    except OSError as error:
        if error.errno in _NOT_THERE:
            return None
        raise explain(error, path) from error


def is_there(path: str) -> bool:
    """Whether anything has this name, also a link that leads nowhere."""
    return status(path) is not None


def is_directory(path: str) -> bool:
    """Whether this is a directory, or a link to one."""
    found = status(path, follow=True)
    return found is not None and stat.S_ISDIR(found.st_mode)


def replace(source: str, target: str) -> None:
    """Rename over what may stand there. The directories are not synced: that is a step of its own."""
    with _step(target):
        os.replace(source, target)


def symlink(pointed_at: str, path: str) -> None:
    """Make a symbolic link; `FileExistsError` if the name is taken."""
    with _step(path):
        os.symlink(pointed_at, path)


def remove(path: str) -> bool:
    """Remove a file or link; false if it was not there."""
    try:
        with _step(path):
            os.unlink(path)
    except FileNotFoundError:
        return False
    return True


def make_directory(path: str, mode: int | None = None) -> bool:
    """Make a directory, with exactly this mode if one is given; false if one stands there already (its mode stays).

    `FileNotFoundError` if its parent is missing, `NotADirectoryError` if something else has the name (a link
    to a directory too). The parent is not synced.
    """
    try:
        with _step(path):
            os.mkdir(path, 0o700)  # at first: nobody comes in before it has its mode
    except FileExistsError:
        if stat.S_ISDIR(os.lstat(path).st_mode):
            return False
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path) from None
    if mode is None:
        above = _mode_of(os.path.dirname(path))
        mode = 0o750 | above & GROUP if above & stat.S_ISGID else 0o700
    with reporting(path):
        os.chmod(path, mode)
    return True


def make_own_directory(path: str) -> bool:
    """As `make_directory`, but nobody writes in it except its maker, also in a group's directory."""
    return make_directory(path, 0o2750 if _mode_of(os.path.dirname(path)) & stat.S_ISGID else 0o700)


def make_directories(top: str, below: str, mode: int | None = None) -> None:
    """Make `top`/a, `top`/a/b … for `below` = "a/b", durably: what is new is synced into its parent."""
    directory = top
    for part in below.split("/"):
        parent, directory = directory, os.path.join(directory, part)
        if make_directory(directory, mode):
            sync_directory(parent)


def takes_directories(top: str) -> bool:
    """Whether a directory, and a file in it, can be made here and removed again."""
    probe = os.path.join(top, temporary_name())
    try:
        make_directory(probe)
        try:
            write_new(os.path.join(probe, "probe"), b"\n")
        finally:
            remove_tree(probe)
    except (TrainqError, OSError):
        return False
    return True


def remove_tree(path: str) -> bool:
    """Remove a directory and all below it, or the link that stands in its place; false if nothing was there.

    Links are removed, never followed. Directories that their maker shut (mode 0500) are opened first.
    """
    import shutil

    try:
        with _step(path):
            if not stat.S_ISDIR(os.lstat(path).st_mode):
                os.unlink(path)
                return True
            try:
                shutil.rmtree(path)
            except PermissionError:
                _open_up(path)
                shutil.rmtree(path)
            except RecursionError:
                _remove_deep(path)
    except FileNotFoundError:
        # Gone already, or somebody else is removing the same tree: what is left of it is theirs.
        return False
    return True


def give_to_group(top: str) -> None:
    """Let the group of the directory that `top` lies in read all of it, whatever the umask of who made it, and change
    nothing. For the owner; links are left alone."""
    group = os.stat(os.path.dirname(top)).st_gid
    inside = (entry.path for entry in walk(top) if entry.kind in ("directory", "file"))
    for path in chain((top,), inside):
        found = os.lstat(path)
        mode = stat.S_IMODE(found.st_mode)
        if stat.S_ISDIR(found.st_mode):
            wanted = mode & ~OTHERS_WRITE | stat.S_ISGID | 0o750
        else:
            wanted = mode & ~OTHERS_WRITE | 0o040 | (mode & stat.S_IXUSR) >> 3
        with _step(path):
            if found.st_gid != group:
                os.chown(path, -1, group)
            if wanted != mode:
                os.chmod(path, wanted)


def _remove_deep(path: str) -> None:
    """Remove what is nested deeper than Python recurses. Raises Storage."""
    import subprocess

    done = subprocess.run(["rm", "-rf", "--", path], capture_output=True, check=False)
    if done.returncode:
        raise Storage(f"{printable(path)}: {os.fsdecode(done.stderr).strip().rpartition(': ')[2].lower()}")


def _open_up(top: str) -> None:
    os.chmod(top, 0o700)
    for entry in walk(top):
        if entry.kind == "directory":
            os.chmod(entry.path, 0o700)
