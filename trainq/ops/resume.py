"""Open paused queues again: those that the breaker has closed, or people."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainq import wake
from trainq.base.errors import NoSelector
from trainq.ops.change import Change
from trainq.ops.pause import chosen
from trainq.ops.sure import surely
from trainq.store import queues

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trainq.ops.queue import Queue
    from trainq.store.session import Transaction


def resume(queue: Queue, names: Sequence[str], *, all_: bool = False, dry_run: bool = False) -> list[Change]:
    """Let workers claim from these queues again (`all_`: from every paused one); resumed or already.

    Raises NoSelector without any, NotFound.
    """
    if not names and not all_:
        raise NoSelector("resume: which queue?", hint="trainq resume --queue Q, or --all")

    def decide(tx: Transaction) -> list[Change]:
        closed = queues.paused(tx)
        wanted = dict.fromkeys([*chosen(tx, queue, names, "resume"), *(sorted(closed) if all_ else ())])
        return [Change(name, "resumed" if name in closed else "already") for name in wanted]

    def open_(tx: Transaction) -> list[Change]:
        changes = decide(tx)
        for one in changes:
            queues.resume(tx, str(one.id))
        return changes

    if dry_run:
        with queue.session.reading() as tx:
            return decide(tx)
    changes = surely(queue.session, open_, lambda tx, done: not {one.id for one in done} & queues.paused(tx).keys())
    wake.ring(queue.paths.bell_number)
    return changes
