"""Checkpoints of a training: `job.checkpoint.save`, `.latest`, `.manifest`, `.every`.

    from trainq import job

    start = 0
    if (path := job.checkpoint.latest()) is not None:
        model.load(os.path.join(path, "model.pt"))
        start = job.checkpoint.manifest()["step"]
    trigger = job.checkpoint.every(steps=10, minutes=5, keep=3)
    for step in range(start + 1, 101):
        ...
        if trigger.due(step, last=step == 100):
            job.checkpoint.save(lambda directory: model.save(os.path.join(directory, "model.pt")), step=step)
        if job.should_stop():
            sys.exit(75)  # requeue me

What must stay true: an older checkpoint is whole until a newer one is committed, so a kill at any moment costs at most
what came after the last one; in a job only what the worker has committed under the claim is ever resumed from; no
save that fails ends a training that has not asked for it (`strict=True`). Outside a job the same calls keep their
checkpoints in ./checkpoints, where each counts once it has its name.

The worker is told with {"do": "checkpoint", "number", "step", "epoch", "digest", "size", "ack"} and answers
{"ack", "ok"} when its transaction is committed. Until then the directory is not a checkpoint of the job:
- ok: it counts; older ones beyond `keep` are deleted.
- not ok (the claim is lost): the directory is deleted, `save` answers None.
- no answer within `wait_s`: the path is given, since the worker has the message and commits it when it can; nothing
  older is deleted before the answer, which is looked for at the next save.
- no worker any more: None. The directory stays, because the commit may have happened; whoever runs the next attempt
  deletes it unless it did.
"""

from __future__ import annotations

import os
import shutil
import threading
from typing import TYPE_CHECKING, Any

from trainq.job import checkpoint_files, given, trigger, words
from trainq.job.checkpoint_files import Broken
from trainq.job.connection import complain
from trainq.job.crash import point
from trainq.job.question import Question

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import TypeAlias

    from trainq.job.checkpoint_files import Made
    from trainq.job.trigger import Number, Trigger

    Content: TypeAlias = Callable[[str], object] | bytes | bytearray | memoryview | str | os.PathLike[str] | None

keep = 3
"""How many committed checkpoints stay; 0: all."""
wait_s = 10.0
"""Seconds that `save` waits for the worker's commit."""
_FAILURE_S = 1.0

_lock = threading.RLock()
_unanswered: dict[int, tuple[Question, str]] = {}
_newest: str | None = None
"""The newest that this process committed, or found by itself outside a job."""


class NotSaved(RuntimeError):
    """The worker did not take a checkpoint; raised by `save(strict=True)` only."""


def save(
    write: Content,
    *,
    step: Number = None,
    epoch: Number = None,
    facts: Mapping[str, Any] | None = None,
    keep: int | None = None,
    strict: bool = False,
) -> str | None:
    """Save a checkpoint and give its path; None if it failed, which the worker and stderr are told.

    `write` is a function that is given an empty directory and writes files there, or bytes (they become the file
    `data`), or the path of a file or directory to copy, or None if `facts` (what JSON can hold) say all. `step`,
    `epoch` and `facts` come back from `manifest`. Any number of threads and processes may save; each gets a number
    of its own. Returns when all is on the disk and the worker has committed it (see above).

    Exceptions of `write` and of the disk are raised with `strict=True` only, as is `NotSaved`; what ends a process
    (KeyboardInterrupt, SystemExit) always passes. Nothing of a failed save stays on the disk.
    """
    with _lock:
        _hear_late_answers()
        try:
            made = checkpoint_files.create(given.checkpoint_dir(), _filler(write), _known(step, epoch, facts))
        except Exception as error:  # a stranger's function may raise anything
            _fail(error)
            if strict:
                raise
            return None
        finally:
            trigger.saved()
        if given.inside():
            why_not = _commit(made, words.finite(step), words.finite(epoch))
            if why_not is not None:
                complain(f"checkpoint {made.number} does not count: {why_not}")
                if strict:
                    raise NotSaved(why_not)
                return None
            if made.number in _unanswered:
                return made.path
        _take_up(made.path)
        point("checkpoint.committed")
        _remove_old(made.number, keep)
        return made.path


