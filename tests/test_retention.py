"""Which versions of a model go: never a pinned one, never one of the newest."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainq.domain.retention import to_remove


@pytest.mark.parametrize(
    ("versions", "keep", "gone"),
    [
        ([(1, False), (2, False), (3, False), (4, False)], 2, [1, 2]),
        ([(4, False), (1, False), (3, False), (2, False)], 2, [1, 2]),
        ([(1, False), (2, False)], 0, []),
        ([(1, False), (2, False)], 2, []),
        ([(1, True), (2, False), (3, True), (4, False)], 1, [2]),
        ([(7, False), (9, True)], 1, []),
        ([], 1, []),
    ],
)
def test_the_newest_stay(versions, keep, gone):
    """Q44: keep N per key, newest kept; 0 keeps all; pinned ones stay and do not count."""
    assert to_remove(versions, keep) == gone


@given(st.dictionaries(st.integers(1, 50), st.booleans()), st.integers(0, 10))
def test_what_stays_is_enough(versions, keep):
    """No pinned version goes, and of the others exactly the newest `keep` stay."""
    gone = set(to_remove(versions.items(), keep))
    free = [version for version, pinned in versions.items() if not pinned]
    stay = [version for version in free if version not in gone]
    assert gone <= set(free)
    assert len(stay) == (min(len(free), keep) if keep else len(free))
    assert not gone or max(gone) < min(stay)
