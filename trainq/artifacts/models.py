"""Model versions on the disk: staged by a job, placed by one rename, pointed to, put aside, deleted.

```
models/<key>/@<version>/…  + manifest.json     models/<key>/@latest -> @<newest>
models/.staging/<job>-<attempt>-<random>/      models/.aside/<key>/@<version>-<random>/
```
What must stay true: whoever looks into `models/<key>/` sees whole versions, each with its manifest, and no
temporary name: all that is unfinished lies in `.staging` and all that is going away in `.aside`, on the same
file system. A version is on the disk before its row is committed; a version that no row names is the orphan
of a crash, and its number is not used again while it lies aside.

Who calls what: a worker stages before the start and seals (manifest.py) after exit 0, outside of any
transaction. Inside the publishing transaction, under the gate, `highest_version` and `place`. After the
commit `advance_latest`, `put_aside` and `sweep_retired`. A crash anywhere leaves what the next publisher or the janitor can put
right with the same calls.
"""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING, NamedTuple

from trainq.artifacts.manifest import MANIFEST
from trainq.artifacts.paths import checked_key
from trainq.base import crash, files, oserrors, sharing, trees, words
from trainq.base.errors import Storage

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trainq.artifacts.paths import Paths

_RETIRED = ".retired"


def stage(paths: Paths, job: int, attempt: int) -> str:
    """A fresh empty directory, private to this attempt, in which a job may make its model."""
    staged = os.path.join(paths.staging, f"{job:d}-{attempt:d}-{os.urandom(4).hex()}")
    with oserrors.reporting(staged):
        try:
            trees.make_own_directory(staged)
        except FileNotFoundError:
            trees.make_directories(paths.root, "models/.staging")
            trees.make_own_directory(staged)
    return staged


def versions_on_disk(paths: Paths, key: str) -> list[int]:
    """The numbers of a key's versions, rising."""
    return _numbers(paths.key(key))


def highest_version(paths: Paths, key: str) -> int:
    """The highest number that is taken on the disk, also by what lies aside; 0 if none is."""
    return max([0, *_numbers(paths.key(key)), *_numbers(paths.aside_key(key))])


def _numbers(directory: str) -> list[int]:
    with oserrors.reporting(directory):
        try:
            found = trees.listed(directory)
        except FileNotFoundError:
            return []
    return sorted(number for name, kind in found if kind == "directory" and (number := _number(name)) is not None)


def _number(name: str) -> int | None:
    """7 for "@7" and for "@7-1a2b3c4d", None for all else."""
    digits = name[1:].partition("-")[0]
    return int(digits) if name[:1] == "@" and digits.isascii() and digits.isdecimal() else None


def place(paths: Paths, staged: str, key: str, version: int) -> str:
    """Give a sealed directory its name, durably; the path of the version.

    Under the gate only: that the name is free is looked at before it is taken. `Storage` if it is taken, or
    if the directory was never sealed; after an error it lies where it was staged. Until the transaction is
    committed the version is an orphan.
    """
    target = paths.version(key, version)
    if not files.is_there(os.path.join(staged, MANIFEST)):
        raise Storage(f"{words.printable(staged)} has no manifest and cannot be published")
    if staged == target:
        return target  # a turn before this one did it, and could not commit
    with oserrors.reporting(target):
        # Not sticky as models/ is: `@latest` is replaced by whoever publishes.
        trees.make_directories(paths.models, checked_key(key), sharing.shared_directory_mode(paths.models))
        if files.is_there(target):
            raise FileExistsError(f"version {version} of this key stands already")
        try:
            _move(staged, target)
        except BaseException:
            _put_back(target, staged)
            raise
        crash.point("publish.placed")
    return target


def find_placed(paths: Paths, key: str, version: int) -> str:
    """Where a version lies that was placed and not committed: somebody may have put it aside meanwhile."""
    target = paths.version(key, version)
    if files.is_there(target):
        return target
    aside = [path for path, name, _ in _entries(paths.aside_key(key)) if _number(name) == version]
    return next((path for path in aside if not path.endswith(_RETIRED)), target)


def _move(source: str, target: str) -> None:
    files.replace(source, target)
    crash.point("publish.renamed")
    # The new name first: after a power cut between the two a directory may show twice, but not vanish.
    files.sync_directory(os.path.dirname(target))
    files.sync_directory(os.path.dirname(source))


def _put_back(target: str, staged: str) -> None:
    """The result of a failed placing is looked for where it was staged, and an orphan would be cleared away."""
    try:
        if not os.path.lexists(staged):
            os.rename(target, staged)
    except OSError:
        pass  # an orphan then; the error that matters is on its way


