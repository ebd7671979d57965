"""The keeper: the small program that starts the jobs of one slot and ends every process they leave.

It is *executed* (`python -I -S keeper.py FD ...`, one FD per slot) before the worker does anything else, so
that no lock, thread or open file of the worker can be inherited by a job. The executed process forks one
keeper per FD and exits; each keeper serves one slot, one job at a time, and talks to the worker over its own
socket, one packet of plain words each way:

    start (with descriptors: plan, stdin, stdout, stderr)   started PID START | failed STEP ERRNO
    stop GRACE_S                                            exited CODE|- SIGNAL|- MAXRSS_KIB USER_S SYS_S
                                                            empty KILLED

What must stay true:
- Each keeper is a child subreaper, so what a job leaves behind becomes its keeper's child and nobody else's.
  A job has ended when the keeper has no child left, not before.
- No process is signalled unless it was found among the keeper's descendants just then.
- The keeper waits in one place only, `poll`: a job, its files or its outputs can hang without hanging it.
- If the worker is gone (end of the socket) the job is killed at once and the keeper exits. If the keeper is
  gone the job's main process dies by its parent-death signal; the rest falls to the worker, also a subreaper.
- Nothing under the queue's root is open here: the working directory is `/`, and the log's descriptors are
  closed before the job may run, because closing a written file on a network file system can hang.

It imports nothing of trainq and little else: start-up time and the size of a fork are paid again and again.
"""

from __future__ import annotations

import ctypes
import errno
import os
import select
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    import socket
    from typing import NoReturn
else:  # The public modules add `enum`, `selectors` and 8 ms; these are the parts of them that are used.
    import _signal as signal
    import _socket as socket

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
LEFTOVER_GRACE_S = 2.0
RETRY_FIRST_S, RETRY_MOST_S = 0.01, 1.0
PACKET_BYTES = 4096
LONGEST_POLL_MS = 3_600_000.0
KEEPER_IGNORES = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
PYTHON_IGNORES = (signal.SIGPIPE, signal.SIGXFSZ)
NOT_HERE = (errno.ENOENT, errno.ENOTDIR, errno.ESTALE, errno.ENODEV, errno.ETIMEDOUT)

_libc = ctypes.CDLL(None, use_errno=True)
_libc.prctl.argtypes = [ctypes.c_int] + [ctypes.c_ulong] * 4


