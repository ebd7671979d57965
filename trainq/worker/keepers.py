"""The worker's side of the keepers: open them, hand them jobs, hear how the jobs end.

What must stay true:
- The worker is a child subreaper from `open_keepers` on: what a killed keeper leaves behind becomes the
  worker's child.
- A keeper learns that the worker is gone by the end of its socket. So no process that lives on may inherit
  the worker's ends: start programs by `subprocess`, never by a bare `fork`.
- No call here waits for a job, and none but `open_keepers` and `close` waits for a keeper.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from typing import TYPE_CHECKING, NamedTuple

from trainq.base.errors import BadValue, TimedOut, Unsupported
from trainq.worker import start_keepers, tree
from trainq.worker.keeper import PACKET_BYTES, RETRY_FIRST_S, RETRY_MOST_S, socketpair
from trainq.worker.kernel import PR_SET_CHILD_SUBREAPER, prctl

if TYPE_CHECKING:
    from collections.abc import Collection

READY_S = 10.0


class Plan(NamedTuple):
    """What to run. A program without a slash is looked up in `env`'s PATH, else it is relative to `cwd`."""

    argv: tuple[bytes, ...]
    env: dict[bytes, bytes]
    cwd: bytes
    umask: int


class Started(NamedTuple):
    """The program runs. `start` is in clock ticks since boot: with `pid` it names the process for good."""

    pid: int
    start: int


class Failed(NamedTuple):
    """Nothing was started and the keeper is free again; `step` is fork, setup, chdir or exec."""

    step: str
    errno: int


class Exited(NamedTuple):
    """The main process ended by itself (`code`) or by a signal; the other one of the two is None."""

    code: int | None
    signal: int | None
    maxrss_kib: int
    user_s: float
    sys_s: float


class Empty(NamedTuple):
    """No process of the job is left and the keeper is free again; `killed` of them had to be killed."""

    killed: int


class Frozen(NamedTuple):
    """No process of the job runs; `killed` of them moved for too long. Told again just before Exited when the
    main process is one of them."""

    killed: int


class Thawed(NamedTuple):
    """The job goes on. `frozen_s` is the time since the freezing began, a suspend included."""

    frozen_s: float


class KeeperLost(Exception):
    """The keeper has died, and its job's main process with it; `end_strays` ends what else was left."""


Event = Started | Failed | Exited | Empty | Frozen | Thawed


