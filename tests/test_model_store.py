"""Model versions: whole or not there at all, whoever looks and whenever somebody is killed."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import socket
import subprocess
import sys

import pytest

from trainq.artifacts import models
from trainq.artifacts.manifest import MANIFEST, ModelError, read_manifest, seal, verify
from trainq.artifacts.paths import Paths
from trainq.base import files, oserrors
from trainq.base.errors import BadValue, Damaged, DiskFull, Storage, TrainqError, Unwritable

ODD = ["plain", "with space", "ünï", "line\nend", "not utf8 \udcff", "sub/dir/deep", "sub/.hidden"]


@pytest.fixture
def paths(tmp_path):
    """A root with a long and odd path."""
    made = Paths(f"{tmp_path}/" + "a root ünï".ljust(200, "x"))
    for directory in made.directories():
        os.makedirs(directory, exist_ok=True)
    return made


def write(directory: str, name: str, data: bytes = b"weights") -> None:
    path = os.path.join(directory, name)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as file:
        file.write(data)


def publish(paths: Paths, key: str, data: bytes = b"weights", *, name: str = "model.bin") -> int:
    """What a worker does for one training, but for the rows."""
    staged = models.stage(paths, 1, 1)
    write(staged, name, data)
    assert seal(staged, {"job": 1}) is not None
    version = models.highest_version(paths, key) + 1
    models.place(paths, staged, key, version)
    models.point_latest(paths, key, version)
    return version


def in_process(code: str, *argv: str, **env: str) -> subprocess.CompletedProcess[str]:
    """The code in a process of its own, which may be killed."""
    head = "import sys, os, time\nfrom trainq.artifacts import models\nfrom trainq.artifacts.manifest import seal\n"
    head += "from trainq.artifacts.paths import Paths\npaths = Paths(sys.argv[1])\n"
    return subprocess.run(
        [sys.executable, "-c", head + code, *argv], env={**os.environ, **env}, capture_output=True, text=True
    )


def test_a_version_holds_what_the_job_left(paths):
    """Q45: odd names, empty files and deep directories are published as they are, with digests that match."""
    staged = models.stage(paths, 12, 3)
    assert os.path.basename(staged).startswith("12-3-")
    assert os.listdir(staged) == []
    for n, name in enumerate(ODD):
        write(staged, name, b"x" * n)
    facts = {
        "job": 12,
        "attempt": 3,
        "params": {"alpha": 0.5},
        "metrics": {"loss": float("nan"), "l": [float("inf")]},
    }
    sealed = seal(staged, facts)
    path = models.place(paths, sealed.dir, "anna/en", 1)
    assert path == paths.version("anna/en", 1)
    assert not os.path.exists(staged)
    manifest = read_manifest(path)
    assert manifest == sealed.manifest
    assert manifest["metrics"] == {"loss": None, "l": [None]}
    assert (sealed.size, len(sealed.files)) == (sum(range(len(ODD))), len(ODD))
    assert hashlib.sha256(files.read_bytes(f"{path}/{MANIFEST}")).hexdigest() == sealed.digest
    for entry in sealed.files:
        raw = __import__("base64").b64decode(entry["path_b64"]) if "path_b64" in entry else entry["path"].encode()
        data = files.read_bytes(os.path.join(path, os.fsdecode(raw)))
        assert (entry["size"], entry["sha256"]) == (len(data), hashlib.sha256(data).hexdigest())
        entry["path"].encode()
    assert verify(path) == []


def test_nothing_left_is_no_model(paths):
    """An empty directory, one of empty directories, and one the job removed make no version."""
    staged = models.stage(paths, 1, 1)
    assert seal(staged, {}) is None
    os.makedirs(f"{staged}/a/b")
    assert seal(staged, {}) is None
    assert os.listdir(staged) == ["a"]
    models.discard(paths, staged)
    assert seal(staged, {}) is None
    with pytest.raises(Storage, match="no manifest"):
        models.place(paths, models.stage(paths, 1, 1), "k", 1)


def test_links_inside_are_kept(paths, tmp_path):
    """Links between the files of a model work after the rename, however they were written."""
    staged = models.stage(paths, 1, 1)
    write(staged, "sub/weights")
    os.symlink("sub/weights", f"{staged}/plain")
    os.symlink(f"{staged}/sub/weights", f"{staged}/absolute")
    os.symlink(f"../../{os.path.basename(staged)}/sub/weights", f"{staged}/sub/around")
    os.symlink("nowhere", f"{staged}/dangling")
    os.symlink(f"{staged}/sub", f"{staged}/directory")
    sealed = seal(staged, {})
    assert [entry["path"] for entry in sealed.files] == ["sub/weights"]
    path = models.place(paths, staged, "k", 1)
    for name in ("plain", "absolute", "sub/around", "directory/weights"):
        with open(f"{path}/{name}", "rb") as file:
            assert file.read() == b"weights"
    assert os.readlink(f"{path}/plain") == "sub/weights"
    assert os.readlink(f"{path}/dangling") == "nowhere"
    assert verify(path) == []
    os.unlink(f"{path}/plain")
    os.symlink("sub", f"{path}/plain")
    assert verify(path) == ["plain is not the link it was"]


@pytest.mark.parametrize("kind", ["link out", "relative out", "sibling", "pipe", "socket", "manifest", "replaced"])
def test_what_cannot_be_published_is_refused(paths, tmp_path, kind, monkeypatch):
    """Links out of the model, pipes, sockets and a `manifest.json` of the user: refused by name, all is kept."""
    staged = models.stage(paths, 1, 1)
    write(staged, "good")
    odd = f"{staged}/od\nd"
    if kind == "link out":
        os.symlink("/etc/passwd", odd)
    elif kind == "relative out":
        os.symlink("../..", odd)
    elif kind == "sibling":
        os.mkdir(staged + "x")
        os.symlink(staged + "x", odd)
    elif kind == "pipe":
        os.mkfifo(odd)
    elif kind == "socket":
        monkeypatch.chdir(staged)
        with socket.socket(socket.AF_UNIX) as made:
            made.bind("od\nd")
    elif kind == "manifest":
        write(staged, MANIFEST, b'{"name": "my app"}')
    else:
        os.rename(staged, f"{tmp_path}/elsewhere")
        os.symlink(f"{tmp_path}/elsewhere", staged)
    with pytest.raises(ModelError) as told:
        seal(staged, {})
    assert "\n" not in told.value.message
    word = {"manifest": MANIFEST, "replaced": "replaced"}.get(kind, "od\\nd")
    assert word in told.value.message
    assert os.path.exists(f"{staged}/good")
    assert kind == "manifest" or not os.path.exists(f"{staged}/{MANIFEST}")


def test_a_manifest_of_ours_is_written_anew(paths):
    """Sealing again after an error works, and so does a job that starts from a copy of a published version."""
    staged = models.stage(paths, 1, 1)
    write(staged, "a")
    write(staged, f"sub/{MANIFEST}", b"the user's own, below the top")
    seal(staged, {"job": 1})
    write(staged, "b")
    sealed = seal(staged, {"job": 2})
    assert [entry["path"] for entry in sealed.files] == ["a", "b", f"sub/{MANIFEST}"]
    assert read_manifest(staged)["job"] == 2


def test_a_shut_directory_is_published_and_deleted(paths):
    """A job may shut what it made (mode 0500): publishing and deleting work."""
    staged = models.stage(paths, 1, 1)
    write(staged, "sub/a")
    os.chmod(f"{staged}/sub", 0o500)
    os.chmod(staged, 0o500)
    seal(staged, {})
    models.place(paths, staged, "k", 1)
    assert models.discard(paths, models.put_aside(paths, "k", 1)) is True
    assert list(models.leftovers(paths)) == []


HARM = {
    "missing": (lambda d: os.unlink(f"{d}/a"), "a is missing"),
    "extra": (lambda d: write(d, "new\n"), "new\\n is not in the manifest"),
    "size": (lambda d: write(d, "a", b"12345"), "a has 5 bytes, not 7"),
    "content": (lambda d: write(d, "a", b"weighty"), "a has changed: its digest differs"),
    "no manifest": (lambda d: os.unlink(f"{d}/{MANIFEST}"), "has no manifest"),
    "torn": (lambda d: os.truncate(f"{d}/{MANIFEST}", 40), "is not a manifest"),
    "foreign": (lambda d: write(d, MANIFEST, b"[1]"), "is not a manifest"),
    "no path": (lambda d: spoil(d, {"size": 1}), "cannot be read"),
    "escape": (lambda d: spoil(d, {"path": "../../../../../etc/passwd", "size": 1}), "passwd is missing"),
    "turned": (
        lambda d: (os.unlink(f"{d}/a"), os.symlink("b", f"{d}/a")),
        "a is not a regular file any more",
    ),
}


def spoil(directory: str, entry: dict) -> None:
    manifest = read_manifest(directory)
    manifest["files"].append(entry)
    write(directory, MANIFEST, json.dumps(manifest).encode())


@pytest.mark.parametrize("harm", HARM)
def test_verify_finds(paths, harm):
    """Missing, extra, changed and torn: each is one problem, named; the whole version has none."""
    staged = models.stage(paths, 1, 1)
    write(staged, "a")
    write(staged, "b")
    seal(staged, {})
    path = models.place(paths, staged, "k", 1)
    assert verify(path) == []
    do, word = HARM[harm]
    do(path)
    (problem,) = verify(path)
    assert word in problem
    assert verify(path, deep=False) == ([] if harm == "content" else [problem])
    if harm in {"no manifest", "torn", "foreign"}:
        with pytest.raises(Damaged):
            read_manifest(path)


def test_numbers_rise_and_are_not_used_twice(paths):
    """Q44: the next number is above all on the disk, also above what was put aside by a crash."""
    assert models.highest_version(paths, "k") == 0
    assert [publish(paths, "k") for _ in range(3)] == [1, 2, 3]
    aside = models.put_aside(paths, "k", 3)
    assert os.path.dirname(aside) == paths.aside_key("k")
    assert models.put_aside(paths, "k", 3) is None
    assert models.versions_on_disk(paths, "k") == [1, 2]
    assert models.highest_version(paths, "k") == 3
    assert publish(paths, "k") == 4
    os.mkdir(f"{paths.key('k')}/@11")
    os.mkdir(f"{paths.key('k')}/@x9")
    assert models.highest_version(paths, "k") == 11


def test_a_taken_number_is_refused(paths):
    """Placing never replaces: the version that stands is as it was, and the staged one is kept."""
    publish(paths, "k", b"first")
    staged = models.stage(paths, 1, 1)
    write(staged, "model.bin", b"second")
    seal(staged, {})
    with pytest.raises(Storage, match="stands already"):
        models.place(paths, staged, "k", 1)
    assert files.read_bytes(f"{paths.version('k', 1)}/model.bin") == b"first"
    assert verify(staged) == []
    with pytest.raises(BadValue):
        models.place(paths, staged, "../k", 1)


def test_a_version_that_is_placed_already_must_be_there(paths):
    """DESIGN 2.4: placing again what a failed commit had placed: it is looked for, also where it was put aside."""
    staged = models.stage(paths, 1, 1)
    write(staged, "a")
    seal(staged, {})
    placed = models.place(paths, staged, "k", 1)
    assert models.place(paths, placed, "k", 1) == models.find_placed(paths, "k", 1) == placed
    os.makedirs(os.path.join(paths.aside_key("k"), "@1-00000000.retired"))
    aside = models.put_aside(paths, "k", 1)
    assert models.find_placed(paths, "k", 1) == aside
    with pytest.raises(Storage, match="no manifest"):
        models.place(paths, placed, "k", 1)
    assert models.place(paths, aside, "k", 2) == paths.version("k", 2)
    assert models.find_placed(paths, "k", 1) == placed


def test_keys_may_lead_to_each_other(paths):
    """A key may be the beginning of another one: versions and longer keys never meet."""
    for key in ("a", "a/b", "a/b/c", "ü/x", "z"):
        publish(paths, key)
    models.put_aside(paths, "z", 1)
    assert sorted(models.walk_keys(paths)) == ["a", "a/b", "a/b/c", "ü/x"]
    models.put_aside(paths, "a", 1)
    assert sorted(models.walk_keys(paths)) == ["a/b", "a/b/c", "ü/x"]
    assert verify(paths.version("a/b", 1)) == []
    assert list(models.walk_keys(Paths("/nonexistent"))) == []


def test_latest_is_a_relative_link(paths):
    """`@latest` points to the newest by a link that survives a move of the root, and can be taken away."""
    publish(paths, "k")
    publish(paths, "k")
    assert os.readlink(paths.latest("k")) == "@2"
    assert models.latest_on_disk(paths, "k") == 2
    models.point_latest(paths, "k", 1)
    assert models.latest_on_disk(paths, "k") == 1
    for _ in range(2):
        models.point_latest(paths, "k", None)
        assert models.latest_on_disk(paths, "k") is None
    os.mkdir(paths.latest("k"))
    with pytest.raises(Storage, match="@latest"):
        models.point_latest(paths, "k", 1)
    assert os.listdir(paths.staging) == []


def test_latest_does_not_fall_back(paths, monkeypatch):
    """A publisher that is overtaken between its look and its link leaves `@latest` on the other one's newer version."""
    publish(paths, "a")
    os.unlink(paths.latest("a"))
    link = files.symlink

    def overtaken(target, path):
        monkeypatch.setattr(files, "symlink", link)
        publish(paths, "a")
        models.put_aside(paths, "a", 1)
        link(target, path)

    monkeypatch.setattr(files, "symlink", overtaken)
    models.advance_latest(paths, "a")
    assert models.latest_on_disk(paths, "a") == 2


