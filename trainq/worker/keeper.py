"""The keeper: the small program that starts the jobs of one slot, stops them and ends every process they leave.

It is *executed* (`start_keepers.py`) before the worker does anything else, so that no lock, thread or open file of
the worker can be inherited by a job. The executed process forks one keeper per descriptor and exits; each keeper
serves one slot, one job at a time, and talks to the worker over its own socket, one packet of plain words each way:

    start (with descriptors: plan, stdin, stdout, stderr)   started PID START | failed STEP ERRNO
    stop GRACE_S                                            exited CODE|- SIGNAL|- MAXRSS_KIB USER_S SYS_S
    thaw                                                    empty KILLED
    lease UNTIL_BOOT_S BOUND_S                              frozen KILLED
    locks MAJOR:MINOR:INODE ...                             thawed FROZEN_S
    pause
    resume

What must stay true:
- Each keeper is a child subreaper, so what a job leaves behind becomes its keeper's child and nobody else's.
  A job has ended when the keeper has no child left, not before.
- No process is signalled unless it was found among the keeper's descendants just then.
- The keeper waits in one place only, `poll`: a job, its files or its outputs can hang without hanging it.
- When the lease has passed the job is frozen, whatever the worker does. From then on no process of it is continued
  until the worker has given a new lease and said what to do: it ends where it stands, or goes on, with what was left
  of its grace if it had been asked to end.
- A pause freezes as well, but is no doubt: nothing is killed for moving, and a stop with a grace ends it. Paused and
  without a lease, a job goes on only when both are over, whichever is first.
- If the worker is gone (end of the socket) the job is killed at once and the keeper exits. If the keeper is
  gone the job's main process dies by its parent-death signal; the rest falls to the worker, also a subreaper.
- Nothing under the queue's root is open here: the working directory is `/`, and the log's descriptors are
  closed before the job may run, because closing a written file on a network file system can hang.

It imports nothing of trainq but its siblings (freeze, kernel, launch, tree), and little else: start-up time and the
size of a fork are paid again and again.
"""

from __future__ import annotations

import os
import select
import sys
import time

from trainq.worker.freeze import Freeze
from trainq.worker.kernel import PR_SET_CHILD_SUBREAPER, PR_SET_PDEATHSIG, Alarm, boot_s, prctl
from trainq.worker.launch import KEEPER_IGNORES, become_job, read_plan
from trainq.worker.tree import kill_family, lives_on, send, stat, walk

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    import socket
    from typing import NoReturn

    from trainq.worker.tree import Stat
else:  # The public modules add `enum`, `selectors` and 8 ms; these are the parts of them that are used.
    import _signal as signal
    import _socket as socket

LEFTOVER_GRACE_S = 2.0
RETRY_FIRST_S, RETRY_MOST_S = 0.01, 1.0
FREEZE_BOUND_S = 10.0  # until a lease says another
PACKET_BYTES = 4096
LONGEST_POLL_MS = 3_600_000.0
NEVER = float("inf")


