"""The keeper: how jobs are started and how every process of theirs is ended. Real processes and signals throughout."""

from __future__ import annotations

import errno
import json
import os
import select
import signal
import subprocess
import sys

import pytest
from keeper_zoo.tending import PATH, WAIT_S, ZOO, animal, begin, finish, living, ready, run, until

import trainq
from trainq.base import clock
from trainq.base.errors import BadValue, Unsupported
from trainq.worker import keepers as module
from trainq.worker.keepers import Empty, Exited, Failed, KeeperLost, Started, open_keepers
from trainq.worker.tree import children, stat


@pytest.fixture
def keepers():
    opened = open_keepers(2)
    yield opened
    for keeper in opened:
        keeper.close()


@pytest.fixture
def keeper(keepers):
    return keepers[0]


@pytest.fixture
def ignoring():
    """As under nohup, or behind an `&` of a script."""
    before = {
        number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGQUIT, signal.SIGUSR1, signal.SIGHUP)
    }
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


# ---------------------------------------------------------------- what a job is given


def test_argv_env_cwd_umask_arrive_byte_for_byte(keeper, tmp_path):
    """E01, E02: arguments, environment, directory and umask are those of the plan, whatever their bytes."""
    words = [b"", b" ", b"\xff\xfe", b"a\nb", b"'\"$x`\\", b"\x01\x1b[0m", "π".encode()]
    env = {b"ODD": b"\xff=\n", b"\xe9NAME": b"", b"PATH": PATH}
    cwd = os.fsencode(tmp_path) + b"/d \xff\n"
    os.mkdir(cwd)
    events = run(keeper, animal("tell", tmp_path, *map(os.fsdecode, words)), env=env, cwd=cwd, umask=0o137)
    assert [type(event) for event in events] == [Started, Exited, Empty]
    told = json.loads((tmp_path / "told").read_text())
    assert [bytes.fromhex(word) for word in told["argv"]] == words
    assert {bytes.fromhex(k): bytes.fromhex(v) for k, v in told["env"].items() if k != b"LC_CTYPE".hex()} == env
    assert (bytes.fromhex(told["cwd"]), told["umask"]) == (cwd, 0o137)


def test_five_thousand_arguments_and_a_megabyte(keeper, tmp_path):
    """E01: neither the number nor the size of arguments is limited by us."""
    for words in ([str(n) for n in range(5000)], ["x" * 100_000] * 10 + ["\udcff"]):
        assert run(keeper, animal("tell", tmp_path, *words))[1].code == 0
        told = json.loads((tmp_path / "told").read_text())
        assert [bytes.fromhex(word) for word in told["argv"]] == [os.fsencode(word) for word in words]


def test_a_job_has_three_descriptors_and_its_own_session(keeper, tmp_path):
    """No socket, pipe or log of keeper or worker leaks into a job."""
    run(keeper, animal("tell", tmp_path))
    told = json.loads((tmp_path / "told").read_text())
    assert (told["fds"], told["sid"]) == ([0, 1, 2], True)


def test_signals_are_at_their_defaults(ignoring, keeper, tmp_path):
    """A job ignores and blocks nothing, though the keeper and Python do, and whoever started the worker did."""
    with open(tmp_path / "out", "wb") as out:
        run(keeper, ["cat", "/proc/self/status"], out=out.fileno())
    lines = dict(line.split(":\t", 1) for line in (tmp_path / "out").read_text().splitlines() if ":\t" in line)
    assert {int(lines[name], 16) for name in ("SigBlk", "SigIgn", "SigCgt")} == {0}