def test_only_what_is_not_visible_is_discarded(paths):
    """Discarding takes staged and aside directories, never a version; twice is no error."""
    publish(paths, "k")
    with pytest.raises(Storage, match="neither staged nor aside"):
        models.discard(paths, paths.version("k", 1))
    aside = models.put_aside(paths, "k", 1)
    staged = models.stage(paths, 7, 2)
    files.symlink("@9", f"{paths.staging}/{files.temporary_name()}")
    found = list(models.leftovers(paths))
    assert {(left.job, left.attempt) for left in found if left.path == staged} == {(7, 2)}
    assert {left.path for left in found if left.job is None} >= {aside}
    assert len(found) == 3
    assert all(left.changed_at > 0 for left in found)
    assert [models.discard(paths, left.path) for left in found] == [True] * 3
    assert [models.discard(paths, left.path) for left in found] == [False] * 3
    assert list(models.leftovers(paths)) == []


POLLER = """
seen = set()
print("ready", flush=True)
while len(seen) < 20:
    for directory, names, others in os.walk(paths.models, topdown=True):
        if directory == paths.models:
            names[:] = [n for n in names if n not in (".staging", ".aside")]
        inside = [n for n in directory[len(paths.models):].split("/") if n]
        if any(n.startswith("@") for n in inside):
            continue
        for name in names + others:
            assert name in ("k", "en", "@latest") or name[1:].isdigit(), name
            if name.startswith("@"):
                from trainq.artifacts.manifest import verify
                try:
                    assert verify(os.path.realpath(os.path.join(directory, name))) == []
                except FileNotFoundError:
                    raise SystemExit("vanished: " + name)
                seen.add(os.path.realpath(os.path.join(directory, name)))
"""


