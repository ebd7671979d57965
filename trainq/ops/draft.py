"""A job before it is put in: every check of a request, and its files read, compressed and synced.

Nothing here writes a row. What was written of files is named by none until the submit's transaction commits; the
janitor takes it when that never comes.
"""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

from trainq.base import clock
from trainq.base.crash import point
from trainq.base.errors import BadData, BadValue, TrainqError, UnknownQueue, Usage
from trainq.base.setting_rows import DEFAULT_QUEUE
from trainq.base.units import moment
from trainq.domain import environment, fingerprint, params
from trainq.domain.held import check_times
from trainq.domain.job import RETRY_ON, DataSet, NewJob
from trainq.domain.keys import expand_key, model_key
from trainq.domain.request import IN_SPEC, check_warn, readable
from trainq.domain.shape import asked_gpus, encoded, require_gpus, shape_of
from trainq.domain.types import find_type
from trainq.ops.code import Code

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from trainq.base.git import Asked
    from trainq.domain.held import Wish
    from trainq.domain.request import Request
    from trainq.domain.types import TypeSpec
    from trainq.ops.queue import Queue

STDIN = "<stdin>"
JSON_LIMIT = 1 << 30

encode = json.JSONEncoder(ensure_ascii=True, separators=(",", ":")).encode


class Draft(NamedTuple):
    """A request that passed every check: the job as it will be put in, and what the transaction needs to know besides."""

    job: NewJob
    on_duplicate: str
    secrets: Mapping[str, str]
    snapshot: str | None
    after: tuple[Wish, ...] = ()
    where: str = ""  # in a file of many


class Shared(NamedTuple):
    """What all requests of one call look at, asked for once."""

    queue: Queue
    queues: frozenset[str]
    environ: Mapping[str, str]
    packed: dict[str, tuple[DataSet, str]]
    cwd: str
    max_attempts: int
    kept: environment.Environment
    types: dict[str, TypeSpec]
    code: Code
    now: float
    """The time of the call: `+2h` is one time for all of its jobs."""


def share(queue: Queue, asked: Asked | None = None) -> Shared:
    """Ask once for what all requests of a call look at. Raises BadValue when the working directory is gone."""
    settings = queue.settings
    try:
        cwd = os.getcwd()
    except OSError as error:
        raise BadValue(f"the working directory is gone: {error.strerror}", hint="cd to one that exists") from error
    return Shared(
        queue, frozenset((DEFAULT_QUEUE, *settings.queues.names)), os.environ, {}, cwd, settings.limits.max_attempts,
        environment.filter_environment(os.environ, (), {}), {}, Code(queue, asked), clock.now(),
    )  # fmt: skip


def draft(request: Request, shared: Shared) -> Draft:
    """Check one request and read its files; what it becomes. An error says where the request stands."""
    try:
        return _check(request, shared)
    except TrainqError as error:
        if request.where:
            error.message = f"{request.where}: {error.message}"
        raise


def _check(request: Request, shared: Shared) -> Draft:
    values = request.values
    kind = _type_of(request, shared)
    given = params.coerce(kind, request.params or {}, from_text=request.from_text, as_json=request.as_json)
    seed = values.get("seed", 0)
    data = _data(values, kind, shared)
    print_ = None
    if kind is not None:
        digests = {name: digest for name, (_, digest) in data.items() if name != STDIN}
        print_ = fingerprint.fingerprint(kind.name, digests, given, seed)
        if request.task is not None and "number" in request.task:
            print_ = fingerprint.of_task(print_, request.task["number"])
    own = _environment(values, shared)
    cwd = os.path.join(shared.cwd, values["cwd"]) if "cwd" in values else shared.cwd
    code = shared.code.document(cwd, request)
    spec = {"cwd": cwd, **({"code": code} if code else {}), **_spec(request, kind, given, seed, own)}
    spec |= _needs(values, kind, shared)
    begin_at, deadline_at = _times(values, shared.now) if "begin" in values or "deadline" in values else (None, None)
    job = NewJob(
        queue=_queue(values, kind, shared),
        name=values.get("name") or readable(default_name(request.type, request.argv, request.shell)),
        spec=encode(spec),
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
        shape=encoded(shape_of(spec)),
        begin_at=begin_at,
        deadline_at=deadline_at,
        hold=values.get("hold", False),
        array_index=None if request.task is None else request.task["index"],
    )
    default = "run" if kind is None else "fail"
    on_duplicate = values.get("on_duplicate") or ("return" if job.key else default)
    return Draft(job, on_duplicate, own.private, code.get("snapshot"), values.get("after", ()), request.where)


