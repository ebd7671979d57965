"""Checkpoints on the disk: numbered directories, each whole from the moment it has its name.

```
<number>/…  + manifest.json      a checkpoint: the job's files and what they are
.new-<host>-<pid>-<random>/      one that is being written, or deleted
.taken-<number>                  the highest number that was ever given
```
What must stay true: a number is given once, whoever asks and whatever was deleted since; a directory with a number is
complete and on the disk, and its manifest names every file with size and digest; what is not provably a checkpoint
of this job is never deleted (the directory is the user's too). A crash leaves at worst a temporary name.

Whether a checkpoint counts is not decided here: in a job the worker commits it under the claim. Plain `OSError`s come
out of here; `Broken` says that a checkpoint is not what was written. Used by the worker too
(trainq/artifacts/checkpoints.py), and kept to what Python 3.9 reads.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import stat
import subprocess
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from trainq.job.crash import point

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

MANIFEST = "manifest.json"
SCHEMA = "trainq-checkpoint/1"
_TEMPORARY = ".new-"
_TAKEN = ".taken-"
_BLOCK = 1 << 20
_LEASE_S = 60.0
# Some file systems have nothing to sync for a directory, or for any file; every real failure has another number.
_NOTHING_TO_SYNC = frozenset({errno.EINVAL, errno.ENOTSUP})
_NOT_THERE = frozenset({errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENXIO})
_undeleted: set[str] = set()
"""Temporary names of this process that a sick storage did not let go: the next sweep tries again."""


class Broken(ValueError):
    """No checkpoint, or one that is not as it was written."""


class Made(NamedTuple):
    """A checkpoint that is complete and on the disk."""

    number: int
    path: str
    digest: str
    """sha256 of the manifest's bytes, which names the digests of all files."""
    size: int
    """Bytes of all files without the manifest."""


class Read(NamedTuple):
    """A manifest as it was found."""

    manifest: dict[str, Any]
    digest: str


# write -----------------------------------------------------------------------------------------------------------


def create(directory: str, fill: Callable[[str], object], known: dict[str, Any]) -> Made:
    """Let `fill` write files into a fresh directory, seal it with a manifest that holds `known`, give it its number.

    `known` is JSON without NaN. Whatever is raised, by `fill` too, nothing but a number is used up.
    """
    sweep(directory)
    unfinished = os.path.join(directory, temporary_name())
    os.mkdir(unfinished, 0o700)
    process = os.getpid()
    try:
        fill(unfinished)
        _check_is(process)
        point("checkpoint.filled")
        number = take_number(directory)
        digest, size = _seal(unfinished, number, known)
        point("checkpoint.sealed")
        path = os.path.join(directory, str(number))
        os.rename(unfinished, path)
        unfinished = path
        point("checkpoint.renamed")
        _sync_directory(directory)
        point("checkpoint.named")
    except BaseException:
        if os.getpid() == process:
            remove(unfinished)
        raise
    return Made(number, path, digest, size)


def _check_is(process: int) -> None:
    if os.getpid() != process:
        raise RuntimeError("a child that was forked while a checkpoint was written cannot finish it")


def temporary_name() -> str:
    """A fresh name that says whose it is."""
    return f"{_TEMPORARY}{os.uname().nodename}-{os.getpid()}-{os.urandom(4).hex()}"


def sweep(directory: str) -> None:
    """Delete what processes of this host that are gone left under temporary names, and what this one could not delete."""
    here = os.uname().nodename
    for name in os.listdir(directory):
        path = os.path.join(directory, name)
        host, _, rest = name[len(_TEMPORARY) :].rpartition("-")
        host, _, pid = host.rpartition("-")
        ours = name.startswith(_TEMPORARY) and rest and host == here and pid.isdecimal()
        if ours and (path in _undeleted or not _is_alive(int(pid))):
            _delete(path)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True  # somebody else's
    return True


def take_number(directory: str) -> int:
    """The next number. It is taken by a file of its own, so that no two callers get one and none comes twice."""
    number = 0
    while True:
        number = max([number, *_taken(directory), *numbers(directory)]) + 1
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            os.close(os.open(os.path.join(directory, f"{_TAKEN}{number}"), flags, 0o600))
        except FileExistsError:
            continue
        taken = _taken(directory)
        for lower in taken:
            if lower < number:
                _unlink(os.path.join(directory, f"{_TAKEN}{lower}"))
        if max(taken, default=number) <= number:
            return number
        # Others went on while this process looked, and this very number may have been theirs before.


def _taken(directory: str) -> list[int]:
    names = (name[len(_TAKEN) :] for name in os.listdir(directory) if name.startswith(_TAKEN))
    return [int(name) for name in names if _is_number(name)]


def _is_number(name: str) -> bool:
    return name.isascii() and name.isdecimal() and len(name) < 19 and name[0] != "0"


