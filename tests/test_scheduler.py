"""What one worker may take, asked of a real store: limits over all queues, what it is kept for, rows of other hands."""

from __future__ import annotations

import pytest
import store_builders as build

from trainq.domain.devices import Device
from trainq.domain.offer import Offer
from trainq.domain.schedule import Rules
from trainq.domain.shape import Shape, encoded
from trainq.store.claims import Claimant
from trainq.store.scheduler import Scheduler
from trainq.store.session import LocalSession

LONG_AGO_S = 7200.0


@pytest.fixture
def session(tmp_path):
    session = build.place(tmp_path).session()
    assert isinstance(session, LocalSession)
    with session.writing() as tx:
        assert build.join(tx) == 1
    yield session
    session.close()


def offer(slots: int = 1, gpus: int = 0) -> Offer:
    devices = tuple(Device(f"GPU-{i}", "NVIDIA A100", 81920) for i in range(gpus))
    return Offer("here", slots, devices, 16, 2**16)


def new(shape: Shape | None = None, **more):
    return build.new_job(shape="" if shape is None else encoded(shape), **more)


def claim(session, scheduler: Scheduler, left: Offer | None = None, worker_id: int = 1):
    left = scheduler.offer if left is None else left
    with session.writing() as tx:
        return scheduler.look(tx).claim(Claimant(worker_id, f"w{worker_id}", left.host), left)


def reserve(session, scheduler: Scheduler, left: Offer) -> None:
    with session.writing() as tx:
        scheduler.reserve(tx, 1, left, 0.0)


def wait_long(session, job_id: int) -> None:
    with session.writing() as tx:
        tx.rows("UPDATE job SET eligible_at = eligible_at - ? WHERE id = ?", (LONG_AGO_S, job_id))


@pytest.mark.parametrize("rules", [Rules(gpus={"a100": 4}), Rules(per_user={"gpus": 4})])
def test_a_limit_counts_the_gpus_of_all_queues(session, rules):
    """Q16: what runs in a queue that this worker does not serve is counted as well."""
    build.put(session, new(Shape(3), queue="other"), new(Shape(2)), new(Shape(1)))
    assert claim(session, Scheduler(["other"], None, offer(8, 8), rules)).claim.job_id == 1
    mine = Scheduler(["default"], None, offer(8, 8), rules)
    claimed = claim(session, mine)
    assert claimed is not None
    assert claimed.claim.job_id == 3


def test_a_device_of_another_type_than_text_stops_no_worker(session):
    """E18: on a group's queue any member can write it."""
    build.put(session, new(Shape(1)), new(Shape(1)))
    scheduler = Scheduler(["default"], None, offer(2, 2), Rules(gpus={"a100": 2}))
    assert claim(session, scheduler).claim.job_id == 1
    with session.writing() as tx:
        tx.rows("UPDATE job SET device = x'31', user_id = x'31' WHERE id = 1")
    assert claim(session, scheduler).claim.job_id == 2
