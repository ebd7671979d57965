"""Durations, sizes and times: every documented spelling, and nothing else."""

from __future__ import annotations

import math
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainq.base.errors import BadValue
from trainq.base.units import (
    duration,
    exact_duration,
    local_short,
    moment,
    rfc3339,
    show_duration,
    show_size,
    size,
)
from trainq.base.words import did_you_mean, nearest, quoted

NOW = 1_800_000_000.5


@pytest.fixture(params=["UTC", "Europe/Berlin", "America/St_Johns"], autouse=True)
def zone(request, monkeypatch):
    monkeypatch.setenv("TZ", request.param)
    time.tzset()
    yield request.param
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90s", 90), ("30m", 1800), ("2h", 7200), ("1d", 86400), ("0.5s", 0.5), ("0s", 0), ("1.5h", 5400),
        ("1h30m", 5400), ("1d2h3m4s", 93784), ("01:30:00", 5400), ("100:00:01", 360001), ("0:00:30", 30), (" 5s ", 5),
    ],
)  # fmt: skip
def test_durations_are_read(text, seconds):
    """Durations need a unit and may have a fraction; HH:MM:SS stands too."""
    assert duration(text) == seconds


@pytest.mark.parametrize("text", ["90", "1.5", "+90", "1e3", ".5"])
def test_a_bare_number_is_refused_with_the_right_spelling(text):
    """A bare number has no unit: the message shows how to write it."""
    with pytest.raises(BadValue, match=r"no unit: write [0-9.]+s"):
        duration(text)
    with pytest.raises(BadValue, match=r"no unit: write [0-9.]+M"):
        size(text)
    if "." not in text and "e" not in text:
        with pytest.raises(BadValue, match="write 90s"):
            duration(text)


@pytest.mark.parametrize(
    "text",
    ["", " ", "s", "-5s", "-5", "nan", "nans", "inf", "1e400s", "9" * 400 + "d", "9" * 5000 + "s", "101000d", "5x", "5 s",
     "1m1h", "1:2", "1:60:00", "1:00:60", "٣s", "5s\n5s", "\udcff", "5s\x00"],
)  # fmt: skip
def test_nonsense_is_no_duration(text):
    """Negative, endless, without digits, in the wrong order: one line, never a traceback."""
    with pytest.raises(BadValue) as error:
        duration(text)
    assert error.value.message.isprintable()


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("18G", 18 << 30), ("18GiB", 18 << 30), ("512MiB", 512 << 20), ("18000M", 18000 << 20), ("1GB", 10**9),
        ("1.5G", 3 << 29), ("100B", 100), ("1k", 1024), ("1kb", 1000), ("2T", 2 << 40), ("0M", 0), ("0.1K", 102),
    ],
)  # fmt: skip
def test_sizes_are_read(text, count):
    """G and GiB are powers of 1024, GB of 1000."""
    assert size(text) == count


@pytest.mark.parametrize(
    "text",
    [
        "",
        "G",
        "-1G",
        "nanG",
        "1iB",
        "1X",
        "1 G",
        "9" * 30 + "P",
        "9" * 5000 + "G",
        "8192P",
        "\udcffG",
        "1G\n"[:-1] + "\n1G",
    ],
)
def test_nonsense_is_no_size(text):
    """Nothing but a number and its unit is a size."""
    with pytest.raises(BadValue) as error:
        size(text)
    assert error.value.message.isprintable()


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0.00s"), (0.05, "0.05s"), (0.999, "1.0s"), (3.2, "3.2s"), (9.96, "10s"), (42, "42s"), (59.6, "1m00s"),
        (65, "1m05s"), (3599.7, "1h00m"), (3720, "1h02m"), (183600, "2d03h"), (-5, "-5.0s"), (math.nan, "?"), (math.inf, "?"),
    ],
)  # fmt: skip
def test_durations_are_shown_short(seconds, text):
    """No rounding ever shows 60 seconds or 60 minutes."""
    assert show_duration(seconds) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0B"), (1023, "1023B"), (1024, "1KiB"), (1536, "1.5KiB"), (18 << 30, "18GiB"), ((1 << 20) - 1, "1MiB"), (1 << 62, "4096PiB")],
)  # fmt: skip
def test_sizes_are_shown_short(count, text):
    """The unit grows before the number has four digits."""
    assert show_size(count) == text


@given(st.floats(0, 3e9) | st.integers(0, 3 * 10**9) | st.sampled_from([0.1, 0.25, 1e-9, 5e-324, 86400, 90, 300]))
def test_exact_durations_come_back(seconds):
    """What doctor shows as a setting can be pasted into trainq.toml."""
    assert duration(exact_duration(seconds)) == pytest.approx(seconds, rel=1e-12, abs=1e-12)
    if seconds == int(seconds):
        assert duration(exact_duration(seconds)) == seconds


