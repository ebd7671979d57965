"""The guest room: what training code imports works in a job, outside one, and in an environment without trainq."""

from __future__ import annotations

import json
import math
import os
import signal
import socket
import subprocess
import sys
import venv
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from listening import REPOSITORY, UID, Listening

from trainq.job import connection, report, words
from trainq.worker.channel import guest_directory

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def worker() -> Iterator[Listening]:
    listening = Listening()
    yield listening
    listening.close()


def by_hand(script: str, cwd: Path, *flags: str, **more: str) -> str:
    """Run a script outside a job; nothing may appear on stderr."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("TRAINQ_", "PYTHON"))}
    done = subprocess.run(
        [sys.executable, *flags, "-c", script],
        env={**env, "PYTHONPATH": REPOSITORY, **more},
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


# --- outside a job ---------------------------------------------------------------------------------------------


def test_outside_a_job_everything_is_a_silent_no_op(tmp_path: Path) -> None:
    """A script that uses all of it runs by hand; nothing is said, nothing but the directories used is made."""
    script = (
        "import json,signal\nfrom trainq import job\n"
        "job.progress(0.5); job.progress(step=1, total=2, message='m'); job.metric('a', 1); job.metric({'a': object()})\n"
        "assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL\n"
        "print(json.dumps([job.inside, job.params, job.data(), job.data('x'), job.should_stop(), job.seed, job.attempt, job.run_dir]))"
    )
    assert json.loads(by_hand(script, tmp_path)) == [False, {}, None, None, False, 0, 1, str(tmp_path)]
    assert os.listdir(tmp_path) == []


def test_outside_a_job_directories_are_made_at_first_use(tmp_path: Path) -> None:
    """model_dir and checkpoint_dir lie in the directory the script was in then, whatever it changes to later."""
    script = (
        "import os\nfrom trainq import job\nbefore = job.model_dir, job.checkpoint_dir\nos.chdir('/')\n"
        "assert before == (job.model_dir, job.checkpoint_dir)\nprint(*before, sep='\\n')"
    )
    assert by_hand(script, tmp_path).splitlines() == [str(tmp_path / "model"), str(tmp_path / "checkpoints")]
    assert sorted(os.listdir(tmp_path)) == ["checkpoints", "model"]


def test_importing_costs_next_to_nothing(tmp_path: Path) -> None:
    """The import and the no-ops load nothing that a bare interpreter has not: no socket, json or typing."""
    script = "import sys;before=set(sys.modules)\nfrom trainq import job\njob.progress(1)\nprint(*sorted(set(sys.modules)-before))"
    assert by_hand(script, tmp_path).split() == ["__future__", "trainq", "trainq.job", "trainq.version"]


def test_standard_library_only() -> None:
    """trainq.job imports nothing of trainq but itself, and works where site-packages does not exist."""
    script = (
        f"import sys;sys.path.insert(0,{REPOSITORY!r})\nfrom trainq import job\nfrom trainq.job import connection,given,report,stop,words\n"
        "print(*sorted(n for n in sys.modules if n.startswith('trainq')))"
    )
    done = subprocess.run([sys.executable, "-I", "-S", "-c", script], capture_output=True, text=True, check=True)
    assert all(
        name.startswith("trainq.job") for name in done.stdout.split() if name not in {"trainq", "trainq.version"}
    )


def test_an_unknown_name_is_an_attribute_error() -> None:
    """`hasattr` and a misspelt name behave as with any module."""
    from trainq import job

    with pytest.raises(AttributeError, match="no attribute 'prams'"):
        job.prams  # noqa: B018
    assert "params" in dir(job)
    assert set(dir(job)) == set(job.__all__)


# --- what the worker gave --------------------------------------------------------------------------------------


def test_given_values(worker: Listening, tmp_path: Path) -> None:
    """Q07: parameters keep their types and exact names; data, directories, seed and attempt are the worker's."""
    given = {"a": 0.36, "b": True, "s": "0.33", "n": None, "l": [1, 2.0], "Größe x": 1, "nan": "NaN"}
    params = tmp_path / "params.json"
    params.write_text(json.dumps(given))
    script = (
        "import json\nfrom trainq import job\n"
        "print(json.dumps([job.params, job.data(), job.data('my-Set é'), job.data('none'), job.seed, job.attempt,"
        " job.model_dir, job.checkpoint_dir, job.run_dir, job.inside]))"
    )
    _, out, err = worker.run(
        script,
        TRAINQ_PARAMS=str(params),
        TRAINQ_DATA="/d",
        TRAINQ_DATA_MY_SET__="/e",
        TRAINQ_SEED="7",
        TRAINQ_ATTEMPT="3",
        TRAINQ_MODEL_DIR=str(tmp_path / "m"),
        TRAINQ_CHECKPOINT_DIR=str(tmp_path / "c"),
        TRAINQ_RUN_DIR=str(tmp_path),
    )
    assert err == ""
    assert json.loads(out) == [
        given,
        "/d",
        "/e",
        None,
        7,
        3,
        *[str(tmp_path / name) for name in "mc"],
        str(tmp_path),
        True,
    ]


