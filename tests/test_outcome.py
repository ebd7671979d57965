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
        assert classify(seen(exit_code=code)).cause == ("requeued" if code == 75 else "exit")
    for number in range(1, 65):
        assert classify(seen(signal=number)).cause == "signal"


@pytest.mark.parametrize("how", [{"exit_code": 0}, {"exit_code": 143}, {"signal": 15}, {"signal": 9}])
@pytest.mark.parametrize("why", ["timeout", "stalled", "drained"])
@pytest.mark.parametrize("log_end", ["", "MemoryError", "ModuleNotFoundError: x"])
def test_who_was_stopped_did_not_succeed(how, why, log_end):
    """Q21, Q28: a program that answers TERM with exit 0 was still stopped, whatever its log says."""
    outcome = classify(seen(stopped_for=why, limit_s=2.0, stall_s=9.0, log_end=log_end, **how))
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
    """Q26: signal number, its name, the exit code that a shell says, and a hint on memory for KILL only."""
    killed, terminated = classify(seen(signal=9)), classify(seen(signal=15))
    assert (killed.signal, killed.exit_code) == (9, None)
    assert "9 (SIGKILL), exit 137" in str(killed.error)
    assert "15 (SIGTERM), exit 143" in str(terminated.error)
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


# memory ------------------------------------------------------------------------------------------------------------

MEMORY = [
    "Traceback (most recent call last):\n  ...\nMemoryError",
    "MemoryError: Unable to allocate 7.28 TiB",
    "numpy._core._exceptions._ArrayMemoryError: Unable to allocate 7.28 TiB for an array with shape (1000000000000,)",
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB",
    "torch.cuda.OutOfMemoryError: HIP out of memory.",
    "cupy.cuda.memory.OutOfMemoryError: Out of memory allocating 8,000 bytes",
    "RuntimeError: CUDA out of memory. Tried to allocate 2.00 MiB",
    "RuntimeError: CUDA error: out of memory",
    "RuntimeError: [enforce fail at alloc_cpu.cpp:83] . DefaultCPUAllocator: can't allocate memory: you tried to",
    "jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 8 bytes.",
    "ResourceExhaustedError: {{function_node __wrapped__Mul}} OOM when allocating tensor with shape[100000,100000]",
    "terminate called after throwing an instance of 'std::bad_alloc'\n  what():  std::bad_alloc",
    "OSError: [Errno 12] Cannot allocate memory",
    "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
]
NOT_MEMORY = [
    "",
    "ValueError: MemoryError",
    "caught MemoryError, going on",
    "MemoryErrors: 3",
    "MyMemoryErrorLog: 3",
    "RuntimeError: out of patience, memory is fine",
    "OSError: [Errno 28] No space left on device",
    "epoch 3: memory 12 GiB",
]


@pytest.mark.parametrize("log", MEMORY)
@pytest.mark.parametrize("how", [{"exit_code": 1}, {"exit_code": 137}, {"signal": 6}, {"signal": 9}])
def test_out_of_memory_is_recognised_by_the_log(log, how):
    """E14: what the allocators say last, however the process then ended; code and signal are kept."""
    outcome = classify(seen(log_end=log, **how))
    assert outcome.cause == "oom"
    assert (outcome.exit_code, outcome.signal) == (how.get("exit_code"), how.get("signal"))
    assert str(outcome.error).startswith("out of memory: ")
    assert log in str(outcome.error)


@pytest.mark.parametrize("log", NOT_MEMORY)
def test_words_that_only_look_like_out_of_memory(log):
    """E14: another failure keeps its own cause."""
    assert classify(seen(exit_code=1, log_end=log)).cause == "exit"
    assert classify(seen(signal=6, log_end=log)).cause == "signal"


@pytest.mark.parametrize("log", MEMORY)
def test_a_success_that_mentions_memory_is_a_success(log):
    """E14: a training that ran out of memory, took a smaller batch and ended with 0 is done."""
    assert classify(seen(exit_code=0, log_end=log, oom_killed=True)) == Outcome(None, 0)


@pytest.mark.parametrize(
    ("how", "killed", "cause"),
    [
        ({"signal": 9}, True, "oom"),
        ({"signal": 9}, False, "signal"),
        ({"signal": 15}, True, "signal"),
        ({"exit_code": 1}, True, "exit"),
        ({"exit_code": 137}, True, "exit"),
    ],
)
def test_a_kill_for_memory_is_recognised_by_the_cgroup(how, killed, cause):
    """E14: SIGKILL while the kernel counted a kill for memory here; what ended otherwise was not that one."""
    assert classify(seen(oom_killed=killed, **how)).cause == cause


# requeue me --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stopped_for", "cause"),
    [
        (None, "requeued"), ("timeout", "requeued"), ("drained", "requeued"), ("canceled", "requeued"),
        ("stalled", "stalled"),
    ],
)  # fmt: skip
def test_exit_75_is_the_wish_to_go_on_later(stopped_for, cause):
    """E12: also when the worker asked for the end, but not when it had been silent for too long."""
    outcome = classify(seen(exit_code=75, stopped_for=stopped_for, limit_s=2.0, stall_s=9.0, log_end="MemoryError"))
    assert (outcome.cause, outcome.exit_code) == (cause, 75)


@pytest.mark.parametrize(
    ("run_s", "saved", "idle"),
    [(0.0, False, True), (59.9, False, True), (60.0, False, False), (0.0, True, False), (1e6, True, False)],
)
def test_a_requeue_is_idle_when_it_was_at_once_and_for_nothing(run_s, saved, idle):
    """E12: a minute of work, or a new checkpoint, and it is not idle; nothing but a requeue ever is."""
    assert classify(seen(exit_code=75, run_s=run_s, saved=saved)).idle is idle
    assert classify(seen(exit_code=74, run_s=run_s, saved=saved)).idle is False
    assert classify(seen(exit_code=75, stopped_for="stalled", stall_s=1.0, run_s=run_s)).idle is False


@pytest.mark.parametrize(
    "how",
    [{"exit_code": 1}, {"signal": 9}, {"exit_code": 1, "log_end": IMPORTS[0]}, {"exit_code": 1, "log_end": MEMORY[0]}],
)
def test_a_failure_is_quick_below_ten_seconds(how):
    """E13: whatever the cause; a program that could not be started is always quick, a success never."""
    assert classify(seen(run_s=9.9, **how)).quick is True
    assert classify(seen(run_s=10.0, **how)).quick is False
    assert classify(seen(**how)).quick is False  # how long it ran is not known
    assert classify(seen(exit_code=0, run_s=0.0)).quick is False
    assert not_started("exec", errno.ENOENT, "/bin/x", "/").quick is True


def test_the_silence_is_named():
    """Q24: for how long no progress was reported stands in the words; beats have no part in it."""
    outcome = classify(seen(signal=15, stopped_for="stalled", stall_s=90.0))
    assert outcome.cause == "stalled"
    assert "no progress was reported for 90 s" in str(outcome.error)
