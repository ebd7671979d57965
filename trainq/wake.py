"""The bell: told after a commit that somebody may wait for. A hint: late, lost or rung twice, nothing wrong follows.

`bell/gen` lies alone in its directory, so that who watches the directory hears of nothing else. Its content differs
after every ring; who looks compares it with what was seen last.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

from trainq.base import files, sharing
from trainq.base.errors import TrainqError

if TYPE_CHECKING:
    from collections.abc import Callable

_PATIENCE_S = 5.0
"""A bell that some host was lent is waited for so long, and no longer: it is only a hint."""


def ring(path: str) -> None:
    """Ring. Never fails: workers look by themselves within a poll."""
    try:
        fd = files.open_at_once(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, patience_s=_PATIENCE_S)
        try:
            sharing.share(fd, path)
            os.pwrite(fd, b"%020d %010d\n" % (time.time_ns(), os.getpid()), 0)
        finally:
            os.close(fd)
    except (OSError, TrainqError):
        pass  # the row is committed; a worker finds it at its next look


def read(path: str, *, past_cache: bool = False) -> bytes:
    """What the bell says now; empty when it is not there. `past_cache`: on the file server, where there is one."""
    try:
        if past_cache:
            return files.read_past_cache(path, 64)
        fd = files.open_at_once(path, os.O_RDONLY | os.O_NOFOLLOW, patience_s=_PATIENCE_S)
        try:
            return os.pread(fd, 64, 0)
        finally:
            os.close(fd)
    except OSError:
        return b""  # deleted or not yet rung: another value than before, or the same as before


class Watch:
    """Watches the bell's directory with the kernel's help and calls `heard` from a thread of its own.

    When the kernel cannot (no watches left, a file system without events) nothing is heard and the poll alone is left.
    """

    def __init__(self, directory: str, heard: Callable[[], None]) -> None:
        self._observer: Any = _observe(directory, heard)

    def close(self) -> None:
        """Stop watching."""
        if self._observer is not None:
            self._observer.stop()
            self._observer.join(5)


def _observe(directory: str, heard: Callable[[], None]) -> Any:
    import logging

    from watchdog.events import FileSystemEventHandler
    from watchdog.observers import Observer

    class Handler(FileSystemEventHandler):
        def on_any_event(self, event: Any) -> None:
            if event.event_type in ("modified", "created", "moved", "deleted"):
                heard()

    # When it is stopped while it hears something, it complains of that on stderr.
    logging.getLogger("watchdog").setLevel(logging.CRITICAL)
    observer = Observer()
    try:
        observer.schedule(Handler(), directory, recursive=False)
        observer.start()
    except OSError:
        return None  # no watches left for this user: a submit is found within a poll
    return observer
