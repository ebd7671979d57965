"""The spec files of a group's queue: one for each submit call, a line for each of its jobs (domain/proof.py).

```
specs/<call>.spec   "trainq specs 1", then a sha256 a line, padded to one width: the line of a job is found by its place
                    "trainq specs 2", once a job of the call was edited: two in each line, what it was and what it is
```
Either of the two proves a job: whoever edits it writes the file before the row, and may not come to the row.
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
    from collections.abc import Iterable, Mapping

    from trainq.artifacts.paths import Paths

_DIGEST = 64
_HEADS = {
    width: f"trainq specs {version}".ljust(width - 1).encode() + b"\n"
    for version, width in ((1, _DIGEST + 1), (2, 2 * _DIGEST + 2))
}
"""The first line, by the width of all."""
_ONE, _TWO = _HEADS
_DIGITS = 9
"""No call has more jobs than these can count; a row can say any number, also one that is no offset in a file."""
_NOTHING = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EACCES, errno.EPERM, errno.ENXIO})


class Proof(NamedTuple):
    """What a spec file says of one job: whose the file is, and what the job may be."""

    user_id: int
    digests: tuple[str, ...]


def write(paths: Paths, call: str, digests: Iterable[str]) -> None:
    """Leave the spec file of a submit call, over one that this call has left before; on the disk on return."""
    path = paths.spec(call)
    with oserrors.reporting(path):
        files.write_durably(path, _HEADS[_ONE] + "".join(f"{digest}\n" for digest in digests).encode())


def renew(paths: Paths, call: str, digests: Mapping[int, tuple[str, str]]) -> None:
    """Write the spec file of a call anew, with two digests for the jobs at these places; on the disk on return."""
    path = paths.spec(call)
    with oserrors.reporting(path):
        with open(path, "rb") as file:
            _, *lines = file.read().decode("ascii", "replace").splitlines()
        for place, pair in digests.items():
            lines[place] = " ".join(pair)
        text = "".join(f"{line.rstrip().ljust(_TWO - 1)}\n" for line in lines)
        files.write_durably(path, _HEADS[_TWO] + text.encode())


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
            digests = _read(fd, place) if is_fit else ()
        finally:
            os.close(fd)
    if not digests:
        raise Denied(f"{words.printable(path)} is no spec file that tells of this job")
    return Proof(found.st_uid, digests)


def _read(fd: int, place: str) -> tuple[str, ...]:
    """The digests in the line of this place; none when it is not there."""
    width = next((width for width, head in _HEADS.items() if os.pread(fd, width, 0) == head), None)
    if width is None or not place.isdecimal() or len(place) > _DIGITS:
        return ()
    line = os.pread(fd, width, (int(place) + 1) * width)
    return tuple(line[:-1].decode("ascii", "replace").split()) if len(line) == width else ()


def drop(paths: Paths, call: str) -> bool:
    """Delete the spec file of a call that no row names; false if there was none."""
    path = paths.spec(call)
    with oserrors.reporting(path):
        return files.remove(path)


def kept(paths: Paths) -> list[str]:
    """The calls that have a spec file."""
    return [name.removesuffix(SPEC) for name, _ in trees.listed(paths.specs) if name.endswith(SPEC) and name[0] != "."]
