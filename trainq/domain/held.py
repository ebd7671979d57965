"""Why a job is held: a person, jobs it comes after, a time that has not come. Pure.

Several may hold one job at once; what is said of it is the first of them in this order: `user`, `dependency`, then the
time (`begin_time`, or `backoff` after an attempt).
"""

from __future__ import annotations

import re
from typing import Any, Final, Literal, NamedTuple

from trainq.base.errors import BadValue
from trainq.base.units import rfc3339
from trainq.base.words import quoted

Mode = Literal["ok", "any", "fail"]
MODES: Final[tuple[Mode, ...]] = ("ok", "any", "fail")


class Wish(NamedTuple):
    """A dependency as typed: which end of which job. `what` is `12` (an array, too), `12[3]`, `last`, `last~2` or `key:K`."""

    mode: Mode
    what: str

    @property
    def key(self) -> str | None:
        """The key it names, if it does."""
        return self.what[4:] if self.what.startswith("key:") else None


class After(NamedTuple):
    """A dependency as it is put in: on the job of this id, or (`is_place`) on the one at this place of the same call."""

    on: int
    mode: Mode
    is_place: bool = False


def read_after(text: str) -> tuple[Wish, ...]:
    """The dependencies in `ok:12,any:13`."""
    return tuple(_wish(word) for word in text.split(","))


def check_after(value: Any) -> tuple[Wish, ...]:
    """The same from JSON: a text, an id, or a list of them."""
    if isinstance(value, str):
        return read_after(value)
    items = value if isinstance(value, list) else [value]
    if not all(isinstance(item, (str, int)) and not isinstance(item, bool) for item in items):
        raise BadValue(f'a list such as ["ok:12", "any:13"] was expected, not {value!r}')
    return tuple(_wish(str(item)) for item in items)


def _wish(word: str) -> Wish:
    word = word.strip()
    head, _, rest = word.partition(":")
    mode = next((mode for mode in MODES if mode == head), None)
    what = word if mode is None else rest
    if not re.fullmatch(r"[0-9]+(\[[0-9]+\])?|last(~[0-9]+)?|key:.+", what, re.DOTALL):
        raise BadValue(f"not a dependency: {quoted(word)}; write it like ok:12, any:13, fail:14 or ok:key:K")
    return Wish(mode or "ok", what)


def is_met(mode: str, state: str) -> bool:
    """Whether a job that has ended so is what was asked for."""
    return mode == "any" or (mode == "ok") == (state == "done")


WANTED: Final[dict[str, str]] = {"ok": "to be done", "any": "to end", "fail": "to fail"}
"""What is waited for, after the job's name."""


def holds(on_hold: object, waits_for: int, due_at: float | None, begin_at: float | None, now: float) -> str | None:
    """The word for what holds a job that has not ended; None: nothing does, it may start."""
    if on_hold:
        return "user"
    if waits_for:
        return "dependency"
    if due_at is None or due_at <= now:
        return None
    return "begin_time" if due_at == begin_at else "backoff"


def check_times(begin_at: float | None, deadline_at: float | None, now: float, said: str = "") -> None:
    """It must be able to start before its deadline. Raises BadValue."""
    if deadline_at is not None and deadline_at <= max(now, begin_at or 0.0):
        late = "has passed" if deadline_at <= now else "is not after --begin"
        raise BadValue(f"--deadline {said or rfc3339(deadline_at)} {late}: it could never start")
