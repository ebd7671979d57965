"""The store against a model of it: any order of verbs, with any claim that was ever given, by any observer.

The model is a dict, the table of moves and `decide`. `TRAINQ_MACHINE=2000 pytest tests/test_store_machine.py` runs so
many examples, at random; without it a bounded number, the same ones every time.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from itertools import pairwise

import pytest
import store_builders as build
from hypothesis import HealthCheck, Phase, Verbosity, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from store_builders import counts_are_real, dump_in, is_work, join, model, new_job, place, submission

import trainq.domain.job
from trainq.base import clock
from trainq.base.errors import TrainqError
from trainq.domain.edit import COLUMNS
from trainq.domain.held import After, is_met
from trainq.domain.job import Budget, Claim, Outcome, Progress, decide
from trainq.domain.states import ACTIVE, ENDED, MOVES
from trainq.store import checkpoints, dependants, edits, freezes, holds, jobs, lost, pruning, queues, reads, rules
from trainq.store.checkpoints import NewCheckpoint
from trainq.store.jobs import LostClaim
from trainq.store.statements import NAMED, numbered

EXAMPLES = int(os.environ.get("TRAINQ_MACHINE", "0"))
MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # ten thousand commits, and no power cut in them
ZOMBIE_S = 4.0
QUEUES = ("cpu", "gpu")
OBSERVERS = ("A", "B")
CAUSES = (None, "exit", "exit", "spawn", "store", "drained", "requeued", "idle", "idle")
BREAKER = 2
IDLE_REQUEUES = 2  # instead of 10, which no random walk comes to
QUIET = settings(
    max_examples=EXAMPLES or 120,
    stateful_step_count=50,
    derandomize=not EXAMPLES,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
)

anything = st.integers(0, 999)
workers = st.integers(1, 3)
hows = st.integers(0, 6)


class Job:
    """What the model knows of a job."""

    def __init__(self, queue, priority, budget):
        self.state = self.first = "pending"
        self.queue, self.priority, self.budget = queue, priority, budget
        self.attempt = self.beat = 0
        self.worker = None
        self.due = None  # what a backoff waits for has come, or has not; None: it waits for none
        self.on_hold = False
        self.deps = {}  # on which job: the mode, and how that ended (None: it is waited for)
        self.version = None
        self.gone = False
        self.frozen = False
        self.saved = {}  # checkpoint: the attempt that committed it

    def held_by(self, claim):
        return self.state == "running" and (claim.attempt, claim.worker_id) == (self.attempt, self.worker)

    def open(self):
        return [on for on, (_, how) in self.deps.items() if how is None]

    def reason(self):
        """Why it is held; None when it may start."""
        return "user" if self.on_hold else "dependency" if self.open() else "backoff" if self.due is False else None

    def look_again(self):
        if self.state == "held" and self.reason() is None:
            self.state, self.due = "pending", None

    def end(self, decision):
        assert decision.state in MOVES[self.state]
        budget = self.budget
        self.state, self.due = decision.state, None if decision.delay_s is None else decision.delay_s == 0
        self.budget = budget._replace(
            user_used=budget.user_used + decision.user_cost,
            system_used=budget.system_used + decision.system_cost,
            idle_requeues=decision.idle_requeues,
        )


def ended(cause):
    """How an attempt may have ended; `idle` is a wish to be requeued at once. Every failure is a quick one."""
    if cause == "idle":
        return Outcome("requeued", 75, idle=True, quick=True)
    return Outcome(cause, 1 if cause else 0, quick=cause is not None)


class StoreMachine(RuleBasedStateMachine):
    """The rules."""

    @initialize()
    def begin(self):
        self.directory = tempfile.mkdtemp(prefix="machine-", dir=MEMORY)
        self.place = place(self.directory)
        self.session = self.place.session()
        with self.session.writing() as tx:
            assert [join(tx, f"w{n}", f"host{n % 2}") for n in (1, 2, 3)] == [1, 2, 3]
        self.jobs = {}
        self.calls = []
        self.claims = []
        self.sights = {}
        self.versions = {}
        self.quick = dict.fromkeys(QUEUES, 0)
        self.paused = {}
        self.boot_s = 1000.0
        for queue in QUEUES:
            self.submit(2, queue, 0, 1, 0.0, 2)

    def teardown(self):
        if hasattr(self, "session"):
            self.session.close()
            shutil.rmtree(self.directory)

    # people --------------------------------------------------------------------------------------------------------

    @rule(
        n=st.integers(1, 3), queue=st.sampled_from(QUEUES), priority=st.integers(-1, 1), retries=st.integers(0, 2),
        backoff_s=st.sampled_from([0.0, 1000.0]), max_attempts=st.integers(1, 3),
    )  # fmt: skip
    def submit(self, n, queue, priority, retries, backoff_s, max_attempts):
        call = submission()
        spec = {"retry_on": ["exit"], "backoff_s": backoff_s}
        new = [
            new_job(queue=queue, priority=priority, retries=retries, max_attempts=max_attempts, spec=spec)
            for _ in range(n)
        ]
        with self.session.writing() as tx:
            ids = jobs.submit(tx, call, new)
        assert list(ids) == list(range(len(self.jobs) + 1, len(self.jobs) + 1 + n))  # never used again, no gap
        for number in ids:
            budget = Budget(False, 0, retries, ("exit",), backoff_s, 0, max_attempts)
            self.jobs[number] = Job(queue, priority, budget)
        self.calls.append((call, new, ids))
        self.tell()

    @precondition(lambda self: self.jobs)
    @rule(
        picks=st.lists(anything, max_size=3), modes=st.lists(st.sampled_from(["ok", "ok", "any", "fail"]), min_size=3, max_size=3),
        hold=st.booleans(), queue=st.sampled_from(QUEUES),
    )  # fmt: skip
    def submit_held(self, picks, modes, hold, queue):
        """One that comes after others, or waits for a person."""
        wanted = {pick % len(self.jobs) + 1: mode for pick, mode in zip(picks, modes, strict=False)}
        call, new = submission(), [new_job(queue=queue, hold=hold, after=tuple(After(*one) for one in wanted.items()))]
        with self.session.writing() as tx:
            ids = jobs.submit(tx, call, new)
        job = self.jobs[ids[0]] = Job(queue, 0, Budget(False, 0, 0, (), 10.0, 0, 3))
        job.on_hold = hold
        job.deps = {on: (mode, self.verdict(on, mode)) for on, mode in wanted.items()}
        job.state = job.first = "held" if job.reason() else "pending"
        self.calls.append((call, new, ids))
        self.tell()

    def verdict(self, on, mode):
        state = self.jobs[on].state
        return state if state in ENDED and is_met(mode, state) else None

    def tell(self):
        """Who waits for what has ended hears of it; what is skipped has ended, too."""
        todo = True
        while todo:
            todo = [
                (job, on)
                for job in self.jobs.values()
                for on in job.open()
                if self.jobs[on].state in ENDED and not job.gone
            ]
            for job, on in todo:
                mode, state = job.deps[on][0], self.jobs[on].state
                job.deps[on] = mode, state
                if job.state == "held" and not is_met(mode, state):
                    job.state, job.on_hold, job.due = "skipped", False, None
                job.look_again()

    @precondition(lambda self: self.jobs)
    @rule(pick=anything, what=st.sampled_from(["hold", "release", "reopen", "reopen"]))
    def hold_or_release(self, pick, what):
        among = [n for n, job in self.jobs.items() if job.state == "skipped"] if what == "reopen" else []
        number = among[pick % len(among)] if among else pick % len(self.jobs) + 1
        job = self.jobs[number]
        verb = {"hold": holds.hold, "release": holds.release, "reopen": dependants.reopen}[what]
        with self.session.writing() as tx:
            before = dump_in(tx)
            said = verb(tx, number, "ann")
            assert said or dump_in(tx) == before
        may = {
            "hold": job.state in ("held", "pending") and not job.on_hold,
            "release": job.on_hold,
            "reopen": job.state == "skipped",
        }
        assert said == (may[what] and not job.gone)
        if not said:
            return
        if what == "reopen":
            self.wait_again(job)
        job.on_hold, job.state = what == "hold", "held"
        job.look_again()

    @precondition(lambda self: any(job.state in ("held", "pending") for job in self.jobs.values()))
    @rule(pick=anything, queue=st.sampled_from(QUEUES), priority=st.integers(-1, 1))
    def edit(self, pick, queue, priority):
        """What waits moves to another queue and priority, and is still held by what holds it."""
        among = [number for number, job in self.jobs.items() if job.state in ("held", "pending")]
        number = among[pick % len(among)]
        with self.session.writing() as tx:
            (row,) = reads.jobs(tx, [number])
            columns = {column: row[column] for column in COLUMNS.values()} | {"queue": queue, "priority": priority}
            edits.edit(tx, row, columns, reads.specs(tx, [number])[number], "", "ann", "moved")
        job = self.jobs[number]
        job.queue, job.priority = queue, priority
        job.look_again()

    def wait_again(self, job):
        for on, (mode, how) in job.deps.items():
            if how is None or not is_met(mode, how):
                job.deps[on] = mode, self.verdict(on, mode)

    def submit_again(self, pick):
        call, new, ids = self.calls[pick % len(self.calls)]
        with self.session.writing() as tx:
            before = dump_in(tx)
            assert jobs.submit(tx, call, new) == ids
            assert dump_in(tx) == before

    @precondition(lambda self: self.jobs)
    @rule(pick=anything)
    def request_cancel(self, pick):
        number = pick % len(self.jobs) + 1
        job = self.jobs[number]
        with self.session.writing() as tx:
            said = jobs.request_cancel(tx, number, "ann", grace_s=None, message=None)
        if job.gone:
            assert said == "unknown"
        elif job.state == "running":
            assert said == "canceling"
            job.budget = job.budget._replace(cancel_requested=True)
        elif job.state in ACTIVE:
            assert said == "canceled"
            job.state, job.on_hold, job.due = "canceled", False, None
        else:
            assert said == ("already" if job.state == "canceled" else job.state)

    @precondition(lambda self: self.jobs)
    @rule(pick=anything)
    def retry(self, pick):
        number = pick % len(self.jobs) + 1
        job = self.jobs[number]
        with self.session.writing() as tx:
            said = jobs.retry(tx, number, "ann")
        assert said == (job.state in ("errored", "canceled") and not job.gone)
        if said:
            self.wait_again(job)
            job.state = "held" if job.reason() else "pending"
            job.budget = job.budget._replace(cancel_requested=False, user_used=0, system_used=0, idle_requeues=0)

    # workers -------------------------------------------------------------------------------------------------------

    @rule(worker=workers, queues=st.sampled_from([("cpu",), ("gpu",), QUEUES]))
    def claim(self, worker, queues):
        opened = [name for name in queues if name not in self.paused]
        waiting = [n for n, job in self.jobs.items() if job.state == "pending" and job.queue in opened]
        with self.session.writing() as tx:
            due = jobs.next_due(tx)
            assert is_work(tx, queues) == (bool(waiting) or (due is not None and due <= tx.now))
            claimed = build.claim_next(tx, worker, queues)
        if not waiting:
            assert claimed is None
            return
        number = min(waiting, key=lambda n: (-self.jobs[n].priority, n))
        job = self.jobs[number]
        job.state, job.worker, job.attempt, job.beat, job.frozen = "running", worker, job.attempt + 1, 0, False
        assert claimed.claim == Claim(number, job.attempt, worker)
        assert claimed.checkpoints == tuple((n, "00" * 32) for n in sorted(job.saved))
        self.claims.append(claimed.claim)

    @rule(worker=workers, cause=st.sampled_from(CAUSES))
    def turn(self, worker, cause):
        """As a worker does: beat for all it holds, end the oldest of them, claim for the free slot."""
        mine = [claim for claim in self.claims if claim.worker_id == worker and self.jobs[claim.job_id].held_by(claim)]
        for claim in mine:
            self.beat_for(claim, 1)
        if mine:
            self.settle_for(mine[0], cause)
        self.promote()
        self.claim(worker=worker, queues=QUEUES)

    @precondition(lambda self: any(job.state == "running" for job in self.jobs.values()))
    @rule(pick=anything, cause=st.sampled_from(CAUSES))
    def end_one(self, pick, cause):
        """A current claim is settled, and once more."""
        claim = self.any_claim(pick, 6)
        self.settle_for(claim, cause)
        self.settle_for(claim, cause)

    def any_claim(self, pick, how):
        """One of those that are current, or any that was ever given, or such a one in another worker's hand."""
        current = [claim for claim in self.claims if self.jobs[claim.job_id].held_by(claim)]
        among = current if how > 2 and current else self.claims
        claim = among[pick % len(among)]
        return claim._replace(worker_id=claim.worker_id % 3 + 1) if how == 0 else claim

    def with_claim(self, claim, verb):
        """Do the verb; (True, its answer) if the claim was current, else (False, None) and nothing was changed."""
        job = self.jobs[claim.job_id]
        with self.session.writing() as tx:
            before = dump_in(tx)
            try:
                said = verb(tx)
            except LostClaim:
                assert not job.held_by(claim), "a current claim was refused"
                assert dump_in(tx) == before, "a verb with a lost claim has changed something"
                return False, None
        assert job.held_by(claim), "a verb with a lost claim went through"
        return True, said

    @precondition(lambda self: self.claims)
    @rule(pick=anything, how=hows, step=st.none() | st.integers(0, 9))
    def beat(self, pick, how, step):
        self.beat_for(self.any_claim(pick, how), step)

    def beat_for(self, claim, step):
        went, flags = self.with_claim(claim, lambda tx: jobs.beat(tx, claim, Progress(step=step)))
        if went:
            job = self.jobs[claim.job_id]
            job.beat += 1
            assert flags.cancel == job.budget.cancel_requested
            assert flags.frozen_by == ("ann" if job.frozen else None)

    @precondition(lambda self: self.claims)
    @rule(pick=anything, how=hows, cause=st.sampled_from(CAUSES))
    def settle(self, pick, how, cause):
        self.settle_for(self.any_claim(pick, how), cause)

    def settle_for(self, claim, cause):
        outcome = ended(cause)
        went, decision = self.with_claim(claim, lambda tx: jobs.settle(tx, claim, outcome, Progress()))
        if went:
            job = self.jobs[claim.job_id]
            assert decision == decide(outcome, job.budget)
            job.end(decision)
            self.count_end(job.queue, decision, outcome)

    def count_end(self, queue, decision, outcome):
        """The breaker: quick failures in a row, a queue at a time."""
        with self.session.writing() as tx:
            broke = queues.count_end(tx, queue, decision, outcome, BREAKER)
        if decision.state == "done":
            self.quick[queue] = 0
        elif decision.state == "errored":
            self.quick[queue] += 1
        expected = decision.state == "errored" and self.quick[queue] >= BREAKER and queue not in self.paused
        assert broke == expected
        if broke:
            self.paused[queue] = "breaker"

    @precondition(lambda self: self.claims)
    @rule(pick=anything, how=hows, number=st.integers(1, 4))
    def save(self, pick, how, number):
        """A checkpoint is committed with any claim; twice, as after a COMMIT that answered with an error."""
        claim = self.any_claim(pick, how)
        new = NewCheckpoint(number, number, None, "00" * 32, 1)
        for _ in range(2):
            went, _said = self.with_claim(claim, lambda tx: checkpoints.commit(tx, claim, new))
            if went:
                self.jobs[claim.job_id].saved.setdefault(number, claim.attempt)

    @precondition(lambda self: self.claims)
    @rule(pick=anything, how=hows, key=st.sampled_from(["ann/wine", "bob"]))
    def publish(self, pick, how, key):
        claim = self.any_claim(pick, how)
        outcome = Outcome(None, 0)
        went, version = self.with_claim(
            claim, lambda tx: jobs.publish(tx, claim, outcome, Progress(), model(key), on_disk=0)
        )
        if went:
            job = self.jobs[claim.job_id]
            assert (version is None) == job.budget.cancel_requested
            if version is not None:
                assert version == self.versions.get(key, 0) + 1
                self.versions[key] = job.version = version
            decision = decide(outcome, job.budget)
            job.end(decision)
            self.count_end(job.queue, decision, outcome)

    def promote(self):
        with self.session.writing() as tx:
            jobs.promote(tx)
        for job in self.jobs.values():
            job.look_again()
        self.tell()

    # time ----------------------------------------------------------------------------------------------------------

    @rule(seconds=st.sampled_from([0.5, 1.0, 2.0, 2.0, 2.5, 9.0]))
    def tick(self, seconds):
        self.boot_s += seconds

    @rule(observer=st.sampled_from(OBSERVERS), mine=st.none() | workers)
    def look(self, observer, mine):
        with self.session.writing() as tx:
            found = lost.look(tx, observer, self.boot_s, ZOMBIE_S, mine=mine)
        self.check_look(found, observer, mine)

    @rule(host=st.sampled_from(["host0", "host1", "nowhere"]), pick=anything, late=st.booleans())
    def expire_held(self, host, pick, late):
        """A worker of this host is provably gone: one of its jobs is back at once, but not if it moved meanwhile."""
        with self.session.reading() as tx:
            held = lost.held_here(tx, host, 0)
        here = {n: job for n, job in self.jobs.items() if job.state == "running" and f"host{job.worker % 2}" == host}
        assert [(one.job_id, one.attempt, one.worker_id) for one in held] == [
            (n, job.attempt, job.worker) for n, job in here.items()
        ]
        if not held:
            return
        one = held[pick % len(held)]
        job = self.jobs[one.job_id]
        if late:
            self.settle_for(Claim(*one[:3]), "drained")
        with self.session.writing() as tx:
            found = lost.expire_held(tx, one, "gone")
        if late:
            assert found == []
            return
        decision = decide(Outcome("zombie"), job.budget)
        assert [tuple(each) for each in found] == [(one.job_id, job.attempt, f"w{job.worker}", decision.state)]
        job.end(decision)
        for who in OBSERVERS:
            self.sights.pop((one.job_id, who), None)

    @rule(observer=st.sampled_from(OBSERVERS), disturb=st.sampled_from([None, "beat", "again"]), pick=anything)
    def stand_still(self, observer, disturb, pick):
        """Looks in a row, close enough together: what does not beat is lost, but not what does, or was begun again."""
        for n in range(3):
            self.look(observer=observer, mine=None)
            self.boot_s += ZOMBIE_S / 2
            current = [claim for claim in self.claims if self.jobs[claim.job_id].held_by(claim)]
            if n == 0 and disturb and current:
                claim = current[pick % len(current)]
                if disturb == "beat":
                    self.beat_for(claim, None)
                else:
                    self.settle_for(claim, "requeued")
                    self.claim(worker=claim.worker_id, queues=(self.jobs[claim.job_id].queue,))

    def check_look(self, found, observer, mine):
        expected = []
        for number, job in self.jobs.items():
            if job.state != "running" or job.worker == mine:
                continue
            now, claim = self.boot_s, (job.attempt, job.beat)
            old = self.sights.get((number, observer))
            first = old[1] if old and old[0] == claim and now - old[2] <= ZOMBIE_S / 2 else now
            self.sights[number, observer] = claim, first, now
            if now - first >= ZOMBIE_S:
                decision = decide(Outcome("zombie"), job.budget)
                expected.append((number, job.attempt, f"w{job.worker}", decision.state))
                job.end(decision)
                for who in OBSERVERS:
                    self.sights.pop((number, who), None)
        assert [tuple(one) for one in found] == expected

    # janitor -------------------------------------------------------------------------------------------------------

    @rule()
    def prune(self):
        with self.session.writing() as tx:
            dependants.tell(tx)
            self.tell()
            ids = pruning.old_jobs(tx, clock.now() + 1)
            assert pruning.retire(tx, ids) == ids
        assert sorted(ids) == [n for n, job in self.jobs.items() if job.state in ENDED and not job.gone]
        for number in ids:
            self.jobs[number].gone = True
            for who in OBSERVERS:
                self.sights.pop((number, who), None)

    def retire_everything(self):
        """Asked to retire what has not ended, the janitor does not."""
        with self.session.writing() as tx:
            pruning.retire(tx, [n for n, job in self.jobs.items() if job.state in ACTIVE])

    def freeze_or_thaw(self, pick):
        number = pick // 2 % len(self.jobs) + 1
        job = self.jobs[number]
        may = job.state == "running" and not job.budget.cancel_requested
        with self.session.writing() as tx:
            before = dump_in(tx)
            if pick % 2:
                said, expected = freezes.request_freeze(tx, number, "ann", None), may and not job.frozen
            else:
                said, expected = freezes.request_thaw(tx, number, "bob"), may and job.frozen
            assert said == expected
            assert said or dump_in(tx) == before
        job.frozen ^= said

    def pause_or_resume(self, pick):
        name = QUEUES[pick % 2]
        with self.session.writing() as tx:
            if pick % 8 == 0:
                assert queues.pause(tx, name, "queue_paused", "ann") == (name not in self.paused)
                self.paused.setdefault(name, "queue_paused")
                return
            assert queues.resume(tx, name) == (name in self.paused)
        if self.paused.pop(name, None):
            self.quick[name] = 0

    def reopen(self):
        self.session.close()
        self.session = self.place.session()

    @rule(
        what=st.sampled_from(["promote", "promote", "again", "retire", "reopen", "queue", "queue", "freeze", "freeze"]),
        pick=anything,
    )
    def keep_house(self, what, pick):
        """What needs no rule of its own; the fewer rules, the more often each comes."""
        match what:
            case "promote":
                self.promote()
            case "again":
                self.submit_again(pick)
            case "retire":
                self.retire_everything()
            case "queue":
                self.pause_or_resume(pick)
            case "freeze":
                self.freeze_or_thaw(pick)
            case "reopen":
                self.reopen()

    # what must be true after every step ----------------------------------------------------------------------------

    @invariant()
    def the_rows_are_what_the_model_says(self):
        with self.session.reading() as tx:
            rows = {row["id"]: row for row in tx.rows("SELECT * FROM job")}
            past = {row["id"]: row for row in tx.rows("SELECT * FROM past")}
            closed = queues.paused(tx)
            failures = {row["name"]: row["quick_failures"] for row in tx.rows("SELECT * FROM queue")}
            kept = {(row[0], row[1]): row[2] for row in tx.rows("SELECT job_id, number, attempt FROM checkpoint")}
            deps = {(row[0], row[1]): (row[2], row[3]) for row in tx.rows("SELECT job_id, on_id, mode, ended FROM dep")}
            counts_are_real(tx)
            assert [rules.broken(tx, name) for name in ("job.held", "dep.open", "dep.told")] == [[], [], []]
        assert deps == {(n, on): dep for n, job in self.jobs.items() if not job.gone for on, dep in job.deps.items()}
        assert closed == self.paused
        assert {name: failures.get(name, 0) for name in QUEUES} == self.quick
        there = {n: job.saved for n, job in self.jobs.items() if not job.gone}
        assert kept == {(n, number): attempt for n, saved in there.items() for number, attempt in saved.items()}
        assert sorted(rows) == [n for n, job in self.jobs.items() if not job.gone]
        assert sorted(past) == [n for n, job in self.jobs.items() if job.gone]
        for number, row in rows.items():
            job = self.jobs[number]
            assert (row["state"], row["attempt"]) == (job.state, job.attempt)
            assert (row["user_used"], row["system_used"]) == (job.budget.user_used, job.budget.system_used)
            assert row["idle_requeues"] == job.budget.idle_requeues
            assert row["user_used"] <= row["retries"]
            assert row["system_used"] <= row["max_attempts"]
            assert (row["ended_at"] is not None) == (job.state in ENDED)
            assert (row["side"] is not None) == (job.state == "errored")
            assert row["state"] == "done" or row["state"] in ("pending", "running") or row["reason"]
            assert row["on_hold"] == job.on_hold
            if job.state == "held":
                assert row["reason"] == (job.reason() or "backoff")  # that is over, and nobody has looked yet
            if job.state == "running":
                assert (row["worker_id"], row["beat"]) == (job.worker, job.beat)
                assert row["heartbeat_at"] is not None
                asked = "canceling" if job.budget.cancel_requested else "frozen" if job.frozen else None
                assert row["reason"] == asked
                assert (row["cancel_at"] is not None) == job.budget.cancel_requested
        for number, row in past.items():
            assert (row["state"], row["attempt"]) == (self.jobs[number].state, self.jobs[number].attempt)

    @invariant()
    def history_leads_to_where_the_job_is(self):
        with self.session.reading() as tx:
            rows = tx.rows("SELECT job_id, n, state, reason, attempt FROM history ORDER BY job_id, n")
        told = {number: [row for row in rows if row["job_id"] == number] for number in self.jobs}
        assert sum(map(len, told.values())) == len(rows)
        for number, steps in told.items():
            job = self.jobs[number]
            assert [row["n"] for row in steps] == list(range(1, len(steps) + 1))
            assert steps[0]["state"] == job.first
            notes = [new["n"] for old, new in pairwise(steps) if new["state"] == old["state"]]
            moves = [row for row in steps if row["n"] not in notes]
            assert all(new["state"] in MOVES[old["state"]] for old, new in pairwise(moves))
            assert all(old["attempt"] <= new["attempt"] for old, new in pairwise(steps))
            assert steps[-1]["state"] == moves[-1]["state"] == job.state
            # exactly one start and at most one end per attempt
            starts = [row["attempt"] for row in moves if row["state"] == "running"]
            assert starts == list(range(1, job.attempt + 1))

    @invariant()
    def a_model_row_is_of_a_done_job_and_only_one(self):
        with self.session.reading() as tx:
            rows = tx.rows("SELECT job_id, version, attempt FROM model ORDER BY job_id")
        made = {n: job for n, job in self.jobs.items() if job.version is not None}
        assert [row["job_id"] for row in rows] == sorted(made)
        for row in rows:
            job = made[row["job_id"]]
            assert (job.state, job.version, job.attempt) == ("done", row["version"], row["attempt"])


