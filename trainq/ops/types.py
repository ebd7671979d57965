"""The registry of model types, as documents, and whether what they name is there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trainq.base.errors import NotFound
from trainq.base.words import did_you_mean, quoted
from trainq.domain.types import load_types

if TYPE_CHECKING:
    from trainq.domain.types import TypeSpec
    from trainq.ops.queue import Queue


def all_types(queue: Queue) -> list[dict[str, Any]]:
    """Every type of trainq.toml. Raises BadSettings if one is broken."""
    return [document(spec) for spec in load_types(queue.settings).values()]


def one(queue: Queue, name: str) -> dict[str, Any]:
    """The type of this name. Raises NotFound."""
    types = load_types(queue.settings)
    if name not in types:
        raise NotFound(f"no such type: {quoted(name)}{did_you_mean(name, types)}", hint="trainq types list")
    return document(types[name])


def problems(queue: Queue) -> list[str]:
    """What would make a job of a type fail before it trains, as seen from here: a program that is not there."""
    import shutil

    found = []
    for spec in load_types(queue.settings).values():
        program = spec.run[0] if spec.run else spec.python
        if program and shutil.which(program) is None:
            found.append(f"type {spec.name}: no program {quoted(program)} is found from here")
    return found


def document(spec: TypeSpec) -> dict[str, Any]:
    """A type as JSON; what it does not say is null."""
    return {
        "name": spec.name,
        "run": list(spec.run) if spec.run else None,
        "call": spec.call,
        "python": spec.python,
        "data": spec.data,
        "model": spec.model,
        "key": spec.key,
        "keep": spec.keep,
        "time_s": spec.time_s,
        "stall_after_s": spec.stall_after_s,
        "retries": spec.retries,
        "queue": spec.queue,
        "gpus": spec.gpus,
        "params": [
            {
                "name": param.name,
                "type": param.type,
                "required": not param.has_default,
                "default": param.default,
                "choices": list(param.choices) or None,
                "min": param.min,
                "max": param.max,
            }
            for param in spec.params.values()
        ]
        if spec.declares_params
        else None,
    }
