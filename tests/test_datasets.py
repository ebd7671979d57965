"""Training sets: byte exact, of any size, in bounded memory; a name in data/ is a complete set."""

from __future__ import annotations

import hashlib
import json
import os
import random
import re
import resource
import signal
import subprocess
import sys

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from trainq.artifacts import datasets
from trainq.artifacts.paths import Paths
from trainq.base import files, oserrors
from trainq.base.errors import BadData, BadValue, Damaged, DiskFull

MIB = 1 << 20


def a_root(directory: str) -> Paths:
    paths = Paths(directory)
    os.makedirs(paths.data)
    return paths


@pytest.fixture
def paths(tmp_path):
    """A root whose path is 200 characters long, with spaces and letters outside of ASCII."""
    return a_root(f"{tmp_path}/" + "a root ünï".ljust(200, "x"))


@pytest.fixture
def source(tmp_path):
    """Writes a file of the user and gives its path."""

    def write(data: bytes, name: str = "set.bin") -> str:
        path = tmp_path / name
        path.write_bytes(data)
        return str(path)

    return write


def noise(size: int, seed: int = 0) -> bytes:
    """Bytes that do not get smaller."""
    return random.Random(seed).randbytes(size)


def back(packed: datasets.Packed, tmp_path) -> bytes:
    target = f"{tmp_path}/back"
    datasets.unpack(packed.stored or packed.file, target, packed.sha256, packed.size)
    with open(target, "rb") as file:
        return file.read()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50, deadline=None)
@given(data=st.binary(max_size=5000))
def test_any_bytes_come_back(paths, tmp_path, source, data):
    """Q02: any bytes come back exactly, from the column and from a file."""
    path = source(data)
    small = datasets.pack(path, paths)
    assert small.file is None
    assert (small.sha256, small.size, small.stored_size) == (
        hashlib.sha256(data).hexdigest(),
        len(data),
        len(small.stored),
    )
    large = datasets.pack(path, paths, column_limit=0)
    assert large.stored is None
    assert os.path.getsize(large.file) == large.stored_size
    assert back(small, tmp_path) == back(large, tmp_path) == data
    assert datasets.pack_bytes(data, paths)[:3] == (
        small.sha256,
        small.size,
        datasets.pack_bytes(data, paths).stored,
    )


def test_sixty_four_mebibytes(paths, tmp_path, source):
    """Q02: a JSON file of 64 MiB comes back exactly, and what is stored is smaller."""
    rng = random.Random(1)
    row = [json.dumps({"text": f"row {rng.random()}", "label": rng.randrange(9)}).encode() for _ in range(50_000)]
    data = b"[" + b",\n".join(row * 40)[: 64 * MIB - 2] + b"]"
    packed = datasets.pack(source(data, "big.json"), paths)
    assert packed.size >= 64 * MIB - 1
    assert packed.file == f"{paths.data}/{hashlib.sha256(data).hexdigest()}.zst"
    assert os.path.getsize(packed.file) == packed.stored_size < packed.size
    assert back(packed, tmp_path) == data
    assert os.stat(packed.file).st_mode & 0o777 == 0o600


def test_memory_is_bounded(paths, tmp_path):
    """A set of any size is streamed: 400 MB go through a process that may not have that much memory."""
    source = f"{tmp_path}/set"
    with open(source, "wb") as file:
        file.writelines(noise(MIB, n) * 20 for n in range(20))
    code = """if 1:
        import sys, resource
        from trainq.artifacts import datasets
        from trainq.artifacts.paths import Paths
        import zstandard, hashlib
        resource.setrlimit(resource.RLIMIT_DATA, (150 << 20, 150 << 20))
        p = datasets.pack(sys.argv[1], Paths(sys.argv[2]), raw_limit=1 << 20)
        assert p.raw is None and p.file
        datasets.unpack(p.file, sys.argv[3], p.sha256, p.size)
    """
    done = subprocess.run(
        [sys.executable, "-c", code, source, paths.root, f"{tmp_path}/back"], capture_output=True, text=True
    )
    assert done.stderr == ""
    assert subprocess.run(["cmp", source, f"{tmp_path}/back"]).returncode == 0


def test_raw_bytes_are_given_on_request(paths, source):
    """For a digest of the content the raw bytes come with it, up to the limit, from the same one reading."""
    path = source(b'{"a": 1}')
    assert datasets.pack(path, paths).raw is None
    assert datasets.pack(path, paths, raw_limit=8).raw == b'{"a": 1}'
    assert datasets.pack(path, paths, raw_limit=7).raw is None
    assert datasets.pack(path, paths, raw_limit=8, column_limit=0).raw == b'{"a": 1}'


