"""What becomes of a job that waits when what was asked for it is changed. Pure.

Only what says when, where and how long a job runs is changed (`editable` in `FIELDS`). What it executes and what it is
known by stays: that would be another job.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from trainq.base.errors import BadValue
from trainq.base.units import exact_duration, rfc3339
from trainq.base.words import nearest, printable, quoted
from trainq.domain.devices import CPU
from trainq.domain.job import RETRY_ON
from trainq.domain.request import BY_NAME, EXECUTED, FIELDS, IN_SPEC, check_warn
from trainq.domain.shape import MIB, asked_gpus, size_words

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from trainq.domain.request import Field

EDITABLE: Final = tuple(field.name for field in FIELDS if field.editable)
COLUMNS: Final = {
    "name": "name", "tag": "tags", "priority": "priority", "queue": "queue", "time": "time_s", "grace": "grace_s",
    "retries": "retries", "max_attempts": "max_attempts", "begin": "begin_at", "deadline": "deadline_at",
}  # fmt: skip
"""The columns of those that stand in the job's row; the others stand in its document."""
_GPUS: Final = ("gpus", "gpu_type", "vram")
_SHOWN: Final = 80
"""So much of a text is said of it in the history."""


class Edited(NamedTuple):
    """A job's columns (those of `COLUMNS`) and its document, as they will be."""

    row: dict[str, Any]
    spec: dict[str, Any]


def read_sets(words: Iterable[str]) -> dict[str, Any]:
    """The values of `NAME=VALUE`; None for `NAME=`, which goes back to what it is when nobody asks. Raises BadValue."""
    found: dict[str, Any] = {}
    for word in words:
        name, equals, text = word.partition("=")
        name = name.removeprefix("--").replace("-", "_")
        if not equals:
            raise BadValue(f"NAME=VALUE was expected, not {quoted(word)}")
        field = _field(name)
        if name in found:
            raise BadValue(f"{quoted(name)} is given twice")
        try:
            found[name] = _read(field, text) if text else None
        except BadValue as error:
            raise BadValue(f"{name}: {error.message}") from None
    return found


def _field(name: str) -> Field:
    field = BY_NAME.get(name)
    if field is None and name not in EXECUTED:
        near = nearest(name, EDITABLE)
        raise BadValue(f"nothing of that name is edited: {quoted(name)}", hint=near or ", ".join(EDITABLE))
    if field is None or not field.editable:
        hint = "trainq hold" if name == "hold" else "trainq cancel, then submit it anew"
        raise BadValue(f"{name} of a job is not edited", hint=hint)
    return field


def _read(field: Field, text: str) -> Any:
    return tuple(field.read(word) for word in text.split(",")) if field.many else field.read(text)


def edited(row: Mapping[str, Any], spec: Mapping[str, Any], sets: Mapping[str, Any]) -> Edited:
    """The job with these values; None takes a value away. `begin` and `deadline` are seconds since 1970 here.

    Raises BadValue where they contradict each other or what stays.
    """
    columns = {column: row[column] for column in COLUMNS.values()}
    doc = dict(spec)
    for name, value in sets.items():
        if name == "tag":
            columns["tags"] = ",".join(("", *value, "")) if value else None
        elif name in COLUMNS:
            columns[COLUMNS[name]] = value
        else:
            _put(doc, IN_SPEC.get(name, name), value)
    if sets.keys() & {*_GPUS}:
        _put_gpus(doc, spec, sets)
    if columns["retries"]:
        doc.setdefault("retry_on", RETRY_ON)
    check_warn(doc.get("warn_s"), columns["time_s"])
    _check_used(row, columns, sets)
    return Edited(columns, doc)


def _check_used(row: Mapping[str, Any], columns: Mapping[str, Any], sets: Mapping[str, Any]) -> None:
    """What it has cost already cannot be less than allowed; and a deadline is for the first start. Raises BadValue."""
    if columns["retries"] < row["user_used"]:
        raise BadValue(f"retries {columns['retries']} is below the {row['user_used']} that it has used")
    if columns["max_attempts"] <= row["system_used"]:
        raise BadValue(f"max_attempts {columns['max_attempts']} is used up: it has lost {row['system_used']} already")
    if sets.get("deadline") is not None and row["attempt"]:
        raise BadValue("it has started once, and a deadline is for the first start")


def _put(doc: dict[str, Any], name: str, value: Any) -> None:
    if value is None:
        doc.pop(name, None)
    else:
        doc[name] = value


def _put_gpus(doc: dict[str, Any], spec: Mapping[str, Any], sets: Mapping[str, Any]) -> None:
    """GPUs as a submit would ask for them: what is not named stays, but none takes type and memory with it."""
    asked = {name: sets.get(name, spec.get(name)) for name in _GPUS}
    if sets.get("gpus") == 0 or sets.get("gpu_type") == CPU:
        asked |= {name: sets.get(name) for name in _GPUS}
    gpus, gpu_type = asked_gpus(asked["gpus"], asked["gpu_type"], asked["vram"])
    for name, value in (("gpus", gpus), ("gpu_type", gpu_type), ("vram", asked["vram"])):
        _put(doc, name, value or None)


def differences(before: Edited, after: Edited) -> dict[str, str]:
    """What has changed, by name, in words: `2h -> 8h`."""
    found = {}
    for name in EDITABLE:
        old, new = (_value(each, name) for each in (before, after))
        if old != new:
            found[name] = f"{_words(name, old)} -> {_words(name, new)}"
    return found


def _value(job: Edited, name: str) -> Any:
    value = job.row[COLUMNS[name]] if name in COLUMNS else job.spec.get(IN_SPEC.get(name, name))
    return list(value) if isinstance(value, tuple) else value


def _words(name: str, value: Any) -> str:
    if value is None:
        return "none"
    if BY_NAME[name].metavar == "T" and isinstance(value, float):
        return exact_duration(value)
    if BY_NAME[name].metavar == "TIME":
        return str(rfc3339(value))
    if BY_NAME[name].metavar == "SIZE":
        return size_words(-(-value // MIB))
    if isinstance(value, list):
        return ",".join(map(str, value))
    text = printable(str(value).strip(",") if name == "tag" else str(value))
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "..."
