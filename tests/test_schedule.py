"""The scheduler's rules, each by a small case and all by a week of sixty workers."""

from __future__ import annotations

import bisect
import heapq
import random
from typing import NamedTuple

import pytest

from trainq.base.errors import BadValue
from trainq.domain.devices import Device, check_type, is_of_type
from trainq.domain.offer import Offer, Taken, besides, choose, fits, free, lacks
from trainq.domain.schedule import (
    Head,
    Kept,
    Lane,
    Lanes,
    Rules,
    Running,
    Use,
    closed_models,
    over_user_limit,
    pick,
    to_keep_for,
)
from trainq.domain.shape import PLAIN, Shape, asked_gpus, decoded, encoded, shape_of

A100, V100 = "NVIDIA A100-SXM4-80GB", "NVIDIA-TeslaV100"


def gpus(n: int, name: str = A100, vram_mib: int | None = 81920, first: int = 0) -> tuple[Device, ...]:
    return tuple(Device(f"GPU-{name[-4:]}-{i}", name, vram_mib) for i in range(first, first + n))


@pytest.mark.parametrize("asked", ["a100", "A100", "nvidia.a100", "NVIDIA-A100", "a100-80gb", "80gb a100", None])
def test_a_type_fits_by_its_words(asked):
    """Q10: names are compared by words, whatever stands between them; no type is any."""
    assert is_of_type(asked, A100)


@pytest.mark.parametrize("asked", ["a10", "a1000", "v100", "a100-40gb", "sxm"])
def test_a_part_of_a_word_is_another_type(asked):
    """Q10: `a10` is no `a100`."""
    assert not is_of_type(asked, A100)


def test_a_type_as_it_is_written():
    """Q10: case, `-` and `.` do not count."""
    assert check_type("NVIDIA.TeslaV100") == check_type("nvidia-teslav100") == "nvidia-teslav100"
    assert is_of_type(check_type("nvidia.teslav100"), V100)
    assert not is_of_type("a100", V100)
    for wrong in ("", "-", 7, None, "x" * 300):
        with pytest.raises(BadValue):
            check_type(wrong)


def test_no_gpus_is_type_cpu():
    """Q12: gpus 0 means type cpu, and type cpu means gpus 0; a type alone is one GPU."""
    assert asked_gpus(None, None) == asked_gpus(0, None) == asked_gpus(None, "cpu") == asked_gpus(0, "cpu") == (0, None)
    assert asked_gpus(None, "a100") == (1, "a100")
    assert asked_gpus(2, None) == (2, None)
    with pytest.raises(BadValue):
        asked_gpus(2, "cpu")
    with pytest.raises(BadValue):
        asked_gpus(0, "a100")


def test_the_text_of_a_shape_is_canonical():
    """Two requests are one shape exactly when they ask for the same; what others wrote there is none."""
    one = shape_of({"cwd": "/", "gpus": 2, "gpu_type": "a100", "vram": 10**9, "on": ["h2", "h1", "h2"]})
    assert one == Shape(2, "a100", 954, on=("h1", "h2"))
    assert encoded(shape_of({"cwd": "/"})) == ""
    assert decoded("") == PLAIN
    assert decoded(encoded(one)) == one
    for forged in (
        "{",
        "[]",
        "7",
        '{"gpus":-1}',
        '{"gpus":1.5}',
        '{"gpus":true}',
        '{"what":1}',
        '{"on":[1]}',
        '{"gpu_type":7}',
        "null",
    ):
        assert decoded(forged) is None


def test_gpus_are_of_one_model_and_the_smallest_that_will_do():
    """E16: the big cards are left to who needs them; a card others compute on is nobody's."""
    small, big = gpus(2, "NVIDIA T4", 16384), gpus(2)
    offer = Offer("h1", 8, big + small)
    assert choose(Shape(1), offer) == small[:1]
    assert choose(Shape(2, vram_mib=20000), offer) == big
    assert choose(Shape(3), offer) is None
    used = offer._replace(devices=(big[0]._replace(foreign="pid 7 of bob"), big[1], *small))
    assert choose(Shape(1, "a100"), free(used, ())) == (big[1],)
    assert choose(Shape(2, "a100"), free(used, ())) is None


def test_what_runs_is_taken():
    """E16: each slot's GPUs are disjoint, and what is asked for of processors and memory is counted."""
    offer = Offer("h1", 3, gpus(2), 8, 1000)
    left = free(offer, [Taken(Shape(1, cpus=6, mem_mib=900), (offer.devices[0].id,))])
    assert left == Offer("h1", 2, offer.devices[1:], 2, 100)
    assert fits(Shape(1), left)
    assert not fits(Shape(2), left)
    assert not fits(Shape(cpus=3), left)
    assert not fits(PLAIN, free(offer, [Taken(PLAIN)] * 3))