def test_paths_may_be_any_bytes(worker: Listening, tmp_path: Path) -> None:
    """A path that is not UTF-8 is handed through as the bytes it is."""
    directory = os.fsencode(tmp_path) + b"/\xff\n dir"
    _, out, err = worker.run(
        "import os\nfrom trainq import job\nprint(os.fsencode(job.model_dir), os.fsencode(job.data()))",
        TRAINQ_MODEL_DIR=os.fsdecode(directory),
        TRAINQ_DATA=os.fsdecode(b"/\xfe"),
    )
    assert err == ""
    assert out.strip() == f"{directory!r} " + repr(b"/\xfe")
    assert os.path.isdir(directory)


def test_a_job_without_model_writes_into_its_run_directory(worker: Listening, tmp_path: Path) -> None:
    """Two such jobs in one directory do not meet."""
    _, out, _ = worker.run("from trainq import job;print(job.model_dir)", TRAINQ_RUN_DIR=str(tmp_path))
    assert out.strip() == str(tmp_path / "model")


def test_unreadable_parameters_are_an_error(worker: Listening, tmp_path: Path) -> None:
    """Training with the defaults instead would be a wrong answer."""
    status, _, err = worker.run("from trainq import job;job.params", TRAINQ_PARAMS=str(tmp_path / "none"))
    assert status == 1
    assert "FileNotFoundError" in err


# --- progress and metrics --------------------------------------------------------------------------------------


def test_progress_and_metrics_arrive(worker: Listening) -> None:
    """total and message are remembered; the fraction follows from step and total."""
    _, _, err = worker.run(
        "from trainq import job\njob.progress(step=1, total=4, message='warm')\njob.metric('loss', 0.5, step=1, group='train')\n"
        "job.metric({'a': 1, 'b': True}, step=2)\njob.progress(step=2)"
    )
    assert err == ""
    assert {(uid, attempt) for uid, attempt, _ in worker.heard} == {(UID, 1)}
    assert worker.progress()[-1] == {
        "do": "progress",
        "fraction": 0.5,
        "step": 2,
        "total": 4,
        "message": "warm",
    }
    metrics = [message for _, _, message in worker.heard if message["do"] == "metric"]
    assert metrics == [
        {"do": "metric", "values": {"loss": 0.5}, "step": 1, "group": "train"},
        {"do": "metric", "values": {"a": 1.0, "b": 1.0}, "step": 2, "group": None},
    ]


def test_odd_values_never_raise_and_never_break_the_line(worker: Listening) -> None:
    """NaN, infinities, objects, huge numbers, surrogates: sent as what they are, or left out with one line."""
    status, _, err = worker.run(
        "from trainq import job\n"
        "class Bad:\n  def __float__(self): raise RuntimeError('no')\n  def __index__(self): raise OSError\n  def __str__(self): raise KeyError\n"
        "nan = float('nan')\n"
        "for odd in (nan, float('inf'), 'x', Bad(), None, [1], 10**400, 2**70, b'1', 1j):\n"
        "    job.progress(odd, step=odd, total=odd, message=odd)\n    job.metric(odd, odd, step=odd, group=odd)\n"
        "job.metric({Bad(): 1, 'nan': nan, 'inf': -float('inf'), '\\ud800\\n\\x00': 1.5, 'x' * 10_000: 2, 3: 3})\n"
        "job.metric({str(n) * 50: n for n in range(100_000)})\n"
        "job.progress(0.75, message='end\\udcff')"
    )
    assert status == 0
    assert "Traceback" not in err
    assert err.count("metric 'None' left out: a NoneType that is not one number\n") == 1
    assert "metrics of one call left out: too many for one line" in err
    assert math.isnan(worker.metrics("nan")[-1][1])
    assert worker.metrics("inf")[-1][1] == -math.inf
    assert worker.metrics("\\ud800\n\0") == [(None, 1.5)]
    assert worker.metrics("x" * 200) == [(None, 2.0)]
    assert (worker.progress()[-1]["fraction"], worker.progress()[-1]["message"]) == (0.75, "end\\udcff")


