"""`trainq worker`: run jobs here."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trainq.base.errors import BadValue, UnknownQueue, Usage
from trainq.cli.answer import Answer, Silence
from trainq.cli.line import Line, line_of
from trainq.cli.words import counted
from trainq.domain.states import ENDED

if TYPE_CHECKING:
    from collections.abc import Callable

    from trainq.base.settings import Settings
    from trainq.domain.devices import Device
    from trainq.ops.queue import Queue
    from trainq.worker.place import Options, Report


def run(
    ctx: typer.Context,
    slots: Annotated[str | None, typer.Option("--slots", metavar="N", help="jobs at once; 0: only answer and care")] = None,
    queues: Annotated[list[str] | None, typer.Option("--queue", metavar="QUEUE", help="only of this queue; may be repeated")] = None,
    users: Annotated[list[str] | None, typer.Option("--users", "--user", metavar="NAME", help="on a group's queue: run jobs of this user, as you; may be repeated; default: your own")] = None,
    gpus: Annotated[str | None, typer.Option("--gpus", metavar="auto|none|0,1", help="which GPUs it gives out; auto: all that it sees")] = None,
    gpu_type: Annotated[str | None, typer.Option("--gpu-type", metavar="T", help="only GPUs of this type")] = None,
    sim_gpus: Annotated[str | None, typer.Option("--sim-gpus", metavar="N[:T[:VRAM]]", help="GPUs that are not there, to try things out")] = None,
    once: Annotated[bool, typer.Option("--once", help="at most one job")] = False,
    until: Annotated[str | None, typer.Option("--until", metavar="idle|empty|TIME", help="end when nothing is to do (idle), when nothing waits at all (empty), or then")] = None,
    max_jobs: Annotated[int | None, typer.Option("--max-jobs", metavar="N", help="end after so many jobs")] = None,
    name: Annotated[str | None, typer.Option("--name", metavar="NAME", help="its name in lists; default: host and pid")] = None,
    log_format: Annotated[str, typer.Option("--log-format", metavar="text|json", help="how it says what it does, on stderr")] = "text",
    jsonl: Annotated[bool, typer.Option("--jsonl", help="what it does as JSON lines on stdout")] = False,
) -> Any:  # fmt: skip
    """Run jobs here. INT: finish what runs, then end. TERM: stop the jobs, which go back to the queue."""
    import gc

    from trainq.worker.loop import Worker
    from trainq.worker.place import Options

    gc.enable()  # a worker lives long
    line = line_of(ctx)
    if log_format not in ("text", "json"):
        raise BadValue(f"--log-format: text or json was expected, not {log_format!r}")
    if max_jobs is not None and max_jobs < 1:
        raise BadValue(f"--max-jobs takes 1 or more, not {max_jobs}")
    if name is not None and not name:
        raise BadValue("--name is empty")
    if jsonl and line.json:
        raise Usage("--json is one report at the end, --jsonl a line for each event: one of them")
    if once and (until is not None or max_jobs is not None):
        raise Usage("--once is --max-jobs 1 --until idle, and stands alone")
    queue = line.open_queue({} if slots is None else {"worker.slots": slots})
    word, at = ("idle", None) if once else _until(until)
    options = Options(
        slots=min(queue.settings.worker.slots, 1) if once else queue.settings.worker.slots,
        queues=_queues(queue.settings, queues),
        name=name,
        max_jobs=1 if once else max_jobs,
        until=word,
        until_at=at,
        users=_users(queue, users),
        devices=_devices(gpus, gpu_type, sim_gpus),
        on_event=_teller(line, log_format, jsonl=jsonl),
    )
    _tell_of_others(queue, options)
    report = Worker(queue, options).run()
    code = 1 if report.lost_claims or report.killed or report.quarantine else 0
    return Silence(code) if jsonl else _answer(report, code)


def _until(text: str | None) -> tuple[str | None, float | None]:
    if text is None or text in ("idle", "empty"):
        return text, None
    from trainq.base import clock
    from trainq.base.units import moment

    try:
        return None, moment(text, clock.now())
    except BadValue as error:
        raise BadValue(f"--until: idle, empty or a time was expected; {error.message}") from None


def _queues(settings: Settings, asked: list[str] | None) -> tuple[str, ...]:
    for name in asked or ():
        if name not in settings.queues.names:
            known = ", ".join(settings.queues.names)
            raise UnknownQueue(f"no such queue: {name!r}; known queues: {known}")
    return tuple(dict.fromkeys(asked)) if asked else settings.queues.names


def _users(queue: Queue, asked: list[str] | None) -> tuple[int, ...] | None:
    """Whose jobs are run, by uid; None on a queue of one user."""
    import os

    from trainq.base import hosts

    if not queue.is_for_group:
        if asked:
            raise BadValue("--user: this is no group's queue, whose jobs would have to be told apart")
        return None
    return tuple(dict.fromkeys(hosts.user_id(name) for name in asked)) if asked else (os.getuid(),)


def _devices(wanted: str | None, gpu_type: str | None, simulated: str | None) -> tuple[Device, ...]:
    """The GPUs to give out. Raises BadValue for some that are not there."""
    import os

    from trainq.domain.devices import of_type, parse_sim, parse_wanted, restrict
    from trainq.worker.devices import found

    if simulated is not None and wanted is not None:
        raise Usage("--sim-gpus are all GPUs of this worker: no --gpus beside it")
    if simulated is not None:
        return of_type(parse_sim(simulated, gpu_type), gpu_type)
    names = parse_wanted("auto" if wanted is None else wanted)
    if names == ():
        return ()
    seen = found()
    if seen.trouble:
        from trainq.cli import printer

        printer.note(seen.trouble)
    return of_type(restrict(seen.devices, names, os.environ.get("CUDA_VISIBLE_DEVICES")), gpu_type)


def _tell_of_others(queue: Queue, options: Options) -> None:
    """Whose jobs run here with this user's rights, besides its own, and who of them has no business on this queue."""
    import os

    from trainq.base import hosts

    others = [user_id for user_id in options.users or () if user_id != os.getuid()]
    if not others:
        return
    names = [hosts.user_name(user_id) for user_id in others]
    options.on_event("for others", {"users": names, "as": hosts.user_name(os.getuid())})
    group_id = os.stat(queue.paths.root).st_gid
    strange = [
        name for user_id, name in zip(others, names, strict=True)
        if user_id != queue.owner_id and not hosts.is_member(user_id, group_id)
    ]  # fmt: skip
    if strange:
        who = f"{', '.join(strange)} {'is' if len(strange) == 1 else 'are'}"
        options.on_event("trouble", {"message": f"{who} not known to be in the queue's group", "hint": "id NAME"})


