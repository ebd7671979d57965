"""What a job needs of a worker, as one value: jobs of one shape are the same to the scheduler. Pure.

The text of a shape is canonical: what is not asked for is left out, so that two jobs have the same text exactly when
they ask for the same.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from trainq.base.errors import BadValue
from trainq.domain.devices import CPU

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


def asked_gpus(gpus: int | None, gpu_type: str | None) -> tuple[int, str | None]:
    """How many GPUs and of which type a request means: a type alone means one, `cpu` and 0 mean each other.

    Raises BadValue where they contradict.
    """
    if gpu_type == CPU:
        if gpus:
            raise BadValue(f"gpu type cpu means no GPU, and {gpus} are asked for")
        return 0, None
    if gpus is None:
        return (0, None) if gpu_type is None else (1, gpu_type)
    if gpus == 0 and gpu_type is not None:
        raise BadValue(f"no GPU is asked for, and they are to be {gpu_type}", hint="leave one of them out")
    return gpus, gpu_type


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
    words = (*shape.on, *shape.not_on, shape.gpu_type or "")
    return shape if all(isinstance(word, str) for word in words) else None


def words(shape: Shape) -> str:
    """The shape as people say it: `2 a100 of 40G, 4 cpus, 32G, on h1`; empty for a plain one."""
    parts = []
    if shape.gpus:
        kind = shape.gpu_type or ("GPU" if shape.gpus == 1 else "GPUs")
        parts.append(f"{shape.gpus} {kind}" + (f" of {_size(shape.vram_mib)}" if shape.vram_mib else ""))
    if shape.cpus:
        parts.append(f"{shape.cpus} cpu{'s' if shape.cpus > 1 else ''}")
    if shape.mem_mib:
        parts.append(f"{_size(shape.mem_mib)} memory")
    if shape.on:
        parts.append(f"on {' or '.join(shape.on)}")
    if shape.not_on:
        parts.append(f"not on {' or '.join(shape.not_on)}")
    return ", ".join(parts)


def _size(mib: int) -> str:
    return f"{mib / 1024:g}G" if mib >= 1024 else f"{mib}M"
