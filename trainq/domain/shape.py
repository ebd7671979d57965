"""What a job needs of a worker, as one value: jobs of one shape are the same to the scheduler. Pure.

The text of a shape is canonical: what is not asked for is left out, so that two jobs have the same text exactly when
they ask for the same.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from trainq.base.errors import BadValue, GpuLimit, UnknownGpuType
from trainq.domain.devices import CPU, tokens

if TYPE_CHECKING:
    from collections.abc import Mapping

MIB: Final = 2**20


class Shape(NamedTuple):
    """Asked of one worker: `gpus` of one model, of a type (None: any) with so much memory each; processors; memory; and
    which hosts will do."""

    gpus: int = 0
    gpu_type: str | None = None
    vram_mib: int = 0
    cpus: int = 0
    mem_mib: int = 0
    on: tuple[str, ...] = ()
    not_on: tuple[str, ...] = ()


PLAIN: Final = Shape()
"""Nothing but a slot."""


def asked_gpus(gpus: int | None, gpu_type: str | None, vram: int | None = None) -> tuple[int, str | None]:
    """How many GPUs and of which type a request means: a type or a memory alone means one, `cpu` and 0 mean each other.

    Raises BadValue where they contradict.
    """
    if gpu_type == CPU and gpus:
        raise BadValue(f"gpu type cpu means no GPU, and {gpus} are asked for", hint="leave one of them out")
    if gpu_type == CPU:
        gpus, gpu_type = 0, None
    if gpus is None:
        gpus = 0 if gpu_type is None and vram is None else 1
    if gpus == 0 and (gpu_type is not None or vram is not None):
        what = f"they are to be {gpu_type}" if gpu_type else "they are to have so much memory"
        raise BadValue(f"no GPU is asked for, and {what}", hint="leave one of them out")
    return gpus, gpu_type


def require_type(gpu_type: str | None, gpus: int, limits: Mapping[str, int]) -> None:
    """A type that is asked for is one of `[limits] gpus`, where there are any, and as many of it may be used at once.

    Raises UnknownGpuType, GpuLimit.
    """
    if not limits or not gpus or gpu_type is None:
        return
    asked = tokens(gpu_type)
    known = [name for name in limits if tokens(name) <= asked or asked <= tokens(name)]
    if not known:
        raise UnknownGpuType(f"no such GPU type: {gpu_type}; known types: {', '.join(sorted(limits))}")
    for name in known:
        if tokens(name) <= asked and gpus > limits[name]:
            said = f"of type {name} {limits[name] or 'none'} may be used, and {gpus} are asked for"
            raise GpuLimit(f"{said}: [limits] gpus", hint="ask for fewer, or for another --gpu-type")


def require_gpus(gpus: int, gpu_type: str | None, limits: Mapping[str, int], per_user: Mapping[str, int]) -> None:
    """So many of this type may be had at all, by `[limits]` `gpus` and `per_user`. Raises UnknownGpuType, GpuLimit."""
    require_type(gpu_type, gpus, limits)
    most = per_user.get("gpus", gpus)
    if gpus > most:
        raise GpuLimit(f"{gpus} GPUs are asked for, and a user may use {most} at once", hint="[limits] per_user")


def shape_of(spec: Mapping[str, Any]) -> Shape:
    """The shape of a job by its document. TypeError or ValueError where that was changed by other hands."""
    if not spec.keys() & _NAMES:
        return PLAIN
    return Shape(
        gpus=int(spec.get("gpus", 0)),
        gpu_type=spec.get("gpu_type"),
        vram_mib=-(-int(spec.get("vram", 0)) // MIB),
        cpus=int(spec.get("cpus", 0)),
        mem_mib=-(-int(spec.get("mem", 0)) // MIB),
        on=tuple(sorted(set(spec.get("on", ())))),
        not_on=tuple(sorted(set(spec.get("not_on", ())))),
    )


_NAMES: Final = frozenset({"gpus", "gpu_type", "vram", "cpus", "mem", "on", "not_on"})


def encoded(shape: Shape) -> str:
    """The canonical text; that of `PLAIN` is empty."""
    if shape == PLAIN:
        return ""
    return json.dumps(
        {name: value for name, value in shape._asdict().items() if value}, separators=(",", ":"), sort_keys=True
    )


def decoded(text: str) -> Shape | None:
    """The shape of a text; None for one that trainq has not written, since on a group's queue any member can write there."""
    if not text:
        return PLAIN
    try:
        found = json.loads(text)
        shape = Shape(**{**found, **{name: tuple(found[name]) for name in ("on", "not_on") if name in found}})
    except (TypeError, ValueError, RecursionError):
        return None
    numbers = (shape.gpus, shape.vram_mib, shape.cpus, shape.mem_mib)
    if not all(type(number) is int and 0 <= number < 2**53 for number in numbers):
        return None
    words = (*shape.on, *shape.not_on, "" if shape.gpu_type is None else shape.gpu_type)
    return shape if all(isinstance(word, str) for word in words) else None


def words(shape: Shape) -> str:
    """The shape as people say it: `2 a100 of 40G, 4 cpus, 32G, on h1`; empty for a plain one."""
    parts = []
    if shape.gpus:
        kind = shape.gpu_type or ("GPU" if shape.gpus == 1 else "GPUs")
        parts.append(f"{shape.gpus} {kind}" + (f" of {size_words(shape.vram_mib)}" if shape.vram_mib else ""))
    if shape.cpus:
        parts.append(f"{shape.cpus} cpu{'s' if shape.cpus > 1 else ''}")
    if shape.mem_mib:
        parts.append(f"{size_words(shape.mem_mib)} memory")
    if shape.on:
        parts.append(f"on {' or '.join(shape.on)}")
    if shape.not_on:
        parts.append(f"not on {' or '.join(shape.not_on)}")
    return ", ".join(parts)


def size_words(mib: int) -> str:
    """A number of MiB for people."""
    return f"{mib / 1024:g}G" if mib >= 1024 else f"{mib}M"
