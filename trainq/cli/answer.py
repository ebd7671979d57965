"""What a command returns: the document for programs, the text for people, the ids for scripts. It prints nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence


class Table(NamedTuple):
    """Rows of cells. Without columns there is no heading, and the first cell of a row is its label.

    On a terminal that is too narrow the columns in `spare` are left out, in this order, and those in `elastic` (None: the
    last one) are cut; all others stay whole.
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    elastic: Sequence[str] | None = None
    spare: Sequence[str] = ()


class Answer(NamedTuple):
    """The result of a command. `text` is called only when people read it; `exit` is the exit status."""

    kind: str
    doc: Mapping[str, Any]
    text: Callable[[], Iterable[str | Table]]
    ids: Sequence[Any] = ()
    exit: int = 0
    notes: Sequence[str] = ()


class Silence(NamedTuple):
    """The result of a command that has written its answer already, as a stream."""

    exit: int = 0
