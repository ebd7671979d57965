"""Frozen code: the files of a directory in one archive, `snapshots/<sha256>.tar.zst`, and a job's own copy of them.

What must stay true: a name in `snapshots/` is given to a complete and synced file only; what `unpack` returns from is
exactly what was packed, or it raises and leaves nothing. The digest is that of the archive before it is compressed, and
the archive of the same files is the same to the byte (sorted, without times and owners): so equal code is stored once.
As with training sets, one that is there already is replaced: that heals a damaged one and makes its age start anew.

Who may write in `snapshots/` can put any archive there. So nothing of one is written outside the directory that it is
unpacked into, nor more of it than was packed, and nothing is run of one whose digest is another.
"""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING, NamedTuple

from trainq.base import crash, files, oserrors, trees, words
from trainq.base.errors import BadSnapshot, Damaged, TrainqError
from trainq.base.units import show_size

if TYPE_CHECKING:
    import hashlib
    import tarfile
    from collections.abc import Iterator, Sequence
    from typing import IO

    from trainq.artifacts.paths import Paths

SUFFIX = ".tar.zst"
MOST_FILES = 50_000
_LEVEL = 3
_DIGITS = 64
_HEX = frozenset("0123456789abcdef")
_SHOWN = 3
_TRIES = 2


class Source(NamedTuple):
    """A file or link to freeze: its name seen from the top, and what `lstat` said of it."""

    name: str
    found: os.stat_result


class Packed(NamedTuple):
    """An archive that stands in `snapshots/`: digest and size before it was compressed."""

    sha256: str
    size: int


def pack(top: str, sources: Sequence[Source], paths: Paths, limit: int) -> Packed:
    """Freeze these files of the directory `top`, a real path; what has vanished is left out. On the disk on return.

    Raises BadSnapshot for more than `limit` bytes, too many files, and what cannot be read or does not hold still; the
    errors of sick storage. After an error nothing but a temporary name can be left.
    """
    _require_few(top, sources, limit)
    with oserrors.reporting(paths.snapshots), files.NewFile(paths.snapshots) as new:
        archive = _Archive(new)
        for source in sorted(sources, key=lambda source: os.fsencode(source.name)):
            archive.add(top, source, limit)
        packed = archive.close()
        crash.point("snapshot.written")
        new.publish(paths.snapshot(packed.sha256))
        crash.point("snapshot.published")
    return packed


def _require_few(top: str, sources: Sequence[Source], limit: int) -> None:
    where = words.printable(top)
    if len(sources) > MOST_FILES:
        raise BadSnapshot(
            f"{where} has {len(sources)} files to freeze, more than {MOST_FILES}", hint="name some in .gitignore"
        )
    total = sum(source.found.st_size for source in sources)
    if total > limit:
        biggest = sorted(sources, key=lambda source: -source.found.st_size)[:_SHOWN]
        named = ", ".join(f"{words.printable(source.name)} ({show_size(source.found.st_size)})" for source in biggest)
        raise _too_large(top, total, limit, f"; the biggest: {named}")


def _too_large(top: str, total: int, limit: int, more: str = "") -> BadSnapshot:
    return BadSnapshot(
        f"the code in {words.printable(top)} is {show_size(total)}, more than {show_size(limit)}{more}",
        hint="name what is no code in .gitignore, or raise [limits] snapshot_size",
    )