class Keeper:
    """One slot. A job is Started, Exited, Empty, or Failed; the next may be started after Empty or Failed.

    Between its start and Empty a job may be Frozen and Thawed, any number of times; a job that ends while it is frozen
    is not Thawed. Frozen comes when the lease has passed, and after a pause. A word to a keeper that is gone, or does not listen, is lost
    in silence: that it is gone is what `events` tells, and it tells it soon.
    """

    def __init__(self, line: socket.socket, pid: int) -> None:
        line.setblocking(False)
        self._line = line
        self.pid = pid

    def fileno(self) -> int:
        """Readable when `events` has something to say."""
        return self._line.fileno()

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called."""
        return self._line.fileno() < 0

    def start(self, plan: Plan, stdin: int, stdout: int, stderr: int) -> None:
        """Start a job; the descriptors stay the caller's to close. Raises BadValue."""
        fd = _plan_file(plan)
        try:
            # The plan is read from its start, whatever the offset.
            self._say(b"start", [fd, stdin, stdout, stderr])
        finally:
            os.close(fd)

    def stop(self, grace_s: float) -> None:
        """End the job: one TERM to each of its processes, KILL after `grace_s` seconds (0: at once).

        Said again it can only shorten the grace, which stands still while the job is frozen. Without a job it does
        nothing. One frozen for its lease is killed where it stands, without a grace; one that is paused goes on.
        """
        self._say(b"stop %f" % max(0.0, grace_s))

    def lease(self, until_boot_s: float, bound_s: float) -> None:
        """The jobs of this keeper may compute until then (CLOCK_BOOTTIME); each lease takes the place of the last.

        Say it after each confirmed beat, counted from before that beat was sent, and before `start`: a lease outlives
        the job, and a job that is started when it has passed is frozen at once. Without any there is no limit. When
        the moment passes the job is frozen, within `bound_s` seconds: what still moves then is killed. Only `thaw`
        under a new lease lets it go on.
        """
        self._say(b"lease %f %f" % (until_boot_s, max(0.0, bound_s)))

    def thaw(self) -> None:
        """Let a frozen job go on; the answer is Thawed. If the lease has passed, the job is paused, or nothing is
        frozen: no answer.

        What had stopped itself before the freeze stays stopped.
        """
        self._say(b"thaw")

    def pause(self) -> None:
        """Freeze the job until `resume`, whatever becomes of the lease; the answer is Frozen. Without a bound: nothing is
        killed for being slow. Without a job, or to one that is being killed, it does nothing."""
        self._say(b"pause")

    def resume(self) -> None:
        """The pause is over; the answer is Thawed, when the lease is good."""
        self._say(b"resume")

    def locks(self, names: Collection[str]) -> None:
        """Files (see `lock_name`) that no process may be frozen with a write lock on: it runs on until it lets go.

        Counts for freezes that begin later.
        """
        self._say(b"locks " + " ".join(names).encode())

    def events(self) -> list[Event]:
        """What has happened since the last call; never waits.

        Raises KeeperLost once the keeper is gone and all it said was heard; then the processes it left are
        descendants of this one, and `end_strays` finds them.
        """
        heard: list[Event] = []
        while True:
            try:
                words = self._line.recv(PACKET_BYTES).decode()
            except BlockingIOError:
                return heard
            except ConnectionResetError:
                words = ""
            verb, *rest = words.split(maxsplit=1 if words.startswith("broken") else -1) or [""]
            event = _event(verb, rest)
            if event is not None:
                heard.append(event)
            elif heard:
                return heard  # the end is heard again next time
            else:
                _wait_for(self.pid)
                raise KeeperLost(f"keeper {self.pid} is gone {' '.join(rest)}".rstrip())

    def close(self, timeout_s: float = 5.0) -> None:
        """Let the keeper go, its job being killed at once; returns when both are gone or time is out."""
        if self.is_closed:
            return
        try:
            self._line.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # it has gone already
        poller = select.poll()
        poller.register(self._line.fileno(), select.POLLIN)
        until = time.monotonic() + timeout_s
        while (left_s := until - time.monotonic()) > 0:
            poller.poll(left_s * 1000)
            try:
                gone = not self._line.recv(PACKET_BYTES)
            except BlockingIOError:
                continue
            except ConnectionResetError:
                gone = True
            if gone:
                _wait_for(self.pid)
                break
        self._line.close()

    def _say(self, words: bytes, fds: Collection[int] = ()) -> None:
        try:
            socket.send_fds(self._line, [words], list(fds))
        except BlockingIOError:
            # Stopped for so long that its socket is full. It is our child and not reaped, so the number is its own.
            os.kill(self.pid, signal.SIGKILL)
        except OSError:
            pass  # it has gone, or is going: whoever reads the line hears of its end


def open_keepers(n: int) -> list[Keeper]:
    """Start `n` keepers and make this process a child subreaper; returns when all are ready.

    The keepers outlive this process just long enough to kill their jobs. Raises Unsupported (no /proc with
    children files), TimedOut.
    """
    if not os.path.exists(f"/proc/self/task/{os.getpid()}/children"):
        raise Unsupported("/proc does not list the children of a process here", hint="use Linux with /proc mounted")
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    until = time.monotonic() + READY_S
    pairs = [socketpair() for _ in range(n)]
    lines = [line for line, _ in pairs]
    try:
        first = _execute_program([end for _, end in pairs])
        keepers = [Keeper(line, _ready(line, until)) for line in lines]
    except BaseException:
        for line in lines:
            line.close()  # a keeper that is late sees the end and goes
        raise
    # It exits as soon as it has forked the keepers; from then on they are our children.
    first.wait()
    return keepers