def _unlink(path: str) -> None:
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass  # another process of the job was faster


def _seal(unfinished: str, number: int, known: dict[str, Any]) -> tuple[str, int]:
    """Hash and sync all that is there, then write and sync the manifest; its digest and the bytes of the files."""
    os.chmod(unfinished, 0o700)
    found: list[dict[str, Any]] = []
    directories = []
    for path, name, kind in _walk(unfinished):
        if name == MANIFEST:
            raise ValueError(f"{MANIFEST} in a checkpoint is trainq's: give the file another name")
        if kind == "directory":
            directories.append(path)
        elif kind == "file":
            digest, size = _digest(path, durably=True)
            found.append({**_named(name), "size": size, "sha256": digest})
        else:
            raise ValueError(f"{shown(name)} in the checkpoint is a {kind}: it takes files and directories only")
    for directory in reversed(directories):
        _sync_directory(directory)
    size = sum(entry["size"] for entry in found)
    manifest = {"schema": SCHEMA, "number": number, **known, "time": _time(), "size": size, "files": found}
    data = json.dumps(manifest, indent=1, allow_nan=False).encode("ascii") + b"\n"
    write_file(os.path.join(unfinished, MANIFEST), data, durably=True)
    _sync_directory(unfinished)
    return hashlib.sha256(data).hexdigest(), size


def _time() -> str:
    now = time.time()
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now)) + f".{int(now * 1000) % 1000:03d}Z"


def write_file(path: str, data: bytes | bytearray | memoryview, *, durably: bool = False) -> None:
    """Make a new file of these bytes."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with memoryview(data) as view, view.cast("B") as left:
            done = 0
            while done < len(left):
                done += os.write(fd, left[done : done + 64 * _BLOCK])
        if durably:
            _sync(fd)
    finally:
        os.close(fd)


def _walk(top: str) -> Iterator[tuple[str, str, str]]:
    """(path, name from the top, kind) of everything below, names sorted, a directory before its content."""
    waiting = [""]
    while waiting:
        inside = waiting.pop()
        with os.scandir(os.path.join(top, inside) if inside else top) as entries:
            found = sorted((entry.name, entry.path, _kind(entry)) for entry in entries)
        for name, path, kind in found:
            below = f"{inside}/{name}" if inside else name
            yield path, below, kind
            if kind == "directory":
                waiting.append(below)


def _kind(entry: os.DirEntry[str]) -> str:
    if entry.is_symlink():
        return "link"
    if entry.is_dir(follow_symlinks=False):
        return "directory"
    return "file" if entry.is_file(follow_symlinks=False) else "pipe, socket or device"


def _open(path: str) -> int:
    """For reading: no link is followed and no pipe waited for, only a file that some host was lent and has to give back."""
    began = time.monotonic()
    while True:
        try:
            return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        except BlockingIOError:
            if time.monotonic() - began > _LEASE_S:
                raise
            time.sleep(0.02)


def _digest(path: str, *, durably: bool = False) -> tuple[str, int]:
    digest, size = hashlib.sha256(), 0
    fd = _open(path)
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(errno.ENXIO, "not a regular file", path)
        buffer = bytearray(_BLOCK)
        with memoryview(buffer) as view:
            while got := os.readv(fd, [buffer]):
                digest.update(view[:got])
                size += got
        if durably:
            _sync(fd)
    finally:
        os.close(fd)
    return digest.hexdigest(), size


def _sync(fd: int) -> None:
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno not in _NOTHING_TO_SYNC:
            raise


def _sync_directory(path: str) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        _sync(fd)
    finally:
        os.close(fd)


def _named(name: str) -> dict[str, str]:
    """A name as JSON holds it; one that is not UTF-8 has its bytes too."""
    raw = os.fsencode(name)
    try:
        return {"path": raw.decode()}
    except UnicodeDecodeError:
        import base64

        return {"path": raw.decode("utf-8", "replace"), "path_b64": base64.b64encode(raw).decode()}


# read ------------------------------------------------------------------------------------------------------------


def numbers(directory: str) -> list[int]:
    """The numbers in a directory, rising: checkpoints, and whatever else a user gave such a name."""
    with os.scandir(directory) as entries:
        return sorted(int(entry.name) for entry in entries if _is_number(entry.name))


def is_gone(path: str) -> bool:
    """Whether there certainly is no such file. What a sick storage cannot tell of may be there."""
    try:
        os.lstat(path)
    except OSError as error:
        return error.errno in _NOT_THERE
    return False


def is_bookkeeping(name: str) -> bool:
    """Whether a name in the directory is none of the user's and no checkpoint."""
    return name.startswith((_TEMPORARY, _TAKEN))


