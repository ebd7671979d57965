"""Fingerprints: the same training has the same one, wherever and however it was typed. Pure.

A fingerprint is the first 32 hex digits of the sha256 of this line, and none of it may change, for old models
are found by it:

    {"data":{NAME:SHA256,…},"params":{…},"seed":N,"type":NAME,"v":1}

as canonical JSON: keys sorted by code point, no spaces, all that is not ASCII escaped, numbers as Python's
json writes them. So 1 and 1.0 differ (a trainer can tell them apart), 0.50 and 0.5 do not. The digest of a
data set that is JSON by its suffix is that of its canonical JSON, of all else that of its bytes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from collections.abc import Mapping


def canonical_json(value: Any) -> str:
    """The one spelling of a value of JSON. ValueError for a NaN or an Infinity, which JSON does not have."""
    import json

    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def fingerprint(
    type: str,  # noqa: A002  # the word of the surface
    data_digests: Mapping[str, str],
    params: Mapping[str, Any],
    seed: int,
) -> str:
    """32 hex digits for this training. `data_digests`: name of the set ("" if it has none) → its digest."""
    import hashlib

    line = canonical_json({"v": 1, "type": type, "data": dict(data_digests), "params": dict(params), "seed": seed})
    return hashlib.sha256(line.encode()).hexdigest()[:32]


def of_task(print_: str, number: int) -> str:
    """The fingerprint of a task with a number of `--array`: its trainer is told it, so it is another training than that of
    the task beside it. Of this line, which may not change either: `FINGERPRINT[NUMBER]`."""
    return _sha256(f"{print_}[{number}]".encode())[:32]


def is_json_name(name: str) -> bool:
    """Whether data of this file name is taken as JSON: by its suffix, upper or lower case."""
    return name.lower().endswith(".json")


def canonical_json_digest(data: bytes) -> str:
    """The sha256 of the canonical form of these bytes of JSON.

    What is no JSON after all, names a key twice, or holds no number one can compare (NaN, 1e999, thousands of
    digits), counts by its bytes: then two spellings are two trainings, which costs a run and is never wrong.
    """
    import json

    try:
        text = data.decode("utf-8-sig")
        value = json.loads(text, parse_constant=_not_json, object_pairs_hook=_once)
        return _sha256(canonical_json(value).encode())
    except (ValueError, RecursionError):
        return _sha256(data)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError
    return found


def _not_json(_text: str) -> NoReturn:
    raise ValueError


def _sha256(data: bytes) -> str:
    import hashlib

    return hashlib.sha256(data).hexdigest()
