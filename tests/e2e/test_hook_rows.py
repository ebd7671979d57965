"""Functions that a training names for its bad end, and the line that runs after a job: none changes what happened."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest
from e2e.kit import FAR, HOUSE, alive, until

RAISES = """
from trainq import job
@job.on_error
def save():
    raise OSError('no room to save')
raise ValueError('the first error')
"""
# Counts until it is stopped.
COUNTS = """
import os, sys, time
from trainq import job
{hooks}
print('up', flush=True)
open('up', 'w').close()
end = time.monotonic() + 60
while time.monotonic() < end:
    {step}
    time.sleep(0.02)
"""


def _counts(tq, hooks, step="pass"):
    """Put a counting script in; its id."""
    tq.script("count.py", COUNTS.format(hooks=hooks.strip(), step=step))
    return tq.submit("--grace", "20s", "--", "python", "count.py")


def _up(tq):
    until((tq.dir / "up").exists)


# on_error --------------------------------------------------------------------------------------------------------


def test_a_failing_hook_does_not_hide_the_first_error(tq):
    """Q93: the original traceback stands first in the log and in the job's error, the hook's second; the exit status
    and the reason are those of the first."""
    tq.script("bad.py", RAISES)
    job = tq.submit("bad")
    tq.work()
    card = tq.job(job)
    assert (card["state"], card["reason"], card["result"]["exit_code"]) == ("errored", "exit", 1)
    for text in (card["result"]["error"], tq.ok("logs", job).out):
        assert text.count("ValueError: the first error") == text.count("OSError: no room to save") == 1
        assert text.index("ValueError: the first error") < text.index("the on_error function save failed")
        assert text.index("the on_error function save failed") < text.index("OSError: no room to save")
        assert text.count("Traceback") == 2
    assert "hooks.py" not in card["result"]["error"]


def test_a_hook_that_talks_does_not_push_the_first_error_out(tq):
    """Q93: however much the hooks write, the job's error begins with the first traceback, and ends with the log."""
    tq.script(
        "bad.py",
        "from trainq import job\njob.on_error(lambda: print(*('saving %d' % n for n in range(9999)), sep='\\n'))\n"
        "def inner(): raise ValueError('the first error')\ninner()\n",
    )
    job = tq.submit("bad")
    tq.work()
    lines = tq.job(job)["result"]["error"].splitlines()
    assert lines[:2] == ["exit 1", "Traceback (most recent call last):"]
    assert "ValueError: the first error" in lines
    assert lines[-1] == "saving 9998"


def test_on_error_may_save_and_the_next_attempt_goes_on_from_there(tq):
    """Q93: a checkpoint that an on_error function saves is what the retry resumes from."""
    tq.script(
        "bad.py",
        "from trainq import job\nstart = job.checkpoint.manifest().get('step', 0)\nprint('from', start)\n"
        "job.on_error(lambda: job.checkpoint.save(b'x', step=7))\n"
        "if not start: raise ValueError('once')\n",
    )
    job = tq.submit("bad", "--retries", "1", "--backoff", "0.1s")
    tq.work()
    card = tq.job(job)
    assert (card["state"], card["resumed_from"]) == ("done", 1)
    assert tq.ok("logs", job).out == "from 7\n"


def test_each_hook_runs_once_and_none_takes_anything_from_the_others(tq):
    """Q93: several run in the order they were named, whatever one of them raises; none can make a success of it."""
    tq.script(
        "bad.py",
        "import os, sys\nfrom trainq import job\n"
        "job.on_error(lambda: print('one', flush=True))\njob.on_error(lambda: sys.exit(0))\n"
        "job.on_error(lambda: 1 / 0)\njob.on_error(lambda: print('four', flush=True))\n"
        "job.on_cancel(lambda: print('canceled?'))\n"
        "if os.fork() == 0:\n    raise KeyError('of a child')\nos.wait()\n"
        "raise ValueError('the first error')\n",
    )
    job = tq.submit("bad")
    tq.work()
    card, log = tq.job(job), tq.ok("logs", job).out
    assert (card["state"], card["result"]["exit_code"]) == ("errored", 1)
    assert log.count("one\n") == log.count("four\n") == 1
    assert log.index("of a child") < log.index("first error") < log.index("one\n") < log.index("four\n")
    assert "canceled?" not in log
    assert "SystemExit: 0" in log
    assert "ZeroDivisionError" in log


