"""The options of `submit` that make an array of one job: `--array --sweep --params --sample`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from trainq.base.errors import BadValue, Usage
from trainq.base.words import quoted
from trainq.domain.request import Request

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trainq.domain.job import NewArray
    from trainq.domain.sweep import Axis, Task

OPTIONS: Final = (
    ("array", ("--array",), "0-99%8", "an array: a task for each number, of which so many (%N) run at once", False),
    ("sweep", ("--sweep",), "K=V,V…", "a task for each value; repeated: for each combination; V may be a JSON list", True),
    ("params", ("--params",), "FILE", "a task for each row of a .csv or .jsonl of parameters", False),
    ("sample", ("--sample",), "N", "only N of these tasks, taken at random by --seed", False),
)  # fmt: skip
NAMES: Final = tuple(row[0] for row in OPTIONS)


class Spread(NamedTuple):
    """The tasks of an array, each as a request of its own, and what the user should hear."""

    requests: list[Request]
    array: NewArray
    notes: list[str]


def is_asked_for(given: Mapping[str, Any]) -> bool:
    """Whether one of the options was given."""
    return any(is_given(given[name]) for name in NAMES)


def is_given(raw: Any) -> bool:
    """Whether an option was given. An empty word is one: a script whose variable is not set hears of it."""
    return raw is not None and raw is not False and raw not in ((), [])


def spread(request: Request, given: Mapping[str, Any]) -> Spread:
    """The tasks that these options make of a request. Raises BadValue, Usage."""
    from trainq.domain.array import Numbers, parse_array
    from trainq.domain.job import NewArray
    from trainq.domain.sweep import refuse_same, size_of, tasks

    numbers = Numbers(None, None)
    if given["array"] is not None:
        numbers = _told("--array", parse_array, given["array"])
    axes = _axes(given)
    if numbers.values is None and not axes:
        what = "--sample" if given["array"] is None else "a limit"
        raise Usage(f"{what} of which tasks?", hint="trainq submit --sweep lr=1e-3,1e-4 -- COMMAND")
    refuse_same([request.params or (), *(axis.names for axis in axes)])
    sample = None if given["sample"] is None else _told("--sample", _count, given["sample"])
    found = tasks(numbers.values, axes, sample, request.values.get("seed", 0))
    size = size_of(numbers.values, axes)
    notes = [f"--sample {sample}: there are only {size}, all of them are taken"] if sample and sample > size else []
    return Spread([_request(request, task, len(found)) for task in found], NewArray(numbers.most), notes)


def _request(whole: Request, task: Task, count: int) -> Request:
    place = {"index": task.place, "count": count}
    if task.number is not None:
        place["number"] = task.number
    params = {**(whole.params or {}), **task.point.params}
    where = task.point.where
    return Request(
        whole.values, whole.type, params or None, whole.argv, whole.shell, whole.from_text, where, task.point.as_json, place
    )  # fmt: skip


def _axes(given: Mapping[str, Any]) -> Sequence[Axis]:
    """The rows of the file, then each sweep as typed: the last one turns fastest."""
    from trainq.domain.sweep import parse_rows, parse_sweep

    axes = []
    if given["params"] is not None:
        axes.append(_told("--params", lambda name: parse_rows(_read(name), name), given["params"]))
    return axes + [_told("--sweep", parse_sweep, text) for text in given["sweep"] or ()]


def _read(name: str) -> bytes:
    try:
        with open(name, "rb") as file:
            return file.read()
    except OSError as error:
        raise BadValue(f"{name or quoted(name)}: {(error.strerror or 'cannot be read').lower()}") from None


def _count(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 10 and int(text)):
        raise BadValue(f"a whole number from 1 was expected, not {text!r}")
    return int(text)


def _told(option: str, read: Any, text: str) -> Any:
    """What is read of an option's word; what is wrong with it is told with the option's name."""
    try:
        return read(text)
    except BadValue as error:
        raise BadValue(f"{option}: {error.message}", hint=error.hint) from None