def _times(values: Mapping[str, Any], now: float) -> tuple[float | None, float | None]:
    """When it may start at the earliest and must have started at the latest. Raises BadValue where that cannot be."""
    begin_at = moment(values["begin"], now) if "begin" in values else None
    deadline_at = moment(values["deadline"], now) if "deadline" in values else None
    check_times(begin_at, deadline_at, now, values.get("deadline", ""))
    return begin_at, deadline_at


def _type_of(request: Request, shared: Shared) -> TypeSpec | None:
    ways = [way for way in (request.type, request.argv, request.shell) if way is not None]
    if len(ways) != 1:
        raise Usage("what to run: a type, or a command after --, or --shell LINE, and only one of them")
    if request.shell is not None and not request.shell.strip():
        raise Usage("what to run: the line of --shell is empty")
    if request.type is None:
        return None
    if request.type not in shared.types:
        shared.types[request.type] = find_type(shared.queue.settings, request.type)
    return shared.types[request.type]


def _queue(values: Mapping[str, Any], kind: TypeSpec | None, shared: Shared) -> str:
    name: str = values.get("queue") or (kind.queue if kind is not None else None) or DEFAULT_QUEUE
    require_queue(name, shared.queues)
    return name


def require_queue(name: str, known: Collection[str]) -> None:
    """A queue is one of the settings, or the default. Raises UnknownQueue."""
    if name not in known:
        said = f"no such queue: {name!r}; known queues: {', '.join(sorted(known))}"
        raise UnknownQueue(said, hint="name it in trainq.toml: [queues] names")


def default_name(kind: str | None, argv: Sequence[str] | None, shell: str | None) -> str:
    """What a job is called that was given no name: its type, or its program."""
    if kind is not None:
        return kind
    words = argv or tuple((shell or "").split())
    name = os.path.basename(words[0])
    if name.startswith(("python", "bash", "sh")) and len(words) > 1 and not words[1].startswith("-"):
        name = os.path.basename(words[1])
    return name[:200] or words[0][:200]


def _model_key(request: Request, kind: TypeSpec | None, given: Mapping[str, Any], shared: Shared) -> str | None:
    asked = request.values.get("model")
    if asked is not None:
        return model_key(asked)
    if kind is None:
        return None
    if kind.key is None:
        return model_key(kind.name)
    return expand_key(kind.key, user=shared.queue.actor.user, type=kind.name, params=dict(given))


def _data(values: Mapping[str, Any], kind: TypeSpec | None, shared: Shared) -> dict[str, tuple[DataSet, str]]:
    """The training sets, packed, and the digest of each one's content."""
    if kind is None and "data" not in values and "stdin" not in values:
        return {}
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


def _pack(name: str, path: str, shared: Shared) -> tuple[DataSet, str]:
    """Read and compress one file; the same file of one call is read once."""
    if path not in shared.packed:
        shared.packed[path] = _read(path, shared)
    item, digest = shared.packed[path]
    return item._replace(name=name), digest


