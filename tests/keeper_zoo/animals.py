"""Programs that a job may be. `animals.py NAME DIRECTORY ...`; each process leaves `pid start` lines in DIRECTORY/pids."""

import atexit
import ctypes
import fcntl
import json
import mmap
import multiprocessing
import os
import signal
import sys
import threading
import time

LIFE_S = 120  # none outlives a failed test by more


def note_pid(place):
    with open("/proc/self/stat", "rb") as file:
        start = file.read().rsplit(b")", 1)[1].split()[19].decode()
    append(place, "pids", f"{os.getpid()} {start}\n")


def append(place, name, text):
    fd = os.open(os.path.join(place, name), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(fd, text.encode())
    os.close(fd)


def live(place):
    note_pid(place)
    append(place, "ready", "r")
    end = time.monotonic() + LIFE_S
    while time.monotonic() < end:
        signal.pause() if signal.getitimer(signal.ITIMER_REAL)[0] else signal.setitimer(signal.ITIMER_REAL, LIFE_S)
    os._exit(0)


def fork(life):
    pid = os.fork()
    if pid == 0:
        life()
        os._exit(0)
    return pid


def counter(place, name, then=None):
    """Lives on, noting each TERM."""

    def on_term(*_):
        append(place, f"terms-{name}", "T")
        if then is not None:
            then()

    signal.signal(signal.SIGTERM, on_term)
    live(place)


def tell(place, *words):
    """Writes down all that it was given."""
    open_fds = []
    for fd in range(256):
        try:
            os.fstat(fd)
            open_fds.append(fd)
        except OSError:
            pass
    mask = os.umask(0)
    told = {
        "argv": [os.fsencode(word).hex() for word in words],
        "env": {name.hex(): value.hex() for name, value in os.environb.items()},
        "cwd": os.getcwdb().hex(),
        "umask": mask,
        "fds": open_fds,
        "sid": os.getsid(0) == os.getpid(),
    }
    with open(os.path.join(place, "told"), "w") as file:
        json.dump(told, file)


def counters(place):
    """Three that count their TERMs: the main one, one of its group, one in a session of its own."""
    fork(lambda: counter(place, "group"))
    fork(lambda: (os.setsid(), counter(place, "session")))
    counter(place, "main")


def leaver(place):
    """Ends when all have had a TERM, leaving two that count theirs."""

    def leave():
        while sum(name.startswith("terms-") for name in os.listdir(place)) < 3:
            time.sleep(0.005)
        os._exit(3)

    fork(lambda: counter(place, "group"))
    fork(lambda: (os.setsid(), counter(place, "session")))
    counter(place, "main", then=leave)


def saver(place):
    """Starts another one when it gets its TERM."""
    counter(place, "main", then=lambda: fork(lambda: counter(place, "late")))


def stubborn(place):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    live(place)


def sleeper(place):
    """Stops itself; ends with 7 when it can act on a TERM."""
    signal.signal(signal.SIGTERM, lambda *_: os._exit(7))
    note_pid(place)
    append(place, "ready", "r")
    os.kill(os.getpid(), signal.SIGSTOP)
    live(place)


def escape(place, stubborn_too):
    """Double fork, own session, empty environment, outputs closed, perhaps deaf to TERM."""

    def second():
        if stubborn_too:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        for fd in range(3):
            os.close(fd)
        program = [sys.executable, "-I", "-S", os.path.abspath(__file__), "live", place]
        os.execve(sys.executable, program, {})

    def first():
        os.setsid()
        fork(second)

    os.waitpid(fork(first), 0)


def family(place):
    """A tree: two in the group with a child each, two daemons, one stopped; the main one lives on."""
    for _ in range(2):
        fork(lambda: (fork(lambda: live(place)), live(place)))
    escape(place, stubborn_too=False)
    escape(place, stubborn_too=True)
    fork(lambda: sleeper(place))
    live(place)


def runaway(place):
    """Ends at once, leaving daemons that only a KILL ends and one that holds the outputs open."""
    escape(place, stubborn_too=True)
    escape(place, stubborn_too=False)
    fork(lambda: stubborn(place))
    while not os.path.exists(f"{place}/ready") or os.path.getsize(f"{place}/ready") < 3:
        time.sleep(0.005)
    sys.exit(5)


def chain(place):
    """Forks and exits, its child too, and so on: at each moment another pid."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    end = time.monotonic() + LIFE_S
    append(place, "ready", "r")
    while time.monotonic() < end and os.fork() == 0:
        os.setsid()
    os._exit(0)


class Ticks:
    """A counter in a file that any number of processes raise and the test reads."""

    def __init__(self, place, name):
        fd = os.open(os.path.join(place, f"ticks-{name}"), os.O_RDWR | os.O_CREAT, 0o600)
        os.ftruncate(fd, 8)
        self.map = mmap.mmap(fd, 8)
        os.close(fd)

    def tick(self):
        self.map[:] = (int.from_bytes(self.map, "little") + 1).to_bytes(8, "little")


def tick_on(place, name, pause_s=0.001):
    """Counts for the rest of its life."""
    ticks = Ticks(place, name)
    end = time.monotonic() + LIFE_S
    while time.monotonic() < end:
        ticks.tick()
        time.sleep(pause_s)
    os._exit(0)


def ticker(place, name="main"):
    note_pid(place)
    append(place, "ready", "r")
    tick_on(place, name)


def guarded(place, name="main", code=7):
    """Counts; writes down each TERM, HUP and orderly end, and ends with 7 after a TERM."""

    def on_term(*_):
        append(place, "saved", name)
        os._exit(code)

    signal.signal(signal.SIGTERM, on_term)
    signal.signal(signal.SIGHUP, lambda *_: append(place, "hung-up", name))
    atexit.register(append, place, "at-exit", name)
    ticker(place, name)


def tickers(place):
    """Seven that count: three of a group, a group of the session, a daemon, threads, and one that stopped itself."""
    fork(lambda: (fork(lambda: guarded(place, "grandchild")), guarded(place, "child")))
    fork(lambda: (os.setpgid(0, 0), guarded(place, "group")))
    os.waitpid(fork(lambda: (os.setsid(), fork(lambda: guarded(place, "daemon")))), 0)
    fork(lambda: threaded(place))
    fork(lambda: self_stopped(place))
    guarded(place)


def threaded(place):
    """Its first thread is dead, two count."""
    threading.Thread(target=tick_on, args=(place, "thread")).start()
    threading.Thread(target=ticker, args=(place, "thread-2")).start()
    ctypes.CDLL(None).syscall({"x86_64": 60, "aarch64": 93}[os.uname().machine], 0)


def self_stopped(place):
    note_pid(place)
    append(place, "ready", "r")
    Ticks(place, "self-stopped")
    os.kill(os.getpid(), signal.SIGSTOP)
    tick_on(place, "self-stopped")


def in_kernel(place):
    """Its first thread waits in the kernel where no STOP reaches it (for a child that waits for a FIFO); one counts."""
    libc = ctypes.CDLL(None)
    actions = ctypes.create_string_buffer(512)
    libc.posix_spawn_file_actions_init(actions)
    fifo = os.path.join(place, "fifo").encode()
    os.mkfifo(fifo)
    assert libc.posix_spawn_file_actions_addopen(actions, 5, fifo, os.O_RDONLY, 0) == 0
    threading.Thread(target=ticker, args=(place, "thread"), daemon=True).start()
    argv = (ctypes.c_char_p * 2)(b"true", None)
    pid = ctypes.c_int()
    assert libc.posix_spawn(ctypes.byref(pid), b"/bin/true", actions, None, argv, None) == 0
    os._exit(os.waitstatus_to_exitcode(os.waitpid(pid.value, 0)[1]))


def storm(place):
    """Two that fork all the time; what they fork counts, forks once more and ends; every third is a daemon."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    ticks = Ticks(place, "storm")

    def leaf(number):
        if number % 3 == 0:
            os.setsid()
        ticks.tick()
        if os.fork() == 0:
            time.sleep(0.005)
        ticks.tick()
        os._exit(0)

    def breed():
        end = time.monotonic() + LIFE_S
        number = 0
        while time.monotonic() < end:
            number += 1
            fork(lambda number=number: leaf(number))
            time.sleep(0.001)

    note_pid(place)
    append(place, "ready", "r")
    fork(breed)
    breed()


def ticking_chain(place):
    """Main lives; beside it a process that is another one at every moment, each link counting."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    ticks = Ticks(place, "chain")

    def link():
        os.setsid()
        end = time.monotonic() + LIFE_S
        while time.monotonic() < end and os.fork() == 0:
            ticks.tick()
            time.sleep(0.002)

    fork(link)
    ticker(place)


def lock_holder(place):
    """Counts, while its child counts with `lock` locked until there is a file `release`, and goes on counting."""

    def hold():
        with open(os.path.join(place, "lock"), "w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            note_pid(place)
            append(place, "ready", "r")
            ticks = Ticks(place, "holder")
            while not os.path.exists(os.path.join(place, "release")):
                ticks.tick()
                time.sleep(0.001)
        append(place, "released", "r")
        tick_on(place, "holder")

    fork(hold)
    ticker(place)


def lock_reader(place):
    """Holds `lock` shared for good."""
    with open(os.path.join(place, "lock"), "w") as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        ticker(place)


def many(place, number):
    """So many that only live."""
    for _ in range(int(number)):
        fork(lambda: live(place))
    live(place)


def pool(place):
    """Sums squares with four processes."""
    append(place, "ready", "r")
    with multiprocessing.Pool(4) as workers:
        assert sum(workers.imap_unordered(slow_square, range(60))) == 70210
    sys.exit(0)


def slow_square(number):
    time.sleep(0.02)
    return number * number


if __name__ == "__main__":
    name, directory, *rest = sys.argv[1:]
    globals()[name](directory, *rest)
