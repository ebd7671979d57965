"""Ending what a dead worker's jobs left on this host, with real processes."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
import uuid

import pytest
import readme
from store_builders import until

from trainq.ops import strays

# of this run alone: what it starts and ends is on the whole host
UID, UID2 = (f"{uuid.uuid4().hex}.{n}" for n in (7, 0))
SLEEP = [sys.executable, "-c", "import time; print(flush=True); time.sleep(1000)"]
FILLER = {f"FILL_{n}": "x" * 10_000 for n in range(60)}


@pytest.fixture
def start():
    """Start a process with just this environment; all are ended with the test."""
    with contextlib.ExitStack() as stack:

        def run(env, argv=SLEEP, **options):
            process = subprocess.Popen(argv, env=env, stdout=subprocess.PIPE, text=True, **options)
            stack.callback(process.communicate)
            stack.callback(process.kill)
            assert process.stdout.readline()  # it is in its own program by now
            return process

        yield run


def end(uids, *patience_s, attempt=1):
    """As `strays.end`, but a test that would end half of the host fails before it does."""
    found = list(strays._marked({os.fsencode(uid): attempt for uid in uids}))
    for _, fd in found:
        os.close(fd)
    assert len(found) < 10, "these are not the processes of this test"
    return strays.end(dict.fromkeys(uids, attempt), *patience_s)


def mark(uid=UID):
    return {"TRAINQ_JOB_UID": uid}


def killed(process):
    return process.wait(60) == -signal.SIGKILL


@pytest.mark.parametrize(
    "env",
    [
        mark(),
        {**mark(), **FILLER},
        {**FILLER, **mark()},
        {"A": "", **mark(), "B": ""},
        {"TRAINQ_JOB_UID_": "other", **mark()},
        {"A": "TRAINQ_JOB_UID=other", **mark()},
    ],
    ids=["alone", "first of many", "last of many", "in the middle", "after a longer name", "after a value"],
)
def test_a_marked_process_is_killed(start, env):
    """E11: wherever in its environment the mark stands; the answer is that nothing is left."""
    process = start(env)
    assert end({UID}) == set()
    assert killed(process)


@pytest.mark.parametrize(
    "env",
    [
        {},
        mark(UID + "0"),
        mark(UID[:-2]),
        mark(UID[1:]),
        mark(UID + " "),
        mark(""),
        {"X": f"TRAINQ_JOB_UID={UID}"},
        {"XTRAINQ_JOB_UID": UID},
        {"TRAINQ_JOB_UIDS": UID},
        {"trainq_job_uid": UID},
        {"A": f"x\nTRAINQ_JOB_UID={UID}"},
    ],
)
def test_what_is_not_provably_the_jobs_is_left_alone(start, env):
    """E11, DESIGN 6: other jobs, other names, the same words inside of something else. Also one named in its argv only."""
    process = start(env)
    other = start({}, [*SLEEP, f"TRAINQ_JOB_UID={UID}"])
    assert end({UID}) == set()
    assert (process.poll(), other.poll()) == (None, None)


def test_nobody_is_looked_for(start):
    """Without a job there is nothing to end; and no process without a mark is ever found, whatever is asked for.

    Looks only: were this wrong, ending what is found would end everything on this host.
    """
    start({})
    start(mark(""))
    assert list(strays._marked({b""})) == []
    assert list(strays._marked(set())) == []
    assert end(set()) == set()


@pytest.mark.parametrize(
    ("told", "gone"),
    [("1", True), ("2", True), ("3", False), ("12", False), ("", True), ("x", True), ("9" * 5000, True)],
)
def test_a_newer_attempt_is_left_alone(start, told, gone):
    """E11, DESIGN 6: somebody was faster, gave the job back, and its next attempt runs here already under the same uid."""
    process = start({**mark(), "TRAINQ_ATTEMPT": told})
    assert end({UID}, attempt=2) == set()
    assert killed(process) if gone else process.poll() is None


def test_all_of_several_jobs_and_their_sessions_are_killed(start):
    """E11: of every job asked for; in sessions and groups of their own, stopped, or deaf to TERM and HUP."""
    deaf = "import signal, time\nfor n in (1, 2, 15): signal.signal(n, signal.SIG_IGN)\nprint(flush=True); time.sleep(1000)"
    found = [
        start(mark()),
        start(mark(UID2), start_new_session=True),
        start(mark(UID2), process_group=0),
        start(mark(), [sys.executable, "-c", deaf]),
        start(mark("c.1")),
    ]
    found[-1].send_signal(signal.SIGSTOP)
    bystander = start(mark("d.1"))
    assert end({UID, UID2, "c.1"}) == set()
    assert all(killed(process) for process in found)
    assert bystander.poll() is None


def test_a_daemon_without_a_parent_is_killed(start):
    """E11: double-forked, in a session of its own, adopted by somebody else."""
    code = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        print(os.getpid(), flush=True)
        time.sleep(1000)
os._exit(0)
"""
    process = subprocess.Popen([sys.executable, "-c", code], env=mark(), stdout=subprocess.PIPE, text=True)
    daemon = int(process.stdout.readline())
    process.wait(60)
    fd = os.pidfd_open(daemon)
    assert end({UID}) == set()
    assert select.select([fd], [], [], 60)[0]
    os.close(fd)
    process.stdout.close()


