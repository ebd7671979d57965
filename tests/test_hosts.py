"""Whether a process is still the same one, and which host this is."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest
from store_builders import until

from trainq.base import hosts

NAMED = """
import sys
with open("/proc/self/comm", "wb") as file:
    file.write(sys.argv[1].encode())
print(flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("name", ["plain", "two words", "a) S 1 (b", ")", "((", ") Z 9", "x)\n1 2 3", "ünï"])
def test_the_start_is_found_behind_any_name(name):
    """DESIGN 4: field 22 counts from the last bracket of the name, whatever the process calls itself."""
    process = subprocess.Popen(
        [sys.executable, "-c", "import sys; print(flush=True); sys.stdin.readline(); exec(sys.argv.pop(1))", NAMED, name],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        process.stdout.readline()
        before = hosts.start_of(process.pid)
        process.stdin.write("\n")
        process.stdin.flush()
        process.stdout.readline()
        with open(f"/proc/{process.pid}/comm", "rb") as file:
            assert file.read()[:-1] == name.encode()[:15]
        assert hosts.start_of(process.pid) == before
        assert before >= hosts.start_of(os.getpid())
        assert hosts.is_same_process(process.pid, before)
        assert not hosts.is_same_process(process.pid, before + 1)  # its number was used again
    finally:
        process.kill()
        process.communicate()
    assert hosts.start_of(process.pid) is None
    assert not hosts.is_same_process(process.pid, before)


def test_a_dead_process_that_nobody_has_reaped_is_dead():
    """Its number is taken still, and it does nothing any more."""
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    start = hosts.start_of(process.pid)
    assert hosts.is_same_process(process.pid, start)
    process.kill()
    until(lambda: os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG))
    assert not hosts.is_same_process(process.pid, start)
    process.communicate()


def test_a_stopped_process_lives():
    """A worker that was stopped is not a dead one."""
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    start = hosts.start_of(process.pid)
    process.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
    assert hosts.is_same_process(process.pid, start)
    process.kill()
    process.communicate()


def test_the_identity_has_four_parts_and_stays():
    """DESIGN 4: machine, boot, name and PID namespace; another process of this host says the same."""
    identity = hosts.identity()
    assert len(identity.split("/")) == 4
    code = "from trainq.base import hosts; print(hosts.identity())"
    env = {**os.environ, "PYTHONPATH": os.getcwd()}
    said = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True).stdout
    assert said == f"{identity}\n"


def test_another_pid_namespace_is_another_host():
    """DESIGN 4: containers on one kernel share a boot id and not their pids."""
    code = "from trainq.base import hosts; print(hosts.identity())"
    inside = ["unshare", "--user", "--map-root-user", "--pid", "--fork", sys.executable, "-c", code]
    env = {**os.environ, "PYTHONPATH": os.getcwd()}
    try:
        done = subprocess.run(inside, env=env, capture_output=True, text=True)
    except FileNotFoundError:
        pytest.skip("there is no unshare")
    if done.returncode != 0:
        pytest.skip(f"no namespaces here: {done.stderr}")
    ours, theirs = hosts.identity().split("/"), done.stdout.strip().split("/")
    assert ours[:3] == theirs[:3]
    assert ours[3] != theirs[3]
