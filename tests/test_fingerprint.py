"""Fingerprints: equal for the same training, different for any other, and the same for ever."""

from __future__ import annotations

import hashlib
import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainq.domain.fingerprint import canonical_json, canonical_json_digest, fingerprint, is_json_name

D = "a" * 64


def sha(data):
    return hashlib.sha256(data).hexdigest()


def test_a_known_training_has_its_known_fingerprint():
    """Old models are found by it: the spelling that is hashed never changes."""
    line = (
        '{"data":{"":"'
        + D
        + '","val":"'
        + D
        + '"},"params":{"a":1,"b":[0.5,null]},"seed":3,"type":"gr\\u00f6\\u00dfe","v":1}'
    )
    expected = sha(line.encode())[:32]
    assert fingerprint("größe", {"val": D, "": D}, {"b": [0.5, None], "a": 1}, 3) == expected
    assert fingerprint("ok", {}, {}, 0) == "31752886935356015f77be09218df808"


def test_every_part_counts():
    """Q06: another type, data, name of data, parameter or seed is another training; 1 and 1.0 and true are three."""
    all_of_them = [
        fingerprint("ok", {"": D}, {"a": 1}, 0), fingerprint("ko", {"": D}, {"a": 1}, 0),
        fingerprint("ok", {"": "b" * 64}, {"a": 1}, 0), fingerprint("ok", {"x": D}, {"a": 1}, 0),
        fingerprint("ok", {}, {"a": 1}, 0), fingerprint("ok", {"": D}, {"a": 2}, 0),
        fingerprint("ok", {"": D}, {"b": 1}, 0), fingerprint("ok", {"": D}, {}, 0),
        fingerprint("ok", {"": D}, {"a": 1}, 1), fingerprint("ok", {"": D}, {"a": 1.0}, 0),
        fingerprint("ok", {"": D}, {"a": True}, 0), fingerprint("ok", {"": D}, {"a": "1"}, 0),
    ]  # fmt: skip
    assert len(set(all_of_them)) == len(all_of_them)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


def shuffled(value, chance):
    if isinstance(value, dict):
        keys = list(value)
        chance.shuffle(keys)
        return {key: shuffled(value[key], chance) for key in keys}
    return [shuffled(item, chance) for item in value] if isinstance(value, list) else value


@given(json_values, st.randoms(use_true_random=False), st.booleans())
def test_json_counts_by_what_it_says(value, chance, ascii_only):
    """Q06: the same JSON with keys reordered, spaced and escaped otherwise has one digest."""
    one = json.dumps(value).encode()
    other = json.dumps(shuffled(value, chance), indent=chance.randint(0, 3), ensure_ascii=ascii_only)
    assert canonical_json_digest(other.encode()) == canonical_json_digest(one)
    assert json.loads(canonical_json(value)) == value


def test_a_byte_order_mark_does_not_count():
    """A file from another system's editor is the same data."""
    assert canonical_json_digest(b'\xef\xbb\xbf{"a": 1}') == canonical_json_digest(b'{"a":1}\r\n') == sha(b'{"a":1}')


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"\xff",
        b"[NaN]",
        b"[1e999]",
        b"[-Infinity]",
        b"9" * 5000,
        b"[" * 100_000,
        b'{"a":1,"a":2}',
        b'{"a":1} x',
    ],
)
def test_what_is_not_json_counts_by_its_bytes(data):
    """Broken JSON in a .json file, or JSON that cannot be compared, falls back to its bytes; nothing crashes."""
    assert canonical_json_digest(data) == sha(data)


def test_only_the_suffix_makes_json():
    """Q06: two spellings in a .txt or .jsonl are two data sets; upper and lower case are one suffix."""
    assert not any(map(is_json_name, ("d.txt", "d", "d.jsonl", "json", "d.json.gz")))
    assert all(map(is_json_name, ("d.json", "D.JSON", ".json", "a/b.Json")))


def test_the_digest_of_lists_keeps_their_order():
    """Keys have no order, lists have."""
    rows = [{"a": n} for n in range(20)]
    random.Random(1).shuffle(rows)
    assert canonical_json_digest(json.dumps(rows).encode()) != canonical_json_digest(
        json.dumps(sorted(rows, key=str)).encode()
    )
