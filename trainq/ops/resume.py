"""Open paused queues again: those that the breaker has closed, or people.

On a group's queue what its owner or root has paused stays so until one of them opens it, or who had paused it. What the
breaker has closed is nobody's word, and any member opens it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainq import wake
from trainq.base.errors import NoSelector
from trainq.base.words import printable
from trainq.ops.change import Change
from trainq.ops.pause import chosen, is_for_all, names_of
from trainq.ops.sure import surely
from trainq.store import queues

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trainq.ops.queue import Queue
    from trainq.store.queues import Closed
    from trainq.store.session import Transaction


def resume(queue: Queue, names: Sequence[str], *, all_: bool = False, dry_run: bool = False) -> list[Change]:
    """Let workers claim from these queues again (`all_`: from every paused one); resumed, already or
    denied. Raises NoSelector without any, NotFound.
    """
    if not names and not all_:
        raise NoSelector("resume: which queue?", hint="trainq resume --queue Q, or --all")

    def decide(tx: Transaction) -> list[Change]:
        closed = queues.closed(tx)
        wanted = dict.fromkeys([*chosen(tx, queue, names, "resume"), *(sorted(closed) if all_ else ())])
        return [_change(queue, name, closed.get(name)) for name in wanted]

    def open_(tx: Transaction) -> list[Change]:
        changes = decide(tx)
        for name in names_of(changes, "resumed"):
            queues.resume(tx, name)
        return changes

    if dry_run:
        with queue.session.reading() as tx:
            return decide(tx)
    changes = surely(queue.session, open_, lambda tx, done: not names_of(done, "resumed") & queues.paused(tx).keys())
    if names_of(changes, "resumed"):
        wake.ring(queue.paths.bell_number)
    return changes


def _change(queue: Queue, name: str, closed: Closed | None) -> Change:
    if closed is None:
        return Change(name, "already")
    is_own = (closed.by or "").rpartition("@")[0] == queue.actor.user
    if closed.reason == "breaker" or is_own or is_for_all(queue):
        return Change(name, "resumed")
    who = printable(closed.by) if closed.by else "its owner"
    return Change(name, "denied", f"queue {name} was paused by {who}, who opens it")
