"""How an attempt ended, from what was seen."""

from __future__ import annotations

import errno
import signal

import pytest

from trainq.domain.job import Budget, Outcome, decide
from trainq.domain.outcome import Seen, classify, errno_text, not_started


def seen(**more):
    plain = Seen(exit_code=None, signal=None, stopped_for=None, limit_s=None, spoke=False, log_end="")
    return plain._replace(**more)


def test_exit_0_is_success_and_nothing_else_is():
    """Q21: only exit 0 of a process that nobody stopped is a success."""
    assert classify(seen(exit_code=0)) == Outcome(None, 0)
    for code in range(1, 256):
        assert classify(seen(exit_code=code)).cause == "exit"
    for number in range(1, 65):
        assert classify(seen(signal=number)).cause == "signal"


@pytest.mark.parametrize("how", [{"exit_code": 0}, {"exit_code": 143}, {"signal": 15}, {"signal": 9}])
@pytest.mark.parametrize("why", ["timeout", "drained"])
def test_who_was_stopped_did_not_succeed(how, why):
    """Q21, Q28: a program that answers TERM with exit 0 was still stopped."""
    outcome = classify(seen(stopped_for=why, limit_s=2.0, **how))
    assert outcome.cause == why
    assert (outcome.exit_code, outcome.signal) == (how.get("exit_code"), how.get("signal"))


@pytest.mark.parametrize("how", [{"exit_code": 0}, {"exit_code": 1}, {"signal": 9}])
def test_who_was_canceled_is_canceled_by_its_row(how):
    """The cancel lies in the row: whatever is classified, `decide` ends it canceled."""
    has = Budget(
        cancel_requested=True,
        user_used=0,
        retries=3,
        retry_on=("exit", "signal"),
        backoff_s=1,
        system_used=0,
        max_attempts=3,
    )
    assert decide(classify(seen(stopped_for="canceled", **how)), has).state == "canceled"


def test_the_time_limit_is_named():
    """Q28: the limit stands in the words."""
    assert "2.5 s" in str(classify(seen(signal=15, stopped_for="timeout", limit_s=2.5)).error)


def test_sigkill_hints_at_memory_and_others_do_not():
    """Q26: signal number, its name, and a hint on memory for KILL only."""
    killed, terminated = classify(seen(signal=9)), classify(seen(signal=15))
    assert (killed.signal, killed.exit_code) == (9, None)
    assert "9 (SIGKILL)" in str(killed.error)
    assert "memory" in str(killed.error)
    assert "15 (SIGTERM)" in str(terminated.error)
    assert "memory" not in str(terminated.error)


def test_a_signal_without_a_name():
    """Real-time signals have numbers only."""
    assert "35 (unknown)" in str(classify(seen(signal=35)).error)
    assert signal.SIGRTMIN <= 35


IMPORTS = [
    "Traceback (most recent call last):\n  ...\nModuleNotFoundError: No module named 'x'",
    "ImportError: cannot import name 'a' from 'b'",
    "importlib.metadata.ModuleNotFoundError: x",
]


@pytest.mark.parametrize("log", IMPORTS)
def test_an_import_error_before_any_progress(log):
    """Q25: its own cause, with the last lines."""
    outcome = classify(seen(exit_code=1, log_end=log))
    assert outcome.cause == "import"
    assert log in str(outcome.error)


@pytest.mark.parametrize("log", IMPORTS)
def test_an_import_error_after_progress_is_an_exit(log):
    """Q25: once it has spoken, the module was there."""
    assert classify(seen(exit_code=1, log_end=log, spoke=True)).cause == "exit"


@pytest.mark.parametrize("log", ["", "ValueError: ImportError", "caught ImportError: x, going on", "ImportErrors: 3"])
def test_words_that_only_look_like_an_import_error(log):
    """Q25: only a line that begins with the exception's name."""
    assert classify(seen(exit_code=1, log_end=log)).cause == "exit"


def test_a_success_that_mentions_import_errors_is_a_success():
    """Exit 0 is exit 0, whatever the log says."""
    assert classify(seen(exit_code=0, log_end=IMPORTS[0])) == Outcome(None, 0)


@pytest.mark.parametrize(
    ("step", "number", "code"),
    [
        ("exec", errno.ENOENT, 127),
        ("exec", errno.ENOTDIR, 127),
        ("exec", errno.EACCES, 126),
        ("exec", errno.ENOEXEC, 126),
        ("exec", errno.E2BIG, 126),
        ("chdir", errno.ENOENT, None),
        ("fork", errno.EAGAIN, None),
    ],
)
def test_a_program_that_could_not_be_started(step, number, code):
    """Q27: spawn, with 127 for what is not there and 126 for what cannot be run, as shells say."""
    outcome = not_started(step, number, "/bin/x", "/work")
    assert (outcome.cause, outcome.exit_code, outcome.signal) == ("spawn", code, None)
    assert errno_text(number) in str(outcome.error)
    assert ("/work" if step == "chdir" else "/bin/x") in str(outcome.error)


def test_an_error_number_nobody_knows():
    """Still one line of words."""
    assert "9999" in errno_text(9999)