def latest() -> str | None:
    """The directory of the checkpoint to go on from, None for a fresh start.

    In a job: the newest that this process saved, else the one that the worker chose (TRAINQ_RESUME_FROM). Outside
    one: the newest in ./checkpoints that is as it was written; those passed over are told on stderr, and if there are
    some and none is whole this raises `RuntimeError`, since to start anew would be a wrong answer.
    """
    with _lock:
        _hear_late_answers()
        if _newest is not None and not checkpoint_files.is_gone(_newest):
            return _newest
        if given.inside():
            return _given()
        found = _newest_whole(given.checkpoint_dir())
        if found is not None:
            _take_up(found)
        return found


def manifest(path: str | os.PathLike[str] | None = None) -> dict[str, Any]:
    """What was saved with a checkpoint (of `latest()` without a path): number, step, epoch, facts, attempt, time, files.

    {} if there is none to go on from. `ValueError` if `path` is not a checkpoint.
    """
    found = latest() if path is None else os.fspath(path)
    return {} if found is None else checkpoint_files.read(found).manifest


def every(
    steps: Number = None,
    *,
    epochs: Number = None,
    minutes: Number = None,
    on_stop: bool = True,
    keep: int | None = None,
) -> Trigger:
    """A trigger whose `due(step, epoch)` says when to save: see there.

    `minutes` count from the last save. With `on_stop` it is also due once when the job is asked to end; it takes
    over SIGTERM for that, as `job.should_stop` does, so look at that too and leave after the save. `keep` becomes
    the module's.
    """
    if keep is not None:
        globals()["keep"] = keep
    return trigger.Trigger(steps=steps, epochs=epochs, minutes=minutes, on_stop=on_stop, resumed=_resumed_at())


# what is saved ---------------------------------------------------------------------------------------------------


def _filler(write: Content) -> Callable[[str], object]:
    if write is None:
        return lambda _directory: None
    if callable(write):
        return write
    if isinstance(write, (bytes, bytearray, memoryview)):
        data = write
        return lambda directory: checkpoint_files.write_file(os.path.join(directory, "data"), data)
    if isinstance(write, (str, os.PathLike)):
        return _copier(os.fspath(write))
    raise TypeError(f"checkpoint.save() takes a function, bytes or a path, not {type(write).__name__}")


def _copier(path: str) -> Callable[[str], object]:
    if os.path.isdir(path):
        return lambda directory: shutil.copytree(path, directory, dirs_exist_ok=True)
    return lambda directory: shutil.copy2(path, directory)


def _known(step: Any, epoch: Any, facts: Mapping[str, Any] | None) -> dict[str, Any]:
    job_id = os.environ.get("TRAINQ_JOB_ID", "")
    return {
        "job": _uid(),
        "job_id": int(job_id) if job_id.isdecimal() else None,
        "attempt": given.attempt(),
        "step": words.finite(step),
        "epoch": words.finite(epoch),
        "facts": _plain(dict(facts or {})),
    }


def _uid() -> str:
    return words.text(os.environ.get("TRAINQ_JOB_UID", ""))


def _plain(value: Any) -> Any:
    """The value as JSON: numbers of any library as numbers, no number (NaN, infinities) as null."""
    if value is None or isinstance(value, (str, bool)):
        return value
    if isinstance(value, dict):
        return {str(name): _plain(held) for name, held in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(held) for held in value]
    if type(value) is int:
        return value
    found = words.number(value)
    if found is None or isinstance(value, (bytes, bytearray)):
        raise TypeError(f"facts of a checkpoint take what JSON can hold, not {type(value).__name__}")
    return None if isinstance(found, str) else found


# the worker's part -----------------------------------------------------------------------------------------------


