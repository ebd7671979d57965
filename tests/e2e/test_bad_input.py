"""Bad input gets one clear line and its exit code, and nothing is stored or lost. Not a row of the list: the issue."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sqlite3
import subprocess
from pathlib import Path

import pytest
from e2e.kit import Result, until

READS = (
    ("status",),
    ("status", "--all", "--json"),
    ("history", "1"),
    ("models", "list"),
    ("workers",),
    ("logs", "1"),
    ("wait", "1", "--timeout", "1s"),
)
CHANGES = (
    ("submit", "--", "true"),
    ("submit", "ok"),
    ("cancel", "1"),
    ("retry", "1"),
    ("prune",),
    ("worker", "--once"),
)


def _told(done, code, *words):
    """One line of message, at most one hint, no traceback; the words stand in it."""
    assert done.code == code, done
    lines = done.err.splitlines()
    assert lines, done
    assert lines[0].startswith("trainq: "), done
    assert len(lines) <= 2, done
    if len(lines) == 2:
        assert lines[1].startswith("hint: ")
    for word in words:
        assert word in done.err, done


def _refused_by_all(tq, code, *words, only=None):
    """Every command (or only these) says the same."""
    for command in (*READS, *CHANGES):
        if only is not None and command[0] not in only:
            continue
        done = tq(*command)
        if "--json" in command:
            assert done.code == code, (command, done)
            assert done.json["code"] == code
        else:
            _told(done, code, *words)


# trainq.toml ---------------------------------------------------------------------------------------------------------

BROKEN = {
    "syntax": (b"[times]\npoll = = 3\n", ("line 2, column 8",)),
    "open string": (b'[times]\npoll = "3s\n', ("line 2, column",)),
    "end": (b"[times", ("line 1, column 7",)),
    "twice": (b'[times]\npoll = "1s"\npoll = "2s"\n', ("line 3, column",)),
    "bytes": (b"[times]\n# \xff\n", ("line 2, column 3", "UTF-8")),
    "section": (b'[time]\npoll = "1s"\n', ("line 1", "times?")),
    "key": (b'[times]\n\nheartbeet = "1s"\n', ("line 3", "heartbeat?")),
    "number": (b"[times]\npoll = 3\n", ("line 2", "poll")),
    "negative": (b'[times]\npoll = "-3s"\n', ("line 2", "poll")),
    "order": (b'[times]\nheartbeat = "5m"\nzombie_after = "10s"\n', ("heartbeat", "zombie_after")),
    "slots": (b'[worker]\nslots = "two"\n', ("line 2", "slots")),
    "bare": (b"poll = 3\n", ("line 1", "poll", "[times]")),
    "table": (b"times = 3\n", ("line 1", "times")),
    "deep": (b"a = " + b"[" * 100_000, ("trainq.toml",)),
    "digits": (b"[limits]\nqueue_size = " + b"9" * 5000, ("trainq.toml",)),
    "control": (b'[times]\n"a\\u001b[31m" = 1\n', ("line 2",)),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_broken_settings(tq, kind):
    """Broken TOML and unknown settings exit 6 with file, line, column and the nearest key; nothing is stored."""
    content, words = BROKEN[kind]
    config = os.path.join(tq.root, "trainq.toml")
    with open(config, "wb") as file:
        file.write(content)
    clean = {name: None for name in tq.env if name.startswith("TRAINQ_TIMES")}
    for command in (("submit", "--", "true"), ("submit", "ok"), ("worker", "--once")):
        done = tq(*command, env=clean)
        _told(done, 6, "trainq.toml", *words)
        assert "\x1b" not in done.err
    assert tq("doctor", env=clean).code == 6
    assert tq("submit", "--json", "--", "true", env=clean).json["error"] == "bad_settings"
    os.unlink(config)
    assert tq.jobs() == []


BROKEN_TYPES = {
    "neither": "[types.t]\nkeep = 1\n",
    "both": '[types.t]\nrun = ["true"]\ncall = "a:b"\n',
    "key": '[types.t]\nrum = ["true"]\n',
    "empty": "[types.t]\nrun = []\n",
    "text": '[types.t]\nrun = "true"\n',
    "nul": '[types.t]\nrun = ["a\\u0000b"]\n',
    "param": '[types.t]\nrun = ["true"]\n[types.t.params]\na = { type = "flot" }\n',
    "default": '[types.t]\nrun = ["true"]\n[types.t.params]\na = { type = "int", default = "x" }\n',
    "name": '[types."../x"]\nrun = ["true"]\n',
    "queue": '[types.t]\nrun = ["true"]\nqueue = "nope"\n',
    "table": "types = 3\n",
    "call": '[types.t]\ncall = "no colon"\n',
    "time": '[types.t]\nrun = ["true"]\ntime = 3\n',
}


@pytest.mark.parametrize("kind", BROKEN_TYPES)
def test_broken_types(tq, kind):
    """A type that cannot be used exits 6 with its line; it is never used in part, and commands go on."""
    with open(os.path.join(tq.root, "trainq.toml"), "w", encoding="utf-8") as file:
        file.write(BROKEN_TYPES[kind])
    _told(tq("submit", "t"), 6, "trainq.toml", "line ")
    _told(tq("types"), 6, "trainq.toml", "line ")
    assert tq("types", "check").code == 6
    os.unlink(os.path.join(tq.root, "trainq.toml"))
    assert tq.jobs() == []


def test_settings_file_that_is_none(tq):
    """A trainq.toml that is a directory, a pipe or a loop exits 6 and blocks nobody."""
    config = os.path.join(tq.root, "trainq.toml")
    os.unlink(config)
    for make in (os.mkdir, os.mkfifo, lambda path: os.symlink(path, path)):
        make(config)
        _told(tq("submit", "--", "true"), 6, "trainq.toml")
        (os.rmdir if os.path.isdir(config) else os.unlink)(config)
    assert tq("submit", "--", "true").code == 0  # none at all: the defaults


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("TRAINQ_TIMES_POL", "1s", ("TRAINQ_TIMES_POL", "TRAINQ_TIMES_POLL")),
        ("TRAINQ_TIMES_POLL", "3", ("TRAINQ_TIMES_POLL", "3s")),
        ("TRAINQ_TIMES_POLL", "", ("TRAINQ_TIMES_POLL",)),
        ("TRAINQ_WORKER_SLOTS", "-1", ("TRAINQ_WORKER_SLOTS",)),
        ("TRAINQ_TIMES_HEARTBEAT", "1h", ("heartbeat",)),
        ("TRAINQ_KEEP_MODELS", "\n", ("TRAINQ_KEEP_MODELS",)),
    ],
)
def test_broken_variables(tq, name, value, words):
    """A variable that is no setting, or holds none, exits 6 and names itself."""
    _told(tq("submit", "--", "true", env={name: value}), 6, *words)
    assert tq.jobs() == []


# the root ------------------------------------------------------------------------------------------------------------


def test_missing_root(tq, tmp_path):
    """A root that is not there exits 6 with the line that makes it; nothing is made by the way."""
    for root in (tmp_path / "absent", tmp_path / "absent" / "deep", tmp_path / "a b"):
        for command in (*READS, *CHANGES):
            done = tq(*command, root=str(root))
            assert done.code == 6, (command, done)
        _told(tq("submit", "--", "true", root=str(root)), 6, "trainq init")
        assert not root.exists()
    hint = tq("status", root=str(tmp_path / "a b")).err.splitlines()[1]
    assert hint.endswith(f"trainq init '{tmp_path}/a b'")


def test_root_that_is_none(tq, tmp_path):
    """A root that is a file, a dangling link, a loop, or an empty directory exits 6."""
    (tmp_path / "file").write_text("x")
    (tmp_path / "empty").mkdir()
    os.symlink("nowhere", tmp_path / "dangling")
    os.symlink("loop", tmp_path / "loop")
    for name in ("file", "empty", "dangling", "loop", "file/below", "x" * 300, "file\0"[:4]):
        _told(tq("submit", "--", "true", root=str(tmp_path / name)), 6)
        _told(tq("worker", "--once", root=str(tmp_path / name)), 6)
    assert os.listdir(tmp_path / "empty") == []
    _told(tq("init", str(tmp_path / "file"), root=None), 6)
    _told(tq("init", str(tmp_path / "x" / ("y" * 300)), root=None), 6)


def test_root_that_everybody_can_write(tq):
    """A world-writable root is refused: who can write it can make its workers run code."""
    os.chmod(tq.root, 0o777)
    _refused_by_all(tq, 6, "chmod o-w")
    os.chmod(tq.root, 0o700)
    assert tq.jobs() == []


POWERLESS = ("setpriv", "--bounding-set=-all", "--inh-caps=-all") if os.getuid() == 0 else ()
"""Root writes everywhere, but not when it has no capabilities."""


def _powerless(tq, *words):
    done = subprocess.run(
        [*POWERLESS, "python", "-m", "trainq", "--root", tq.root, *words],
        capture_output=True, env=tq.environment(), cwd=tq.dir, timeout=60, check=False, text=True,
    )  # fmt: skip
    return Result(done.returncode, done.stdout, done.stderr)


@pytest.fixture
def shut(tq):
    """Take the right to write (or all rights) from something below the root until the test is over."""
    before = []

    def shut(name, mode=0o500):
        path = os.path.join(tq.root, name)
        before.append((path, os.stat(path).st_mode))
        os.chmod(path, mode)

    yield shut
    for path, mode in reversed(before):
        os.chmod(path, mode)


@pytest.mark.skipif(bool(POWERLESS) and not shutil.which("setpriv"), reason="root, and no setpriv")
@pytest.mark.parametrize("name", ["models", "runs", "data", "specs", "bell", "locks", "."])
def test_directory_that_cannot_be_written(tq, shut, name):
    """A directory of the root that cannot be written exits 6 and names it; nothing is stored."""
    shut(name)
    for command in (("submit", "--", "true"), ("worker", "--once")):
        done = _powerless(tq, *command)
        if name != ".":
            _told(done, 6, os.path.join(tq.root, name))
    assert _powerless(tq, "doctor").code == 6
    if name != ".":
        assert tq.jobs() == []


@pytest.mark.skipif(bool(POWERLESS) and not shutil.which("setpriv"), reason="root, and no setpriv")
@pytest.mark.parametrize(("name", "mode"), [("queue.sqlite", 0), ("queue.sqlite", 0o400), (".", 0), ("trainq.toml", 0)])
def test_file_that_cannot_be_read(tq, shut, name, mode):
    """So does a database, a root or a settings file that is shut."""
    shut(name, mode)
    _told(_powerless(tq, "submit", "--", "true"), 6)
    _told(_powerless(tq, "worker", "--once"), 6)


@pytest.mark.parametrize("name", ["models", "runs", "data", "specs", "bell", "locks", "models/.staging"])
def test_directory_that_is_missing(tq, name):
    """A directory of the root that is gone exits 6 and names it with the command that makes it again."""
    os.rename(os.path.join(tq.root, name), os.path.join(tq.root, "elsewhere"))
    for command in (("submit", "--", "true"), ("worker", "--once")):
        _told(tq(*command), 6, os.path.join(tq.root, name), "trainq init")
    assert tq.jobs() == []
    tq.ok("init", tq.root, root=None)
    assert tq("submit", "--", "true").code == 0


# the database --------------------------------------------------------------------------------------------------------


def _foreign(path):
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.execute("CREATE TABLE t(x)")
        db.commit()


def _newer(path):
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA user_version = 99")


def _cut(size):
    def cut(path):
        for tail in ("-wal", "-shm"):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path + tail)
        os.truncate(path, size)

    return cut


def _replaced(content):
    def replace(path):
        _cut(0)(path)
        with open(path, "wb") as file:
            file.write(content)

    return replace


def _other(path):
    _cut(0)(path)
    os.unlink(path)
    _foreign(path)


def _directory(path):
    os.unlink(path)
    os.mkdir(path)


DAMAGE = {
    "empty": (_cut(0), "0 bytes"),
    "hundred bytes": (_cut(100), ""),
    "two pages": (_cut(8192), ""),
    "odd size": (_cut(5000), ""),
    "text": (_replaced(b"this is no database\n" * 500), ""),
    "zeros": (_replaced(b"\0" * 65536), ""),
    "foreign": (_other, "not a trainq queue"),
    "newer": (_newer, "schema 99"),
    "directory": (_directory, ""),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_damaged_database(tq, kind):
    """A truncated, foreign or newer database exits 6 for every command, and is left as it is."""
    tq.submit("ok")
    path = os.path.join(tq.root, "queue.sqlite")
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    spoil, word = DAMAGE[kind]
    spoil(path)
    before = None if os.path.isdir(path) else Path(path).read_bytes()
    _refused_by_all(tq, 6, word, only=None if kind == "empty" else ("status", "submit", "worker", "cancel"))
    done = tq("doctor")
    assert done.code == 6, done
    assert "Traceback" not in done.err
    _told(tq("init", tq.root, root=None), 6, word)
    if before is not None:
        assert Path(path).read_bytes() == before


def test_database_that_vanishes_under_a_worker(tq):
    """A worker whose database is gone says so, goes on trying, and can still be told to end."""
    tq.submit("ok")
    path = os.path.join(tq.root, "queue.sqlite")
    with tq.worker() as worker:
        until(lambda: worker.said("job ended"))
        os.rename(path, path + ".away")
        until(lambda: not os.path.exists(path))
        tq("submit", "--", "true")
        os.rename(path + ".away", path)
        job = tq.submit("--", "true")
        until(lambda: tq.job(job)["state"] == "done")
        assert worker.process.poll() is None


# paths, homes, data --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["a b", "ünï ☃ 'q\" $x", "x" * 200, "n\nl\t", "-dash", "%41?mode=ro#x", b"\xff\xfe"], ids=repr
)
def test_odd_roots(tq, tmp_path, name):
    """A root of spaces, quotes, any script, any bytes and 200 characters works: sockets, models, links and all."""
    root = os.fsdecode(os.path.join(os.fsencode(tmp_path), os.fsencode(name)))
    tq.ok("init", root, root=None)
    old, tq.root = tq.root, root
    assert old != root
    tq.types('[types.talks]\nrun = ["python", "talks.py"]\nmodel = "required"\n')
    (tq.dir / "talks.py").write_text(
        "from trainq import job\n"
        "job.progress(0.5)\njob.metric('loss', 0.25)\n"
        "open(job.model_dir + '/m', 'w').write(open(job.data()).read())\n"
    )
    (tq.dir / "d").write_text("given")
    job = tq.submit("talks", "--data", "d")
    report = tq.submit("--shell", "python -m trainq report --strict --progress 0.3")
    tq.ok("worker", "--until", "empty")
    assert tq.job(job)["state"] == "done", tq.job(job)["result"]
    assert tq.job(report)["state"] == "done", tq.ok("logs", str(report)).out
    (model,) = tq.ok("models", "list", "--json").json["items"]
    assert model["metrics"] == {"loss": 0.25}
    path = tq.ok("models", "path", "talks").out.removesuffix("\n")
    assert os.path.exists(path) or "\\" in path or not name.isprintable()
    assert len(tq.ok("status", "--all").out.splitlines()) == 3
    tq.ok("prune")
    assert tq("doctor").code in (0, 1)


def test_home_unset(tq):
    """With HOME unset a named root works; without one the home comes from the user's entry, not from nowhere."""
    job = tq.submit("ok", env={"HOME": None})
    tq.ok("worker", "--once", env={"HOME": None})
    assert tq.ok("status", str(job), "--json", env={"HOME": None}).json["state"] == "done"
    nested = tq.dir / "below"
    nested.mkdir()
    tq.ok("init", str(tq.dir / ".trainq"), root=None, env={"HOME": None})
    tq.ok("submit", "--", "true", root=None, cwd=nested, env={"HOME": None})
    tq.ok("status", root=None, cwd=nested, env={"HOME": None, "USER": None, "LOGNAME": None, "PATH": None})