def test_a_poller_sees_whole_versions_only(paths):
    """Q45: during 20 trainings every visible version has a manifest whose digests match, and no temporary name
    is ever listed.
    """
    head = "import sys, os, time\nfrom trainq.artifacts.paths import Paths\npaths = Paths(sys.argv[1])\n"
    poller = subprocess.Popen(
        [sys.executable, "-c", head + POLLER, paths.root],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert poller.stdout.readline() == "ready\n"
    for n in range(20):
        publish(paths, "k/en", bytes([n]) * 300_000, name=f"sub/{n}")
    _, errors = poller.communicate(timeout=60)
    assert errors == ""


def test_a_poller_would_see_an_early_name(paths):
    """The poller of Q45 can fail: a version that is named before its manifest is written is found."""
    os.makedirs(paths.version("k/en", 1))
    assert "has no manifest" not in in_process(POLLER, paths.root).stdout
    assert "AssertionError" in in_process(POLLER, paths.root).stderr


ROUND = """
staged = models.stage(paths, 1, 1)
open(staged + "/model.bin", "wb").write(b"x" * 3_000_000)
os.mkdir(staged + "/sub")
open(staged + "/sub/more", "wb").write(b"more")
assert seal(staged, {"job": 1})
version = models.highest_version(paths, "k") + 1
models.place(paths, staged, "k", version)
models.point_latest(paths, "k", version)
models.put_aside(paths, "k", version - 2, retired=True)
models.sweep_retired(paths, "k", time.time())
"""


@pytest.mark.parametrize(
    ("point", "named"),
    [
        ("publish.hashed", [1, 2]),
        ("publish.sealed", [1, 2]),
        ("publish.renamed", [1, 2, 3]),
        ("publish.placed", [1, 2, 3]),
        ("latest.made", [1, 2, 3]),
        ("latest.replaced", [1, 2, 3]),
        ("publish.renamed:2", [2, 3]),
        ("sweep.retired", [2, 3]),
    ],
)
def test_killed_while_publishing(paths, point, named):
    """Q44: kill -9 at any step leaves the earlier versions whole, none torn, and the next publisher goes on."""
    publish(paths, "k")
    publish(paths, "k")
    died = in_process(ROUND, paths.root, TRAINQ_CRASH=point)
    assert (died.returncode, died.stderr) == (-signal.SIGKILL, "")
    assert models.versions_on_disk(paths, "k") == named
    assert {*os.listdir(paths.key("k"))} == {"@latest", *(f"@{number}" for number in named)}
    assert all(verify(paths.version("k", number)) == [] for number in named)
    assert models.latest_on_disk(paths, "k") in named
    # What the next publisher does when the last one has no row: aside, and a number above it.
    models.put_aside(paths, "k", 3)
    done = in_process(ROUND, paths.root)
    assert done.stderr == ""
    expected = 4 if 3 in named else 3
    assert models.versions_on_disk(paths, "k")[-1] == models.latest_on_disk(paths, "k") == expected
    for left in models.leftovers(paths):
        models.discard(paths, left.path)
    assert os.listdir(paths.staging) == []
    assert all(verify(paths.version("k", number)) == [] for number in models.versions_on_disk(paths, "k"))


@pytest.mark.parametrize(("name", "error"), [("ENOSPC", DiskFull), ("EROFS", Unwritable), ("EIO", Storage)])
def test_every_step_of_a_publishing_may_fail(paths, monkeypatch, name, error):
    """Q47: whatever step the storage refuses, it is said, what was staged is kept, and no visible version is torn."""
    passed = False
    steps = 0
    while not passed:
        steps += 1
        staged = models.stage(paths, 1, 1)
        write(staged, "sub/model.bin")
        monkeypatch.setenv("TRAINQ_FAULT", f"{name}:{steps}")
        monkeypatch.setattr(oserrors, "_fail", oserrors._armed())
        version, told = 0, None
        try:
            seal(staged, {})
            version = models.highest_version(paths, "k") + 1
            models.place(paths, staged, "k", version)
            models.point_latest(paths, "k", version)
            passed = True
        except TrainqError as refused:
            told = refused
        monkeypatch.setattr(oserrors, "_fail", None)
        # A file of the model that cannot be opened is the job's fault, as far as anybody can see.
        assert passed or isinstance(told, error) or (error is Unwritable and isinstance(told, ModelError))
        kept = [d for d in (staged, paths.version("k", version)) if os.path.exists(f"{d}/sub/model.bin")]
        assert len(kept) == 1
        visible = models.versions_on_disk(paths, "k")
        assert all(verify(paths.version("k", number)) == [] for number in visible)
        if visible:
            assert {*os.listdir(paths.key("k"))} <= {"@latest", *(f"@{number}" for number in visible)}
    assert steps > 15


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as two users")
def test_an_unwritable_model_directory(paths, tmp_path):
    """Q47: with a model directory that this user may not write, the error names it and the staged result stays."""
    code = """
import base64, hashlib, shutil
from trainq.base.errors import Unwritable
os.chdir(sys.argv[2])
paths = Paths(".")
for name in ("models", "staging", "aside"):
    setattr(paths, name, os.path.relpath(getattr(paths, name)))
os.setuid(12345)
staged = models.stage(paths, 1, 1)
open(staged + "/a", "w").close()
seal(staged, {})
try:
    models.place(paths, staged, "k", 1)
except Unwritable as error:
    assert "models/k" in error.message, error.message
    assert os.path.exists(staged + "/manifest.json")
    sys.exit(44)
"""
    os.chown(paths.staging, 12345, 12345)
    done = in_process(code, paths.root, paths.root)
    assert (done.returncode, done.stderr) == (44, "")


def test_two_seal_at_the_same_time(paths):
    """Sealing is outside of every lock: many at once do not disturb each other."""
    code = """
for n in range(10):
    staged = models.stage(paths, 1, 1)
    for m in range(10):
        open(f"{staged}/{m}", "wb").write(os.urandom(10000))
    assert len(seal(staged, {}).files) == 10
"""
    head = "import sys, os, time\nfrom trainq.artifacts import models\nfrom trainq.artifacts.manifest import seal\n"
    head += "from trainq.artifacts.paths import Paths\npaths = Paths(sys.argv[1])\n"
    both = [subprocess.Popen([sys.executable, "-c", head + code, paths.root]) for _ in range(2)]
    assert [process.wait(timeout=60) for process in both] == [0, 0]
    staged = [left.path for left in models.leftovers(paths)]
    assert len(staged) == 20
    assert all(verify(path) == [] for path in staged)
