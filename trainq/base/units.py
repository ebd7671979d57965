"""Durations, sizes and times: from the words of a user to numbers and back. Pure: the caller says the time.

A bare number is never taken: it has no unit, and a guess makes 90 seconds out of a limit of 90 minutes.
`K M G T P` and `KiB MiB …` are powers of 1024 (what `vram_mib` counts in), `KB MB …` powers of 1000.
Everything that does not fit is `BadValue`, in one line that shows the right spelling.
"""

from __future__ import annotations

import re
import time
from typing import Final

from trainq.base.errors import BadValue
from trainq.base.words import quoted

LONGEST_S: Final = 100 * 366 * 86400.0
LARGEST_BYTES: Final = 2**63 - 1
LAST_MOMENT: Final = 253402300799.0  # the end of the year 9999

_DURATION: Final = (
    r"(?:([0-9]+(?:\.[0-9]+)?)d)?(?:([0-9]+(?:\.[0-9]+)?)h)?"
    r"(?:([0-9]+(?:\.[0-9]+)?)m)?(?:([0-9]+(?:\.[0-9]+)?)s)?"
)
_CLOCK: Final = r"([0-9]{1,6}):([0-5][0-9]):([0-5][0-9](?:\.[0-9]+)?)"
_NUMBER: Final = r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?"
_SIZE: Final = r"([0-9]+(?:\.[0-9]+)?)([kmgtp]?)(i?b)?"
_DATE: Final = (
    r"([0-9]{4}-[0-9]{2}-[0-9]{2})"
    r"(?:[T ]([0-9]{2}:[0-9]{2}(?::[0-9]{2}(?:\.[0-9]{1,9})?)?) ?(Z|[+-][0-9]{2}:[0-9]{2})?)?"
)


def duration(text: str) -> float:
    """Seconds of `90s`, `30m`, `2h`, `1d`, `0.5s`, `1h30m` or `HH:MM:SS`. At most a hundred years."""
    word = text.strip()
    clock = re.fullmatch(_CLOCK, word)
    if clock:
        hours, minutes, rest = clock.groups()
        return _bounded(int(hours) * 3600 + int(minutes) * 60 + float(rest), word)
    parts = re.fullmatch(_DURATION, word) if word else None
    if parts is None:
        if re.fullmatch(_NUMBER, word):
            if word.startswith("-"):
                raise BadValue(f"a duration cannot be negative: {quoted(text)}")
            bare = _show_bare(word)
            raise BadValue(f"duration {quoted(text)} has no unit: write {bare}s, {bare}m or the like")
        raise BadValue(f"not a duration: {quoted(text)}; write it like 90s, 30m, 2h, 1d, 1h30m or 01:30:00")
    days, hours, minutes, seconds = (float(part or 0) for part in parts.groups())
    return _bounded(days * 86400 + hours * 3600 + minutes * 60 + seconds, word)


def _bounded(seconds: float, word: str) -> float:
    if not seconds <= LONGEST_S:
        raise BadValue(f"a duration of more than a hundred years: {quoted(word)}")
    return seconds


def _show_bare(word: str) -> str:
    return word.lstrip("+") if re.fullmatch(r"\+?[0-9]{1,12}(?:\.[0-9]{1,6})?", word) else "90"


def exact_duration(seconds: float) -> str:
    """The shortest spelling that `duration` reads back as the same number: `5m`, `90s`, `0.25s`."""
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds and seconds % length == 0:
            return f"{int(seconds // length)}{unit}"
    return f"{seconds:.12f}".rstrip("0").rstrip(".") + "s"


def show_duration(seconds: float) -> str:
    """Short and for people: `0.05s`, `3.2s`, `42s`, `1m05s`, `1h02m`, `2d03h`; `?` for what is no number."""
    if seconds < 0:
        return "-" + show_duration(-seconds)
    if not seconds < float("inf"):
        return "?"
    if seconds < 0.995:
        return f"{seconds:.2f}s"
    if seconds < 9.95:
        return f"{seconds:.1f}s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    if whole < 86400:
        return f"{whole // 3600}h{whole % 3600 // 60:02d}m"
    return f"{whole // 86400}d{whole % 86400 // 3600:02d}h"


