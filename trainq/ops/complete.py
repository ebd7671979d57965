"""What could stand here: ids, types, queues, model keys that are there now, for the shell's completion.

Quick and quiet: no queue is made, no lock is waited for, and whatever goes wrong there is simply nothing to offer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trainq.artifacts.paths import Paths
from trainq.domain.array import ref_of
from trainq.domain.devices import CPU, check_type
from trainq.domain.held import MODES
from trainq.domain.offer import offer_of
from trainq.domain.states import STATES
from trainq.ops.queue import find, is_there, open_queue
from trainq.store import arrays, models, reads, workers

if TYPE_CHECKING:
    from collections.abc import Callable

    from trainq.ops.queue import Queue
    from trainq.store.session import Transaction

Word = tuple[str, str]
SHOWN = 100


def words(what: str, root: str | None, typed: str) -> list[Word]:
    """Words of this kind (a key of `KINDS`) that begin with what is typed, each with a short explanation."""
    if what == "state":
        return _begun([(state, "") for state in STATES], typed)
    path, _ = find(root)
    if not is_there(Paths(path)):
        return []
    return _begun(KINDS[what](open_queue(path), typed), typed)


def _begun(found: list[Word], typed: str) -> list[Word]:
    return [word for word in found if word[0].startswith(typed)]


def _selectors(queue: Queue, typed: str) -> list[Word]:
    with queue.session.reading() as tx:
        if typed.startswith("key:"):
            return [(f"key:{key}", "") for key in reads.newest_keys(tx, SHOWN)]
        number, bracket, _ = typed.partition("[")
        if bracket and number.isdecimal():
            return _tasks(tx, int(number))
        rows = reads.newest_ids(tx, SHOWN)
    if typed.startswith("@"):
        return [(f"@{name}", "") for name in dict.fromkeys(row["name"] for row in rows)]
    found = [(str(row["id"]), f"{row['state']} {row['name']}") for row in rows]
    return [*found, ("last", "the last submit of yours"), ("key:", "by its key")]


def _tasks(tx: Transaction, number: int) -> list[Word]:
    rows = reads.jobs(tx, arrays.shown(tx, number, SHOWN))
    return [(ref_of(row), row["state"]) for row in rows]


def _keys(queue: Queue, _typed: str) -> list[Word]:
    with queue.session.reading() as tx:
        return [(key, "") for key in reads.newest_keys(tx, SHOWN)]


def _types(queue: Queue, _typed: str) -> list[Word]:
    return [(name, "") for name in queue.settings.type_tables]


def _queues(queue: Queue, _typed: str) -> list[Word]:
    return [(name, "") for name in queue.settings.queues.names]


def _models(queue: Queue, typed: str) -> list[Word]:
    key, at, _ = typed.partition("@")
    with queue.session.reading() as tx:
        if at:
            versions = [(f"{key}@{row['version']}", "") for row in models.versions(tx, key)]
            return [*versions, (f"{key}@latest", "")]
        return [(key, "") for key in models.keys(tx)]


def _users(queue: Queue, _typed: str) -> list[Word]:
    return [(queue.actor.user, "you")]


def _workers(queue: Queue, _typed: str) -> list[Word]:
    return [(row["name"], row["host"]) for row in _at_work(queue)]


def _at_work(queue: Queue) -> list[Any]:
    """The rows of workers that have not said good-bye."""
    with queue.session.reading() as tx:
        return [row for row in workers.everyone(tx) if row["ended_at"] is None]


def _hosts(queue: Queue, typed: str) -> list[Word]:
    """One more host after those that stand there already."""
    before = typed[: typed.rfind(",") + 1]
    return [(before + host, "") for host in dict.fromkeys(row["host"] for row in _at_work(queue))]


def _gpu_types(queue: Queue, _typed: str) -> list[Word]:
    """As the settings name them, and as workers do."""
    found = dict.fromkeys(queue.settings.limits.gpus, "of [limits] gpus")
    for row in _at_work(queue):
        for device in offer_of(row["host"], row["slots"], row["offer"]).devices:
            found.setdefault(check_type(device.name), f"on {row['host']}")
    return [*found.items(), (CPU, "none")]


def _after(queue: Queue, typed: str) -> list[Word]:
    """One more job to come after: how it is to end, then which."""
    before, mode = typed[: typed.rfind(",") + 1], typed[typed.rfind(",") + 1 :].partition(":")[0]
    if mode not in MODES or ":" not in typed[len(before) :]:
        return [(f"{before}{mode}:", "") for mode in MODES]
    with queue.session.reading() as tx:
        rows = reads.newest_ids(tx, SHOWN)
    return [(f"{before}{mode}:{row['id']}", f"{row['state']} {row['name']}") for row in rows]


KINDS: dict[str, Callable[[Queue, str], list[Word]]] = {
    "selector": _selectors,
    "key": _keys,
    "type": _types,
    "queue": _queues,
    "model": _models,
    "user": _users,
    "worker": _workers,
    "host": _hosts,
    "gpu_type": _gpu_types,
    "after": _after,
}
