"""Put jobs in: checked first, then files, then one transaction, and only then the id is told.

A row names a training set only once that is complete and synced. Nothing is stored when one of the jobs of a call is
refused. When COMMIT answers with an error the call's uid is looked up in a new session before anything is said.
"""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

from trainq import wake
from trainq.base import clock
from trainq.base.crash import point
from trainq.base.errors import (
    BadData,
    BadValue,
    Duplicate,
    LimitReached,
    TrainqError,
    UnknownQueue,
    Unsupported,
    Usage,
)
from trainq.domain import environment, fingerprint, params
from trainq.domain.job import RETRY_ON, DataSet, NewJob, Submission
from trainq.domain.keys import expand_key, model_key
from trainq.domain.request import readable
from trainq.domain.types import find_type
from trainq.ops.change import Change
from trainq.ops.queue import require_directories
from trainq.store import jobs
from trainq.store.session import Unsure

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from trainq.domain.request import Request
    from trainq.domain.types import TypeSpec
    from trainq.ops.queue import Queue
    from trainq.store.session import Transaction

DEFAULT_QUEUE = "default"
STDIN = "<stdin>"
JSON_LIMIT = 1 << 30

_encode = json.JSONEncoder(ensure_ascii=True, separators=(",", ":")).encode


class Submitted(NamedTuple):
    """What became of each request, in order, and what the user should hear of the environment."""

    changes: list[Change]
    left_out: tuple[str, ...]  # secret-looking variables that were not kept


class _Ready(NamedTuple):
    """A request that passed every check, with what the transaction needs to know of it."""

    job: NewJob
    on_duplicate: str
    secrets: Mapping[str, str]


class _Shared(NamedTuple):
    """What all requests of one call look at, asked for once."""

    queue: Queue
    queues: frozenset[str]
    environ: Mapping[str, str]
    packed: dict[str, tuple[DataSet, str]]
    cwd: str
    max_attempts: int
    kept: environment.Environment
    types: dict[str, TypeSpec]


def submit(queue: Queue, requests: Sequence[Request]) -> Submitted:
    """Put the jobs in, all or none.

    Raises what the checks raise (exit 2), Duplicate (8), LimitReached (9), and the errors of storage (6).
    """
    _require_proc()
    require_directories(queue)
    shared = _share(queue)
    found = [_reusable(queue, request, shared) if request.values.get("reuse") else None for request in requests]
    ready = [_prepare(request, shared) for request, change in zip(requests, found, strict=True) if change is None]
    changes = iter(_store(shared, ready) if ready else [])
    kept_by_name = {name for item in ready for name in item.secrets}
    left_out = tuple(name for name in shared.kept.dropped if name not in kept_by_name)
    return Submitted([change or next(changes) for change in found], left_out)


def _require_proc() -> None:
    if not os.path.exists("/proc/self/stat"):
        raise Unsupported("trainq needs /proc, which this platform lacks", hint="run it on Linux")


def _share(queue: Queue) -> _Shared:
    settings = queue.settings
    try:
        cwd = os.getcwd()
    except OSError as error:
        raise BadValue(f"the working directory is gone: {error.strerror}", hint="cd to one that exists") from error
    return _Shared(
        queue, frozenset((DEFAULT_QUEUE, *settings.queues.names)), os.environ, {}, cwd, settings.limits.max_attempts,
        environment.filter_environment(os.environ, (), {}), {},
    )  # fmt: skip


def _prepare(request: Request, shared: _Shared) -> _Ready:
    """Check one request and read its files; what it becomes. An error says where the request stands."""
    try:
        return _check(request, shared)
    except TrainqError as error:
        if request.where:
            error.message = f"{request.where}: {error.message}"
        raise


