"""GPUs by name: what a request for a type means, and what a worker has to give. Pure.

A device's name is cut into tokens (runs of letters and digits, lower case); a type that is asked for fits a device
whose tokens contain all of its own. So `a100`, `nvidia.a100` and `a100-80gb` all fit an `NVIDIA A100-SXM4-80GB`.

A worker never has more than its own `CUDA_VISIBLE_DEVICES` shows. What that means is the CUDA programming guide's,
5.2.1.1: numbers are those of nvidia-smi; a UUID may be cut as long as it is one GPU's only; empty is none; an entry
that is none ends the list. Two entries for one GPU are no list at all (so PyTorch has found). Where the guide is silent
(a list of both numbers and UUIDs, digits with something behind) an entry counts as none: a worker may have less than
CUDA would show.
"""

from __future__ import annotations

import functools
import re
from typing import TYPE_CHECKING, Final, NamedTuple

from trainq.base.errors import BadValue
from trainq.base.words import quoted

if TYPE_CHECKING:
    from collections.abc import Sequence

CPU: Final = "cpu"
"""The type of a job without GPUs."""

SIMULATED: Final = "sim"
"""How the ids of GPUs that are not there begin, and their name where none was said."""

MOST_SIMULATED: Final = 1024
_PREFIXES: Final = ("GPU-", "MIG-", f"{SIMULATED}-")


class Device(NamedTuple):
    """A GPU, or a part of one that CUDA takes for one (MIG). `id` is what stands in `CUDA_VISIBLE_DEVICES`; `vram_mib`
    is None where it is not known; `foreign` says who else computes on it (words for people), None: nobody. `number` is
    that of the whole GPU in nvidia-smi."""

    id: str
    name: str
    vram_mib: int | None = None
    foreign: str | None = None
    number: int | None = None

    @property
    def is_simulated(self) -> bool:
        """Whether there is no such GPU: it is given out like others, and nothing can compute on it."""
        return self.id.startswith(f"{SIMULATED}-")


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


def parse_sim(text: str, gpu_type: str | None = None) -> tuple[Device, ...]:
    """The devices of `--sim-gpus N[:type[:vram]]`: `2`, `2:a100`, `4:NVIDIA A100-SXM4-80GB:80G`. Raises BadValue.

    `gpu_type` (that of `--gpu-type`) is their name where the text has none.
    """
    count, _, rest = text.partition(":")
    name, _, vram = rest.partition(":")
    if not re.fullmatch("[0-9]{1,9}", count) or text.endswith(":") or (rest and not name.strip()):
        raise BadValue(f"not a number of GPUs to simulate: {quoted(text)}; write it like 2, 2:a100 or 4:a100:80G")
    if int(count) > MOST_SIMULATED:
        raise BadValue(f"{int(count)} GPUs to simulate; at most {MOST_SIMULATED} can be")
    name = name.strip() or gpu_type or SIMULATED
    if check_type(name) == CPU or not name.isprintable():
        raise BadValue(f"{quoted(name)} is no name of a GPU; write it like 2:a100")
    vram_mib = _mib(vram) if vram else None
    return tuple(Device(f"{SIMULATED}-{i}", name, vram_mib, number=i) for i in range(int(count)))


def _mib(text: str) -> int:
    from trainq.base.units import size

    mib = size(text) // 1024**2
    if not mib:
        raise BadValue(f"a GPU with less than a MiB of memory: {quoted(text)}; write it like 80G")
    return mib


def parse_wanted(text: str) -> tuple[str, ...] | None:
    """What `--gpus auto|none|0,1` names: None is all there are, else numbers, ids and beginnings of ids. Raises
    BadValue."""
    word = text.strip()
    if word == "auto":
        return None
    if word == "none":
        return ()
    words = tuple(part.strip() for part in word.split(","))
    for part in words:
        if not re.fullmatch(f"[0-9]{{1,9}}|(?:{'|'.join(_PREFIXES)})[0-9A-Za-z/-]*", part):
            raise BadValue(f"not a GPU: {quoted(part)}; write --gpus auto, none, 0,1 or GPU-8932f937,GPU-36c9561a")
    if len(set(words)) < len(words):
        raise BadValue(f"a GPU is named twice: {quoted(text)}")
    return words


def restrict(devices: Sequence[Device], wanted: Sequence[str] | None, visible: str | None) -> tuple[Device, ...]:
    """The devices that a worker may give out, first those named first.

    `wanted` is what `parse_wanted` gave, `visible` the worker's own `CUDA_VISIBLE_DEVICES` (None: it has none). Raises
    BadValue for one that is named and is not there, or is not visible, and says which are. The number of a GPU in parts
    (MIG) names those of its parts that are visible.
    """
    shown = visible_in(devices, visible)
    if wanted is None:
        return shown
    chosen: list[Device] = []
    for word in wanted:
        named = _named(word, devices)
        if not named:
            raise BadValue(f"there is no GPU {quoted(word)} here; {_list(devices)}")
        if len(named) > 1 and not word.isdecimal():
            raise BadValue(f"more than one GPU begins with {quoted(word)}; {_list(named)}")
        named = [device for device in named if device in shown]
        if not named:
            raise BadValue(f"GPU {word} is not in CUDA_VISIBLE_DEVICES={quoted(visible)}; {_list(shown)}")
        if any(device in chosen for device in named):
            raise BadValue(f"GPU {word} is named twice: {quoted(','.join(wanted))}")
        chosen.extend(named)
    return tuple(chosen)


def visible_in(devices: Sequence[Device], visible: str | None) -> tuple[Device, ...]:
    """The devices that CUDA would show with this `CUDA_VISIBLE_DEVICES`, or fewer; None: all. See the top of the
    module.

    Simulated ones are always visible. The number of a GPU in parts (MIG) is its first part, since that is the one CUDA
    takes; but several parts may be listed, though CUDA shows one process only the first: a worker gives them to
    several.
    """
    if visible is None:
        return tuple(devices)
    real = [device for device in devices if not device.is_simulated]
    shown: list[Device] = []
    words = [word.strip() for word in visible.split(",")]
    for word in words:
        named = _named(word, real) if _kind(word) == _kind(words[0]) else []
        if not named or (len(named) > 1 and not word.isdecimal()):
            break
        if named[0] in shown:
            shown.clear()
            break
        shown.append(named[0])
    return (*shown, *(device for device in devices if device.is_simulated))


def of_type(devices: Sequence[Device], asked: str | None) -> tuple[Device, ...]:
    """Those of the type of `--gpu-type`; None: all. Raises BadValue when there is none of that type."""
    fitting = tuple(device for device in devices if is_of_type(asked, device.name))
    if asked is not None and not fitting:
        raise BadValue(f"there is no GPU of type {quoted(asked)} for this worker; {_list(devices)}")
    return fitting


def _kind(word: str) -> str:
    return "number" if word.isdecimal() else word[:4]


def _named(word: str, devices: Sequence[Device]) -> list[Device]:
    """The devices that a number, an id or the beginning of an id names."""
    if re.fullmatch("[0-9]{1,9}", word):
        return [device for device in devices if device.number == int(word)]
    if not word.startswith(_PREFIXES):
        return []
    exact = [device for device in devices if device.id == word]
    return exact or [device for device in devices if device.id.startswith(word)]


def _list(devices: Sequence[Device]) -> str:
    if not devices:
        return "there is none"
    words = [f"{device.number} ({device.id[:12]}, {device.name})" for device in devices[:8]]
    more = [f"and {len(devices) - 8} more"] if len(devices) > 8 else []
    return "there are: " + ", ".join([*words, *more])
