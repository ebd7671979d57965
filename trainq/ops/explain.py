"""Why a job does not run, worker by worker, and what would help; what it is doing if it runs."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any, NamedTuple

from trainq.domain.array import words_of
from trainq.domain.offer import Offer, Taken, fits, free
from trainq.domain.shape import PLAIN
from trainq.ops.paused import opens, sentence
from trainq.ops.query import chosen, one_of
from trainq.ops.why import Why, asked, serves
from trainq.store import arrays, dependants, reads

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trainq.domain.schedule import Lane
    from trainq.domain.selectors import Filter
    from trainq.ops.queue import Queue
    from trainq.store.session import Transaction


class Answer(NamedTuple):
    """The documents of the jobs that were named, and the words that named none."""

    items: list[dict[str, Any]]
    unknown: list[str]


def explain(queue: Queue, words: Sequence[str], which: Filter) -> Answer:
    """What is known of each job's waiting, of an array that of its task that is next. Raises NotFound when the only one named
    is not there."""
    listing = chosen(queue, words, which, full=True, tasks=0)
    jobs = {job["id"]: job for job in listing.jobs}
    rows = listing.rows if listing.array is None else [listing.array]
    with queue.session.reading() as tx:
        why = Why(tx, queue)
        items = [
            _array(tx, queue, why, row) if "counts" in row else _explained(tx, why, row, jobs[row["id"]])
            for row in rows
        ]
    return Answer(items, listing.unknown)


def _array(tx: Transaction, queue: Queue, why: Why, row: reads.Row) -> dict[str, Any]:
    """An array as one: its counts, and why the task that is next does not run; the others wait for that one."""
    item = {
        **{name: row[name] for name in ("id", "name", "state", "reason", "queue", "priority", "counts")},
        "ref": str(row["id"]), "kind": "array", "request": None, "position": None,
        "why": [words_of(row["counts"])], "workers": [], "starts_in_s": None, "help": None,
    }  # fmt: skip
    found = arrays.next_task(tx, row)
    if found is not None:
        task, job = one_of(tx, queue, found["id"])
        inner = _explained(tx, why, task, job)
        item |= {name: inner[name] for name in ("reason", "request", "position", "workers", "starts_in_s", "help")}
        if task["on_hold"]:
            item["help"] = f"trainq release {row['id']}"
        item["why"] += [f"{inner['ref']} is next: {text}" for text in inner["why"]]
    elif row["counts"]["errored"]:
        item["help"] = f"trainq retry {row['id']} --state errored"
    return item


def _explained(tx: Transaction, why: Why, row: reads.Row, job: dict[str, Any]) -> dict[str, Any]:
    item = {
        **{name: job[name] for name in ("id", "ref", "name", "state", "reason", "queue", "priority", "request", "position")},
        "why": [], "workers": [], "starts_in_s": None, "help": None,
    }  # fmt: skip
    if job["state"] == "pending":
        _waiting(tx, why, row, item)
    elif job["state"] == "held":
        item["why"] = [
            f"held: {job['reason']}" + (f"; it waits for {job['waiting_for']}" if job["waiting_for"] else "")
        ]
        item["help"] = row.get("opens") or _help_of_held(tx, job)
    elif job["state"] == "running":
        item["why"] = [_doing(job)]
        item["help"] = row.get("opens")
    else:
        item["why"] = [f"it has ended: {job['state']}" + (f" ({job['reason']})" if job["reason"] else "")]
        item["help"] = f"trainq retry {job['id']}" if job["state"] in ("errored", "canceled") else None
    return item


def _waiting(tx: Transaction, why: Why, row: reads.Row, item: dict[str, Any]) -> None:
    from trainq.store import queues

    lane = why.lanes.get(row["lane_id"])
    item["position"] = reads.position(tx, row)
    closed = queues.closed(tx).get(row["queue"])
    if closed is not None:
        item["why"].append(sentence(row["queue"], closed))
        item["help"] = opens(row["queue"])
    if lane is None:
        item["why"].append("what it asks for cannot be read")
        return
    verdict = why.verdict(lane.id)
    if verdict.reason is not None:
        item["why"].append(verdict.text)
    item["reason"] = item["reason"] or verdict.reason
    item["workers"] = [_told(why, one, lane, row["id"]) for one in why.benches]
    if item["position"] > 1:
        item["why"].append(f"{item['position'] - 1} of its queue come before it")
    if not item["why"]:
        item["why"].append("a worker has room for it and will take it at its next look")
    if closed is None and verdict.reason != "limit":  # a pause, and what is counted elsewhere, may go on for ever
        item["starts_in_s"] = min(
            (at for one in why.benches if (at := _free_in(tx, why, one, lane)) is not None), default=None
        )
    item["help"] = item["help"] or _help(why, lane, verdict.reason)


def _told(why: Why, bench: Any, lane: Lane, job_id: int) -> dict[str, Any]:
    obstacle = why.obstacle(bench, lane, job_id)
    worker = bench.worker
    return {
        **{name: worker[name] for name in ("name", "id", "host", "state")},
        "fits": serves(bench, lane) is None and fits(lane.shape, bench.offer),
        "reason": obstacle,
    }


def _free_in(tx: Transaction, why: Why, bench: Any, lane: Lane) -> float | None:
    """Seconds until a worker has room, by how far its jobs are (else by their time limits); None: it cannot be told."""
    if serves(bench, lane) is not None or not fits(lane.shape, bench.offer):
        return None
    if why.obstacle(bench, lane) is None:
        return 0.0
    ends = {row["id"]: _ends_in(tx, row) for row in tx.named("running_where") if row["id"] in bench.runs}
    left: dict[int, Taken] = dict(bench.runs)
    for number, seconds in sorted(((n, s) for n, s in ends.items() if s is not None), key=lambda pair: pair[1]):
        del left[number]
        room: Offer = free(bench.offer, left.values())
        if fits(lane.shape, room):
            return seconds
    return None


def _ends_in(tx: Transaction, row: Any) -> float | None:
    """Seconds until a running job ends: from its progress, else its time limit at the latest."""
    started, fraction = row["started_at"], row["fraction"]
    if isinstance(started, float) and isinstance(fraction, float) and 0 < fraction <= 1:
        return round(max(0.0, (tx.now - started) * (1 - fraction) / fraction), 3)
    if isinstance(row["time_s"], float) and isinstance(row["claimed_at"], float):
        return round(max(0.0, row["claimed_at"] + row["time_s"] - tx.now), 3)
    return None


def _help(why: Why, lane: Lane, reason: str | None) -> str | None:
    """The command that would help."""
    if reason == "no_worker":
        served = any(serves(bench, lane) is None for bench in why.benches)
        command = "trainq worker" + ("" if lane.queue == "default" else f" --queue {shlex.quote(lane.queue)}")
        return command + (f", on a host with {asked(lane)}" if served or lane.shape != PLAIN else "")
    return "trainq gpus" if reason in ("resources", "limit") and lane.shape.gpus else None


def _help_of_held(tx: Transaction, job: dict[str, Any]) -> str | None:
    """Where to look on: at what it comes after."""
    waits = [edge["on_id"] for edge in dependants.of_jobs(tx, [job["id"]]).get(job["id"], ()) if edge["ended"] is None]
    return f"trainq explain {waits[0]}" if waits else None


def _doing(job: dict[str, Any]) -> str:
    attempt, progress = job["attempt"], job["progress"]
    said = f"{job['stage'] or 'running'} on {attempt['host']} ({attempt['worker']}), attempt {attempt['n']}"
    if attempt["gpus"]:
        said += f", GPUs {','.join(attempt['gpus'])}"
    if progress["fraction"] is not None:
        said += f", {progress['fraction']:.0%} done"
    return said + (f", {job['reason']}" if job["reason"] else "")
