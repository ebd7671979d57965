"""Model keys: names that can be paths, and nothing that could leave them."""

from __future__ import annotations

import os
import unicodedata

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from trainq.base.errors import BadSettings, BadValue, NotFound
from trainq.domain.keys import ModelRef, check_template, expand_key, model_key, parse_model_ref


@pytest.mark.parametrize(
    "key", ["wine", "a/b/c", "A-1_2.x", "-x", "größe", "модель/日本", "हिन्दी", "ภาษาไทย", "٣", "x" * 200, "/".join(["x" * 199] * 5)]
)  # fmt: skip
def test_keys_of_any_script_stand(key):
    """Keys are parts of letters, digits, `.`, `_`, `-` of any script, joined by `/`."""
    assert model_key(key) == unicodedata.normalize("NFC", key)


def test_one_key_has_one_spelling():
    """A composed and a decomposed letter are one key (NFC)."""
    assert model_key("gro\u0308ße") == model_key("gr\u00f6ße") == "gr\u00f6ße"


@pytest.mark.parametrize(
    "key",
    ["", "/", "a/", "/a", "a//b", ".", "..", "../a", "a/../b", "a/.b", ".a", "@latest", "a/@1", "a@1", "a b", "a\nb", "a\0b",
     "\udcff", "a\\b", "~", "a:b", "{user}", "½", "²", "😀", "\u0301", "a/\u0301", "-\u0301", "x" * 201, "ö" * 101,
     "/".join(["x" * 200] * 5), "\u202ea", "a\u200b", "*"],
)  # fmt: skip
def test_what_could_leave_the_store_is_no_key(key):
    """Empty parts, leading dots, `@`, spaces, control and invisible characters, and what is too long: BadValue."""
    with pytest.raises(BadValue) as error:
        model_key(key)
    assert error.value.message.isprintable()


@given(st.text() | st.text(alphabet="ab./@-_ö\u0308\u0915\u094d"))
@example("a\u0308/.")
def test_a_key_is_a_safe_path_and_stays_itself(text):
    """Whatever is a key is its own key, and a path that stays below where it is joined."""
    try:
        key = model_key(text)
    except BadValue:
        return
    assert model_key(key) == key
    assert os.path.normpath(os.path.join("/models", key)) == "/models/" + key
    assert parse_model_ref(key) == ModelRef(key, None)
    assert "@" not in key


def test_placeholders_are_filled_in():
    """A type's key may use {user} {type} {param.NAME}."""
    params = {"language": "de", "n": 3, "f": 0.5, "b": True, "a.b": "x"}
    assert expand_key("wine", user="u", type="t", params={}) == "wine"
    assert expand_key("{user}/{param.language}", user="anna", type="t", params=params) == "anna/de"
    got = expand_key("{type}-{param.n}-{param.f}-{param.b}-{param.a.b}", user="u", type="t", params=params)
    assert got == "t-3-0.5-true-x"


@pytest.mark.parametrize("value", ["a/b", "..", ".x", "", "a b", "@latest", "\udcff", "\n", None, [1], {}, "x" * 300])
def test_a_value_that_breaks_the_rule_names_its_parameter(value):
    """A parameter cannot write among other users' models: no `/`, no dot in front, nothing odd."""
    with pytest.raises(BadValue) as error:
        expand_key("{user}/{param.p}", user="u", type="t", params={"p": value})
    assert "parameter p: " in error.value.message or "more than 200 bytes" in error.value.message
    assert error.value.message.isprintable()


def test_unknown_placeholders_are_refused():
    """A placeholder that does not exist is the type's fault, a parameter that is not given the submit's."""
    with pytest.raises(BadSettings, match=r"unknown placeholder '{usr}'"):
        expand_key("{usr}", user="u", type="t", params={})
    with pytest.raises(BadValue, match="needs parameter 'lang', which is not given"):
        expand_key("{param.lang}", user="u", type="t", params={})
    with pytest.raises(BadValue, match="user: 'a/b' cannot stand"):
        expand_key("{user}", user="a/b", type="t", params={})


@pytest.mark.parametrize(
    "template",
    ["{usr}", "{param.}", "{param}", "{}", "{user", "a}", "../{user}", "{{user}}", "{param.no}", ""],
)
def test_a_template_is_checked_before_it_is_used(template):
    """A type's key that can never be a key is refused when the type is read."""
    with pytest.raises(BadValue):
        check_template(template, {"yes": None})
    check_template("{user}/{type}.{param.yes}", {"yes": None})
    check_template("{param.any}", None)


def test_references_to_versions():
    """KEY, KEY@VERSION and KEY@latest are told apart."""
    assert parse_model_ref("a/b") == ("a/b", None)
    assert parse_model_ref("a/b@latest") == ("a/b", "latest")
    assert parse_model_ref("a/b@12") == ("a/b", 12)


@pytest.mark.parametrize("text", ["a@", "a@x", "a@-1", "a@1.5", "a@1@2", "@1", "a@٣", "a@1\n", ""])
def test_what_is_no_reference_is_refused(text):
    """Anything else after the `@` is a wrong value."""
    with pytest.raises(BadValue):
        parse_model_ref(text)


@pytest.mark.parametrize("text", ["a@0", "a@9223372036854775808", "a@" + "9" * 5000])
def test_a_version_that_cannot_be_is_not_found(text):
    """A number no store can hold is simply not there."""
    with pytest.raises(NotFound):
        parse_model_ref(text)
