"""A job as the JSON document of it: every key always there, absent is null, whatever of the job is left.

Rows come from `store/reads.py`, of jobs or of the past alike; what a past row does not have is null. Clocks of two
hosts are not compared: in local mode rows and reader have one clock.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from trainq.base.units import rfc3339
from trainq.domain.array import ref_of
from trainq.domain.documents import document
from trainq.domain.job import RETRY_ON
from trainq.domain.states import ENDED
from trainq.store import dependants, reads

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trainq.artifacts.paths import Paths
    from trainq.ops.why import Why
    from trainq.store.queues import Closed
    from trainq.store.reads import Row
    from trainq.store.session import Transaction


class View(NamedTuple):
    """What a card needs to know besides its row: where files are, what time it is, when a heartbeat is late."""

    paths: Paths
    now: float
    silent_after_s: float
    paused: Mapping[str, Closed] = {}  # queues nobody may claim from
    why: Why | None = None  # what keeps waiting jobs; None: it was not asked


class Details(NamedTuple):
    """What lies in other tables, by job."""

    specs: Mapping[int, str]
    data: Mapping[int, list[Row]]
    attempts: Mapping[int, list[Row]]
    after: Mapping[int, list[Row]]


def details(tx: Transaction, ids: Sequence[int]) -> Details:
    """Everything besides the rows that the cards of these jobs show."""
    return Details(reads.specs(tx, ids), reads.data_sets(tx, ids), reads.attempts(tx, ids), dependants.of_jobs(tx, ids))


def card(row: Row, more: Details, view: View) -> dict[str, Any]:
    """The job of this row as a document."""
    number = row["id"]
    spec = document(more.specs[number]) if number in more.specs else {}
    return {
        "id": number,
        "ref": ref_of(row),
        "uid": uid_of(row),
        **{name: row.get(name) for name in ("name", "key", "fingerprint", "type", "queue", "state")},
        "reason": reason_of(row, view),
        "side": row.get("side"),
        "stage": row.get("stage"),
        "priority": row.get("priority"),
        "tags": tags_of(row),
        "user": row.get("user"),
        "submit_host": row.get("submit_host"),
        "command": _command(spec),
        "params": spec.get("params", {}),
        "seed": spec.get("seed", 0) if spec else None,
        "data": _data(more.data.get(number, [])),
        "array": _array(row),
        "after": [{"job": item["on_id"], "on": item["mode"]} for item in more.after.get(number, [])],
        "request": _request(row, spec),
        "retry": {
            "max": row.get("retries"),
            "on": list(spec.get("retry_on", RETRY_ON)) if spec else None,
            "used": row.get("user_used"),
        },
        "attempt": _attempt(row),
        "attempts": [_ended_attempt(item) for item in more.attempts.get(number, [])],
        "stages": {
            "fetching_at": time_of(row.get("claimed_at")),
            "training_at": time_of(row.get("started_at")),
            "storing_at": time_of(row.get("storing_at")),
        },
        "metrics": _metrics(row, more.attempts.get(number, [])),
        "resumed_from": row.get("resumed_from"),
        "save_failed": row.get("save_failed"),
        "chunks": {"todo": None, "leased": None, "done": None, "failed": None, "pass": None},
        "progress": _progress(row, view),
        "result": {
            "exit_code": row.get("exit_code"),
            "signal": row.get("signal"),
            "error": row.get("error"),
            "ended_at": time_of(row.get("ended_at")),
        },
        "times": {
            "submitted_at": time_of(row["submitted_at"]),
            "eligible_at": time_of(row.get("eligible_at")),
            "begin_at": time_of(row.get("begin_at")),
            "deadline_at": time_of(row.get("deadline_at")),
            "queued_s": queued_s(row, view.now),
            "run_s": run_s(row, view.now),
        },
        "paths": _paths(row, view.paths),
        "model": _model(row, view.paths),
        "position": None,
        "waiting_for": None,
        "code": _code(spec),
        "message": row.get("message"),
    }


def array_item(row: Row, view: View, tasks: Sequence[dict[str, Any]] | None = None) -> dict[str, Any]:
    """An array as a document; of its tasks only the counts, where they are not told (`tasks` is null then)."""
    return {
        "id": row["id"],
        "ref": str(row["id"]),
        "kind": "array",
        **{name: row[name] for name in ("name", "type", "queue", "state")},
        "reason": reason_of(row, view),
        "counts": row["counts"],
        "count": row["count"],
        "limit": row["most"],
        "priority": row["priority"],
        "tags": tags_of(row),
        "user": row["user"],
        "times": {"submitted_at": time_of(row["at"]), "ended_at": time_of(row["ended_at"])},
        "tasks": tasks,
    }


def _array(row: Row) -> dict[str, Any]:
    number = row.get("array_id")
    return {"id": number, "index": row.get("array_index"), "count": None if number is None else row.get("call_count")}


def uid_of(row: Row) -> str:
    """The job's uid: its call's, and its place in it."""
    return row["uid"] if "uid" in row else f"{row['call_uid']}.{row['id'] - row['first_id']}"


def tags_of(row: Row) -> list[str]:
    """The job's tags."""
    return [tag for tag in (row.get("tags") or "").split(",") if tag]


def reason_of(row: Row, view: View) -> str | None:
    """The job's reason, or that of the task of an array that is next; a running one whose heartbeat is late is `silent`,
    and what keeps a waiting one is looked up."""
    reason: str | None = row.get("reason")
    if row["state"] == "running":
        is_late = row.get("heartbeat_at") is not None and view.now - row["heartbeat_at"] > view.silent_after_s
        return "silent" if reason is None and is_late else reason
    if row["state"] == "pending" and row["queue"] in view.paused:
        return view.paused[row["queue"]].reason
    if row["state"] == "pending" and reason is None and view.why is not None and row.get("lane_id") is not None:
        return view.why.verdict(row["lane_id"]).reason
    return reason