@pytest.mark.parametrize("home", ["/dev/null", "/dev/null/x", "", "/nonexistent/home"])
def test_home_that_is_none(tq, home, tmp_path):
    """A home that cannot hold ~/.trainq exits 6 in one line."""
    outside = tmp_path / "outside"
    outside.mkdir()
    done = tq("submit", "--", "true", root=None, cwd=outside, env={"HOME": home, "TRAINQ_ROOT": None})
    _told(done, 6)
    assert os.listdir(outside) == []


def test_working_directory_that_is_gone(tq):
    """A submit from a directory that was removed is refused in one line; reading goes on."""
    line = 'd=$(mktemp -d) && cd "$d" && rmdir "$d" && exec python -m trainq --root "$0" "$@"'
    for words, code in ((("submit", "--", "true"), 2), (("status",), 0), (("worker", "--once"), 0)):
        done = subprocess.run(
            ["bash", "-c", line, tq.root, *words], capture_output=True, env=tq.environment(), timeout=60, check=False
        )
        assert done.returncode == code, done
    assert tq.jobs() == []


@pytest.mark.skipif(bool(POWERLESS) and not shutil.which("setpriv"), reason="root, and no setpriv")
def test_unreadable_data(tq):
    """A training set that cannot be read exits 2 and stores nothing."""
    (tq.dir / "d").write_text("x")
    (tq.dir / "d").chmod(0)
    _told(_powerless(tq, "submit", "ok", "--data", "d"), 2, "d", "permission denied")
    assert tq.jobs() == []
    assert os.listdir(os.path.join(tq.root, "data")) == []