def test_numpy_scalars(worker: Listening) -> None:
    """numpy numbers and arrays of one are numbers; a whole array is left out."""
    pytest.importorskip("numpy")
    _, _, err = worker.run(
        "import numpy as np\nfrom trainq import job\n"
        "job.metric({'a': np.float32(0.5), 'b': np.int64(3), 'c': np.bool_(True), 'd': np.array(2.5), 'e': np.array([1, 2])}, step=np.int32(7))\n"
        "job.progress(np.float64(0.25), step=np.int64(1))"
    )
    assert err == "trainq: metric 'e' left out: a ndarray that is not one number\n"
    assert [worker.metrics(name) for name in "abcd"] == [[(7, 0.5)], [(7, 3.0)], [(7, 1.0)], [(7, 2.5)]]


def test_fast_values_are_collected_and_the_last_is_flushed(worker: Listening) -> None:
    """10,000 progress calls are few messages and end with the last one; 1,000 metric points all arrive, in order."""
    _, _, err = worker.run(
        "from trainq import job\nfor n in range(10_000):\n    job.progress(step=n + 1, total=10_000)\n"
        "    if n % 10 == 0: job.metric('loss', n, step=n)"
    )
    assert err == ""
    assert worker.progress()[-1]["fraction"] == 1.0
    assert len(worker.progress()) < 1000
    assert worker.metrics("loss") == [(n, float(n)) for n in range(0, 10_000, 10)]


@pytest.mark.parametrize("end", ["raise SystemExit(3)", "raise ValueError", "pass"])
def test_the_last_value_survives_the_end_of_the_process(worker: Listening, end: str) -> None:
    """At an error and at an exit status too, what was collected is sent."""
    worker.run(
        f"from trainq import job\nfor n in range(100):\n    job.metric('n', n)\n    job.progress(n / 100)\n{end}"
    )
    assert worker.metrics("n")[-1] == (None, 99.0)
    assert worker.progress()[-1]["fraction"] == 0.99


def test_too_many_points_are_thinned_not_piled_up(worker: Listening) -> None:
    """A worker that does not read costs the job neither time nor memory; the newest of each name still arrives."""
    script = (
        "import sys\nfrom trainq import job\njob.metric('rare', 1, step=0)\n"
        "for n in range(300_000):\n    job.metric('often', n, step=n)\n"
        "from trainq.job import connection as c\nprint(len(c._current._points), len(c._current._out), flush=True)\nsys.stdin.read()"
    )
    with worker.start(script) as process:
        assert process.stdout is not None
        points, out = map(int, process.stdout.readline().split())  # nobody has read the socket so far
        assert points <= connection.POINTS_LIMIT
        assert out < 4_000_000
        worker.until(lambda: worker.heard)
        assert process.stdin is not None
        process.stdin.close()
        worker.until(lambda: process.poll() is not None)
        process.stdin = None
        assert process.stderr is not None
        assert process.stderr.read() == ""
    worker.settle()
    assert worker.metrics("rare") == [(0, 1.0)]
    often = worker.metrics("often")
    assert often[-1] == (299_999, 299_999.0)
    assert often == sorted(often)


