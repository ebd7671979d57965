"""Model keys: what may name a model, and the key a job publishes under. Pure.

A key becomes a path below `models/`, so nothing passes that could leave it or meet the store's own names:
parts of letters, digits, `.`, `_` and `-` of any script, joined by `/`, none empty, none beginning with `.`.
Two spellings of one key are one key: it is brought to Unicode's composed form (NFC).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from trainq.base.errors import BadSettings, BadValue, NotFound
from trainq.base.words import did_you_mean, quoted

if TYPE_CHECKING:
    from collections.abc import Mapping

LONGEST_PART: Final = 200
LONGEST_KEY: Final = 1000
LARGEST_VERSION: Final = 2**63 - 1


class ModelRef(NamedTuple):
    """A model as typed: `KEY` (version None), `KEY@latest` or `KEY@VERSION`."""

    key: str
    version: int | Literal["latest"] | None


def model_key(text: str) -> str:
    """The key in its one spelling (NFC), which stays itself; BadValue if it breaks a rule."""
    key = _composed(text)
    if len(key.encode("utf-8", "surrogatepass")) > LONGEST_KEY:
        raise BadValue(f"a model key of more than {LONGEST_KEY} bytes: {quoted(text, 40)}")
    for part in key.split("/"):
        wrong = _wrong_part(part)
        if wrong:
            raise BadValue(f"model key {quoted(text)} {wrong}; it is letters, digits, '.', '_', '-' joined by '/'")
    return key


def _composed(text: str) -> str:
    if text.isascii():
        return text
    import unicodedata

    return unicodedata.normalize("NFC", text)


def _wrong_part(part: str) -> str | None:
    """What is wrong with this part of a key, or None."""
    if not part:
        return "has an empty part"
    if part[0] == ".":
        return "has a part that begins with '.'"
    bad = _bad_letter(part)
    if bad is not None:
        return f"holds {quoted(bad)}"
    if len(part.encode()) > LONGEST_PART:
        return f"has a part of more than {LONGEST_PART} bytes"
    return None


def _bad_letter(part: str) -> str | None:
    """The first character that no key may hold. Marks (of Devanagari, Thai) follow a letter."""
    if re.fullmatch(r"[A-Za-z0-9._-]*", part):
        return None
    import unicodedata

    before = ""
    for letter in part:
        kind = unicodedata.category(letter)
        fits = kind[0] == "L" or kind == "Nd" or letter in "._-" or (kind[0] == "M" and before not in ("", *"._-"))
        if not fits:
            return letter
        before = letter
    return None


def check_template(template: str, params: Mapping[str, Any] | None) -> None:
    """BadValue if this key of a type can never be a key. `params`: the declared ones, None: any may come."""
    for name in re.findall(r"\{([^{}]*)\}", template):
        param = name.removeprefix("param.")
        if name in ("user", "type") or (name != param and param and (params is None or param in params)):
            continue
        if name == param or not param or params is None:
            raise BadValue(
                f"unknown placeholder {quoted('{' + name + '}')}; there are {{user}} {{type}} {{param.NAME}}"
            )
        raise BadValue(f"{quoted('{' + name + '}')}: no such parameter{did_you_mean(param, params)}")
    model_key(re.sub(r"\{[^{}]*\}", "x", template))


def expand_key(template: str, *, user: str, type: str, params: Mapping[str, Any]) -> str:  # noqa: A002
    """The key of one job: `{user}`, `{type}` and `{param.NAME}` filled in.

    BadSettings for a placeholder that does not exist, BadValue naming the parameter whose value may not stand
    in a key: it would be a way to write among somebody else's models.
    """

    def fill(found: re.Match[str]) -> str:
        name = found[1]
        if name == "user":
            return _piece("user", user)
        if name == "type":
            return type
        if name.startswith("param.") and name[6:] in params:
            return _piece(f"parameter {name[6:]}", params[name[6:]])
        if name.startswith("param.") and len(name) > 6:
            raise BadValue(f"model key {quoted(template)} needs parameter {quoted(name[6:])}, which is not given")
        raise BadSettings(f"model key {quoted(template)}: unknown placeholder {quoted('{' + name + '}')}")

    return model_key(re.sub(r"\{([^{}]*)\}", fill, template))


def _piece(what: str, value: Any) -> str:
    if isinstance(value, bool):
        text = "true" if value else "false"
    elif isinstance(value, (str, int, float)):
        try:
            text = _composed(str(value))
        except ValueError:  # an integer of more digits than Python prints
            text = ""
    else:
        text = ""
    if not text or text[0] == "." or _bad_letter("x" + text) is not None:
        raise BadValue(f"{what}: {quoted(value)} cannot stand in a model key: only letters, digits, '.', '_', '-'")
    return text


def parse_model_ref(text: str) -> ModelRef:
    """`KEY`, `KEY@VERSION` or `KEY@latest`. BadValue if it is none; NotFound for an impossible version."""
    key, at, version = text.partition("@")
    name = model_key(key)
    if not at:
        return ModelRef(name, None)
    if version == "latest":
        return ModelRef(name, "latest")
    if not re.fullmatch(r"[0-9]+", version):
        raise BadValue(f"not a version of a model: {quoted(text)}; write {name}@3 or {name}@latest")
    if len(version) > 19 or not 1 <= int(version) <= LARGEST_VERSION:
        raise NotFound(f"no such version: {quoted(text)}", hint=f"trainq models list {name}")
    return ModelRef(name, int(version))