def test_data_that_changes_while_it_is_read(tq):
    """A training set that grows or vanishes during the submit is refused, or stored as one whole state of it."""
    path = tq.dir / "d"
    path.write_bytes(os.urandom(20 << 20))
    with subprocess.Popen(
        ["bash", "-c", "while :; do printf more >> d; done"], cwd=tq.dir, stderr=subprocess.DEVNULL
    ) as writer:
        try:
            done = tq("submit", "ok", "--data", "d")
        finally:
            writer.kill()
    if done.code:
        _told(done, 2, "d")
        assert tq.jobs() == []
        assert os.listdir(os.path.join(tq.root, "data")) == []
    else:
        tq.ok("worker", "--once")
        assert tq.job(1)["state"] == "done"


# the disk ------------------------------------------------------------------------------------------------------------


def _orphans(tq):
    """Names that a failed step may not leave."""
    return [
        os.path.join(top, name)
        for top, _, names in os.walk(tq.root)
        for name in names
        if name.startswith(".new-") or name.endswith(".tmp")
    ]


@pytest.mark.parametrize("fault", ["ENOSPC", "EACCES"])
def test_submit_on_a_failing_disk(tq, fault):
    """Each write of a submit in turn fails: exit 6 (2 when it was a read of the user's file), and no job stands."""
    (tq.dir / "d").write_bytes(os.urandom(2 << 20))
    for n in range(1, 60):
        env = {"TRAINQ_FAULT": f"{fault}:{n}", "API_KEY": "x"}
        done = tq("submit", "ok", "--data", "d", "--env-keep", "API_KEY", env=env)
        if done.code == 0:
            break
        _told(done, 2 if "training set d" in done.err else 6)
        assert _orphans(tq) == []
    else:
        pytest.fail("it never passed")
    assert n > 5
    assert [job["id"] for job in tq.jobs()] == [1]
    tq.ok("worker", "--once")
    assert tq.job(1)["state"] == "done"


