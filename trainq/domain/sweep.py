"""Sweeps: from values that are listed to the tasks of an array, each with its own parameters. Pure.

Every `--sweep` is an axis, and so are the rows of a `--params` file and the numbers of `--array`; the tasks are their
product, the last axis turning fastest. No more of it is made than is taken: a sample of a grid of 10^12 points is small.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

from trainq.base.errors import BadValue
from trainq.base.words import quoted
from trainq.domain.array import LARGEST_INDEX, MOST_TASKS, too_many
from trainq.domain.params import check_name, parse_value, split_assignment

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

NOTHING: frozenset[str] = frozenset()


class Point(NamedTuple):
    """Parameters of a task. Those in `as_json` are values of JSON, the others as they were typed."""

    params: Mapping[str, Any]
    as_json: frozenset[str] = NOTHING
    where: str = ""  # the line of a file


class Axis(NamedTuple):
    """One factor of the product: the parameters that it names, and the points there are."""

    names: tuple[str, ...]
    points: Sequence[Point]


class Task(NamedTuple):
    """One task of an array: its index there, the number of `--array` it has, and its parameters."""

    place: int
    number: int | None
    point: Point


def parse_sweep(text: str) -> Axis:
    """`lr=1e-3,1e-4`, or a list of JSON (`lr=["a,b", null]`). BadValue for any other form, and a value that comes twice."""
    name, listed = split_assignment(text)
    values: list[Any] = listed.split(",")
    as_json = NOTHING
    if listed.startswith("["):
        values = parse_value(listed)
        if not isinstance(values, list):
            raise BadValue(f"{name}: not a list of JSON: {quoted(listed)}")
        as_json = frozenset((name,))
    if not values or ("" in values and not as_json):
        raise BadValue(f'{name}: a value is missing in {quoted(text)}; an empty text is written {name}=["", …]')
    _refuse_twice(name, values, is_json=bool(as_json))
    return Axis((name,), [Point({name: value}, as_json) for value in values])


def _refuse_twice(name: str, values: Sequence[Any], *, is_json: bool) -> None:
    seen = set()
    for value in values:
        mark = json.dumps(value, sort_keys=True) if is_json else value
        if mark in seen:
            raise BadValue(f"{name}: {quoted(value)} is given twice")
        seen.add(mark)


def parse_rows(data: bytes, name: str) -> Axis:
    """The rows of a file of parameters; its suffix says what it is. BadValue names the file and the line."""
    kind = name.lower().rpartition(".")[2]
    if kind not in ("csv", "jsonl"):
        raise BadValue(f"{name}: a file of parameters ends in .csv or .jsonl")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        number = data.count(b"\n", 0, error.start) + 1
        raise BadValue(f"{name}, line {number}: not UTF-8") from None
    points = list(_csv(text, name) if kind == "csv" else _jsonl(text, name))
    if not points:
        raise BadValue(f"{name}: no row in it")
    names = dict.fromkeys(each for point in points for each in point.params)
    return Axis(tuple(names), points)


def _csv(text: str, name: str) -> Iterator[Point]:
    import csv
    import io

    csv.field_size_limit(max(csv.field_size_limit(), len(text)))  # a value may be as long as one of JSON
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    head: list[str] | None = None
    try:
        for cells in reader:
            where = f"{name}, line {reader.line_num}"
            if not cells:
                continue
            if head is None:
                head = _head(cells, where)
            elif len(cells) != len(head):
                raise BadValue(f"{where}: {len(cells)} values for {len(head)} parameters")
            else:
                yield Point(dict(zip(head, cells, strict=True)), NOTHING, where)
    except csv.Error as error:
        raise BadValue(f"{name}, line {reader.line_num}: not CSV: {error}") from None


def _head(cells: Sequence[str], where: str) -> list[str]:
    head = [cell.strip() for cell in cells]
    for place, cell in enumerate(head):
        try:
            check_name(cell)
        except BadValue as error:
            raise BadValue(f"{where}: {error.message}") from None
        if cell in head[:place]:
            raise BadValue(f"{where}: {quoted(cell)} stands there twice")
    return head


def _jsonl(text: str, name: str) -> Iterator[Point]:
    for number, line in enumerate(text.split("\n"), 1):
        if not line or line.isspace():
            continue
        where = f"{name}, line {number}"
        try:
            found = json.loads(line, object_pairs_hook=_once)
        except BadValue as error:
            raise BadValue(f"{where}: {error.message}") from None
        except (ValueError, RecursionError) as error:
            raise BadValue(f"{where}: not JSON: {str(error).partition(chr(10))[0]}") from None
        if not isinstance(found, dict):
            raise BadValue(f"{where}: an object of parameters was expected")
        yield Point(found, frozenset(found), where)


def _once(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """An object of JSON; of a name that stands there twice nobody knows which value is meant, as in a head of CSV."""
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise BadValue(f"{quoted(next(name for name in names if names.count(name) > 1))} stands there twice")
    return found


def refuse_same(named: Iterable[Iterable[str]]) -> None:
    """A parameter has one place: BadValue for one that two axes name, or an axis and `--param`."""
    seen: set[str] = set()
    for names in named:
        for name in names:
            if name in seen:
                raise BadValue(f"parameter {name} is given twice, by --param, --sweep or --params")
            seen.add(name)


def size_of(numbers: Sequence[int] | None, axes: Sequence[Axis]) -> int:
    """How many tasks the whole product has."""
    size = 1 if numbers is None else len(numbers)
    for axis in axes:
        size *= len(axis.points)
    return size


def tasks(numbers: Sequence[int] | None, axes: Sequence[Axis], sample: int | None = None, seed: int = 0) -> list[Task]:
    """The tasks of the product, or so many of it, taken by `seed`. BadValue for more than an array may have, or an index
    that no store can hold.

    Without numbers they are counted from 0. With them a task's index is its number, or (where each number has several
    points) the number times the points plus the place among them, so that it is one task's own.
    """
    size, points = size_of(numbers, axes), size_of(None, axes)
    wanted = size if sample is None else min(sample, size)
    if wanted > MOST_TASKS:
        raise too_many(wanted)
    found = []
    for place, position in enumerate(range(size) if wanted == size else sampled(size, wanted, seed)):
        which, at = divmod(position, points)
        number = None if numbers is None else numbers[which]
        index = place if number is None else number * points + at
        if index > LARGEST_INDEX:
            raise BadValue(f"task {index} is more than a number of a task may be", hint="--array with smaller numbers")
        found.append(Task(index, number, _point(axes, at)))
    return found


def _point(axes: Sequence[Axis], position: int) -> Point:
    """The point at this place of the grid."""
    chosen: list[Point] = []
    for axis in reversed(axes):
        position, at = divmod(position, len(axis.points))
        chosen.append(axis.points[at])
    if len(chosen) == 1:
        return chosen[0]
    params: dict[str, Any] = {}
    for point in reversed(chosen):
        params.update(point.params)
    where = next((point.where for point in chosen if point.where), "")
    return Point(params, NOTHING.union(*(point.as_json for point in chosen)), where)


def sampled(size: int, wanted: int, seed: int) -> list[int]:
    """So many different places below `size`, rising: the same for the same seed, by whatever Python. (Floyd's way: each
    set of places is as likely as any other.)"""
    from hashlib import sha256

    chosen: set[int] = set()
    for last in range(size - wanted, size):
        digest = sha256(f"trainq {seed} {size} {last}".encode()).digest()
        place = int.from_bytes(digest) % (last + 1)
        chosen.add(last if place in chosen else place)
    return sorted(chosen)
