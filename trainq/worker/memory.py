"""How often the kernel has killed for want of memory in this process's cgroup: a number that grows."""

from __future__ import annotations

import functools


@functools.cache
def _events() -> str | None:
    """The file of this cgroup's memory events (cgroup v2; jobs live in the worker's own cgroup)."""
    try:
        with open("/proc/self/cgroup", encoding="utf-8") as file:
            for line in file:
                if line.startswith("0::"):
                    return f"/sys/fs/cgroup{line[3:].strip().rstrip('/')}/memory.events"
    except OSError:
        pass  # no cgroups here: a kill for memory then looks like any other
    return None


def kills() -> int:
    """Kills for memory so far; 0 where the kernel does not tell."""
    path = _events()
    try:
        with open(path or "", encoding="ascii") as file:
            return sum(int(line.split()[1]) for line in file if line.startswith("oom_kill "))
    except (OSError, ValueError):
        return 0