def _read(path: str, shared: Shared) -> tuple[DataSet, str]:
    from trainq.artifacts import datasets

    is_json = fingerprint.is_json_name(path)
    if path == "-":
        packed = datasets.pack_bytes(sys.stdin.buffer.read(), shared.queue.paths)
    else:
        packed = datasets.pack(path, shared.queue.paths, raw_limit=JSON_LIMIT if is_json else 0)
    point("submit.after_data")
    digest = fingerprint.canonical_json_digest(packed.raw) if is_json and packed.raw is not None else packed.sha256
    return DataSet("", packed.sha256, packed.size, packed.stored_size, packed.stored), digest


_NOTHING = environment.Environment({}, {}, (), ())


def _environment(values: Mapping[str, Any], shared: Shared) -> environment.Environment:
    """What this job adds to the environment of the call; `private` must not enter the store."""
    keep, extra = values.get("env_keep", ()), values.get("env", {})
    if not keep and not extra:
        return _NOTHING
    own = {name: shared.environ[name] for name in keep if name in shared.environ}
    return environment.filter_environment(own, keep, extra)


def _spec(
    request: Request, kind: TypeSpec | None, given: Mapping[str, Any], seed: int, own: environment.Environment
) -> dict[str, Any]:
    """The document of what is executed, besides where and which code; what has its default is left out."""
    values = request.values
    spec: dict[str, Any] = {}
    if kind is not None:
        _add_type(spec, kind)
    elif request.argv is not None:
        spec["argv"] = request.argv
    else:
        spec["shell"] = request.shell
    if kind is not None or given:
        spec["params"] = given
    if seed:
        spec["seed"] = seed
    if own is not _NOTHING:
        spec["env"], spec["secrets"] = own.plain, list(own.private)
    for name, value in values.items():
        if name in IN_SPEC:
            spec[IN_SPEC[name]] = value
    if request.task is not None:
        spec["array"] = request.task
    if "data" in values:
        spec["files"] = {name: _file_name(path) for name, path in values["data"].items()}
    if "warn" in values:
        check_warn(values["warn"], values.get("time", None if kind is None else kind.time_s))
    if values.get("retries") or (kind is not None and kind.retries) or "retry_on" in values:
        spec["retry_on"] = values.get("retry_on", RETRY_ON)
    return spec


def _needs(values: Mapping[str, Any], kind: TypeSpec | None, shared: Shared) -> dict[str, Any]:
    """What it needs of a worker, as far as that is not as it was typed: a type's defaults, and GPUs. Raises BadValue,
    UnknownGpuType, GpuLimit."""
    of_type = (
        {} if kind is None else {name: getattr(kind, name) for name in ("gpus", "gpu_type", "vram", "cpus", "mem")}
    )
    if {"gpus", "gpu_type"} & values.keys():  # typed: what else the type says of its GPUs is for others
        of_type |= {"gpus": None, "gpu_type": None, "vram": None}
    asked = {name: values.get(name, default) for name, default in of_type.items()} if of_type else values
    gpus, gpu_type = asked_gpus(asked.get("gpus"), asked.get("gpu_type"), asked.get("vram"))
    limits = shared.queue.settings.limits
    require_gpus(gpus, gpu_type, limits.gpus, limits.per_user)
    found = {"gpus": gpus, "gpu_type": gpu_type, **{name: asked.get(name) for name in ("vram", "cpus", "mem")}}
    return {name: value for name, value in found.items() if value}


def _add_type(spec: dict[str, Any], kind: TypeSpec) -> None:
    if kind.run is not None:
        spec["argv"] = kind.run
    else:
        spec["call"], spec["python"] = kind.call, kind.python or sys.executable or "python3"
    spec["model_required"] = kind.model == "required"
    for name, value in (("stall_after_s", kind.stall_after_s), ("keep", kind.keep)):
        if value is not None:
            spec[name] = value


def _file_name(path: str) -> str:
    """The name a training set keeps in the job's run directory: programs look at suffixes."""
    return os.path.basename(path) if path != "-" else "stdin"
