"""Failing system calls: the nth call of a kind that meets one of some files answers with an error (`strace`)."""

from __future__ import annotations

import functools
import re
import shutil
import subprocess
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

import pytest

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

ERRORS = ("ENOSPC", "EIO", "ESTALE")


@functools.cache
def _why_not() -> str | None:
    """Why no system call can be made to fail here; None if it can."""
    if shutil.which("strace") is None:
        return "strace is missing: install the package strace"
    tried = subprocess.run(
        ["strace", "-qq", "-f", "--seccomp-bpf", "-o", "/dev/null", "-e", "trace=fsync", "-e", "inject=fsync:error=EIO", "true"],
        capture_output=True, check=False,
    )  # fmt: skip
    return None if tried.returncode == 0 else f"strace may not trace here: {tried.stderr.decode().strip()}"


def skip_without() -> None:
    """Skip the test, with the reason, where system calls cannot be made to fail."""
    if (why_not := _why_not()) is not None:
        pytest.skip(why_not)


class Fault(NamedTuple):
    """The nth of these calls, and what it answers."""

    call: str
    n: int
    error: str

    def __str__(self) -> str:
        return f"{self.call}:{self.n}:{self.error}"

    @property
    def words(self) -> tuple[str, ...]:
        """As strace takes it."""
        return ("-e", f"trace={self.call}", "-e", f"inject={self.call}:error={self.error}:when={self.n}")


def traced(
    paths: Sequence[str], *words: str, log: Path | str = "/dev/null", children: bool = True, attach: bool = False
) -> tuple[str, ...]:
    """The words that start a program whose calls on these files (all, if none is named) strace looks at.

    Without `children` only the main thread of the program itself: no other one is slowed down or counted. With `attach`
    it is a program that runs already.
    """
    follow = ("-f",) if attach else ("-f", "--seccomp-bpf") if children else ()
    return ("strace", "-qq", *follow, "-o", str(log), *(word for path in paths for word in ("-P", path)), *words)


def counted(log: Path) -> Counter[str]:
    """How often each call stands in a log of strace."""
    return Counter(re.findall(r"^(?:\d+ +)?(\w+)\(", log.read_text(errors="replace"), re.MULTILINE))


def spread(most: int, some: int) -> list[int]:
    """`some` of the numbers up to `most`: the first, the last, and what lies evenly between."""
    if most <= some:
        return list(range(1, most + 1))
    return sorted({1 + round(place * (most - 1) / (some - 1)) for place in range(some)}) if some > 1 else [most]
