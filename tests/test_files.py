"""Durable files: old or new, never between; errors that a user can read; every step can fail or be the last."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import stat
import subprocess
import sys

import pytest

from trainq import wake
from trainq.base import files, oserrors, trees
from trainq.base.errors import DiskFull, Storage, TrainqError, Unwritable
from trainq.job import checkpoint_files

SICK = {
    "ENOSPC": DiskFull,
    "EDQUOT": DiskFull,
    "EROFS": Unwritable,
    "EACCES": Unwritable,
    "EIO": Storage,
    "ESTALE": Storage,
}


def run(code: str, *argv: str, **env: str) -> subprocess.CompletedProcess[str]:
    """The code in a process of its own, with these variables on top."""
    return subprocess.run(
        [sys.executable, "-c", code, *argv], env={**os.environ, **env}, capture_output=True, text=True
    )


def mode(path: str) -> int:
    return stat.S_IMODE(os.lstat(path).st_mode)


@pytest.fixture
def where(tmp_path):
    return str(tmp_path)


@pytest.fixture
def fault(monkeypatch):
    """Arms `TRAINQ_FAULT` in this process."""

    def arm(text: str) -> None:
        monkeypatch.setenv("TRAINQ_FAULT", text)
        monkeypatch.setattr(oserrors, "_fail", oserrors._armed())

    return arm


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077, 0o777])
def test_modes_are_exact_whatever_the_umask(where, umask):
    """Files are 0600 and directories 0700, whatever the caller's umask."""
    before = os.umask(umask)
    try:
        assert trees.make_directory(f"{where}/d") is True
        files.write_durably(f"{where}/d/f", b"x")
        files.create_exclusively(f"{where}/d/g", b"y", 0o640)
        os.close(files.open_append(f"{where}/d/log"))
    finally:
        os.umask(before)
    assert [mode(f"{where}/d{name}") for name in ("", "/f", "/g", "/log")] == [0o700, 0o600, 0o640, 0o600]


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077, 0o777])
def test_in_a_group_s_directory_modes_are_the_group_s(where, umask):
    """E18: whatever the umask, the group reads what is made in a set-gid directory, and writes in it as far as in that
    directory; an exact mode stays exact, and what all write is 0660."""
    os.chmod(where, 0o2770)
    before = os.umask(umask)
    try:
        trees.make_directories(where, "d/e")
        trees.make_own_directory(f"{where}/own")
        trees.make_directory(f"{where}/own/in")
        files.write_durably(f"{where}/d/f", b"x")
        files.write_durably(f"{where}/d/secret", b"x", 0o600)
        files.write_new(f"{where}/own/f", b"x")
        os.close(files.open_append(f"{where}/own/in/log"))
        os.close(files.open_shared(f"{where}/lock"))
    finally:
        os.umask(before)
    names = ("d", "d/e", "own", "own/in", "d/f", "d/secret", "own/f", "own/in/log", "lock")
    found = [f"{mode(f'{where}/{name}'):o}" for name in names]
    assert found == ["2770", "2770", "2750", "2750", "640", "600", "640", "640", "660"]
    os.chmod(where, 0o3770)
    trees.make_directories(where, "apart/in")
    assert [f"{mode(f'{where}/{name}'):o}" for name in ("apart", "apart/in")] == ["3770", "3770"]


def test_what_is_given_to_a_group_is_read_by_it_and_changed_by_nobody(where):
    """The group reads everything, runs what its maker runs, and writes nothing; links are left alone."""
    os.chmod(where, 0o2770)
    os.makedirs(f"{where}/model/in", mode=0o700)
    for name, bits in (("plain", 0o600), ("run", 0o700), ("open", 0o666)):
        files.write_new(f"{where}/model/in/{name}", b"x", bits)
    os.symlink("in/plain", f"{where}/model/link")
    os.chmod(f"{where}/model", 0o700)
    os.chmod(f"{where}/model/in", 0o777)
    trees.give_to_group(f"{where}/model")
    found = [f"{mode(f'{where}/model/{name}'):o}" for name in ("", "in", "in/plain", "in/run", "in/open")]
    assert found == ["2750", "2755", "640", "750", "644"]