@given(st.integers(0, 2**62))
def test_sizes_come_back_rounded(count):
    """A shown size is a size."""
    assert size(show_size(count)) == pytest.approx(count, rel=0.06)


@given(st.text() | st.from_regex(r"[0-9.]{1,8}[smhdGMKiB:+-]{0,4}", fullmatch=True))
def test_no_text_ends_in_anything_but_a_number_or_bad_value(text):
    """Whatever is typed, the answer is a finite number of at least 0, or BadValue in one line."""
    for read in (duration, size, lambda t: moment(t, NOW), lambda t: moment(t, NOW, past=True)):
        try:
            value = read(text)
        except BadValue as error:
            value = 0 if error.message.isprintable() else -1
        assert 0 <= value < math.inf


def test_rfc_3339_is_read():
    """An RFC 3339 time is a moment, whatever the local zone."""
    assert moment("2027-01-15T08:00:00Z", NOW) == 1_800_000_000
    assert moment("2027-01-15T08:00:00.250Z", NOW) == 1_800_000_000.25
    assert moment("2027-01-15T10:30:00+02:30", NOW) == 1_800_000_000
    assert moment("2027-01-15t08:00:00z", NOW) == 1_800_000_000


def test_a_date_without_zone_is_local():
    """`2026-11-30 18:00` means what the clock on the wall says."""
    expected = time.mktime((2026, 11, 30, 18, 0, 0, 0, 0, -1))
    assert moment("2026-11-30 18:00", NOW) == expected
    assert moment("2026-11-30T18:00:30", NOW) == expected + 30
    assert moment("2026-11-30", NOW) == expected - 18 * 3600


@given(st.integers(0, 23), st.integers(0, 59), st.floats(1e9, 3e9))
def test_a_time_of_day_is_the_next_or_the_last_one(hour, minute, now):
    """`18:00` is the next one (for --since the last), across days and changes of the clock."""
    ahead, behind = (moment(f"{hour:02d}:{minute:02d}", now, past=past) for past in (False, True))
    assert now < ahead <= now + 25.1 * 3600
    assert now - 25.1 * 3600 <= behind <= now


def test_plus_is_from_now():
    """`+2h` is in two hours; for --since a bare `2h` is two hours ago."""
    assert moment("+2h", NOW) == NOW + 7200
    assert moment("2h", NOW, past=True) == NOW - 7200
    assert moment("30000d", 5.0, past=True) == 0


@pytest.mark.parametrize(
    "text",
    ["", "now", "2h", "+2", "+-2h", "25:00", "18:60", "2026-02-30", "2026-11-30 24:30", "0000-01-01", "1969-01-01T00:00:00Z",
     "2026-11-30T18:00:00+99:00", "1800000000", "\udcff", "12:00\n"[:-1] + "x"],
)  # fmt: skip
def test_nonsense_is_no_time(text):
    """A time that does not exist is refused, as is a bare number."""
    with pytest.raises(BadValue):
        moment(text, NOW)


@given(st.floats(0, 253402300000))
def test_written_times_are_read_back(epoch):
    """What JSON shows is a time that any command takes."""
    text = rfc3339(epoch)
    assert len(text) == 24
    assert moment(text, NOW) == pytest.approx(epoch, abs=0.000_6)


def test_rounding_carries_over():
    """Half a millisecond before midnight is the next day, never `60.000`."""
    assert rfc3339(86399.9996) == "1970-01-02T00:00:00.000Z"
    assert rfc3339(0.0014) == "1970-01-01T00:00:00.001Z"


@pytest.mark.parametrize("epoch", [math.nan, math.inf, 1e300])
def test_no_number_is_no_time(epoch):
    """A value out of range is refused by name."""
    with pytest.raises(BadValue):
        rfc3339(epoch)
    with pytest.raises(BadValue):
        local_short(epoch)


def test_local_times_shorten_with_nearness():
    """Tables show only what differs from today."""
    at = time.mktime((2026, 11, 30, 18, 0, 5, 0, 0, -1))
    assert local_short(at) == "2026-11-30 18:00"
    assert local_short(at, at + 60) == "18:00:05"
    assert local_short(at, at - 40 * 86400) == "11-30 18:00"
    assert local_short(at, at + 60 * 86400) == "2026-11-30 18:00"


def test_messages_name_things_in_one_printable_line():
    """Odd bytes in what was typed never reach the terminal raw."""
    assert quoted("a\nb\udcff\x1b[31m").isprintable()
    assert len(quoted("x" * 5000)) < 100
    assert len(quoted(["x" * 5000])) < 100
    assert quoted(10**5000) == "a very long number"
    assert nearest("zombi_after", ["zombie_after", "grace"]) == "zombie_after"
    assert nearest("xyz", ["zombie_after"]) is None
    assert did_you_mean("qqq", ["b", "a"]) == "; known: a, b"
    assert did_you_mean("qqq", []) == ""
