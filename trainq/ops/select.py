"""From selectors to ids. What a word names is the store's answer; nothing is changed here."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from trainq.base.errors import NotFound
from trainq.base.words import quoted
from trainq.domain.selectors import Filter, Fingerprint, Ids, Key, Last, Named, parse_selector
from trainq.store import reads

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trainq.domain.selectors import Selector
    from trainq.store.session import Transaction

EVERYTHING = Filter()


class Selected(NamedTuple):
    """The ids that were found, each once, in the order named, and the words that found nothing.

    `one` says that a single job was meant: then its absence is an error, and its answer is a card.
    """

    ids: list[int]
    unknown: list[str]
    one: bool


def select(tx: Transaction, words: Sequence[str], which: Filter, user_id: int, *, past: bool = False) -> Selected:
    """The jobs that the words name, cut to the filter; without words, those that fit the filter.

    `past`: pruned jobs count too. Raises NotFound when the only word finds nothing, BadValue for a broken one.
    """
    selectors = [parse_selector(word) for word in words]
    if not words:
        return Selected(reads.fitting(tx, which), [], one=False)
    ids: dict[int, None] = {}
    unknown: list[str] = []
    for word, selector in zip(words, selectors, strict=True):
        found, missing = _find(tx, selector, word, user_id, past=past)
        ids.update(dict.fromkeys(found))
        unknown += missing
    if unknown and not ids and len(unknown) == 1:
        raise _nothing(unknown[0])
    chosen = list(ids)
    if which != EVERYTHING:
        fitting = set(reads.fitting(tx, which))
        chosen = [number for number in chosen if number in fitting]
    return Selected(chosen, unknown, one=len(words) == 1 and _is_one(selectors[0], chosen))


def _is_one(selector: Selector, ids: list[int]) -> bool:
    if isinstance(selector, Ids):
        return selector.single is not None
    return isinstance(selector, Last) and len(ids) == 1


def _find(tx: Transaction, selector: Selector, word: str, user_id: int, *, past: bool) -> tuple[list[int], list[str]]:
    if isinstance(selector, Ids):
        return _of_ranges(tx, selector, past=past)
    if not _is_text(word):
        return [], [word]
    found: list[int] = []
    if isinstance(selector, Last):
        ids = reads.submission(tx, user_id, selector.back)
        found = reads.ids_between(tx, ids[0], ids[-1], past_too=past) if ids else []
    elif isinstance(selector, Key):
        found = reads.ids_with(tx, "key", selector.text, past_too=past)
    elif isinstance(selector, Fingerprint):
        found = reads.ids_with(tx, "fingerprint", selector.prefix, past_too=past)
    elif isinstance(selector, Named):
        found = reads.ids_with(tx, "name", selector.name, past_too=past)
    return found, [] if found else [word]


def _of_ranges(tx: Transaction, selector: Ids, *, past: bool) -> tuple[list[int], list[str]]:
    """A single id must be there; of a range, what there is."""
    found: list[int] = []
    missing: list[str] = []
    for first, last in selector.ranges:
        ids = reads.ids_between(tx, first, last, past_too=past)
        found += ids
        if not ids:
            missing.append(str(first) if first == last else f"{first}-{last}")
    return found, missing


def _is_text(word: str) -> bool:
    """Names and keys in the store are UTF-8: a word that is not can find nothing."""
    try:
        word.encode()
    except UnicodeEncodeError:
        return False
    return True


def _nothing(word: str) -> NotFound:
    if word.startswith("last"):
        return NotFound(f"no such job: {quoted(word)}; you have not submitted that many", hint="trainq status --all")
    return NotFound(f"no such job: {word if word.isdecimal() else quoted(word)}", hint="trainq status --all")