def test_the_same_set_is_stored_once_and_healed(paths, tmp_path, source):
    """Packing again gives the same name; a damaged file under it is replaced, and its age starts anew."""
    path = source(noise(3 * MIB))
    packed = datasets.pack(path, paths)
    with open(packed.file, "r+b") as file:
        file.truncate(100)
    os.utime(packed.file, (0, 0))
    assert datasets.pack(path, paths)[:5] == packed[:5]
    assert os.listdir(paths.data) == [os.path.basename(packed.file)]
    assert os.stat(packed.file).st_mtime > 0
    assert len(back(packed, tmp_path)) == 3 * MIB


@pytest.mark.parametrize(
    "name", ["none", "a directory", "pipe", "shut", "no\0name", "none/below", "loop", "/dev/zero", "x" * 300]
)
def test_what_cannot_be_read_is_refused(paths, tmp_path, name):
    """Missing, unreadable and special files are refused in one line that names them; nothing is stored."""
    os.mkdir(tmp_path / "a directory")
    os.mkfifo(tmp_path / "pipe")
    os.symlink("loop", tmp_path / "loop")
    (tmp_path / "shut").touch(0o000)
    if name == "shut" and os.geteuid() == 0:
        pytest.skip("root may read everything")
    with pytest.raises(BadData) as told:
        datasets.pack(os.path.join(str(tmp_path), name), paths)
    assert told.value.exit == 2
    assert "\n" not in told.value.message
    assert os.path.basename(name).split("\0")[0] in told.value.message
    assert os.listdir(paths.data) == []


def test_a_link_of_the_user_is_followed(paths, tmp_path, source):
    """The user may name their data by a link: only files of the queue are opened without following."""
    source(b"abc")
    os.symlink("set.bin", tmp_path / "link")
    assert datasets.pack(f"{tmp_path}/link", paths).size == 3


@pytest.mark.parametrize("change", ["grow", "shrink", "touch"])
def test_a_file_that_changes_is_refused(paths, source, monkeypatch, change):
    """A set that changes while it is read is refused: what would be stored was never on the disk at one time."""
    path = source(noise(3 * MIB))
    reads = files.blocks

    def meddle(fd, name):
        for n, block in enumerate(reads(fd, name)):
            yield block
            if n == 1:
                if change == "touch":
                    os.utime(path, (1, 1))
                else:
                    os.truncate(path, (5 if change == "grow" else 1) * MIB)

    monkeypatch.setattr(files, "blocks", meddle)
    with pytest.raises(BadData, match="changed while it was read"):
        datasets.pack(path, paths)
    assert os.listdir(paths.data) == []


@pytest.mark.parametrize("column_limit", [0, datasets.COLUMN_LIMIT])
@pytest.mark.parametrize("harm", ["cut", "flip", "grow", "other", "empty", "bomb"])
def test_a_damaged_set_is_never_given(paths, tmp_path, source, harm, column_limit):
    """Whatever happened to the packed bytes: `Damaged`, the target is as it was, and no name is left behind."""
    import zstandard

    packed = datasets.pack(source(noise(50_000)), paths, column_limit=column_limit)
    data = packed.stored or files.read_bytes(packed.file)
    harmed = {
        "cut": data[:-1000],
        "flip": data[:20_000] + bytes([data[20_000] ^ 1]) + data[20_001:],
        "grow": zstandard.compress(noise(50_000) + b"x"),
        "other": zstandard.compress(noise(50_000, 7)),
        "empty": b"",
        "bomb": zstandard.compress(bytes(64 * MIB)),
    }[harm]
    stored: bytes | str = harmed
    if packed.file:
        files.write_durably(packed.file, harmed)
        stored = packed.file
    os.mkdir(tmp_path / "run")
    (tmp_path / "run" / "data").write_bytes(b"before")
    with pytest.raises(Damaged):
        datasets.unpack(stored, f"{tmp_path}/run/data", packed.sha256, packed.size)
    assert os.listdir(tmp_path / "run") == ["data"]
    assert (tmp_path / "run" / "data").read_bytes() == b"before"


def test_a_bomb_fills_no_disk(tmp_path, monkeypatch):
    """A damaged frame that unpacks to far more than was submitted is given up early."""
    import zstandard

    written = []
    monkeypatch.setattr(oserrors, "_fail", written.append)
    with pytest.raises(Damaged):
        datasets.unpack(zstandard.compress(bytes(64 * MIB)), f"{tmp_path}/back", "ab" * 32, 1000)
    assert len(written) < 5


