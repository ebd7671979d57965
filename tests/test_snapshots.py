"""Archives of frozen code: the same files make the same bytes, and nothing that somebody else has put there leads out."""

from __future__ import annotations

import hashlib
import io
import os
import tarfile

import pytest
import zstandard

from trainq.artifacts import snapshots
from trainq.artifacts.paths import Paths
from trainq.artifacts.snapshots import Source
from trainq.base import files
from trainq.base.errors import BadSnapshot, Damaged

LIMIT = 1 << 20


@pytest.fixture
def paths(tmp_path):
    paths = Paths(str(tmp_path / "root"))
    os.makedirs(paths.snapshots)
    return paths


@pytest.fixture
def top(tmp_path):
    top = tmp_path / "top"
    (top / "d").mkdir(parents=True)
    (top / "a.py").write_text("a")
    (top / "d/b.py").write_text("b")
    return top


def sources(top, *names):
    return [Source(name, os.lstat(top / name)) for name in names]


def put(paths, *members, rest=b""):
    """An archive of any members, (name, type, link or content): its digest and size."""
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for name, kind, more in members:
            info = tarfile.TarInfo(name)
            info.type = kind
            if kind == tarfile.REGTYPE:
                info.size = len(more)
                tar.addfile(info, io.BytesIO(more))
            else:
                info.linkname = more
                tar.addfile(info)
    data = raw.getvalue() + rest
    sha256 = hashlib.sha256(data).hexdigest()
    with open(paths.snapshot(sha256), "wb") as file:
        file.write(zstandard.compress(data))
    return sha256, len(data)


def test_the_same_files_are_the_same_archive(paths, top):
    """E15: by whatever order, owner and time; content, mode and name count."""
    one = snapshots.pack(str(top), sources(top, "a.py", "d/b.py"), paths, LIMIT)
    os.utime(top / "a.py", (1, 1))
    assert snapshots.pack(str(top), sources(top, "d/b.py", "a.py"), paths, LIMIT) == one
    os.chmod(top / "a.py", 0o755)
    assert snapshots.pack(str(top), sources(top, "a.py", "d/b.py"), paths, LIMIT) != one
    assert sorted(os.listdir(paths.snapshots)) == sorted(f"{kept.sha256}.tar.zst" for kept in snapshots.kept(paths))


def test_unpacked_over_what_a_first_try_left(paths, top, tmp_path):
    """E15: exactly what was packed, nothing more; its maker may write it, others may not."""
    one = snapshots.pack(str(top), sources(top, "a.py", "d/b.py"), paths, LIMIT)
    target = tmp_path / "code"
    (target / "d").mkdir(parents=True)
    (target / "d/more").write_text("")
    snapshots.unpack(paths, *one, str(target))
    assert sorted(path.name for path in target.rglob("*")) == ["a.py", "b.py", "d"]
    assert (os.stat(target).st_mode & 0o777, os.stat(target / "a.py").st_mode & 0o777) == (0o700, 0o644)


REG, SYM = tarfile.REGTYPE, tarfile.SYMTYPE
HOSTILE = {
    "above": [("../out", REG, b"x")],
    "above, deeper": [("a/../../out", REG, b"x")],
    "absolute": [("/tmp/trainq-out", REG, b"x")],
    "through a link": [("d", SYM, ".."), ("d/out", REG, b"x")],
    "over a link": [("d", SYM, "../out"), ("d", REG, b"x")],
    "through a file": [("d", REG, b""), ("d/out", REG, b"x")],
    "twice": [("d", REG, b"x"), ("d", REG, b"y")],
    "a hard link": [("d", tarfile.LNKTYPE, "../../top/a.py")],
    "a device": [("d", tarfile.CHRTYPE, "")],
    "a pipe": [("d", tarfile.FIFOTYPE, "")],
    "a directory": [("d", tarfile.DIRTYPE, "")],
    "no name": [("d//x", REG, b"")],
}


@pytest.mark.parametrize("what", HOSTILE)
def test_what_trainq_has_not_made_is_not_unpacked(paths, tmp_path, what):
    """DESIGN 8: even with the right digest, nothing is written but in the directory, and that is gone afterwards."""
    found = put(paths, *HOSTILE[what])
    with pytest.raises(Damaged):
        snapshots.unpack(paths, *found, str(tmp_path / "code"))
    assert sorted(os.listdir(tmp_path)) == ["root"]
    assert not os.path.exists("/tmp/trainq-out")