@pytest.mark.parametrize(
    ("shape", "taken", "said"),
    [
        (Shape(on=("h2",)), 0, "is not h2"),
        (Shape(not_on=("h1",)), 0, "is excluded by --not-on"),
        (Shape(cpus=9), 0, "has 8 cpus, needs 9"),
        (Shape(mem_mib=2048), 0, "has 1000M memory, needs 2G"),
        (Shape(3, "a100"), 0, "has 2 a100, needs 3"),
        (Shape(1, "v100"), 0, "has no v100"),
        (Shape(1, "a100", 90000), 0, "its a100 have 80G, needs 87.8906G"),
        (Shape(2, "a100"), 1, "1 of 2 a100 free, needs 2"),
        (PLAIN, 2, "all 2 slots are taken"),
        (PLAIN, 1, None),
    ],
)
def test_why_not_here(shape, taken, said):
    """Q34: each worker has its reason in words; what no waiting will change comes first."""
    offer = Offer("h1", 2, gpus(2), 8, 1000)
    left = free(offer, [Taken(Shape(1), (offer.devices[n].id,)) for n in range(taken)])
    assert lacks(shape, offer, left) == said
    assert fits(shape, left) == (said is None)


def lanes_of(*shapes: Shape, user_id: int = 1) -> list[Lane]:
    return [Lane(n, "default", user_id, shape) for n, shape in enumerate(shapes, 1)]


def heads(*rows: tuple[int, int, int]):
    """A finder of heads (lane, priority, job)."""
    known = [Head(*row) for row in rows]
    return lambda lanes: [head for head in known if head.lane_id in {lane.id for lane in lanes}]


def test_what_fits_passes_what_does_not():
    """Q17: the head needs 8 of 4 GPUs, the second one: it starts; with strict_fifo nothing does."""
    lanes, find = lanes_of(Shape(8), Shape(1)), heads((1, 0, 1), (2, 0, 2))
    left = Offer("h1", 4, gpus(4))
    found = pick(Lanes(lanes), find, left, Rules(), Use())
    assert found is not None
    assert found.lane.id == 2
    assert found.devices == left.devices[:1]
    assert pick(Lanes(lanes), find, left, Rules(strict_fifo=True), Use()) is None
    assert pick(Lanes(lanes), heads((1, 0, 2), (2, 0, 1)), left, Rules(strict_fifo=True), Use()).lane.id == 2


def test_priority_then_the_oldest():
    """E07: the highest priority first, in it the oldest, whatever the shape."""
    lanes, left = lanes_of(PLAIN, Shape(1), Shape(cpus=1)), Offer("h1", 4, gpus(4), 4)
    assert pick(Lanes(lanes), heads((1, 0, 1), (2, 5, 9), (3, 5, 8)), left, Rules(), Use()).lane.id == 3


def test_fair_is_whose_turn_it_is():
    """Issue: with `fair` the user with the least running goes first, inside a priority."""
    lanes = [Lane(1, "default", 1, PLAIN), Lane(2, "default", 2, PLAIN)]
    use = Use([Running(1, 1, None, 3, 0), Running(2, 2, None, 1, 0)])
    left = Offer("h1", 4)
    assert pick(Lanes(lanes), heads((1, 0, 1), (2, 0, 2)), left, Rules(fair=True), use).lane.id == 2
    assert pick(Lanes(lanes), heads((1, 0, 1), (2, 0, 2)), left, Rules(), use).lane.id == 1
    assert pick(Lanes(lanes), heads((1, 1, 1), (2, 0, 2)), left, Rules(fair=True), use).lane.id == 1


def test_lanes_are_remembered_once_for_all_remainders_that_leave_room_for_them():
    """A worker among thousands of lanes has a thousand remainders, not as many copies of all lanes."""
    known = Lanes(lanes_of(*(Shape(cpus=n) for n in range(10))))
    some = [known.fitting(Offer("h1", 1, (), cpus, 100 + cpus)) for cpus in (5, 20, 30, 6, 5)]
    assert [len(one) for one in some] == [6, 10, 10, 7, 6]
    assert some[1] is some[2]


