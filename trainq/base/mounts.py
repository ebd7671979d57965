"""What file system a path lies on, whether several hosts may see it, and whether its mount options keep locks honest.

Source: proc_pid_mountinfo(5), nfs(5), mount.cifs(8), mount.lustre(8), gfs2(5), virtiofsd(1). The mount of a path is found by the number that
the kernel itself gives for an open descriptor, so what is mounted over or bound elsewhere is told apart.
"""

from __future__ import annotations

import os
import re
from typing import NamedTuple

from trainq.base.errors import UnsafeMount

REMOTE = frozenset((
    "nfs", "nfs4", "cifs", "smb3", "smbfs", "ncpfs", "lustre", "gpfs", "beegfs", "ceph", "9p", "virtiofs", "afs", "gfs2",
    "ocfs2", "orangefs", "pvfs2", "panfs", "vboxsf", "prl_fs", "fuse.sshfs", "fuse.glusterfs", "fuse.ceph", "fuse.ceph-fuse",
    "fuse.rclone", "fuse.s3fs", "fuse.juicefs", "fuse.moosefs", "fuse.mfs", "fuse.lizardfs", "fuse.seaweedfs", "fuse.nfs",
))  # fmt: skip
"""Seen by more than one host."""
LOCAL_FUSE = frozenset((
    "fuseblk", "fuse.fuse-overlayfs", "fuse.lxcfs", "fuse.squashfuse", "fuse.bindfs", "fuse.gocryptfs", "fuse.encfs",
    "fuse.mergerfs", "fuse.portal",
))  # fmt: skip
LOCKLESS = frozenset(("fuse.sshfs", "fuse.rclone", "fuse.s3fs", "fuse.gcsfuse"))
"""Programs that are never asked for a lock: the kernel of each host keeps its own, whatever the options (fuse_operations
of libfuse, `lock` and `flock`)."""
UNPROVED = frozenset(("beegfs", "virtiofs", "9p", "afs", "vboxsf", "prl_fs"))
"""Locks stay on each host here unless the file system is set up otherwise, which its mount options do not show
(tuneUseGlobalFileLocks of BeeGFS, the locks of virtiofsd, and so on)."""
DISHONEST = {
    "nolock": "locks stay on each host: mount it without nolock",
    "nocto": "an open does not see what another host wrote: mount it without nocto",
    "nobrl": "locks stay on each host: mount it without nobrl",
    "localflock": "locks stay on each host: mount it with flock instead of localflock",
    "localflocks": "locks stay on each host: mount it without localflocks",
    "cache=loose": "an open does not see what another host wrote: mount it with cache=none",
    "cache=fscache": "an open does not see what another host wrote: mount it with cache=none",
    "cache=mmap": "an open does not see what another host wrote: mount it with cache=none",
}


class Mount(NamedTuple):
    """The mount that holds a path: the kernel's name of the file system, where from, and all of its options."""

    kind: str
    source: str
    options: tuple[str, ...]

    @property
    def is_remote(self) -> bool:
        """Whether it is certain that the files are not this host's alone."""
        return self.kind in REMOTE

    @property
    def is_network(self) -> bool:
        """Whether other hosts may see the same files: nobody can tell of a program that serves a file system."""
        return self.is_remote or (self.kind.partition(".")[0] == "fuse" and self.kind not in LOCAL_FUSE)

    @property
    def is_unproved(self) -> bool:
        """Whether hosts may see the files, and nothing here tells if they see each other's locks."""
        return self.is_network and (self.kind in UNPROVED or not self.is_remote)

    @property
    def fault(self) -> str | None:
        """Why no queue can be kept here, with the option to change if it is one; None if nothing is known against it."""
        if self.kind in LOCKLESS:
            return f"this is {self.kind.removeprefix('fuse.')}, whose locks stay on each host"
        for option in self.options:
            name, _, value = option.partition("=")
            if name == "local_lock" and value not in ("", "none"):
                return f"{option}: locks stay on each host: mount it without local_lock"
            if option in DISHONEST:
                return f"{option}: {DISHONEST[option]}"
        return None


UNKNOWN = Mount("unknown", "", ())


def mount_of(path: str) -> Mount:
    """The mount that holds the directory `path`; an overlay is seen through to where it writes. UNKNOWN without /proc."""
    found = _mount_of(path)
    if found.kind == "overlay":
        upper = next((option[9:] for option in found.options if option.startswith("upperdir=")), None)
        if upper is not None and os.path.isdir(upper):
            below = _mount_of(upper)
            return below if below.is_network else found
    return found


def _mount_of(path: str) -> Mount:
    try:
        number = _mount_id(path)
        with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
            for line in file:
                if line.partition(" ")[0] == number:
                    return parsed(line)
    except (OSError, ValueError, StopIteration):
        pass  # no /proc, or a line of a form to come: then nothing is known, and nothing refused
    return UNKNOWN


def _mount_id(path: str) -> str:
    fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        with open(f"/proc/self/fdinfo/{fd}", encoding="ascii") as file:
            return next(line.split()[1] for line in file if line.startswith("mnt_id:"))
    finally:
        os.close(fd)


def parsed(line: str) -> Mount:
    """A line of mountinfo. Raises ValueError when it is none."""
    fields = line.split()
    dash = fields.index("-", 6)
    kind, source, more = fields[dash + 1], fields[dash + 2], fields[dash + 3] if len(fields) > dash + 3 else ""
    return Mount(kind, _plain(source), tuple(_plain(each) for each in f"{fields[5]},{more}".split(",") if each))


def _plain(text: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), text)


def may_be_network(found: os.stat_result) -> bool:
    """Whether it is worth asking, for a short command: what lies on a device of its own number is a disk of this host, or
    of a cluster (gfs2, ocfs2), which was asked for when the queue was made and is when a worker starts."""
    return os.major(found.st_dev) == 0


def require_honest(path: str, mount: Mount) -> None:
    """Raises UnsafeMount naming the option, or the file system, when hosts would not keep each other out here."""
    if mount.fault is None:
        return
    if mount.kind in LOCKLESS:
        raise UnsafeMount(f"{path}: {mount.fault}", hint="put it on NFS, or on a disk of this host")
    raise UnsafeMount(f"{path}: mounted with {mount.fault}", hint="trainq doctor")
