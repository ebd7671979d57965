"""What a mount is told by: recorded lines of mountinfo, and real mounts where they can be made."""

from __future__ import annotations

import contextlib
import io
import os
import subprocess

import pytest
from conftest import Trainq

from trainq.base import hosts, mounts
from trainq.base.errors import NotPossible, UnsafeMount
from trainq.cli.main import run
from trainq.ops import queue as queues
from trainq.ops.doctor import examine
from trainq.ops.init import convert, init
from trainq.ops.queue import open_queue

LINES = {
    "nfs4": (
        ("41 28 0:43 / /data rw,relatime shared:1 - nfs4 server:/ rw,vers=4.2,rsize=1048576,namlen=255,hard,proto=tcp,timeo=600,"
        "retrans=2,sec=sys,clientaddr=10.0.0.7,local_lock=none,addr=10.0.0.1"),
        True, None,
    ),
    "nfs3 without a lock manager": (
        "41 28 0:43 / /data rw - nfs server:/export rw,vers=3,hard,nolock,proto=tcp,mountport=0,local_lock=all,addr=10.0.0.1",
        True, "nolock",
    ),
    "nfs3, locks kept at home": (
        "41 28 0:43 / /data rw - nfs server:/export rw,vers=3,hard,local_lock=flock,addr=10.0.0.1", True, "local_lock=flock",
    ),
    "nfs4 without close-to-open": ("41 28 0:43 / /d rw - nfs4 s:/ rw,vers=4.1,nocto,local_lock=none", True, "nocto"),
    "cifs": ("55 28 0:50 / /d rw - cifs //nas/share rw,vers=3.1.1,cache=strict,username=me", True, None),
    "cifs without byte locks": ("55 28 0:50 / /d rw - cifs //nas/share rw,vers=3.0,nobrl", True, "nobrl"),
    "cifs, loose": ("55 28 0:50 / /d rw - cifs //nas/share rw,cache=loose", True, "cache=loose"),
    "glusterfs": ("60 28 0:52 / /d rw,nosuid - fuse.glusterfs s1:/v rw,user_id=0,group_id=0,allow_other", True, None),
    "some program": ("60 28 0:52 / /d rw - fuse.mystery src rw,user_id=0", True, None),
    "ntfs": ("60 28 8:17 / /d rw - fuseblk /dev/sdb1 rw,user_id=0,group_id=0,allow_other", False, None),
    "lustre": ("61 28 0:53 / /scratch rw - lustre 10.1.1.1@tcp:/fs rw,flock,lazystatfs", True, None),
    "lustre, locks at home": ("61 28 0:53 / /scratch rw - lustre 10.1.1.1@tcp:/fs rw,localflock", True, "localflock"),
    "gpfs": ("62 28 0:54 / /gpfs rw - gpfs gpfs0 rw,mtime,relatime", True, None),
    "beegfs": ("63 28 0:55 / /beegfs rw - beegfs beegfs_nodev rw,cfgFile=/etc/beegfs/beegfs-client.conf", True, None),
    "ceph": ("64 28 0:56 / /ceph rw - ceph 10.0.0.1:6789:/ rw,name=admin,secret=<hidden>,acl", True, None),
    "9p": ("65 28 0:57 / /host rw - 9p share rw,access=client,trans=virtio", True, None),
    "9p, loose": ("65 28 0:57 / /host rw - 9p share rw,cache=loose,trans=virtio", True, "cache=loose"),
    "virtiofs": ("66 28 0:58 / /host rw - virtiofs share rw", True, None),
    "gfs2": ("67 28 253:5 / /gfs rw - gfs2 /dev/mapper/vg-shared rw,noatime", True, None),
    "gfs2, locks at home": ("67 28 253:5 / /gfs rw - gfs2 /dev/mapper/vg-shared rw,localflocks", True, "localflocks"),
    "ocfs2": ("67 28 8:33 / /o rw - ocfs2 /dev/sdc1 rw,_netdev,heartbeat=local,coherency=full", True, None),
    "ocfs2, locks at home": ("67 28 8:33 / /o rw - ocfs2 /dev/sdc1 rw,heartbeat=local,localflocks", True, "localflocks"),
    "afs": ("67 28 0:59 / /afs rw - afs none rw", True, None),
    "ext4": ("28 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw,errors=remount-ro", False, None),
    "btrfs": ("28 1 0:30 /root / rw shared:1 - btrfs /dev/nvme0n1p2 rw,ssd,subvolid=256,subvol=/root", False, None),
    "tmpfs": ("30 28 0:25 / /dev/shm rw,nosuid - tmpfs tmpfs rw,size=1g", False, None),
    "several optional fields": ("30 28 0:25 / /x rw shared:1 master:2 propagate_from:3 - nfs4 s:/ rw", True, None),
}  # fmt: skip


