"""Training sets: packed with zstd, byte exact, of any size, in bounded memory.

A set whose packed form is small goes into a column of the database (`Packed.stored`); a larger one stands in
`data/<sha256>.zst` (`Packed.file`). What must stay true: a name in `data/` is given to a complete and synced
file only; what `unpack` has given a name is exactly what was packed, or nothing is given.

The digest is that of the raw bytes, so the same set is stored once. A file that is there already is written
again and replaced: that heals a damaged one, and makes its age start anew, so that the janitor (which deletes
only what no row names and what is older than `file_grace`) does not take it before the row is committed. A
submit looks with `stands` inside its transaction: from then on a row names it.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple

from trainq.base import crash, files, oserrors, trees, words
from trainq.base.errors import BadData, Damaged, TrainqError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import BinaryIO

    from trainq.artifacts.paths import Paths

COLUMN_LIMIT = 1 << 20
"""Packed bytes up to which a set goes into its column."""

_LEVEL = 3


class Packed(NamedTuple):
    """A training set as it is kept: digest and size of the raw bytes, and where the packed ones are."""

    sha256: str
    size: int
    stored: bytes | None
    """The packed bytes, or None if they are in `file`."""
    file: str | None
    stored_size: int
    raw: bytes | None
    """The raw bytes, if the caller asked for them and they were few enough."""


def pack(source: str, paths: Paths, *, column_limit: int = COLUMN_LIMIT, raw_limit: int = 0) -> Packed:
    """Read the file of a user once, pack it, and make it durable unless it is small enough for a column.

    `raw_limit`: also give back the raw bytes of a set of at most so many (for a digest of its content).
    Raises `BadData` if the source is missing, unreadable, no regular file, or changes while it is read; the
    errors of sick storage if `data/` cannot take it. After an error nothing but a temporary name can be left.
    """
    fd = _open_source(source)
    try:
        return _pack(_Source(fd, source, raw_limit), paths, column_limit)
    finally:
        os.close(fd)


def pack_bytes(data: bytes, paths: Paths, *, column_limit: int = COLUMN_LIMIT) -> Packed:
    """As `pack`, for what is already in memory (stdin of a job, a test)."""
    import hashlib

    import zstandard

    packed = zstandard.ZstdCompressor(level=_LEVEL).compress(data)
    sha256 = hashlib.sha256(data).hexdigest()
    if len(packed) <= column_limit:
        return Packed(sha256, len(data), packed, None, len(packed), None)
    file = paths.training_set(sha256)
    with oserrors.reporting(file):
        files.write_durably(file, packed)
    return Packed(sha256, len(data), None, file, len(packed), None)


def _open_source(source: str) -> int:
    if "\0" in source:
        raise BadData(f"training set {words.printable(source.replace(chr(0), '?'))} cannot be a file name")
    try:
        return files.open_regular(source, follow=True)
    except TrainqError as error:
        # The file is the user's, not ours: their data is to blame, not the queue.
        raise BadData(f"training set {error.message}") from error
    except OSError as error:
        said = (error.strerror or str(error)).lower()
        raise BadData(f"training set {words.printable(source)} cannot be read: {said}") from error


class _Source:
    """The blocks of a file that must not change while it is read."""

    def __init__(self, fd: int, path: str, raw_limit: int) -> None:
        import hashlib

        self._fd = fd
        self._path = path
        self._before = os.fstat(fd)
        self._digest = hashlib.sha256()
        self._kept: list[bytes] | None = [] if self._before.st_size <= raw_limit else None
        self.expected = self._before.st_size

    def blocks(self) -> Iterator[bytes]:
        seen = 0
        try:
            for block in files.blocks(self._fd, self._path):
                seen += len(block)
                if seen > self.expected:
                    break
                self._digest.update(block)
                if self._kept is not None:
                    self._kept.append(block)
                yield block
        except TrainqError as error:
            raise BadData(f"training set {error.message}") from error
        after = os.fstat(self._fd)
        if seen != self.expected or after.st_mtime_ns != self._before.st_mtime_ns:
            raise BadData(
                f"training set {words.printable(self._path)} changed while it was read",
                hint="wait until it is written, then submit again",
            )

    def sha256(self) -> str:
        return self._digest.hexdigest()

    def raw(self) -> bytes | None:
        return None if self._kept is None else b"".join(self._kept)


def _pack(source: _Source, paths: Paths, column_limit: int) -> Packed:
    chunks = _compressed(source)
    head = bytearray()
    for chunk in chunks:
        head += chunk
        if len(head) > column_limit:
            break
    else:
        return Packed(source.sha256(), source.expected, bytes(head), None, len(head), source.raw())
    with oserrors.reporting(paths.data), files.NewFile(paths.data) as new:
        new.write(head)
        for chunk in chunks:
            new.write(chunk)
        crash.point("pack.written")
        sha256 = source.sha256()
        file = paths.training_set(sha256)
        new.publish(file)
        crash.point("pack.published")
        return Packed(sha256, source.expected, None, file, new.size, source.raw())


def _compressed(source: _Source) -> Iterator[bytes]:
    import zstandard

    packer = zstandard.ZstdCompressor(level=_LEVEL).compressobj(size=source.expected)
    for block in source.blocks():
        yield packer.compress(block)
    yield packer.flush()


def stands(file: str) -> bool:
    """Whether a packed set is there; asked inside the transaction that will name it."""
    return files.is_there(file)


def unpack(stored: bytes | str, target: str, sha256: str, size: int) -> None:
    """Write a set's raw bytes to `target` (0600, not synced), from a column's bytes or a file in `data/`.

    `Damaged` if what comes out is not exactly what was packed, or is gone: then `target` is as it was.
    """
    import io

    if isinstance(stored, bytes):
        _unpack(io.BytesIO(stored), target, sha256, size)
        return
    try:
        fd = files.open_regular(stored)
    except FileNotFoundError as error:
        raise Damaged(f"training set {words.printable(stored)} is gone") from error
    with os.fdopen(fd, "rb", buffering=0) as file, oserrors.reporting(stored):
        _unpack(file, target, sha256, size)


def _unpack(packed: BinaryIO, target: str, sha256: str, size: int) -> None:
    import hashlib

    import zstandard

    digest = hashlib.sha256()
    with oserrors.reporting(target), files.NewFile(os.path.dirname(target)) as new:
        try:
            # Read by the block: a damaged frame may claim to be of any size, and must not fill the memory.
            with zstandard.ZstdDecompressor().stream_reader(packed) as reader:
                while new.size <= size and (block := reader.read(files.BLOCK)):
                    digest.update(block)
                    new.write(block)
        except zstandard.ZstdError as error:
            raise Damaged(f"training set {sha256[:12]} cannot be unpacked: {error}") from error
        if new.size != size or digest.hexdigest() != sha256:
            raise Damaged(f"training set {sha256[:12]} is not what was submitted: size or digest differ")
        new.publish(target, durable=False)


def drop(paths: Paths, sha256: str) -> bool:
    """Delete a set that no row names (the caller has looked, under the gate); false if it was gone."""
    file = paths.training_set(sha256)
    with oserrors.reporting(file):
        return files.remove(file)


class Kept(NamedTuple):
    """One file in `data/`: its digest (None for what a crash left), path, and time of writing."""

    sha256: str | None
    path: str
    written_at: float


def kept(paths: Paths) -> Iterator[Kept]:
    """Every file in `data/`, for the janitor, who compares with the rows and with the age."""
    try:
        found = trees.listed(paths.data)
    except FileNotFoundError:
        return
    for name, kind in found:
        path = os.path.join(paths.data, name)
        if kind != "file" or not (files.is_temporary(name) or name.endswith(".zst")):
            continue
        if (found_now := files.status(path)) is not None:
            yield Kept(None if files.is_temporary(name) else name.removesuffix(".zst"), path, found_now.st_mtime)
