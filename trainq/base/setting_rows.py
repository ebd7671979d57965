"""Every setting as one row, how its value is read and spelled, and the sample file made of the rows. Pure.

A value that does not fit is BadValue; who reads adds the file and line, or the variable.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from trainq.base.errors import BadValue
from trainq.base.units import duration, exact_duration, exact_size, size
from trainq.base.words import did_you_mean, quoted

DEFAULT_QUEUE: Final = "default"


class Row(NamedTuple):
    """One setting. `kind` names its reader, `least` is the smallest value, `example` stands in the sample."""

    section: str
    name: str
    kind: str
    default: Any
    help: str
    least: float = 0
    choices: tuple[str, ...] = ()
    example: str = ""


ROWS: Final[tuple[Row, ...]] = (
    Row("store", "url", "text", "", "empty: SQLite in the root"),
    Row("times", "heartbeat", "duration", 10.0, "heartbeat < holder_limit < zombie_after", 0.01),
    Row("times", "zombie_after", "duration", 300.0, "no heartbeat for so long: the job is lost", 0.01),
    Row("times", "holder_limit", "duration", 240.0, "no confirmed heartbeat for so long: frozen", 0.01),
    Row("times", "poll", "duration", 1.0, "how often to look for news where no wake-up comes", 0.01),
    Row("times", "grace", "duration", 30.0, "between TERM and KILL"),
    Row("times", "hook_limit", "duration", 60.0, "how long an --on-end line may run", 0.01),
    Row("times", "lock_wait", "duration", 30.0, "how long to queue for the lock", 0.01),
    Row("keep", "jobs", "duration", 3600.0, "rows and training sets of ended jobs"),
    Row("keep", "runs", "duration", 30 * 86400.0, "specs, logs, run directories"),
    Row("keep", "history", "duration", 90 * 86400.0, "changes of state"),
    Row("keep", "models", "count", 3, "versions per key, 0: all"),
    Row("keep", "snapshots", "duration", 30 * 86400.0, "frozen code"),
    Row("keep", "file_grace", "duration", 600.0, "before a file no row names is deleted"),
    Row("limits", "queue_size", "count", 0, "jobs that may wait, every task of an array counts, 0: no limit"),
    Row("limits", "max_attempts", "count", 3, "how often a lost job is started again", 1),
    Row("limits", "breaker", "count", 5, "errored ends in a row that stop a queue, 0: off"),
    Row("limits", "snapshot_size", "size", 100 << 20, "how much code a submit freezes", 1),
    Row("limits", "reserve_after", "duration", 3600.0, "then a big job that waits gets the next free slots"),
    Row("limits", "gpus", "counts", {}, "GPUs in use at once, by type", example="{ a100 = 8, k80 = 0 }"),
    Row(
        "limits", "per_user", "counts", {}, "in use at once by one user", 0, ("gpus", "running"),
        "{ gpus = 4, running = 10 }",
    ),
    Row("worker", "slots", "count", 2, "jobs at once, 0: answer and care, never train"),
    Row("worker", "foreign_gpus", "choice", "avoid", 'GPUs others use; or "ignore"', 0, ("avoid", "ignore")),
    Row("queues", "names", "names", (DEFAULT_QUEUE,), "the queues there are", example='["default", "gpu"]'),
    Row("queues", "strict_fifo", "flag", False, "nothing passes a job that waits for room"),
    Row("queues", "fair", "flag", False, "users take turns"),
)  # fmt: skip
SECTIONS: Final[tuple[str, ...]] = ("store", "times", "keep", "limits", "worker", "queues")

_TYPES_SAMPLE: Final = """
## A model type: what `trainq submit wine --data wine.json --param alpha=0.3` runs.
#[types.wine]
#run = ["python", "train_wine.py"]  # or: call = "module:function", with python = "python3"
#data = "optional"       # or "required", "none"
#model = "required"      # or "optional"
#key = "wine"            # may use {user} {type} {param.NAME}
#keep = 3                # versions of each key, 0: all
#time = "2h"             # then the job is ended
#stall_after = "30m"     # no progress for so long: the job is ended
#retries = 0
#queue = "default"
#[types.wine.params]
#alpha = { type = "float", default = 0.5, min = 0.0 }  # type: int, float, bool, text, json; choices = [...]
"""


def read_value(row: Row, raw: Any, *, spelled: bool) -> Any:
    """The value of a setting from TOML, or `spelled` in a variable. BadValue says what was expected."""
    if row.kind == "duration":
        return _duration(row, raw)
    if row.kind == "size":
        return _size(row, raw)
    if row.kind == "count":
        return _count(_whole(raw) if spelled else raw, row.least)
    if row.kind == "flag":
        return _flag(raw, spelled=spelled)
    if row.kind == "names":
        return _names(raw.split(",") if spelled else raw)
    if row.kind == "counts":
        return _counts(row, _pairs(raw) if spelled else raw)
    if not isinstance(raw, str):
        raise BadValue(f"expected text, got {quoted(raw)}")
    if row.choices and raw not in row.choices:
        raise BadValue(f"expected {' or '.join(row.choices)}, got {quoted(raw)}")
    return raw


def _duration(row: Row, raw: Any) -> float:
    if isinstance(raw, bool) or not isinstance(raw, (int, float, str)):
        raise BadValue(f'expected a duration such as "{exact_duration(row.default)}", got {quoted(raw)}')
    seconds = duration(raw if isinstance(raw, str) else str(quoted(raw)))
    if seconds < row.least:
        raise BadValue(f"expected at least {exact_duration(row.least)}, got {quoted(raw)}")
    return seconds


def _size(row: Row, raw: Any) -> int:
    if isinstance(raw, bool) or not isinstance(raw, (int, float, str)):
        raise BadValue(f'expected a size such as "{exact_size(row.default)}", got {quoted(raw)}')
    found = size(raw if isinstance(raw, str) else str(quoted(raw)))
    if found < row.least:
        raise BadValue(f"expected at least {exact_size(int(row.least))}, got {quoted(raw)}")
    return found


def _count(raw: Any, least: float = 0) -> int:
    if isinstance(raw, bool) or not isinstance(raw, int):
        raise BadValue(f"expected a whole number, got {quoted(raw)}")
    if not least <= raw < 2**31:
        raise BadValue(f"expected a number from {least:.0f} to {2**31 - 1}, got {quoted(raw)}")
    return raw


def _whole(raw: str) -> Any:
    return int(raw) if raw.isascii() and raw.isdigit() and len(raw) < 20 else raw


def _flag(raw: Any, *, spelled: bool) -> bool:
    if spelled and str(raw).lower() in ("true", "1", "yes", "on"):
        return True
    if spelled and str(raw).lower() in ("false", "0", "no", "off"):
        return False
    if not isinstance(raw, bool):
        raise BadValue(f"expected true or false, got {quoted(raw)}")
    return raw


def _names(raw: Any) -> tuple[str, ...]:
    if not isinstance(raw, list):
        raise BadValue(f'expected a list such as ["default", "gpu"], got {quoted(raw)}')
    names = [DEFAULT_QUEUE]
    for name in raw:
        if not isinstance(name, str) or not name or name[0] in ".-" or not _is_word(name):
            raise BadValue(f"a queue's name is letters, digits, '.', '_' and '-', got {quoted(name)}")
        if name not in names:
            names.append(name)
    return tuple(names)


def _is_word(name: str) -> bool:
    return all(letter.isalnum() or letter in "._-" for letter in name)


def _pairs(raw: str) -> Any:
    """`a100=8,k80=0` of a variable as a table."""
    pairs = [pair.partition("=") for pair in raw.split(",") if pair.strip()]
    return {name.strip(): _whole(number.strip()) for name, _, number in pairs}


def _counts(row: Row, raw: Any) -> dict[str, int]:
    if not isinstance(raw, dict):
        raise BadValue(f"expected a table such as {row.example}, got {quoted(raw)}")
    for name, number in raw.items():
        if row.choices and name not in row.choices:
            raise BadValue(f"unknown key {quoted(name)}{did_you_mean(name, row.choices)}")
        try:
            _count(number)
        except BadValue as error:
            raise BadValue(f"{quoted(name)}: {error.message}") from None
    return dict(raw)


def spelled(row: Row, value: Any) -> Any:
    """The value as the file would spell it; a password is hidden."""
    if row.kind == "duration":
        return exact_duration(value)
    if row.kind == "size":
        return exact_size(value)
    if row.name == "url":
        head, at, tail = value.rpartition("@")
        scheme, slashes, user = head.partition("://")
        return f"{scheme}{slashes}{user.partition(':')[0]}{':***' if ':' in user else ''}{at}{tail}"
    return list(value) if row.kind == "names" else value


def sample() -> str:
    """The `trainq.toml` that `init` writes: every setting in use with default and help, all commented out."""
    lines = [
        "## Settings of this queue. Take a line's `#` away to set it; shown are the defaults, and examples.",
        "## A TRAINQ_<SECTION>_<NAME> variable wins over this file; `trainq doctor` shows what holds.",
    ]
    shown = [row for row in ROWS if row.name != "url"]
    for section in dict.fromkeys(row.section for row in shown):
        lines += ["", f"#[{section}]"]
        lines += [
            f"#{row.name} = {row.example or _toml(row)}".ljust(38) + f"  # {row.help}"
            for row in shown
            if row.section == section
        ]
    return "\n".join(lines) + "\n" + _TYPES_SAMPLE


def _toml(row: Row) -> str:
    if row.kind == "flag":
        return "true" if row.default else "false"
    if row.kind == "count":
        return str(row.default)
    return f'"{spelled(row, row.default)}"'
