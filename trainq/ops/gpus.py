"""The GPUs of all workers, and which job has each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trainq.ops.why import Why

if TYPE_CHECKING:
    from trainq.ops.queue import Queue


def gpus(queue: Queue) -> list[dict[str, Any]]:
    """A document for each GPU that a worker offers which has not said good-bye and is not gone."""
    with queue.session.reading() as tx:
        benches = Why(tx, queue).benches
    found = []
    for bench in benches:
        if bench.worker["state"] == "gone":
            continue
        holders = {device: number for number, one in bench.runs.items() for device in one.devices}
        for device in bench.offer.devices:
            found.append({
                "id": device.id, "name": device.name, "vram_mib": device.vram_mib, "host": bench.worker["host"],
                "worker": bench.worker["name"], "job": holders.get(device.id), "foreign": device.foreign,
            })  # fmt: skip
    return sorted(found, key=lambda one: (one["host"], one["worker"]))
