"""The modes of what several users share: in a group's directory (set-gid, the group may write) what is made is the group's."""

from __future__ import annotations

import os
import stat

from trainq.base import oserrors

GROUP = stat.S_ISGID | stat.S_IWGRP
OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


def share(fd: int, path: str) -> None:
    """Let all who may write in its directory write this file, too, if it is ours to say so."""
    found = os.fstat(fd)
    mode = shared_mode(os.path.dirname(path))
    if found.st_uid == os.geteuid() and stat.S_IMODE(found.st_mode) != mode:
        with oserrors.reporting(path):
            os.fchmod(fd, mode)


def shared_mode(directory: str, alone: int = 0o600) -> int:
    """The mode of a file in this directory that all who use the queue write; `alone` where that is one user."""
    return 0o660 if is_for_group(directory) else alone


def shared_directory_mode(directory: str) -> int:
    """The mode of a directory in this one where all who use the queue may put, replace and take away."""
    return 0o2770 if is_for_group(directory) else 0o700


def is_for_group(directory: str) -> bool:
    """Whether a group may write in it, and what is made in it is the group's: so is the root of a group's queue."""
    return mode_of(directory) & GROUP == GROUP


def open_as_is(path: str) -> int:
    """A descriptor of what has this name now, a link itself and never what it leads to, whatever its mode; for `fstat`,
    `set_mode` and `set_group`. In a group's directory a member may put something else there between two calls by name."""
    return os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)


def set_mode(fd: int, mode: int) -> None:
    """Give what `open_as_is` has opened a mode. `OSError` for a link."""
    os.chmod(f"/proc/self/fd/{fd}", mode)


def change_mode(path: str, mode: int) -> None:
    """Give what has this name now a mode; a link is refused. Raises the errors of sick storage."""
    with oserrors.reporting(path):
        fd = open_as_is(path)
        try:
            set_mode(fd, mode)
        finally:
            os.close(fd)


def set_group(fd: int, group: int) -> None:
    """Give what `open_as_is` has opened to a group. For a link that is the link's own."""
    os.chown(f"/proc/self/fd/{fd}", -1, group)


def is_ours(path: str) -> bool:
    """Whether this user may clear it away: in a group's directory what somebody else has made is left to them."""
    try:
        found, above = os.lstat(path), os.stat(os.path.dirname(path))
    except OSError:
        return True  # gone, or what is done with it next says what is wrong
    return os.geteuid() in (0, found.st_uid) or not above.st_mode & stat.S_ISGID


def mode_of(directory: str) -> int:
    """Its permissions and set-id bits. Raises the errors of sick storage."""
    with oserrors.reporting(directory):
        return os.stat(directory or ".").st_mode
