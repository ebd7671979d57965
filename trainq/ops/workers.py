"""Who is alive: the rows of workers, and what each holds.

`silent` is no heartbeat for half of zombie-after, `gone` for all of it, a good-bye, or (on this host) a process that
is provably not there. These words are for people; nothing expires by them.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

from trainq import wake
from trainq.base import hosts
from trainq.base.errors import NoSelector, NotFound
from trainq.base.units import rfc3339
from trainq.domain.offer import offer_of
from trainq.ops.change import Change
from trainq.ops.sure import surely
from trainq.store import workers

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trainq.ops.queue import Queue
    from trainq.store.session import Transaction


class Crew(NamedTuple):
    """The workers as documents, how long ago each was heard (seconds)."""

    items: list[dict[str, Any]]
    ages_s: list[float]


def crew(queue: Queue, *, all_: bool = False) -> Crew:
    """Workers that have not said good-bye, newest first; with `all_` those that have, too."""
    zombie_after = queue.settings.times.zombie_after
    with queue.session.reading() as tx:
        rows = workers.everyone(tx) if all_ else _present(tx)
        ages = [tx.now - row["heartbeat_at"] for row in rows]
        return Crew([_document(tx, row, zombie_after, hosts.identity()) for row in rows], ages)


def crew_of(tx: Transaction, zombie_after_s: float) -> list[dict[str, Any]]:
    """The workers that have not said good-bye, in a transaction that is open."""
    identity = hosts.identity()
    return [_document(tx, row, zombie_after_s, identity) for row in _present(tx)]


def takes(worker: Mapping[str, Any], queue_name: str) -> bool:
    """Whether this worker lives and will take jobs of that queue."""
    return worker["state"] in ("idle", "busy", "silent") and worker["slots"] > 0 and queue_name in worker["queues"]


def clear(queue: Queue, names: Sequence[str]) -> list[Change]:
    """Let workers out of quarantine, by name or id; what was done to each: cleared, already, denied, unknown. Raises
    NotFound for a single unknown one."""

    def is_there(tx: Transaction, done: Sequence[Change]) -> bool:
        sick = {row["name"] for row in _present(tx) if row["quarantine"]}
        return not sick & {one.id for one in done if one.result == "cleared"}

    changes = surely(queue.session, lambda tx: [_clear(tx, queue, _present(tx), word) for word in names], is_there)
    if len(names) == 1 and changes[0].result == "unknown":
        raise NotFound(f"no such worker: {names[0]}", hint="trainq workers")
    wake.ring(queue.paths.bell_number)
    return changes


def drain(queue: Queue, names: Sequence[str], *, all_: bool = False) -> list[Change]:
    """Let workers finish what runs and end, by name or id (`all_`: every one that this user may end); what was done to
    each: drained, already, ended, denied, unknown. Raises NoSelector without any, NotFound for a single unknown one.
    """
    if not names and not all_:
        raise NoSelector("workers drain: which workers?", hint="trainq workers drain WORKER, or --all")

    def ask(tx: Transaction) -> list[Change]:
        rows = _present(tx)
        everyone = [row for row in rows if _may_end(queue, row) and not _is_gone(queue, tx, row)] if all_ else []
        return [_drain(tx, queue, rows, word) for word in names] + [_drain_one(tx, queue, row) for row in everyone]

    def is_there(tx: Transaction, done: Sequence[Change]) -> bool:
        open_ = {row["name"] for row in _present(tx) if row["drain_at"] is None}
        return not open_ & {one.id for one in done if one.result == "drained"}

    changes = surely(queue.session, ask, is_there)
    if len(changes) == 1 and changes[0].result == "unknown":
        raise NotFound(f"no such worker: {names[0]}", hint="trainq workers")
    wake.ring(queue.paths.bell_number)
    return changes


def _drain(tx: Transaction, queue: Queue, rows: Sequence[Any], word: str) -> Change:
    found = [row for row in rows if word in (row["name"], str(row["id"]))]
    return _drain_one(tx, queue, found[0]) if found else Change(word, "unknown", f"no such worker: {word}")


def _drain_one(tx: Transaction, queue: Queue, row: Any) -> Change:
    name = row["name"]
    if not _may_end(queue, row):
        return _of_others(row)
    if _is_gone(queue, tx, row):
        return Change(name, "ended", f"worker {name} is gone")
    asked = workers.request_drain(tx, row["id"], str(queue.actor)) and row["state"] != "draining"
    return Change(name, "drained" if asked else "already")


def _may_end(queue: Queue, row: Any) -> bool:
    """Whether this user may: who started it, root, and the owner of the root directory."""
    return queue.actor.user_id in (0, row["user_id"], queue.owner_id)


def _is_gone(queue: Queue, tx: Transaction, row: Any) -> bool:
    return state_of(row, tx.now, queue.settings.times.zombie_after, hosts.identity(), busy=False) == "gone"


def _present(tx: Transaction) -> list[Any]:
    """Those that have not said good-bye, newest first."""
    return [row for row in workers.everyone(tx) if row["ended_at"] is None]


def _clear(tx: Transaction, queue: Queue, rows: Sequence[Any], word: str) -> Change:
    found = [row for row in rows if word in (row["name"], str(row["id"]))]
    if not found:
        return Change(word, "unknown", f"no such worker: {word}")
    name = found[0]["name"]
    if not _may_end(queue, found[0]):
        return _of_others(found[0])
    if found[0]["quarantine"] is None:
        return Change(name, "already")
    workers.clear(tx, found[0]["id"], str(queue.actor))
    return Change(name, "cleared")


def _of_others(row: Any) -> Change:
    return Change(row["name"], "denied", f"worker {row['name']} belongs to {hosts.known_as(row['user_id'])}")


def _document(tx: Transaction, row: Any, zombie_after_s: float, identity: str) -> dict[str, Any]:
    queues = json.loads(row["queues"])
    jobs = workers.jobs_of(tx, row["id"])
    return {
        "name": row["name"],
        "id": row["id"],
        "host": row["host"],
        "pid": row["pid"],
        "user_id": row["user_id"],
        "state": state_of(row, tx.now, zombie_after_s, identity, busy=bool(jobs)),
        "reason": row["quarantine"],
        "slots": row["slots"],
        "gpus": [device.id for device in offer_of(row["host"], row["slots"], row["offer"]).devices],
        "queues": queues,
        "jobs": jobs,
        "started_at": rfc3339(row["started_at"]),
        "heartbeat_at": rfc3339(row["heartbeat_at"]),
        "version": row["version"],
    }


def state_of(row: Any, now: float, zombie_after_s: float, identity: str, *, busy: bool) -> str:
    """The word for how alive it is, seen from the host of this identity. Whether it has jobs is known sooner than its
    next heartbeat tells."""
    age = now - row["heartbeat_at"]
    if row["ended_at"] is not None or age > zombie_after_s:
        return "gone"
    if row["host_identity"] == identity and not hosts.is_same_process(row["pid"], row["pid_start"]):
        return "gone"
    if age > zombie_after_s / 2:
        return "silent"
    if row["quarantine"] is not None:
        return "quarantined"
    is_draining = row["state"] == "draining" or row["drain_at"] is not None
    return "draining" if is_draining else "busy" if busy else "idle"
