"""What the host of a worker has to give: processors and memory as far as this process may use them, and GPUs."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from trainq.base import hosts
from trainq.domain.offer import Offer

if TYPE_CHECKING:
    from trainq.domain.devices import Device


def offer(slots: int, devices: tuple[Device, ...] = ()) -> Offer:
    """All that a worker here can give, were nothing running."""
    return Offer(hosts.hostname(), slots, devices, len(os.sched_getaffinity(0)), _memory_mib())


def _memory_mib() -> int:
    """The memory of the host, or of this process's cgroup where that is less (cgroup v2, memory.max)."""
    whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min(whole, _cgroup_limit() or whole) // 2**20


def _cgroup_limit() -> int | None:
    """The least limit of the cgroups this process is in; None where there is none, or no cgroups."""
    try:
        with open("/proc/self/cgroup", encoding="utf-8") as file:
            path = next((line[3:].strip() for line in file if line.startswith("0::")), None)
    except OSError:
        return None
    limits = []
    while path is not None:
        try:
            with open(f"/sys/fs/cgroup{path.rstrip('/')}/memory.max", encoding="ascii") as file:
                limits.append(int(file.read()))
        except (OSError, ValueError):
            pass  # "max", or a cgroup without the file: no limit here
        path = os.path.dirname(path) if path not in ("/", "") else None
    return min(limits, default=None)
