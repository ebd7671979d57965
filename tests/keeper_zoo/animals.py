"""Programs that a job may be. `animals.py NAME DIRECTORY ...`; each process leaves `pid start` lines in DIRECTORY/pids."""

import json
import os
import signal
import sys
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


if __name__ == "__main__":
    name, directory, *rest = sys.argv[1:]
    globals()[name](directory, *rest)
