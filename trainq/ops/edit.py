"""Change what was asked for jobs that wait: when, where and how long they run.

All rules of a submit hold again. On a group's queue the digest of what is executed stands in a file of its owner's, so
only the owner can change what is in it; the file tells of both, before the row is changed (ops/proofs.py).
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

from trainq import wake
from trainq.base import clock
from trainq.base.crash import point
from trainq.base.errors import Denied, NoSelector, NotPossible, TrainqError, Usage
from trainq.base.setting_rows import DEFAULT_QUEUE
from trainq.base.units import moment
from trainq.domain.array import ref_of
from trainq.domain.edit import COLUMNS, EDITABLE, Edited, differences, edited, read_sets
from trainq.domain.held import check_times
from trainq.domain.request import readable
from trainq.domain.shape import encoded, require_gpus, shape_of
from trainq.domain.states import ENDED
from trainq.domain.types import find_type
from trainq.ops import proofs
from trainq.ops.cancel import may_change
from trainq.ops.change import Change, in_batches, passing, ref_facts
from trainq.ops.draft import default_name, encode, require_queue
from trainq.ops.select import EVERYTHING, select
from trainq.ops.sure import surely
from trainq.store import edits, queues, reads

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from trainq.domain.selectors import Filter
    from trainq.domain.types import TypeSpec
    from trainq.ops.proofs import Renewal
    from trainq.ops.queue import Queue
    from trainq.store.queues import Closed
    from trainq.store.reads import Row
    from trainq.store.session import Transaction


class _New(NamedTuple):
    """A job as it will be: its row before, its columns, document and shape, and what changes, in words."""

    row: Row
    columns: dict[str, Any]
    doc: str
    shape: str
    words: str
    renewal: Renewal | None = None


class _Done(NamedTuple):
    changes: list[Change]
    new: list[_New]
    paused: Mapping[str, Closed]


class Changed(NamedTuple):
    """What became of each job, and the queues they were moved to that nothing is started from."""

    changes: list[Change]
    paused: Mapping[str, Closed]


def edit(
    queue: Queue, words: Sequence[str], sets: Sequence[str], which: Filter = EVERYTHING, *, dry_run: bool = False
) -> Changed:
    """Set `NAME=VALUE` of the selected jobs that wait: edited, already, refused (it runs, or the value does not go with what
    stays), ended, denied, unknown.

    Raises NoSelector without jobs, Usage without values, what a bad value raises, also one that fits none of several;
    NotFound for a single unknown job, and for a single one what it is refused for. Nothing is stored then.
    """
    if not sets:
        raise Usage("edit: what is to be set?", hint=f"--set priority=9; there are {', '.join(EDITABLE)}")
    if not words and which == EVERYTHING:
        raise NoSelector("edit: which jobs?")
    wanted = _moments(read_sets(sets))
    if wanted.get("queue") is not None:
        require_queue(wanted["queue"], {DEFAULT_QUEUE, *queue.settings.queues.names})
    with queue.session.reading() as tx:
        found = select(tx, words, which, queue.actor.user_id, past=True)
    editor = _Editor(queue, wanted)
    paused: dict[str, Closed] = {}

    def decide(tx: Transaction, batch: Sequence[int]) -> _Done:
        done = editor.decide(tx, batch, which)
        if not dry_run:
            _write(tx, queue, done.new)
            columns = [COLUMNS[name] for name in wanted if name in COLUMNS]
            for number, values in editor.arrays(found.arrays).items():
                edits.edit_array(tx, number, {column: values[column] for column in columns})
        return done

    def change(batch: Sequence[int]) -> list[Change]:
        if dry_run:
            with queue.session.reading() as tx:
                return decide(tx, batch).changes
        done = surely(
            queue.session,
            lambda tx: decide(tx, batch),
            lambda tx, done: edits.are_so(tx, [(one.row["id"], one.columns, one.doc) for one in done.new]),
        )
        point("edit.committed")
        if done.new:
            wake.ring(queue.paths.bell_number)
            paused.update(done.paused)
        return done.changes

    changes = passing(in_batches(found.ids, change), found.arrays)
    if editor.trouble is not None and not any(one.result in ("edited", "already") for one in changes):
        raise editor.trouble
    if found.one and changes and changes[0].result in ("ended", "refused"):
        hint = f"trainq history {found.ids[0]}" if changes[0].result == "ended" else f"trainq cancel {found.ids[0]}"
        raise NotPossible(changes[0].error or "", hint=hint)
    return Changed(changes + [Change(word, "unknown", f"no such job: {word}") for word in found.unknown], paused)


def _moments(sets: dict[str, Any]) -> dict[str, Any]:
    """The same, times as seconds since 1970."""
    now = clock.now()
    times = {name: moment(sets[name], now) for name in ("begin", "deadline") if sets.get(name) is not None}
    return {**sets, **times}


class _Editor:
    """What one call makes of each job; `trouble` is why the first was refused that a value does not fit."""

    def __init__(self, queue: Queue, sets: Mapping[str, Any]) -> None:
        self._queue = queue
        self._sets = sets
        self._types: dict[str, TypeSpec] = {}
        self._arrays: dict[int, Mapping[str, Any]] = {}
        self.trouble: TrainqError | None = None

    def arrays(self, whole: Iterable[int]) -> dict[int, Mapping[str, Any]]:
        """Of these the columns of a task that has the values now, if one of the last batch has."""
        return {number: self._arrays[number] for number in whole if number in self._arrays}

    def decide(self, tx: Transaction, batch: Sequence[int], which: Filter) -> _Done:
        """What becomes of each of a batch; nothing is written."""
        rows = {row["id"]: row for row in reads.jobs(tx, batch)}
        gone = {row["id"]: row for row in reads.past(tx, [one for one in batch if one not in rows])}
        specs = reads.specs(tx, [*rows])
        self._arrays = {}
        done = _Done([], [], {})
        for number in batch:
            row = rows.get(number) or gone.get(number) or {"id": number, "state": None}
            if number in rows and which.state and row["state"] not in which.state:
                continue  # as it was when selected
            change = self._refusal(row)
            if change is None:
                change = self._edit(tx, row, specs.get(number), done.new)
            done.changes.append(change)
        return done._replace(paused=self._paused(tx, done.new))

    def _paused(self, tx: Transaction, new: Sequence[_New]) -> Mapping[str, Closed]:
        """The queues they are moved to that nothing is started from."""
        if "queue" not in self._sets:
            return {}
        names = {one.columns["queue"] for one in new}
        return {name: closed for name, closed in queues.closed(tx).items() if name in names}

    def _refusal(self, row: Row) -> Change | None:
        """Why a job cannot be changed at all."""
        number, state = row["id"], row["state"]
        if state is None:
            return Change(number, "unknown", f"no such job: {number}")
        ref, facts = ref_of(row), ref_facts(row)
        if not may_change(self._queue, row):
            return Change(number, "denied", f"job {ref} belongs to {row['user']}", facts)
        if state in ENDED:
            return Change(number, "ended", f"job {ref} is already {state}; nothing to edit", facts)
        if state == "running":
            return Change(number, "refused", f"job {ref} runs; only what waits is edited", facts)
        return None

    def _edit(self, tx: Transaction, row: Row, doc: str | None, new: list[_New]) -> Change:
        number, ref, facts = row["id"], ref_of(row), ref_facts(row)
        try:
            spec = json.loads(doc or "")
            one = self._new(tx, row, spec)
        except TrainqError as error:
            self.trouble = self.trouble or error
            return Change(number, "refused", f"job {ref}: {error.message}", facts)
        except (TypeError, ValueError, KeyError, AttributeError, RecursionError):  # of another type than trainq writes
            return Change(number, "refused", f"job {ref} cannot be read: its rows were changed", facts)
        if not one.words:
            self._arrays[row["array_id"]] = one.columns
            return Change(number, "already", None, facts)
        if self._queue.is_for_group:
            try:
                renewal = proofs.renewal(tx, self._queue, number, one.columns, json.loads(one.doc))
            except Denied as error:
                return Change(number, "denied", error.message, facts)
            one = one._replace(renewal=renewal)
        new.append(one)
        self._arrays[row["array_id"]] = one.columns
        return Change(number, "edited", None, {**(facts or {}), "set": one.words})

    def _new(self, tx: Transaction, row: Row, spec: dict[str, Any]) -> _New:
        """Raises BadValue, UnknownGpuType, GpuLimit, UnknownType, UnknownQueue."""
        missing = [name for name, value in self._sets.items() if value is None]
        sets = {**self._sets, **self._defaults(row, spec, missing)}
        before = Edited({column: row[column] for column in COLUMNS.values()}, spec)
        after = edited(row, spec, sets)
        if sets.keys() & {"begin", "deadline"}:
            check_times(after.row["begin_at"], after.row["deadline_at"], tx.now)
        shape = shape_of(after.spec)
        if sets.keys() & {"gpus", "gpu_type", "vram"}:
            limits = self._queue.settings.limits
            require_gpus(shape.gpus, shape.gpu_type, limits.gpus, limits.per_user)
        words = ", ".join(f"{name} {said}" for name, said in differences(before, after).items())
        return _New(row, after.row, encode(after.spec), encoded(shape), words)

    def _defaults(self, row: Row, spec: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
        """What these are when nobody asks: a type's, else the settings', else nothing."""
        if not names:
            return {}
        known: dict[str, Any] = {
            "priority": 0, "retries": 0, "queue": DEFAULT_QUEUE, "max_attempts": self._queue.settings.limits.max_attempts,
            "name": readable(default_name(row["type"], spec.get("argv"), spec.get("shell"))),
        }  # fmt: skip
        if row["type"] is not None:
            if row["type"] not in self._types:
                self._types[row["type"]] = find_type(self._queue.settings, row["type"])
            kind = self._types[row["type"]]
            of_type = {"time": kind.time_s, **{name: getattr(kind, name) for name in _OF_TYPE}}
            known |= {name: value for name, value in of_type.items() if value is not None}
        return {name: known.get(name) for name in names}


_OF_TYPE = ("retries", "queue", "gpus", "gpu_type", "vram", "cpus", "mem")


def _write(tx: Transaction, queue: Queue, new: Sequence[_New]) -> None:
    """The files of a group's queue first: a job whose row was changed and whose file was not would never be run."""
    renewals = [one.renewal for one in new if one.renewal is not None]
    if renewals:
        proofs.renew(queue.paths, renewals)
        point("edit.proved")
    for one in new:
        edits.edit(tx, one.row, one.columns, one.doc, one.shape, str(queue.actor), one.words)