def test_init_on_a_failing_disk(tq, tmp_path):
    """Each write of an init in turn fails: exit 6, and the next init completes it."""
    for n in range(1, 60):
        root = str(tmp_path / f"fresh{n}")
        done = tq("init", root, root=None, env={"TRAINQ_FAULT": f"ENOSPC:{n}"})
        if done.code == 0:
            break
        _told(done, 6)
        tq.ok("init", root, root=None)
    else:
        pytest.fail("it never passed")
    assert n > 5
    tq.ok("submit", "--", "true", root=str(tmp_path / "fresh1"))


def test_worker_on_a_failing_disk(tq):
    """A write of a worker fails (each third here, every one in tests/crash): it goes on and exits 0; done means a listed
    model, a result is kept, and a job whose run could not be prepared waits again at no cost."""
    tq.env["TRAINQ_LIMITS_BREAKER"] = "0"
    (tq.dir / "d").write_bytes(os.urandom(2 << 20))
    passed = drained = 0
    for n in range(2, 200, 3):  # the first opens the lock: without it there is no worker
        job = tq.submit("ok", "--param", f"i={n}", "--keep", "1", "--data", "d")
        worked = tq("worker", "--once", "--json", env={"TRAINQ_FAULT": f"ENOSPC:{n}"})
        assert worked.code == (1 if "quarantined" in worked.err else 0), (n, worked)
        (ended,) = worked.json["jobs"]
        assert "Traceback" not in worked.err
        if (ended["state"], ended["reason"]) == ("pending", "drained"):
            drained += 1
            assert "quarantined" in worked.err
            assert tq.job(job)["retry"]["used"] == 0
            tq.ok("worker", "--once")  # the next one finds a disk that is well
            card = tq.job(job)
            assert (card["state"], card["attempt"]["n"]) == ("done", 2), (n, card)
            continue
        if ended["state"] == "done":
            (model,) = tq.ok("models", "list", "--json").json["items"]
            assert model["job"] == job
            assert os.path.exists(os.path.join(model["path"], "model.json"))
            passed += 1
            if passed == 2:
                break
            continue
        assert (ended["state"], ended["reason"], ended["model"]) == ("errored", "store", None), (n, ended)
        if "kept in " in ended["error"]:
            assert "model.json" in os.listdir(ended["error"].rpartition("kept in ")[2]), (n, ended)
    else:
        pytest.fail("it never passed")
    errored = [card for card in tq.jobs() if card["state"] == "errored"]
    assert drained > 0
    assert len(errored) + drained > 7
    assert {card["side"] for card in errored} == {"system"}


