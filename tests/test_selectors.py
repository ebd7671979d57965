"""Selectors: every documented form, and that nothing typed ends in anything but an answer or a clear error."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainq.base.errors import BadValue, NotFound
from trainq.domain.selectors import (
    LARGEST_ID,
    Filter,
    Fingerprint,
    Ids,
    Key,
    Last,
    Named,
    Tasks,
    parse_filter,
    parse_selector,
    parse_states,
)
from trainq.domain.states import STATES


@pytest.mark.parametrize(
    ("text", "selector"),
    [
        ("12", Ids(((12, 12),))), ("12,15-20", Ids(((12, 12), (15, 20)))), ("007", Ids(((7, 7),))), ("3-3", Ids(((3, 3),))),
        ("last", Last(0)), ("last~0", Last(0)), ("last~2", Last(2)),
        ("key:K", Key("K")), ("key:a b,1:x", Key("a b,1:x")), ("key:\udcff", Key("\udcff")),
        ("fp:9f86", Fingerprint("9f86")), ("fp:9F86", Fingerprint("9f86")),
        ("12[3]", Tasks(12, ((3, 3),))), ("12[0-9,15]", Tasks(12, ((0, 9), (15, 15)))),
        ("@name", Named("name")), ("@12", Named("12")), ("@a b\n", Named("a b\n")), ("@@x", Named("@x")),
    ],
)  # fmt: skip
def test_every_form_is_read(text, selector):
    """Selectors are the same everywhere."""
    got = parse_selector(text)
    assert got == selector
    assert type(got) is type(selector)


def test_huge_ranges_stay_ranges():
    """`1-10**18` costs no memory, and a range beyond the largest id ends there."""
    assert parse_selector(f"1-{10**18}") == Ids(((1, 10**18),))
    assert parse_selector("1-" + "9" * 5000) == Ids(((1, LARGEST_ID),))
    assert parse_selector(f"0-{LARGEST_ID + 1}") == Ids(((0, LARGEST_ID),))


def test_one_id_is_told_from_a_list():
    """A single id that is missing is an error; in a list it is not."""
    assert Ids(((12, 12),)).single == 12
    assert Ids(((12, 13),)).single is None
    assert Ids(((12, 12), (12, 12))).single is None


@pytest.mark.parametrize(
    "text",
    ["nope", "", " ", "a12", "12a", "12 13", "٣", "12[", "12[x]", "12[]", "12[3", "12,13[1]", "first", "Last", "k:x", "-", ",", "train.py",
     "9223372036854775808", "9" * 5000, "12[" + "9" * 30 + "]", "last~" + "9" * 30, "1,99999999999999999999", "\udcff", "1\n"],
)  # fmt: skip
def test_what_is_no_job_is_not_found(text):
    """Q32: `cancel nope` exits 3; so does an id that no store can hold."""
    with pytest.raises(NotFound) as error:
        parse_selector(text)
    assert error.value.exit == 3
    assert error.value.message.isprintable()
    assert error.value.hint


@pytest.mark.parametrize(
    "text", ["20-15", "12,", ",12", "12,,13", "-5", "5-", "1-2-3", "last~", "last~x", "last~-1", "key:", "fp:", "fp:xyz", "fp:" + "a" * 65, "@"]
)  # fmt: skip
def test_a_broken_form_is_refused(text):
    """A form begun and not finished is a wrong value, with the right spelling."""
    with pytest.raises(BadValue) as error:
        parse_selector(text)
    assert error.value.exit == 2
    assert error.value.message.isprintable()


def test_a_state_as_selector_hints_at_the_filter():
    """`cancel running` is told `--state running`."""
    with pytest.raises(NotFound) as error:
        parse_selector("running")
    assert error.value.hint == "--state running"


@given(st.text() | st.text(alphabet="0123456789,-~[]lastkeyfp:@"))
def test_no_text_ends_in_a_traceback(text):
    """Whatever is typed is a selector, BadValue or NotFound; and every id fits the store."""
    try:
        got = parse_selector(text)
    except (BadValue, NotFound):
        return
    if isinstance(got, Ids):
        assert all(0 <= first <= last <= LARGEST_ID for first, last in got.ranges)


def test_filters_are_read():
    """List filters `--state --queue --user --tag --type --since --before`."""
    got = parse_filter(
        now=10_000.0, state=["errored,canceled", "errored"], queue=["gpu"], user=["u"], tag=["t"], type=["ok"],
        since="2h", before="1970-01-01T02:00:00Z",
    )  # fmt: skip
    assert got == Filter(("errored", "canceled"), ("gpu",), ("u",), ("t",), ("ok",), 2800.0, 7200.0)
    assert parse_filter(now=0.0) == Filter()


@pytest.mark.parametrize("word", ["runing", "", "RUNNING", "running,", "active"])
def test_an_unknown_state_lists_the_states(word):
    """An unknown state is refused with all that there are."""
    with pytest.raises(BadValue) as error:
        parse_states([word])
    assert all(state in error.value.message for state in STATES)
    with pytest.raises(BadValue, match=r"did you mean running\?"):
        parse_states(["runing"])
