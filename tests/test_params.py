"""Parameters reach the trainer as they were meant, or are refused by name."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainq.base.errors import BadParam, BadValue
from trainq.domain.params import ParamSpec, coerce, param_variables, parse_value, split_assignment
from trainq.domain.types import TypeSpec

OPEN = TypeSpec("ok", run=("x",))


def declares(**params):
    return TypeSpec(
        "ok",
        run=("x",),
        declares_params=True,
        params={name: ParamSpec(name, **rules) for name, rules in params.items()},
    )


def values(finite=True):
    leaves = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
    return st.recursive(leaves, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=10)


def same(a, b):
    """Equal in value and in kind: 1, 1.0 and true are three values."""
    return json.dumps(a, sort_keys=True) == json.dumps(b, sort_keys=True)


@given(values())
def test_what_is_json_passes_unchanged(value):
    """Q07: a value that parses as JSON reaches the trainer with its kind."""
    assert same(parse_value(json.dumps(value)), value)


@given(st.text())
def test_every_text_is_a_value(text):
    """Any text is a value, and what is not text can be written as JSON that every reader takes."""
    value = parse_value(text)
    assert value == text or same(json.loads(json.dumps(value, allow_nan=False)), value)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0.36", 0.36), ("true", True), ('"0.33"', "0.33"), ("null", None), ("[1, 2]", [1, 2]), ("1e3", 1000.0),
        ('{"a":1,"a":2}', {"a": 2}), ("123456789012345678901234567890", 123456789012345678901234567890), ("-0.0", -0.0),
        ("NaN", "NaN"), ("-Infinity", "-Infinity"), ("[NaN]", "[NaN]"), ("1e999", "1e999"), ("", ""), ("abc", "abc"),
        ("True", "True"), ("007", "007"), ("[1", "[1"), ("a,b", "a,b"), ("\udcff", "\udcff"), ("9" * 5000, "9" * 5000),
        ("1_000", "1_000"), ("'x'", "'x'"),
    ],
)  # fmt: skip
def test_json_or_text(text, value):
    """What is not JSON is text; so are NaN, Infinity, a number that overflows, and one too long to read."""
    assert same(parse_value(text), value)


@pytest.mark.parametrize(
    "text", ["[" * 101 + "]" * 101, "[" * 100_000 + "]" * 100_000, '{"a":' * 101 + "1" + "}" * 101]
)
def test_endless_nesting_is_refused(text):
    """Nesting that no JSON reader survives is refused, without a traceback."""
    with pytest.raises(BadValue, match="nested more than 100 deep"):
        parse_value(text)
    assert parse_value("[" * 100 + "]" * 100)


def test_an_assignment_is_split_at_the_first_equals_sign():
    """One value, commas and further `=` included."""
    assert split_assignment("k=v") == ("k", "v")
    assert split_assignment("k=a,b=c d") == ("k", "a,b=c d")
    assert split_assignment("größe.x=") == ("größe.x", "")


@pytest.mark.parametrize("text", ["", "k", "=v", "\udcff=1"])
def test_a_bad_assignment_is_refused(text):
    """No name, no `=`, or a name that JSON cannot hold: BadValue."""
    with pytest.raises(BadValue) as error:
        split_assignment(text)
    assert error.value.message.isprintable()


def test_a_type_without_params_takes_any():
    """Q07: parameters pass through unchanged, default {}."""
    got = coerce(OPEN, {"a": "0.36", "b": "true", "s": '"0.33"', "t": "x"}, from_text=True)
    assert same(got, {"a": 0.36, "b": True, "s": "0.33", "t": "x"})
    assert coerce(OPEN, {}, from_text=True) == {}
    assert coerce(OPEN, {"a": "0.36"}, from_text=False) == {"a": "0.36"}


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        ("int", "5", 5), ("int", "+5", 5), ("int", "-007", -7), ("int", " 5 ", 5), ("int", "9" * 100, int("9" * 100)),
        ("float", "0.5", 0.5), ("float", "1", 1.0), ("float", "1e-4", 1e-4), ("float", ".5", 0.5), ("float", "5.", 5.0),
        ("bool", "true", True), ("bool", "No", False), ("bool", "1", True), ("bool", "off", False),
        ("text", "5", "5"), ("text", '"5"', '"5"'), ("text", "", ""), ("text", "NaN", "NaN"), ("text", "\udcff\n", "\udcff\n"),
        ("json", "[1]", [1]), ("json", '"a"', "a"), ("json", "null", None),
    ],
)  # fmt: skip
def test_a_declared_type_coerces(kind, text, value):
    """A declared type coerces what was typed; a declared text takes it raw."""
    assert same(coerce(declares(p={"type": kind}), {"p": text}, from_text=True), {"p": value})


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("int", "5.0"), ("int", "abc"), ("int", ""), ("int", "1_0"), ("int", "٣"), ("int", "9" * 5000), ("int", "true"),
        ("float", "abc"), ("float", "nan"), ("float", "inf"), ("float", "1e999"), ("float", "1_0"), ("float", ""),
        ("float", "٣"), ("float", "-"), ("float", "9" * 400),
        ("bool", "2"), ("bool", ""), ("json", "abc"), ("json", "NaN"), ("json", "[" * 200 + "]" * 200),
    ],
)  # fmt: skip
def test_a_value_that_does_not_fit_is_refused_by_name(kind, text):
    """Q08: `lr=abc` for a float names type, parameter and value."""
    with pytest.raises(BadParam) as error:
        coerce(declares(lr={"type": kind}), {"lr": text}, from_text=True)
    assert error.value.exit == 2
    assert error.value.message.startswith("type ok, parameter lr: ")
    assert error.value.message.isprintable()


def test_json_values_keep_their_kind():
    """Lines of --from give JSON values: a whole number fits a float, nothing else is bent."""
    spec = declares(i={"type": "int"}, f={"type": "float"}, b={"type": "bool"}, t={"type": "text"}, j={"type": "json"})
    good = {"i": 3, "f": 1, "b": True, "t": "x", "j": {"a": [1]}}
    assert same(coerce(spec, good, from_text=False), {**good, "f": 1.0})
    assert same(coerce(spec, {**good, "i": 3.0}, from_text=False)["i"], 3)
    wrong = {
        "i": ["3", 3.5, True, None, math.nan, math.inf],
        "f": ["1", True, None, math.nan, math.inf, 10**400],
        "b": [1, "true", None],
        "t": [1, None],
        "j": [math.nan, object()],
    }
    for name, raws in wrong.items():
        for raw in raws:
            with pytest.raises(BadParam, match=f"parameter {name}: "):
                coerce(spec, {**good, name: raw}, from_text=False)


def test_unknown_and_missing_parameters_are_refused():
    """Q08: a type that declares parameters refuses others with the nearest name, and wants each without default."""
    spec = declares(lr={"type": "float"}, epochs={"type": "int", "default": 3, "has_default": True})
    assert coerce(spec, {"lr": "1"}, from_text=True) == {"lr": 1.0, "epochs": 3}
    with pytest.raises(BadParam, match=r"parameter epoch: no such parameter; did you mean epochs\?"):
        coerce(spec, {"epoch": "1"}, from_text=True)
    with pytest.raises(BadParam, match="parameter lr: missing, and it has no default"):
        coerce(spec, {"epochs": "1"}, from_text=True)
    with pytest.raises(BadParam, match=r"no such parameter$"):
        coerce(declares(), {"x": "1"}, from_text=True)


def test_choices_and_ranges_hold():
    """Q08: a value outside its choices or range is refused, the bounds themselves are in."""
    spec = declares(
        k={"type": "text", "choices": ("a", "b"), "default": "a", "has_default": True},
        x={"type": "float", "min": 0.0, "max": 1.0, "default": 0.5, "has_default": True},
    )
    assert coerce(spec, {"x": "0", "k": "b"}, from_text=True) == {"k": "b", "x": 0.0}
    assert coerce(spec, {"x": "1"}, from_text=True)["x"] == 1.0
    for bad, said in (
        ({"x": "-0.1"}, "at least 0.0"),
        ({"x": "1.1"}, "at most 1.0"),
        ({"k": "c"}, "one of 'a', 'b'"),
    ):
        with pytest.raises(BadParam, match=said):
            coerce(spec, bad, from_text=True)


@given(st.sampled_from(["int", "float", "bool", "text", "json"]), st.text() | st.from_regex(r"[-+0-9.eE_]{0,9}"))
def test_no_text_ends_in_anything_but_a_value_or_bad_param(kind, text):
    """Whatever is typed for a declared parameter, the answer is a value of its kind or BadParam."""
    try:
        got = coerce(declares(p={"type": kind}), {"p": text}, from_text=True)["p"]
    except BadParam:
        return
    wanted = {"int": int, "float": float, "bool": bool, "text": str, "json": object}[kind]
    assert isinstance(got, wanted)


def test_variables_of_parameters():
    """TRAINQ_PARAM_<NAME>: upper case, other characters `_`; text raw, all else compact JSON."""
    got = param_variables({"lr": 0.1, "my-name": "a b", "größe": [1, {"x": None}], "b": True, "odd": "\udcff"})
    assert got == {
        "TRAINQ_PARAM_LR": "0.1",
        "TRAINQ_PARAM_MY_NAME": "a b",
        "TRAINQ_PARAM_GR__E": '[1,{"x":null}]',
        "TRAINQ_PARAM_B": "true",
        "TRAINQ_PARAM_ODD": "\udcff",
    }


def test_names_that_collide_are_both_unset():
    """Two parameters whose variable name would be the same are unset, as is a value no variable can hold."""
    assert param_variables({"a-b": 1, "a_b": 2, "A.B": 3, "c": 4}) == {"TRAINQ_PARAM_C": "4"}
    assert list(param_variables({"big": "x" * 131_072, "fits": "x" * 131_000})) == ["TRAINQ_PARAM_FITS"]
    assert param_variables({"nul": "a\0b", "lone": "\ud800", "json": "\\u0000"}) == {"TRAINQ_PARAM_JSON": "\\u0000"}
