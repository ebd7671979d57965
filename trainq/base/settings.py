"""The settings of a root: flag, else variable, else `trainq.toml`, else default.

A setting is never guessed: an unknown key, a value of the wrong kind or limits in the wrong order are
`BadSettings`, with the file and line or the variable. `[types]` is kept as it was parsed; `domain/types.py`
makes the types of it. Loading reads one file and does nothing else; a file of comments costs no TOML parser.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final

from trainq.base import files, hosts, sharing
from trainq.base.errors import BadSettings, BadValue, Storage, UnsafeRoot, Unwritable
from trainq.base.setting_rows import ROWS, SECTIONS, read_value, spelled
from trainq.base.units import exact_duration
from trainq.base.words import did_you_mean, quoted

if TYPE_CHECKING:
    from collections.abc import Mapping

FILE: Final = "trainq.toml"


class Section:
    """The settings of one section, as attributes that do not change."""

    def __init__(self, values: dict[str, Any]) -> None:
        self.__dict__.update(values)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"settings do not change: {name}")

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.__dict__})"


class Store(Section):
    """Where the tables are."""

    url: str


class Times(Section):
    """All in seconds."""

    heartbeat: float
    zombie_after: float
    holder_limit: float
    poll: float
    grace: float
    hook_limit: float
    lock_wait: float


class Keep(Section):
    """Ages in seconds; `models` counts versions."""

    jobs: float
    runs: float
    history: float
    models: int
    snapshots: float
    file_grace: float


class Limits(Section):
    """`reserve_after` in seconds, `snapshot_size` in bytes; `gpus` by type; 0 is no limit for `queue_size` and off for `breaker`."""

    queue_size: int
    max_attempts: int
    breaker: int
    snapshot_size: int
    reserve_after: float
    gpus: dict[str, int]
    per_user: dict[str, int]


class Worker(Section):
    """What a worker does unless told otherwise."""

    slots: int
    foreign_gpus: str


class Queues(Section):
    """`names` always holds the default queue."""

    names: tuple[str, ...]
    strict_fifo: bool
    fair: bool


class Settings:
    """All settings of a root, each with its origin: `default`, `file`, `env` or `flag`."""

    __slots__ = (
        "keep",
        "limits",
        "origins",
        "path",
        "queues",
        "store",
        "text",
        "times",
        "type_tables",
        "worker",
    )

    def __init__(
        self,
        values: dict[str, dict[str, Any]],
        origins: dict[str, str],
        path: str | None,
        text: str,
        type_tables: dict[str, Any],
    ) -> None:
        self.store = Store(values["store"])
        self.times = Times(values["times"])
        self.keep = Keep(values["keep"])
        self.limits = Limits(values["limits"])
        self.worker = Worker(values["worker"])
        self.queues = Queues(values["queues"])
        self.origins = origins
        self.path = path
        self.text = text
        self.type_tables = type_tables

    def rows(self) -> list[tuple[str, Any, str]]:
        """(`section.name`, value, origin) of each; values as the file would spell them, a password hidden."""
        return [
            (
                f"{row.section}.{row.name}",
                spelled(row, getattr(getattr(self, row.section), row.name)),
                self.origins.get(f"{row.section}.{row.name}", "default"),
            )
            for row in ROWS
        ]

    def broken(self, at: tuple[str, ...], said: str) -> BadSettings:
        """The error for the key at this path of the file: file, line, key, what was said of it."""
        return _broken(self.path, self.text, at, said)


def load(
    root: str | None,
    *,
    flags: Mapping[str, Any] | None = None,
    environ: Mapping[str, str] = os.environ,
) -> Settings:
    """The settings of this root (None: no file). `flags` are keyed `section.name`.

    Raises BadSettings, BadValue for a flag, Unwritable for a file that cannot be read.
    """
    path = None if root is None else os.path.join(root, FILE)
    text = "" if path is None else _read(path)
    tables = _tables(path, text)
    type_tables = tables.pop("types", {})
    values: dict[str, dict[str, Any]] = {section: {} for section in SECTIONS}
    for row in ROWS:
        values[row.section][row.name] = row.default
    origins: dict[str, str] = {}
    _take_file(values, origins, tables, path, text)
    _take_variables(values, origins, environ)
    _take_flags(values, origins, flags or {})
    settings = Settings(values, origins, path, text, type_tables)
    _check_order(settings)
    return settings


def _read(path: str) -> str:
    import stat

    try:
        handle = files.open_at_once(path, os.O_RDONLY)
    except (FileNotFoundError, NotADirectoryError):
        return ""
    except PermissionError:
        raise Unwritable(f"{path}: cannot be read: permission denied") from None
    except OSError as error:
        raise Storage(f"{path}: {(error.strerror or 'cannot be read').lower()}") from None
    try:
        found = os.fstat(handle)
        if not stat.S_ISREG(found.st_mode):
            raise BadSettings(f"{path}: not a file")
        if sharing.is_for_group(os.path.dirname(path)):
            _require_owner(path, found)
        chunks = []
        while chunk := os.read(handle, 1 << 20):
            chunks.append(chunk)
    except OSError as error:
        raise Storage(f"{path}: {(error.strerror or 'cannot be read').lower()}") from None
    finally:
        os.close(handle)
    data = b"".join(chunks)
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        column = error.start - (data.rfind(b"\n", 0, error.start) + 1) + 1
        raise BadSettings(f"{FILE}: line {line}, column {column}: not UTF-8", hint=f"edit {path}") from None


def _require_owner(path: str, found: os.stat_result) -> None:
    """What a type of a group's queue runs is its owner's word alone. Raises UnsafeRoot."""
    owner_id = os.stat(os.path.dirname(path)).st_uid
    if found.st_uid != owner_id or not os.path.samestat(os.lstat(path), found):
        raise UnsafeRoot(
            f"{path}: not a file of {hosts.known_as(owner_id)}, whose queue it is: it belongs to"
            f" {hosts.known_as(found.st_uid)}, or is a link",
            hint="whose queue it is writes it anew",
        )
    if found.st_mode & sharing.OTHERS_WRITE:
        raise UnsafeRoot(f"{path}: others than its owner can write it", hint=f"chmod 0640 {path}")


def _tables(path: str | None, text: str) -> dict[str, Any]:
    """The sections of the file, each a table and known."""
    if all(not line or line[0] == "#" for line in map(str.strip, text.split("\n"))):
        return {}
    from trainq.base.toml import parse

    try:
        tables = parse(text, FILE)
    except BadSettings as error:
        error.hint = f"edit {path}"
        raise
    for name, table in tables.items():
        if name not in SECTIONS and name != "types":
            homes = [row.section for row in ROWS if row.name == name]
            near = f"; write it under [{homes[0]}]" if homes else did_you_mean(name, (*SECTIONS, "types"))
            raise _broken(path, text, (name,), "unknown key" + near)
        if not isinstance(table, dict):
            raise _broken(path, text, (name,), f"expected a table [{name}], got {quoted(table)}")
    return tables


def _broken(path: str | None, text: str, at: tuple[str, ...], said: str) -> BadSettings:
    from trainq.base.toml import line_of

    line = line_of(text, at)
    place = f"{FILE}: line {line}" if line else FILE
    name = at[-1] if at[-1].isprintable() else quoted(at[-1])
    key = f"[{'.'.join(at[:-1])}] {name}" if len(at) > 1 else name
    return BadSettings(f"{place}: {key}: {said}", hint=f"edit {path}")


def _take_file(
    values: dict[str, dict[str, Any]],
    origins: dict[str, str],
    tables: dict[str, Any],
    path: str | None,
    text: str,
) -> None:
    rows = {(row.section, row.name): row for row in ROWS} if tables else {}
    for section, table in tables.items():
        for name, raw in table.items():
            row = rows.get((section, name))
            if row is None:
                said = "unknown key" + did_you_mean(name, values[section])
                raise _broken(path, text, (section, name), said)
            try:
                values[section][name] = read_value(row, raw, spelled=False)
            except BadValue as error:
                raise _broken(path, text, (section, name), error.message) from None
            origins[f"{section}.{name}"] = "file"


def _take_variables(values: dict[str, dict[str, Any]], origins: dict[str, str], environ: Mapping[str, str]) -> None:
    ours = [name for name in environ if name.startswith("TRAINQ_")]
    if not ours:
        return
    rows = {f"TRAINQ_{row.section}_{row.name}".upper(): row for row in ROWS}
    url = rows["TRAINQ_STORE_URL"]
    if "TRAINQ_URL" in environ and "TRAINQ_STORE_URL" not in environ:
        rows["TRAINQ_URL"] = url
    sections = tuple(f"TRAINQ_{section}_".upper() for section in SECTIONS)
    for variable in ours:
        row = rows.get(variable)
        if row is None:
            if variable.startswith(sections):
                raise BadSettings(f"{quoted(variable)[1:-1]}: unknown setting{did_you_mean(variable, rows)}")
            continue
        try:
            values[row.section][row.name] = read_value(row, environ[variable], spelled=True)
        except BadValue as error:
            raise BadSettings(f"{variable}: {error.message}") from None
        origins[f"{row.section}.{row.name}"] = "env"


def _take_flags(values: dict[str, dict[str, Any]], origins: dict[str, str], flags: Mapping[str, Any]) -> None:
    rows = {f"{row.section}.{row.name}": row for row in ROWS} if flags else {}
    for key, raw in flags.items():
        row = rows[key]
        try:
            values[row.section][row.name] = read_value(row, raw, spelled=isinstance(raw, str))
        except BadValue as error:
            raise BadValue(f"--{row.name.replace('_', '-')}: {error.message}") from None
        origins[key] = "flag"


def _check_order(settings: Settings) -> None:
    """What freezes a job must come before what gives it away, and both after more than one heartbeat."""
    times = settings.times
    if times.heartbeat < times.holder_limit < times.zombie_after:
        if times.heartbeat * 3 <= times.zombie_after:
            return
        raise BadSettings(
            f"{FILE}: [times] zombie_after must be at least three heartbeats: workers look for the lost at each"
            f" of theirs ({exact_duration(times.heartbeat)}), and two looks in its half are needed",
            hint=f"edit {settings.path}" if settings.path else None,
        )
    names = ("heartbeat", "holder_limit", "zombie_after")
    said = " < ".join(f"{name} ({exact_duration(getattr(times, name))})" for name in names)
    raise BadSettings(
        f"{FILE}: [times] {said} must hold",
        hint=f"edit {settings.path}" if settings.path else None,
    )
