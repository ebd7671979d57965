"""The directory of this user's running programs on this host: sockets and the like, nothing that has to last."""

from __future__ import annotations

import os
import stat


def directory(longest: int) -> str | None:
    """A directory of this user only, shared by its processes here: under XDG_RUNTIME_DIR if that is usable, else the
    `common` one. Made when it is needed. None if there can be none, or only one whose path has more than `longest` bytes.
    """
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    if os.path.isabs(runtime) and is_private(runtime):
        path = os.path.join(runtime, "trainq")
        if len(os.fsencode(path)) <= longest and _make(path):
            return path
    return common()


def common() -> str | None:
    """The one under /tmp, the same for all of this user's processes here, whatever their environment."""
    path = f"/tmp/trainq-{os.geteuid()}"  # noqa: S108 - made 0700 and its owner checked
    return path if _make(path) else None


def _make(path: str) -> bool:
    try:
        os.makedirs(path, mode=0o700, exist_ok=True)
    except OSError:
        return False
    return is_private(path) and os.access(path, os.W_OK | os.X_OK)


def is_private(path: str) -> bool:
    """A directory, no link, that belongs to this user and that nobody else can enter."""
    try:
        found = os.lstat(path)
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o077