class _Archive:
    """A tar that is hashed and compressed while it is written."""

    def __init__(self, new: files.NewFile) -> None:
        import hashlib
        import tarfile

        import zstandard

        self._new = new
        self._digest = hashlib.sha256()
        self._packer = zstandard.ZstdCompressor(level=_LEVEL).compressobj()
        self._size = 0
        self._content = 0
        self._tar = tarfile.TarFile(
            fileobj=self, mode="w", format=tarfile.GNU_FORMAT, encoding="utf-8", errors="surrogateescape"  # type: ignore[arg-type]
        )  # fmt: skip

    def write(self, data: bytes) -> int:
        """For the tar."""
        self._digest.update(data)
        self._size += len(data)
        if packed := self._packer.compress(data):
            self._new.write(packed)
        return len(data)

    def tell(self) -> int:
        """For the tar."""
        return self._size

    def add(self, top: str, source: Source, limit: int) -> None:
        import io
        import tarfile

        info = tarfile.TarInfo(source.name)
        path = os.path.join(top, source.name)
        if stat.S_ISLNK(source.found.st_mode):
            target = _read_link(top, path)
            if target is None:
                return
            info.type, info.linkname, info.mode = tarfile.SYMTYPE, target, 0o777
            self._tar.addfile(info)
            return
        read = _read(path)
        if read is None:
            return
        data, is_program = read
        self._content += len(data)
        if self._content > limit:
            raise _too_large(top, self._content, limit)  # some grew since they were looked at
        info.size, info.mode = len(data), 0o755 if is_program else 0o644
        self._tar.addfile(info, io.BytesIO(data))

    def close(self) -> Packed:
        self._tar.close()
        self._new.write(self._packer.flush())
        return Packed(self._digest.hexdigest(), self._size)