def test_a_set_that_is_gone_is_named(paths, source, tmp_path):
    """A missing file is `Damaged` and says which; dropping twice is no error."""
    packed = datasets.pack(source(noise(2 * MIB)), paths)
    assert datasets.stands(packed.file)
    assert datasets.drop(paths, packed.sha256) is True
    assert datasets.drop(paths, packed.sha256) is False
    assert not datasets.stands(packed.file)
    with pytest.raises(Damaged, match=packed.sha256):
        datasets.unpack(packed.file, f"{tmp_path}/back", packed.sha256, packed.size)
    with pytest.raises(BadValue):
        datasets.drop(paths, "../../etc/passwd")


def test_every_step_may_fail(paths, source, tmp_path, monkeypatch):
    """A full disk at any step: the error of a full disk (or of the user's file), no set and no leftover."""
    path = source(noise(3 * MIB))
    errors = []
    for n in range(1, 60):
        monkeypatch.setenv("TRAINQ_FAULT", f"ENOSPC:{n}+")
        monkeypatch.setattr(oserrors, "_fail", oserrors._armed())
        try:
            packed = datasets.pack(path, paths)
        except (DiskFull, BadData) as error:
            errors.append(type(error))
            left = os.listdir(paths.data)
            # After the rename only the directory's sync can fail: then a whole set stands that no row names.
            assert all(re.fullmatch(r"[0-9a-f]{64}\.zst", name) for name in left)
        else:
            break
    monkeypatch.setattr(oserrors, "_fail", None)
    assert errors.count(DiskFull) > 5
    assert back(packed, tmp_path) == noise(3 * MIB)


def test_a_full_disk_while_unpacking(paths, source, tmp_path, monkeypatch):
    """The run directory may be full: the error says so and names the target."""
    packed = datasets.pack(source(noise(2 * MIB)), paths)
    monkeypatch.setattr(oserrors, "_fail", None)
    for n in range(1, 60):
        monkeypatch.setenv("TRAINQ_FAULT", f"ENOSPC:{n}")
        monkeypatch.setattr(oserrors, "_fail", oserrors._armed())
        try:
            datasets.unpack(packed.file, f"{tmp_path}/back", packed.sha256, packed.size)
        except DiskFull:
            assert not os.path.exists(f"{tmp_path}/back")
        else:
            break
    assert n > 4


def test_a_real_limit_on_file_size(paths, source):
    """A real refusal by the kernel in the middle of a write: an error, not a traceback, and nothing left."""
    path = source(noise(3 * MIB))
    code = """if 1:
        import sys, resource, signal
        from trainq.artifacts import datasets
        from trainq.artifacts.paths import Paths
        from trainq.base.errors import TrainqError
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (2 << 20, 2 << 20))
        try:
            datasets.pack(sys.argv[1], Paths(sys.argv[2]))
        except TrainqError as error:
            sys.exit(error.exit)
    """
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] != 2 * MIB
    assert subprocess.run([sys.executable, "-c", code, path, paths.root]).returncode == 6
    assert os.listdir(paths.data) == []


@pytest.mark.parametrize("point", ["pack.written", "pack.published"])
def test_killed_while_packing(paths, source, tmp_path, point):
    """Killed before the name is given, only a temporary name stays, which `kept` shows; after it, a whole set."""
    path = source(noise(3 * MIB))
    code = (
        "import sys; from trainq.artifacts import datasets, paths; datasets.pack(sys.argv[1], paths.Paths(sys.argv[2]))"
    )
    died = subprocess.run([sys.executable, "-c", code, path, paths.root], env={**os.environ, "TRAINQ_CRASH": point})
    assert died.returncode == -signal.SIGKILL
    (found,) = datasets.kept(paths)
    assert found.written_at > 0
    if point == "pack.written":
        assert files.is_temporary(os.path.basename(found.path))
        assert found.sha256 is None
    else:
        datasets.unpack(found.path, f"{tmp_path}/back", found.sha256, 3 * MIB)
    packed = datasets.pack(path, paths)
    assert back(packed, tmp_path) == noise(3 * MIB)


def test_what_is_not_ours_is_not_listed(paths):
    """`kept` lists sets and leftovers only; without the directory nothing."""
    os.mkdir(f"{paths.data}/mine")
    open(f"{paths.data}/notes.txt", "w").close()
    assert list(datasets.kept(paths)) == []
    assert list(datasets.kept(Paths("/nonexistent"))) == []