def queued_s(row: Row, now: float) -> float:
    """How long it waited for its (last) start, or has waited by now."""
    since = row.get("eligible_at") or row["submitted_at"]
    until = row.get("claimed_at") or row.get("started_at") or row.get("ended_at") or now
    if row["state"] in ("held", "pending"):
        until = now
    return _seconds(until - since)


def run_s(row: Row, now: float) -> float | None:
    """How long its last attempt ran, or has run by now; 0 for what ended without a start."""
    started = row.get("started_at")
    if row["state"] in ("held", "pending"):
        return None
    if started is None:
        return 0.0 if row["state"] in ENDED else None
    return _seconds((row.get("ended_at") or now) - started)


def time_of(epoch: float | None) -> str | None:
    """A time of a row for programs."""
    return None if epoch is None else rfc3339(epoch)


def _seconds(seconds: float) -> float:
    return round(max(0.0, seconds), 3)


def _command(spec: Mapping[str, Any]) -> dict[str, Any]:
    """The program; a type's function is shown as the word it was declared by."""
    argv = spec.get("argv") or ([spec["call"]] if spec.get("call") else None)
    return {"argv": argv, "argv_b64": None, "shell": spec.get("shell"), "cwd": spec.get("cwd")}


def _code(spec: Mapping[str, Any]) -> dict[str, Any]:
    """The commit that it was submitted from, whether the work tree differed, and the digest of what was frozen."""
    code = spec.get("code")
    return {name: code.get(name) if isinstance(code, dict) else None for name in ("commit", "dirty", "snapshot")}


def _data(sets: list[Row]) -> dict[str, Any]:
    """The first training set, and all of them by name (stdin is none)."""
    named = [{"name": item["name"] or None, "sha256": item["sha256"], "size": item["size"]} for item in sets]
    named = [item for item in named if item["name"] != "<stdin>"]
    first = named[0] if named else {"sha256": None, "size": None}
    return {"sha256": first["sha256"], "size": first["size"], "sets": named}


def _mib(spec: Mapping[str, Any], name: str) -> int | None:
    return spec[name] // 2**20 if isinstance(spec.get(name), int) else None


def _request(row: Row, spec: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "gpus": spec.get("gpus", 0), "gpu_type": spec.get("gpu_type") if spec.get("gpus") else "cpu",
        "vram_mib": _mib(spec, "vram"), "cpus": spec.get("cpus"), "mem_mib": _mib(spec, "mem"),
        "time_s": row.get("time_s"), "grace_s": row.get("grace_s"),
        "on": list(spec.get("on", ())), "not_on": list(spec.get("not_on", ())),
    }  # fmt: skip


def gpus_of(row: Row) -> list[str]:
    """The GPUs it was given, as they stand in `CUDA_VISIBLE_DEVICES`."""
    return str(row["gpus"]).split(",") if row.get("gpus") else []


def _attempt(row: Row) -> dict[str, Any]:
    return {
        "n": row["attempt"],
        "max": row.get("max_attempts"),
        "worker": row.get("worker"),
        "host": row.get("host"),
        "pid": row.get("pid"),
        "gpus": gpus_of(row),
        "claimed_at": time_of(row.get("claimed_at")),
        "started_at": time_of(row.get("started_at")),
        "heartbeat_at": time_of(row.get("heartbeat_at")),
    }


def _ended_attempt(row: Row) -> dict[str, Any]:
    return {
        **{
            name: row[name] for name in ("worker", "host", "pid", "state", "reason", "cause", "message", "resumed_from")
        },
        "n": row["attempt"],
        "gpus": gpus_of(row),
        "claimed_at": time_of(row["claimed_at"]),
        "started_at": time_of(row["started_at"]),
        "storing_at": time_of(row["storing_at"]),
        "ended_at": time_of(row["at"]),
        "result": {
            "exit_code": row["exit_code"],
            "signal": row["signal"],
            "error": row["error"],
            "ended_at": time_of(row["at"]),
        },
    }


def _progress(row: Row, view: View) -> dict[str, Any]:
    fraction = row.get("fraction")
    if fraction is None and row["state"] == "done":
        fraction = 1.0
    eta = None
    if row["state"] == "running" and fraction and row.get("started_at"):
        eta = _seconds((view.now - row["started_at"]) * (1 - fraction) / fraction)
    return {
        "fraction": fraction, "step": row.get("step"), "total": row.get("total"), "message": row.get("note"), "eta_s": eta,
    }  # fmt: skip


def _metrics(row: Row, attempts: list[Row]) -> dict[str, Any] | None:
    """The newest value of each metric; of a pruned job, as its last attempt left them."""
    text = row["metrics"] if "metrics" in row else attempts[-1]["metrics"] if attempts else None
    return document(text) if text else None


def _paths(row: Row, paths: Paths) -> dict[str, Any]:
    """Where the files of the last attempt are; null while there was none."""
    if not row["attempt"]:
        return {"log": None, "run": None, "checkpoints": None}
    number, attempt = row["id"], row["attempt"]
    return {
        "log": paths.log(number, attempt),
        "run": paths.attempt(number, attempt),
        "checkpoints": paths.checkpoints(number),
    }


def _model(row: Row, paths: Paths) -> dict[str, Any]:
    key, version = row.get("model_key"), row.get("model_version")
    return {"key": key, "version": version, "path": paths.version(key, version) if key and version else None}