def _check(request: Request, shared: _Shared) -> _Ready:
    values = request.values
    kind = _type_of(request, shared)
    given = _params(request, kind)
    seed = values.get("seed", 0)
    data = _data(values, kind, shared)
    print_ = None
    if kind is not None:
        digests = {name: digest for name, (_, digest) in data.items() if name != STDIN}
        print_ = fingerprint.fingerprint(kind.name, digests, given, seed)
    own = _environment(values, shared)
    job = NewJob(
        queue=_queue(values, kind, shared),
        name=values.get("name") or readable(_name(request, kind)),
        spec=_encode(_spec(request, kind, given, seed, own, shared)),
        type=None if kind is None else kind.name,
        priority=values.get("priority", 0),
        key=values.get("key"),
        fingerprint=print_,
        model_key=_model_key(request, kind, given, shared),
        tags=",".join(("", *values["tag"], "")) if values.get("tag") else None,
        max_attempts=values.get("max_attempts", shared.max_attempts),
        retries=values.get("retries", 0 if kind is None else kind.retries or 0),
        time_s=values.get("time", None if kind is None else kind.time_s),
        grace_s=values.get("grace"),
        data=tuple(item for item, _ in data.values()),
    )
    default = "run" if kind is None else "fail"
    return _Ready(job, values.get("on_duplicate") or ("return" if job.key else default), own.private)


def _type_of(request: Request, shared: _Shared) -> TypeSpec | None:
    ways = [way for way in (request.type, request.argv, request.shell) if way is not None]
    if len(ways) != 1:
        raise Usage("what to run: a type, or a command after --, or --shell LINE, and only one of them")
    if request.type is None:
        return None
    if request.type not in shared.types:
        shared.types[request.type] = find_type(shared.queue.settings, request.type)
    return shared.types[request.type]


def _params(request: Request, kind: TypeSpec | None) -> dict[str, Any]:
    given = dict(request.params or {})
    if kind is not None:
        return params.coerce(kind, given, from_text=request.from_text)
    return {name: params.parse_value(text) for name, text in given.items()} if request.from_text else given


def _queue(values: Mapping[str, Any], kind: TypeSpec | None, shared: _Shared) -> str:
    name: str = values.get("queue") or (kind.queue if kind is not None else None) or DEFAULT_QUEUE
    if name not in shared.queues:
        known = ", ".join(sorted(shared.queues))
        raise UnknownQueue(
            f"no such queue: {name!r}; known queues: {known}", hint="name it in trainq.toml: [queues] names"
        )
    return name


def _name(request: Request, kind: TypeSpec | None) -> str:
    if kind is not None:
        return kind.name
    words = request.argv or tuple((request.shell or "").split())
    name = os.path.basename(words[0])
    if name.startswith(("python", "bash", "sh")) and len(words) > 1 and not words[1].startswith("-"):
        name = os.path.basename(words[1])
    return name[:200] or words[0][:200]


def _model_key(request: Request, kind: TypeSpec | None, given: Mapping[str, Any], shared: _Shared) -> str | None:
    asked = request.values.get("model")
    if asked is not None:
        return model_key(asked)
    if kind is None:
        return None
    if kind.key is None:
        return model_key(kind.name)
    return expand_key(kind.key, user=shared.queue.actor.user, type=kind.name, params=dict(given))


def _data(values: Mapping[str, Any], kind: TypeSpec | None, shared: _Shared) -> dict[str, tuple[DataSet, str]]:
    """The training sets, packed, and the digest of each one's content."""
    named: Mapping[str, str] = values.get("data") or {}
    if kind is not None:
        if kind.data == "required" and not named:
            raise BadData(f"type {kind.name} needs a training set", hint=f"trainq submit {kind.name} --data FILE")
        if kind.data == "none" and named:
            raise BadData(f"type {kind.name} takes no training set")
    variables: dict[str, str] = {}
    for name in named:
        other = variables.setdefault(name.upper(), name)
        if other != name:
            raise BadValue(f"--data: {other} and {name} would be the same variable TRAINQ_DATA_{name.upper()}")
    files = dict(named)
    if values.get("stdin"):
        files[STDIN] = values["stdin"]
    return {name: _pack(name, path, shared) for name, path in files.items()}


def _pack(name: str, path: str, shared: _Shared) -> tuple[DataSet, str]:
    """Read and compress one file; the same file of one call is read once."""
    if path not in shared.packed:
        shared.packed[path] = _read(path, shared)
    item, digest = shared.packed[path]
    return item._replace(name=name), digest


