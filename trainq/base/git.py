"""What git says of a directory: the commit that stands there, whether anything differs from it, and which files there are.

git is another program, and may be missing, hang, or refuse a work tree of somebody else's: then nothing is known of the
commit, which is never an error. It only reads, takes no lock of the repository, and is asked about a directory by name:
what a hook of git's left in our environment does not lead it to another repository.
"""

from __future__ import annotations

import os
import select
import signal
import time
from typing import TYPE_CHECKING, Final, NamedTuple

from trainq.base.errors import BadSnapshot
from trainq.base.words import printable

if TYPE_CHECKING:
    from collections.abc import Sequence

LIMIT_S: Final = 2.0
COMMIT_LIMIT_S: Final = 0.5
LIST_LIMIT_S: Final = 60.0
_ENOUGH: Final = 1 << 20
_ELSEWHERE: Final = (
    "GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX", "GIT_COMMON_DIR", "GIT_OBJECT_DIRECTORY",
    "GIT_ALTERNATE_OBJECT_DIRECTORIES", "GIT_NAMESPACE",
)  # fmt: skip
_STATUS: Final = (
    "status",
    "--porcelain=v2",
    "--branch",
    "-z",
    "--untracked-files=normal",
    "--no-renames",
    "--no-ahead-behind",
)
_LIST: Final = ("ls-files", "-z", "--others", "--exclude-standard")
_WARNING: Final = "warning: "
_SHUT: Final = f"{_WARNING}could not open directory "


class State(NamedTuple):
    """The commit (None before the first one), and whether the work tree differs from it; None is not known."""

    commit: str | None
    dirty: bool | None


UNKNOWN: Final = State(None, None)


class Listed(NamedTuple):
    """Names of files, and what git says of directories that it could not look into, for which it only warns."""

    names: list[str]
    shut: list[str]


def top_of(directory: str) -> str | None:
    """The nearest directory at or above this one, a real path, with a `.git`. As git does, it does not go up into one of
    GIT_CEILING_DIRECTORIES."""
    ceilings = os.environ.get("GIT_CEILING_DIRECTORIES", "").split(os.pathsep)
    while not os.path.lexists(os.path.join(directory, ".git")):
        above = os.path.dirname(directory)
        if above == directory or above in ceilings:
            return None
        directory = above
    return directory


class Asked:
    """A `git status` that is under way: it takes some ms, in which others can be done. Waits in `answer` only."""

    def __init__(self, top: str) -> None:
        self.top = top
        self._ends_at = time.monotonic() + LIMIT_S
        self._started = _start(("-C", top, *_STATUS))

    def answer(self, besides: str) -> State:
        """What it said; what lies untracked in the directory `besides`, or in a `.trainq`, is no difference."""
        if self._started is None:
            return UNKNOWN
        said, code = _finish(*self._started, self._ends_at)
        self._started = None
        if said is None:
            return State(_commit(self.top), None)
        if code != 0 and len(said) <= _ENOUGH:
            return UNKNOWN
        return _state(said, os.fsencode(self.top), os.fsencode(os.path.relpath(besides, self.top)))


def _commit(top: str) -> str | None:
    """The commit alone, where a large work tree, or one on a slow file system, takes too long to look at."""
    started = _start(("-C", top, "rev-parse", "--verify", "--quiet", "HEAD"))
    if started is None:
        return None
    said, code = _finish(*started, time.monotonic() + COMMIT_LIMIT_S)
    return said.decode("ascii", "replace").strip() if said and code == 0 else None


def _finish(pid: int, fd: int, ends_at: float) -> tuple[bytes | None, int | None]:
    """What it says and its exit code; it is killed when that takes too long, or is more than anybody wants to know."""
    try:
        said = _read(fd, ends_at)
    finally:
        os.close(fd)
    is_whole = said is not None and len(said) <= _ENOUGH
    return said, _reap(pid, ends_at if is_whole else 0.0)


def _state(said: bytes, top: bytes, besides: bytes) -> State:
    commit, is_dirty = None, False
    for entry in said.split(b"\0"):
        if entry.startswith(b"# branch.oid "):
            word = entry[13:].decode("ascii", "replace")
            commit = None if word == "(initial)" else word
        elif entry.startswith(b"? "):
            name = entry[2:].rstrip(b"/")
            is_dirty |= b".trainq" not in name.split(b"/") and not _is_below(top, name, besides)
        else:
            is_dirty |= bool(entry) and not entry.startswith(b"#")
    return State(commit, is_dirty)


