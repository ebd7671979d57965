"""What one worker may take, asked of a real store: limits over all queues, what it is kept for, rows of other hands."""

from __future__ import annotations

import contextlib
import json
from random import Random
from types import SimpleNamespace

import pytest
import store_builders as build

from trainq.domain.devices import Device
from trainq.domain.job import Outcome
from trainq.domain.offer import Offer, Taken, free, offer_document, offer_of, users_of
from trainq.domain.schedule import Among, Lane, Rules, Use, first
from trainq.domain.shape import Shape, decoded, encoded
from trainq.ops.why import Bench, serves
from trainq.ops.workers import crew_of
from trainq.store import jobs, lanes, queues, workers
from trainq.store.claims import Claimant
from trainq.store.scheduler import Scheduler
from trainq.store.session import LocalSession
from trainq.worker import turn

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


def test_a_worker_takes_nothing_from_a_paused_queue_even_if_it_is_kept_for_it(session):
    """Q59."""
    build.put(session, new(Shape(2)), new(queue="open"))
    scheduler, whole = Scheduler(["default", "open"], None, offer(4, 2)), offer(4, 2)
    wait_long(session, 1)
    reserve(session, scheduler, free(whole, [Taken(Shape(1), (whole.devices[0].id,))] * 1))
    assert scheduler.kept.job_id == 1
    with session.writing() as tx:
        queues.pause(tx, "default", "queue_paused", None)
    assert claim(session, scheduler).claim.job_id == 2
    assert claim(session, scheduler) is None
    reserve(session, scheduler, whole)
    assert scheduler.kept is None


def test_which_queues_are_paused_is_looked_at_each_time(session):
    """Q59: what is remembered of one set of paused queues is not taken for another."""
    build.put(
        session, *(new(queue=queue) for queue in ("one", "two") * 3), *(new(Shape(1), queue="one") for _ in range(3))
    )
    scheduler = Scheduler(["one", "two"], None, offer(4, 4))
    for paused, wanted in ((["one"], "two"), (["two"], "one"), (["one"], "two"), (["one", "two"], None), ([], "one")):
        with session.writing() as tx:
            for queue in paused:
                queues.pause(tx, queue, "queue_paused", None)
        found = claim(session, scheduler)
        assert (None if found is None else found.row["queue"]) == wanted
        with session.writing() as tx:
            for queue in paused:
                queues.resume(tx, queue)


def test_a_worker_is_not_kept_for_a_job_of_a_user_at_his_limit(session):
    """Q17: nothing stands idle for what the limits keep back, whatever ends here."""
    rules = Rules(per_user={"running": 1})
    build.put(session, new(Shape(1)), new(Shape(2)))
    claim(session, Scheduler(["default"], None, offer(1, 1), rules), worker_id=2)  # elsewhere
    other = build.put(session, new(queue="open"))[0]
    with session.writing() as tx:
        tx.rows("UPDATE lane SET user_id = 2000 WHERE queue = 'open'")
        tx.rows("UPDATE job SET user_id = 2000 WHERE id = ?", (other,))
    wait_long(session, 2)
    scheduler = Scheduler(["default", "open"], None, offer(1, 2), rules)
    reserve(session, scheduler, offer(0))
    claimed = claim(session, scheduler)
    assert claimed is not None
    assert claimed.claim.job_id == other


def test_a_worker_is_kept_no_more_once_a_limit_is_used_up_elsewhere(session):
    """Q16, Q17: the job that it was kept for cannot start now, whatever ends here; a smaller one gets what is free."""
    rules = Rules(gpus={"a100": 2})
    build.put(session, new(Shape(2)), new(Shape(1)), new(Shape(1), queue="other"))
    scheduler = Scheduler(["default"], None, offer(4, 2), rules)
    wait_long(session, 1)
    reserve(session, scheduler, offer(4, 1))
    assert scheduler.kept.job_id == 1
    assert claim(session, scheduler, offer(4, 1)) is None
    assert claim(session, Scheduler(["other"], None, offer(1, 1), rules), worker_id=2).claim.job_id == 3
    assert claim(session, scheduler, offer(4, 1)).claim.job_id == 2