def test_limits_are_by_type_user_and_array():
    """Q16: the GPUs that run count by the words of their model; limits of a user and of an array close their lanes."""
    use = Use([Running(1, 1, A100, 2, 3), Running(2, 2, V100, 1, 4), Running(1, 3, None, 5, 0, array_id=9)])
    rules = Rules({"a100": 4, "teslav100": 4}, {"gpus": 4, "running": 7})
    assert closed_models(Shape(2, "a100"), [A100], rules, use) == {A100: "a100"}
    assert closed_models(Shape(1, "a100"), [A100], rules, use) == {}
    assert closed_models(Shape(1), [A100, V100], rules, use) == {V100: "teslav100"}
    assert over_user_limit(Lane(1, "default", 1, PLAIN), rules, use) == "7 jobs of a user run at once"
    assert over_user_limit(Lane(1, "default", 2, Shape(1)), rules, use) == "4 GPUs of a user are used at once"
    assert over_user_limit(Lane(1, "default", 2, PLAIN), rules, use) is None
    for lane in (3, 4):  # a task that asks for more memory waits in a lane of its own
        assert over_user_limit(Lane(lane, "default", 3, PLAIN, 9, 5), rules, use) == "5 of its array run at once"
    assert over_user_limit(Lane(5, "default", 3, PLAIN, 8, 5), rules, use) is None
    assert (
        pick(Lanes([Lane(1, "default", 3, Shape(2, "a100"))]), heads((1, 0, 1)), Offer("h", 4, gpus(4)), rules, use)
        is None
    )


def test_a_worker_is_kept_for_what_waited_too_long():
    """Q17: what a kept worker has free is left to the big job; what that does not need others may have."""
    big, small, plain = lanes_of(Shape(4), Shape(1), PLAIN)
    kept, offer = Kept(1, big), Offer("h1", 4, gpus(4))
    taken = [Taken(Shape(1), (offer.devices[0].id,))]
    find = heads((1, 0, 1), (2, 0, 2), (3, 0, 3))
    found = pick(Lanes([big, small, plain]), find, free(offer, taken), Rules(), Use(), kept, offer)
    assert found is not None
    assert found.lane == plain
    assert (
        pick(
            Lanes([big, small, plain]),
            find,
            free(offer, [*taken, Taken(PLAIN), Taken(PLAIN)]),
            Rules(),
            Use(),
            kept,
            offer,
        )
        is None
    )
    started = pick(Lanes([big, small, plain]), find, free(offer, ()), Rules(), Use(), kept, offer)
    assert started is not None
    assert started.job_id == 1
    assert len(started.devices) == 4
    assert besides(free(offer, taken), Shape(2), offer).devices == offer.devices[3:]
    assert to_keep_for([Kept(7, Lane(9, "default", 1, Shape(8))), kept], offer, ()) == kept
    assert to_keep_for([kept], offer, {1}) is None


def test_what_a_worker_is_kept_for_breaks_no_limit():
    """Q16, Q17: it fits, and its user, or its type, is at the limit: it waits, and what it needs is left free for it."""
    big, small, plain = lanes_of(Shape(2), Shape(3), PLAIN)
    offer = Offer("h1", 4, gpus(4))
    find = heads((1, 0, 1), (2, 0, 2), (3, 0, 3))
    rules = Rules(gpus={"a100": 3})
    use = Use([Running(7, 9, offer.devices[0].name, 1, 2)])
    found = pick(Lanes([big, small, plain]), find, free(offer, ()), rules, use, Kept(1, big), offer)
    assert found is not None
    assert (found.lane, found.job_id) == (plain, None)
    rules = Rules(per_user={"running": 1})
    use = Use([Running(big.user_id, 9, None, 1, 0)])
    assert pick(Lanes([big, small, plain]), find, free(offer, ()), rules, use, Kept(1, big), offer) is None


# a week ----------------------------------------------------------------------------------------------------------

HOUR, WEEK = 3600.0, 7 * 86400.0
WORKERS = [("a100", 81920, 4)] * 24 + [("a100", 81920, 8)] * 6 + [("v100", 16384, 4)] * 18 + [(None, 0, 0)] * 12
SHAPES = [
    (30, PLAIN), (25, Shape(1, "v100")), (25, Shape(1, "a100")), (10, Shape(1)), (8, Shape(2, "a100", 40000)),
    (6, Shape(4, "a100")), (3, Shape(4, "v100")), (2, Shape(8, "a100")), (5, Shape(cpus=8)),
]  # fmt: skip
RULES = Rules({"v100": 68}, {"gpus": 96, "running": 150}, fair=True)
RESERVE_AFTER = 4 * HOUR


class Job(NamedTuple):
    id: int
    lane: Lane
    at: float
    run_s: float
    priority: int


