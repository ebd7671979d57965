"""From selectors to ids. What a word names is the store's answer; nothing is changed here."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from trainq.base.errors import NotFound
from trainq.base.words import is_text, quoted
from trainq.domain.selectors import Filter, Fingerprint, Ids, Key, Last, Named, Tasks, parse_selector
from trainq.store import arrays, reads

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trainq.domain.selectors import Selector
    from trainq.store.session import Transaction

EVERYTHING = Filter()


class Selected(NamedTuple):
    """The ids that were found, each once, in the order named, and the words that found nothing.

    `one` says that a single job was meant: then its absence is an error, and its answer is a card. `arrays` are those
    that were meant as a whole; their tasks are among the ids.
    """

    ids: list[int]
    unknown: list[str]
    one: bool
    arrays: tuple[int, ...] = ()
    array: int | None = None  # if it is all that was meant


def select(tx: Transaction, words: Sequence[str], which: Filter, user_id: int, *, past: bool = False) -> Selected:
    """The jobs that the words name, cut to the filter; without words, those that fit the filter.

    `past`: pruned jobs count too. Raises NotFound when the only word finds nothing, BadValue for a broken one.
    """
    selectors = [parse_selector(word) for word in words]
    if not words:
        return Selected(reads.fitting(tx, which), [], one=False)
    ids: dict[int, None] = {}
    unknown: list[str] = []
    whole: dict[int, None] = {}
    for word, selector in zip(words, selectors, strict=True):
        found, missing, meant = _find(tx, selector, word, user_id, past=past)
        ids.update(dict.fromkeys(found))
        unknown += missing
        whole.update(dict.fromkeys(meant))
    if unknown and not ids and len(unknown) == 1:
        raise _nothing(unknown[0])
    chosen = list(ids)
    if which != EVERYTHING:
        fitting = set(reads.fitting(tx, which))
        chosen = [number for number in chosen if number in fitting]
        return Selected(chosen, unknown, one=len(words) == 1 and not whole and _is_one(selectors[0], chosen))
    alone = next(iter(whole)) if len(words) == len(whole) == 1 and _is_one(selectors[0], [0]) else None
    one = len(words) == 1 and not whole and _is_one(selectors[0], chosen)
    return Selected(chosen, unknown, one, tuple(whole), alone)


def _is_one(selector: Selector, ids: list[int]) -> bool:
    if isinstance(selector, (Ids, Tasks)):
        return selector.single is not None
    return isinstance(selector, Last) and len(ids) == 1


_Found = tuple[list[int], list[str], list[int]]
"""Ids, words that found nothing, and arrays that were meant as a whole."""


def _find(tx: Transaction, selector: Selector, word: str, user_id: int, *, past: bool) -> _Found:
    if isinstance(selector, Ids):
        return _of_ranges(tx, selector, past=past)
    if not is_text(word):
        return [], [word], []
    found: list[int] = []
    whole: list[int] = []
    if isinstance(selector, Last):
        ids = reads.submission(tx, user_id, selector.back)
        whole = arrays.between(tx, ids[0] - 1, ids[0] - 1) if ids else []
        found = reads.ids_between(tx, ids[0], ids[-1], past_too=past) if ids else []
    elif isinstance(selector, Tasks):
        found = arrays.tasks(tx, selector.id, selector.ranges, past_too=past)
    elif isinstance(selector, Key):
        found = reads.ids_with(tx, "key", selector.text, past_too=past)
    elif isinstance(selector, Fingerprint):
        found = reads.ids_with(tx, "fingerprint", selector.prefix, past_too=past)
    elif isinstance(selector, Named):
        found = reads.ids_with(tx, "name", selector.name, past_too=past)
        whole = arrays.named(tx, selector.name) if found else []
    return found, [] if found else [word], whole if found else []


def _of_ranges(tx: Transaction, selector: Ids, *, past: bool) -> _Found:
    """A single id must be there; of a range, what there is. An array's number stands for all its tasks."""
    found: list[int] = []
    missing: list[str] = []
    whole: list[int] = []
    for first, last in selector.ranges:
        ids = reads.ids_between(tx, first, last, past_too=past)
        for number in arrays.between(tx, first, last):
            tasks = arrays.tasks(tx, number, past_too=past)
            ids += tasks
            whole += [number] if tasks else []
        found += ids
        if not ids:
            missing.append(str(first) if first == last else f"{first}-{last}")
    return found, missing, whole


def _nothing(word: str) -> NotFound:
    if word.startswith("last"):
        return NotFound(f"no such job: {quoted(word)}; you have not submitted that many", hint="trainq status --all")
    plain = word.isdecimal() or word.endswith("]")
    return NotFound(f"no such job: {word if plain else quoted(word)}", hint="trainq status --all")
