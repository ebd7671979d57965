"""Model types: the `[types.NAME]` tables of trainq.toml, checked and typed. Pure.

A type says how a training is started (an argv or a function), which parameters it takes and what it is given.
What a table does not say is None here and decided by the submit or the settings. A table that cannot be used
is BadSettings with file, line, key and the nearest known key; it is never used in part.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from trainq.base.errors import BadValue, UnknownType
from trainq.base.units import duration, size
from trainq.base.words import did_you_mean, quoted
from trainq.domain.devices import check_type
from trainq.domain.keys import check_template, model_key
from trainq.domain.params import ALIASES, KINDS, ParamSpec, check_name, fit

if TYPE_CHECKING:
    from collections.abc import Callable

    from trainq.base.settings import Settings


class TypeSpec(NamedTuple):
    """One model type. Exactly one of `run` and `call` is set; times are in seconds; None: not said."""

    name: str
    run: tuple[str, ...] | None = None
    call: str | None = None
    params: dict[str, ParamSpec] = {}  # never changed
    declares_params: bool = False
    data: str = "optional"
    model: str = "optional"
    key: str | None = None
    python: str | None = None
    keep: int | None = None
    time_s: float | None = None
    stall_after_s: float | None = None
    retries: int | None = None
    queue: str | None = None
    gpus: int | None = None
    gpu_type: str | None = None
    vram: int | None = None
    cpus: int | None = None
    mem: int | None = None


DATA_WORDS: Final = ("required", "optional", "none")
MODEL_WORDS: Final = ("required", "optional")
_LATER: Final = ("notebook", "databricks")


def load_types(settings: Settings) -> dict[str, TypeSpec]:
    """All types of the settings by name, in the order of the file. BadSettings if one of them is broken."""
    types: dict[str, TypeSpec] = {}
    for name, table in settings.type_tables.items():
        if not _is_name(name):
            said = "a type's name is letters, digits, '.', '_' and '-', and begins with neither '.' nor '-'"
            raise settings.broken(("types", name), said)
        if not isinstance(table, dict):
            raise settings.broken(("types", name), f"expected a table [types.{name}], got {quoted(table)}")
        types[name] = _type(settings, name, table)
    return types


def _is_name(name: str) -> bool:
    """A type's name is a part of a model key, and no option."""
    try:
        return model_key(name) == name and "/" not in name and name[0] != "-"
    except BadValue:
        return False


def find_type(settings: Settings, name: str) -> TypeSpec:
    """The type of this name. UnknownType names the known ones."""
    types = load_types(settings)
    if name in types:
        return types[name]
    known = ", ".join(types) if types else "none; make one with a [types.NAME] table in trainq.toml"
    raise UnknownType(f"no such type: {quoted(name)}; known: {known}")


def _type(settings: Settings, name: str, table: dict[str, Any]) -> TypeSpec:
    at = ("types", name)
    fields: dict[str, Any] = {}
    for key, raw in table.items():
        if key in _LATER or (key == "executor" and raw != "local"):
            raise settings.broken((*at, key), f"{quoted(raw)} is not supported by this version; use run or call")
        if key not in _READERS:
            raise settings.broken((*at, key), "unknown key" + did_you_mean(key, _READERS))
        if key in ("params", "executor"):
            continue
        field, read = _READERS[key]
        try:
            fields[field] = read(raw)
        except BadValue as error:
            raise settings.broken((*at, key), error.message) from None
    params = _params(settings, name, table["params"]) if "params" in table else {}
    spec = TypeSpec(name=name, params=params, declares_params="params" in table, **fields)
    _check(settings, spec)
    return spec


def _check(settings: Settings, spec: TypeSpec) -> None:
    """What no single key can tell."""
    at = ("types", spec.name)
    if spec.run is not None and spec.call is not None:
        raise settings.broken((*at, "call"), "run and call exclude each other")
    if spec.run is None and spec.call is None:
        raise settings.broken(at, 'needs run = ["program", …] or call = "module:function"')
    if spec.python is not None and spec.call is None:
        raise settings.broken((*at, "python"), "only for call; run names its own program")
    if spec.queue is not None and spec.queue not in settings.queues.names:
        said = f"no such queue: {quoted(spec.queue)}{did_you_mean(spec.queue, settings.queues.names)}"
        raise settings.broken((*at, "queue"), said)
    if spec.key is not None:
        try:
            check_template(spec.key, spec.params if spec.declares_params else None)
        except BadValue as error:
            raise settings.broken((*at, "key"), error.message) from None


def _params(settings: Settings, name: str, table: Any) -> dict[str, ParamSpec]:
    at = ("types", name, "params")
    if not isinstance(table, dict):
        raise settings.broken(at, f"expected a table [types.{name}.params], got {quoted(table)}")
    params = {}
    for param, rules in table.items():
        if not isinstance(rules, dict):
            said = f'expected a table such as {{ type = "float", default = 0.5 }}, got {quoted(rules)}'
            raise settings.broken((*at, param), said)
        for key in rules:
            if key not in _RULES:
                raise settings.broken((*at, param, key), "unknown key" + did_you_mean(key, _RULES))
        try:
            check_name(param)
        except BadValue as error:
            raise settings.broken((*at, param), error.message) from None
        params[param] = _param(settings, (*at, param), rules)
    return params