class Hall:
    """Sixty workers over one queue, by the clock of its events."""

    def __init__(self, jobs: list[Job], rules: Rules, reserve_after: float | None, workers=WORKERS) -> None:
        self.jobs = {job.id: job for job in jobs}
        self.rules, self.reserve_after = rules, reserve_after
        self.offers = [
            Offer(f"h{n}", 8, tuple(Device(f"{n}-{i}", f"NVIDIA {kind}", vram) for i in range(count)), 16)
            for n, (kind, vram, count) in enumerate(workers)
        ]
        self.models = {offer.host: offer.devices[0].name if offer.devices else None for offer in self.offers}
        self.taken: list[dict[int, Taken]] = [{} for _ in self.offers]
        self.kept: dict[int, Kept] = {}
        self.use = Use()
        self.waiting: dict[Lane, list[tuple[int, int]]] = {}
        self.started: dict[int, float] = {}
        self.order: list[tuple[float, int]] = []
        self.events = [(job.at, 0, job.id, -1) for job in jobs]
        heapq.heapify(self.events)
        self.now = 0.0

    def heads_of(self, lanes):
        return [
            Head(lane.id, -self.waiting[lane][0][0], self.waiting[lane][0][1]) for lane in lanes if self.waiting[lane]
        ]

    def run(self) -> None:
        while self.events:
            self.now, kind, number, place = heapq.heappop(self.events)
            job = self.jobs[number]
            if kind == 0:
                heapq.heappush(self.waiting.setdefault(job.lane, []), (-job.priority, number))
                for n in range(len(self.offers)):
                    if fits(job.lane.shape, free(self.offers[n], self.taken[n].values())) and self.fill(n):
                        break
            else:
                one = self.taken[place].pop(number)
                self.count(job, place, one, -1)
                self.fill(place)
                for n in range(len(self.offers)) if self.rules.per_user or self.rules.gpus else ():
                    if len(self.taken[n]) < self.offers[n].slots:
                        self.fill(n)

    def count(self, job: Job, place: int, one: Taken, sign: int) -> None:
        model = self.models[self.offers[place].host] if one.devices else None
        self.use.add(Running(job.lane.user_id, job.lane.id, model, sign, sign * len(one.devices)))

    def fill(self, n: int) -> bool:
        """A turn of a worker: claim until nothing fits."""
        some = False
        lanes = [lane for lane, waiting in self.waiting.items() if waiting]
        while lanes:
            self.reserve(n, lanes)
            left = free(self.offers[n], self.taken[n].values())
            found = (
                pick(Lanes(lanes), self.heads_of, left, self.rules, self.use, self.kept.get(n), self.offers[n])
                if left.slots
                else None
            )
            if found is None:
                break
            if found.job_id is None:
                _, number = heapq.heappop(self.waiting[found.lane])
            else:
                number = found.job_id
                self.waiting[found.lane].remove((-self.jobs[number].priority, number))
                heapq.heapify(self.waiting[found.lane])
            for place in [place for place, kept in self.kept.items() if kept.job_id == number]:
                del self.kept[place]
            some = True
            job = self.jobs[number]
            one = Taken(found.lane.shape, tuple(device.id for device in found.devices))
            assert len(set(found.devices)) == found.lane.shape.gpus
            assert not set(one.devices) & {device for other in self.taken[n].values() for device in other.devices}
            self.taken[n][number] = one
            self.count(job, n, one, 1)
            self.check()
            self.started[number] = self.now
            heapq.heappush(self.events, (self.now + job.run_s, 1, number, n))
            lanes = [lane for lane in lanes if self.waiting[lane]]
        return some

    def reserve(self, n: int, lanes: list[Lane]) -> None:
        if self.reserve_after is None or n in self.kept:
            return
        overdue = sorted(
            (self.jobs[self.waiting[lane][0][1]].at, self.waiting[lane][0][1], lane)
            for lane in lanes
            if self.now - self.jobs[self.waiting[lane][0][1]].at > self.reserve_after
            and over_user_limit(lane, self.rules, self.use) is None
        )
        found = to_keep_for(
            [Kept(number, lane) for _, number, lane in overdue],
            self.offers[n],
            {kept.job_id for kept in self.kept.values()},
        )
        if found is not None and not fits(found.lane.shape, free(self.offers[n], self.taken[n].values())):
            self.kept[n] = found

    def check(self) -> None:
        assert all(n <= self.rules.per_user.get("running", n) for n in self.use.by_user.values())
        assert all(n <= self.rules.per_user.get("gpus", n) for n in self.use.gpus_by_user.values())
        assert all(self.use.of_type(name) <= most for name, most in self.rules.gpus.items())
        for offer, taken in zip(self.offers, self.taken, strict=True):
            assert len(taken) <= offer.slots