def _read_link(top: str, path: str) -> str | None:
    """Where a link leads, None if it is gone. One that leads out of the tree means the same place when it is elsewhere."""
    try:
        target = os.readlink(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _unreadable(path, (error.strerror or str(error)).lower()) from error
    meant = os.path.join(os.path.dirname(path), target)
    is_inside = os.path.join(os.path.normpath(meant), "").startswith(os.path.join(top, ""))
    return target if is_inside or os.path.isabs(target) else meant


def _read(path: str) -> tuple[bytes, bool] | None:
    """A file's bytes and whether it can be executed, None if it is gone. It must hold still: an editor may be at it."""
    for _ in range(_TRIES):
        try:
            fd = files.open_regular(path)
        except FileNotFoundError:
            return None
        except TrainqError as error:
            raise BadSnapshot(f"{error.message}; nothing is frozen", hint="chmod, or name it in .gitignore") from error
        except OSError as error:  # it was a file a moment ago
            raise _unreadable(path, (error.strerror or str(error)).lower()) from error
        try:
            before = os.fstat(fd)
            data = b"".join(_blocks(fd, path, before.st_size))
            after = os.fstat(fd)
        except TrainqError as error:
            raise _unreadable(path, error.message) from error
        finally:
            os.close(fd)
        if len(data) == before.st_size == after.st_size and before.st_mtime_ns == after.st_mtime_ns:
            return data, bool(before.st_mode & stat.S_IXUSR)
    raise _unreadable(path, "it changes while it is read")


def _blocks(fd: int, path: str, expected: int) -> Iterator[bytes]:
    """The blocks of a file, up to the first one too many: one that is written as fast as it is read would have no end."""
    seen = 0
    for block in files.blocks(fd, path):
        yield block
        seen += len(block)
        if seen > expected:
            return


def _unreadable(path: str, why: str) -> BadSnapshot:
    return BadSnapshot(
        f"{words.printable(path)} cannot be frozen: {why}", hint="name it in .gitignore, or submit again"
    )


def stands(paths: Paths, sha256: str) -> bool:
    """Whether an archive is there; asked inside the transaction that will name it."""
    return files.is_there(paths.snapshot(sha256))


def unpack(paths: Paths, sha256: str, size: int, target: str) -> None:
    """Make `target` a new directory with what was frozen (not synced), over what stands there.

    `Damaged` if the archive is gone or not exactly what was packed: then there is no `target`.
    """
    file = paths.snapshot(sha256)
    try:
        fd = files.open_regular(file)
    except FileNotFoundError as error:
        raise Damaged(f"snapshot {words.printable(file)} is gone") from error
    with os.fdopen(fd, "rb", buffering=0) as packed, oserrors.reporting(target):
        trees.remove_tree(target)
        trees.make_own_directory(target)
        try:
            _unpack(packed, sha256, size, target)
        except BaseException:
            trees.remove_tree(target)
            raise


def _unpack(packed: IO[bytes], sha256: str, size: int, target: str) -> None:
    """Write what an archive holds. Raises Damaged for what is none, or another one."""
    import tarfile

    import zstandard

    try:
        with zstandard.ZstdDecompressor().stream_reader(packed) as reader:
            source = _Bounded(reader, size)
            with tarfile.open(fileobj=source, mode="r|", encoding="utf-8", errors="surrogateescape") as tar:  # type: ignore[call-overload]
                _extract(tar, target)
            found = source.rest()
    except (zstandard.ZstdError, tarfile.TarError, ValueError, EOFError) as error:
        raise Damaged(f"snapshot {sha256[:12]} cannot be unpacked: {words.printable(str(error))}") from error
    if found != (size, sha256):
        raise Damaged(f"snapshot {sha256[:12]} is not what was submitted: size or digest differ")


class _Bounded:
    """What is read of an archive: hashed, and never more than it may be. By the block: a damaged frame may claim any size."""

    def __init__(self, reader: IO[bytes], size: int) -> None:
        import hashlib

        self._reader = reader
        self._most = size
        self._size = 0
        self._digest: hashlib._Hash = hashlib.sha256()

    def read(self, count: int) -> bytes:
        """For the tar."""
        block = self._reader.read(count)
        self._size += len(block)
        if self._size > self._most:
            raise EOFError("it is larger than it was")
        self._digest.update(block)
        return block

    def rest(self) -> tuple[int, str]:
        """Size and digest of all, once what follows the last member is read, too."""
        while self.read(files.BLOCK):
            pass
        return self._size, self._digest.hexdigest()


def _extract(tar: tarfile.TarFile, target: str) -> None:
    """Write the members below `target`, which nobody else writes in: each new, in directories that were made here."""
    directories = {""}
    for member in tar:
        parts = member.name.split("/")
        if not (member.isreg() or member.issym()) or not all(map(_is_plain, parts)):
            raise ValueError(f"{member.name!r} is not of our making")
        _make_above(target, parts, directories)
        path = os.path.join(target, member.name)
        try:
            if member.issym():
                files.symlink(member.linkname, path)
            else:
                _write(tar, member, path)
        except FileExistsError:
            raise ValueError(f"{member.name!r} stands there twice") from None


def _is_plain(part: str) -> bool:
    return part not in ("", ".", "..") and "\0" not in part


def _make_above(target: str, parts: list[str], directories: set[str]) -> None:
    """The directories above a member. One that stands there and is not ours may be a link, and is not gone through."""
    for end in range(1, len(parts)):
        name = "/".join(parts[:end])
        if name not in directories:
            try:
                is_new = trees.make_directory(os.path.join(target, name))
            except NotADirectoryError:
                is_new = False
            if not is_new:
                raise ValueError(f"{name!r} is no directory")
            directories.add(name)


def _write(tar: tarfile.TarFile, member: tarfile.TarInfo, path: str) -> None:
    fd = files.open_new(path, 0o755 if member.mode & 0o100 else 0o644)
    try:
        content = tar.extractfile(member)
        while content is not None and (block := content.read(files.BLOCK)):
            files.write_all(fd, block, path)
    finally:
        os.close(fd)


class Kept(NamedTuple):
    """An archive in `snapshots/`: its digest, path, and time of writing."""

    sha256: str
    path: str
    written_at: float


def kept(paths: Paths) -> Iterator[Kept]:
    """Every archive, for the janitor, who compares with the rows and with the age."""
    for name, kind in trees.listed(paths.snapshots):
        path = os.path.join(paths.snapshots, name)
        sha256 = name.removesuffix(SUFFIX)
        if kind != "file" or sha256 == name or len(sha256) != _DIGITS or not _HEX.issuperset(sha256):
            continue
        if (found := files.status(path)) is not None:
            yield Kept(sha256, path, found.st_mtime)


def drop(paths: Paths, sha256: str) -> bool:
    """Delete an archive that no row names (the caller has looked, under the gate); false if it was gone."""
    file = paths.snapshot(sha256)
    with oserrors.reporting(file):
        return files.remove(file)
