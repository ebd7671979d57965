"""`python tests/nfs/figures.py [JOBS]`: what a queue for several hosts costs, as ratios, and a storm of kills over three hosts.

Run in the lab, whose processor is emulated: only what stands in one run is compared.
"""

from __future__ import annotations

import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from nfs import lab
from nfs.lab import HOSTS, MOUNT, until

if TYPE_CHECKING:
    import subprocess

BARE = """
import fcntl, os, sqlite3, sys, time
lock = os.open("{dir}/bare.lock", os.O_RDWR | os.O_CREAT)
def turn():
    while {asks}:
        try:
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            time.sleep(0.02)
    else:
        fcntl.lockf(lock, fcntl.LOCK_EX)
    db = sqlite3.connect("{dir}/bare.sqlite", isolation_level=None)
    db.execute("PRAGMA locking_mode = EXCLUSIVE"); db.execute("PRAGMA journal_mode = WAL")
    db.execute("CREATE TABLE IF NOT EXISTS t(n)"); db.execute("INSERT INTO t VALUES(1)"); db.close()
    fcntl.lockf(lock, fcntl.LOCK_UN)
"""
OURS = """
import sys, time
from trainq.ops.queue import open_queue
session = open_queue("{root}").session
def turn():
    with session.writing() as tx:
        tx.rows("UPDATE queue SET quick_failures = 0 WHERE name = 'bench'")
        tx.rows("INSERT OR REPLACE INTO queue(name) VALUES('bench')")
"""
LOOP = """
n, end = 0, time.monotonic() + {seconds}
while time.monotonic() < end:
    turn(); n += 1
print(n)
"""
WAITS = """
waits, end = [], time.monotonic() + {seconds}
while time.monotonic() < end:
    begin = time.monotonic(); turn(); waits.append(time.monotonic() - begin)
print(*waits)
"""


def main() -> None:
    version = os.environ.get("TRAINQ_TEST_NFS", "4.2")
    if os.environ.get("TRAINQ_TEST_NFS_KEEP") != "1" or lab.on("h1", "true").code:
        lab.boot(version)
    queue = lab.Queue(f"figures-{os.getpid()}")
    queue.env["TRAINQ_TIMES_HEARTBEAT"] = "10s"
    queue.env["TRAINQ_TIMES_ZOMBIE_AFTER"] = "300s"
    queue.env["TRAINQ_TIMES_HOLDER_LIMIT"] = "240s"
    lab.on("h1", "trainq", "init", queue.root)
    print(f"NFS {version}")
    count_calls(queue)
    count_sessions(queue)
    contend(queue)
    queue.end()
    jobs = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    if jobs:
        storm(jobs)


def count_calls(queue: lab.Queue) -> None:
    """Calls to the file server of a submit, a look, and a worker with one job and without."""
    queue.submit("h1", "--", "true")
    for what, words in (
        ("submit", ("submit", "--", "true")), ("status", ("status",)), ("cancel", ("cancel", "last")),
        ("worker, one job", ("worker", "--once")), ("worker, none", ("worker", "--queue", "default", "--until", "idle")),
    ):  # fmt: skip
        if what == "worker, none":
            queue("h2", "cancel", "--state", "pending")
        before = lab.rpcs("h2")
        queue("h2", *words)
        spent = lab.spent(before, lab.rpcs("h2"))
        print(f"{what}: {sum(spent.values())} calls: " + ", ".join(f"{n} {name}" for name, n in sorted(spent.items())))


def count_sessions(queue: lab.Queue, seconds: int = 15) -> None:
    """Writing sessions a second of 1, 3 and 6 clients, against a bare loop of lock, open, commit and close: one
    that waits for the lock, and one that asks for it again and again (NFSv3 may let who waits wait for half a minute)."""
    directory = f"{MOUNT}/bare-{os.getpid()}"
    lab.on("h1", "mkdir", directory)
    for clients in (1, 3, 6):
        rates = {}
        codes = {
            f"bare, {word}": BARE.format(dir=directory, asks=asks) for word, asks in (("waits", False), ("asks", True))
        }
        for name, code in (*codes.items(), ("ours", OURS.format(root=queue.root))):
            whole = code + LOOP.format(seconds=seconds)
            with ThreadPoolExecutor(clients) as pool:
                done = list(pool.map(lambda n, text=whole: lab.on(HOSTS[n % 3], "python3", "-c", text), range(clients)))
            assert all(one.code == 0 for one in done), done
            counts = [int(one.out) for one in done]
            rates[name] = sum(counts) / seconds
            print(f"{clients} clients, {name}: {rates[name]:.1f}/s, shares {min(counts)} to {max(counts)}")
        ratios = [f"{rates['ours'] / rate:.2f} x of {name}" for name, rate in rates.items() if rate and name != "ours"]
        print(f"{clients} clients: {', '.join(ratios)}")


