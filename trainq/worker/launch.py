"""The job's side of the fork: from the keeper's child to the first instruction of the job.

What must stay true: the keeper cannot die unnoticed in between, and nothing of the keeper (signals it ignores,
descriptors, its session) reaches the job. Part of the keeper's program: it imports nothing of trainq but its
siblings there, and little else.
"""

from __future__ import annotations

import errno
import os

from trainq.worker.kernel import PR_SET_PDEATHSIG, prctl

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    import socket
    from typing import NoReturn
else:  # The public module adds `enum`.
    import _signal as signal

KEEPER_IGNORES = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
PYTHON_IGNORES = (signal.SIGPIPE, signal.SIGXFSZ)
INHERITED = tuple(one for one in signal.valid_signals() if signal.getsignal(one) == signal.SIG_IGN)
"""What is ignored since who started the worker did: under nohup, or behind an `&` of a script."""
NOT_HERE = (errno.ENOENT, errno.ENOTDIR, errno.ESTALE, errno.ENODEV, errno.ETIMEDOUT)


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
        for number in {*KEEPER_IGNORES, *PYTHON_IGNORES, *INHERITED}:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        execute(plan)
    except OSError as error:
        report.send(f"failed {step} {error.errno}".encode())
    except ValueError:  # what execve refuses before the kernel sees it
        report.send(f"failed {step} {errno.EINVAL}".encode())
    finally:
        os._exit(127)