@pytest.mark.parametrize("name", LINES)
def test_recorded_mounts(name):
    """DESIGN 4: who may see the files, and which option keeps hosts from seeing each other's locks or writes."""
    line, is_network, option = LINES[name]
    mount = mounts.parsed(line)
    assert mount.is_network == is_network
    assert (mount.fault is None) == (option is None)
    if option is not None:
        assert mount.fault.startswith(f"{option}: ")
        with pytest.raises(UnsafeMount, match=f"mounted with {option}: .*mount it"):
            mounts.require_honest("/data", mount)


LOCKLESS = {
    "sshfs": "60 28 0:52 / /d rw,nosuid,nodev - fuse.sshfs me@host:/srv rw,user_id=1000,group_id=1000",
    "rclone": "60 28 0:52 / /d rw,nosuid,nodev - fuse.rclone remote:bucket rw,user_id=1000,group_id=1000",
    "s3fs": "60 28 0:52 / /d rw,nosuid,nodev - fuse.s3fs s3fs rw,user_id=0,group_id=0,allow_other",
    "gcsfuse": "60 28 0:52 / /d rw,nosuid,nodev - fuse.gcsfuse bucket rw,user_id=0,group_id=0",
}


@pytest.mark.parametrize("name", LOCKLESS)
def test_a_file_system_without_locks_between_hosts_is_refused(name, tmp_path, seen_as):
    """The kernel keeps the locks of such a program to its host, whatever the options: no queue of either mode is kept
    there, and the line names the file system and a way out."""
    root = str(tmp_path / "q")
    seen_as(LOCKLESS[name])
    for mode in (None, "shared", "local"):
        with pytest.raises(UnsafeMount, match=f"this is {name}, whose locks stay on each host") as caught:
            init(root, mode)
        assert caught.value.hint == "put it on NFS, or on a disk of this host"
    seen_as(None)
    for mode in ("local", "shared"):
        init(f"{root}-{mode}", mode)
        seen_as(LOCKLESS[name])
        with pytest.raises(UnsafeMount, match=f"this is {name}, whose locks"):
            open_queue(f"{root}-{mode}")
        with pytest.raises(UnsafeMount, match=f"this is {name}, whose locks"):
            convert(f"{root}-{mode}", "shared")
        seen_as(None)


@pytest.mark.parametrize(
    ("name", "is_unproved"),
    [
        ("beegfs", True), ("virtiofs", True), ("9p", True), ("some program", True),
        ("nfs4", False), ("cifs", False), ("gfs2", False), ("ext4", False),
    ],
)  # fmt: skip
def test_where_locks_may_stay_at_home_init_says_how_to_prove_it(name, is_unproved, tmp_path, seen_as, monkeypatch):
    """BeeGFS, virtiofs and 9p keep locks on each host unless they are told otherwise, which no mount option shows."""
    seen_as(LINES[name][0])
    root = str(tmp_path / "q")
    assert bool(init(root).unproved) == is_unproved
    monkeypatch.chdir(tmp_path)
    done, said = in_process("init", str(tmp_path / "r"))
    assert done == 0
    line = f"prove the mount before you trust it, on two hosts at once: trainq --root {tmp_path}/r doctor --meet"
    assert (line in said) == is_unproved


def in_process(*words):
    """A command in this process, where mounts are as they are told to be."""
    out = io.TextIOWrapper(io.BytesIO(), write_through=True)
    with contextlib.redirect_stdout(out):
        code = run(words)
    return code, out.buffer.getvalue().decode()


def test_names_with_spaces():
    mount = mounts.parsed(r"41 28 0:43 / /my\040data rw - cifs //nas/our\040share rw")
    assert mount.source == "//nas/our share"


