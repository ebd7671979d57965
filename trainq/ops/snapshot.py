"""Freezing the code of a job at its submit: which files belong to it, and what the user should hear.

`git`: the whole work tree, as it is now, with what nobody has added yet, without what git ignores. `copy`: what lies
below the working directory, without what git would ignore. Never the queue itself, and nothing that git or Python keep
for themselves.
"""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING, Any, NamedTuple

from trainq.artifacts import snapshots
from trainq.artifacts.snapshots import Source
from trainq.base import git, trees, words
from trainq.base.errors import BadSnapshot, TrainqError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from trainq.ops.queue import Queue

_OWN = frozenset({".git", ".trainq", "__pycache__"})
_MOST_NOTES = 5
_HINT = "chmod, or name it in .gitignore"


class Snapshot(NamedTuple):
    """Frozen code: what the document says of it, and what its files are called seen from the top."""

    top: str
    cwd: str
    names: frozenset[str]
    document: dict[str, Any]
    notes: tuple[str, ...]

    def remarks(self, argv: Sequence[str]) -> tuple[str, ...]:
        """Of the words of a command: those that name a file here which is not frozen, and those that lead out of what is."""
        return tuple(filter(None, map(self._remark, argv[:100])))

    def _remark(self, word: str) -> str | None:
        meant = os.path.normpath(os.path.join(self.cwd, word))
        if word.startswith("-") or not os.path.isfile(meant):
            return None
        name = words.printable(word)
        path = os.path.join(os.path.realpath(os.path.dirname(meant)), os.path.basename(meant))
        inside = os.path.relpath(path, self.top)
        if os.path.isabs(word):
            here = words.printable(os.path.relpath(path, self.cwd))
            later = f"{name} is the file as it will be then, not the frozen one; name it {here}"
            return later if inside in self.names else None
        is_lost = inside not in self.names if _is_inside(path, self.top) else not _is_inside(meant, self.top)
        return (
            f"{name} is not in the snapshot; name it {words.printable(meant)} to use it as it will be then"
            if is_lost
            else None
        )


def _is_inside(path: str, top: str) -> bool:
    return path.startswith(os.path.join(top, ""))


def take(queue: Queue, cwd: str, work_tree: str | None, how: str) -> Snapshot:
    """Freeze the code of jobs that run in `cwd`, a real path in this work tree. On the disk on return.

    Raises BadSnapshot, and the errors of sick storage.
    """
    if how == "git" and work_tree is None:
        raise BadSnapshot(f"{words.printable(cwd)} is in no git work tree", hint="--snapshot copy")
    top = work_tree if how == "git" and work_tree is not None else cwd
    root = os.path.realpath(queue.paths.root)
    if top == root:
        raise BadSnapshot(f"{words.printable(top)} is the queue's own directory", hint="submit from where the code is")
    looked = _Look(top, root)
    sources = list(looked.sources(is_tracked=work_tree is not None, is_git=how == "git"))
    if not sources:
        raise BadSnapshot(f"there is no file to freeze in {words.printable(top)}", hint="what does .gitignore say?")
    packed = snapshots.pack(top, sources, queue.paths, queue.settings.limits.snapshot_size)
    below = os.path.relpath(cwd, top)
    document = {
        "snapshot": packed.sha256, "size": packed.size, "top": top, "below": None if below == "." else below,
    }  # fmt: skip
    return Snapshot(top, cwd, frozenset(source.name for source in sources), document, looked.notes())


class _Look:
    """The files below a directory that are to be frozen, and what is there besides."""

    def __init__(self, top: str, root: str) -> None:
        self._top = top
        self._root = (
            root if _is_inside(root, top) else None
        )  # a frozen job that freezes its own code is inside the root
        self._strange: list[str] = []
        self._shut: list[str] = []
        self._behind_link: dict[str, bool] = {}

    def notes(self) -> tuple[str, ...]:
        """What is neither file nor link, and where git could not look."""
        shown = ", ".join(map(words.printable, self._strange[:_MOST_NOTES]))
        more = ", …" if len(self._strange) > _MOST_NOTES else ""
        strange = f"left out of the snapshot, being neither files nor links: {shown}{more}"
        shut = [f"left out of the snapshot: git {words}" for words in self._shut[:_MOST_NOTES]]
        return (*((strange,) if shown else ()), *shut)

    def sources(self, *, is_tracked: bool, is_git: bool) -> Iterator[Source]:
        """What git names; without git, all there is. Raises BadSnapshot."""
        try:
            yield from self._named_by_git("", is_tracked=is_tracked)
        except FileNotFoundError:
            if is_git:
                raise BadSnapshot("git is not installed", hint="--snapshot copy") from None
            yield from self._all()

    def _named_by_git(self, inside: str, *, is_tracked: bool) -> Iterator[Source]:
        listed = git.files(os.path.join(self._top, inside), is_tracked=is_tracked)
        self._shut += listed.shut
        for each in sorted(set(listed.names)):
            name = os.path.join(inside, each.rstrip("/"))
            source = self._source(name)
            if source is None or self._is_behind_link(name):
                continue
            if not stat.S_ISDIR(source.found.st_mode):
                yield source
            elif os.path.lexists(os.path.join(self._top, name, ".git")):  # a submodule, or one that nobody has added
                yield from self._named_by_git(name, is_tracked=True)

    def _is_behind_link(self, name: str) -> bool:
        """Whether a link stands in the place of a directory above: what is tracked there git takes for deleted."""
        above = os.path.join(self._top, os.path.dirname(name))
        if above not in self._behind_link:
            self._behind_link[above] = os.path.realpath(above) != os.path.normpath(above)
        return self._behind_link[above]

    def _all(self) -> Iterator[Source]:
        waiting = [""]
        while waiting:
            inside = waiting.pop()
            try:
                found = trees.listed(os.path.join(self._top, inside))
            except FileNotFoundError:
                continue
            except (TrainqError, OSError) as error:
                raise BadSnapshot(f"{error}; nothing is frozen", hint="chmod, or --snapshot git") from error
            for each, _ in found:
                source = self._source(os.path.join(inside, each))
                if source is not None and stat.S_ISDIR(source.found.st_mode):
                    waiting.append(source.name)
                elif source is not None:
                    yield source

    def _source(self, name: str) -> Source | None:
        """What has this name, unless it is gone, no part of the code, or cannot be frozen."""
        path = os.path.join(self._top, name)
        is_queue = self._root is not None and (path == self._root or _is_inside(path, self._root))
        if is_queue or not _OWN.isdisjoint(name.split("/")):
            return None
        try:
            found = os.lstat(path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            said = (error.strerror or str(error)).lower()
            raise BadSnapshot(f"{words.printable(path)} cannot be frozen: {said}", hint=_HINT) from error
        if not (stat.S_ISREG(found.st_mode) or stat.S_ISLNK(found.st_mode) or stat.S_ISDIR(found.st_mode)):
            self._strange.append(name)
            return None
        return Source(name, found)
