"""Pause queues: what runs goes on, and no worker claims from them until they are opened again (ops/resume.py)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainq import wake
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
    """Let no worker claim from these queues; paused or already. `all_`: those that the settings name, and those that
    have jobs; one that is named later is open. Raises NoSelector without any, NotFound.
    """
    if not names and not all_:
        raise NoSelector("pause: which queue?", hint="trainq pause --queue Q, or --all")

    def decide(tx: Transaction) -> list[Change]:
        closed = queues.closed(tx)
        wanted = chosen(tx, queue, names, "pause") + (sorted(known(tx, queue)) if all_ else [])
        return [Change(name, "already" if name in closed else "paused") for name in dict.fromkeys(wanted)]

    def close(tx: Transaction) -> list[Change]:
        changes = decide(tx)
        for one in changes:
            queues.pause(tx, str(one.id), "queue_paused", str(queue.actor), message)
        return changes

    if dry_run:
        with queue.session.reading() as tx:
            return decide(tx)
    changes = surely(queue.session, close, lambda tx, done: {one.id for one in done} <= queues.paused(tx).keys())
    wake.ring(queue.paths.bell_number)
    return changes


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