@contextlib.contextmanager
def mounted(*words):
    done = subprocess.run(["mount", *map(str, words)], capture_output=True)
    if done.returncode:
        pytest.skip("mounting is not permitted here")
    try:
        yield
    finally:
        subprocess.run(["umount", words[-1]], check=True)


def test_a_bind_mount_is_what_it_binds(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    with mounted("-t", "tmpfs", "-o", "size=1m", "inner", tmp_path / "a"):
        (tmp_path / "a" / "q").mkdir()
        with mounted("--bind", tmp_path / "a" / "q", tmp_path / "b"):
            assert mounts.mount_of(str(tmp_path / "b"))[:2] == ("tmpfs", "inner")


def test_what_is_mounted_over_is_not_seen(tmp_path):
    with mounted("-t", "tmpfs", "below", tmp_path), mounted("-t", "tmpfs", "above", tmp_path):
        assert mounts.mount_of(str(tmp_path)).source == "above"


def test_an_overlay_is_where_it_writes(tmp_path, monkeypatch):
    """An overlay over a network file system is none of this host's disks."""
    with mounted("-t", "tmpfs", "disk", tmp_path):
        for name in ("lower", "upper", "work", "all"):
            (tmp_path / name).mkdir()
        options = f"lowerdir={tmp_path}/lower,upperdir={tmp_path}/upper,workdir={tmp_path}/work"
        with mounted("-t", "overlay", "-o", options, "overlay", tmp_path / "all"):
            assert mounts.mount_of(str(tmp_path / "all")).kind == "overlay"
            assert not mounts.mount_of(str(tmp_path / "all")).is_network
            monkeypatch.setattr(mounts, "REMOTE", frozenset(("tmpfs",)))
            assert mounts.mount_of(str(tmp_path / "all")).kind == "tmpfs"


def test_what_cannot_be_told_is_unknown():
    assert mounts.mount_of("/nonexistent/place") == mounts.UNKNOWN
    assert not mounts.UNKNOWN.is_network
    with pytest.raises(ValueError, match=r"is not in list"):
        mounts.parsed("41 28 0:43 / /data rw nfs4")


def test_a_disk_is_not_asked_for(tmp_path):
    """A device of its own number is as a rule a disk of this host: no short command reads the list of mounts for it."""
    assert mounts.may_be_network(os.stat("/proc"))
    if os.major(os.stat(tmp_path).st_dev):
        assert not mounts.may_be_network(os.stat(tmp_path))


# the mode of a queue -------------------------------------------------------------------------------------------------


@pytest.fixture
def seen_as(monkeypatch):
    """Let every root lie on such a mount."""

    def see(line):
        found = mounts.UNKNOWN if line is None else mounts.parsed(line)
        device = "0:0" if line is None else line.split()[2]
        monkeypatch.setattr(mounts, "mount_of", lambda _path: found)
        monkeypatch.setattr(mounts, "may_be_network", lambda _found: line is not None and device.startswith("0:"))

    see(None)
    return see


def test_init_goes_by_the_file_system(tmp_path, seen_as):
    """DESIGN 4: local on a disk, shared on a network file system, and as asked for where that can be."""
    assert init(str(tmp_path / "disk"))[1:3] == ("local", True)
    assert init(str(tmp_path / "asked"), "shared")[1:3] == ("shared", True)
    seen_as(LINES["nfs4"][0])
    assert init(str(tmp_path / "net"))[1:3] == ("shared", True)
    assert init(str(tmp_path / "net"))[1:3] == ("shared", False)
    with pytest.raises(UnsafeMount, match="other hosts see it"):
        init(str(tmp_path / "no"), "local")
    seen_as(LINES["some program"][0])
    assert init(str(tmp_path / "unknown"))[1:3] == ("shared", True)
    assert init(str(tmp_path / "mine"), "local")[1:3] == ("local", True)
    assert not open_queue(str(tmp_path / "mine")).is_shared
    seen_as(LINES["nfs3 without a lock manager"][0])
    with pytest.raises(UnsafeMount, match="nolock"):
        init(str(tmp_path / "bad"))
    assert not (tmp_path / "bad" / "bell").exists()


@pytest.mark.parametrize("name", ["gfs2", "ocfs2"])
def test_a_cluster_file_system_lies_on_a_block_device(name, tmp_path, seen_as):
    """DESIGN 4: its number is that of a disk, so init, convert and a worker ask what it is; a short command does not."""
    from trainq.worker.loop import Worker
    from trainq.worker.place import Options

    root = str(tmp_path / "q")
    init(root)
    seen_as(LINES[name][0])
    assert init(str(tmp_path / "new")).mode == "shared"
    with pytest.raises(UnsafeMount, match=f"other hosts see it, too: this is {name}"):
        init(str(tmp_path / "local"), "local")
    assert not open_queue(root).is_shared
    with pytest.raises(UnsafeMount, match=f"a queue for one host's disk, seen here through {name}"):
        Worker(open_queue(root), Options(slots=1, queues=("default",))).run()
    assert convert(root, "shared").made
    with pytest.raises(UnsafeMount, match="other hosts see it"):
        convert(root, "local")
    seen_as(LINES[f"{name}, locks at home"][0])
    with pytest.raises(UnsafeMount, match="localflocks"):
        Worker(open_queue(root), Options(slots=1, queues=("default",))).run()


def test_the_mode_of_a_queue_stays(tmp_path, seen_as):
    """init of the other mode names the command that changes it."""
    init(str(tmp_path / "q"))
    with pytest.raises(NotPossible, match="already a local queue") as caught:
        init(str(tmp_path / "q"), "shared")
    assert caught.value.hint.endswith("db convert --shared")
    assert open_queue(str(tmp_path / "q")).session.is_cheap


def test_the_other_way_round_too(tmp_path):
    root = str(tmp_path / "q")
    init(root, "shared")
    with pytest.raises(NotPossible, match="already a shared queue") as caught:
        init(root, "local")
    assert caught.value.hint == f"trainq --root {root} db convert --local"
    assert convert(root, "local").made


def test_no_queue_becomes_one_of_a_group(tmp_path):
    """A queue's group is what all of its files are made for: the way on is a new one."""
    root = str(tmp_path / "q")
    init(root)
    with pytest.raises(NotPossible, match="already a queue, and not one of group") as caught:
        init(root, None, str(os.getgid()))
    assert caught.value.hint == f"there is no conversion; a new one: trainq init --group {os.getgid()} DIR"


def test_a_read_only_file_system_is_called_so(tmp_path, root):
    """No chmod helps: submit, worker and doctor say what it is."""
    trainq = Trainq(str(tmp_path / "seen"), str(tmp_path))
    os.mkdir(trainq.root)
    for mode in ("local", "shared"):
        if mode == "shared":
            convert(root, mode)
        with mounted("--bind", root, trainq.root):
            subprocess.run(["mount", "-o", "remount,bind,ro", trainq.root], check=True)
            for words in (("submit", "--", "true"), ("worker", "--once")):
                refused = trainq(*words)
                assert (refused.code, "read-only file system" in refused.err) == (6, True), refused
                assert "chmod" not in refused.err
            found = trainq("doctor")
            assert (found.code, "read-only file system" in found.out) == (6, True), found


def test_doctor_names_owner_and_group(tmp_path):
    root = str(tmp_path / "q")
    init(root, None, str(os.getgid()))
    (line,) = [check.message for check in examine(open_queue(root)).checks if check.name == "root"]
    owner = f"of {hosts.known_as(os.getuid())}"
    assert f"mode 2770, {owner}, group {queues.group_name(os.getgid())} (gid {os.getgid()}), on " in line
    init(str(tmp_path / "mine"))
    (line,) = [check.message for check in examine(open_queue(str(tmp_path / "mine"))).checks if check.name == "root"]
    assert f"mode 0700, {owner}, on " in line


def test_a_queue_for_one_host_is_refused_through_a_network(tmp_path, seen_as):
    root = str(tmp_path / "q")
    init(root)
    seen_as(LINES["nfs4"][0])
    with pytest.raises(UnsafeMount, match="for one host's disk, seen here through nfs4") as caught:
        open_queue(root)
    assert f"trainq --root {root} db convert --shared" in caught.value.hint
    seen_as(None)
    assert convert(root, "shared").made
    seen_as(LINES["nfs4"][0])
    assert open_queue(root).is_shared
    assert not open_queue(root).hears_all
    seen_as(LINES["nfs4 without close-to-open"][0])
    with pytest.raises(UnsafeMount, match="nocto"):
        open_queue(root)
    with pytest.raises(UnsafeMount):
        convert(root, "local")
