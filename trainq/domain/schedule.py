"""Which waiting job a worker takes next. Pure.

Jobs of one queue, shape, user and array are a *lane*: they are the same to the scheduler, and only the head of a lane is
looked at, so a claim costs the same behind a million jobs of others. Higher priority first, then (if `fair`) the user
with the least running, then the oldest. A job that does not fit is passed by those that do; one that was passed for
`reserve_after` has a worker kept for it.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, NamedTuple

from trainq.domain.devices import tokens
from trainq.domain.offer import Offer, besides, choose, fits

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from trainq.domain.devices import Device
    from trainq.domain.shape import Shape


REMEMBERED = 1000
"""Of so many different remainders of a worker it is known which lanes fit."""


class Lane(NamedTuple):
    """Jobs that are the same to the scheduler. `most` of an array's tasks may run at once; None: all."""

    id: int
    queue: str
    user_id: int
    shape: Shape
    array_id: int | None = None
    most: int | None = None


class Head(NamedTuple):
    """The job of a lane that is next."""

    lane_id: int
    priority: int
    job_id: int


class Kept(NamedTuple):
    """A job that waited too long, for which a worker is kept."""

    job_id: int
    lane: Lane


class Pick(NamedTuple):
    """What to start: this job of a lane (None: its head, whichever that is), with these GPUs."""

    lane: Lane
    job_id: int | None
    devices: tuple[Device, ...]


class Rules(NamedTuple):
    """What the settings say. `gpus` by type, `per_user` of `gpus` and `running`; a name that is not there has no limit."""

    gpus: Mapping[str, int] = {}
    per_user: Mapping[str, int] = {}
    fair: bool = False
    strict_fifo: bool = False

    @property
    def is_plain(self) -> bool:
        """Whether of all that could start the highest priority comes next, and of these the oldest."""
        return not (self.fair or self.strict_fifo)


class Running(NamedTuple):
    """What runs anywhere: of one user, in one lane, on one model of GPU, under one worker, and of which array."""

    user_id: int
    lane_id: int
    device: str | None
    jobs: int
    gpus: int
    worker_id: int | None = None
    array_id: int | None = None


class Use:
    """What runs anywhere, summed as the limits count it."""

    def __init__(self, running: Iterable[Running] = ()) -> None:
        self.by_user: dict[int, int] = {}
        self.gpus_by_user: dict[int, int] = {}
        self.by_array: dict[int, int] = {}  # over all its lanes: a task that asks for more memory waits in another one
        self.gpus_by_model: dict[str, int] = {}
        for one in running:
            self.add(one)

    def add(self, one: Running) -> None:
        """One that has been started since."""
        self.by_user[one.user_id] = self.by_user.get(one.user_id, 0) + one.jobs
        self.gpus_by_user[one.user_id] = self.gpus_by_user.get(one.user_id, 0) + one.gpus
        if one.array_id is not None:
            self.by_array[one.array_id] = self.by_array.get(one.array_id, 0) + one.jobs
        if one.device is not None:
            self.gpus_by_model[one.device] = self.gpus_by_model.get(one.device, 0) + one.gpus

    def of_type(self, name: str) -> int:
        """GPUs in use whose model is of this type."""
        asked = tokens(name)
        return sum(n for model, n in self.gpus_by_model.items() if asked <= tokens(model))


def limit_of(model: str, gpus: Mapping[str, int]) -> list[str]:
    """The limits of `[limits] gpus` that a model of GPU counts for."""
    return [name for name in gpus if tokens(name) <= tokens(model)]


def over_user_limit(lane: Lane, rules: Rules, use: Use) -> str | None:
    """Which limit of the lane's user or array another job of it would break, in words; None: none."""
    running, gpus = rules.per_user.get("running"), rules.per_user.get("gpus")
    if lane.most is not None and lane.array_id is not None and use.by_array.get(lane.array_id, 0) >= lane.most:
        return f"{lane.most} of its array run at once"
    if running is not None and use.by_user.get(lane.user_id, 0) >= running:
        return f"{running} jobs of a user run at once"
    if gpus is not None and lane.shape.gpus and use.gpus_by_user.get(lane.user_id, 0) + lane.shape.gpus > gpus:
        return f"{gpus} GPUs of a user are used at once"
    return None


def closed_models(shape: Shape, models: Iterable[str], rules: Rules, use: Use) -> dict[str, str]:
    """The models of which a job of this shape may get no GPUs now, each with the limit it would break."""
    closed: dict[str, str] = {}
    if shape.gpus and rules.gpus:
        for model in models:
            for name in limit_of(model, rules.gpus):
                if use.of_type(name) + shape.gpus > rules.gpus[name]:
                    closed[model] = name
    return closed


def open_lanes(lanes: Iterable[Lane], left: Offer, rules: Rules, use: Use) -> list[Lane]:
    """Of lanes that fit into what is free those a job of which breaks no limit."""
    models = {device.name for device in left.devices} if rules.gpus else ()
    return [
        lane
        for lane in lanes
        if over_user_limit(lane, rules, use) is None
        and (not rules.gpus or fits(lane.shape, left, closed_models(lane.shape, models, rules, use)))
    ]


