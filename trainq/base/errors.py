"""Every error a user can meet: one class, one word, one exit status, one hint.

A message says what, on which thing, and what was seen, in one lower-case line. The hint names the next command to
type. The exit statuses are those of the README; a test keeps the two in step.
"""

from __future__ import annotations


class TrainqError(Exception):
    """The base of all. `exit` is the exit status, `word` the `error` of the JSON answer."""

    exit: int = 70
    word: str = "bug"
    hint: str | None = None

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        if hint is not None:
            self.hint = hint


class Usage(TrainqError):
    """The words of the command line do not make a command."""

    exit, word = 2, "usage"


class BadValue(TrainqError):
    """A value was refused; nothing was stored."""

    exit, word = 2, "bad_value"


class NoSelector(TrainqError):
    """A changing command was not told which jobs."""

    exit, word = 2, "no_selector"
    hint = "name the jobs: 12, 12,15-20, last, key:K, or filter with --state, --queue, --user, --tag, --type"


class UnknownType(TrainqError):
    """No such model type in trainq.toml."""

    exit, word = 2, "unknown_type"
    hint = "trainq types"


class UnknownQueue(TrainqError):
    """No such queue in [queues] names."""

    exit, word = 2, "unknown_queue"


class UnknownGpuType(TrainqError):
    """No such type in [limits] gpus."""

    exit, word = 2, "unknown_gpu_type"
    hint = "trainq gpus"


class GpuLimit(TrainqError):
    """More GPUs are asked for than [limits] ever lets run; none of a type that is closed."""

    exit, word = 2, "gpu_limit"


class BadParam(TrainqError):
    """A parameter is missing, unknown to its type, or has a value that does not fit."""

    exit, word = 2, "bad_param"


class BadData(TrainqError):
    """A training set is missing, unreadable, changed while it was read, or not asked for."""

    exit, word = 2, "bad_data"


class BadSnapshot(TrainqError):
    """The code cannot be frozen: it is too large, cannot be read, or git does not tell what belongs to it."""

    exit, word = 2, "bad_snapshot"


class NotFound(TrainqError):
    """No such job, queue, worker, type or model."""

    exit, word = 3, "not_found"


class NotPossible(TrainqError):
    """The thing is in a state in which this cannot be done."""

    exit, word = 4, "not_possible"


class Denied(TrainqError):
    """The thing belongs to somebody else."""

    exit, word = 4, "denied"


class TimedOut(TrainqError):
    """A waited-for thing did not happen in the time given."""

    exit, word = 5, "timeout"


class GateBusy(TrainqError):
    """The queue's lock was held by somebody else for the whole of lock_wait."""

    exit, word = 5, "locked"


class NoRoot(TrainqError):
    """There is no queue where one was asked for."""

    exit, word = 6, "no_root"
    hint = "trainq init"


class MadeAnew(NoRoot):
    """The queue that was opened is gone, and another one stands in its place."""

    word = "made_anew"
    hint = "start it again"


class UnsafeRoot(TrainqError):
    """The root belongs to somebody else or can be written by everybody."""

    exit, word = 6, "unsafe_root"


class Unwritable(TrainqError):
    """A directory or file of the root cannot be read or written."""

    exit, word = 6, "unwritable"
    hint = "trainq doctor"


class DiskFull(TrainqError):
    """The file system has no room left, or the quota is used up."""

    exit, word = 6, "disk_full"
    hint = "make room, then type the command again; what was stored before is intact"


class Damaged(TrainqError):
    """queue.sqlite is not a database, or not one of trainq's, or its pages are torn."""

    exit, word = 6, "damaged"
    hint = "trainq doctor"


class NewerSchema(TrainqError):
    """A newer trainq has written this queue."""

    exit, word = 6, "newer_schema"
    hint = "use the trainq that made it, or a newer one"


class NoLocks(TrainqError):
    """The file system gives no file locks."""

    exit, word = 6, "no_locks"


class UnsafeMount(TrainqError):
    """The file system, as it is mounted here, does not keep two hosts from writing at once."""

    exit, word = 6, "unsafe_mount"


class WentBack(TrainqError):
    """What the storage gives is older than what it had acknowledged before."""

    exit, word = 6, "went_back"
    hint = "stop all workers, and look at the file server: a restored backup, or writes that it has lost"


class Storage(TrainqError):
    """The file system answered with an input/output error."""

    exit, word = 6, "storage"
    hint = "trainq doctor"


class BadSettings(TrainqError):
    """trainq.toml, a TRAINQ_ variable or a flag holds a broken or unknown setting."""

    exit, word = 6, "bad_settings"
    hint = "trainq doctor"


class Unsupported(TrainqError):
    """This platform lacks what trainq rests on (/proc), or this version what is asked for."""

    exit, word = 6, "unsupported"


class Duplicate(TrainqError):
    """This key, or this very training, is already waiting or running."""

    exit, word = 8, "duplicate"


class LimitReached(TrainqError):
    """A limit of trainq.toml is used up."""

    exit, word = 9, "limit"