def _read(path: str, shared: _Shared) -> tuple[DataSet, str]:
    from trainq.artifacts import datasets

    is_json = path.lower().endswith(".json")
    if path == "-":
        packed = datasets.pack_bytes(sys.stdin.buffer.read(), shared.queue.paths)
    else:
        packed = datasets.pack(path, shared.queue.paths, raw_limit=JSON_LIMIT if is_json else 0)
    point("submit.after_data")
    digest = fingerprint.canonical_json_digest(packed.raw) if is_json and packed.raw is not None else packed.sha256
    return DataSet("", packed.sha256, packed.size, packed.stored_size, packed.stored), digest


_NOTHING = environment.Environment({}, {}, (), ())


def _environment(values: Mapping[str, Any], shared: _Shared) -> environment.Environment:
    """What this job adds to the environment of the call; `private` must not enter the store."""
    keep, extra = values.get("env_keep", ()), values.get("env", {})
    if not keep and not extra:
        return _NOTHING
    own = {name: shared.environ[name] for name in keep if name in shared.environ}
    return environment.filter_environment(own, keep, extra)


def _spec(
    request: Request, kind: TypeSpec | None, given: Mapping[str, Any], seed: int, own: environment.Environment,
    shared: _Shared,
) -> dict[str, Any]:  # fmt: skip
    """The document of what is executed; what has its default is left out."""
    values = request.values
    cwd = os.path.join(shared.cwd, values["cwd"]) if values.get("cwd") else shared.cwd
    spec: dict[str, Any] = {"cwd": cwd}
    if kind is not None:
        if kind.run is not None:
            spec["argv"] = list(kind.run)
        else:
            spec["call"], spec["python"] = kind.call, kind.python or sys.executable or "python3"
        spec["model_required"] = kind.model == "required"
        if kind.stall_after_s is not None:
            spec["stall_after_s"] = kind.stall_after_s
    elif request.argv is not None:
        spec["argv"] = list(request.argv)
    else:
        spec["shell"] = request.shell
    if kind is not None or given:
        spec["params"] = given
    if seed:
        spec["seed"] = seed
    named = values.get("data") or {}
    for name, value in (
        ("env", own.plain), ("secrets", list(own.private)), ("files", {name: _file_name(path) for name, path in named.items()}),
        ("split_stderr", values.get("split_stderr")), ("backoff_s", values.get("backoff")),
        ("warn_s", _warn(values, kind)), ("on_end", values.get("on_end")), ("retry_grow", values.get("retry_grow")),
        ("vram", values.get("vram")), ("mem", values.get("mem")),
        ("keep", values.get("keep", None if kind is None else kind.keep)),
    ):  # fmt: skip
        if value or (value == 0 and value is not False):
            spec[name] = value
    if values.get("retries") or (kind is not None and kind.retries) or "retry_on" in values:
        spec["retry_on"] = values.get("retry_on", RETRY_ON)
    return spec


def _warn(values: Mapping[str, Any], kind: TypeSpec | None) -> float | None:
    """How long before the limit TERM comes. Raises BadValue when there is no limit or it is not below it."""
    warn: float | None = values.get("warn")
    if warn is None:
        return None
    limit = values.get("time", None if kind is None else kind.time_s)
    if limit is None:
        raise BadValue("--warn needs a time limit", hint="--time 2h --warn 60s")
    if warn >= limit:
        raise BadValue(f"--warn {warn:g}s is not below the time limit of {limit:g}s")
    return warn


def _file_name(path: str) -> str:
    """The name a training set keeps in the job's run directory: programs look at suffixes."""
    return os.path.basename(path) if path != "-" else "stdin"


def _reusable(queue: Queue, request: Request, shared: _Shared) -> Change | None:
    """The model that this very training has made already, verified; None when it must be trained."""
    from trainq.ops.models import verified

    print_ = _prepare(request, shared).job.fingerprint
    if print_ is None:
        raise Usage("--reuse is for types: a command has no fingerprint")
    model = verified(queue, print_)
    return None if model is None else Change(model["job"], "reused", None, {"model": model})