def test_what_a_rolled_back_transaction_has_read_is_forgotten(session):
    """A lane's number is free again when its transaction is rolled back, and the next one may mean another."""
    scheduler = Scheduler(["default"], None, offer(1, 0))
    with contextlib.suppress(ZeroDivisionError), session.writing() as tx:
        jobs.submit(tx, build.submission(), [new()])
        scheduler.look(tx)
        raise ZeroDivisionError
    scheduler.forget()  # as a worker does after a turn that failed
    build.put(session, new(Shape(8)))
    assert claim(session, scheduler) is None


@pytest.mark.parametrize("text", ['{"gpu_type":0,"gpus":1}', '{"gpu_type":[],"gpus":1}', '{"gpu_type":false,"gpus":1}'])
def test_a_shape_that_trainq_has_not_written_is_none(text):
    assert decoded(text) is None


def test_a_device_of_another_type_than_text_stops_no_worker(session):
    """E18: on a group's queue any member can write it."""
    build.put(session, new(Shape(1)), new(Shape(1)))
    scheduler = Scheduler(["default"], None, offer(2, 2), Rules(gpus={"a100": 2}))
    assert claim(session, scheduler).claim.job_id == 1
    with session.writing() as tx:
        tx.rows("UPDATE job SET device = x'31', user_id = x'31' WHERE id = 1")
    assert claim(session, scheduler).claim.job_id == 2


def test_a_job_no_limit_ever_lets_start_keeps_no_worker_from_its_end(session):
    """`--until idle`: nothing here for me."""
    build.put(session, new(Shape(2)))
    for rules in (Rules(gpus={"a100": 1}), Rules(per_user={"gpus": 1})):
        with session.reading() as tx:
            assert not Scheduler(["default"], None, offer(1, 2), rules).look(tx).is_for_me()
    with session.reading() as tx:
        assert Scheduler(["default"], None, offer(1, 2), Rules(gpus={"a100": 2})).look(tx).is_for_me()


def test_a_worker_kept_for_a_job_that_asks_for_more_by_now_is_kept_no_more(session):
    build.put(session, new(Shape(2)))
    scheduler = Scheduler(["default"], None, offer(2, 2))
    wait_long(session, 1)
    reserve(session, scheduler, offer(2, 1))
    claimed = claim(session, Scheduler(["default"], None, offer(2, 2)), worker_id=2)
    build.settle(session, claimed.claim, Outcome("drained", error="x"))
    with session.writing() as tx:
        lane = tx.value("SELECT id FROM lane")
        tx.rows("INSERT INTO lane(queue, user_id, shape, array_id) VALUES('default', 1000, ?, 0)", (encoded(Shape(8)),))
        tx.rows("UPDATE job SET lane_id = ? WHERE id = 1", (lane + 1,))
    assert claim(session, scheduler) is None


def test_nothing_passes_the_first_of_a_strict_queue_however_long_it_waited(session):
    """Q17: `strict_fifo` keeps order."""
    build.put(session, new(Shape(2)), new(Shape(2, cpus=1), priority=9))
    scheduler = Scheduler(["default"], None, offer(2, 2), Rules(strict_fifo=True))
    wait_long(session, 1)
    reserve(session, scheduler, offer(2, 1))
    assert scheduler.kept is None
    wait_long(session, 2)
    reserve(session, scheduler, offer(2, 1))
    assert scheduler.kept.job_id == 2
    build.put(session, new(priority=10))
    assert claim(session, scheduler).claim.job_id == 3


def test_a_worker_is_kept_for_what_others_pass_not_for_what_lacks_only_a_slot(session):
    """A job that any end would let start takes its turn: higher priority runs sooner."""
    build.put(session, new(), new(Shape(cpus=1), priority=9))
    wait_long(session, 1)
    scheduler = Scheduler(["default"], None, offer(1))
    reserve(session, scheduler, offer(0))
    assert scheduler.kept is None
    assert claim(session, scheduler).claim.job_id == 2


