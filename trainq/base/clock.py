"""The one place that asks what time it is.

Wall time is for people and for rows. Waiting and expiry use the boot clock, which goes on while a machine sleeps;
no two machines' clocks are ever compared.
"""

from __future__ import annotations

import time


def now() -> float:
    """Seconds since 1970 on this host's wall clock."""
    return time.time()


def boot_s() -> float:
    """Seconds since this host was booted, sleep included."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