def test_thinning_keeps_the_newest_of_each_name() -> None:
    """Half of the points stay, in order, with the last of every name."""
    points = [("g", 0, {"rare": 1})] + [("g", n, {"often": n}) for n in range(1, 5001)]
    kept = connection.thinned(points)
    assert kept[0] == points[0]
    assert kept[-1] == points[-1]
    assert kept == sorted(kept, key=lambda point: point[1])
    assert len(kept) < 2600
    assert len(connection.thinned([("g", 0, {str(n): 1}) for n in range(5001)])) <= 3750


def test_threads_share_one_stream(worker: Listening) -> None:
    """Eight threads at once: every line is whole and none is lost."""
    _, _, err = worker.run(
        "import threading\nfrom trainq import job\n"
        "def work(k):\n    for n in range(300): job.metric(f't{k}', n, step=n); job.progress(n / 300)\n"
        "threads = [threading.Thread(target=work, args=(k,)) for k in range(8)]\n"
        "[t.start() for t in threads]; [t.join() for t in threads]"
    )
    assert err == ""
    for k in range(8):
        assert worker.metrics(f"t{k}") == [(n, float(n)) for n in range(300)]


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_children_have_a_stream_of_their_own(worker: Listening, method: str, tmp_path: Path) -> None:
    """Processes of multiprocessing report while the parent does; all lines are whole, each last value arrives."""
    script = tmp_path / "train.py"
    script.write_text(
        "import multiprocessing\nfrom trainq import job\n"
        "def work(k):\n    for n in range(200): job.metric(f'c{k}', n, step=n)\n"
        "if __name__ == '__main__':\n"
        "    for n in range(50): job.metric('p', n, step=n)\n"
        f"    context = multiprocessing.get_context({method!r})\n"
        "    children = [context.Process(target=work, args=(k,)) for k in range(3)]\n    [c.start() for c in children]\n"
        "    for n in range(50, 200): job.metric('p', n, step=n)\n    [c.join() for c in children]\n"
        "    assert all(c.exitcode == 0 for c in children)\n"
    )
    status, _, err = worker.run(
        f"import runpy;runpy.run_path({str(script)!r}, run_name='__main__')"
        if method == "fork"
        else f"import subprocess,sys;sys.exit(subprocess.call([sys.executable, {str(script)!r}]))"
    )
    assert (status, err) == (0, "")
    for name in ("p", "c0", "c1", "c2"):
        assert worker.metrics(name) == [(n, float(n)) for n in range(200)], name


def test_a_plain_fork_neither_repeats_nor_spoils_the_parents_words(worker: Listening) -> None:
    """os.fork in the middle of a collection, from a thread too: the child sends only its own, also when it ends first."""
    _, _, err = worker.run(
        "import os,sys,threading\nfrom trainq import job\n"
        "def talk():\n    for n in range(2000): job.metric('thread', n, step=n)\n"
        "thread = threading.Thread(target=talk); thread.start()\n"
        "for k in range(5):\n    job.metric('parent', k, step=k)\n    pid = os.fork()\n"
        "    if pid == 0:\n        job.metric('child', k, step=k); job.should_stop(); sys.exit(0)\n"
        "    assert os.waitpid(pid, 0)[1] == 0\n"
        "thread.join()"
    )
    assert err == ""
    assert worker.metrics("parent") == [(k, float(k)) for k in range(5)]
    assert worker.metrics("child") == [(k, float(k)) for k in range(5)]
    assert worker.metrics("thread") == [(n, float(n)) for n in range(2000)]


def test_a_signal_handler_may_report(worker: Listening) -> None:
    """A handler that reports while the main thread does never hangs the training."""
    status, _, err = worker.run(
        "import signal,time\nfrom trainq import job\n"
        "signal.signal(signal.SIGALRM, lambda *_: job.progress(message='alarm'))\n"
        "job.progress(0)\nsignal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)\nend = time.monotonic() + 1\n"
        "n = 0\n"
        "while time.monotonic() < end: job.metric('n', n, step=n); n += 1\nsignal.setitimer(signal.ITIMER_REAL, 0)\njob.progress(1.0)"
    )
    assert (status, err) == (0, "")
    assert worker.progress()[-1]["fraction"] == 1.0
    steps = [step for step, _ in worker.metrics("n")]
    assert steps == sorted(set(steps))