def size(text: str) -> int:
    """Bytes of `18G`, `512MiB`, `18000M`, `1.5GB`, `100B`; upper or lower case."""
    word = text.strip()
    if re.fullmatch(_NUMBER, word):
        if word.startswith("-"):
            raise BadValue(f"a size cannot be negative: {quoted(text)}")
        bare = _show_bare(word)
        raise BadValue(f"size {quoted(text)} has no unit: write {bare}M, {bare}G or the like")
    parts = re.fullmatch(_SIZE, word.lower())
    if parts is None or (parts[3] == "ib" and not parts[2]):
        raise BadValue(f"not a size: {quoted(text)}; write it like 18G, 512MiB, 1.5G or 18000M")
    number, letter, tail = parts.groups()
    base = 1000 if tail == "b" else 1024
    factor: int = base ** ("kmgtp".index(letter) + 1 if letter else 0)
    if len(number) > 40 or float(number) * factor > LARGEST_BYTES:
        raise BadValue(f"a size of more than 8 EiB: {quoted(text)}")
    whole, _, fraction = number.partition(".")
    return int(whole) * factor + (int(fraction) * factor // 10 ** len(fraction) if fraction else 0)


def exact_size(size_bytes: int) -> str:
    """The shortest spelling that `size` reads back as the same number: `100MiB`, `1500B`."""
    for unit, length in (("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size_bytes and size_bytes % length == 0:
            return f"{size_bytes // length}{unit}"
    return f"{size_bytes}B"


def show_size(size_bytes: int) -> str:
    """Short and for people, in powers of 1024: `512B`, `1.5MiB`, `18GiB`. `size` reads it (rounded) back."""
    if size_bytes < 1024:
        return f"{size_bytes}B"
    amount = float(size_bytes)
    for unit in ("KiB", "MiB", "GiB", "TiB", "PiB"):
        amount /= 1024
        if amount < 999.95 or unit == "PiB":
            break
    return f"{amount:.1f}".removesuffix(".0") + unit


def moment(text: str, now: float, *, past: bool = False) -> float:
    """Epoch seconds of an RFC 3339 time, `2026-11-30 18:00` or `2026-11-30` (local), `18:00` or `+2h`.

    `now` is in epoch seconds. `18:00` is the next one; with `past` (for `--since` and the like) the last one,
    and a bare duration `2h` means that long ago.
    """
    word = text.strip()
    if word.startswith("+"):
        return _in_range(now + duration(word[1:]), text)
    if re.fullmatch(r"[0-9]{1,2}:[0-9]{2}", word):
        return _clock_time(word, now, past=past, text=text)
    date = re.fullmatch(_DATE, word, re.IGNORECASE)
    if date:
        return _date_time(*date.groups(), text=text)
    if past and word[-1:] in ("s", "m", "h", "d"):
        return max(0.0, now - duration(word))
    raise _no_moment(text)


def _no_moment(text: str) -> BadValue:
    return BadValue(f"not a time: {quoted(text)}; write it like 2026-11-30T18:00:00Z, '2026-11-30 18:00', 18:00 or +2h")


def _in_range(epoch: float, text: str) -> float:
    if not 0 <= epoch <= LAST_MOMENT:
        raise BadValue(f"a time before 1970 or after 9999: {quoted(text)}")
    return epoch


def _date_time(day: str, clock: str | None, zone: str | None, *, text: str) -> float:
    from datetime import datetime

    clock, _, fraction = (clock or "00:00").partition(".")
    zone = "+00:00" if zone in ("Z", "z") else zone or ""
    try:
        whole = datetime.fromisoformat(f"{day}T{clock}{zone}").timestamp()
    except (ValueError, OverflowError, OSError):  # February 30th, 25 o'clock, the year 0
        raise _no_moment(text) from None
    return _in_range(whole + (float("0." + fraction) if fraction else 0.0), text)


def _clock_time(word: str, now: float, *, past: bool, text: str) -> float:
    hour, minute = (int(part) for part in word.split(":"))
    if hour > 23 or minute > 59:
        raise _no_moment(text)
    today = time.localtime(now)

    def on_day(offset: int) -> float:
        day = (today.tm_year, today.tm_mon, today.tm_mday + offset)
        return time.mktime((*day, hour, minute, 0, 0, 0, -1))

    candidates = [on_day(offset) for offset in (-1, 0, 1)]
    if past:
        return max(at for at in candidates if at <= now)
    return min(at for at in candidates if at > now)


def rfc3339(epoch: float) -> str:
    """UTC with milliseconds: `2026-11-30T18:00:00.000Z`. Quick: lists call it thousands of times."""
    try:
        seconds, millis = divmod(round(epoch * 1000), 1000)
        at = time.gmtime(seconds)
    except (ValueError, OverflowError, OSError):
        raise BadValue(f"not a time: {epoch!r}") from None
    return (
        f"{at[0]:04d}-{at[1]:02d}-{at[2]:02d}T{at[3]:02d}:{at[4]:02d}:{at[5]:02d}.{millis:03d}Z"
    )  # fmt: skip


def local_short(epoch: float, now: float | None = None) -> str:
    """Local time for a table: `18:00:05` on the day of `now`, `11-30 18:00` in its year, else with year."""
    try:
        at = time.localtime(epoch)
        today = time.localtime(now) if now is not None else None
    except (ValueError, OverflowError, OSError):
        raise BadValue(f"not a time: {epoch!r}") from None
    if today is not None and at[:3] == today[:3]:
        return f"{at[3]:02d}:{at[4]:02d}:{at[5]:02d}"
    short = f"{at[1]:02d}-{at[2]:02d} {at[3]:02d}:{at[4]:02d}"
    return short if today is not None and at[0] == today[0] else f"{at[0]:04d}-{short}"
