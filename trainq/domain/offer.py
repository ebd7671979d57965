"""What a worker has to give, what of it is free, and whether a shape fits. Pure.

A job takes one slot, its GPUs (all of one model, each given to one job at a time), and what it asks for of processors and
memory: these are counted, not enforced. A GPU that others compute on is left alone.
"""

from __future__ import annotations

import functools
import json
from typing import TYPE_CHECKING, NamedTuple, TypeGuard

from trainq.domain.devices import Device, is_of_type
from trainq.domain.documents import document
from trainq.domain.shape import Shape, size_words

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable


class Offer(NamedTuple):
    """So much of a worker's host; `host` answers to `--on`."""

    host: str
    slots: int
    devices: tuple[Device, ...] = ()
    cpus: int = 0
    mem_mib: int = 0


class Taken(NamedTuple):
    """What one running job holds of its worker."""

    shape: Shape
    devices: tuple[str, ...] = ()


def offer_document(offer: Offer, users: Collection[int] | None = None) -> str:
    """An offer as it stands in the row of its worker, whose host and slots have columns of their own. `users`: whose jobs
    it runs, None: everybody's."""
    gpus = [{"id": one.id, "name": one.name, "vram_mib": one.vram_mib, "foreign": one.foreign} for one in offer.devices]
    doc = {"cpus": offer.cpus, "mem_mib": offer.mem_mib, "gpus": gpus}
    return json.dumps(doc if users is None else {**doc, "users": list(users)})


def offer_of(host: str, slots: int, text: object) -> Offer:
    """The offer in a row; without what trainq has not written there, since on a group's queue any member can."""
    doc: dict[str, object] = document(text)
    gpus = doc.get("gpus")
    devices = [
        Device(one["id"], one["name"], vram, foreign)
        for one in (gpus if isinstance(gpus, list) else ()) if isinstance(one, dict)
        if isinstance(one.get("id"), str) and isinstance(one.get("name"), str)
        if (vram := one.get("vram_mib")) is None or _is_number(vram)
        if isinstance(foreign := one.get("foreign"), (str, type(None)))
    ]  # fmt: skip
    cpus, mem_mib = (found if _is_number(found := doc.get(name)) else 0 for name in ("cpus", "mem_mib"))
    return Offer(host, slots, tuple(devices), cpus, mem_mib)


def _is_number(found: object) -> TypeGuard[int]:
    return type(found) is int and 0 <= found < 2**53


def users_of(text: object) -> frozenset[int] | None:
    """Whose jobs the worker of such a row runs; None: everybody's."""
    users = document(text).get("users")
    return frozenset(one for one in users if isinstance(one, int)) if isinstance(users, list) else None


def is_host(shape: Shape, host: str) -> bool:
    """Whether this host will do."""
    return (not shape.on or host in shape.on) and host not in shape.not_on


def suitable(shape: Shape, devices: Iterable[Device]) -> dict[str, list[Device]]:
    """The devices that would do for a shape, by model."""
    models: dict[str, list[Device]] = {}
    for device in devices:
        if is_of_type(shape.gpu_type, device.name) and (device.vram_mib is None or device.vram_mib >= shape.vram_mib):
            models.setdefault(device.name, []).append(device)
    return models


def fits(shape: Shape, offer: Offer, limited: Collection[str] = ()) -> bool:
    """Whether a worker that had nothing else to do could run it. `limited`: models of which no more may be given now."""
    return (
        offer.slots > 0
        and is_host(shape, offer.host)
        and shape.cpus <= offer.cpus
        and shape.mem_mib <= offer.mem_mib
        and (not shape.gpus or choose(shape, offer, limited) is not None)
    )


def choose(shape: Shape, offer: Offer, limited: Collection[str] = ()) -> tuple[Device, ...] | None:
    """The GPUs to give, None if there are not as many. Of models that would do the one with the least memory, so that
    the big ones are left to who needs them; of these those that come first."""
    if not shape.gpus:
        return ()
    return next((some for some in _choices(shape, offer.devices) if some[0].name not in limited), None)


