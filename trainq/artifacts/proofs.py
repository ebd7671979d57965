"""The spec files of a group's queue: one for each submit call, a line for each of its jobs (domain/proof.py).

```
specs/<call>.spec   "trainq specs 1", then a sha256 a line, padded to one width: the line of a job is found by its place
```
What must stay true: it is on the disk before a row of its call is, it belongs to who submitted, and nobody else may
write it. `specs/` is sticky, so nobody else may remove it either.
"""

from __future__ import annotations

import errno
import os
import stat
from typing import TYPE_CHECKING, NamedTuple

from trainq.artifacts.paths import SPEC
from trainq.base import files, oserrors, sharing, trees, words
from trainq.base.errors import BadValue, Denied

if TYPE_CHECKING:
    from collections.abc import Iterable

    from trainq.artifacts.paths import Paths

_WIDTH = 65
_HEAD = b"trainq specs 1".ljust(_WIDTH - 1) + b"\n"
_DIGITS = 9
"""No call has more jobs than these can count; a row can say any number, also one that is no offset in a file."""
_NOTHING = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EACCES, errno.EPERM, errno.ENXIO})


class Proof(NamedTuple):
    """What a spec file says of one job."""

    user_id: int
    digest: str


def write(paths: Paths, call: str, digests: Iterable[str]) -> None:
    """Leave the spec file of a submit call, over one that this call has left before; on the disk on return."""
    path = paths.spec(call)
    with oserrors.reporting(path):
        files.write_durably(path, _HEAD + "".join(f"{digest}\n" for digest in digests).encode())


def read(paths: Paths, uid: str) -> Proof:
    """What is proved of the job of this uid. Raises Denied when nothing is, and the errors of sick storage."""
    call, _, place = uid.rpartition(".")
    try:
        path = paths.spec(call)
        # Not `open_regular`: that this user may not read it is an answer here, not a sick storage.
        fd = files.open_at_once(path, os.O_RDONLY | os.O_NOFOLLOW)
    except BadValue as error:
        raise Denied(error.message) from None
    except OSError as error:
        if error.errno not in _NOTHING:
            raise oserrors.explain(error) from error
        raise Denied(
            f"its spec file {words.printable(path)} cannot be opened: {os.strerror(error.errno).lower()}"
        ) from None
    with oserrors.reporting(path):
        try:
            found = os.fstat(fd)
            is_fit = stat.S_ISREG(found.st_mode) and not found.st_mode & sharing.OTHERS_WRITE
            digest = _read(fd, place) if is_fit else ""
        finally:
            os.close(fd)
    if not digest:
        raise Denied(f"{words.printable(path)} is no spec file that tells of this job")
    return Proof(found.st_uid, digest)


def _read(fd: int, place: str) -> str:
    """The digest in the line of this place; empty when there is none."""
    if os.pread(fd, _WIDTH, 0) != _HEAD or not place.isdecimal() or len(place) > _DIGITS:
        return ""
    line = os.pread(fd, _WIDTH, (int(place) + 1) * _WIDTH)
    return line[:-1].decode("ascii", "replace") if len(line) == _WIDTH else ""


def drop(paths: Paths, call: str) -> bool:
    """Delete the spec file of a call that no row names; false if there was none."""
    path = paths.spec(call)
    with oserrors.reporting(path):
        return files.remove(path)


def kept(paths: Paths) -> list[str]:
    """The calls that have a spec file."""
    return [name.removesuffix(SPEC) for name, _ in trees.listed(paths.specs) if name.endswith(SPEC) and name[0] != "."]