@pytest.fixture(autouse=True)
def _short_loops(monkeypatch):
    monkeypatch.setattr(trainq.domain.job, "IDLE_REQUEUES", IDLE_REQUEUES)


@pytest.mark.timeout(EXAMPLES or 120)
def test_the_store_does_what_the_model_says():
    """Q20, Q22, Q23, Q37, Q51, Q83, E12, E13: in any order of verbs, with any claim, rows, counts and history are the
    model's."""
    run_state_machine_as_test(StoreMachine, settings=QUIET)


FENCES = {
    "all of it": r" AND attempt = :attempt AND worker_id = :worker_id",
    "the attempt": r" AND attempt = :attempt(?= AND worker_id)",
    "the worker": r" AND worker_id = :worker_id",
    "the state": r"(?<=:worker_id) AND state = 'running'",
}


@pytest.mark.parametrize("fence", FENCES)
def test_without_the_fence_the_machine_finds_the_bug(monkeypatch, fence):
    """Q20: what fences a claim is taken out of the statements, and the test above fails. So it can fail."""
    taken = []
    for name, (text, names) in NAMED.items():
        spelled = re.sub(r"\?(\d+)", lambda found, names=names: ":" + names[int(found[1]) - 1], text)
        assert numbered(spelled) == (text, names)
        bare, n = re.subn(FENCES[fence], "", spelled)
        monkeypatch.setitem(NAMED, name, numbered(bare))
        taken += [name] * n
    assert taken == ["beat", "held_by", "done", "finish"]
    # what is tried depends on the modules that are loaded: until it is found, not a number of times that is just enough
    search = settings(QUIET, max_examples=2000, phases=[Phase.generate], verbosity=Verbosity.quiet, print_blob=False)
    # without the state alone, the table of moves is a second wall
    with pytest.raises((AssertionError, TrainqError), match=r"lost claim|table of moves"):
        run_state_machine_as_test(StoreMachine, settings=search)