def _is_below(top: bytes, name: bytes, besides: bytes) -> bool:
    """Whether what lies there is the directory `besides`, in it, or the way to it and nothing else: git names the uppermost
    directory in which nothing is tracked."""
    while besides.startswith(b"%s/" % name):
        step = besides[len(name) + 1 :].partition(b"/")[0]
        try:
            if os.listdir(os.path.join(top, name)) != [step]:
                return False
        except OSError:
            return False
        name = os.path.join(name, step)
    return (b"%s/" % name).startswith(b"%s/" % besides)


def _start(words: Sequence[str]) -> tuple[int, int] | None:
    """Run git: its pid and the descriptor of its words; None when it cannot be started. Without subprocess, whose import
    alone takes longer than git does."""
    ours, theirs = os.pipe2(os.O_CLOEXEC)
    try:
        pid = os.posix_spawnp(
            "git", ("git", *words), environment(), setpgroup=0, setsigdef=(signal.SIGPIPE,),
            file_actions=(
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0), (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0),
                (os.POSIX_SPAWN_DUP2, theirs, 1),
            ),
        )  # fmt: skip
    except OSError:
        os.close(ours)
        return None
    finally:
        os.close(theirs)
    return pid, ours


def environment() -> dict[str, str]:
    """Ours, without what names another repository; git writes nothing into the index by the way, and speaks as we do."""
    env = {name: value for name, value in os.environ.items() if name not in _ELSEWHERE}
    return {**env, "GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C"}


def _read(fd: int, ends_at: float) -> bytes | None:
    """All it says, or somewhat more than enough; None when it has not come to its end in time."""
    said = bytearray()
    waiting = select.poll()
    waiting.register(fd, select.POLLIN)
    while len(said) <= _ENOUGH:
        if not waiting.poll(max(0.0, ends_at - time.monotonic()) * 1000):
            return None
        block = os.read(fd, 1 << 16)
        if not block:
            break
        said += block
    return bytes(said)


def _reap(pid: int, ends_at: float) -> int | None:
    """Its exit code; None if it does not end by then, and is killed, or if nobody can tell."""
    try:
        watched = os.pidfd_open(pid)
    except OSError:
        return None  # whoever started us ignores SIGCHLD: it leaves no trace
    try:
        waiting = select.poll()
        waiting.register(watched, select.POLLIN)
        if not waiting.poll(max(0.0, ends_at - time.monotonic()) * 1000):
            os.killpg(pid, signal.SIGKILL)
            waiting.poll(100)  # one that hangs in the file system is left
        ended, status = os.waitpid(pid, os.WNOHANG)
    except (ChildProcessError, ProcessLookupError):
        return None
    finally:
        os.close(watched)
    return os.waitstatus_to_exitcode(status) if ended else None


def files(directory: str, *, is_tracked: bool) -> Listed:
    """The names, seen from it, of the files below a directory that git does not ignore; a repository in it is one name.

    `is_tracked`: it is in a work tree, and what git tracks there is listed, too. Raises BadSnapshot with git's own
    words, and FileNotFoundError when there is no git.
    """
    if is_tracked:
        return _run(directory, ("-C", directory, *_LIST, "--cached"))
    import tempfile

    with tempfile.TemporaryDirectory(prefix="trainq-") as empty:  # git reads .gitignore in a repository only
        _run(directory, ("init", "--quiet", "--bare", empty))
        return _run(directory, ("-C", directory, f"--git-dir={empty}", f"--work-tree={directory}", *_LIST))


def _run(directory: str, words: Sequence[str]) -> Listed:
    import subprocess

    try:
        done = subprocess.run(
            ["git", *words], stdin=subprocess.DEVNULL, capture_output=True, env=environment(), timeout=LIST_LIMIT_S, check=False
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        said = f"no answer for {LIST_LIMIT_S:g} s"
    else:
        lines = [printable(line) for line in os.fsdecode(done.stderr).strip().split("\n")]
        if not done.returncode:
            shut = [line.removeprefix(_WARNING) for line in lines if line.startswith(_SHUT)]
            return Listed([os.fsdecode(name) for name in done.stdout.split(b"\0") if name], shut)
        said = lines[0] or f"exit {done.returncode}"
    raise BadSnapshot(f"git does not tell which files there are in {printable(directory)}: {said}", hint="git status")