_RULES: Final = ("type", "default", "choices", "min", "max")


def _param(settings: Settings, at: tuple[str, ...], rules: dict[str, Any]) -> ParamSpec:
    """One declared parameter; its choices and its default fit what it declares itself."""
    word = rules.get("type")
    kind = ALIASES.get(word, word) if isinstance(word, str) else word
    if kind not in KINDS:
        said = f"expected a type of {', '.join(KINDS)}, got {quoted(word)}" if "type" in rules else "needs a type"
        raise settings.broken((*at, "type") if "type" in rules else at, said)
    spec = ParamSpec(at[-1], str(kind))
    for key in ("min", "max", "choices", "default"):
        if key not in rules:
            continue
        try:
            spec = _with_rule(spec, key, rules[key])
        except BadValue as error:
            raise settings.broken((*at, key), error.message) from None
    return spec


def _with_rule(spec: ParamSpec, key: str, raw: Any) -> ParamSpec:
    if key == "default":
        return spec._replace(default=fit(spec, raw, from_text=False), has_default=True)
    if key == "choices":
        if not isinstance(raw, list) or not raw:
            raise BadValue(f"expected a list of values, got {quoted(raw)}")
        return spec._replace(choices=tuple(fit(spec, choice, from_text=False) for choice in raw))
    if spec.type not in ("int", "float"):
        raise BadValue(f"only int and float have a {key}, not {spec.type}")
    bound = fit(ParamSpec(spec.name, spec.type), raw, from_text=False)
    if key == "max" and spec.min is not None and bound < spec.min:
        raise BadValue(f"max {bound} is below min {spec.min}")
    return spec._replace(min=bound) if key == "min" else spec._replace(max=bound)


def _argv(raw: Any) -> tuple[str, ...]:
    if not isinstance(raw, list) or not raw or not all(isinstance(word, str) for word in raw):
        raise BadValue(f'expected a list of words such as ["python", "train.py"], got {quoted(raw)}')
    if not raw[0] or any("\0" in word for word in raw):
        raise BadValue(f"not a command: {quoted(raw)}")
    return tuple(raw)


def _function(raw: Any) -> str:
    module, _, function = raw.partition(":") if isinstance(raw, str) else ("", "", "")
    names = (*module.split("."), *function.split("."))
    if not all(name.isidentifier() for name in names):
        raise BadValue(f'expected "module:function", got {quoted(raw)}')
    return str(raw)


def _text(raw: Any) -> str:
    if not isinstance(raw, str) or not raw or "\0" in raw:
        raise BadValue(f"expected text, got {quoted(raw)}")
    return raw


def _count(raw: Any) -> int:
    if isinstance(raw, bool) or not isinstance(raw, int) or not 0 <= raw < 2**31:
        raise BadValue(f"expected a whole number of at least 0, got {quoted(raw)}")
    return raw


def _time(raw: Any) -> float:
    if isinstance(raw, bool) or not isinstance(raw, (int, float, str)):
        raise BadValue(f'expected a duration such as "2h", got {quoted(raw)}')
    seconds = duration(raw if isinstance(raw, str) else quoted(raw))
    if seconds <= 0:
        raise BadValue(f"expected more than 0, got {quoted(raw)}")
    return seconds


def _size(raw: Any) -> int:
    if not isinstance(raw, str):
        raise BadValue(f'expected a size such as "18G", got {quoted(raw)}')
    return size(raw)


def _one_of(words: tuple[str, ...]) -> Callable[[Any], str]:
    def read(raw: Any) -> str:
        if raw not in words:
            raise BadValue(f"expected {' or '.join(words)}, got {quoted(raw)}")
        return str(raw)

    return read


# The keys of a type: the field each fills, and its reader. `params` and `executor` are read on their own.
_READERS: Final[dict[str, tuple[str, Callable[[Any], Any]]]] = {
    "run": ("run", _argv),
    "call": ("call", _function),
    "data": ("data", _one_of(DATA_WORDS)),
    "model": ("model", _one_of(MODEL_WORDS)),
    "key": ("key", _text),
    "python": ("python", _text),
    "keep": ("keep", _count),
    "time": ("time_s", _time),
    "stall_after": ("stall_after_s", _time),
    "retries": ("retries", _count),
    "queue": ("queue", _text),
    "gpus": ("gpus", _count),
    "gpu_type": ("gpu_type", check_type),
    "vram": ("vram", _size),
    "cpus": ("cpus", _count),
    "mem": ("mem", _size),
    "params": ("params", _text),
    "executor": ("executor", _text),
}