def test_exit_is_no_error(tq):
    """Q93: a script that leaves by sys.exit, with whatever status, is not one that failed by an exception."""
    tq.script("bad.py", "import sys\nfrom trainq import job\njob.on_error(lambda: print('hook'))\nsys.exit(3)\n")
    job = tq.submit("bad")
    tq.work()
    assert tq.job(job)["result"]["exit_code"] == 3
    assert tq.ok("logs", job).out == ""


# on_cancel -------------------------------------------------------------------------------------------------------


def test_on_cancel_runs_once_within_the_grace(tq):
    """Q93: cancel: each function runs once, in order, one that raises too; then the script ends through its `finally`,
    long before the grace is over, and the job is canceled without an error."""
    hooks = (
        "job.on_cancel(lambda: print('one', flush=True))\njob.on_cancel(lambda: 1 / 0)\n"
        "job.on_cancel(lambda: (time.sleep(0.3), print('three', flush=True)))\n"
        "import atexit; atexit.register(lambda: print('left', flush=True))\n"
    )
    with tq.worker():
        job = _counts(tq, hooks)
        _up(tq)
        tq.ok("cancel", "--wait", "--timeout", "15s", job)
    card, log = tq.job(job), tq.ok("logs", job).out
    assert (card["state"], card["result"]["error"]) == ("canceled", None)
    assert log.count("one") == log.count("three") == log.count("left") == 1
    assert log.index("one") < log.index("ZeroDivisionError") < log.index("three") < log.index("left")
    assert card["result"]["exit_code"] == 128 + signal.SIGTERM


def test_on_cancel_may_save_and_ask_to_be_requeued(tq):
    """Q93: the worker stops: the function saves and leaves with 75; the next attempt begins at what it saved."""
    hooks = (
        "start = job.checkpoint.manifest().get('step', 0)\n"
        "if start: sys.exit(0)\n"
        "@job.on_cancel\ndef save():\n    job.checkpoint.save(b'x', step=57)\n    sys.exit(75)\n"
    )
    with tq.worker() as worker:
        job = _counts(tq, hooks)
        _up(tq)
        worker.signal(signal.SIGTERM)
        assert worker.end().code == 0
    card = tq.job(job)
    assert (card["state"], card["reason"], card["retry"]["used"]) == ("pending", "requeued", 0)
    tq.work()
    card = tq.job(job)
    assert (card["state"], card["resumed_from"]) == ("done", 1)


def test_who_looks_at_should_stop_leaves_by_itself(tq):
    """Q93: with should_stop in use the functions run and the script goes on to its own end."""
    step = "if job.should_stop():\n        print('own end')\n        sys.exit(4)"
    with tq.worker():
        job = _counts(tq, "job.on_cancel(lambda: print('hook', flush=True))", step)
        _up(tq)
        tq.ok("cancel", "--wait", "--timeout", "15s", job)
    assert tq.ok("logs", job).out == "up\nhook\nown end\n"
    assert tq.job(job)["result"]["exit_code"] == 4


def test_a_handler_that_was_there_is_called_after_the_hooks(tq):
    """Q93: a script's own handler of TERM, set before, still ends it in its way."""
    hooks = (
        "import signal\nsignal.signal(signal.SIGTERM, lambda *_: (print('own', flush=True), os._exit(5)))\n"
        "job.on_cancel(lambda: print('hook', flush=True))\n"
    )
    with tq.worker():
        job = _counts(tq, hooks)
        _up(tq)
        tq.ok("cancel", "--wait", "--timeout", "15s", job)
    assert tq.ok("logs", job).out == "up\nhook\nown\n"


def test_children_of_a_training_with_hooks_die_of_term(tq):
    """Q93: a pool's processes do not run their parent's functions, and end by TERM as they would without."""
    hooks = (
        "job.on_cancel(lambda: print('hook', flush=True))\n"
        "if os.fork() == 0:\n    open('child', 'w').write(str(os.getpid()))\n    time.sleep(60)\n    os._exit(0)\n"
    )
    with tq.worker():
        job = _counts(tq, hooks)
        _up(tq)
        child = int(until(lambda: (tq.dir / "child").exists() and (tq.dir / "child").read_text()))
        tq.ok("cancel", "--wait", "--timeout", "15s", job)
        assert not alive(child)
    assert tq.ok("logs", job).out == "up\nhook\n"


# outside a job ---------------------------------------------------------------------------------------------------