class Keeper:
    """One slot: at most one job, from `start` to `empty`."""

    def __init__(self, line: socket.socket) -> None:
        self.line = line
        self.poller = select.poll()
        self.wake, end = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.set_wakeup_fd(end, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self.alarm = Alarm()
        for fd in (self.line.fileno(), self.wake, self.alarm.fileno()):
            self.poller.register(fd, select.POLLIN)
        self.lease_until = NEVER  # by the clock of `boot_s`
        self.bound_s = FREEZE_BOUND_S
        self.locks: frozenset[bytes] = frozenset()
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
        self.left_s: float | None = None  # of the grace, which stands still while the job is frozen
        self.retry_s = RETRY_FIRST_S
        self.asked = False  # the worker's TERM was sent
        self.insisting = False  # the time for TERM is over
        self.swept = False  # what the main process left has had its TERM
        self.terminated: dict[int, int] = {}  # pid -> start of those that had their TERM
        self.killed: set[int] = set()
        self.freeze: Freeze | None = None  # from the first STOP to the thaw or the end
        self.fenced = False  # frozen since the lease has passed, and not let on since
        self.paused = False  # frozen since people want it

    def run(self) -> None:
        """Serve the worker until it is gone and nothing of the job is left."""
        self.tell(f"ready {os.getpid()}")
        while self.busy or not self.worker_gone:
            ready = [fd for fd, _ in self.poller.poll(self.patience_ms())]
            if self.wake in ready:
                os.read(self.wake, 4096)
                if self.freeze is not None and self.freeze.complete:
                    self.freeze.again()  # a child died or, by another's hand, was continued
            if self.alarm.fileno() in ready:
                self.alarm.hear()
            self.fence_if_due()
            if not self.worker_gone and self.line.fileno() in ready:
                self.listen()
            self.hear_report()
            self.reap()
            self.kill_if_due()
            self.go_on_freezing()

    def patience_ms(self) -> float | None:
        """How long `poll` may wait; None: until something happens."""
        waits = [LONGEST_POLL_MS]
        if self.kill_at is not None:
            waits.append(max(0.0, (self.kill_at - time.monotonic()) * 1000 + 1))
        freeze = self.freezing()
        if freeze is not None:
            waits.append(freeze.pause_s * 1000)
        return min(waits) if len(waits) > 1 else None

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
        verb, *rest = words.split() or [b""]
        if verb == b"start":
            self.start([fd for _, _, data in ancillary for fd in descriptors(data)])
        elif verb == b"stop":
            self.stop(float(rest[0]))
        elif verb == b"lease":
            self.lease_until, self.bound_s = float(rest[0]), float(rest[1])
            self.alarm.set(self.lease_until)
            self.fence_if_due()
        elif verb == b"locks":
            self.locks = frozenset(rest)
        elif verb == b"thaw":
            self.thaw()
        elif verb == b"pause":
            self.pause()
        elif verb == b"resume":
            self.resume()
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
        self.fence_if_due()
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
            if self.freeze is not None:
                self.freeze.disturb()
            if self.insisting:  # what dies may have forked before: look again at once
                self.kill_within(0.0)
                self.retry_s = RETRY_FIRST_S
            if pid == self.main:
                self.hear_report()
                self.main = 0
                if self.freeze is not None and pid in self.freeze.killed:
                    self.tell(f"frozen {len(self.freeze.killed)}")  # the freeze will not be complete, and this is why
                if not self.failure:
                    self.tell(exited(status, usage.ru_maxrss, usage.ru_utime, usage.ru_stime))
        if self.busy and not self.main and not self.swept:
            self.swept = True
            frozen = self.freeze is not None  # then nobody can act on a TERM
            self.kill_within(0.0 if frozen else LEFTOVER_GRACE_S)
            if not frozen and not self.insisting:
                self.terminate()

    def stop(self, grace_s: float) -> None:
        """The worker's wish: one TERM now, KILL after the grace; said again it can only shorten the grace.

        What was frozen for its lease is killed where it stands: it may not even save its work, since another copy may
        run by now. What is only paused goes on, to act on its TERM.
        """
        if not self.busy:
            return
        if grace_s > 0:
            self.resume()
        if self.fenced:
            grace_s = 0.0
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
            if now.state == "T":
                send(pid, parent, signal.SIGCONT)

    def look(self) -> dict[int, tuple[int, Stat]]:
        """The processes of the job now: pid -> (parent, stat)."""
        return {pid: (parent, now) for pid, parent, now in walk() if lives_on(pid, now)}

    def kill_if_due(self) -> None:
        """KILL what is left, again and again, ever more seldom: what will not die hangs in the kernel."""
        if self.busy and self.kill_at is not None and time.monotonic() >= self.kill_at:
            self.insisting = True
            self.killed |= kill_family(leaves_first=self.freeze is not None)
            self.kill_at = time.monotonic() + self.retry_s
            self.retry_s = min(2 * self.retry_s, RETRY_MOST_S)

    def fence_if_due(self) -> None:
        """Freeze the job if the lease has passed; a job that is being killed needs it no more."""
        if not self.busy or self.fenced or self.insisting or boot_s() < self.lease_until:
            return
        self.fenced = True
        if self.freeze is None:
            self.begin_freeze(self.bound_s)
        else:  # paused, and from now on whatever moves is one too many
            self.freeze.bound_s = self.bound_s
            self.freeze.again()

    def begin_freeze(self, bound_s: float) -> None:
        """Stop the job from now on; its grace, if it has one, stands still with it."""
        self.freeze = Freeze(bound_s, self.locks)
        if self.kill_at is not None and self.main:
            self.left_s, self.kill_at = self.kill_at - time.monotonic(), None

    def freezing(self) -> Freeze | None:
        """The freeze that has more to do, if any."""
        if self.freeze is None or self.insisting or (self.freeze.complete and self.freeze.told):
            return None
        return self.freeze

    def go_on_freezing(self) -> None:
        """One pass over the tree; the words of the worker are heard in between."""
        freeze = self.freezing()
        if freeze is None:
            return
        if not freeze.complete:
            freeze.step()
        if freeze.complete and not freeze.told:
            freeze.told = True
            self.killed |= freeze.killed.keys()
            self.tell(f"frozen {len(freeze.killed)}")

    def thaw(self) -> None:
        """The worker's wish: let the job go on, but never without a lease."""
        if not self.fenced or self.insisting or boot_s() >= self.lease_until:
            return
        self.fenced = False
        self.go_on_if_free()

    def pause(self) -> None:
        """The worker's wish, for people: freeze the job, however long that takes, until `resume`."""
        if self.paused or not self.main or self.insisting:
            return
        self.paused = True
        if self.freeze is None:
            self.begin_freeze(NEVER)

    def resume(self) -> None:
        """The pause is over."""
        if self.paused and not self.insisting:
            self.fence_if_due()
            self.paused = False
            self.go_on_if_free()

    def go_on_if_free(self) -> None:
        """Thaw the job unless there is another reason left to keep it frozen."""
        if self.freeze is None or self.fenced:
            return
        if self.paused:
            self.freeze.bound_s = NEVER
            return
        self.freeze.thaw()
        self.killed |= self.freeze.killed.keys()
        self.tell(f"thawed {boot_s() - self.freeze.began:.6f}")
        self.freeze = None
        if self.left_s is not None:
            self.kill_within(self.left_s)
            self.left_s = None


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
        prctl(PR_SET_PDEATHSIG, signal.SIGCONT)  # stopped or not, it hears that the worker is gone
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