def _store(shared: _Shared, ready: list[_Ready]) -> list[Change]:
    """The one transaction; then the bell."""
    queue = shared.queue
    umask = os.umask(0o077)  # there is no other way to ask
    os.umask(umask)
    submission = Submission(
        uid=f"{int(clock.now() * 1000):011x}{os.urandom(6).hex()}",
        actor=queue.actor,
        umask=umask,
        environ=_encode({"env": shared.kept.plain, "dropped": shared.kept.dropped}),
    )
    point("submit.before_commit")
    try:
        with queue.session.writing() as tx:
            changes, new = _decide(tx, queue, ready)
            _check_room(tx, queue, len(new))
            _check_data(queue, new)
            _keep_secrets(queue, submission.uid, new)
            ids = iter(jobs.submit(tx, submission, [item.job for item in new]) if new else ())
    except Unsure:
        queue.session.abandon()
        with queue.session.reading() as tx:
            known = jobs.find_submission(tx, submission.uid)
        if known is None:
            raise
        ids = iter(known)
    point("submit.after_commit")
    wake.ring(queue.paths.bell_number)
    if any(item.on_duplicate == "replace" for item in ready):
        from trainq.ops import secrets

        secrets.drop_all(queue.session, queue.paths, secrets.kept(queue.paths))  # of what was replaced
    return [change or Change(next(ids), "submitted") for change in changes]


def _decide(tx: Transaction, queue: Queue, ready: Iterable[_Ready]) -> tuple[list[Change | None], list[_Ready]]:
    """What happens to each: None in the list of changes is a job to put in."""
    changes: list[Change | None] = []
    new: list[_Ready] = []
    seen: dict[str, str] = {}
    for item in ready:
        change = _duplicate(tx, queue, item, seen) if item.on_duplicate != "run" else None
        changes.append(change)
        if change is None:
            new.append(item)
    return changes, new


def _duplicate(tx: Transaction, queue: Queue, item: _Ready, seen: dict[str, str]) -> Change | None:
    """What the rule for duplicates says of this one. Raises Duplicate."""
    job = item.job
    mark = job.key or job.fingerprint
    if mark is None:
        return None
    what = f"key {job.key!r}" if job.key else f"this training (fingerprint {job.fingerprint})"
    if mark in seen:
        raise Duplicate(f"{what} stands twice in this submit", hint="give each its own --key or --seed")
    seen[mark] = what
    known = jobs.active_with_key(tx, job.key) if job.key else jobs.active_with_fingerprint(tx, mark)
    if known is None:
        return None
    if item.on_duplicate == "return":
        return Change(known, "duplicate")
    if item.on_duplicate == "replace":
        jobs.request_cancel(tx, known, str(queue.actor), grace_s=None, message="replaced")
        return None
    raise Duplicate(
        f"{what} is already waiting or running as job {known}",
        hint=f"trainq status {known}; another --seed trains it anew",
    )


def _check_room(tx: Transaction, queue: Queue, new: int) -> None:
    size = queue.settings.limits.queue_size
    if size:
        waiting = jobs.count_active(tx)
        if waiting + new > size:
            raise LimitReached(
                f"the queue holds {waiting} of at most {size} jobs, {new} more do not fit",
                hint="wait for some to end, or raise [limits] queue_size",
            )


def _check_data(queue: Queue, new: Sequence[_Ready]) -> None:
    """A training set in a file must still be there: from this transaction on a row names it, and it stays."""
    large = {item.sha256 for each in new for item in each.job.data if item.z is None}
    if large:
        from trainq.artifacts import datasets

        for sha256 in large:
            if not datasets.stands(queue.paths.training_set(sha256)):
                raise BadData(f"the stored training set {sha256} vanished meanwhile", hint="type the command again")


def _keep_secrets(queue: Queue, uid: str, new: Sequence[_Ready]) -> None:
    """A file for each job that keeps secrets, named by the uid it will have; the janitor takes those no row names."""
    for place, item in enumerate(new):
        if item.secrets:
            from trainq.artifacts import runs

            runs.write_secret(queue.paths, f"{uid}.{place}", item.secrets)
            point("submit.secrets_kept")