def test_the_program_is_looked_up_in_the_jobs_path(keeper, tmp_path):
    """PATH is the job's; a name with a slash is relative to the job's directory; a script needs no #!."""
    script = tmp_path / "sub" / "mine"
    script.parent.mkdir()
    script.write_text('exit "$1"\n')
    script.chmod(0o755)
    (tmp_path / "mine").write_text("not executable")
    path = os.fsencode(f"/nonexistent:{tmp_path}:{script.parent}")
    assert run(keeper, ["mine", "5"], env={b"PATH": path})[1].code == 5
    assert run(keeper, ["sub/mine", "6"], cwd=os.fsencode(tmp_path))[1].code == 6
    assert run(keeper, ["mine", "7"], env={b"PATH": b""}, cwd=os.fsencode(script.parent))[1].code == 7


def test_a_failed_start_says_where_and_why(keeper, tmp_path):
    """Q27: missing, not executable, not a program, no such directory, too long; the keeper is free again at once."""
    (tmp_path / "plain").write_text("echo")
    (tmp_path / "junk").write_bytes(b"\x7fnot\0a program")
    (tmp_path / "junk").chmod(0o755)
    (tmp_path / "empty").touch(0o755)
    (tmp_path / "no-interpreter").write_text("#!/nonexistent/python\n")
    (tmp_path / "no-interpreter").chmod(0o755)
    for word, step, number in [
        ("nonexistent-program", "exec", errno.ENOENT),
        ("./nonexistent-program", "exec", errno.ENOENT),
        ("", "exec", errno.ENOENT),
        ("./plain", "exec", errno.EACCES),
        ("./junk", "exec", errno.ENOEXEC),
        ("./empty", "exec", errno.ENOEXEC),
        ("./no-interpreter", "exec", errno.ENOENT),
        (".", "exec", errno.EACCES),
        ("./", "exec", errno.EACCES),
        ("/bin/sh/x", "exec", errno.ENOTDIR),
    ]:
        assert run(keeper, [word], cwd=os.fsencode(tmp_path)) == [Failed(step, number)], word
    assert run(keeper, ["true"], cwd=b"/nonexistent") == [Failed("chdir", errno.ENOENT)]
    assert run(keeper, ["true"], cwd=b"/bin/sh") == [Failed("chdir", errno.ENOTDIR)]
    assert run(keeper, ["true", "x" * 200_000]) == [Failed("exec", errno.E2BIG)]
    assert run(keeper, ["true"])[1].code == 0


def test_what_no_program_can_be_given_is_refused(keeper):
    """A NUL byte or an empty command is an error of the caller; the keeper never hears of it."""
    for argv in (["a\0b"], []):
        with pytest.raises(BadValue):
            begin(keeper, argv)
    assert run(keeper, ["true"])[1].code == 0


# ---------------------------------------------------------------- how it ended


def test_exit_code_or_signal(keeper):
    """Q21: the code or the signal of the main process, exactly one of the two, and what it used."""
    for code in (0, 1, 75, 255):
        started, exited, empty = run(keeper, ["sh", "-c", f"exit {code}"])
        assert (exited.code, exited.signal, empty) == (code, None, Empty(0))
        assert started.start > 0
        assert exited.maxrss_kib > 0
    for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV, signal.SIGUSR1):
        _, exited, empty = run(keeper, ["sh", "-c", f"ulimit -c 0; kill -{int(number)} $$"])
        assert (exited.code, exited.signal, empty) == (None, number, Empty(0))


def test_started_names_the_process(keeper):
    """`pid` and `start` are what /proc shows, in a group of its own."""
    begin(keeper, ["sleep", "100"])
    select.select([keeper], [], [], WAIT_S)
    (started,) = keeper.events()
    now = stat(started.pid)
    assert (now.start, now.group, now.parent) == (started.start, started.pid, keeper.pid)
    keeper.stop(WAIT_S)
    assert finish(keeper)[0].signal == signal.SIGTERM