def read(path: str) -> Read:
    """The manifest of a checkpoint. `Broken` if there is none of ours; `OSError` if it could not be looked at."""
    try:
        fd = _open(os.path.join(path, MANIFEST))
        with open(fd, "rb") as file:
            data = file.read()
    except OSError as error:
        if error.errno in _NOT_THERE:
            raise Broken(f"{shown(path)} has no {MANIFEST}") from error
        raise
    try:
        manifest = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise Broken(f"{MANIFEST} cannot be read: {error}") from error
    if not isinstance(manifest, dict) or manifest.get("schema") != SCHEMA or not _is_whole(manifest):
        raise Broken(f"{MANIFEST} is not that of a checkpoint")
    return Read(manifest, hashlib.sha256(data).hexdigest())


def _is_whole(manifest: dict[str, Any]) -> bool:
    if not isinstance(manifest.get("number"), int) or not isinstance(manifest.get("attempt"), int):
        return False
    files = manifest.get("files")
    return isinstance(files, list) and all(map(_is_entry, files))


def _is_entry(entry: Any) -> bool:
    return isinstance(entry, dict) and isinstance(entry.get("path"), str)


def problems(path: str, digest: str | None = None) -> list[str]:
    """What is wrong with a checkpoint, a line each, all files read; empty if it is as it was written.

    With `digest`, its manifest has to be that very one. Files that came later are no problem. `OSError` if it
    could not be looked at.
    """
    try:
        found = read(path)
    except Broken as error:
        return [str(error)]
    if digest is not None and found.digest != digest:
        return [f"{MANIFEST} is not the one that was committed"]
    return [problem for entry in found.manifest["files"] for problem in _compared(path, entry)]


def _compared(path: str, entry: dict[str, Any]) -> Iterator[str]:
    name = _path_of(entry)
    if name is None:
        yield f"{MANIFEST} names {shown(entry['path'])}, which is no file of the checkpoint"
        return
    try:
        size = os.lstat(os.path.join(path, name)).st_size
        if size != entry.get("size"):
            yield f"{shown(name)} has {size} bytes, not {entry.get('size')}"
        elif _digest(os.path.join(path, name))[0] != entry.get("sha256"):
            yield f"{shown(name)} has changed: its digest differs"
    except OSError as error:
        if error.errno not in _NOT_THERE:
            raise
        yield f"{shown(name)} is missing"


def _path_of(entry: dict[str, Any]) -> str | None:
    """The name of a file, None for one that leads out: a manifest never makes a reader look elsewhere."""
    name = entry["path"]
    if "path_b64" in entry:
        import base64

        try:
            name = os.fsdecode(base64.b64decode(entry["path_b64"]))
        except (ValueError, TypeError):
            return None
    return name if "\0" not in name and not {"", ".", ".."} & set(name.split("/")) else None


def shown(name: str) -> str:
    """A name as a line of text."""
    return name if name.isprintable() else ascii(name)


# delete ----------------------------------------------------------------------------------------------------------


def remove(path: str) -> None:
    """Take the name of a checkpoint away, then delete it. Nothing is raised: what is left has a temporary name."""
    aside = os.path.join(os.path.dirname(path), temporary_name())
    try:
        os.rename(path, aside)
    except OSError:
        _undeleted.add(path)
        return  # gone already, or a storage that is sick: nobody takes what was not committed
    point("checkpoint.unnamed")
    _delete(aside)


def _delete(path: str) -> None:
    _undeleted.discard(path)
    try:
        shutil.rmtree(path)
    except PermissionError:
        for below, _, _ in os.walk(path):  # directories that their maker shut
            try:
                os.chmod(below, 0o700)
            except OSError:
                continue
        shutil.rmtree(path, ignore_errors=True)
    except RecursionError:  # nested deeper than Python recurses
        subprocess.run(["rm", "-rf", "--", path], capture_output=True, check=False)
    except OSError:
        _undeleted.add(path)  # somebody else deletes it too, or the next sweep does


def remove_old(
    directory: str, newest: int, *, keep: int, job: str, attempt: int, resumed: int | None, spare: Collection[int]
) -> None:
    """Delete the job's checkpoints before `newest`, which was committed, but the last `keep` (0: all stay).

    `spare` are those whose commit is not known yet. What an earlier attempt made after the one that was resumed from
    (`resumed`) is what the worker passed over: it does not count as one of the last and goes.
    """
    kept = 0
    for number in reversed(numbers(directory)):
        if keep < 1 or number > newest or number in spare:
            continue
        path = os.path.join(directory, str(number))
        try:
            manifest = read(path).manifest
        except (Broken, OSError):
            continue  # not known to be a checkpoint of ours
        if manifest["number"] != number or manifest.get("job") != job:
            continue
        passed_over = resumed is not None and number > resumed and manifest["attempt"] < attempt
        if kept >= keep or passed_over:
            remove(path)
        else:
            kept += 1
