"""One job's card, for people."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trainq.base.units import local_short, show_duration, show_size
from trainq.cli import columns
from trainq.cli.answer import Table
from trainq.cli.printer import is_terminal, lines_of
from trainq.cli.words import short_values
from trainq.domain.array import bar, words_of
from trainq.ops.cards import tags_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trainq.store.reads import Row

NEXT = {
    "pending": "trainq worker --until idle",
    "running": "trainq logs -f {id}",
    "errored": "trainq logs {id}; trainq retry {id}",
    "canceled": "trainq retry {id}",
    "skipped": "trainq history {id}",
}


def blocks(job: dict[str, Any], row: Row, now: float) -> Iterator[str | Table]:
    """The card: what it is, how it stands, what it made, its attempts, and the next command."""
    yield lines_of([*_what(job), *_how(job, row, now), *_made(job)])
    if job["attempts"]:
        yield "attempts"
        ended = [_attempt(item, was, now) for item, was in zip(job["attempts"], row["attempts"], strict=True)]
        yield Table(("n", "state", "reason", "started", "ran", "worker", "exit", "signal", "error"), ended)
    if "env" in job:
        yield "environment"
        yield lines_of([(name, value or " ") for name, value in sorted(job["env"].items())])
    following = NEXT.get(job["state"])
    if job["state"] == "errored" and job["attempts"] and job["attempts"][-1]["cause"] == "poison":
        following = "trainq history {id}; trainq retry {id}"  # nothing of it was run, or written
    if row.get("opens"):
        following = row["opens"]
    if job["state"] == "done" and job["model"]["version"]:
        following = f"trainq models path {job['model']['key']}@{job['model']['version']}"
    if following:
        yield "next: " + following.format(id=job["id"])


def array_blocks(row: Row, now: float) -> Iterator[str | Table]:
    """An array as a whole; its tasks follow in a table."""
    state = row["state"] + (f" ({row['reason']})" if row["reason"] else "")
    yield lines_of([
        ("array", str(row["id"])),
        ("name", row["name"]),
        ("type", row["type"]),
        ("queue", row["queue"] + (f", priority {row['priority']}" if row["priority"] else "")),
        ("tags", " ".join(tags_of(row))),
        ("user", row["user"]),
        ("state", state),
        ("tasks", f"{bar(row['counts'], 20)} {words_of(row['counts'])}" if is_terminal() else words_of(row["counts"])),
        ("limit", f"{row['most']} at once" if row["most"] else None),
        ("submitted", local_short(row["at"], now)),
        ("ended", local_short(row["ended_at"], now) if row["ended_at"] else None),
    ])  # fmt: skip
    following = {"pending": "trainq worker --until idle", "errored": "trainq retry {id} --state errored"}.get(
        row["state"]
    )
    if following:
        yield "next: " + following.format(id=row["id"])


def _what(job: dict[str, Any]) -> list[tuple[str, str | None]]:
    data = [
        f"{item['name'] or 'data'}: {show_size(item['size'])} {item['sha256'][:12]}" for item in job["data"]["sets"]
    ]
    return [
        ("job", job["ref"] if job["array"]["id"] is None else f"{job['ref']}, number {job['id']}"),
        ("name", job["name"]),
        ("type", job["type"]),
        ("command", columns.command(job)),
        ("cwd", job["command"]["cwd"]),
        ("code", _code(job["code"])),
        ("params", " ".join(f"{name}={_value(value)}" for name, value in job["params"].items())),
        ("data", ", ".join(data)),
        ("key", job["key"]),
        ("fingerprint", job["fingerprint"]),
        ("queue", job["queue"] + (f", priority {job['priority']}" if job["priority"] else "")),
        ("request", _request(job["request"])),
        ("tags", " ".join(job["tags"])),
        ("user", f"{job['user']}@{job['submit_host']}" if job["submit_host"] else job["user"]),
    ]


def _code(code: dict[str, Any]) -> str:
    """Where it stood in git, and what was frozen."""
    commit = str(code["commit"] or "")[:12] + (" (dirty)" if code["dirty"] else "")
    frozen = f"snapshot {str(code['snapshot'])[:12]}" if code["snapshot"] else ""
    return ", ".join(word for word in (commit.strip(), frozen) if word)


def _request(request: dict[str, Any]) -> str:
    """What was asked for, beyond the defaults."""
    times = [(name, request[key]) for name, key in (("time", "time_s"), ("grace", "grace_s"))]
    sizes = [(name, request[key]) for name, key in (("mem", "mem_mib"), ("vram", "vram_mib"))]
    words = [f"{request['gpus']} x {request['gpu_type'] or 'any GPU'}"] if request["gpus"] else []
    words += [f"{name} {show_duration(seconds)}" for name, seconds in times if seconds is not None]
    words += [f"{request['cpus']} cpus"] if request["cpus"] else []
    words += [f"{name} {show_size(mib * 2**20)}" for name, mib in sizes if mib is not None]
    words += [f"{how} {' or '.join(request[key])}" for how, key in (("on", "on"), ("not on", "not_on")) if request[key]]
    return ", ".join(words)


def _how(job: dict[str, Any], row: Row, now: float) -> list[tuple[str, str | None]]:
    attempt, progress, result = job["attempt"], job["progress"], job["result"]
    state = job["state"] + (f" ({job['reason']})" if job["reason"] else "")
    if job["state"] == "running" and job["stage"]:
        state += f", {job['stage']}"
    where = f"{attempt['worker']} on {attempt['host']}" if attempt["worker"] and attempt["n"] else None
    beat = row.get("heartbeat_at") if job["state"] == "running" else None
    ran, ended = columns.ran_s(row, now), row.get("ended_at")
    return [
        ("state", state),
        ("waiting", job["waiting_for"]),
        ("after", ", ".join(f"{item['on']}:{item['job']}" for item in job["after"])),
        ("begins", _time(row.get("begin_at"), now)),
        ("deadline", _time(row.get("deadline_at"), now)),
        ("position", str(job["position"]) if job["position"] else None),
        ("progress", _progress(progress) if job["state"] not in ("held", "pending") else None),
        ("metrics", short_values(job["metrics"] or {})),
        ("submitted", local_short(row["submitted_at"], now)),
        ("attempt", str(attempt["n"]) if attempt["n"] else None),
        ("worker", where and where + (f", pid {attempt['pid']}" if attempt["pid"] else "")),
        ("heartbeat", f"{show_duration(now - beat)} ago" if beat else None),
        ("ran", show_duration(ran) if ran is not None else None),
        ("ended", local_short(ended, now) if ended else None),
        ("exit", _exit(result)),
        ("fault", job["side"]),
        *_lines("error", result["error"]),
        ("message", job["message"] if job["message"] != result["error"] else None),
    ]


def _time(at: float | None, now: float) -> str | None:
    return None if at is None else local_short(at, now)


def _lines(label: str, text: str | None) -> list[tuple[str, str]]:
    """A text of several lines, a row each."""
    lines = (text or "").rstrip("\n").split("\n")
    return [(" " if place else label, line or " ") for place, line in enumerate(lines)] if text else []


def _made(job: dict[str, Any]) -> list[tuple[str, str | None]]:
    model = job["model"]
    return [
        ("model", f"{model['key']}@{model['version']}" if model["version"] else None),
        ("path", model["path"]),
        ("log", job["paths"]["log"]),
    ]


def _exit(result: dict[str, Any]) -> str | None:
    if result["signal"] is not None:
        return f"signal {result['signal']}"
    return None if result["exit_code"] is None else str(result["exit_code"])


def _progress(progress: dict[str, Any]) -> str | None:
    words = [columns.percent(progress["fraction"])]
    if progress["step"] is not None:
        words.append(f"step {progress['step']}" + (f" of {progress['total']}" if progress["total"] is not None else ""))
    if progress["eta_s"] is not None:
        words.append(f"about {show_duration(progress['eta_s'])} left")
    words.append(progress["message"] or "")
    return ", ".join(word for word in words if word) or None


def _attempt(item: dict[str, Any], was: Row, now: float) -> list[str]:
    result, started = item["result"], was["started_at"]
    first = (result["error"] or item["message"] or "").strip().partition("\n")[0]
    shown = [
        item["n"], item["state"], item["reason"], None if started is None else local_short(started, now),
        None if started is None else show_duration(was["at"] - started), item["worker"], result["exit_code"],
        result["signal"], first,
    ]  # fmt: skip
    return ["" if value is None else str(value) for value in shown]


def _value(value: Any) -> str:
    import json

    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
