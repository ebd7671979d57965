"""Durable files: every change under a root that must survive a crash goes through here.

What must stay true: a name shows either the whole old content or the whole new one; what a function has
returned from is on the disk (unless it says otherwise); modes are exact whatever the caller's umask; the last
part of a name is never followed if it is a symbolic link. A crash leaves at worst a file with a temporary
name (`is_temporary`), which the janitor removes. What the file system refuses: trainq/base/oserrors.py.
"""

from __future__ import annotations

import errno
import os
import stat
import time
from typing import TYPE_CHECKING, Self

from trainq.base import oserrors, sharing
from trainq.base.errors import TrainqError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

BLOCK = 1 << 20
"""Bytes read or written at a time."""

_TEMPORARY = ".new-"
_LOOK_AGAIN_S = 0.02
_NOT_THERE = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG})
# Some file systems (FUSE, CIFS) have nothing to sync for a directory, or for any file, and say so in one of
# these ways. Such a file system gives no better promise than the write itself; every real failure has another
# number.
_NOTHING_TO_SYNC = frozenset({errno.EINVAL, errno.ENOTSUP})


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
            with oserrors.step(target):
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
            with oserrors.reporting(self.path or self._directory):
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
    with oserrors.step(path):
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    return _with_mode(fd, mode, path)


LEASE_S = 60.0
"""So long a lease is waited for; Linux breaks one after 45 s at most."""


def open_at_once(path: str, flags: int, mode: int = 0o600, patience_s: float = LEASE_S) -> int:
    """os.open that hangs at no pipe and follows no link, unless `flags` say otherwise. Errors as the system gives them.

    Not to wait also means that a file which an NFS or SMB client was lent (a delegation, a lease) is refused with EAGAIN
    while it is called back: that is waited for.
    """
    began = time.monotonic()
    while True:
        try:
            return os.open(path, flags | os.O_CLOEXEC | os.O_NONBLOCK, mode)
        except BlockingIOError:
            if time.monotonic() - began > patience_s:
                raise
            time.sleep(_LOOK_AGAIN_S)


def open_append(path: str, mode: int | None = None) -> int:
    """A descriptor that appends, of a file that is made if it is not there. A pipe in its place blocks nobody."""
    with oserrors.step(path):
        fd = open_at_once(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW)
    return _with_mode(fd, mode, path)


def open_shared(path: str) -> int:
    """A descriptor for reading and writing of a file that all who use the queue write, made if it is not there."""
    with oserrors.step(path):
        fd = open_at_once(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW)
    sharing.share(fd, path)
    return fd


def _with_mode(fd: int, mode: int | None, path: str) -> int:
    """Give a file its mode, of which open() has taken the umask."""
    try:
        if mode is None:
            mode = 0o640 if sharing.mode_of(os.path.dirname(path)) & stat.S_ISGID else 0o600
        with oserrors.reporting(path):
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
    with oserrors.step(path):
        fd = open_at_once(path, os.O_RDONLY | (0 if follow else os.O_NOFOLLOW))
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
            with oserrors.step(path):
                done += os.write(fd, view[done : done + BLOCK])


def blocks(fd: int, path: str) -> Iterator[bytes]:
    """What is left to read, a block at a time."""
    while True:
        with oserrors.step(path):
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


def read_past_cache(path: str, size: int) -> bytes:
    """The first `size` bytes (a page at most) as the file server has them now, not as this host remembers them.

    An NFS client that has a file open for writing, in whatever process, does not look whether others have changed it until
    it locks it (measured; nfs_update_inode of Linux takes the change for its own). Where direct reads are not to be had,
    it is an ordinary one. Errors as the system gives them.
    """
    import mmap

    flags = os.O_RDONLY | os.O_NOFOLLOW
    try:
        fd = open_at_once(path, flags | os.O_DIRECT)
        try:
            with mmap.mmap(-1, mmap.PAGESIZE) as page:  # direct reads want aligned memory
                return page[: min(size, os.preadv(fd, [page], 0))]
        finally:
            os.close(fd)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
    fd = open_at_once(path, flags)
    try:
        return os.pread(fd, size, 0)
    finally:
        os.close(fd)


def sync(fd: int, path: str) -> None:
    """Put an open file or directory on the disk. After an error the content must be taken for lost: no second
    try.
    """
    with oserrors.step(path):
        try:
            os.fsync(fd)
        except OSError as error:
            if error.errno not in _NOTHING_TO_SYNC:
                raise


def sync_directory(path: str) -> None:
    """Put the names in a directory on the disk."""
    with oserrors.step(path):
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        sync(fd, path)
    finally:
        os.close(fd)


def status(path: str, *, follow: bool = False) -> os.stat_result | None:
    """What the file system says of this name, None if nothing has it. Only "no such file" says so: else it is an error."""
    try:
        return os.stat(path, follow_symlinks=follow)
    except OSError as error:
        if error.errno in _NOT_THERE:
            return None
        raise oserrors.explain(error, path) from error


def is_there(path: str) -> bool:
    """Whether anything has this name, also a link that leads nowhere."""
    return status(path) is not None


def is_directory(path: str) -> bool:
    """Whether this is a directory, or a link to one."""
    found = status(path, follow=True)
    return found is not None and stat.S_ISDIR(found.st_mode)


def replace(source: str, target: str) -> None:
    """Rename over what may stand there. The directories are not synced: that is a step of its own."""
    with oserrors.step(target):
        os.replace(source, target)


def symlink(pointed_at: str, path: str) -> None:
    """Make a symbolic link; `FileExistsError` if the name is taken."""
    with oserrors.step(path):
        os.symlink(pointed_at, path)


def remove(path: str) -> bool:
    """Remove a file or link; false if it was not there."""
    try:
        with oserrors.step(path):
            os.unlink(path)
    except FileNotFoundError:
        return False
    return True
