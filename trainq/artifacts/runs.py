"""What one attempt leaves behind: its run directory, the job's checkpoints, and the job's kept secrets.

What must stay true: two attempts never share a run directory; only who runs the job writes there, and nobody
else reads but the group of a group's queue; nothing here is synced but the secrets, since a log may lose its end with the machine and the row
is the truth. Opening a run is on the path of every job: a handful of system calls.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple

from trainq.base import files, hosts, oserrors, sharing, trees, words
from trainq.base.errors import Denied

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trainq.artifacts.paths import Paths


class RunFiles(NamedTuple):
    """The open files of one attempt. Whoever opened them closes them, with `close`."""

    dir: str
    log: str
    log_fd: int
    """For stdout, and for stderr too unless it was split off; appends, close-on-exec."""
    stderr: str | None
    stderr_fd: int | None
    params: str | None
    """The file of the parameters, None if there are none."""

    def close(self) -> None:
        """Close the descriptors (on a network file system this may wait for the server)."""
        try:
            os.close(self.log_fd)
        finally:
            if self.stderr_fd is not None:
                os.close(self.stderr_fd)


def open_run(
    paths: Paths, job: int, attempt: int, *, params: bytes | None = None, split_stderr: bool = False
) -> RunFiles:
    """Make the run directory of an attempt and open its log; write `params` (JSON) if there are any.

    May be called again for the same attempt when the first call failed half-way. Raises the errors of sick
    storage, and `Storage` if something else stands where the directory or the log should be.
    """
    log = paths.log(job, attempt)
    stderr = paths.stderr(job, attempt) if split_stderr else None
    named = paths.params(job, attempt) if params is not None else None
    directory = _own_directory(paths, job, paths.attempt(job, attempt))
    with oserrors.reporting(directory):
        if params is not None and named is not None:
            files.remove(named)
            files.write_new(named, params)
        log_fd = files.open_append(log)
        try:
            stderr_fd = files.open_append(stderr) if stderr else None
        except BaseException:
            os.close(log_fd)
            raise
    return RunFiles(directory, log, log_fd, stderr, stderr_fd, named)


def append_note(paths: Paths, job: int, attempt: int, text: str) -> None:
    """Add a line of trainq's own to an attempt's log: why it could not start, why it was stopped."""
    log = paths.log(job, attempt)
    with oserrors.reporting(log):
        fd = files.open_append(log)
        try:
            files.write_all(fd, f"trainq: {text}\n".encode("utf-8", "surrogateescape"), log)
        finally:
            os.close(fd)


def open_checkpoints(paths: Paths, job: int) -> str:
    """The directory that all attempts of a job share, made when the first one asks for it."""
    return _own_directory(paths, job, paths.checkpoints(job))


def _own_directory(paths: Paths, job: int, directory: str) -> str:
    """The directory of a job, and this one in it, in which nobody else writes. Raises Denied when others may.

    On a group's queue others can put a directory there before: what lies in it is not gone on from, nor run.
    """
    with oserrors.reporting(directory):
        # Either: a worker may be at work while its root is shut for the group, whose members write in runs/ still.
        is_for_group = sharing.is_for_group(paths.root) or sharing.is_for_group(paths.runs)
        for path in (paths.run(job), directory):
            if trees.make_own_directory(path) or not is_for_group:
                continue
            found = os.lstat(path)
            if found.st_uid != os.geteuid() or found.st_mode & sharing.OTHERS_WRITE:
                raise Denied(
                    f"{words.printable(path)} belongs to {hosts.known_as(found.st_uid)}, or others may write it:"
                    f" {hosts.known_as(os.geteuid())} runs nothing there"
                )
    return directory


def remove_run(paths: Paths, job: int) -> bool:
    """Delete all that a job's attempts left; false if there was nothing. Links are removed, not followed."""
    directory = paths.run(job)
    with oserrors.reporting(directory):
        return trees.remove_tree(directory)


def runs(paths: Paths) -> list[int]:
    """The jobs that have a run directory, in order: for the janitor, who compares with the rows."""
    try:
        found = trees.listed(paths.runs)
    except FileNotFoundError:
        return []
    return sorted(int(name) for name, _ in found if name.isascii() and name.isdecimal())


def unpacked(paths: Paths, job: int) -> list[tuple[int, str]]:
    """A job's training sets that lie unpacked: attempt, directory. A worker that was killed leaves them behind."""
    found = [(number, paths.unpacked(job, number)) for number in map(int, _attempts(paths.run(job)))]
    return [(number, directory) for number, directory in found if files.is_directory(directory)]


def _attempts(directory: str) -> list[str]:
    try:
        return [name for name, _ in trees.listed(directory) if name.isascii() and name.isdecimal()]
    except (FileNotFoundError, NotADirectoryError):
        return []


def write_secret(paths: Paths, uid: str, variables: Mapping[str, str]) -> None:
    """Keep these variables for a job, readable by this user only; on the disk on return.

    Names and values are any bytes but NUL (surrogateescape), kept as the kernel shows an environment.
    """
    entries = [f"{name}={value}\0" for name, value in variables.items()]
    path = paths.secret(uid)
    with oserrors.reporting(path):
        files.write_durably(path, os.fsencode("".join(entries)), 0o600)


def read_secret(paths: Paths, uid: str) -> dict[str, str] | None:
    """The kept variables of a job, None if there are none (any more); `Denied` if they are another user's."""
    path = paths.secret(uid)
    try:
        # Not `open_regular`: that this user may not read it is an answer here, not a sick storage.
        fd = files.open_at_once(path, os.O_RDONLY | os.O_NOFOLLOW)
    except FileNotFoundError:
        return None
    except PermissionError:
        raise Denied(f"{words.printable(path)} belongs to another user, who alone may read it") from None
    with oserrors.reporting(path):
        try:
            if os.fstat(fd).st_uid != os.geteuid():
                raise Denied(f"{words.printable(path)} belongs to another user, whose values are not used")
            data = b"".join(files.blocks(fd, path))
        finally:
            os.close(fd)
    pairs = (os.fsdecode(entry).partition("=") for entry in data.split(b"\0") if entry)
    return {name: value for name, _, value in pairs}


def drop_secret(paths: Paths, uid: str) -> bool:
    """Delete the kept variables of a job that has ended; false if there were none."""
    path = paths.secret(uid)
    with oserrors.reporting(path):
        return files.remove(path)