def _teller(line: Line, log_format: str, *, jsonl: bool) -> Callable[[str, dict[str, Any]], None]:
    """What is called for each event: it writes, and never stops the worker.

    A reader that stalls (a stopped terminal, a pager, a full pipe) must not keep the worker from its beats: what does
    not fit waits for the next event, further lines are left out, and how many they were is said when it fits again.
    """
    from trainq.base import clock
    from trainq.base.units import local_short, rfc3339
    from trainq.base.words import printable
    from trainq.cli import printer
    from trainq.cli.document import encode

    stream = sys.stdout if jsonl else sys.stderr
    rest, left_out = b"", 0

    def line_for(kind: str, facts: dict[str, Any]) -> bytes:
        now = clock.now()
        if not jsonl and log_format == "text":
            return printed(f"{local_short(now, now)} {_sentence(kind, facts)}")
        encoded = encode({"at": rfc3339(now), "event": kind, **facts})
        return encoded if jsonl else printed(encoded.decode().rstrip("\n"))

    def printed(text: str) -> bytes:
        return f"{printable(text)}\n".encode(stream.encoding, "backslashreplace")

    def tell(kind: str, facts: dict[str, Any]) -> None:
        nonlocal rest, left_out
        if stream is None or (line.quiet and not jsonl):
            return
        said = line_for(kind, facts)
        try:
            rest = printer.write_on(stream, rest)
            if rest:
                left_out += 1
                return
            if left_out and not jsonl:
                rest = printed(f"{left_out} lines were left out: nobody read on")
            left_out = 0
            rest = printer.write_on(stream, rest + said)
        except (OSError, ValueError):
            rest = b""  # nobody reads any more; the jobs matter more

    return tell