def test_a_worker_kept_for_a_job_keeps_what_it_will_be_given(session):
    """Q17: what is free of a model of which there are too few is not what it waits for."""
    few = tuple(Device(f"GPU-x{i}", "NVIDIA V100", 16384) for i in range(2))
    whole = offer(16, 4)._replace(devices=(*few, *offer(16, 4).devices))
    build.put(session, new(Shape(4)), new(Shape(1, "a100")))
    wait_long(session, 1)
    scheduler = Scheduler(["default"], None, whole)
    left = whole._replace(devices=whole.devices[:3])
    reserve(session, scheduler, left)
    assert scheduler.kept.job_id == 1
    assert claim(session, scheduler, left) is None


@pytest.mark.parametrize(
    "text", ["5", "[]", '{"gpus":5}', '{"gpus":null}', '{"gpus":[5,{"id":1,"name":"x"}],"cpus":"x"}']
)
def test_an_offer_that_trainq_has_not_written_is_none(text):
    assert offer_of("h1", 1, text) == Offer("h1", 1)
    vast = json.dumps({"gpus": [{"id": "GPU-0", "name": "x", "vram_mib": 10**400}], "mem_mib": -1, "cpus": 10**400})
    assert offer_of("h1", 1, vast) == Offer("h1", 1)


@pytest.mark.parametrize(
    "change", ["queues = 'x'", "queues = '[5]'", "slots = 'x'", "heartbeat_at = 'x'", "started_at = 1e300", "pid = 'x'", "name = x'31'"]
)  # fmt: skip
def test_a_worker_that_trainq_has_not_written_is_none(session, change):
    """E18: what a member of a group writes there keeps nobody from `status` and `workers`."""
    with session.writing() as tx:
        build.join(tx, "other")
        tx.rows(f"UPDATE worker SET {change} WHERE id = 1")
    with session.reading() as tx:
        assert [one["name"] for one in crew_of(tx, 300.0)] == ["other"]


def test_others_are_told_when_they_may_start_what_they_could_not():
    """On a queue for several hosts nobody looks without a bell before a third of zombie-after has passed."""

    def done(*settled, **more):
        return turn.Done(*[[] for _ in range(8)], None, None, waits=True)._replace(settled=list(settled), **more)

    def ended(state="done", gpus=()):
        return SimpleNamespace(decision=SimpleNamespace(state=state), claimed=SimpleNamespace(gpus=gpus))

    plain, strict = (Scheduler(["default"], None, offer(1), Rules(strict_fifo=one)) for one in (False, True))
    assert not turn.lets_others_start(done(ended(), claimed=["a claim"]), plain)
    assert turn.lets_others_start(done(ended("held")), plain)
    assert turn.lets_others_start(done(ended()), Scheduler(["default"], None, offer(1), Rules(per_user={"running": 1})))
    assert turn.lets_others_start(done(ended(gpus=("GPU-0",))), plain)  # two workers of a host may give it out
    assert turn.lets_others_start(done(found=["a lost job"]), plain)
    assert not turn.lets_others_start(done(ended()), strict)
    assert turn.lets_others_start(done(claimed=["a claim"]), strict)
    assert turn.lets_others_start(done(unreadable=["a job that ended"]), strict)


def test_a_worker_is_shown_with_the_gpus_it_gives_out(session):
    """`workers --json`: the strings of `CUDA_VISIBLE_DEVICES`."""
    with session.writing() as tx:
        build.join(tx, "big", offer=offer_document(offer(1, 2)))
    with session.reading() as tx:
        assert [one["gpus"] for one in crew_of(tx, 300.0)] == [["GPU-0", "GPU-1"], []]


def test_a_worker_that_runs_other_users_jobs_is_none_for_this_one():
    """Q34: on a group's queue a worker runs its own user's jobs only, and says so."""
    found = Bench(
        {"state": "idle", "slots": 1, "queues": ["default"]}, offer(), {}, None, users_of(offer_document(offer(), (7,)))
    )
    assert serves(found, Lane(1, "default", 7, Shape())) is None
    assert serves(found, Lane(1, "default", 8, Shape())) == "runs jobs of other users only"
    assert serves(found._replace(users=users_of(offer_document(offer()))), Lane(1, "default", 8, Shape())) is None