def test_many_jobs_one_after_the_other(keepers):
    """200 jobs on 2 keepers: each ends, and neither descriptors nor zombies pile up."""
    before = [len(os.listdir(f"/proc/{keeper.pid}/fd")) for keeper in keepers]
    for _ in range(100):
        for keeper in keepers:
            begin(keeper, ["true"])
        for keeper in keepers:
            assert [type(event) for event in finish(keeper)] == [Started, Exited, Empty]
    assert [len(os.listdir(f"/proc/{keeper.pid}/fd")) for keeper in keepers] == before
    assert [children(keeper.pid) for keeper in keepers] == [[], []]


# ---------------------------------------------------------------- stop


def test_exactly_one_term_then_kill(keeper, tmp_path):
    """One TERM to each process, in the group or not, also if stop is said twice; KILL when the grace is over."""
    begin(keeper, animal("counters", tmp_path))
    ready(tmp_path, 3)
    keeper.stop(WAIT_S)
    until(lambda: len(list(tmp_path.glob("terms-*"))) == 3)
    keeper.stop(0.2)
    _, exited, empty = finish(keeper)
    assert (exited.signal, empty) == (signal.SIGKILL, Empty(3))
    assert {path.name: path.read_text() for path in tmp_path.glob("terms-*")} == {
        "terms-main": "T",
        "terms-group": "T",
        "terms-session": "T",
    }
    assert living(tmp_path) == []


def test_no_second_term_for_what_the_main_process_leaves(keeper, tmp_path):
    """When the main process has ended after a stop, what it left had its TERM; after 2 s it is killed."""
    begin(keeper, animal("leaver", tmp_path))
    ready(tmp_path, 3)
    keeper.stop(WAIT_S)
    _, exited, empty = finish(keeper)
    assert (exited.code, empty) == (3, Empty(2))
    assert [path.read_text() for path in tmp_path.glob("terms-*")] == ["T", "T", "T"]
    assert living(tmp_path) == []


def test_a_second_stop_spares_what_a_term_handler_started(keeper, tmp_path):
    """What a job starts to save itself gets no TERM, however often stop is said, only the KILL."""
    begin(keeper, animal("saver", tmp_path))
    ready(tmp_path, 1)
    keeper.stop(WAIT_S)
    ready(tmp_path, 2)
    keeper.stop(0.3)
    assert finish(keeper)[-1] == Empty(2)
    assert [path.name for path in tmp_path.glob("terms-*")] == ["terms-main"]


def test_who_ignores_term_is_killed(keeper, tmp_path):
    """E11: TERM, grace, KILL; with a grace of 0 KILL at once."""
    for grace_s in (0.2, 0):
        begin(keeper, animal("stubborn", tmp_path))
        ready(tmp_path, 1)
        (tmp_path / "ready").unlink()
        keeper.stop(grace_s)
        _, exited, empty = finish(keeper)
        assert (exited.signal, empty) == (signal.SIGKILL, Empty(1))


def test_a_second_stop_can_only_shorten_the_grace(keeper, tmp_path):
    """A longer grace said later changes nothing; 0 ends at once what was given long."""
    begin(keeper, animal("stubborn", tmp_path))
    ready(tmp_path, 1)
    keeper.stop(0.3)
    keeper.stop(1e9)
    assert finish(keeper)[1].signal == signal.SIGKILL
    begin(keeper, animal("stubborn", tmp_path))
    ready(tmp_path, 2)
    keeper.stop(float("inf"))
    keeper.stop(0)
    assert finish(keeper)[1].signal == signal.SIGKILL


def test_a_stop_right_after_the_start_is_not_lost(keeper):
    """The TERM reaches the job even if it comes between fork and exec."""
    for _ in range(40):
        begin(keeper, ["sleep", "100"])
        keeper.stop(1000)
        assert finish(keeper)[-2].signal == signal.SIGTERM


def test_a_stopped_process_can_act_on_its_term(keeper, tmp_path):
    """A job that stopped itself is continued with its TERM."""
    begin(keeper, animal("sleeper", tmp_path))
    ready(tmp_path, 1)
    until(lambda: all(stat(pid).state == "T" for pid in living(tmp_path)))
    keeper.stop(1000)
    assert finish(keeper)[1].code == 7