def prctl(option: int, value: int) -> None:
    """Set one attribute of this process. Raises OSError."""
    if _libc.prctl(option, value, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


# ---------------------------------------------------------------- the process tree, as /proc shows it


def read(path: str) -> bytes:
    """The whole of a small file; empty if it, or the process it describes, is gone."""
    parts = []
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        while part := os.read(fd, 65536):
            parts.append(part)
    except ProcessLookupError:
        return b""
    finally:
        os.close(fd)
    return b"".join(parts)


class Stat:
    """The fields of /proc/PID/stat that matter here. `start` is in clock ticks since boot (field 22)."""

    __slots__ = ("group", "parent", "start", "state")

    def __init__(self, text: bytes) -> None:
        words = text[text.rindex(b")") + 2 :].split()
        self.state = words[0]
        self.parent = int(words[1])
        self.group = int(words[2])
        self.start = int(words[19])


def stat(pid: int) -> Stat | None:
    """What the process is now; None if it is gone."""
    text = read(f"/proc/{pid}/stat")
    return Stat(text) if text else None


def children(pid: int) -> list[int]:
    """The children of all threads of a process; empty if it is gone."""
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return []
    found: list[int] = []
    for thread in threads:
        found.extend(map(int, read(f"/proc/{pid}/task/{thread}/children").split()))
    return found


def family(spare: frozenset[int] = frozenset()) -> list[tuple[int, int]]:
    """(pid, parent) of all descendants of this process, parents first, but for `spare` and what is below."""
    me = os.getpid()
    found = [(pid, me) for pid in children(me) if pid not in spare]
    for pid, _ in found:  # grows while it is walked
        found.extend((child, pid) for child in children(pid))
    return found


def send(pid: int, parent: int, number: int) -> bool:
    """Signal a process found by `family`; False if it is gone, not there any more, or out of reach (setuid).

    The number of a child that only we can reap cannot be used again. That of a deeper descendant can, so it
    is held by a pidfd first and its parent looked at then: if that is still the one it was found under (or
    we, after that one died), the number still means the process that was found.
    """
    me = os.getpid()
    try:
        if parent == me:
            os.kill(pid, number)
            return True
        handle = os.pidfd_open(pid) if hasattr(os, "pidfd_open") else -1
    except OSError as error:
        if error.errno != errno.ENOSYS:  # Linux before 5.3: the look at the parent has to do
            return False
        handle = -1
    try:
        now = stat(pid)
        if now is None or now.parent not in (parent, me):
            return False
        if handle >= 0:
            signal.pidfd_send_signal(handle, number)
        else:
            os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        return False
    finally:
        if handle >= 0:
            os.close(handle)
    return True


def kill_family(spare: frozenset[int] = frozenset()) -> set[int]:
    """KILL all descendants in one pass, so that the death of one wakes no stopped other; the pids hit."""
    hit = set()
    for pid, parent in family(spare):
        now = stat(pid)  # a zombie gets it too: only its first thread may be dead
        if send(pid, parent, signal.SIGKILL) and now is not None and now.state != b"Z":
            hit.add(pid)
    return hit


# ---------------------------------------------------------------- the job's side of the fork


class Plan:
    """What to run. On the wire: fields parted by NUL, which no argument, variable or path can contain."""

    __slots__ = ("argv", "cwd", "env", "umask")

    def __init__(self, text: bytes) -> None:
        fields = text.split(b"\0")
        self.cwd = fields[0]
        self.umask = int(fields[1])
        end = 3 + int(fields[2])
        self.argv = fields[3:end]
        self.env = dict(field.split(b"=", 1) for field in fields[end:])


def read_plan(fd: int) -> Plan:
    """Read the plan from the start of its file."""
    parts, at = [], 0
    while part := os.pread(fd, 1 << 20, at):
        parts.append(part)
        at += len(part)
    return Plan(b"".join(parts))


def is_text(path: bytes) -> bool:
    """Whether a shell would read this file as a script: some bytes, none of the first 128 NUL."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    head = os.read(fd, 128)
    os.close(fd)
    return bool(head) and b"\0" not in head


def execute_file(path: bytes, plan: Plan) -> NoReturn:
    """Become this file; a script without `#!` runs in sh, as when typed in a shell. Raises OSError."""
    try:
        os.execve(path, plan.argv, plan.env)
    except OSError as error:
        if error.errno != errno.ENOEXEC or not is_text(path):
            raise
        os.execve(b"/bin/sh", [b"sh", path, *plan.argv[1:]], plan.env)


def execute(plan: Plan) -> NoReturn:
    """Become the program, looked up in the job's own PATH as execvp does it. Raises OSError."""
    name = plan.argv[0]
    if b"/" in name:
        execute_file(name, plan)
    failure = FileNotFoundError(errno.ENOENT, "not in PATH")
    if not name:
        raise failure
    denied = None
    for place in plan.env.get(b"PATH", os.defpath.encode()).split(b":"):
        try:
            execute_file(os.path.join(place or b".", name), plan)
        except PermissionError as error:
            denied = error
        except OSError as error:
            if error.errno not in NOT_HERE:
                raise
    raise denied or failure


def become_job(plan: Plan, stdio: list[int], report: socket.socket, keeper: int) -> NoReturn:
    """The forked child's life up to the job's first instruction; says on `report` at which step it failed."""
    step = "setup"
    try:
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        # The keeper may have died before the line above, and lets us go on only after it closed the log.
        if os.getppid() != keeper or not report.recv(1):
            os._exit(127)
        os.setsid()
        os.umask(plan.umask)
        for target, fd in enumerate(stdio):
            os.dup2(fd, target)
        step = "chdir"
        os.chdir(plan.cwd)
        step = "exec"
        for number in KEEPER_IGNORES + PYTHON_IGNORES:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        execute(plan)
    except OSError as error:
        report.send(f"failed {step} {error.errno}".encode())
    except ValueError:  # what execve refuses before the kernel sees it
        report.send(f"failed {step} {errno.EINVAL}".encode())
    finally:
        os._exit(127)


# ---------------------------------------------------------------- the keeper


class Keeper:
    """One slot: at most one job, from `start` to `empty`."""

    def __init__(self, line: socket.socket) -> None:
        self.line = line
        self.poller = select.poll()
        self.wake, end = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.set_wakeup_fd(end, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for fd in (self.line.fileno(), self.wake):
            self.poller.register(fd, select.POLLIN)
        self.worker_gone = False
        self.clear()

    def clear(self) -> None:
        """Forget the last job."""
        self.busy = False
        self.main = 0  # pid of the main process until it is reaped
        self.group = 0  # its process group, also later
        self.report: socket.socket | None = None  # open until the exec has worked or failed
        self.failure = b""
        self.kill_at: float | None = None
        self.retry_s = RETRY_FIRST_S
        self.asked = False  # the worker's TERM was sent
        self.insisting = False  # the time for TERM is over
        self.swept = False  # what the main process left has had its TERM
        self.terminated: dict[int, int] = {}  # pid -> start of those that had their TERM
        self.killed: set[int] = set()

    def run(self) -> None:
        """Serve the worker until it is gone and nothing of the job is left."""
        self.tell(f"ready {os.getpid()}")
        while self.busy or not self.worker_gone:
            ready = [fd for fd, _ in self.poller.poll(self.patience_ms())]
            if self.wake in ready:
                os.read(self.wake, 4096)
            if not self.worker_gone and self.line.fileno() in ready:
                self.listen()
            self.hear_report()
            self.reap()
            self.kill_if_due()

    def patience_ms(self) -> float | None:
        """How long `poll` may wait; None: until something happens."""
        if self.kill_at is None:
            return None
        return min(max(0.0, (self.kill_at - time.monotonic()) * 1000 + 1), LONGEST_POLL_MS)

    def tell(self, words: str) -> None:
        """Say something to the worker."""
        try:
            self.line.send(words.encode())
        except (BrokenPipeError, ConnectionResetError):
            pass  # the worker is gone; the end of the socket is read next and says what to do

    def listen(self) -> None:
        """One word of the worker, or its end."""
        try:
            words, ancillary, _, _ = self.line.recvmsg(PACKET_BYTES, socket.CMSG_SPACE(4 * 8), socket.MSG_CMSG_CLOEXEC)
        except ConnectionResetError:  # it died with packets of ours unread
            words, ancillary = b"", []
        verb, *rest = words.split()[:2] or [b""]
        if verb == b"start":
            self.start([fd for _, _, data in ancillary for fd in descriptors(data)])
        elif verb == b"stop":
            self.stop(float(rest[0]))
        elif not words:
            self.worker_gone = True
            self.poller.unregister(self.line.fileno())
            self.stop(0.0)

    def start(self, fds: list[int]) -> None:
        """Fork the job's main process."""
        try:
            plan = read_plan(fds[0])
            mine, its = socketpair()
            # A signal sent to the child before it has its own dispositions must wait, not be ignored as here.
            signal.pthread_sigmask(signal.SIG_BLOCK, KEEPER_IGNORES)
            me = os.getpid()
            pid = os.fork()
            if pid == 0:
                os.close(mine.fileno())
                become_job(plan, fds[1:], its, me)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, KEEPER_IGNORES)
            its.close()
        except OSError as error:  # no more processes, descriptors or memory
            signal.pthread_sigmask(signal.SIG_UNBLOCK, KEEPER_IGNORES)
            self.tell(f"failed fork {error.errno}")
            return
        finally:
            for fd in fds:
                os.close(fd)
        self.busy, self.main, self.group, self.report = True, pid, pid, mine
        mine.send(b"g")
        mine.setblocking(False)
        self.poller.register(mine.fileno(), select.POLLIN)

    def hear_report(self) -> None:
        """Once the exec has worked (the report ends without a word) tell the worker, else keep the reason."""
        if self.report is None:
            return
        try:
            self.failure = self.report.recv(PACKET_BYTES)
        except BlockingIOError:
            return
        except ConnectionResetError:
            pass  # the child died before it read the go-ahead: an end without a word
        self.poller.unregister(self.report.fileno())
        self.report.close()
        self.report = None
        if not self.failure:
            now = stat(self.main)
            self.tell(f"started {self.main} {now.start if now else 0}")

    def reap(self) -> None:
        """Take the ends of all children that have one."""
        while self.busy:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                self.tell(self.failure.decode() or f"empty {len(self.killed)}")
                self.clear()
                return
            if pid == 0:
                break
            if self.insisting:  # what dies may have forked before: look again at once
                self.kill_within(0.0)
                self.retry_s = RETRY_FIRST_S
            if pid == self.main:
                self.hear_report()
                self.main = 0
                if not self.failure:
                    self.tell(exited(status, usage.ru_maxrss, usage.ru_utime, usage.ru_stime))
        if self.busy and not self.main and not self.swept:
            self.swept = True
            self.kill_within(LEFTOVER_GRACE_S)
            if not self.insisting:
                self.terminate()

    def stop(self, grace_s: float) -> None:
        """The worker's wish: one TERM now, KILL after the grace; said again it can only shorten the grace."""
        if not self.busy:
            return
        self.kill_within(grace_s)
        self.insisting = self.insisting or grace_s <= 0
        if not self.insisting and not self.asked:
            self.asked = True
            self.terminate()

    def kill_within(self, grace_s: float) -> None:
        """Bring the time of the KILL forward, never back."""
        kill_at = time.monotonic() + grace_s
        self.kill_at = kill_at if self.kill_at is None else min(kill_at, self.kill_at)

    def terminate(self) -> None:
        """One TERM to every process of the job that had none yet, and CONT to the stopped so they can act.

        The main process's group gets it at once, so that none slips through by forking; the rest one by one.
        """
        found = self.look()
        members = {pid for pid, (_, now) in found.items() if now.group == self.group}
        done = members & {pid for pid, (_, now) in found.items() if self.terminated.get(pid) == now.start}
        if members and not done:
            try:
                os.killpg(self.group, signal.SIGTERM)
            except (ProcessLookupError, PermissionError):
                pass  # all gone by now, or none of them ours to signal
            # What was forked meanwhile got it too or was born of a TERM handler; neither may get another.
            for pid, (_, now) in self.look().items():
                if now.group == self.group or pid in members:
                    self.terminated[pid] = now.start
        for pid, (parent, now) in found.items():
            fresh = self.terminated.get(pid) != now.start
            if fresh:
                self.terminated[pid] = now.start
                send(pid, parent, signal.SIGTERM)
            if now.state == b"T":
                send(pid, parent, signal.SIGCONT)

    def look(self) -> dict[int, tuple[int, Stat]]:
        """The processes of the job now: pid -> (parent, stat)."""
        seen = ((pid, parent, stat(pid)) for pid, parent in family())
        return {pid: (parent, now) for pid, parent, now in seen if now is not None and now.state != b"Z"}

    def kill_if_due(self) -> None:
        """KILL what is left, again and again, ever more seldom: what will not die hangs in the kernel."""
        if self.busy and self.kill_at is not None and time.monotonic() >= self.kill_at:
            self.insisting = True
            self.killed |= kill_family()
            self.kill_at = time.monotonic() + self.retry_s
            self.retry_s = min(2 * self.retry_s, RETRY_MOST_S)


def descriptors(data: bytes) -> list[int]:
    """The descriptors that came with a packet."""
    return [int.from_bytes(data[at : at + 4], sys.byteorder) for at in range(0, len(data) - 3, 4)]


def exited(status: int, maxrss_kib: int, user_s: float, sys_s: float) -> str:
    """The words for the end of the main process."""
    code = os.waitstatus_to_exitcode(status)
    end = f"{code} -" if code >= 0 else f"- {-code}"
    return f"exited {end} {maxrss_kib} {user_s:.6f} {sys_s:.6f}"


def socketpair() -> tuple[socket.socket, socket.socket]:
    """Two connected ends that keep packets whole and close on exec."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def keep(fd: int) -> NoReturn:
    """Be the keeper of one slot, in a session of its own so that no terminal signals it."""
    try:
        os.setsid()
        prctl(PR_SET_CHILD_SUBREAPER, 1)
        line = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET, 0, fd)
        try:
            Keeper(line).run()
        except BaseException as error:  # noqa: BLE001 - a bug: its words go to the worker, the job ends with us
            line.send(f"broken {error!r}".encode()[:PACKET_BYTES])
    finally:
        os._exit(0)


def main(fds: list[int]) -> None:
    """Fork a keeper per descriptor and go, so that all are children of the worker, none of another keeper."""
    for number in KEEPER_IGNORES:
        signal.signal(number, signal.SIG_IGN)
    for fd in fds:
        os.set_inheritable(fd, False)
    for fd in fds:
        if os.fork() == 0:
            for other in fds:
                if other != fd:
                    os.close(other)
            keep(fd)
    os._exit(0)


if __name__ == "__main__":
    main([int(word) for word in sys.argv[1:]])
