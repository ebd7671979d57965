"""Named places where a test can make a training die: what trainq/base/crash.py is for trainq's own processes."""

from __future__ import annotations

import os

_armed, _, _count = os.environ.get("TRAINQ_CRASH", "").partition(":")
_left = int(_count) if _count.isdecimal() else 1


def point(name: str) -> None:
    """Die here by SIGKILL if `TRAINQ_CRASH` names this point (`name:3`: at the third time); else nothing."""
    global _left  # noqa: PLW0603 - one process has one count
    if _armed and name == _armed:
        _left -= 1
        if _left == 0:
            import signal

            os.kill(os.getpid(), signal.SIGKILL)
