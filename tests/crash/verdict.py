"""What the soak left, judged: lost, double, wrong, left over, and what breaks an invariant."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, NamedTuple

from trainq.ops import invariants
from trainq.ops.queue import open_queue
from trainq.store import reads

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

CRASHED_LIMIT = 2
"""So many restores of a checkpoint may crash, as documented, before an older one is tried."""
ENDS = {"failing": ("errored", "exit")}
"""What a kind ends as; all others are done."""


class Ended(NamedTuple):
    """A job at the end."""

    id: int
    kind: str
    state: str
    reason: str | None
    attempt: int
    model_key: str | None
    model_version: int | None


class Restore(NamedTuple):
    """An attempt that failed by its own fault and had been given a checkpoint to go on from."""

    job: int
    attempt: int
    number: int


class Verdict(NamedTuple):
    """Lines for each thing that is not as it must be."""

    jobs: int
    attempts: int
    lost: list[str]
    double: list[str]
    wrong: list[str]
    broken: list[str]


def judge(root: str, side: str, acknowledged: set[int], may_be: Mapping[int, set[str]]) -> Verdict:
    """Look at rows, marks and files. `may_be`: how a job may have ended whose end was meddled with (`asked` stands for
    what its kind ends as)."""
    queue = open_queue(root)
    ended = {job.id: job for job in _ended(queue)}
    lost = [f"job {number} was acknowledged and is gone" for number in sorted(acknowledged - ended.keys())]
    for job in ended.values():
        asked = ENDS.get(job.kind, ("done", None))
        allowed = {asked if each == "asked" else (each, "user") for each in may_be.get(job.id, {"asked"})}
        if (job.state, job.reason) not in allowed:
            lost.append(f"job {job.id} ({job.kind}) is {job.state} {job.reason}, not {sorted(map(str, allowed))}")
    marks = _marks(side)
    found = invariants.find(queue, deep=True, at_once=True)
    wrong = [*_wrong(queue.paths.models, ended, marks), *_forgotten(marks, _crashed_restores(queue))]
    return Verdict(
        len(ended), len(marks), lost, list(_double(marks)), wrong, [f"{one.name}: {one.what}" for one in found]
    )


def _ended(queue) -> Iterator[Ended]:
    with queue.session.reading() as tx:
        for table in ("job", "past"):
            sql = f"SELECT id, name, state, reason, attempt, model_key, model_version FROM {table}"
            yield from (Ended(*row) for row in tx.rows(sql))
        assert not reads.running(tx, -1)


def _crashed_restores(queue) -> list[Restore]:
    with queue.session.reading() as tx:
        sql = "SELECT job_id, attempt, resumed_from FROM event WHERE resumed_from IS NOT NULL AND cause = 'signal'"
        return [Restore(*row) for row in tx.rows(sql)]


def _marks(side: str) -> dict[tuple[int, int], list[tuple[float, str]]]:
    """By job and attempt: the marks in the order of the clock."""
    found = {}
    for name in os.listdir(side):
        if name.endswith(".marks"):
            job, _, attempt = name.removesuffix(".marks").partition("-")
            with open(os.path.join(side, name), encoding="utf-8") as file:
                lines = [line.rstrip("\n").split(" ", 2) for line in file if line.endswith("\n")]
            found[int(job), int(attempt)] = sorted((float(line[0]), line[2]) for line in lines)
    return found


def _double(marks: Mapping[tuple[int, int], list[tuple[float, str]]]) -> Iterator[str]:
    """No mark of an attempt may come after the first one of a later attempt."""
    firsts: dict[int, list[tuple[int, float]]] = {}
    for (job, attempt), lines in marks.items():
        if lines:
            firsts.setdefault(job, []).append((attempt, lines[0][0]))
    for (job, attempt), lines in sorted(marks.items()):
        later = [first for other, first in firsts.get(job, ()) if other > attempt]
        late = sum(at > min(later) for at, _ in lines) if later else 0
        if late:
            yield f"job {job}: {late} steps of attempt {attempt} after a later one began, by {lines[-1][0] - min(later):.3f} s"


def _wrong(
    models: str, ended: Mapping[int, Ended], marks: Mapping[tuple[int, int], list[tuple[float, str]]]
) -> Iterator[str]:
    """Done means that this very attempt came to its end, and that its model is its own."""
    for job in ended.values():
        said = (word for _, word in marks.get((job.id, job.attempt), ()))
        words = [word for word in said if word not in ("", "begin") and not word.startswith(("resumes ", "committed "))]
        if job.state == "done" and words != ["end"]:
            yield f"job {job.id} ({job.kind}) is done, its attempt {job.attempt} says {words}"
        path = os.path.join(models, job.model_key or "", f"@{job.model_version}", "model.json")
        if job.kind == "model" and job.state == "done" and job.model_version is None:
            yield f"job {job.id} is done without a model"
        if job.model_version is not None and os.path.exists(path):
            with open(path, encoding="ascii") as file:
                made = json.load(file)
            if made != {"job": str(job.id), "attempt": job.attempt}:
                yield f"job {job.id}, attempt {job.attempt}: its model says {made}"
    for (job_id, attempt), lines in marks.items():
        yield from (
            f"job {job_id}, attempt {attempt}: {word}" for _, word in lines if word.startswith(("torn", "anoth"))
        )


def _forgotten(marks: Mapping[tuple[int, int], list[tuple[float, str]]], crashed: Collection[Restore]) -> Iterator[str]:
    """What was committed is never counted again, but for the one documented exception: a checkpoint is passed over
    after two attempts that went on from it failed by their own fault and committed nothing newer."""
    committed: dict[int, dict[int, int]] = {}  # by job: the attempt that committed a number last
    fruitful = {key for key, lines in marks.items() if any(word.startswith("committed ") for _, word in lines)}
    for (job, attempt), lines in sorted(marks.items()):
        words = [word.partition(" ")[::2] for _, word in lines]
        standing = committed.setdefault(job, {})
        start = next((int(number) for word, number in words if word == "resumes"), None)
        for number, by in standing.items() if start is not None else ():
            if number > start:
                tried = {one[:2] for one in crashed if one[::2] == (job, number) and by < one.attempt < attempt}
                if len(tried - fruitful) < CRASHED_LIMIT:
                    yield f"job {job}, attempt {attempt}: goes on from {start}, had {number} committed"
        standing |= {int(number): attempt for word, number in words if word == "committed"}
