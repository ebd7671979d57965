"""The file system's errors, turned into ours.

What says "the storage is sick" (full, read-only, not ours, broken) is raised as the error a user can read. What is an
answer (`FileNotFoundError`, `FileExistsError` and the like) passes as it is, for the caller to decide; `reporting` turns
these too into errors, where no answer is expected.

`TRAINQ_FAULT=ENOSPC:3` makes the third operation of this process fail with that error, `ENOSPC:3+` the third
and all after it. So a test can fail every step of a flow in turn.
"""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

from trainq.base.errors import DiskFull, Storage, TrainqError, Unwritable
from trainq.base.words import printable

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_EVERYTHING: frozenset[int] = frozenset()
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


def reporting(path: str) -> _Reporting:
    """Around a flow in which no `OSError` is an answer: each becomes an error that names `path`."""
    return _Reporting(path, _EVERYTHING)


def step(path: str) -> _Reporting:
    """Around one operation: counts for `TRAINQ_FAULT`, and turns what is no answer into an error."""
    return _Reporting(path, _ANSWERS)
