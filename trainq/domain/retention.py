"""Which versions of a model are too many. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


def to_remove(versions: Iterable[tuple[int, bool]], keep: int) -> list[int]:
    """The versions to remove, oldest first, of (version, pinned) in any order.

    The `keep` newest that are not pinned stay, 0 keeps all. A pinned one stays always and does not count.
    """
    if keep <= 0:
        return []
    free = sorted(version for version, pinned in versions if not pinned)
    return free[:-keep]