def _by_hand(tmp_path, script, number=None):
    """Run a script without any worker, and send it a signal once it has said something."""
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": HOUSE}
    with subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env, cwd=tmp_path, text=True
    ) as process:
        if number is not None:
            assert process.stdout.readline() == "up\n"
            process.send_signal(number)
        out, err = process.communicate(timeout=30)
    return process.returncode, out, err


def test_outside_a_job_hooks_work_the_same(tmp_path):
    """Q93: by hand: an exception and TERM run them, Ctrl-C too; the exit status is as it would have been."""
    code, _, err = _by_hand(tmp_path, RAISES)
    assert code == 1
    assert err.index("ValueError: the first error") < err.index("OSError: no room to save")
    wait = "from trainq import job\njob.on_cancel(lambda: print('hook'))\nprint('up', flush=True)\nimport time; time.sleep(60)"
    code, out, _ = _by_hand(tmp_path, wait, signal.SIGTERM)
    assert (code, out) == (128 + signal.SIGTERM, "hook\n")
    code, out, err = _by_hand(tmp_path, wait, signal.SIGINT)
    assert (code, out) == (-signal.SIGINT, "hook\n")
    assert "KeyboardInterrupt" in err
    assert not (tmp_path / "checkpoints").exists()


# the line after the end ------------------------------------------------------------------------------------------

TELLS = 'echo "$TRAINQ_JOB_ID $TRAINQ_STATE ${TRAINQ_REASON:--} ${TRAINQ_EXIT_CODE:--} $TRAINQ_ATTEMPT $PWD" >> told'


@pytest.fixture
def told(tq):
    """The lines that hooks have written."""
    return lambda: (tq.dir / "told").read_text().splitlines() if (tq.dir / "told").exists() else []


def test_on_end_knows_how_it_ended(tq, told):
    """E22: the line runs in the job's directory with its variables, state, reason and exit code, for each kind of end,
    and once a job: not when it goes back to be tried again."""
    where = tq.dir
    for line in ("-- true", "--shell exit\t3", "-- no-such-program", "--time 0.2s -- sleep 60"):
        tq.submit("--on-end", TELLS, *line.split(" "))
    tq.submit("--on-end", TELLS, "--retries", "1", "--backoff", "0.1s", "--", "false")
    tq.work("--slots", "2")
    assert sorted(told()) == [
        f"1 done - 0 1 {where}", f"2 errored exit 3 1 {where}", f"3 errored spawn 127 1 {where}",
        f"4 errored timeout - 1 {where}", f"5 errored exit 1 2 {where}",
    ]  # fmt: skip


def test_on_end_of_a_canceled_job(tq, told):
    """E22: a job that is canceled while it runs has its line too; one that goes back to the queue has not."""
    job = tq.submit("--on-end", TELLS, "--", "sleep", "60")
    with tq.worker() as worker:
        until(lambda: tq.job(job)["attempt"]["pid"])
        worker.signal(signal.SIGTERM)
        worker.end()
    assert told() == []
    with tq.worker():
        until(lambda: tq.job(job)["attempt"]["pid"])
        tq.ok("cancel", "--wait", job)
        until(told)
    assert told() == [f"{job} canceled user - 2 {tq.dir}"]


def test_a_failing_on_end_changes_nothing(tq):
    """E22: a line that fails is one row of history, and the job's state, result, model and times stay as they were."""
    job = tq.submit("ok", "--on-end", "echo from the hook; exit 7")
    assert "done" in tq.ok("worker", "--once").out
    card = tq.job(job)
    result = card["result"]
    assert (card["state"], card["reason"], result["exit_code"], result["error"]) == ("done", None, 0, None)
    rows = tq.history(job)
    assert [row["state"] for row in rows].count("done") >= 1
    assert [row for row in rows if "exit 7" in (row["message"] or "")] == rows[-1:]
    assert len(tq.models()) == 1
    assert tq.ok("logs", job).out == "trained\nfrom the hook\n"


def test_a_line_that_cannot_be_started(tq):
    """E22, E01: the job has removed its own directory, whose name is no text: that the line could not be started there is
    a row of history that can be read, the job is done, and the worker goes on."""
    gone = os.fsencode(tq.dir) + b"/\xff\n"
    os.mkdir(gone)
    job = tq.submit("--on-end", "true", "--shell", 'rmdir "$PWD"', cwd=gone)
    second = tq.submit("--", "true")
    tq.work("--slots", "1")
    assert (tq.state(job), tq.state(second)) == ("done", "done")
    said = tq.history(job)[-1]["message"]
    assert said.startswith("on-end: ")
    assert f"{tq.dir}/\\xff\\n" in said