def lock_name(path: str) -> str:
    """The file as /proc/locks names it: major:minor:inode of the file system. Raises OSError.

    On some file systems (btrfs) the device that `stat` gives is another one. The file is not really opened: closing
    an open one would drop the locks this process has on it.
    """
    fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        seen = os.fstat(fd)
        with open(f"/proc/self/fdinfo/{fd}", "rb") as file:
            mount = next((line.split()[1] for line in file if line.startswith(b"mnt_id:")), b"")
    finally:
        os.close(fd)
    major, minor = os.major(seen.st_dev), os.minor(seen.st_dev)
    with open("/proc/self/mountinfo", "rb") as file:
        for words in map(bytes.split, file):
            if words[0] == mount:
                major, minor = map(int, words[2].split(b":"))
    return f"{major:02x}:{minor:02x}:{seen.st_ino}"


def end_strays(spare: Collection[int], timeout_s: float = 5.0) -> int:
    """KILL all descendants of this process but `spare` and what is below them, and wait for their end.

    `spare` must name all children this process wants to keep: the other keepers and the programs it runs.
    Gives the number of children left when time was out (they hang in the kernel, or are another user's).
    """
    kept = frozenset(spare)
    until = time.monotonic() + timeout_s
    pause_s = RETRY_FIRST_S
    while True:
        tree.kill_family(kept)
        ours = [pid for pid in tree.children(os.getpid()) if pid not in kept]
        left = [pid for pid in ours if not _reap(pid)]
        if not ours or time.monotonic() >= until:
            return len(left)
        if len(left) == len(ours):  # else look again at once: what dies may have forked before
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, RETRY_MOST_S)


def _execute_program(ends: list[socket.socket]) -> subprocess.Popen[bytes]:
    fds = [end.fileno() for end in ends]
    command = [sys.executable, "-I", "-S", start_keepers.__file__, *map(str, fds)]
    null = subprocess.DEVNULL
    try:
        return subprocess.Popen(
            command, cwd="/", stdin=null, stdout=null, stderr=null, pass_fds=fds, start_new_session=True
        )
    finally:
        for end in ends:
            end.close()


def _ready(line: socket.socket, until: float) -> int:
    """Wait for the keeper's first word; its pid."""
    line.settimeout(max(0.001, until - time.monotonic()))
    try:
        verb, _, rest = line.recv(PACKET_BYTES).decode().partition(" ")
    except TimeoutError:
        raise TimedOut(f"the keepers were not ready within {READY_S:.0f} s") from None
    if verb != "ready":
        raise Unsupported(f"a keeper could not start here {rest}".rstrip(), hint="trainq doctor")
    return int(rest)


def _plan_file(plan: Plan) -> int:
    """The plan as a file without a name: an argument list may be megabytes long, a packet may not."""
    fields = [plan.cwd, b"%d" % plan.umask, b"%d" % len(plan.argv), *plan.argv]
    fields.extend(name + b"=" + value for name, value in plan.env.items())
    text = b"\0".join(fields)
    if text.count(b"\0") != len(fields) - 1:
        raise BadValue("an argument, variable or directory contains a NUL byte, which no program can be given")
    if not plan.argv:
        raise BadValue("the command is empty")
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("trainq-plan", os.MFD_CLOEXEC)
    else:  # Python was built for a C library older than Linux 3.17's call
        with tempfile.TemporaryFile() as file:
            fd = os.dup(file.fileno())
    view = memoryview(text)
    while view:
        view = view[os.write(fd, view) :]
    return fd


def _event(verb: str, rest: list[str]) -> Event | None:
    """The event these words tell; None for the end of the keeper."""
    if verb == "started":
        return Started(int(rest[0]), int(rest[1]))
    if verb == "failed":
        return Failed(rest[0], int(rest[1]))
    if verb == "exited":
        code, number = (None if word == "-" else int(word) for word in rest[:2])
        return Exited(code, number, int(rest[2]), float(rest[3]), float(rest[4]))
    if verb == "empty":
        return Empty(int(rest[0]))
    if verb == "frozen":
        return Frozen(int(rest[0]))
    if verb == "thawed":
        return Thawed(float(rest[0]))
    return None


def _reap(pid: int) -> bool:
    """Whether this child is gone (True also if somebody else took its end)."""
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except ChildProcessError:
        return True


def _wait_for(pid: int) -> None:
    """Wait for a child that is exiting; after this all it left behind has been handed to us."""
    try:
        os.waitpid(pid, 0)
    except ChildProcessError:
        pass  # taken by a wait for any child
