"""The JSON documents that stand in cells of the store."""

from __future__ import annotations

import json
from typing import Any


def document(text: object) -> dict[str, Any]:
    """The JSON object in a cell; an empty one where there is none, since on a group's queue any member can write there."""
    try:
        found = json.loads(text)  # type: ignore[arg-type]
    except (TypeError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