def test_more_than_was_packed_is_not_unpacked(paths, tmp_path):
    """DESIGN 8: an archive that swells fills no disk; nor does one that is shorter, or goes on after its end, pass."""
    sha256, size = put(paths, ("big", REG, bytes(8 << 20)))
    written = []
    for wrong, said in ((1 << 20, "larger than it was"), (size - 1, "larger than it was"), (size + 1, "not what was")):
        with pytest.raises(Damaged, match=said):
            snapshots.unpack(paths, sha256, wrong, str(tmp_path / "code"))
        written.append(os.path.exists(tmp_path / "code"))
    assert written == [False] * 3
    snapshots.unpack(paths, sha256, size, str(tmp_path / "code"))
    more = put(paths, ("a", REG, b"a"), rest=b"more")
    os.rename(paths.snapshot(more[0]), paths.snapshot(sha256))
    with pytest.raises(Damaged, match="not what was submitted"):
        snapshots.unpack(paths, sha256, size, str(tmp_path / "code"))
    assert not os.path.exists(tmp_path / "code")


@pytest.mark.parametrize("grows", [True, False])
def test_files_that_vanish_and_files_that_change(paths, top, monkeypatch, grows):
    """E15: what is gone is left out; what does not hold still is refused, and one look later it may."""
    found = sources(top, "a.py", "d/b.py")
    os.unlink(top / "a.py")
    assert snapshots.pack(str(top), found, paths, LIMIT) == snapshots.pack(str(top), found[1:], paths, LIMIT)
    blocks, tries = files.blocks, []

    def growing(fd, path):
        yield from blocks(fd, path)
        tries.append(path)
        if len(tries) < most:
            with open(path, "a" if grows else "r+", encoding="utf-8") as file:
                file.write("x")
            os.utime(path, (len(tries), len(tries)))  # the clock of a file system may stand still meanwhile

    monkeypatch.setattr(files, "blocks", growing)
    most = 2
    snapshots.pack(str(top), found, paths, LIMIT)
    most = 99
    there = os.listdir(paths.snapshots)
    with pytest.raises(BadSnapshot, match=r"d/b\.py cannot be frozen: it changes while it is read"):
        snapshots.pack(str(top), found, paths, LIMIT)
    assert os.listdir(paths.snapshots) == there


def test_a_file_without_an_end_is_refused(paths, top, monkeypatch):
    """E15: one that is written as fast as it is read, such as the log of a program that runs there."""
    found = sources(top, "a.py")
    blocks = files.blocks

    def endless(fd, path):
        while True:
            with open(path, "a", encoding="utf-8") as file:
                file.write("x" * 1000)
            yield next(blocks(fd, path))

    monkeypatch.setattr(files, "blocks", endless)
    with pytest.raises(BadSnapshot, match="changes while it is read"):
        snapshots.pack(str(top), found, paths, LIMIT)


def test_the_limits_hold(paths, top, monkeypatch):
    """E15: of all bytes, also of a file that grew since it was looked at, and of the number of files."""
    found = sources(top, "a.py", "d/b.py")
    (top / "d/b.py").write_text("b" * 100)
    with pytest.raises(BadSnapshot, match="101B, more than 50B"):
        snapshots.pack(str(top), found, paths, 50)
    monkeypatch.setattr(snapshots, "MOST_FILES", 1)
    with pytest.raises(BadSnapshot, match="2 files to freeze, more than 1"):
        snapshots.pack(str(top), found, paths, LIMIT)
    assert os.listdir(paths.snapshots) == []


def test_only_archives_are_kept_and_dropped(paths):
    """A name that trainq does not give is nobody's business here."""
    for name in (".new-0a", "x.tar.zst", f"{'0' * 64}.zst", f"{'A' * 64}.tar.zst"):
        with open(os.path.join(paths.snapshots, name), "wb"):
            pass
    sha256, _ = put(paths, ("a", REG, b"a"))
    assert [kept.sha256 for kept in snapshots.kept(paths)] == [sha256]
    assert [snapshots.drop(paths, sha256) for _ in range(2)] == [True, False]