@functools.lru_cache(maxsize=1000)
def _choices(shape: Shape, devices: tuple[Device, ...]) -> list[tuple[Device, ...]]:
    """What could be given of each model, best first; remembered, since what is free is the same again and again."""
    models = suitable(shape, devices).values()
    enough = (tuple(some[: shape.gpus]) for some in models if len(some) >= shape.gpus)
    return sorted(enough, key=lambda some: some[0].vram_mib or 0)


def free(offer: Offer, taken: Iterable[Taken]) -> Offer:
    """What is left of an offer beside what runs; GPUs that others compute on are not."""
    slots, cpus, mem = offer.slots, offer.cpus, offer.mem_mib
    gone: set[str] = set()
    for one in taken:
        slots, cpus, mem = slots - 1, cpus - one.shape.cpus, mem - one.shape.mem_mib
        gone.update(one.devices)
    devices = tuple(device for device in offer.devices if device.id not in gone and device.foreign is None)
    return Offer(offer.host, max(0, slots), devices, max(0, cpus), max(0, mem))


def besides(left: Offer, kept: Shape, whole: Offer) -> Offer:
    """What others may take of what is free (`left` of the `whole`) while it is kept for a job of this shape: nothing of what
    that job waits for."""
    devices = left.devices
    if kept.gpus:
        enough = {name for name, some in suitable(kept, whole.devices).items() if len(some) >= kept.gpus}
        models = {name: some for name, some in suitable(kept, devices).items() if name in enough}
        hold = max(models.values(), key=len, default=[])[: kept.gpus]
        devices = tuple(device for device in devices if device not in hold)
    return left._replace(
        slots=max(0, left.slots - 1),
        devices=devices,
        cpus=max(0, left.cpus - kept.cpus),
        mem_mib=max(0, left.mem_mib - kept.mem_mib),
    )


def lacks(shape: Shape, offer: Offer, left: Offer) -> str | None:
    """Why a shape does not fit here now, in words; None when it does. What no waiting will change comes first."""
    if not offer.slots:
        return "runs no jobs"
    if not is_host(shape, offer.host):
        return (
            f"is not {' or '.join(shape.on)}" if shape.on and offer.host not in shape.on else "is excluded by --not-on"
        )
    for name, asked, there, now in (
        ("cpus", shape.cpus, offer.cpus, left.cpus), ("memory", shape.mem_mib, offer.mem_mib, left.mem_mib),
    ):  # fmt: skip
        size = str if name == "cpus" else size_words
        if asked > there:
            return f"has {size(there)} {name}, needs {size(asked)}"
        if asked > now:
            return f"{size(now)} of {size(there)} {name} free, needs {size(asked)}"
    if shape.gpus:
        lack = _lacks_gpus(shape, offer, left)
        if lack is not None:
            return lack
    return None if left.slots else f"all {offer.slots} slots are taken" if offer.slots > 1 else "its slot is taken"


def _lacks_gpus(shape: Shape, offer: Offer, left: Offer) -> str | None:
    kind = shape.gpu_type or "GPU"
    there = suitable(shape, offer.devices)
    most = max(there.values(), key=len, default=[])
    if not most:
        typed = [device for device in offer.devices if is_of_type(shape.gpu_type, device.name)]
        return (
            f"has no {kind}"
            if not typed
            else f"its {kind} have {size_words(typed[0].vram_mib or 0)}, needs {size_words(shape.vram_mib)}"
        )
    if len(most) < shape.gpus:
        return f"has {len(most)} {kind}, needs {shape.gpus}"
    now = max((len(devices) for devices in suitable(shape, left.devices).values()), default=0)
    if now >= shape.gpus:
        return None
    others = sum(device.foreign is not None for device in most)
    used = f" ({others} used by others)" if others else ""
    return f"{now} of {len(most)} {kind} free{used}, needs {shape.gpus}"
