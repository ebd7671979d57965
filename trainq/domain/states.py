"""The states of a job, the moves between them, and the words that say why. Pure.

`held` not yet eligible, `pending` waiting, `running` claimed by a worker, then `done`, `errored`, `canceled` or
`skipped`. The database refuses every move that is not in `MOVES` (a trigger made from this table).
"""

from __future__ import annotations

from typing import Final, Literal, get_args

State = Literal["held", "pending", "running", "done", "errored", "canceled", "skipped"]
Side = Literal["user", "system"]

STATES: Final[tuple[State, ...]] = get_args(State)
ACTIVE: Final[tuple[State, ...]] = ("held", "pending", "running")
ENDED: Final[tuple[State, ...]] = ("done", "errored", "canceled", "skipped")

MOVES: Final[dict[State, tuple[State, ...]]] = {
    "held": ("pending", "canceled", "skipped"),
    "pending": ("running", "held", "canceled"),
    "running": ("done", "errored", "canceled", "pending", "held"),
    "done": (),
    "errored": ("pending", "held"),
    "canceled": ("pending", "held"),
    "skipped": ("held",),
}

USER_CAUSES: Final = (
    "exit", "signal", "spawn", "import", "data", "timeout", "stalled", "oom", "model", "checkpoint", "requeue_loop",
)  # fmt: skip
SYSTEM_CAUSES: Final = ("store", "poison")


def side_of(reason: str | None) -> Side | None:
    """Whose fault an `errored` reason is; None for any other word."""
    if reason in USER_CAUSES:
        return "user"
    if reason in SYSTEM_CAUSES:
        return "system"
    return None