@contextlib.contextmanager
def _tiny(path):
    """A file system of 2 MiB."""
    os.makedirs(path, exist_ok=True)
    if (
        os.getuid() != 0
        or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", path], check=False).returncode
    ):
        pytest.skip("a file system cannot be mounted here")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", path], check=True)


def _fill(root):
    """Take all the room that is left; the file to remove."""
    path = os.path.join(os.path.dirname(root), "ballast")
    with open(path, "wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(b"x" * 4096)
    return path


def test_full_disk(tq, tmp_path):
    """A really full disk: submits exit 6 and store nothing, what was stored before is intact, and room mends all."""
    place = str(tmp_path / "tiny")
    with _tiny(place):
        tq.root = f"{place}/root"
        tq.ok("init", tq.root, root=None)
        tq.types()
        first = tq.submit("ok")
        ballast = _fill(tq.root)
        (tq.dir / "d").write_bytes(os.urandom(1 << 20))
        accepted = [first]
        for n in range(200):
            done = tq("submit", "ok", "--seed", str(n + 1))
            if done.code:
                break
            accepted.append(int(done.out))
        _told(done, 6)
        _told(tq("submit", "ok", "--seed", "999", "--data", "d"), 6)
        assert "no space" in done.err or "no room" in done.err
        assert [job["id"] for job in tq.jobs()] == accepted  # reading needs no room
        assert tq("doctor").code in (1, 6)
        with contextlib.ExitStack() as opened:
            worker = opened.enter_context(tq.worker("--until", "empty"))
            if worker.process.poll() is None:  # there was room to write its name
                until(lambda: worker.said("trouble"))
                os.unlink(ballast)
                assert worker.end().code == 0
        if os.path.exists(ballast):
            os.unlink(ballast)
            tq.ok("worker", "--until", "empty")
        jobs = tq.jobs()
        assert {job["state"] for job in jobs} == {"done"}
        assert sorted(job["model"]["version"] for job in jobs) == list(range(1, len(jobs) + 1))


def test_disk_that_fills_under_a_worker(tq, tmp_path):
    """A worker whose disk fills goes on, keeps its jobs, and settles them once there is room."""
    place = str(tmp_path / "tiny")
    with _tiny(place):
        tq.root = f"{place}/root"
        tq.ok("init", tq.root, root=None)
        tq.types()
        job = tq.submit("slow")
        with tq.worker() as worker:
            until(lambda: tq.job(job)["attempt"]["pid"])
            ballast = _fill(tq.root)
            until(lambda: worker.said("trouble"))
            (tq.dir / "go").touch()
            assert worker.process.poll() is None
            os.unlink(ballast)
            until(lambda: tq.job(job)["state"] == "done")
            after = tq.submit("--", "true")
            until(lambda: tq.job(after)["state"] == "done")


def test_worker_on_a_full_disk_can_be_ended(tq, tmp_path):
    """A worker that cannot write what became of its job ends at the second TERM, with 1; the job is not lost."""
    place = str(tmp_path / "tiny")
    with _tiny(place):
        tq.root = f"{place}/root"
        tq.ok("init", tq.root, root=None)
        tq.types()
        job = tq.submit("slow")
        with tq.worker() as worker:
            until(lambda: tq.job(job)["attempt"]["pid"])
            ballast = _fill(tq.root)
            until(lambda: worker.said("trouble"))
            worker.signal(signal.SIGTERM)
            until(lambda: worker.said("stopping"))
            worker.signal(signal.SIGTERM)
            assert worker.end().code == 1
        os.unlink(ballast)
        (tq.dir / "go").touch()
        until(lambda: tq.ok("prune") and tq.job(job)["state"] == "pending")
        tq.ok("worker", "--once")
        assert tq.job(job)["state"] == "done"


def test_idle_worker_on_a_full_disk_ends(tq, tmp_path):
    """A worker that cannot write its heartbeat ends at the first INT when it has nothing at work."""
    place = str(tmp_path / "tiny")
    with _tiny(place):
        tq.root = f"{place}/root"
        tq.ok("init", tq.root, root=None)
        with tq.worker() as worker:
            _fill(tq.root)
            until(lambda: worker.said("trouble"))
            worker.signal(signal.SIGINT)
            assert worker.end().code == 0


def test_model_that_fills_the_disk(tq, tmp_path):
    """A job that fills the disk is no end of the worker: the job ends in an error and the next one runs."""
    place = str(tmp_path / "tiny")
    with _tiny(place):
        tq.root = f"{place}/root"
        tq.ok("init", tq.root, root=None)
        tq.types('[types.fat]\nrun = ["sh", "-c", "cat /dev/zero > $TRAINQ_MODEL_DIR/m"]\n')
        job, after = tq.submit("fat"), tq.submit("--", "true")
        with tq.worker("--slots", "1") as worker:
            until(lambda: worker.said("job started"))
            until(lambda: worker.said("trouble") or worker.said("job ended"))
            shutil.rmtree(os.path.join(tq.root, "models", ".staging"), ignore_errors=True)
            os.makedirs(os.path.join(tq.root, "models", ".staging"), exist_ok=True)
            until(lambda: tq.job(after)["state"] == "done")
        assert tq.job(job)["state"] == "errored"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--shell", ""), "the line of --shell is empty"),
        (("--shell", " \n"), "the line of --shell is empty"),
        (("--data", "x" * 101 + "=/etc/passwd", "--", "true"), "at most 100 bytes"),
    ],
)
def test_what_can_never_run_is_not_stored(tq, words, said):
    """An empty line, a training set whose name would be no directory: refused at once."""
    refused = tq("submit", *words)
    assert (refused.code, said in refused.err, tq.jobs()) == (2, True, []), refused
