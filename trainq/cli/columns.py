"""The columns of lists of jobs: a heading and how its cell is read from a row."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trainq.base.errors import BadValue
from trainq.base.units import local_short, show_duration
from trainq.cli.answer import Table
from trainq.cli.printer import is_terminal
from trainq.cli.words import short_values
from trainq.domain.array import bar, ref_of, words_of
from trainq.domain.documents import document
from trainq.domain.states import ENDED
from trainq.ops.cards import queued_s, run_s, tags_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from trainq.store.reads import Row

ELASTIC = ("name", "info", "command", "params", "metrics", "tags")
SPARE = ("queue", "user")
DEFAULT = ("id", "name", "state", "reason", "queue", "user", "submitted", "run", "info")


def table(rows: Sequence[Row], names: Sequence[str], now: float) -> Table:
    """The rows as cells."""
    cells = [CELLS[name] for name in names]
    spare = SPARE if tuple(names) == DEFAULT else ()
    return Table(names, [[read(row, now) for read in cells] for row in rows], ELASTIC, spare)


def chosen(text: str | None) -> Sequence[str]:
    """The columns of `--columns a,b`. Raises BadValue with those there are."""
    if text is None:
        return DEFAULT
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in CELLS:
            raise BadValue(f"no such column: {name!r}; columns are {', '.join(CELLS)}")
    if not names:
        raise BadValue(f"--columns names none; columns are {', '.join(CELLS)}")
    return names


def _plain(name: str) -> Callable[[Row, float], str]:
    def read(row: Row, _now: float) -> str:
        value = row.get(name)
        return "" if value is None else str(value)

    return read


def _time(name: str) -> Callable[[Row, float], str]:
    def read(row: Row, now: float) -> str:
        value = row.get(name)
        return "" if value is None else local_short(value, now)

    return read


def _lasted(measure: Callable[[Row, float], float | None]) -> Callable[[Row, float], str]:
    def read(row: Row, now: float) -> str:
        seconds = measure(row, now)
        return "" if seconds is None else show_duration(seconds)

    return read


def ran_s(row: Row, now: float) -> float | None:
    """How long it ran; None for what was never started, and for an array."""
    return None if (row["state"] in ENDED or "counts" in row) and row.get("started_at") is None else run_s(row, now)


def percent(fraction: float | None) -> str:
    """A fraction for people."""
    return "" if fraction is None else f"{fraction:.0%}"


def _id(row: Row, _now: float) -> str:
    return ref_of(row)


def _progress(row: Row, _now: float) -> str:
    if "counts" in row:
        return percent(sum(row["counts"][state] for state in ENDED) / max(1, row["count"]))
    return percent(1.0 if row["state"] == "done" else row.get("fraction"))


def _tags(row: Row, _now: float) -> str:
    return ",".join(tags_of(row))


def model(row: Row, _now: float = 0.0) -> str:
    """The version a job made, as it is named on the command line."""
    return f"{row['model_key']}@{row['model_version']}" if row.get("model_version") else ""


def _metrics(row: Row, _now: float) -> str:
    return short_values(document(row["metrics"])) if row.get("metrics") else ""


def command(job: Mapping[str, Any]) -> str:
    """The command of a job's document, as it would be typed."""
    import shlex

    found = job["command"]
    return found["shell"] or (shlex.join(found["argv"]) if found["argv"] else "")


def _command(row: Row, _now: float) -> str:
    return command(row["document"]) if "counts" not in row else ""


def _params(row: Row, _now: float) -> str:
    return short_values(row["document"]["params"]) if "counts" not in row else ""


def _info(row: Row, now: float) -> str:
    """The most useful thing in few words: how far it is, what it made, or what went wrong."""
    if "counts" in row:
        return f"{bar(row['counts'], 8)} {words_of(row['counts'])}" if is_terminal() else words_of(row["counts"])
    if row["state"] == "running":
        words = (_progress(row, now), row.get("note") or row.get("stage") or "")
        return " ".join(word for word in words if word)
    if row["state"] == "done":
        return model(row) or str(row.get("message") or "")
    error = row.get("error") or row.get("message") or ""
    lines = [line for line in error.splitlines() if line.strip()]
    if not lines and row["state"] in ENDED and row.get("exit_code") is not None:
        return f"exit {row['exit_code']}"
    return lines[0].strip() if lines else ""


OF_DOCUMENT = ("command", "params")
"""Columns that are read from the job's document, which the row then has to hold as `document`."""
CELLS: dict[str, Callable[[Any, float], str]] = {
    "id": _id,
    **{name: _plain(name) for name in ("name", "state", "reason", "side", "stage", "queue", "user", "type", "key")},
    **{name: _plain(name) for name in ("priority", "attempt", "worker", "host", "pid", "fingerprint", "exit_code")},
    "tags": _tags,
    "submitted": _time("submitted_at"),
    "started": _time("started_at"),
    "ended": _time("ended_at"),
    "queued": _lasted(queued_s),
    "run": _lasted(ran_s),
    "progress": _progress,
    "model": model,
    "metrics": _metrics,
    "command": _command,
    "params": _params,
    "info": _info,
}