@pytest.mark.parametrize(
    "change", ["quarantine = 'its disk'", "state = 'draining'", "ended_at = 1.0", "heartbeat_at = 0.0"]
)
def test_a_worker_that_claims_no_more_is_kept_for_nothing(session, change):
    """Q17: else nobody is kept for a job that such a worker was kept for."""
    build.put(session, new(Shape(2)))
    wait_long(session, 1)
    with session.writing() as tx:
        workers.keep_for(tx, build.join(tx, "other"), 1)
    scheduler = Scheduler(["default"], None, offer(2, 2))
    reserve(session, scheduler, offer(2, 1))
    assert scheduler.kept is None
    with session.writing() as tx:
        tx.rows(f"UPDATE worker SET {change} WHERE name = 'other'")
    reserve(session, scheduler, offer(2, 1))
    assert scheduler.kept.job_id == 1


def test_lanes_that_are_deleted_are_not_remembered_for_ever(session):
    """A claim costs as many steps as there are lanes, not as there ever were."""
    scheduler = Scheduler(["default"], None, offer(1))
    for round_ in range(6):
        ids = build.put(session, *(new(Shape(mem_mib=1 + round_ * 50 + n)) for n in range(50)))
        with session.writing() as tx:
            assert scheduler.look(tx).claim(Claimant(1, "w1", "here"), scheduler.offer).claim.job_id == ids[0]
            assert len(scheduler.look(tx).lanes.all) <= 150
            tx.rows("DELETE FROM job")
            assert lanes.forget(tx) == 50


@pytest.mark.parametrize(
    "rules", [Rules(gpus={"a100": 2}), Rules(per_user={"gpus": 2}), Rules(per_user={"running": 2})]
)
def test_what_a_turn_has_claimed_counts_for_its_next_claim(session, rules):
    """Q16: a worker with many slots fills them in one transaction."""
    build.put(session, *(new(Shape(1)) for _ in range(4)))
    whole = offer(4, 4)
    with session.writing() as tx:
        look = Scheduler(["default"], None, whole, rules).look(tx)
        found = [look.claim(Claimant(1, "w1", "here"), whole) for _ in range(4)]
    assert [one is not None for one in found] == [True, True, False, False]


def test_a_turn_goes_on_once_it_has_started_what_the_worker_was_kept_for(session):
    build.put(session, new(Shape(2)), new())
    scheduler, whole = Scheduler(["default"], None, offer(2, 2)), offer(2, 2)
    wait_long(session, 1)
    reserve(session, scheduler, offer(2, 1))
    with session.writing() as tx:
        look, who = scheduler.look(tx), Claimant(1, "w1", "here")
        found = [look.claim(who, whole), look.claim(who, whole._replace(slots=1, devices=()))]
    assert [one.claim.job_id for one in found] == [1, 2]


PRIORITIES = (-(10**9), -1, 0, 0, 0, 1, 10**9)
FORGED = ("2", "x", b"3", 2.5, 2**62, -(2**62))


@pytest.mark.parametrize("forged", [(), FORGED])
@pytest.mark.parametrize("seed", range(20))
def test_the_store_finds_the_same_first_head_as_the_rules(session, seed, forged):
    """E07: over lanes that are empty, priorities from end to end, and numbers of jobs as high as they get."""
    random = Random(seed)
    put = [new(Shape(mem_mib=1 + random.randrange(8)), priority=random.choice(PRIORITIES)) for _ in range(20)]
    build.put(session, *put)
    with session.writing() as tx:
        for number in random.sample(range(1, 21), 10):
            tx.rows("UPDATE job SET state = 'canceled', reason = 'user', ended_at = 1 WHERE id = ?", (number,))
        for number in random.sample(range(1, 21), 5):
            tx.rows("UPDATE job SET id = ? WHERE id = ?", (2**33 - number, number))
        for priority in forged:
            tx.rows("UPDATE job SET priority = ? WHERE id = ?", (priority, random.randrange(1, 21)))
        known = lanes.every(tx)
        for some in (Among(known), *(Among(random.sample(known, 2)) for _ in range(5))):
            best = first(lanes.heads(tx, some), some.by_id, Rules(), Use())
            assert lanes.first_head(tx, some) == ([] if best is None else [best])