def test_stop_without_a_job_does_nothing(keeper):
    """Also right before the next start."""
    keeper.stop(0)
    assert run(keeper, ["sh", "-c", "exit 4"])[1].code == 4


def test_fifty_children(keeper, tmp_path):
    """E11: half of them in sessions of their own."""
    begin(
        keeper,
        [
            "sh",
            "-c",
            "for i in $(seq 25); do sleep 100 & setsid sleep 100 & done; echo >$0/ready; wait",
            tmp_path,
        ],
    )
    ready(tmp_path, 1)
    until(lambda: [stat(pid).group for pid in descendants(keeper.pid)].count(children(keeper.pid)[0]) == 26)
    keeper.stop(1000)
    events = finish(keeper)
    assert (events[1].signal, events[2]) == (signal.SIGTERM, Empty(0))


# ---------------------------------------------------------------- what a job leaves behind


def test_what_the_main_process_left_is_ended(keeper, tmp_path):
    """E11: daemons (double fork, own session, no environment, outputs closed) and who holds the outputs open."""
    with open(tmp_path / "out", "wb") as out:
        begin(keeper, animal("runaway", tmp_path), out=out.fileno())
    _, exited, empty = finish(keeper)
    assert (exited.code, empty) == (5, Empty(2))
    assert len((tmp_path / "pids").read_text().splitlines()) == 3
    assert living(tmp_path) == []


def test_a_whole_family_is_ended(keeper, tmp_path):
    """E11: a tree with daemons, deaf and stopped ones, after a stop with grace and at once."""
    for grace_s in (0.3, 0):
        (tmp_path / "ready").unlink(missing_ok=True)
        begin(keeper, animal("family", tmp_path))
        ready(tmp_path, 8)
        assert len(living(tmp_path)) == 8
        keeper.stop(grace_s)
        finish(keeper)
        assert living(tmp_path) == []


def test_a_fork_chain_is_ended(keeper, tmp_path):
    """E11: a process that is another one at every moment does not get away."""
    assert isinstance(run(keeper, animal("chain", tmp_path))[-1], Empty)
    assert children(keeper.pid) == []


def test_a_job_that_kills_its_group(keeper):
    """The keeper is in no group of a job."""
    _, exited, _ = run(keeper, ["sh", "-c", "sleep 100 & setsid sleep 100 & kill -9 0"])
    assert exited.signal == signal.SIGKILL
    assert run(keeper, ["true"])[1].code == 0


# ---------------------------------------------------------------- the ends of worker and keeper