def put_aside(paths: Paths, key: str, version: int, *, retired: bool = False) -> str | None:
    """Put a version that no row names aside and give back where; None if there is none."""
    source = paths.version(key, version)
    target = os.path.join(paths.aside_key(key), f"@{version:d}-{os.urandom(4).hex()}{_RETIRED if retired else ''}")
    with oserrors.reporting(source):
        if not files.is_there(source):
            return None
        trees.make_directories(paths.root, f"models/.aside/{checked_key(key)}")
        try:
            _move(source, target)
        except FileNotFoundError:
            # Somebody else put it aside in this moment, which is what was wanted.
            return None
    return target


def sweep_retired(paths: Paths, key: str, before: float) -> None:
    """Delete what was retired of a key before then (seconds since the epoch, by the file system's clock); an orphan may
    be a result that could not be stored, and is the janitor's."""
    for path, name, _ in _entries(paths.aside_key(key)):
        is_old = all(left.changed_at <= before for left in _leftover(path, None, None))
        if name.endswith(_RETIRED) and is_old and sharing.is_ours(path):
            crash.point("sweep.retired")
            discard(paths, path)


def latest_on_disk(paths: Paths, key: str) -> int | None:
    """What `@latest` points to, None if it is missing or no link of ours; it may lag behind the rows."""
    link = paths.latest(key)
    found = files.status(link)
    if found is None or not stat.S_ISLNK(found.st_mode):
        return None  # or something else has the name: a hint that is not there is made anew
    with oserrors.reporting(link):
        return _number(os.readlink(link))


def point_latest(paths: Paths, key: str, version: int | None) -> None:
    """Let `@latest` point to this version (None: take it away). The old or the new one, never neither."""
    link = paths.latest(key)
    with oserrors.reporting(link):
        if version is None:
            if files.remove(link):
                files.sync_directory(paths.key(key))
            return
        # Not beside the versions: no temporary name is ever seen there.
        temporary = os.path.join(paths.staging, files.temporary_name())
        files.symlink(f"@{version:d}", temporary)
        crash.point("latest.made")
        try:
            files.replace(temporary, link)
        except BaseException:
            os.unlink(temporary)
            raise
        crash.point("latest.replaced")
        files.sync_directory(paths.key(key))


def advance_latest(paths: Paths, key: str) -> None:
    """Let `@latest` point to the newest version on the disk. For a publisher, after its commit.

    Several may do this at once and need no lock: who wrote looks again, so the last one to write has seen that
    nothing newer was there, and whoever places a newer one comes here later.
    """
    while (newest := max(versions_on_disk(paths, key), default=None)) != latest_on_disk(paths, key):
        point_latest(paths, key, newest)


def walk_keys(paths: Paths) -> Iterator[str]:
    """Every key that has a version on the disk."""
    waiting = [""]
    while waiting:
        key = waiting.pop()
        with oserrors.reporting(paths.models):
            try:
                found = trees.listed(os.path.join(paths.models, key))
            except FileNotFoundError:
                continue
        directories = [name for name, kind in found if kind == "directory"]
        if key and any(_number(name) is not None for name in directories):
            yield key
        waiting += [f"{key}/{name}" if key else name for name in reversed(directories) if name[0] not in ".@"]


class Leftover(NamedTuple):
    """Something in `.staging` or `.aside`, for the janitor."""

    path: str
    job: int | None
    """Whose it is, for a staged directory: it may be running still, whatever its age."""
    attempt: int | None
    changed_at: float
    """When it was moved or made (seconds since the epoch, by the file system's clock)."""


def leftovers(paths: Paths) -> Iterator[Leftover]:
    """What lies in `.staging` and `.aside`: the janitor deletes what no running attempt or row has a claim
    to.
    """
    for path, name, _ in _entries(paths.staging):
        job, _, rest = name.partition("-")
        attempt = rest.partition("-")[0]
        ours = job.isdecimal() and attempt.isdecimal()
        yield from _leftover(path, int(job) if ours else None, int(attempt) if ours else None)
    waiting = [paths.aside]
    while waiting:
        for path, name, kind in _entries(waiting.pop()):
            if _number(name) is not None:
                yield from _leftover(path, None, None)
            elif kind == "directory":
                waiting.append(path)


def _entries(directory: str) -> list[tuple[str, str, str]]:
    """Path, name and kind of what lies there."""
    with oserrors.reporting(directory):
        try:
            return [(os.path.join(directory, name), name, kind) for name, kind in trees.listed(directory)]
        except FileNotFoundError:
            return []


def _leftover(path: str, job: int | None, attempt: int | None) -> Iterator[Leftover]:
    found = files.status(path)
    if found is not None:
        # A rename changes the inode's time and not that of the content.
        yield Leftover(path, job, attempt, found.st_ctime)


def discard(paths: Paths, path: str) -> bool:
    """Delete a staged directory or one that lies aside; false if it was gone. Never a visible one."""
    if not path.startswith((paths.staging + os.sep, paths.aside + os.sep)):
        raise Storage(f"{words.printable(path)} is neither staged nor aside: it is not deleted")
    with oserrors.reporting(path):
        return trees.remove_tree(path)