def test_a_worker_that_is_gone_is_said_once(worker: Listening) -> None:
    """The training goes on to its end, with one line on stderr; SIGPIPE does not kill it even at its default."""
    script = (
        "import signal,sys\nfrom trainq import job\nsignal.signal(signal.SIGPIPE, signal.SIG_DFL)\njob.progress(0.1)\nprint('up', flush=True)\nsys.stdin.readline()\n"
        "import time\nfor n in range(5):\n    job.progress(n / 5); job.metric('n', n); assert not job.should_stop(); time.sleep(0.12)\nprint('done')"
    )
    with worker.start(script) as process:
        worker.until(lambda: worker.heard)
        worker.channel.drop(UID, 1)
        out, err = process.communicate("go\n", timeout=60)
    assert out == "up\ndone\n"
    assert process.returncode == 0
    assert err == "trainq: the worker does not answer any more; progress and metrics are not sent\n"


def test_a_socket_that_does_not_exist_is_said_once(tmp_path: Path) -> None:
    """The same when the worker was gone before the first word; a closed stderr is no error either."""
    env = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": REPOSITORY,
        "TRAINQ_JOB_UID": UID,
        "TRAINQ_SOCKET": str(tmp_path / "s"),
    }
    script = "from trainq import job\nfor n in range(3): job.progress(n); job.metric('n', n); job.should_stop()\nprint('done')"
    done = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True, check=True)
    assert done.stdout == "done\n"
    assert done.stderr.count("\n") == 1
    closed = "import os,sys;os.close(2);sys.stderr = None\n" + script
    assert subprocess.run([sys.executable, "-c", closed], env=env, check=True, capture_output=True).stdout == b"done\n"


# --- should_stop -----------------------------------------------------------------------------------------------

LOOP = "import sys,time\nfrom trainq import job\njob.should_stop(); print('up', flush=True)\nwhile not job.should_stop(): time.sleep(0.01)\nprint('saved')"


def test_stop_by_word(worker: Listening) -> None:
    """The worker's push ends the loop; it connects by itself, without any progress before."""
    with worker.start(LOOP) as process:
        worker.until(lambda: worker.channel._of((UID, 1)))
        worker.channel.push(UID, 1, {"do": "new word"})
        worker.channel.push(UID, 1, {"do": "stop", "reason": "canceled"})
        assert process.communicate(timeout=60) == ("up\nsaved\n", "")


def test_stop_by_word_before_the_first_look(worker: Listening) -> None:
    """A stop that was pushed before the process connected is heard by the first look or soon after."""
    worker.channel.push(UID, 1, {"do": "stop", "reason": "time"})
    status, out, _ = worker.run(LOOP)
    assert (status, out) == (0, "up\nsaved\n")


def test_stop_by_term(worker: Listening) -> None:
    """SIGTERM after the first look sets the flag and the script lives on to save."""
    with worker.start(LOOP) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        process.send_signal(signal.SIGTERM)
        worker.until(lambda: process.poll() is not None)
        assert process.communicate() == ("saved\n", "")
    assert process.returncode == 0


def test_a_script_that_does_not_ask_dies_of_term(worker: Listening) -> None:
    """progress and metric leave SIGTERM alone."""
    with worker.start(
        "import time\nfrom trainq import job\njob.progress(0.5); job.metric('a', 1)\ntime.sleep(60)"
    ) as process:
        worker.until(lambda: len(worker.heard) == 2)
        process.send_signal(signal.SIGTERM)
        worker.until(lambda: process.poll() is not None)
        process.communicate()
    assert process.returncode == -signal.SIGTERM


def test_the_users_own_handler_stays(worker: Listening) -> None:
    """A script or framework that handles TERM itself keeps its handler; so does one that ignores it."""
    status, _, err = worker.run(
        "import signal\nfrom trainq import job\nmine = lambda *_: None\n"
        "for handler in (mine, signal.SIG_IGN):\n    signal.signal(signal.SIGTERM, handler); job.should_stop(); assert signal.getsignal(signal.SIGTERM) == handler"
    )
    assert status == 0, err