def test_a_write_replaces_the_whole_and_leaves_nothing_else(where):
    """What is written is what is read, also over something longer; no temporary name stays."""
    files.write_durably(f"{where}/f", b"long" * 1_000_000)
    files.write_durably(f"{where}/f", b"short")
    assert files.read_bytes(f"{where}/f") == b"short"
    assert os.listdir(where) == ["f"]


def test_a_link_is_replaced_not_followed(where):
    """A link with the target's name is replaced; what it points to is not touched. Reading one is refused."""
    with open(f"{where}/other", "wb") as other:
        other.write(b"mine")
    os.symlink("other", f"{where}/f")
    with pytest.raises(OSError, match=os.strerror(errno.ELOOP)):
        files.read_bytes(f"{where}/f")
    with pytest.raises(OSError, match=os.strerror(errno.ELOOP)):
        files.open_append(f"{where}/f")
    files.write_durably(f"{where}/f", b"new")
    assert files.read_bytes(f"{where}/other") == b"mine"
    assert not os.path.islink(f"{where}/f")


def test_of_two_who_create_one_wins(where):
    """`create_exclusively` never overwrites, and the loser leaves nothing."""
    files.create_exclusively(f"{where}/f", b"first")
    with pytest.raises(FileExistsError):
        files.create_exclusively(f"{where}/f", b"second")
    assert files.read_bytes(f"{where}/f") == b"first"
    assert os.listdir(where) == ["f"]


def test_what_is_no_regular_file_is_not_read(where):
    """A directory, a pipe (without waiting for a writer), a device and a missing file are told apart."""
    os.mkfifo(f"{where}/pipe")
    with pytest.raises(OSError, match="not a regular file"):
        files.read_bytes(f"{where}/pipe")
    with pytest.raises(OSError, match="not a regular file"):
        files.read_bytes("/dev/zero")
    with pytest.raises(IsADirectoryError):
        files.read_bytes(where)
    with pytest.raises(FileNotFoundError):
        files.read_bytes(f"{where}/none")


@pytest.mark.parametrize(("name", "error"), SICK.items())
def test_sick_storage_has_its_own_words(where, fault, name, error):
    """Full, shut and broken storage are told apart, and the message names the file in one line."""
    fault(f"{name}:1+")
    with pytest.raises(error) as told:
        files.write_durably(f"{where}/odd\nname\udcff", b"x")
    assert where in told.value.message
    assert "\n" not in told.value.message
    told.value.message.encode()


def test_reporting_leaves_no_answer_as_it_is(where):
    """Inside `reporting` a missing file is an error of the storage."""
    with pytest.raises(Storage, match="none"), oserrors.reporting(f"{where}/none"):
        files.read_bytes(f"{where}/none")


@pytest.mark.parametrize("name", ["ENOSPC", "EIO"])
@pytest.mark.parametrize("lasting", ["", "+"])
def test_every_step_of_a_write_may_fail(where, fault, monkeypatch, name, lasting):
    """Fail the nth operation for every n until the flow passes: always the old content, and no temporary name."""
    files.write_durably(f"{where}/f", b"old")
    for n in range(1, 50):
        fault(f"{name}:{n}{lasting}")
        try:
            files.write_durably(f"{where}/f", b"new" * files.BLOCK)
        except SICK[name]:
            monkeypatch.setattr(oserrors, "_fail", None)
            # Only the sync of the directory comes after the name was given.
            assert files.read_bytes(f"{where}/f") in (b"old", b"new" * files.BLOCK)
            assert os.listdir(where) == ["f"]
        else:
            break
    assert n > 5
    monkeypatch.setattr(oserrors, "_fail", None)
    assert files.read_bytes(f"{where}/f") == b"new" * files.BLOCK