class Among:
    """Lanes to choose from: each by its number, and the `numbers` as the store is asked for their heads, a JSON array."""

    def __init__(self, lanes: Iterable[Lane]) -> None:
        self.by_id = {lane.id: lane for lane in lanes}
        self.numbers = json.dumps([*self.by_id])

    def __iter__(self) -> Iterator[Lane]:
        return iter(self.by_id.values())

    def __len__(self) -> int:
        return len(self.by_id)


class Lanes:
    """The lanes of a worker's queues; `mine` are those whose jobs it runs (`users`; None: everybody's). Which of them fit is
    remembered: what is free on a worker is the same again and again."""

    def __init__(self, lanes: Iterable[Lane], users: Collection[int] | None = None) -> None:
        self.all = Among(lanes)
        self.mine = [lane for lane in self.all if users is None or lane.user_id in users]
        self.has_most = any(lane.most is not None for lane in self.all)
        self._fitting: dict[Offer, Among] = {}
        self._known: dict[tuple[int, ...], Among] = {}  # by number: many remainders leave room for the same lanes

    def fitting(self, left: Offer) -> Among:
        """Those of mine that fit into what is free, whatever the limits."""
        known = self._fitting.get(left)
        if known is None:
            if len(self._fitting) >= REMEMBERED:
                self._fitting.clear()
                self._known.clear()
            known = self._fitting[left] = self._among([lane for lane in self.mine if fits(lane.shape, left)])
        return known

    def _among(self, some: list[Lane]) -> Among:
        numbers = tuple([lane.id for lane in some])
        if numbers not in self._known:
            self._known[numbers] = Among(some)
        return self._known[numbers]


def given(lane: Lane, left: Offer, rules: Rules, use: Use) -> tuple[Device, ...]:
    """The GPUs that a job of an open lane gets."""
    models = {device.name for device in left.devices}
    found = choose(lane.shape, left, closed_models(lane.shape, models, rules, use))
    assert found is not None
    return found


def first(heads: Iterable[Head], lanes: Mapping[int, Lane], rules: Rules, use: Use) -> Head | None:
    """The head that is next; `lanes` by number say whose each is."""
    if rules.fair:
        return min(
            heads,
            key=lambda one: (-one.priority, use.by_user.get(lanes[one.lane_id].user_id, 0), one.job_id),
            default=None,
        )
    return min(heads, key=lambda one: (-one.priority, one.job_id), default=None)


def pick(
    lanes: Lanes, heads_of: Callable[[Among], Sequence[Head]], left: Offer, rules: Rules, use: Use,
    kept: Kept | None = None, whole: Offer | None = None,
) -> Pick | None:  # fmt: skip
    """What to start next on what is free here, None: nothing. `heads_of` finds the heads of some lanes, leaving out those
    nobody waits in; where nothing but priority and age counts (`Rules.is_plain`) the first of them is enough. `kept` is the
    job that this worker is kept for, `whole` then all that it has. Where one lane alone is open its head is not looked for:
    there may be none."""
    if kept is not None:
        if fits(kept.lane.shape, left) and open_lanes([kept.lane], left, rules, use):
            return Pick(kept.lane, kept.job_id, given(kept.lane, left, rules, use))
        assert whole is not None
        left = besides(left, kept.lane.shape, whole)
    fitting = lanes.fitting(left)
    ready = (
        Among(open_lanes(fitting, left, rules, use))
        if fitting and (rules.gpus or rules.per_user or lanes.has_most)
        else fitting
    )
    if not ready:
        return None
    if rules.strict_fifo:
        heads = [one for one in heads_by_queue(lanes.all, heads_of, rules, use) if one.lane_id in ready.by_id]
    elif len(ready) == 1:
        lane = next(iter(ready))
        return Pick(lane, None, given(lane, left, rules, use))
    else:
        heads = list(heads_of(ready))
    head = first(heads, ready.by_id, rules, use)
    if head is None:
        return None
    lane = ready.by_id[head.lane_id]
    return Pick(lane, head.job_id, given(lane, left, rules, use))


def heads_by_queue(lanes: Among, heads_of: Callable[[Among], Sequence[Head]], rules: Rules, use: Use) -> list[Head]:
    """The one job of each queue that may be started where nothing passes another."""
    by_queue: dict[str, list[Head]] = {}
    for head in heads_of(lanes):
        by_queue.setdefault(lanes.by_id[head.lane_id].queue, []).append(head)
    return [one for some in by_queue.values() if (one := first(some, lanes.by_id, rules, use)) is not None]


def to_keep_for(overdue: Sequence[Kept], offer: Offer, kept_elsewhere: Collection[int]) -> Kept | None:
    """The job that a worker is kept for: of those that waited too long (longest first) one that would fit here, had the
    worker nothing else to do, and that no other worker is kept for."""
    whole = offer._replace(devices=tuple(device for device in offer.devices if device.foreign is None))
    return next((one for one in overdue if one.job_id not in kept_elsewhere and fits(one.lane.shape, whole)), None)