def test_a_look_from_a_thread_leaves_the_signal_to_the_main_thread(worker: Listening) -> None:
    """Only the main thread may install a handler: a thread's look does not raise, the main thread's takes over later."""
    status, _, err = worker.run(
        "import os,signal,threading,time\nfrom trainq import job\n"
        "t = threading.Thread(target=job.should_stop); t.start(); t.join()\nassert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL\n"
        "assert not job.should_stop()\nos.kill(os.getpid(), signal.SIGTERM)\nassert job.should_stop() and job.should_stop()"
    )
    assert status == 0, err


def test_term_still_ends_forked_children(worker: Listening) -> None:
    """A pool's or loader's terminate() works: the handler is not inherited by what a training forks."""
    status, _, err = worker.run(
        "import multiprocessing,time\nfrom trainq import job\njob.should_stop()\n"
        "child = multiprocessing.get_context('fork').Process(target=time.sleep, args=(60,)); child.start()\n"
        "child.terminate(); child.join(30)\nassert child.exitcode == -15, child.exitcode\nassert not job.should_stop()"
    )
    assert status == 0, err


# --- report ----------------------------------------------------------------------------------------------------

REPORT = "from trainq.job import report\nprint(report.send({}))"


def test_report_sends_and_waits_for_the_worker(worker: Listening) -> None:
    """Answers "sent" only when the worker has read it; the step belongs to progress and to metrics."""
    _, out, err = worker.run(
        REPORT.format("step=10, total=100, message='m', metrics={'loss': 0.1, 'bad': 'x', 'n': 'nan'}, group='train'")
    )
    assert (out, err) == ("sent\n", "")
    metric, progress = (message for _, _, message in worker.heard)
    assert progress == {"do": "progress", "fraction": 0.1, "step": 10, "total": 100, "message": "m"}
    assert (metric["step"], metric["group"], metric["values"]["loss"], set(metric["values"])) == (
        10,
        "train",
        0.1,
        {"loss", "n"},
    )


def test_report_to_a_busy_or_absent_worker(worker: Listening, tmp_path: Path) -> None:
    """ "gone" after the time-out when nobody reads, at once when nobody listens; a pushed stop is no answer."""
    with worker.start(REPORT.format("fraction=1, timeout_s=0.2")) as process:
        assert process.communicate(timeout=60)[0] == "gone\n"
    worker.channel.push(UID, 1, {"do": "stop", "reason": "time"})
    assert worker.run(REPORT.format("fraction=1"))[1] == "sent\n"
    assert worker.run(REPORT.format("fraction=1"), TRAINQ_SOCKET=str(tmp_path / "none"))[1] == "gone\n"
    assert worker.run(REPORT.format("fraction=1"), TRAINQ_SOCKET="x" * 500)[1] == "gone\n"


def test_report_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the worker's variables there is nobody to tell."""
    monkeypatch.delenv("TRAINQ_SOCKET", raising=False)
    assert report.send(fraction=0.5) == "outside"