def test_a_fault_is_armed_by_the_environment(where):
    """`TRAINQ_FAULT` works for a whole process, and a process without it writes."""
    code = "import sys; from trainq.base import files; files.write_durably(sys.argv[1], b'x')"
    assert "DiskFull" in run(code, f"{where}/f", TRAINQ_FAULT="ENOSPC:2").stderr
    assert os.listdir(where) == []
    assert run(code, f"{where}/f").returncode == 0


def test_a_process_dies_at_its_point():
    """`TRAINQ_CRASH` kills at the point of that name, at the nth visit, and nowhere else."""
    code = "from trainq.base import crash\nfor i in range(3): print(i, flush=True); crash.point('a.b')"
    assert run(code).stdout.split() == ["0", "1", "2"]
    assert run(code, TRAINQ_CRASH="a.c").returncode == 0
    died = run(code, TRAINQ_CRASH="a.b")
    assert (died.returncode, died.stdout.split()) == (-signal.SIGKILL, ["0"])
    died = run(code, TRAINQ_CRASH="a.b:3")
    assert (died.returncode, died.stdout.split()) == (-signal.SIGKILL, ["0", "1", "2"])


def test_only_no_such_file_says_that_nothing_is_there(where, monkeypatch):
    """DESIGN 10: a name, one below a file, a loop of links, a name too long; what cannot be looked at is an error."""
    os.symlink("nowhere", f"{where}/dangling")
    os.symlink("loop", f"{where}/loop")
    os.symlink(".", f"{where}/here")
    files.write_durably(f"{where}/file", b"x")
    for name in ("file", "dangling", "loop", "here", "."):
        assert files.is_there(f"{where}/{name}"), name
    for name in ("no", "file/no", "loop/no", "x" * 300):
        assert not files.is_there(f"{where}/{name}"), name
    assert [files.is_directory(f"{where}/{name}") for name in (".", "here", "file", "dangling", "loop")] == [
        True, True, False, False, False,
    ]  # fmt: skip
    for number, kind in ((errno.EIO, Storage), (errno.ESTALE, Storage), (errno.EACCES, Unwritable)):

        def sick(path, number=number, **_):
            raise OSError(number, os.strerror(number), path)

        monkeypatch.setattr(os, "stat", sick)
        for look in (files.status, files.is_there, files.is_directory):
            with pytest.raises(kind, match="file"):
                look(f"{where}/file")


def test_a_directory_is_made_once(where):
    """Making is said once; a file or a link in its place is refused; parents are made one by one."""
    assert trees.make_directory(f"{where}/d") is True
    assert trees.make_directory(f"{where}/d") is False
    os.symlink("d", f"{where}/link")
    with pytest.raises(NotADirectoryError):
        trees.make_directory(f"{where}/link")
    with pytest.raises(FileNotFoundError):
        trees.make_directory(f"{where}/x/y")
    trees.make_directories(where, "x/y/z")
    trees.make_directories(where, "x/y/z")
    assert os.path.isdir(f"{where}/x/y/z")


@pytest.mark.parametrize(
    "make", [trees.make_directory, trees.make_own_directory, lambda path: trees.make_directory(path, 0o3770)]
)
@pytest.mark.parametrize("swapped", ["link", "open", "file"])
def test_what_a_member_puts_in_the_place_of_a_new_directory_is_left_as_it_is(where, monkeypatch, make, swapped):
    """E18: in a group's directory another member is at work between any two calls: the mode is that of the directory which
    was made, or it is an error; never that of a victim's."""
    os.chmod(where, 0o2770)
    os.mkdir(f"{where}/victim", 0o700)
    mkdir = os.mkdir

    def swap(path, mode):
        mkdir(path, mode)
        os.rename(path, f"{where}/away")
        if swapped == "link":
            os.symlink("victim", path)
        elif swapped == "open":
            mkdir(path)
            os.chmod(path, 0o711)
        else:
            os.close(os.open(path, os.O_CREAT, 0o600))

    monkeypatch.setattr(os, "mkdir", swap)
    with pytest.raises(TrainqError):
        make(f"{where}/new")
    assert mode(f"{where}/victim") == 0o700 | stat.S_ISGID
    assert swapped == "link" or mode(f"{where}/new") in (0o711, 0o600)