def test_on_end_is_ended_at_its_limit(tq):
    """E22: a line that hangs, with what it started, is ended at hook_limit; the slot is free again, the job is done."""
    tq.env["TRAINQ_TIMES_HOOK_LIMIT"] = "0.5s"
    line = "sleep 61 & echo $! > hooked; wait"
    job = tq.submit("--on-end", line, "--", "true")
    second = tq.submit("--", "true")
    tq.work("--slots", "1")
    assert not alive(int((tq.dir / "hooked").read_text()))
    assert tq.state(second) == "done"
    card = tq.job(job)
    assert (card["state"], card["result"]["exit_code"]) == ("done", 0)
    assert [row["message"] for row in tq.history(job)][-1] == "on-end: it was stopped at its limit"


def test_the_end_is_written_before_the_line_runs(tq):
    """E22: what the line asks of the queue is the end of its own job, and a worker told to stop ends the line too."""
    line = 'python -m trainq --root "$TRAINQ_ROOT" status --json $TRAINQ_JOB_ID > seen; touch hooked; sleep 62'
    job = tq.submit("--on-end", line, "--", "true")
    began = time.monotonic()
    with tq.worker() as worker:
        until((tq.dir / "hooked").exists)
        assert '"state":"done"' in (tq.dir / "seen").read_text().replace(": ", ":")
        worker.signal(signal.SIGTERM)
        assert worker.end().code == 0
    assert time.monotonic() - began < 60
    assert tq.state(job) == "done"


def test_a_line_may_take_longer_than_the_holder_limit(tq):
    """E22: it holds no claim: what freezes jobs without a heartbeat does not freeze the line after the end."""
    job = tq.submit("--on-end", "sleep 3; echo finished", "--", "true")
    tq.ok("worker", "--once")
    assert tq.ok("logs", job).out == "finished\n"
    assert len([row for row in tq.history(job) if "on-end" in (row["message"] or "")]) == 0


def test_the_slot_of_a_line_that_has_ended_is_given_away_at_once(tq):
    """E22: what waits for the slot starts when the line has ended, and not when the worker looks again by itself."""
    tq.env.update(FAR)
    tq.submit("--on-end", "true", "--", "true")
    second = tq.submit("--", "true")
    with tq.worker("--slots", "1"):
        until(lambda: tq.state(second) == "done")


def test_the_line_sees_the_new_version(tq):
    """E22: `@latest` points to what the job has just published when the line runs."""
    line = 'readlink "$TRAINQ_ROOT/models/ok/@latest"'
    jobs = [tq.submit("ok", "--seed", n, "--on-end", line) for n in range(3)]
    tq.work("--slots", "1")
    assert [tq.ok("logs", job).out for job in jobs] == [f"trained\n@{n}\n" for n in (1, 2, 3)]


def test_a_pass_of_the_janitor_leaves_the_line_its_training_sets(tq):
    """Q42: what is unpacked for the attempt is there as long as the line may run, whoever prunes; then it goes."""
    (tq.dir / "set").write_text("content")
    line = "touch began; while [ ! -e go ]; do sleep 0.05; done; cat $TRAINQ_DATA > seen"
    job = tq.submit("--data", "set", "--on-end", line, "--", "true")
    with tq.worker("--once") as worker:
        until((tq.dir / "began").exists)
        assert tq.state(job) == "done"
        tq.ok("prune", env={"TRAINQ_KEEP_FILE_GRACE": "0s"})
        (tq.dir / "go").touch()
        worker.end()
    assert (tq.dir / "seen").read_text() == "content"
    assert "on-end" not in str(tq.history(job))


def test_the_line_finds_the_model(tq):
    """E22: TRAINQ_MODEL_DIR of the line is the version that was published, whole; without one it is unset."""
    line = 'echo "${TRAINQ_MODEL_DIR-none}"; ls "${TRAINQ_MODEL_DIR-.}" | grep -c model.json'
    made = tq.submit("ok", "--on-end", line)
    failed = tq.submit("bad", "--model", "m", "--on-end", line)
    empty = tq.submit("--model", "m", "--on-end", line, "--", "true")
    tq.work("--slots", "1")
    (model,) = tq.models()
    assert tq.ok("logs", made).out == f"trained\n{model['path']}\n1\n"
    for job in (failed, empty):
        assert tq.ok("logs", job).out.endswith("\nnone\n0\n")
