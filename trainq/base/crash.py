"""Named places between two durable steps where a test can make this process die.

`TRAINQ_CRASH=publish.renamed` kills the process (SIGKILL, as a power cut would) when it gets to the point of
that name; `TRAINQ_CRASH=publish.renamed:3` when it gets there the third time. Unarmed, a point is one
comparison. The crash harness finds the names by reading the sources, so `point` is always called with a
literal.
"""

from __future__ import annotations

import os

_armed, _, _count = os.environ.get("TRAINQ_CRASH", "").partition(":")
_left = int(_count) if _count.isdecimal() else 1


def point(name: str) -> None:
    """Die here if `TRAINQ_CRASH` names this point; else nothing."""
    if _armed and name == _armed:
        _reach()


def _reach() -> None:
    global _left  # noqa: PLW0603 - one process has one count
    _left -= 1
    if _left == 0:
        import signal

        os.kill(os.getpid(), signal.SIGKILL)