def _sentence(kind: str, facts: dict[str, Any]) -> str:
    """An event in words."""
    if kind in ("job started", "job ended"):
        parts = [f"job {facts['id']} ({facts['name']})"]
        if kind == "job started":
            return f"{parts[0]} started, attempt {facts['attempt']}"
        parts.append(str(facts["state"]) + (f" ({facts['reason']})" if facts["reason"] else ""))
        if facts["run_s"] is not None:
            from trainq.base.units import show_duration

            parts.append(f"after {show_duration(facts['run_s'])}")
        if facts["model"]:
            parts.append(f"made {facts['model']}")
        if facts["error"]:
            parts.append(f": {facts['error'].strip().partition(chr(10))[0]}")
        return " ".join(parts).replace(" :", ":")
    sentence = _SENTENCES.get(kind)
    if sentence is not None:
        return sentence(facts)
    shown = ", ".join(f"{name} {value}" for name, value in facts.items() if value is not None)
    return f"{kind}: {shown}" if shown else kind


def _started(facts: dict[str, Any]) -> str:
    return f"started: {counted(facts['slots'], 'slot')}, queues {','.join(facts['queues'])}, pid {facts['pid']}"


def _draining(facts: dict[str, Any]) -> str:
    asked = f", as {facts['by']} has asked" if facts["by"] else ""
    if not facts["running"]:
        return f"draining{asked}: nothing runs"
    said = f"draining{asked}: {counted(facts['running'], 'job')} to finish, nothing new is claimed; ^C again stops"
    paused = ",".join(map(str, facts["paused"]))
    return said + (f"; what is paused is waited for: trainq resume {paused}" if paused else "")


def _stopping(facts: dict[str, Any]) -> str:
    jobs = counted(facts["running"], "job")
    if facts["at_once"]:
        return f"stopping at once: {jobs} killed and given back"
    return f"stopping: {jobs} told to end, then given back at no cost; again kills at once"


def _ended(facts: dict[str, Any]) -> str:
    lost, why = facts["lost_claims"], facts["quarantine"]
    said = f"ended: {counted(facts['jobs'], 'attempt')}" + (f", {counted(lost, 'claim')} lost" if lost else "")
    return said + (f", in quarantine: {why}" if why else "")


def _quarantined(facts: dict[str, Any]) -> str:
    return f"quarantined: {facts['message']}; nothing more is claimed; hint: {facts['hint']}"


def _requeued(facts: dict[str, Any]) -> str:
    return f"job {facts['id']} was lost on {facts['worker']}: now {facts['state']}"


def _paused(facts: dict[str, Any]) -> str:
    from trainq.ops.paused import warning
    from trainq.store.queues import Closed

    return warning(facts["queue"], Closed(**{name: facts[name] for name in Closed._fields if name in facts}))


_SENTENCES: dict[str, Callable[[dict[str, Any]], str]] = {
    "started": _started,
    "for others": lambda facts: f"jobs of {', '.join(facts['users'])} run here as {facts['as']}",
    "draining": _draining,
    "stopping": _stopping,
    "ended": _ended,
    "requeued": _requeued,
    "queue paused": _paused,
    "quarantined": _quarantined,
    "quarantine cleared": lambda facts: f"quarantine cleared by {facts['by'] or 'somebody'}",
    "job paused": lambda facts: f"job {facts['id']} stands still, as {facts['by'] or 'somebody'} wants",
    "job resumed": lambda facts: f"job {facts['id']} goes on",
    "claim lost": lambda facts: f"job {facts['id']}: the claim is lost, its processes are killed",
    "trouble": lambda facts: facts["message"] + (f"; hint: {facts['hint']}" if facts.get("hint") else ""),
}


def _end_of(state: str | None, reason: str | None) -> str:
    """What became of an attempt, in a summary: a state says too little of what runs again."""
    if state == "held":
        return "to be retried"
    if state == "pending":
        return "requeued" if reason == "requeued" else "given back"
    return str(state)


def _answer(report: Report, code: int) -> Answer:
    total = report.ends.total()
    doc = {
        "name": report.name,
        "jobs": list(report.jobs),
        "total": total,
        "lost_claims": report.lost_claims,
        "quarantine": report.quarantine,
    }

    def text() -> list[str]:
        if not total:
            return ["nothing to do"]
        counts: dict[str, int] = {}
        for (state, reason), n in report.ends.items():
            end = _end_of(state, reason)
            counts[end] = counts.get(end, 0) + n
        said = ", ".join(f"{n} {end}" for end, n in counts.items())
        lines = [f"{total} {'attempt' if total == 1 else 'attempts'}: {said}"]
        return lines + ([f"ended in quarantine: {report.quarantine}"] if report.quarantine else [])

    ended = dict.fromkeys(job["id"] for job in report.jobs if job["state"] in ENDED)
    return Answer("worker_report", doc, text, list(ended), code)
