"""The worker's one loop: wait, look, take a turn, hand out work.

In between turns the worker waits for its keepers, its channel, its signals and the bell. The store belongs to this
thread; slow work goes to a pool and comes back by the pipe. Whatever the storage answers, the worker goes on and tries
again: a turn that failed has changed nothing.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import shlex
from typing import TYPE_CHECKING, Any

from trainq import wake
from trainq.base import clock, hosts, sharing
from trainq.base.crash import point
from trainq.base.errors import MadeAnew, NotPossible, TrainqError
from trainq.domain.offer import offer_document
from trainq.domain.schedule import Rules
from trainq.ops import secrets
from trainq.ops.lost import take_back_from_the_dead
from trainq.ops.queue import require_directories, require_mount
from trainq.store import claims, jobs, queues, workers
from trainq.store.jobs import NOTHING
from trainq.store.scheduler import Scheduler
from trainq.store.session import Unsure
from trainq.version import __version__
from trainq.worker import host, turn
from trainq.worker.attempt import Attempt
from trainq.worker.channel import Channel
from trainq.worker.gpus import Gpus
from trainq.worker.inbox import Inbox
from trainq.worker.keepers import lock_name
from trainq.worker.orders import KILL, STOP, Orders
from trainq.worker.outage import Outage
from trainq.worker.place import Place
from trainq.worker.quarantine import Quarantine
from trainq.worker.slots import Slot, Slots
from trainq.worker.teller import Teller

if TYPE_CHECKING:
    from collections.abc import Callable

    from filelock import BaseFileLock

    from trainq.domain.job import Claimed
    from trainq.ops.queue import Queue
    from trainq.store.session import Session, Transaction
    from trainq.worker.place import Options, Report

FRESH_S = 1.0
"""Progress that a job reports reaches its row within this, without waiting for the next beat."""
START_S = 0.05
"""A started process is written to its row after this, unless it has ended by then."""
SHARED_START_S = 1.0
"""The same where every write costs others their turn: most jobs that end sooner are never told of as started."""
RETRY_S = 1.0
"""After a turn that failed."""
_LEFT_OPEN: list[Session] = []


class Worker:
    """A worker on one queue. `run` returns when it is told to end or has nothing more to do."""

    def __init__(self, queue: Queue, options: Options) -> None:
        self.queue = queue
        self.options = options
        self.times = queue.settings.times
        self.session = queue.session
        self.host = hosts.hostname()
        self.identity = hosts.identity()
        self.name = options.name or f"{self.host}-{os.getpid()}"
        self._teller = Teller(self.name, options.on_event)
        self._id = 0
        self._claims = 0
        self._lost_claims = 0
        self._beat_at = self._poll_at = self._retry_at = 0.0  # boot clock
        self._due_at: float | None = None  # backend's clock
        self._seen: tuple[bytes, int] = (b"", -1)
        self._may_be_work = True
        self._waits = True  # something that keeps a worker `--until` from its end
        self._ended_uids: list[str] = []  # of jobs whose kept variables can go
        self._adrift = False
        self._outage = Outage()
        self._orders = Orders(self._teller)
        # What only people read waits for the beat where every write costs others their turn.
        self._fresh_s, self._start_s = (
            (FRESH_S, START_S) if self.session.is_cheap else (self.times.heartbeat, SHARED_START_S)
        )
        self._quarantine = Quarantine()
        self._is_offer_told = False
        limits, rules = queue.settings.limits, queue.settings.queues
        self._scheduler = Scheduler(
            options.queues, options.users, host.offer(options.slots),
            Rules(limits.gpus, limits.per_user, rules.fair, rules.strict_fifo), limits.reserve_after,
        )  # fmt: skip

    # life ------------------------------------------------------------------------------------------------------

    def run(self) -> Report:
        """Work until told to end. Raises what makes a worker impossible: no queue any more, or another one, or no keepers."""
        with contextlib.ExitStack() as opened:
            self._open(opened)
            while not self._is_finished():
                for key, _ in self._selector.select(self._patience_s()):
                    key.data()
                self._look()
                if self._is_turn():
                    self._turn()
        if self._outage.error is not None and self._outage.is_without_root and not self._orders.is_told:
            raise self._outage.error
        return self._teller.ended(self._lost_claims, self._quarantine.why)

    def _open(self, opened: contextlib.ExitStack) -> None:
        """Open everything; `opened` closes it in the reverse order, jobs first, also when this fails half-way."""
        require_mount(self.queue)
        require_directories(self.queue)
        if self.options.name:
            opened.callback(self._take_name().release)
        opened.callback(self._close_session)
        self._gpus = Gpus(self.options.devices, avoids=self.queue.settings.worker.foreign_gpus == "avoid")
        self._take_gpus()
        with self.session.writing() as tx:
            self._id = self._join(tx, None)
            closed = queues.closed(tx)
        point("worker.joined")
        self._is_offer_told = True
        opened.callback(self._leave)
        self._inbox = Inbox(max(2, self.options.slots))
        opened.callback(self._inbox.close)
        opened.callback(self._gpus.close)
        self._selector = opened.enter_context(selectors.DefaultSelector())
        self._selector.register(self._inbox, selectors.EVENT_READ, self._hear)
        self._channel = Channel(self._selector, self._said)
        opened.callback(self._channel.close)
        if self.queue.hears_all:
            opened.callback(wake.Watch(self.queue.paths.bell, self._inbox.nudge).close)
        self._place = Place(
            self.queue.paths, self.name, self._channel, self.times.grace, self.queue.settings.keep,
            self.times.hook_limit, self.session.now, self.options.users, self._inbox.slow,
        )  # fmt: skip
        locks = [lock_name(path) for path in (self.queue.paths.gate, self.queue.paths.database)]
        self._slots = Slots(
            self.options.slots, self._selector, locks, lambda message: self._teller.say("trouble", message=message)
        )
        opened.callback(self._slots.close)
        self._teller.say("started", slots=self.options.slots, queues=list(self.options.queues), pid=os.getpid())
        for name in self.options.queues:  # a worker that takes nothing from a queue says why, once
            if name in closed:
                self._teller.say("queue paused", queue=name, **closed[name]._asdict())

    def _join(self, tx: Transaction, worker_id: int | None) -> int:
        return workers.join(
            tx, name=self.name, host=self.host, identity=self.identity, pid=os.getpid(),
            pid_start=hosts.start_of(os.getpid()) or 0, user_id=os.getuid(), version=__version__,
            slots=self.options.slots, queues=self.options.queues, worker_id=worker_id, quarantine=self._quarantine.why,
            offer=offer_document(self._scheduler.offer, self.options.users),
        )  # fmt: skip

    def _take_name(self) -> BaseFileLock:
        """A name that the user gave belongs to one worker at a time. Raises NotPossible when it is taken."""
        from filelock import FileLock, Timeout

        mode = sharing.shared_mode(self.queue.paths.locks, 0o644)
        lock = FileLock(self.queue.paths.worker_lock(self.name), timeout=0, fallback_to_soft=False, mode=mode)
        try:
            lock.acquire()
        except Timeout as error:
            raise NotPossible(f"a worker named {self.name} is at work already", hint="trainq workers") from error
        return lock

    def _close_session(self) -> None:
        """Under the gate. If that cannot be had the connection stays open, and ends with the process: that writes nothing."""
        try:
            self.session.close()
        except TrainqError as error:
            self._teller.complain(error)
            _LEFT_OPEN.append(self.session)

    def _leave(self) -> None:
        try:
            with self.session.writing() as tx:
                secrets.drop_first(tx, self.queue.paths, self._ended_uids)
                workers.leave(tx, self._id)
        except TrainqError as error:
            self._teller.complain(error)  # it will be seen as gone in its time

    def _is_finished(self) -> bool:
        if self._is_beyond_hope():
            return True
        if self._attempts() or self._inbox.slow_jobs or self._may_hold_unknown():
            return False
        if self._stopping or not self.options.allow_more(self._claims):
            return True
        if self._quarantine.why:
            return self.options.until is not None
        return self.options.until is not None and not self._may_be_work and not self._waits

    def _may_hold_unknown(self) -> bool:
        """Whether it may have claimed what it knows nothing of. A full disk can still be read, and so tell."""
        if self._adrift and self._stopping:
            try:
                with self.session.reading() as tx:
                    known = [attempt.claim for attempt in self._attempts()]
                    self._adrift = bool(claims.unknown_claims(tx, self._id, known))
            except TrainqError as error:
                self._teller.complain(error)
        return self._adrift

    def _is_beyond_hope(self) -> bool:
        """It is to end, nothing runs, and the storage takes no word: whoever comes next takes the jobs back."""
        outage = self._outage
        if outage.error is None or not all(one.over or one.lost for one in self._attempts()):
            return False
        is_stopped = self._stopping == KILL or (self._stopping and outage.lasts(self.times.holder_limit))
        is_gone = outage.is_without_root and (self._stopping or self.options.is_finite)
        if not (is_stopped or is_gone):
            return False
        self._lost_claims += sum(not one.lost for one in self._attempts())
        return True

    @property
    def _stopping(self) -> int:
        return self._orders.step

    def _attempts(self) -> list[Attempt]:
        return self._slots.attempts()

    def _takes_more(self) -> bool:
        """Whether it may claim at all; not even in the turn that settles what brings it into quarantine."""
        if self._stopping or self._quarantine.why or not self.options.allow_more(self._claims):
            return False
        return not self._quarantine.is_near(attempt for attempt in self._attempts() if attempt.over)

    def _room(self) -> int:
        """Free slots that may be filled."""
        return len(self._slots.free()) if self._takes_more() else 0

    # wait and look ---------------------------------------------------------------------------------------------

    def _patience_s(self) -> float:
        """Seconds until something is due by itself."""
        now = clock.boot_s()
        if self._retry_at > now:
            return self._retry_at - now
        if self._is_turn():
            return 0.0
        due = [self._poll_at, self._beat_at]
        for attempt in self._attempts():
            due += [at for at in (attempt.due_at(), attempt.report_at(self._fresh_s, self._start_s)) if at is not None]
        if self._due_at is not None:
            due.append(now + max(0.0, self._due_at - self.session.now()))
        if self.options.until_at is not None and self.options.allow_more(self._claims):
            due.append(now + max(0.0, self.options.until_at - clock.now()))
        return max(0.0, min(due) - now)

    def _is_turn(self) -> bool:
        now = clock.boot_s()
        if now < self._retry_at:
            return False
        if now >= self._beat_at or self._adrift or self._quarantine.to_write or (self._may_be_work and self._room()):
            return True
        attempts = self._attempts()
        if any(attempt.over for attempt in attempts):
            return True
        return any(
            at is not None and now >= at for at in (one.report_at(self._fresh_s, self._start_s) for one in attempts)
        )

    def _look(self) -> None:
        """The bell, the due times, the time limits."""
        now = clock.boot_s()
        if now >= self._poll_at:
            self._poll_at = now + self.times.poll
            self._look_at_bell()
            self._channel.listen_again()
            held = [name for attempt in self._attempts() for name in attempt.claimed.gpus]
            self._gpus.look(self._inbox.slow, self._take_gpus, held)
            self._slots.wake_keepers()
            if self._slots.end_strays():
                self._may_be_work = True
        for slot in self._slots:
            attempt = slot.attempt
            if attempt is not None and attempt.free:
                self._clear(slot, attempt)
                self._may_be_work = True  # the turn that ended it did not count on this slot
            elif attempt is not None:
                attempt.tick(now)
        if self._due_at is not None and self.session.now() >= self._due_at:
            self._due_at = None
            self._may_be_work = True

    def _look_at_bell(self) -> None:
        """The bell is a hint; where it costs nothing, whether anybody has committed is asked of the database itself.

        Where a look costs as much as a turn, the bell alone is read, and a turn is taken at once.
        """
        try:
            if self.session.is_cheap:
                seen = wake.read(self.queue.paths.bell_number), self.session.changes()
            else:
                seen = wake.read(self.queue.paths.bell_number, past_cache=True), 0
            if seen == self._seen:
                return
            if self.session.is_cheap or self._quarantine.why:
                self._peek()
            else:
                self._beat_at = 0.0
            self._seen = seen
        except MadeAnew:
            self._beat_at = 0.0  # the turn meets it, too
        except TrainqError as error:
            self._teller.complain(error)

    def _peek(self) -> None:
        """Whether a turn is worth its place at the gate; reads only."""
        with self.session.reading() as tx:
            self._may_be_work = self._may_be_work or self._is_work(tx)
            self._due_at = jobs.next_due(tx)
            self._waits = turn.something_waits(tx, self._scheduler, self.options.until)
            if self._quarantine.is_written and not workers.is_quarantined(tx, self._id):
                self._quarantine.clear()
                self._may_be_work = True
                self._teller.say("quarantine cleared", by=workers.cleared_by(tx, self._id))
            is_news = not self._stopping and workers.drained_by(tx, self._id) is not None
            asked = jobs.asked_of(tx, self._id) if self._attempts() else {}
        if is_news or any(attempt.is_news(asked.get(attempt.claim.job_id, NOTHING)) for attempt in self._attempts()):
            self._beat_at = 0.0

    def _take_gpus(self) -> None:
        """From now on these are given out, as far as nobody else computes on them."""
        self._scheduler.offer = self._scheduler.offer._replace(devices=self._gpus.devices)
        self._is_offer_told = False
        self._may_be_work = True

    def _is_work(self, tx: Transaction) -> bool:
        """Whether something could be claimed now, or promoted."""
        room = self._room()
        if not room:
            return False
        left = turn.left_of(self._scheduler.offer, self._attempts(), room)
        return jobs.is_due(tx) or self._scheduler.look(tx).is_work(left)

    def _hear(self) -> None:
        news = self._inbox.read()
        if news.nudged:
            self._poll_at = 0.0
        for number in news.signals:
            self._orders.hear(number, self._attempts())
            self._beat_at = 0.0  # its row tells at once that it takes no more

    # turn ------------------------------------------------------------------------------------------------------

    def _turn(self) -> None:
        attempts = self._attempts()
        began = clock.boot_s()
        beats = began >= self._beat_at
        try:
            with self.session.writing() as tx:
                secrets.drop_first(tx, self.queue.paths, self._ended_uids)
                if beats and not workers.is_known(tx, self._id):
                    self._join(tx, self._id)  # taken for dead, by a clock that was set
                done = turn.take(tx, attempts, self._wanted(beats=beats))
        except turn.StoreFailed:
            return  # rolled back; the next turn settles it as what it is
        except TrainqError as error:
            self._turn_failed(error, attempts)
            return
        turn.mark(done)
        self._teller.is_well()
        was_adrift, self._adrift = self._adrift, False
        self._may_be_work = False
        self._outage.is_over()
        self._due_at, self._waits = done.next_due, done.waits
        self._ended_uids.clear()
        self._quarantine.is_written = self._quarantine.why is not None
        self._is_offer_told = self._is_offer_told or beats
        if beats:
            self._beat_at = clock.boot_s() + self._beat_every_s()
        for attempt, flags in done.flags:
            attempt.renewed(began + self.times.holder_limit, self._bound_s)
            if (changed := attempt.obey(flags)) is not None:
                self._teller.say(f"job {changed}", id=attempt.claim.job_id, by=flags.frozen_by)
        if done.drained_by is not None:
            self._orders.drain(done.drained_by, self._attempts())
        self._free(done)
        for message in done.unreadable:
            self._may_be_work = True  # there may be more behind it
            self._teller.say("trouble", message=message)
        for claimed in done.claimed:
            self._begin(claimed, began)
        for name in done.paused:
            self._teller.say("queue paused", queue=name, reason="breaker", failures=self.queue.settings.limits.breaker)
        self._take_back(done)
        promoted = done.promoted
        if any(one.state != "pending" for one in done.found) or (promoted and promoted.ended):
            secrets.drop_ended(self.session, self.queue.paths)
        if was_adrift or turn.lets_others_start(done, self._scheduler):
            wake.ring(self.queue.paths.bell_number)

    def _beat_every_s(self) -> float:
        """An idle worker only shows that it lives; where that costs others a turn, as rarely as will do for that."""
        if self._attempts() or self.session.is_cheap:
            return self.times.heartbeat
        return max(self.times.heartbeat, self.times.zombie_after / 3)

    def _take_back(self, done: turn.Done) -> None:
        """Jobs of workers that have died here: their rest is ended, and they wait again."""
        try:
            given_back = take_back_from_the_dead(self.session, done.held)
        except TrainqError as error:
            self._teller.complain(error)
            return
        if given_back:
            done.found.extend(given_back)
            self._may_be_work = True

    def _wanted(self, *, beats: bool) -> turn.Wanted:
        options = self.options
        may = len(self._slots) if options.max_jobs is None else options.max_jobs - self._claims
        return turn.Wanted(
            worker_id=self._id, name=self.name, host=self.host, observer=self.identity,
            scheduler=self._scheduler, until=options.until,
            offer=None if self._is_offer_told or not beats else offer_document(self._scheduler.offer, self.options.users),
            state="draining" if self._stopping else "busy" if self._attempts() else "idle", room=self._room(),
            may_claim=may if self._takes_more() else 0, beats=beats,
            quarantine=self._quarantine.to_write, adrift=self._adrift, breaker=self.queue.settings.limits.breaker,
            zombie_after_s=self.times.zombie_after, every_s=self._fresh_s, after_start_s=self._start_s,
        )  # fmt: skip

    def _turn_failed(self, error: TrainqError, attempts: list[Attempt]) -> None:
        """Nothing was changed, or it cannot be told: look again in a while, with a new connection."""
        self._outage.met(error)
        self._scheduler.forget()
        if self._outage.is_for_good(finite=self.options.is_finite, patience_s=self.times.zombie_after):
            self._orders.step = KILL
            self._lost_claims += len(attempts)
            for attempt in attempts:
                attempt.lose()
            return
        self._teller.complain(error)
        if self._orders.step == STOP and self._outage.lasts(self.times.zombie_after):
            self._orders.insist(attempts)
        if isinstance(error, Unsure):
            self._adrift = True
            for attempt in attempts:
                attempt.unsure = attempt.unsure or attempt.over
        self.session.abandon()
        self._retry_at = clock.boot_s() + RETRY_S

    def _free(self, done: turn.Done) -> None:
        """Take the settled and the lost out of their slots and say what became of them."""
        for slot in self._slots:
            attempt = slot.attempt
            if attempt is None:
                continue
            if attempt in done.settled:
                attempt.answer()
                self._do_slowly(attempt.tidy())
                attempt.run_hook()
                if attempt.claimed.spec.get("secrets"):
                    self._ended_uids.append(attempt.uid)
                    soon = 0.0 if self.session.is_cheap else clock.boot_s() + self.times.heartbeat
                    self._beat_at = min(self._beat_at, soon)
                self._teller.job_ended(attempt)
                if self._quarantine.judge(attempt):
                    hint = f"trainq workers clear {shlex.quote(self.name)}"
                    self._teller.say("quarantined", message=self._quarantine.why, hint=hint)
            elif attempt in done.gone:
                self._lost_claims += 1
                attempt.lose()
                self._teller.say("claim lost", id=attempt.claim.job_id, attempt=attempt.claim.attempt)
            if attempt.free:
                self._clear(slot, attempt)
                if attempt.lost or attempt.has_hook:
                    self._may_be_work = True  # the turn did not count on this slot

    def _clear(self, slot: Slot, attempt: Attempt) -> None:
        """Nothing of it is left in the slot: give the slot away and tidy up."""
        slot.attempt = None
        number, failed = attempt.claim.job_id, attempt.hook.failed
        if failed is not None:
            self._teller.say("trouble", message=f"job {number}: its on-end line failed: {failed}")
            self._write(lambda tx: jobs.note_hook(tx, number, f"on-end: {failed}"))
        if attempt.lost:
            self._do_slowly(attempt.tidy())
        self._do_slowly(attempt.clean())

    def _do_slowly(self, work: Callable[[], None] | None) -> None:
        if work is not None:
            self._inbox.slow(work, self._cleaned)

    def _write(self, write: Callable[[Transaction], None]) -> None:
        """A small thing for people to read, outside the turns; lost when the storage is sick."""
        try:
            with self.session.writing() as tx:
                write(tx)
        except TrainqError as error:
            self._teller.complain(error)

    def _cleaned(self, error: BaseException | None) -> None:
        if error is not None:
            self._teller.say("trouble", message=f"left for the janitor: {error}")

    def _begin(self, claimed: Claimed, began: float) -> None:
        slot = self._slots.free()[0]
        slot.attempt = Attempt(claimed, self._place, slot.keeper)
        slot.attempt.lease(began + self.times.holder_limit, self._bound_s)
        self._claims += 1
        self._beat_at = min(self._beat_at, clock.boot_s() + self.times.heartbeat)
        row = claimed.row
        self._teller.say("job started", id=row["id"], name=row["name"], attempt=row["attempt"])
        slot.attempt.prepare()

    # lease and channel ----------------------------------------------------------------------------------------

    @property
    def _bound_s(self) -> float:
        """How long freezing may take: half of what lies between the holder limit and zombie-after."""
        return (self.times.zombie_after - self.times.holder_limit) / 2

    def _said(self, uid: str, attempt: int, message: dict[str, Any]) -> None:
        for one in self._attempts():
            if one.uid == uid and one.claim.attempt == attempt and one.outcome is None and not one.lost:
                one.said(message)
                return
        if "asker" in message:
            self._channel.ack(message["asker"], ok=False)  # of no attempt that runs here
