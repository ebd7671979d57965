"""A real training end to end: a queue in a temporary directory, four trainings of three types, one worker.

Everything goes the way a user goes: the types are those that come with trainq, the jobs are submitted with their
data, the worker is a process of its own. The directory stays, so that its models can be looked at.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

from trainq.base.errors import NotPossible, Usage
from trainq.domain.states import ACTIVE
from trainq.ops import models, query
from trainq.ops.init import init
from trainq.ops.queue import open_queue
from trainq.ops.submit import submit
from trainq.ops.wait import wait

if TYPE_CHECKING:
    from collections.abc import Callable

    from trainq.domain.request import Request
    from trainq.ops.queue import Queue
    from trainq.store.reads import Row

    Look = Callable[[list[Row]], None]

TRAININGS = (
    ("wine", "wine.csv", {"alpha": "0.001"}),
    ("wine", "wine.csv", {"alpha": "0.1"}),
    ("diabetes", "diabetes.csv", {"alpha": "0.01"}),
    ("intents", "intents.json", {"language": "en"}),
)
_GOOD_BYE_S = 20.0


class Shown(NamedTuple):
    """What the demo came to."""

    root: str
    jobs: list[dict[str, Any]]
    models: list[dict[str, Any]]
    next: list[str]


def demo(on_look: Look) -> Shown:
    """Train; `on_look` sees the jobs' rows again and again. Raises Usage when scikit-learn is missing.

    Interrupted, it stops its worker and leaves the directory.
    """
    _require_sklearn()
    place = _make()
    queue = open_queue(os.path.join(place, "queue"))
    requests = [_request(place, *training) for training in TRAININGS]
    ids = [str(change.id) for change in submit(queue, requests).changes]
    worker = _start_worker(place, queue)
    try:
        wait(queue, ids, on_look=lambda rows: _look(worker, place, rows, on_look))
        worker.wait(_GOOD_BYE_S)
    except subprocess.TimeoutExpired:
        pass  # all has ended; what the worker still does is ended below
    finally:
        if worker.poll() is None:
            worker.terminate()
            worker.wait()
    jobs = query.chosen(queue, ids, full=True).jobs
    return Shown(queue.paths.root, jobs, models.search(queue), _next(queue))


def _require_sklearn() -> None:
    from importlib.util import find_spec

    if find_spec("sklearn") is None:
        raise Usage(
            "the demo trains with scikit-learn, which is not installed here",
            hint=f"{sys.executable} -m pip install 'trainq-cli[demo]'",
        )


def _make() -> str:
    """The directory with the queue, its types and the data."""
    import shutil
    import tempfile

    from trainq import trainers

    place = tempfile.mkdtemp(prefix="trainq-demo-")
    made = init(os.path.join(place, "queue"))
    with open(os.path.join(os.path.dirname(trainers.__file__), "types.toml"), encoding="utf-8") as file:
        types = file.read().replace('run = ["python",', f"run = [{json.dumps(sys.executable)},")
    with open(os.path.join(made.root, "trainq.toml"), "a", encoding="utf-8") as file:
        file.write("\n" + types)
    from trainq.trainers import datasets

    datasets.write_wine(os.path.join(place, "wine.csv"))
    datasets.write_diabetes(os.path.join(place, "diabetes.csv"))
    shutil.copyfile(trainers.INTENTS, os.path.join(place, "intents.json"))
    return place


def _request(place: str, name: str, data: str, params: dict[str, str]) -> Request:
    from trainq.domain.request import Request

    return Request({"data": {"": os.path.join(place, data)}}, type=name, params=params)


def _start_worker(place: str, queue: Queue) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "trainq", "--root", queue.paths.root, "worker", "--until", "empty"]
    with open(os.path.join(place, "worker.log"), "ab") as log:
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)


def _look(worker: subprocess.Popen[bytes], place: str, rows: list[Row], on_look: Look) -> None:
    on_look(rows)
    waiting = [row for row in rows if row["state"] in ACTIVE]
    if waiting and worker.poll() is not None:
        log = os.path.join(place, "worker.log")
        raise NotPossible(f"the worker ended with {worker.returncode} before the jobs did", hint=f"cat {log}")


def _next(queue: Queue) -> list[str]:
    trainq = _program()
    return [
        f"export TRAINQ_ROOT={queue.paths.root}",
        f"{trainq} status 1",
        f"{trainq} logs 3",
        f"{trainq} models show wine",
        f"{trainq} submit wine --data {os.path.join(os.path.dirname(queue.paths.root), 'wine.csv')} --param alpha=0.05",
        f"{trainq} worker --until idle",
    ]


def _program() -> str:
    """Trainq as it can be typed here: a newcomer has it in a virtual environment that is not in PATH."""
    import shlex
    import shutil

    called = os.path.abspath(sys.argv[0])
    if os.path.basename(called) != "trainq":
        return f"{shlex.quote(sys.executable)} -m trainq"
    found = shutil.which("trainq")
    return (
        "trainq" if found is not None and os.path.realpath(found) == os.path.realpath(called) else shlex.quote(called)
    )
