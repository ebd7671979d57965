"""GPUs by name: what a request for a type means, and what a worker has to give. Pure.

A device's name is cut into tokens (runs of letters and digits, lower case); a type that is asked for fits a device whose
tokens contain all of its own. So `a100`, `nvidia.a100` and `a100-80gb` all fit an `NVIDIA A100-SXM4-80GB`.
"""

from __future__ import annotations

import functools
import re
from typing import Final, NamedTuple

from trainq.base.errors import BadValue
from trainq.base.words import quoted

CPU: Final = "cpu"
"""The type of a job without GPUs."""


class Device(NamedTuple):
    """A GPU. `id` is what stands in `CUDA_VISIBLE_DEVICES`; `vram_mib` is None where it is not known; `foreign` says who
    else computes on it (words for people), None: nobody."""

    id: str
    name: str
    vram_mib: int | None = None
    foreign: str | None = None


@functools.lru_cache(maxsize=4096)
def tokens(name: str) -> frozenset[str]:
    """The words of a device's or a type's name that are compared."""
    return frozenset(re.findall(r"[^\W_]+", name.lower()))


def is_of_type(asked: str | None, device: str) -> bool:
    """Whether a device of this name is one of the type asked for; None: any."""
    return asked is None or tokens(asked) <= tokens(device)


def check_type(value: object) -> str:
    """A type as it is stored: lower case, its words joined by `-`. BadValue when there are none."""
    if not isinstance(value, str):
        raise BadValue(f"the name of a GPU type was expected, not {value!r}")
    words = re.findall(r"[^\W_]+", value.lower())
    if not words or len(value) > 200:
        raise BadValue(f"the name of a GPU type, such as a100, was expected, not {quoted(value)}")
    return "-".join(words)
