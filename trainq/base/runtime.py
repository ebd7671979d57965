"""The directory of this user's running programs on this host: sockets and the like, nothing that has to last."""

from __future__ import annotations

import os
import stat


def directory(longest: int | None = None) -> str | None:
    """A directory of this user only, shared by all of its processes here: under XDG_RUNTIME_DIR if that is usable, else
    under /tmp. Made when it is needed. None if there can be none, or only one whose path is `longest` bytes or more.
    """
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    candidates = [f"/tmp/trainq-{os.geteuid()}"]  # noqa: S108 - made 0700 and its owner checked
    if os.path.isabs(runtime) and is_private(runtime):
        candidates.insert(0, os.path.join(runtime, "trainq"))
    for path in candidates:
        if longest is not None and len(os.fsencode(path)) > longest:
            continue
        try:
            os.makedirs(path, mode=0o700, exist_ok=True)
        except OSError:
            continue
        if is_private(path) and os.access(path, os.W_OK | os.X_OK):
            return path
    return None


def is_private(path: str) -> bool:
    """A directory, no link, that belongs to this user and that nobody else can enter."""
    try:
        found = os.lstat(path)
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o077
