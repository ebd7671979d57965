"""The name of every file under a root, and the only place where a word of a user becomes part of a path.

```
trainq.toml  queue.sqlite (or shared.sqlite)  queue.lock  bell/gen  locks/  specs/  data/<sha256>.zst
snapshots/<sha256>.tar.zst
models/<key>/@<version>/manifest.json  models/<key>/@latest  models/.staging/  models/.aside/
runs/<job>/<attempt>/{log,stderr,params.json,stdin,.unpacked/,code/}  runs/<job>/checkpoints/
```
What must stay true: no key, worker name or uid leads out of its own directory. A part of a key never starts
with "@" or ".", so keys, versions and what is not yet published never meet, even if one key ("a") leads to
another ("a/b").
"""

from __future__ import annotations

import os

from trainq.base.errors import BadValue
from trainq.base.words import printable

SPEC = ".spec"
_NAME_MAX = 255
_UNPACKED = ".unpacked"  # beside what jobs write themselves: no name that a job would choose
_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-")


class Paths:
    """All names under one root. `root` is made absolute; nothing is looked up on the disk."""

    __slots__ = (
        "aside",
        "bell",
        "data",
        "database",
        "locks",
        "models",
        "root",
        "runs",
        "snapshots",
        "specs",
        "staging",
    )

    def __init__(self, root: str) -> None:
        self.root = os.path.abspath(root)
        self.database = self.local_database
        self.bell = os.path.join(self.root, "bell")
        self.locks = os.path.join(self.root, "locks")
        self.specs = os.path.join(self.root, "specs")
        self.data = os.path.join(self.root, "data")
        self.snapshots = os.path.join(self.root, "snapshots")
        self.models = os.path.join(self.root, "models")
        self.runs = os.path.join(self.root, "runs")
        self.staging = os.path.join(self.models, ".staging")
        self.aside = os.path.join(self.models, ".aside")

    def directories(self) -> tuple[str, ...]:
        """What `init` makes below the root, parents first."""
        return (
            self.bell,
            self.locks,
            self.specs,
            self.data,
            self.snapshots,
            self.models,
            self.staging,
            self.aside,
            self.runs,
        )

    def is_kept_apart(self, directory: str) -> bool:
        """Whether on a group's queue nobody takes away from this directory what somebody else has put there."""
        return directory in (self.specs, self.models, self.staging, self.aside, self.runs)

    @property
    def config(self) -> str:
        """The settings and types."""
        return os.path.join(self.root, "trainq.toml")

    @property
    def local_database(self) -> str:
        """The truth; opened by a session of the store and by nobody else. `database` is this one, or the next."""
        return os.path.join(self.root, "queue.sqlite")

    @property
    def shared_database(self) -> str:
        """The same of a queue that several hosts see: by another name, so that it is never opened as a local one."""
        return os.path.join(self.root, "shared.sqlite")

    @property
    def gate(self) -> str:
        """The one lock of all writers; never deleted."""
        return os.path.join(self.root, "queue.lock")

    @property
    def bell_number(self) -> str:
        """The generation number, alone in the directory `bell`."""
        return os.path.join(self.bell, "gen")

    def lock(self, name: str) -> str:
        """The lock file of this name (`init`, `janitor`)."""
        return os.path.join(self.locks, f"{_plain(name)}.lock")

    def worker_lock(self, name: str) -> str:
        """The lock file that a worker of this name holds; any text is a name."""
        return os.path.join(self.locks, f"worker-{_plain(name)}.lock")

    def spec(self, uid: str) -> str:
        """What proves whose the jobs of one submit call are, on a group's queue."""
        return os.path.join(self.specs, f"{_checked(uid, 'uid')}{SPEC}")

    def secret(self, uid: str) -> str:
        """The kept environment of a job, mode 0600."""
        return os.path.join(self.specs, f"{_checked(uid, 'uid')}.env")

    def training_set(self, sha256: str) -> str:
        """A training set that is too large for its column."""
        return os.path.join(self.data, f"{_checked(sha256, 'digest')}.zst")

    def snapshot(self, sha256: str) -> str:
        """Frozen code."""
        return os.path.join(self.snapshots, f"{_checked(sha256, 'digest')}.tar.zst")

    def key(self, key: str) -> str:
        """The directory of a model key: its versions, and the directories of longer keys."""
        return os.path.join(self.models, checked_key(key))

    def version(self, key: str, version: int) -> str:
        """The directory of one published version."""
        return os.path.join(self.models, checked_key(key), f"@{version:d}")

    def latest(self, key: str) -> str:
        """The link to the newest version, a hint."""
        return os.path.join(self.models, checked_key(key), "@latest")

    def aside_key(self, key: str) -> str:
        """Where versions of this key lie that no row names."""
        return os.path.join(self.aside, checked_key(key))

    def run(self, job: int) -> str:
        """Everything that one job's attempts leave."""
        return os.path.join(self.runs, f"{job:d}")

    def attempt(self, job: int, attempt: int) -> str:
        """The run directory of one attempt; never shared by two."""
        return os.path.join(self.runs, f"{job:d}", f"{attempt:d}")

    def log(self, job: int, attempt: int) -> str:
        """What an attempt wrote."""
        return os.path.join(self.attempt(job, attempt), "log")

    def stderr(self, job: int, attempt: int) -> str:
        """What it wrote to stderr, with `--split-stderr`."""
        return os.path.join(self.attempt(job, attempt), "stderr")

    def params(self, job: int, attempt: int) -> str:
        """The parameters as JSON, for `TRAINQ_PARAMS`."""
        return os.path.join(self.attempt(job, attempt), "params.json")

    def stdin(self, job: int, attempt: int) -> str:
        """What the job reads, with `--stdin`."""
        return os.path.join(self.attempt(job, attempt), "stdin")

    def unpacked(self, job: int, attempt: int) -> str:
        """The training sets of an attempt, unpacked while it runs."""
        return os.path.join(self.attempt(job, attempt), _UNPACKED)

    def code(self, job: int, attempt: int) -> str:
        """The attempt's own copy of frozen code, in which it runs; it stays as long as the log."""
        return os.path.join(self.attempt(job, attempt), "code")

    def checkpoints(self, job: int) -> str:
        """The directory that all attempts of a job share."""
        return os.path.join(self.runs, f"{job:d}", "checkpoints")


