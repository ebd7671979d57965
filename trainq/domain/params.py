"""Parameters: from what was typed to the values a trainer gets. Pure.

What parses as JSON is that value and stays that value: numbers keep their kind, big integers their digits.
All else is text, so are NaN and Infinity, which no JSON reader need understand. A type that declares
parameters takes those and no others.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn

from trainq.base.errors import BadParam, BadValue
from trainq.base.words import did_you_mean, quoted

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from json import JSONDecoder

    from trainq.domain.types import TypeSpec

KINDS: Final = ("int", "float", "bool", "text", "json")
ALIASES: Final = {"string": "text", "str": "text"}
DEEPEST: Final = 100
LARGEST_VARIABLE: Final = 128 * 1024  # bytes of NAME=value and its end; exec refuses more

_YES: Final = ("true", "yes", "on", "1")
_NO: Final = ("false", "no", "off", "0")


class ParamSpec(NamedTuple):
    """A declared parameter. `min` and `max` belong to int and float; `choices` empty: any value."""

    name: str
    type: str
    default: Any = None
    has_default: bool = False
    choices: tuple[Any, ...] = ()
    min: float | None = None
    max: float | None = None


def split_assignment(text: str) -> tuple[str, str]:
    """`k=v` as (k, v): one value, commas, spaces and further `=` included. BadValue for any other form."""
    name, equals, value = text.partition("=")
    if not equals:
        raise BadValue(f"expected NAME=VALUE, got {quoted(text)}")
    check_name(name)
    return name, value


def check_name(name: str) -> None:
    """A parameter's name is what can be a key of JSON, and not empty; else BadValue."""
    if not name:
        raise BadValue("a parameter needs a name: NAME=VALUE")
    if any("\ud800" <= letter <= "\udfff" for letter in name):
        raise BadValue(f"a parameter's name is not UTF-8: {quoted(name)}")


def check_text(value: str) -> str:
    """The text. BadValue if it holds half a UTF-16 pair, which JSON can spell: that is no text and no bytes."""
    if value.isascii():
        return value
    try:
        value.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise BadValue(f"this is no text: {quoted(value)}") from None
    return value


def parse_value(text: str) -> Any:
    """A value that parses as JSON is that, else text. BadValue only for JSON nested beyond all sense."""
    if text[:1] not in _JSON_STARTS:
        return text
    try:
        value = _decoder().decode(text)
    except RecursionError:
        raise BadValue(f"nested more than {DEEPEST} deep: {quoted(text, 40)}") from None
    except ValueError:  # not JSON, or a number too long for Python to read
        return text
    if isinstance(value, (dict, list)):
        _check_depth(value)
    return value


@cache
def _decoder() -> JSONDecoder:
    """Made once: a file of parameters has a hundred thousand values."""
    import json

    return json.JSONDecoder(parse_constant=_not_json, parse_float=_finite)


_JSON_STARTS: Final = tuple('{["-0123456789tfn \t\n\r')


def _not_json(_text: str) -> NoReturn:
    raise ValueError


def _finite(text: str) -> float:
    """A number that overflows would come back as Infinity, which is no JSON: it stays text."""
    number = float(text)
    if number in (float("inf"), float("-inf")):
        raise ValueError
    return number


def _check_depth(value: Any) -> None:
    layer, depth = [value], 0
    while layer:
        depth += 1
        if depth > DEEPEST:
            raise BadValue(f"nested more than {DEEPEST} deep")
        inner: list[Any] = []
        for item in layer:
            if isinstance(item, dict):
                inner += item.values()
            elif isinstance(item, list):
                inner += item
        layer = inner


def coerce(
    spec: TypeSpec | None, given: Mapping[str, Any], *, from_text: bool, as_json: Collection[str] = ()
) -> dict[str, Any]:
    """The parameters of a job of this type: typed, complete with defaults, within their choices and ranges; of a
    command (None) as they are.

    `from_text`: the values are as typed (`--param k=v`), but for those in `as_json`; else they come from JSON and keep
    their kind. Raises BadParam naming type, parameter and value; nothing of it may then be stored.
    """
    if spec is None or not spec.declares_params:
        return {
            name: _undeclared(spec and spec.name, name, raw, from_text=from_text and name not in as_json)
            for name, raw in given.items()
        }
    for name in given:
        if name not in spec.params:
            raise BadParam(_about(spec.name, name, "no such parameter" + did_you_mean(name, spec.params)))
    params: dict[str, Any] = {}
    for name, param in spec.params.items():
        if name in given:
            try:
                params[name] = fit(param, given[name], from_text=from_text and name not in as_json)
            except BadValue as error:
                raise BadParam(_about(spec.name, name, error.message)) from None
        elif param.has_default:
            params[name] = param.default
        else:
            raise BadParam(
                _about(spec.name, name, f"missing, and it has no default ({param.type})"),
                hint=f"--param {name}=...",
            )
    return params


def _about(type_name: str | None, name: str, said: str) -> str:
    shown = name if name and name.isprintable() else quoted(name)
    return f"{'' if type_name is None else f'type {type_name}, '}parameter {shown}: {said}"


