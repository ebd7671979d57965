"""The one SQLite library of this process, and peewee on top of it.

Two SQLite libraries in one process drop each other's locks, so everything takes the module that peewee chose. A
Postgres driver that happens to be installed would cost 85 ms at `import peewee`; it is kept back here, since a queue
on SQLite has no use for it.
"""

from __future__ import annotations

import sys
from typing import Any

_KEPT_BACK = ("psycopg", "psycopg2", "psycopg2cffi")


def _import_peewee() -> Any:
    held = [name for name in _KEPT_BACK if name not in sys.modules]
    for name in held:
        sys.modules[name] = None  # type: ignore[assignment]  # the documented way to make an import fail
    try:
        import peewee
    finally:
        for name in held:
            del sys.modules[name]
    return peewee


peewee = _import_peewee()
sqlite3 = peewee.sqlite3
