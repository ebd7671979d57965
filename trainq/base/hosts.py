"""Who and where we are: the host's name and identity, the user, and whether a process is still the same one.

Identity is for judging processes only: machine id, boot id, host name and PID namespace; any difference means another
host, since containers on one kernel share a boot id and not their pids.
"""

from __future__ import annotations

import os

from trainq.base.errors import Unsupported


def hostname() -> str:
    """This host's short name."""
    return os.uname().nodename.partition(".")[0] or "localhost"


def identity() -> str:
    """A digest-free identity of host, boot and PID namespace."""
    return "/".join((_line("/etc/machine-id"), _line("/proc/sys/kernel/random/boot_id"), hostname(), _namespace()))


def user_name(user_id: int) -> str:
    """The login name of a uid, or the uid's digits when the user database does not know it."""
    import pwd

    try:
        return pwd.getpwuid(user_id).pw_name
    except KeyError:
        return str(user_id)


def user_id(name: str) -> int:
    """The uid of a login name, or of digits that are none. Raises BadValue."""
    import pwd

    from trainq.base.errors import BadValue

    try:
        return pwd.getpwnam(name).pw_uid
    except (KeyError, ValueError):
        if name.isascii() and name.isdecimal():
            return int(name)
        raise BadValue(f"there is no user {name!r}") from None


def is_member(user_id: int, group_id: int) -> bool:
    """Whether the user database of this host knows this user to be in that group."""
    import pwd

    try:
        found = pwd.getpwuid(user_id)
    except KeyError:
        return False
    return group_id in os.getgrouplist(found.pw_name, found.pw_gid)


def known_as(user_id: int) -> str:
    """A user for a message: name and uid."""
    return f"{user_name(user_id)} (uid {user_id})"


def start_of(pid: int) -> int | None:
    """Clock ticks from boot to the start of process `pid`, None when there is no such process (or a zombie's rest).

    Source: field 22 of /proc/PID/stat, proc_pid_stat(5); the name in field 2 may hold spaces and brackets.
    """
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    except OSError as error:
        raise Unsupported(f"/proc cannot be read: {error.strerror}") from error
    return None if fields[0] in (b"Z", b"X") else int(fields[19])


def is_stopped(pid: int) -> bool:
    """Whether process `pid` is stopped by a signal."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0] == b"T"
    except OSError:
        return False


def is_same_process(pid: int, start: int) -> bool:
    """Whether process `pid` lives and is the one that started then."""
    return start_of(pid) == start


def _line(path: str) -> str:
    try:
        with open(path, encoding="ascii") as file:
            return file.readline().strip()
    except (OSError, UnicodeDecodeError):
        return "-"  # a container without the file: the other parts still tell hosts apart


def _namespace() -> str:
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return "-"