def _commit(made: Made, step: Number, epoch: Number) -> str | None:
    """Have the worker commit it: None if it did, or may still (then it is in `_unanswered`), else why not."""
    try:
        question = Question(
            wait_s, do="checkpoint", number=made.number, step=step, epoch=epoch, digest=made.digest, size=made.size
        )
    except OSError:
        return _GONE
    why_not = _answered(made.number, question, made.path, wait_s)
    if made.number in _unanswered:
        complain(f"checkpoint {made.number}: the worker has not answered in {wait_s:g} s; it may still count")
    return why_not


_GONE = "the worker does not answer any more"


def _answered(number: int, question: Question, path: str, within_s: float) -> str | None:
    """Wait for the answer: None for yes, and for not yet, which is noted in `_unanswered`."""
    answer = None
    try:
        answer = question.answer(within_s)
        gone = False
    except OSError:
        gone = True
    finally:  # also when a signal handler raises in the middle
        if answer is None:
            _unanswered[number] = question, path
    if answer is None and not gone:
        return None
    _unanswered.pop(number, None)
    question.close()
    if gone:
        return _GONE
    if not answer:
        checkpoint_files.remove(path)
        return "the worker refused it: the job is no longer its own"
    return None


def _hear_late_answers() -> None:
    for number in list(_unanswered):
        waiting = _unanswered.pop(number, None)  # taken out, as a signal handler may save in between
        if waiting is None:
            continue
        why_not = _answered(number, *waiting, 0)
        if why_not is not None:
            complain(f"checkpoint {number} does not count: {why_not}")
        elif number not in _unanswered:
            _take_up(waiting[1])


def _take_up(path: str) -> None:
    """This is the newest now, unless a later one is."""
    global _newest  # noqa: PLW0603 - one training per process
    if _newest is None or int(os.path.basename(path)) > int(os.path.basename(_newest)):
        _newest = path


def _fail(error: Exception) -> None:
    text = words.text(f"{type(error).__name__}: {error}")
    complain(f"a checkpoint could not be saved: {text}")
    if given.inside():
        try:
            Question(_FAILURE_S, do="checkpoint_failed", error=text).close()
        except OSError:
            pass  # no worker, nobody to tell


def _remove_old(newest: int, kept: int | None) -> None:
    resumed = _given()
    try:
        checkpoint_files.remove_old(
            given.checkpoint_dir(),
            newest,
            keep=keep if kept is None else kept,
            job=_uid(),
            attempt=given.attempt(),
            resumed=None if resumed is None else int(os.path.basename(resumed)),
            spare=_unanswered,
        )
    except OSError as error:
        complain(f"old checkpoints could not be deleted: {error}")


# where to go on --------------------------------------------------------------------------------------------------


def _given() -> str | None:
    """The checkpoint that the worker chose."""
    path = os.environ.get("TRAINQ_RESUME_FROM")
    if not path or os.environ.get("TRAINQ_RESUME") != "1" or not os.path.basename(path).isdecimal():
        return None
    return path


def _newest_whole(directory: str) -> str | None:
    found = 0
    for number in reversed(checkpoint_files.numbers(directory)):
        path = os.path.join(directory, str(number))
        if checkpoint_files.is_gone(os.path.join(path, checkpoint_files.MANIFEST)):
            continue  # a directory of the user's own
        problems = checkpoint_files.problems(path)
        if not problems:
            return path
        found += 1
        complain(f"checkpoint {number} is passed over: {problems[0]}")
    if found:
        raise RuntimeError(f"no checkpoint in {directory} is whole: delete them to start anew")
    return None


def _resumed_at() -> tuple[Number, Number]:
    """Step and epoch that the training goes on from, as far as it asked or was told."""
    path = _newest or _given()
    if path is None:
        return None, None
    try:
        known = checkpoint_files.read(path).manifest
    except (Broken, OSError):
        return None, None
    return words.finite(known.get("step")), words.finite(known.get("epoch"))


def _after_fork() -> None:
    """In the child: its parent's questions are not its own, and a lock that another thread held stays held."""
    global _lock  # noqa: PLW0603
    _lock = threading.RLock()
    for question, _path in _unanswered.values():
        question.close()
    _unanswered.clear()


os.register_at_fork(after_in_child=_after_fork)