def week(seed: int, n: int = 10_000) -> list[Job]:
    dice = random.Random(seed)
    shapes = dice.choices([shape for _, shape in SHAPES], [weight for weight, _ in SHAPES], k=n)
    lanes: dict[tuple[int, Shape], Lane] = {}
    jobs, arrivals = [], sorted(dice.uniform(0, WEEK * 0.95) for _ in range(n))
    for number, (shape, at) in enumerate(zip(shapes, arrivals, strict=True), 1):
        user = min(int(dice.expovariate(0.5)), 7)
        lane = lanes.setdefault((user, shape), Lane(len(lanes) + 1, "default", user, shape))
        jobs.append(Job(number, lane, at, min(dice.lognormvariate(8.5, 1.1), 30 * HOUR), dice.choice((0, 0, 0, 1))))
    return jobs


class List(Hall):
    """The same jobs on the same workers by a planner who knows how long each will run: the largest that fits first, and no
    limits. An offline list schedule (Graham 1969), to compare with."""

    def fill(self, n: int) -> bool:
        some = False
        while (left := free(self.offers[n], self.taken[n].values())).slots:
            for size, number in self.listed():
                shape = self.jobs[number].lane.shape
                devices = choose(shape, left) if fits(shape, left) else None
                if devices is None:
                    continue
                self.order.remove((size, number))
                one = self.taken[n][number] = Taken(shape, tuple(device.id for device in devices))
                self.count(self.jobs[number], n, one, 1)
                self.started[number], some = self.now, True
                heapq.heappush(self.events, (self.now + self.jobs[number].run_s, 1, number, n))
                break
            else:
                return some
        return some

    def listed(self) -> list[tuple[float, int]]:
        for waiting in self.waiting.values():
            for _, number in waiting:
                job = self.jobs[number]
                bisect.insort(self.order, (-job.run_s * (job.lane.shape.gpus or 0.01), number))
            waiting.clear()
        return self.order


def gpu_seconds(hall: Hall, until: float) -> float:
    """What the GPUs had computed by then."""
    return sum(
        (min(until, at + hall.jobs[number].run_s) - at) * hall.jobs[number].lane.shape.gpus
        for number, at in hall.started.items()
        if at < until
    )


def stream(n: int) -> list[Job]:
    """A big job, and small ones without an end that would always fit before it."""
    big, small = Lane(1, "default", 1, Shape(4, "v100")), Lane(2, "default", 2, Shape(1, "v100"))
    dice = random.Random(3)
    jobs = [Job(1, big, 100.0, HOUR, 0)]
    jobs += [Job(number, small, number * 20.0, dice.uniform(0.5, 2) * HOUR, 0) for number in range(2, n)]
    return jobs


def test_nobody_starves():
    """Q17: a big job that is always passed starts within `reserve_after` and the longest run; without that, after the rest."""
    jobs = stream(3000)
    host = [("v100", 16384, 4)]
    with_it, without = Hall(jobs, Rules(), RESERVE_AFTER, host), Hall(jobs, Rules(), None, host)
    with_it.run()
    without.run()
    last = max(without.started.values())
    assert with_it.started[1] <= RESERVE_AFTER + 2 * HOUR + 100
    assert without.started[1] > last - 6 * HOUR


@pytest.mark.timeout(600)
def test_a_week_of_sixty_workers(record_property):
    """Issue: 60 workers, 10,000 jobs, a week: never over a limit (looked at after each start), nobody starves, and the GPUs
    compute at least 0.9 of what a planner who knows all run times gets out of them."""
    jobs = week(7)
    hall, offline = Hall(jobs, RULES, RESERVE_AFTER), List(jobs, Rules(), None)
    hall.run()
    offline.run()
    assert len(hall.started) == len(offline.started) == len(jobs)
    longest = max(job.run_s for job in jobs)
    waits = {job.id: hall.started[job.id] - job.at for job in jobs}
    utilisation = gpu_seconds(hall, WEEK) / gpu_seconds(offline, WEEK)
    worst = max(waits.values())
    of_big = [waits[job.id] for job in jobs if job.lane.shape.gpus == 8]
    print(
        f"utilisation {utilisation:.3f} of the list schedule, longest wait {worst / HOUR:.1f} h, of 8-GPU jobs"
        f" {max(of_big) / HOUR:.1f} h, longest run {longest / HOUR:.1f} h"
    )
    assert utilisation >= 0.9
    assert max(of_big) < RESERVE_AFTER + len(of_big) * longest