def contend(queue: lab.Queue, seconds: int = 60) -> None:
    """How long sixteen processes on four hosts wait for their turns when each wants the next one at once."""
    whole = OURS.format(root=queue.root) + WAITS.format(seconds=seconds)
    with ThreadPoolExecutor(16) as pool:
        done = list(pool.map(lambda n: lab.on(f"h{n % 4 + 1}", "python3", "-c", whole, timeout=600), range(16)))
    assert all(one.code == 0 for one in done), done
    each = [[float(word) for word in one.out.split()] for one in done]
    waits = sorted(wait for one in each for wait in one)
    median = waits[len(waits) // 2]
    print(
        f"16 contenders on 4 hosts, {seconds} s: {len(waits)} turns, shares {min(map(len, each))} to {max(map(len, each))};"
        f" a turn with its wait: median {median:.2f} s, slowest {waits[-1]:.2f} s = {waits[-1] / median:.1f} x"
    )


KILLER = """
import os, random, signal, sys, time
dice, kills = random.Random(int(sys.argv[2])), 0
while not os.path.exists(sys.argv[1]):
    time.sleep(dice.uniform(2, 14))
    kind = dice.choice((b"trainq\\0--root", b"trail.py", b"trail.py", b"start_keepers"))
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            words = open(f"/proc/{pid}/cmdline", "rb").read()
        except OSError:
            continue
        if kind in words and b"\\0-c\\0" not in words and (kind != b"trainq\\0--root" or b"\\0worker\\0" in words) and not words.startswith(b"env"):
            found.append(int(pid))
    if found:
        os.kill(dice.choice(found), signal.SIGKILL)
        kills += 1
print(kills)
"""


def storm(jobs: int) -> None:
    """So many jobs over 3 hosts and 6 workers, with kill -9 of workers, keepers and trainings at random on each host: none
    lost, none double."""
    queue = lab.Queue(f"storm-{os.getpid()}")
    queue.env["TRAINQ_LIMITS_MAX_ATTEMPTS"] = "1000"
    lab.on("h1", "trainq", "init", queue.root)
    trail = lab.put_trail()
    line = f'{{"argv": ["python3", "{trail}", "2"], "retries": 1000, "retry_on": ["signal"], "backoff": "0s"}}'
    lab.sh("cat > /srv/q/storm.jsonl <<'END'\n" + "\n".join([line] * jobs) + "\nEND")
    acknowledged = queue.ok("h1", "submit", "--from", f"{MOUNT}/storm.jsonl").out.split()
    begin, stop = time.monotonic(), f"{queue.root}-stop"
    running: dict[tuple[str, int], subprocess.Popen[str]] = {}
    with ThreadPoolExecutor(3) as pool:
        killers = [
            pool.submit(lab.on, host, "python3", "-c", KILLER, stop, str(n), timeout=3600)
            for n, host in enumerate(HOSTS)
        ]
        try:
            while True:
                for key in ((host, n) for host in HOSTS for n in range(2)):
                    if key not in running or running[key].poll() is not None:
                        running[key] = queue.start(key[0], "worker", "--slots", "1", "--until", "empty", "-q")
                time.sleep(3)
                counts = queue.ok("h1", "status", "--summary", "--json").json["counts"]
                if not counts["pending"] + counts["running"] + counts["held"]:
                    break
                queue("h3", "prune")
                assert time.monotonic() - begin < 3000
        finally:
            lab.on("h1", "touch", stop)
        ended = [each.result() for each in killers]
        assert all(one.code == 0 for one in ended), ended
        kills = sum(int(one.out) for one in ended)
    seconds = time.monotonic() - begin
    states = queue.ok("h1", "status", "--all", "--limit", "100000", "--json").json["items"]
    lost = {int(number) for number in acknowledged} - {job["id"] for job in states if job["state"] == "done"}
    spans = lab.spans(queue)
    double = [number for number in acknowledged if not lab.are_apart(spans[int(number)])]
    attempts = sum(job["attempt"]["n"] for job in states)
    print(
        f"storm: {jobs} jobs, {attempts} attempts, {kills} kills in {seconds:.0f} s: lost {len(lost)}, computed twice at"
        f" once {len(double)}, looked at {sum(map(len, spans.values()))} spans"
    )
    until(lambda: "trail.py" not in "".join(lab.on(host, "ps", "-ef").out for host in HOSTS))
    queue.end()


if __name__ == "__main__":
    main()
