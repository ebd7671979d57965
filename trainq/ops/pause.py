"""Pause queues: what runs goes on, and no worker claims from them until they are opened again (ops/resume.py).

A pause stops everybody's jobs. So on a group's queue it is its owner's word, or root's; a member has `hold` for their own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainq import wake
from trainq.base import hosts
from trainq.base.errors import NoSelector, NotFound
from trainq.base.setting_rows import DEFAULT_QUEUE
from trainq.base.words import quoted
from trainq.ops.change import Change
from trainq.ops.sure import surely
from trainq.store import queues

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trainq.ops.queue import Queue
    from trainq.store.session import Transaction


def pause(
    queue: Queue, names: Sequence[str], *, all_: bool = False, message: str | None = None, dry_run: bool = False
) -> list[Change]:
    """Let no worker claim from these queues; paused, already or denied. `all_`: those that the settings name, and those
    that have jobs; one that is named later is open. Raises NoSelector without any, NotFound.
    """
    if not names and not all_:
        raise NoSelector("pause: which queue?", hint="trainq pause --queue Q, or --all")

    def decide(tx: Transaction) -> list[Change]:
        closed = queues.closed(tx)
        wanted = chosen(tx, queue, names, "pause") + (sorted(known(tx, queue)) if all_ else [])
        return [
            Change(name, "already") if name in closed else _not_yours(queue, name) or Change(name, "paused")
            for name in dict.fromkeys(wanted)
        ]

    def close(tx: Transaction) -> list[Change]:
        changes = decide(tx)
        for name in names_of(changes, "paused"):
            queues.pause(tx, name, "queue_paused", str(queue.actor), message)
        return changes

    if dry_run:
        with queue.session.reading() as tx:
            return decide(tx)
    changes = surely(queue.session, close, lambda tx, done: names_of(done, "paused") <= queues.paused(tx).keys())
    if names_of(changes, "paused"):
        wake.ring(queue.paths.bell_number)
    return changes


def names_of(changes: Sequence[Change], result: str) -> set[str]:
    """The queues of which this became."""
    return {str(one.id) for one in changes if one.result == result}


def is_for_all(queue: Queue) -> bool:
    """Whether this user may speak for all who use the queue: anybody on a queue of one user; on a group's, root and the
    owner of the root directory."""
    return not queue.is_for_group or queue.actor.user_id in (0, queue.owner_id)


def _not_yours(queue: Queue, name: str) -> Change | None:
    if is_for_all(queue):
        return None
    return Change(name, "denied", f"queue {name} is a group's, and only {hosts.known_as(queue.owner_id)} pauses it")


def known(tx: Transaction, queue: Queue) -> set[str]:
    """The queues there are: those that the settings name, and those that have jobs or are paused."""
    return {DEFAULT_QUEUE, *queue.settings.queues.names} | queues.with_jobs(tx) | queues.paused(tx).keys()


def chosen(tx: Transaction, queue: Queue, names: Sequence[str], verb: str) -> list[str]:
    """The same names, each that of a queue. Raises NotFound."""
    there = known(tx, queue) if names else ()
    for name in names:
        if name not in there:
            raise NotFound(
                f"no such queue: {quoted(name)}; known queues: {', '.join(sorted(there))}", hint=f"trainq {verb} --all"
            )
    return list(names)