@pytest.mark.skipif(os.getuid() != 0, reason="another uid needs root")
def test_a_new_directory_that_is_another_s_is_left_as_it_is(where, monkeypatch):
    """E18: root's rights are not lent to who is quick."""
    os.chmod(where, 0o2770)
    mkdir = os.mkdir
    monkeypatch.setattr(os, "mkdir", lambda path, mode: (mkdir(path, mode), os.chown(path, 65534, 65534)))
    with pytest.raises(Unwritable):
        trees.make_directory(f"{where}/new")
    assert mode(f"{where}/new") & 0o777 == 0o700


def swapping(monkeypatch, names, path, target):
    """The next call of these functions of `os` finds a link in the place of `path`."""
    for name in names:
        real = getattr(os, name)

        def call(*words, real=real, **how):
            if words and not os.path.islink(path) and str(words[0]) in (path, os.path.basename(path)):
                os.rename(path, f"{path}.away")
                os.symlink(target, path)
            return real(*words, **how)

        monkeypatch.setattr(os, name, call)


@pytest.mark.parametrize("name", ["in", "in/file"])
def test_giving_to_a_group_follows_no_link(where, monkeypatch, name):
    """E18: what stands behind a link that was put there a moment ago keeps its mode."""
    os.chmod(where, 0o2770)
    os.makedirs(f"{where}/model/in", mode=0o700)
    os.mkdir(f"{where}/victims", 0o700)
    files.write_new(f"{where}/model/in/file", b"x", 0o600)
    files.write_new(f"{where}/file", b"x", 0o600)
    swapping(
        monkeypatch, ["chmod", "open"], f"{where}/model/{name}", f"{where}/{'file' if 'file' in name else 'victims'}"
    )
    with contextlib.suppress(OSError, TrainqError):
        trees.give_to_group(f"{where}/model")
    assert (mode(f"{where}/victims"), mode(f"{where}/file")) == (0o2700, 0o600)


@pytest.mark.parametrize("name", ["t", "t/a"])
def test_opening_what_is_shut_follows_no_link(where, monkeypatch, name):
    """E18: nor does what is opened to be deleted."""
    os.makedirs(f"{where}/t/a/b")
    os.mkdir(f"{where}/victims")
    os.chmod(f"{where}/victims", 0o755)
    swapping(monkeypatch, ["chmod", "open"], f"{where}/{name}", f"{where}/victims")
    with contextlib.suppress(OSError, TrainqError):
        trees._open_up(f"{where}/t")
    assert mode(f"{where}/victims") == 0o755


def test_a_tree_is_walked_and_removed(where):
    """Links are told from what they point to, and removing a tree leaves what they point to."""
    os.makedirs(f"{where}/t/a/b")
    os.makedirs(f"{where}/out")
    for name in ("t/a/f", "t/a/b/g", "out/kept"):
        with open(f"{where}/{name}", "w") as made:
            made.write(name)
    os.symlink("../../out", f"{where}/t/a/away")
    os.mkfifo(f"{where}/t/pipe")
    assert [(e.name, e.kind) for e in trees.walk(f"{where}/t")] == [
        ("a", "directory"),
        ("pipe", "other"),
        ("a/away", "link"),
        ("a/b", "directory"),
        ("a/f", "file"),
        ("a/b/g", "file"),
    ]
    os.chmod(f"{where}/t/a/b", 0o500)
    assert trees.remove_tree(f"{where}/t") is True
    assert trees.remove_tree(f"{where}/t") is False
    assert os.listdir(where) == ["out"]
    os.symlink("out", f"{where}/link")
    assert trees.remove_tree(f"{where}/link") is True
    assert os.listdir(f"{where}/out") == ["kept"]


