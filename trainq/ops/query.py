"""Looking at jobs: lists, single cards, counts. Reads only, in one consistent view each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from trainq.base.errors import NotFound
from trainq.domain.array import ref_of
from trainq.domain.documents import document
from trainq.domain.held import WANTED
from trainq.domain.states import ACTIVE, STATES
from trainq.ops.cards import View, array_item, card, details, reason_of
from trainq.ops.paused import opens, sentence
from trainq.ops.select import EVERYTHING, select
from trainq.ops.why import Why
from trainq.store import arrays, models, queues, reads

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trainq.domain.selectors import Filter
    from trainq.ops.queue import Queue
    from trainq.ops.select import Selected
    from trainq.store.reads import Row
    from trainq.store.session import Transaction

ENDED_SHOWN = 10


class Listing(NamedTuple):
    """Jobs that were asked for. `total` is what matches; `jobs` are the documents, made only when asked for."""

    rows: list[Row]
    jobs: list[dict[str, Any]]
    total: int
    unknown: list[str]
    one: bool
    view: View
    array: Row | None = None  # when one array is all that was named: the rows are those of its tasks then

    @property
    def truncated(self) -> bool:
        """Whether more match than are shown."""
        return len(self.rows) < self.total


def overview(queue: Queue, limit: int, *, full: bool) -> Listing:
    """What is active, and what ended last (also once it is pruned)."""
    with queue.session.reading() as tx:
        rows = reads.active_folded(tx, limit)
        whole, tasks = arrays.active(tx)
        active = sum(n for _, state, n in reads.counts(tx) if state in ACTIVE) - tasks + whole
        ended = reads.last_ended(tx, ENDED_SHOWN)
        shown = rows + ended[: max(0, limit - len(rows))]
        return _listing(tx, queue, shown, active + len(ended), full=full)


def everything(
    queue: Queue, which: Filter, sort: str | None, limit: int | None, *, full: bool, folded: bool = True
) -> Listing:
    """All jobs that fit the filter, newest first or sorted; `folded`: an array is one row, and fits if a task does."""
    with queue.session.reading() as tx:
        whole = arrays.present(tx, which) if folded and arrays.numbers(tx)[0] else []
        if whole and which == EVERYTHING and sort is None:
            rows = reads.newest_folded(tx, limit)
        elif whole:
            rows = _sorted([*reads.newest(tx, which, sort, limit, plain=True), *whole], sort)[:limit]
        else:
            rows = reads.newest(tx, which, sort, limit, plain=folded)
        total = len(rows)
        if limit is not None and total >= limit:
            total = reads.count(tx, which, plain=folded) + len(whole)
        return _listing(tx, queue, rows, total, full=full)


def _sorted(rows: list[Row], sort: str | None) -> list[Row]:
    """Jobs and arrays in one order, as the store has it for jobs."""
    name = "id" if sort is None else reads.SORTS[sort.lstrip("-")].removeprefix("j.")
    rows.sort(key=lambda row: row["id"])
    known = [row for row in rows if row.get(name) is not None]
    known.sort(key=lambda row: row[name], reverse=sort is None or sort.startswith("-"))
    unknown = [row for row in rows if row.get(name) is None]
    return known + unknown if sort is None or sort.startswith("-") else unknown + known


def chosen(
    queue: Queue, words: Sequence[str], which: Filter = EVERYTHING, *, full: bool, tasks: int | None = None,
    folded: bool = True,
) -> Listing:  # fmt: skip
    """The jobs that the words name, pruned ones too as far as they are answered for; of an array that is all they name at
    most so many `tasks`. An array among others is one row (`folded`).

    Raises NotFound when the only job named is not there: never was, or is pruned and has no model.
    """
    with queue.session.reading() as tx:
        found = select(tx, words, which, queue.actor.user_id, past=True)
        if found.array is not None and folded:
            return _one_array(tx, queue, found, full=full, limit=tasks)
        unknown = list(found.unknown)
        whole = list(arrays.rows(tx, found.arrays).values()) if folded else []
        if whole:
            inside = [range(row["id"], row["id"] + row["count"] + 1) for row in whole]
            found = found._replace(ids=[one for one in found.ids if not any(one in each for each in inside)])
            unknown += [str(row["id"]) for row in whole if not _is_there(tx, row)]
            whole = [row for row in whole if _is_there(tx, row)]
        rows = {row["id"]: row for row in reads.jobs(tx, found.ids)}
        pruned = [number for number in found.ids if number not in rows]
        for row in reads.past(tx, pruned):
            if row["state"] == "done" and models.of_job(tx, row["id"]) is not None:
                rows[row["id"]] = row
            elif len(found.ids) == 1 and not unknown:
                raise is_pruned(row)
            else:
                unknown.append(str(row["id"]))
        shown = whole + [rows[number] for number in found.ids if number in rows]
        return _listing(tx, queue, shown, len(shown), full=full or found.one, unknown=unknown, one=found.one)


def _is_there(tx: Transaction, row: Row) -> bool:
    """Whether an array is shown when it is named: not all of its tasks are pruned, or a model of one is there."""
    return bool(row["n"]) or arrays.has_model(tx, row)


def _one_array(tx: Transaction, queue: Queue, found: Selected, *, full: bool, limit: int | None) -> Listing:
    """An array with its tasks. Raises NotFound for one that is pruned and has no model."""
    assert found.array is not None
    row = arrays.rows(tx, [found.array])[found.array]
    if not _is_there(tx, row):
        raise is_pruned({**row, "reason": None}, "array")
    ids = found.ids if limit is None else arrays.shown(tx, found.array, limit)
    rows = {each["id"]: each for each in (*reads.jobs(tx, ids), *reads.past(tx, ids))}
    listing = _listing(tx, queue, [rows[one] for one in ids if one in rows], len(found.ids), full=full)
    row = arrays.with_next(tx, row)
    return listing._replace(array={**row, "reason": reason_of(row, listing.view)})


def one_of(tx: Transaction, queue: Queue, number: int) -> tuple[Row, dict[str, Any]]:
    """The row and the card of a job that is there."""
    listing = _listing(tx, queue, reads.jobs(tx, [number]), 1, full=True, one=True)
    return listing.rows[0], listing.jobs[0]


def pruned(queue: Queue) -> int:
    """How many jobs only history still knows."""
    with queue.session.reading() as tx:
        return reads.count_past(tx)


def these(queue: Queue, rows: list[Row], *, full: bool, whole: Sequence[int] = ()) -> Listing:
    """The jobs of rows that were read already; the tasks of arrays that were named as a whole are one row each."""
    with queue.session.reading() as tx:
        if whole:
            folded = arrays.rows(tx, whole)
            rows = [*folded.values(), *(row for row in rows if row.get("array_id") not in folded)]
        return _listing(tx, queue, rows, len(rows), full=full)


def summary(queue: Queue) -> dict[str, Any]:
    """Counts by state, in all and by queue; the same time for any number of jobs."""
    with queue.session.reading() as tx:
        counts = reads.counts(tx)
    totals = dict.fromkeys(STATES, 0)
    queues: dict[str, dict[str, int]] = {}
    for name, state, n in counts:
        queues.setdefault(name, dict.fromkeys(map(str, STATES), 0))[state] += n
        totals[state] += n  # type: ignore[index]  # the table's states are checked by the database
    queues = {name: states for name, states in queues.items() if any(states.values())}
    return {"counts": totals, "queues": queues, "total": sum(totals.values())}


def is_pruned(row: Row, what: str = "job") -> NotFound:
    """The answer for a job whose row is gone: how it ended, and who still knows of it."""
    from trainq.base.units import rfc3339

    reason = f" ({row['reason']})" if row["reason"] else ""
    ended = rfc3339(row["ended_at"])
    return NotFound(
        f"{what} {ref_of(row)} is pruned; it ended {row['state']}{reason} at {ended}",
        hint=f"trainq history {row['id']}",
    )


def view_of(queue: Queue, tx: Transaction) -> View:
    """What cards of this queue are made with."""
    return View(queue.paths, tx.now, queue.settings.times.zombie_after / 2, queues.closed(tx))


def environ_of(queue: Queue, job_id: int) -> dict[str, str]:
    """The environment a job is started with, as far as the store holds it; secrets are never in it."""
    with queue.session.reading() as tx:
        of_submit = document(reads.environ(tx, job_id)).get("env", {})
        own = document(reads.specs(tx, [job_id]).get(job_id)).get("env", {})
    return {**of_submit, **own}


def _listing(
    tx: Transaction, queue: Queue, rows: list[Row], total: int, *, full: bool, unknown: list[str] | None = None,
    one: bool = False,
) -> Listing:  # fmt: skip
    view = view_of(queue, tx)
    rows = [arrays.with_next(tx, row) if "counts" in row else row for row in rows]
    if any(row["state"] == "pending" for row in rows):
        view = view._replace(why=Why(tx, queue))
    jobs: list[dict[str, Any]] = []
    if full:
        more = details(tx, [row["id"] for row in rows])
        jobs = [array_item(row, view) if "counts" in row else card(row, more, view) for row in rows]
        for row in rows:
            row["attempts"] = more.attempts.get(row["id"], [])
        for row, job in zip(rows, jobs, strict=True):
            if "counts" not in row and row["state"] == "held":
                row["opens"] = f"trainq release {row['id']}" if row["on_hold"] else None
                job["waiting_for"] = _held_for(row, more.after.get(row["id"], []))
        if one and rows:
            _place(tx, view, rows[0], jobs[0])
    for row in rows:
        row["reason"] = reason_of(row, view)
    return Listing(rows, jobs, total, unknown or [], one, view)


def _held_for(row: Row, after: list[Row]) -> str | None:
    """All that holds a job, in words and ids; the first of it is its reason."""
    from trainq.base.units import rfc3339

    words = (
        [f"its release, held by {row['changed_by']}" if row["reason"] == "user" else "its release"]
        if row["on_hold"]
        else []
    )
    words += [
        f"job {item['on_id']} ({item['state']}) {WANTED.get(item['mode'], item['mode'])}"
        for item in after
        if item["ended"] is None
    ]
    words += [rfc3339(row["due_at"])] if row["due_at"] else []
    return "; ".join(words) or None


def _place(tx: Transaction, view: View, row: Row, job: dict[str, Any]) -> None:
    """What only a single card shows: the place in the queue, and what a waiting job waits for."""
    if row["state"] == "pending":
        job["position"] = reads.position(tx, row)
        ahead = job["position"] - 1
        if row["queue"] in view.paused:
            row["opens"] = opens(row["queue"])
            job["waiting_for"] = sentence(row["queue"], view.paused[row["queue"]])
        elif view.why is not None:
            verdict = view.why.verdict(row["lane_id"])
            job["waiting_for"] = f"{ahead} before it" if ahead and verdict.reason != "no_worker" else verdict.text
    elif row["state"] == "running" and row["reason"] == "frozen":
        row["opens"] = f"trainq resume {row['id']}"