def test_report_to_something_else(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A listener that closes, or is no socket at all, is "gone"."""
    path = str(tmp_path / "s")
    monkeypatch.setenv("TRAINQ_SOCKET", path)
    monkeypatch.setenv("TRAINQ_JOB_UID", UID)
    with open(path, "w"):
        pass
    assert report.send(fraction=0.5) == "gone"
    assert words.hello().endswith(b"\n")
    assert isinstance(socket.AF_UNIX, int)


# --- the guest directory ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment that has no trainq and no pip."""
    directory = tmp_path_factory.mktemp("bare")
    venv.create(directory, with_pip=False)
    return directory


def in_bare(bare: Path, script: str, *python_path: str) -> str:
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(python_path)}
    done = subprocess.run(
        [bare / "bin/python", "-c", script], env=env, cwd=bare, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.strip()


@pytest.fixture
def fake(tmp_path: Path) -> Path:
    """Another trainq: one module of its own, an old job without metric, no words."""
    package = tmp_path / "site" / "trainq"
    (package / "job").mkdir(parents=True)
    (package / "__init__.py").write_text(
        "'the other'\nfrom trainq.version import __version__\nfrom .own import thing\n"
    )
    (package / "version.py").write_text("__version__ = '9.9'\n")
    (package / "own.py").write_text("thing = 'own'\n")
    (package / "data.txt").write_text("inside")
    (package / "job" / "__init__.py").write_text("old = True\n")
    return tmp_path / "site"


def test_guest_without_trainq(bare: Path) -> None:
    """In an environment without trainq, `from trainq import job` is the worker's, with its version."""
    import trainq

    script = "import trainq\nfrom trainq import job\njob.progress(1)\nprint(trainq.__version__, job.__file__, trainq.__path__)"
    package = os.path.join(REPOSITORY, "trainq")
    assert in_bare(bare, script, guest_directory()) == f"{trainq.__version__} {package}/job/__init__.py {[package]}"


def test_guest_in_a_real_job(bare: Path, worker: Listening) -> None:
    """The same interpreter reports to its worker, all modules included."""
    script = "from trainq import job\njob.metric('a', 1)\nassert not job.should_stop()"
    env = {**worker.env(), "PYTHONPATH": guest_directory()}
    with subprocess.Popen([bare / "bin/python", "-c", script], env=env) as process:
        worker.until(lambda: process.poll() is not None)
    worker.settle()
    assert process.returncode == 0
    assert worker.metrics("a") == [(None, 1.0)]


@pytest.mark.parametrize("guests", [1, 2])
def test_guest_before_an_installed_trainq(bare: Path, fake: Path, tmp_path: Path, guests: int) -> None:
    """An installed trainq wins in everything it has; only what it lacks is the worker's. Two guests do no harm."""
    second = tmp_path / "second" / "trainq" / "guest"
    (second / "trainq").mkdir(parents=True)
    (second / "trainq" / "__init__.py").write_text(Path(guest_directory(), "trainq/__init__.py").read_text())
    script = (
        "import trainq,importlib.resources,importlib.util\nfrom trainq import job,own\nimport trainq.base.errors\n"
        "print(trainq.__version__, job.old, own.thing, trainq.thing, trainq.__doc__, trainq.__file__,"
        " (importlib.resources.files('trainq') / 'data.txt').read_text(), importlib.util.find_spec('trainq').origin)"
    )
    init = fake / "trainq" / "__init__.py"
    paths = [guest_directory(), str(second), str(fake)] if guests == 2 else [guest_directory(), str(fake)]
    assert in_bare(bare, script, *paths) == f"9.9 True own own the other {init} inside {init}"


def test_guest_before_an_installed_trainq_of_the_same_files(bare: Path) -> None:
    """The worker's own environment: nothing changes, `python -m trainq...` included."""
    package = os.path.join(REPOSITORY, "trainq")
    script = "import trainq,runpy\nfrom trainq import job\nprint(trainq.__file__, trainq.__path__[0], job.__file__)"
    expected = f"{package}/__init__.py {package} {package}/job/__init__.py"
    assert in_bare(bare, script, guest_directory(), REPOSITORY) == expected


def test_guest_before_an_editable_install(bare: Path, fake: Path) -> None:
    """An install that is found by an import hook, not by a directory on sys.path, is found too."""
    script = (
        "import sys\nfrom importlib.machinery import PathFinder\n"
        f"class Hook:\n  @staticmethod\n  def find_spec(name, path=None, target=None):\n    return PathFinder.find_spec(name, [{str(fake)!r}]) if name == 'trainq' else None\n"
        "sys.meta_path.append(Hook)\nimport trainq\nfrom trainq import own\nprint(trainq.__version__)"
    )
    assert in_bare(bare, script, guest_directory()) == "9.9"


def test_guest_beside_a_single_module(bare: Path, tmp_path: Path) -> None:
    """Somebody's trainq.py keeps its names, and job is there as well."""
    (tmp_path / "trainq.py").write_text("mine = 1\n")
    script = "import trainq\nfrom trainq import job\nprint(trainq.mine, job.inside)"
    assert in_bare(bare, script, guest_directory(), str(tmp_path)) == "1 False"


def test_words_are_bounded() -> None:
    """No line is longer than the worker takes, whatever is handed in."""
    values: dict[str, Any] = {"x" * 200 + str(n): n for n in range(5000)}
    assert words.line(do="metric", values=values) == b""
    assert len(words.text("é" * 10_000)) == 1000
    assert words.number(2**70) == float(2**70)
    assert words.number(10**400) is None
    assert words.finite(float("nan")) is None