def test_a_failed_flow_is_an_error_of_trainq():
    """All three words for sick storage exit 6, as CLI.md says of an unusable queue."""
    assert {error.exit for error in SICK.values()} == {6}
    assert all(issubclass(error, TrainqError) for error in SICK.values())


def test_takes_directories(where, fault):
    """A directory that can hold others says so and is as it was; one that is gone, a file, full or sick does not."""
    assert trees.takes_directories(where)
    assert os.listdir(where) == []
    files.write_new(f"{where}/file", b"")
    assert not trees.takes_directories(f"{where}/file")
    assert not trees.takes_directories(f"{where}/nothing")
    for name in SICK:
        fault(f"{name}:1+")
        assert not trees.takes_directories(where)


def test_a_tree_of_any_depth_goes(tmp_path):
    """E13: a job may nest directories deeper than Python recurses, and than a path may be long."""
    top = tmp_path / "top"
    top.mkdir()
    code = "import os\nfor _ in range(3000):\n    os.mkdir('d')\n    os.chdir('d')\nopen('file', 'w').close()"
    subprocess.run([sys.executable, "-c", code], cwd=top, check=True)
    assert trees.remove_tree(str(top))
    assert not top.exists()


LENT = """
import fcntl, os, signal, sys, time
fd = os.open(sys.argv[1], os.O_RDWR)
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGIO])
fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)
print("lent", flush=True)
signal.sigwait([signal.SIGIO])
time.sleep(float(sys.argv[2]))
os.close(fd)
sys.stdin.read()
"""


@contextlib.contextmanager
def lent(path, keeps_s=0.3):
    """The file is lent to somebody who gives it back so long after it was called back, as an NFS or SMB client does."""
    with subprocess.Popen(
        [sys.executable, "-c", LENT, path, str(keeps_s)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout.readline() == b"lent\n"
        try:
            yield
        finally:
            process.kill()


@pytest.mark.parametrize(
    "use",
    [
        files.read_bytes,
        lambda path: os.close(files.open_append(path)),
        lambda path: os.close(files.open_shared(path)),
        lambda path: files.read_past_cache(path, 10),
        wake.read,
        checkpoint_files._digest,
    ],
)
def test_what_was_lent_is_waited_for(where, use):
    """DESIGN 4: a file server's own processes meet what its clients were lent: not to block must not mean to fail."""
    path = f"{where}/f"
    files.write_durably(path, b"content")
    with lent(path):
        assert use(path) != b""


def test_the_bell_is_rung_though_it_is_lent(where):
    """DESIGN 4: a submit on the file server itself wakes a worker whose host was lent the bell."""
    path = f"{where}/bell"
    wake.ring(path)
    before = wake.read(path)
    with lent(path):
        wake.ring(path)
    assert wake.read(path) != before


def test_what_is_never_given_back_is_an_error_in_the_end(where):
    """DESIGN 4: it is waited for as long as the kernel does, and no longer."""
    path = f"{where}/f"
    files.write_durably(path, b"content")
    with lent(path, 60), pytest.raises(BlockingIOError):
        files.open_at_once(path, os.O_RDONLY, patience_s=0.2)


def test_past_the_cache_it_is_the_same(where):
    """DESIGN 4: what is read is what is there, short files and long ones, and where no direct reads are to be had."""
    for content in (b"", b"short", b"x" * 10_000):
        files.write_durably(f"{where}/f", content)
        assert files.read_past_cache(f"{where}/f", 64) == content[:64]
    with pytest.raises(FileNotFoundError):
        files.read_past_cache(f"{where}/none", 64)