def _undeclared(type_name: str | None, name: str, raw: Any, *, from_text: bool) -> Any:
    try:
        check_name(name)
        return parse_value(raw) if from_text else _json_value(raw)
    except BadValue as error:
        raise BadParam(_about(type_name, name, error.message)) from None


def fit(param: ParamSpec, raw: Any, *, from_text: bool) -> Any:
    """The value in the parameter's type, choices and range; BadValue says what was expected."""
    read = _FROM_TEXT[param.type] if from_text else _FROM_JSON[param.type]
    value = read(raw)
    if param.choices and value not in param.choices:
        known = ", ".join(quoted(choice) for choice in param.choices)
        raise BadValue(f"expected one of {known}, got {quoted(raw)}")
    if param.min is not None and value < param.min:
        raise BadValue(f"expected at least {param.min}, got {quoted(raw)}")
    if param.max is not None and value > param.max:
        raise BadValue(f"expected at most {param.max}, got {quoted(raw)}")
    return value


def _int_text(raw: str) -> int:
    word = raw.strip()
    digits = word[1:] if word[:1] in ("+", "-") else word
    if not (digits.isascii() and digits.isdigit()) or len(digits) > 4000:
        raise BadValue(f"expected an int, got {quoted(raw)}")
    return int(word)


def _float_text(raw: str) -> float:
    word = raw.strip()
    try:
        number = float(word) if word and word[-1] in "0123456789." and "_" not in word and word.isascii() else None
    except ValueError:
        number = None
    if number is None or number in (float("inf"), float("-inf")):
        raise BadValue(f"expected a float, got {quoted(raw)}")
    return number


def _bool_text(raw: str) -> bool:
    word = raw.strip().lower()
    if word not in _YES and word not in _NO:
        raise BadValue(f"expected true or false, got {quoted(raw)}")
    return word in _YES


def _json_text(raw: str) -> Any:
    value = parse_value(raw)
    if isinstance(value, str) and value == raw:
        raise BadValue(f"expected JSON, got {quoted(raw)}")
    return value


def _int(raw: Any) -> int:
    if isinstance(raw, bool) or not isinstance(raw, (int, float)) or raw != raw // 1:
        raise BadValue(f"expected an int, got {quoted(raw)}")
    return int(raw)


def _float(raw: Any) -> float:
    if isinstance(raw, bool) or not isinstance(raw, (int, float)):
        raise BadValue(f"expected a float, got {quoted(raw)}")
    try:
        number = float(raw)
    except OverflowError:
        number = float("inf")
    if not -float("inf") < number < float("inf"):
        raise BadValue(f"expected a float, got {quoted(raw)}")
    return number


def _bool(raw: Any) -> bool:
    if not isinstance(raw, bool):
        raise BadValue(f"expected true or false, got {quoted(raw)}")
    return raw


def _text(raw: Any) -> str:
    if not isinstance(raw, str):
        raise BadValue(f"expected text, got {quoted(raw)}")
    return check_text(raw)


def _json_value(raw: Any) -> Any:
    """The value, if JSON can hold it: no dates (of TOML), no NaN, no half of a UTF-16 pair."""
    _check_depth(raw)
    _check_json(raw)
    return raw


def _check_json(raw: Any) -> None:
    if isinstance(raw, str):
        check_text(raw)
    elif isinstance(raw, float):
        _float(raw)
    elif isinstance(raw, (list, dict)):
        for item in raw if isinstance(raw, list) else (*raw, *raw.values()):
            _check_json(item)
    elif raw is not None and not isinstance(raw, int):
        raise BadValue(f"expected a value of JSON, got {quoted(raw)}")


_FROM_TEXT: Final = {
    "int": _int_text, "float": _float_text, "bool": _bool_text, "text": _text, "json": _json_text,
}  # fmt: skip
_FROM_JSON: Final = {"int": _int, "float": _float, "bool": _bool, "text": _text, "json": _json_value}


def param_variables(params: Mapping[str, Any]) -> dict[str, str]:
    """The TRAINQ_PARAM_<NAME> variables of a job: text as it is, all else as compact JSON.

    Left out, since a variable cannot tell: two names that would make the same variable, and a value with a
    NUL, with characters that are neither text nor undecoded bytes, or beyond what a variable can hold.
    TRAINQ_PARAMS names a file with the exact ones.
    """
    import json

    names = [(_variable(name), value) for name, value in params.items()]
    once = [name for name, _ in names]
    variables = {}
    for name, value in names:
        if once.count(name) > 1:
            continue
        text = value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))
        try:
            encoded = text.encode("utf-8", "surrogateescape")
        except UnicodeEncodeError:
            continue
        if 0 not in encoded and len(name) + len(encoded) + 2 <= LARGEST_VARIABLE:
            variables[name] = text
    return variables


def _variable(name: str) -> str:
    upper = (letter.upper() if letter.isascii() and letter.isalnum() else "_" for letter in name)
    return "TRAINQ_PARAM_" + "".join(upper)
