"""Directories and what is in them: made durably, walked, removed whole. The rules of trainq/base/files.py hold here, too."""

from __future__ import annotations

import errno
import os
import stat
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

from trainq.base import files, oserrors, sharing
from trainq.base.errors import Storage, TrainqError
from trainq.base.words import printable

if TYPE_CHECKING:
    from collections.abc import Iterator


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
    with oserrors.step(directory), os.scandir(directory) as entries:
        return sorted((entry.name, _kind(entry)) for entry in entries)


def _kind(entry: os.DirEntry[str]) -> str:
    if entry.is_symlink():
        return "link"
    if entry.is_dir(follow_symlinks=False):
        return "directory"
    return "file" if entry.is_file(follow_symlinks=False) else "other"


def make_directory(path: str, mode: int | None = None) -> bool:
    """Make a directory, with exactly this mode if one is given; false if one stands there already (its mode stays).

    `FileNotFoundError` if its parent is missing, `NotADirectoryError` if something else has the name (a link
    to a directory too). The parent is not synced.
    """
    try:
        with oserrors.step(path):
            os.mkdir(path, 0o700)  # at first: nobody comes in before it has its mode
    except FileExistsError:
        if stat.S_ISDIR(os.lstat(path).st_mode):
            return False
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path) from None
    above = sharing.mode_of(os.path.dirname(path))
    if mode is None:
        mode = 0o750 | above & (sharing.GROUP | stat.S_ISVTX) if above & stat.S_ISGID else 0o700
    with oserrors.reporting(path):
        fd = sharing.open_as_is(path)
        try:
            if above & stat.S_IWGRP:
                _require_new(fd, path)
            sharing.set_mode(fd, mode)
        finally:
            os.close(fd)
    return True


def _require_new(fd: int, path: str) -> None:
    """In a group's directory: this is what was just made there, not what a member has put in its place since."""
    found = os.fstat(fd)
    if not stat.S_ISDIR(found.st_mode):
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
    if found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) & 0o077:
        raise PermissionError(errno.EPERM, "another directory was put in its place", path)


def make_own_directory(path: str) -> bool:
    """As `make_directory`, but nobody writes in it except its maker, also in a group's directory."""
    return make_directory(path, 0o2750 if sharing.mode_of(os.path.dirname(path)) & stat.S_ISGID else 0o700)


def make_directories(top: str, below: str, mode: int | None = None) -> None:
    """Make `top`/a, `top`/a/b … for `below` = "a/b", durably: what is new is synced into its parent."""
    directory = top
    for part in below.split("/"):
        parent, directory = directory, os.path.join(directory, part)
        if make_directory(directory, mode):
            files.sync_directory(parent)


def takes_directories(top: str) -> bool:
    """Whether a directory, and a file in it, can be made here and removed again."""
    probe = os.path.join(top, files.temporary_name())
    try:
        make_directory(probe)
        try:
            files.write_new(os.path.join(probe, "probe"), b"\n")
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
        with oserrors.step(path):
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
    nothing. For the owner; links are left alone. A directory is shut for others before it is looked into: from then on
    only its owner changes what is in it."""
    group = os.stat(os.path.dirname(top)).st_gid
    inside = (entry.path for entry in walk(top) if entry.kind in ("directory", "file"))
    for path in chain((top,), inside):
        with oserrors.step(path):
            fd = sharing.open_as_is(path)
            try:
                _give(fd, group)
            finally:
                os.close(fd)


def _give(fd: int, group: int) -> None:
    found = os.fstat(fd)
    mode = stat.S_IMODE(found.st_mode)
    if stat.S_ISDIR(found.st_mode):
        wanted = mode & ~sharing.OTHERS_WRITE | stat.S_ISGID | 0o750
    elif stat.S_ISREG(found.st_mode):
        wanted = mode & ~sharing.OTHERS_WRITE | 0o040 | (mode & stat.S_IXUSR) >> 3
    else:
        return
    if found.st_gid != group:
        sharing.set_group(fd, group)
    if wanted != mode:
        sharing.set_mode(fd, wanted)


def _remove_deep(path: str) -> None:
    """Remove what is nested deeper than Python recurses. Raises Storage."""
    import subprocess

    done = subprocess.run(["rm", "-rf", "--", path], capture_output=True, check=False)
    if done.returncode:
        raise Storage(f"{printable(path)}: {os.fsdecode(done.stderr).strip().rpartition(': ')[2].lower()}")


def _open_up(top: str) -> None:
    """Let its owner delete what is in it, and nobody else: each directory before it is looked into."""
    for path in chain((top,), (entry.path for entry in walk(top) if entry.kind == "directory")):
        fd = sharing.open_as_is(path)
        try:
            if stat.S_ISDIR(os.fstat(fd).st_mode):
                sharing.set_mode(fd, 0o700)
        finally:
            os.close(fd)