def test_a_chain_of_forks_is_killed(start):
    """E11: one that may be another process by the time it is looked at: the looks of all who come by end it."""
    code = """
import os, time
print(flush=True)
for _ in range(3000):
    if os.fork(): os._exit(0)
    time.sleep(0.02)
print("by itself", flush=True)
"""
    chain = start(mark(), [sys.executable, "-c", code])

    def is_over():
        end({UID})
        return select.select([chain.stdout], [], [], 0)[0]

    until(is_over)
    assert chain.stdout.read() == ""  # nobody is left to write, and it did not come to its own end
    assert end({UID}, 0.0) == set()  # with no patience at all: there is none


def test_who_ends_them_spares_itself():
    """A `trainq prune` that a job has started carries the mark too; it is not ended by its own hand."""
    code = f"from trainq.ops import strays; print(strays.end({{{UID!r}: 1}}), flush=True)"
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **mark(), "PYTHONPATH": readme.REPOSITORY}, text=True,
        capture_output=True, timeout=60,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "set()\n"), done.stderr


def test_a_dead_child_that_nobody_has_reaped_is_nothing(start):
    """A zombie of the kernel has no environment and needs no end."""
    process = start(mark())
    process.kill()
    until(lambda: os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG))
    assert end({UID}) == set()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs processes of two users")
def test_what_cannot_be_killed_is_told_at_once(start):
    """DESIGN 5: another uid's: not waited for, not given back; the job whose processes could be ended is not among them."""
    theirs = start(mark("theirs.0"))
    sleep = ["sh", "-c", "echo; exec sleep 1000"]
    mine = start(mark("mine.0"), sleep, cwd="/", user=65534, group=65534, extra_groups=[])
    code = """
import json, sys, time
sys.path.insert(0, sys.argv[1])
from trainq.ops import strays
began = time.monotonic()
left = strays.end({"theirs.0": 1, "mine.0": 1}, 50.0)
print(json.dumps([sorted(left), time.monotonic() - began]))
"""
    # It may read what others have in their environment, and end nothing of theirs.
    as_other = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--inh-caps=+sys_ptrace,+dac_read_search",
                "--ambient-caps=+sys_ptrace,+dac_read_search", "--bounding-set=-kill"]  # fmt: skip
    try:
        probe = subprocess.run([*as_other, "cat", f"/proc/{theirs.pid}/environ"], capture_output=True)
    except FileNotFoundError:
        pytest.skip("there is no setpriv")
    if b"theirs.0" not in probe.stdout:
        pytest.skip(f"capabilities cannot be handed on here: {probe.stderr!r}")
    done = subprocess.run([*as_other, sys.executable, "-c", code, readme.REPOSITORY], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    left, took_s = json.loads(done.stdout)
    assert left == ["theirs.0"]
    assert took_s < 50.0
    assert killed(mine)
    assert theirs.poll() is None


def test_patience_is_bounded(start):
    """What is not gone when time is out counts as left, so nothing is given back too early."""
    process = start(mark())
    began = time.monotonic()
    left = end({UID}, 0.0)
    assert left <= {UID}
    assert time.monotonic() - began < 60.0
    assert killed(process)
    assert end({UID}) == set()