def test_signals_of_the_terminal_do_not_reach_the_keeper(keeper):
    """INT, TERM and HUP end no keeper; it has its own session and holds nothing under the queue's root."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        os.kill(keeper.pid, number)
    assert run(keeper, ["true"])[1].code == 0
    assert os.getsid(keeper.pid) == keeper.pid
    assert os.readlink(f"/proc/{keeper.pid}/cwd") == "/"


def test_close_kills_the_job(keepers, tmp_path):
    """A keeper that is let go takes its job with it, and both are gone when `close` returns."""
    begin(keepers[0], animal("family", tmp_path))
    ready(tmp_path, 8)
    keepers[0].close()
    assert living(tmp_path) == []
    assert stat(keepers[0].pid) is None
    assert run(keepers[1], ["true"])[1].code == 0


def test_close_right_after_a_start(keepers, tmp_path):
    """A job that is let go between fork and exec is ended too."""
    for keeper in keepers:
        begin(keeper, animal("family", tmp_path))
        keeper.close()
        assert stat(keeper.pid) is None
        assert not (tmp_path / "pids").exists() or living(tmp_path) == []


def test_a_keeper_with_a_bug_says_so(keepers):
    """Its last words are in the error; its job ends with it."""
    begin(keepers[0], ["sleep", "100"])
    select.select([keepers[0]], [], [], WAIT_S)
    (started,) = keepers[0].events()
    keepers[0]._say(b"stop nonsense")
    select.select([keepers[0]], [], [], WAIT_S)
    with pytest.raises(KeeperLost, match="could not convert"):
        keepers[0].events()
    until(lambda: (now := stat(started.pid)) is None or now.state == "Z")


def test_a_dead_keeper_is_heard(keepers):
    """KILL of a keeper: its events end with KeeperLost, its main process dies, the other keeper goes on. A word to it is
    no error: the worker says many, and hears of the death in one place."""
    begin(keepers[0], ["sleep", "100"])
    select.select([keepers[0]], [], [], WAIT_S)
    (started,) = keepers[0].events()
    os.kill(keepers[0].pid, signal.SIGKILL)
    select.select([keepers[0]], [], [], WAIT_S)
    for _ in range(2):
        with pytest.raises(KeeperLost):
            keepers[0].events()
    begin(keepers[0], ["true"])
    keepers[0].stop(0)
    until(lambda: (now := stat(started.pid)) is None or now.state == "Z")
    assert run(keepers[1], ["true"])[1].code == 0


def test_a_keeper_that_does_not_listen_is_killed(keepers):
    """Stopped until its socket is full, it is a dead one: its job ends and the worker hears of it."""
    begin(keepers[0], ["sleep", "100"])
    select.select([keepers[0]], [], [], WAIT_S)
    (started,) = keepers[0].events()
    os.kill(keepers[0].pid, signal.SIGSTOP)
    until(lambda: keepers[0].lease(clock.boot_s() + 60, 1) or select.select([keepers[0]], [], [], 0)[0])
    with pytest.raises(KeeperLost):
        keepers[0].events()
    until(lambda: (now := stat(started.pid)) is None or now.state == "Z")


@pytest.fixture
def worker(tmp_path):
    root = os.path.dirname(os.path.dirname(trainq.__file__))
    command = [sys.executable, os.path.join(ZOO, "worker.py"), str(tmp_path)]
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, stdin=pipe, stdout=pipe, text=True, env={**os.environ, "PYTHONPATH": root}
    ) as process:
        process.keeper_pids = json.loads(process.stdout.readline())
        ready(tmp_path, 16)
        assert len(living(tmp_path)) == 16
        yield process
        process.kill()


def test_a_killed_worker_leaves_nothing(worker, tmp_path):
    """E11: kill -9 of the worker ends all processes of its jobs and its keepers."""
    starts = {pid: stat(pid).start for pid in worker.keeper_pids}
    worker.kill()
    until(lambda: living(tmp_path) == [])
    for pid, start in starts.items():
        until(lambda pid=pid, start=start: not (now := stat(pid)) or now.start != start or now.state == "Z")


def test_strays_of_a_dead_keeper_are_ended_by_the_worker(worker, tmp_path):
    """E11: kill -9 of a keeper: `end_strays` ends all it left, and nothing of the other keeper's job."""
    first, second = worker.keeper_pids
    others = set(descendants(second))
    os.kill(first, signal.SIGKILL)
    worker.stdin.write("\n")
    worker.stdin.flush()
    words, left = json.loads(worker.stdout.readline())
    assert (words.split()[:2], left) == (["keeper", str(first)], 0)
    assert set(living(tmp_path)) == others
    assert set(descendants(second)) == others
    worker.stdin.write("\n")
    worker.stdin.flush()
    assert worker.wait(WAIT_S) == 0
    assert living(tmp_path) == []


def descendants(pid):
    found = children(pid)
    for child in found:
        found.extend(children(child))
    return found


def test_no_children_files_no_keepers(monkeypatch):
    """Where /proc does not list children the answer is one clear error."""
    monkeypatch.setattr(module.os.path, "exists", lambda _path: False)
    with pytest.raises(Unsupported):
        open_keepers(1)