def checked_key(key: str) -> str:
    """The key as it is, if it stays inside the directory of models; else `BadValue`.

    What a key may look like is a rule of the domain; this is the last look before it becomes a path.
    """
    for part in key.split("/"):
        if not part or part[0] in ".@" or not part.isprintable() or len(os.fsencode(part)) > _NAME_MAX:
            raise BadValue(
                f"model key {printable(key)!r} cannot be used: {printable(part)!r} is empty, too long, "
                "starts with . or @, or holds a control character",
                hint="a key is made of letters, digits, '.', '_' and '-', joined by '/', such as anna/en",
            )
    return key


def _checked(word: str, what: str) -> str:
    """A word that this program made (hexadecimal, the uid of a call, `CALL.PLACE` of a job): no path of its own."""
    if not word or word[0] == "." or len(word) > 128 or not _PLAIN.issuperset(word.replace(".", "")):
        raise BadValue(f"{what} {printable(word)!r} is not one of trainq's")
    return word


def _plain(name: str) -> str:
    """Any text as one plain file name; different texts give different names."""
    coded = "".join(chr(b) if chr(b) in _PLAIN else f"%{b:02x}" for b in os.fsencode(name))
    if len(coded) <= 200:
        return coded
    import hashlib

    return f"{coded[:100]}%%{hashlib.sha256(os.fsencode(name)).hexdigest()}"
