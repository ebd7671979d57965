"""`edit` (E08): a job that waits becomes what it would be, had it been submitted so; whatever else it is stays."""

from __future__ import annotations

import json

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from store_builders import claim_next, counts_are_real, dump, join

from trainq.artifacts import proofs
from trainq.base.errors import BadValue, GpuLimit, NotPossible, TrainqError, UnknownGpuType, Usage
from trainq.domain.edit import COLUMNS, EDITABLE, read_sets
from trainq.domain.job import NewArray
from trainq.domain.request import BY_NAME, FIELDS, Request
from trainq.ops import edit as ops
from trainq.ops.init import init
from trainq.ops.queue import open_queue
from trainq.ops.submit import submit
from trainq.store import holds, rules

WORDS = {
    "name": ["a", "böse"], "tag": ["x", "x,y"], "priority": ["-3", "9"], "queue": ["default", "gpu"],
    "time": ["2h", "90s"], "warn": ["60s", "3h"], "grace": ["5s"], "retries": ["2", "3"], "retry_on": ["oom", "exit,signal"],
    "backoff": ["1m"], "max_attempts": ["7"], "gpus": ["0", "1", "4"], "gpu_type": ["a100", "v100", "cpu"], "vram": ["18G"],
    "cpus": ["4"], "mem": ["32G"], "on": ["h2,h1"], "not_on": ["h3"], "retry_grow": ["1.5"], "on_end": ["echo"],
    "begin": ["2100-01-01", "2000-01-01"], "deadline": ["2101-01-01"],
}  # fmt: skip
REQUESTS = st.fixed_dictionaries({}, optional={name: st.sampled_from(words) for name, words in WORDS.items()})
STAYS = {
    "id",
    "submission_id",
    "submitted_at",
    "eligible_at",
    "changed_at",
    "first_reason",
    "lane_id",
}


@pytest.fixture(params=["local", "shared"])
def queue(request, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    root = str(tmp_path / "queue")
    init(root, request.param)
    with open(f"{root}/trainq.toml", "a", encoding="utf-8") as file:
        file.write(
            '\n[queues]\nnames = ["gpu"]\n[limits]\ngpus = { a100 = 3 }\n[types.t]\nrun = ["true"]\ntime = "4h"\nretries = 1\n'
        )
    opened = open_queue(root)
    yield opened
    with opened.session.reading() as tx:
        assert {name: found for name in rules.RULES if (found := rules.broken(tx, name))} == {}
        counts_are_real(tx)
        assert all(
            tx.value("SELECT count(*) FROM job WHERE lane_id = ?", (row[0],)) == row[1]
            for row in tx.rows("SELECT id, n FROM lane")
        )
    opened.session.close()


def put(queue, words=None, **more):
    sets = read_sets(f"{name}={word}" for name, word in (words or {}).items())
    return submit(queue, [Request({**sets, **more.pop("values", {})}, **({"argv": ("true",)} | more))]).changes[0].id


def edit(queue, words, sets, **more):
    return ops.edit(queue, words, sets, **more).changes


def job(queue, number):
    """All that is known of a job, but for when and as which number it was put in."""
    with queue.session.reading() as tx:
        row = dict(tx.one("SELECT * FROM job WHERE id = ?", (number,)))
        spec = json.loads(tx.value("SELECT doc FROM spec WHERE job_id = ?", (number,)))
        lane = tuple(tx.one("SELECT queue, user_id, shape, array_id, most FROM lane WHERE id = ?", (row["lane_id"],)))
    return {name: value for name, value in row.items() if name not in STAYS}, spec, lane


def events(queue, number):
    with queue.session.reading() as tx:
        return [dict(row) for row in tx.rows("SELECT * FROM history WHERE job_id = ? ORDER BY n", (number,))]


def merged(first, then):
    """What one submit would ask for. Of GPUs that counts which was understood then, and who wants none wants no kind of them."""
    gpus = {name: word for name, word in first.items() if name in ("gpus", "gpu_type", "vram")}
    if (
        gpus.get("gpus") == "0"
        or gpus.get("gpu_type") == "cpu"
        or then.get("gpus") == "0"
        or then.get("gpu_type") == "cpu"
    ):
        gpus = {}
    elif gpus:
        gpus = {"gpus": "1", **gpus}
    return {**{name: word for name, word in first.items() if name not in ("gpus", "gpu_type", "vram")}, **gpus, **then}


def tried(verb, *words):
    """What it answers, and the kind of its error."""
    try:
        return verb(*words), None
    except TrainqError as error:
        return None, type(error)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(first=REQUESTS, then=REQUESTS)
def test_an_edited_job_is_as_if_it_had_been_submitted_so(queue, first, then):
    """E08: row, document and lane; and what a submit refuses an edit refuses, with nothing stored."""
    number, trouble = tried(put, queue, first)
    assume(then and trouble is None)
    before = job(queue, number)
    wanted, trouble = tried(put, queue, merged(first, then))
    sets = [f"{name}={word}" for name, word in then.items()]
    changes, refused = tried(edit, queue, [str(number)], sets)
    assert refused == trouble
    if refused is not None:
        assert job(queue, number) == before
        assert len(events(queue, number)) == 1
        return
    (change,) = changes
    (row, spec, lane), (wanted_row, wanted_spec, wanted_lane) = job(queue, number), job(queue, wanted)
    assert (row, spec, lane) == (wanted_row, wanted_spec, wanted_lane)
    assert (change.result == "already") == ((row, spec, lane) == before)
    assert len(events(queue, number)) == (1 if change.result == "already" else 2)


def test_what_is_taken_away_is_as_it_would_be_without(queue):
    """`NAME=`: a type's default, else that of the settings, else none."""
    number = put(
        queue,
        {
            "time": "1h",
            "retries": "5",
            "priority": "3",
            "name": "x",
            "tag": "a",
            "max_attempts": "9",
            "queue": "gpu",
            "cpus": "2",
            "begin": "2100-01-01",
        },
        type="t",
        argv=None,
    )
    plain = put(queue, type="t", argv=None, values={"seed": 1, "on_duplicate": "run"})
    names = ("time", "retries", "priority", "name", "tag", "max_attempts", "queue", "cpus", "begin")
    (change,) = edit(queue, [str(number)], [f"{name}=" for name in names])
    assert change.result == "edited"
    (row, spec, lane), (wanted, wanted_spec, wanted_lane) = job(queue, number), job(queue, plain)
    assert {name: row[name] for name in (*COLUMNS.values(), "state", "reason", "due_at")} == {
        name: wanted[name] for name in (*COLUMNS.values(), "state", "reason", "due_at")
    }
    assert {**spec, "seed": 1, "on_duplicate": "run"} == wanted_spec
    assert lane == wanted_lane
    assert (row["time_s"], row["retries"]) == (4 * 3600, 1)


def test_every_field_is_decided_about():
    """E08: what is executed, and what a job is known by, is not edited; a new field must be sorted."""
    stays = {
        "key",
        "on_duplicate",
        "after",
        "hold",
        "cwd",
        "env",
        "env_keep",
        "snapshot",
        "split_stderr",
        "stdin",
        "data",
        "model",
        "keep",
        "reuse",
        "seed",
    }
    assert {field.name for field in FIELDS} - {*EDITABLE} == stays
    assert {*EDITABLE} == {*WORDS}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["priority"], "NAME=VALUE was expected"),
        (["prio=1"], "nothing of that name is edited"),
        (["env=A=b"], "env of a job is not edited"),
        (["hold=yes"], "hold of a job is not edited"),
        (["priority=x"], "priority: a whole number was expected"),
        (["priority=1", "priority=2"], "'priority' is given twice"),
        (["tag=a b"], "a tag has no spaces"),
        (["tag=a,,b"], "it is empty"),
        (["time=5"], "has no unit"),
    ],
)
def test_what_cannot_be_set_is_refused(words, said):
    with pytest.raises(BadValue, match=said):
        read_sets(words)


def test_names_may_be_spelled_as_on_the_command_line():
    assert read_sets(["--gpu-type=A100", "not-on=h1"]) == {"gpu_type": "a100", "not_on": ("h1",)}
    assert all(BY_NAME[name].editable for name in EDITABLE)


def test_nothing_named_is_refused(queue):
    with pytest.raises(Usage):
        edit(queue, ["1"], [])


def test_what_runs_or_has_ended_stays(queue):
    """E08: only what waits is edited; the worker has read the rest."""
    number = put(queue)
    with queue.session.writing() as tx:
        claim_next(tx, join(tx))
    before = job(queue, number)
    with pytest.raises(NotPossible, match="runs; only what waits is edited"):
        edit(queue, [str(number)], ["priority=3"])
    assert [one.result for one in edit(queue, [f"{number}", f"{number}-{number + 5}"], ["priority=3"])] == ["refused"]
    assert job(queue, number) == before


def test_what_else_holds_it_stays(queue):
    """E08 with E07: a person's hold is not an edit's to take off, and a time that is taken off leaves that."""
    number = put(queue, {"begin": "2100-01-01"})
    with queue.session.writing() as tx:
        assert holds.hold(tx, number, "ann")
    edit(queue, [str(number)], ["begin="])
    row = job(queue, number)[0]
    assert (row["state"], row["reason"], row["due_at"], row["begin_at"]) == ("held", "user", None, None)
    with queue.session.writing() as tx:
        assert holds.release(tx, number, "ann")
    assert job(queue, number)[0]["state"] == "pending"


def test_a_backoff_goes_on(queue):
    """E07: what waits after a failure waits so long, whatever its begin becomes; the later of the two holds it."""
    number = put(queue, {"retries": "1"})
    with queue.session.writing() as tx:
        tx.rows("UPDATE job SET state = 'held', reason = 'backoff', due_at = ? WHERE id = ?", (tx.now + 1000, number))
        due = tx.now + 1000
    edit(queue, [str(number)], ["begin=2000-01-01"])
    row = job(queue, number)[0]
    assert (row["state"], row["due_at"]) == ("held", pytest.approx(due))
    edit(queue, [str(number)], ["begin=2100-01-01"])
    row = job(queue, number)[0]
    assert (row["reason"], row["due_at"]) == ("begin_time", row["begin_at"])


def test_no_less_than_it_has_cost_already(queue):
    """E08: fewer retries or lost workers than were used are refused, and a deadline for what has started once."""
    number = put(queue, {"retries": "3", "max_attempts": "3"})
    with queue.session.writing() as tx:
        tx.rows("UPDATE job SET user_used = 1, system_used = 1, attempt = 2 WHERE id = ?", (number,))
    for word in ("retries=0", "retries=", "max_attempts=1", "deadline=2100-01-01"):
        with pytest.raises(BadValue, match=r"used|started once"):
            edit(queue, [str(number)], [word])
    assert [one.result for one in edit(queue, [str(number)], ["retries=1", "max_attempts=2"])] == ["edited"]
    with queue.session.writing() as tx:  # it has no attempts that a rule would find
        tx.rows("UPDATE job SET user_used = 0, system_used = 0, attempt = 0 WHERE id = ?", (number,))


def test_rows_that_cannot_be_read_are_left_alone(queue):
    """E18: what another member wrote there is not made to look like a job."""
    number = put(queue)
    with queue.session.writing() as tx:
        tx.rows("UPDATE spec SET doc = '[1]' WHERE job_id = ?", (number,))
    with pytest.raises(NotPossible, match="its rows were changed"):
        edit(queue, [str(number)], ["cpus=3"])
    with queue.session.writing() as tx:
        assert tx.value("SELECT doc FROM spec WHERE job_id = ?", (number,)) == "[1]"
        tx.rows('UPDATE spec SET doc = \'{"argv":["true"]}\' WHERE job_id = ?', (number,))


@pytest.mark.parametrize(
    ("sets", "error"),
    [
        (["gpu_type=nope"], UnknownGpuType),
        (["gpu_type=a100", "gpus=4"], GpuLimit),
        (["warn=5m"], BadValue),
        (["warn=5m", "time=60s"], BadValue),
        (["deadline=2000-01-01"], BadValue),
        (["begin=2101-01-01", "deadline=2100-01-01"], BadValue),
    ],
)
def test_a_value_that_fits_none_of_several_is_a_bad_value(queue, sets, error):
    """E08: what a submit refuses is refused of several jobs, and of an array, as it is of one: 2, and nothing is stored."""
    first, second = put(queue), put(queue)
    array = an_array(queue, 3)
    before = dump(queue.session)
    for words in ([f"{first},{second}"], [str(array)]):
        for dry_run in (False, True):
            with pytest.raises(error):
                edit(queue, words, ["priority=5", *sets], dry_run=dry_run)
    assert dump(queue.session) == before


def test_a_value_that_fits_some_of_several_is_theirs(queue):
    """E08: each of several answers for itself."""
    limited, free = put(queue, {"time": "1h"}), put(queue)
    done = edit(queue, [f"{limited},{free}"], ["warn=5m"])
    assert [(one.id, one.result) for one in done] == [(limited, "edited"), (free, "refused")]


def test_the_history_has_one_short_line_of_any_value(queue):
    """E08: a shell line of any bytes can be edited as it can be submitted, and be edited away."""
    number = put(queue)
    for words in ("on_end=echo a\necho \udcff" + "x" * 5000, "on_end="):
        assert edit(queue, [str(number)], [words])[0].result == "edited"
        message = events(queue, number)[-1]["message"]
        message.encode()
        assert message.isprintable()
        assert len(message) < 300


def test_a_move_by_an_edit_leaves_no_message_with_the_job(queue):
    """E08: what has changed is said in the history; the card of the job says nothing of it."""
    number = put(queue)
    for word in ("begin=2100-01-01", "begin="):
        edit(queue, [str(number)], [word])
        assert events(queue, number)[-1]["message"].startswith("begin ")
        assert job(queue, number)[0]["message"] is None


@pytest.mark.parametrize("name", ["param", "params", "argv", "shell", "type"])
def test_what_a_job_executes_is_no_unknown_name(name):
    """E08: the hint says what to do, and suggests no field that looks like it."""
    with pytest.raises(BadValue, match=f"{name} of a job is not edited") as caught:
        read_sets([f"{name}=x"])
    assert caught.value.hint == "trainq cancel, then submit it anew"


def an_array(queue, count):
    tasks = [
        Request({"name": "many"}, argv=("true",), task={"index": n, "count": count, "number": n}) for n in range(count)
    ]
    return submit(queue, tasks, array=NewArray(None)).changes[0].id


def test_lists_show_what_all_tasks_of_an_array_have(queue):
    """E05, E08: an array that is meant as a whole shows the value, also when its tasks had it already."""
    number = an_array(queue, 2)
    for index in range(2):
        assert edit(queue, [f"{number}[{index}]"], ["priority=9"])[0].result == "edited"
    assert priority_of(queue, number) == 0
    assert [one.result for one in edit(queue, [str(number)], ["priority=9"], dry_run=True)] == ["already"] * 2
    assert priority_of(queue, number) == 0
    assert [one.result for one in edit(queue, [str(number)], ["priority=9"])] == ["already"] * 2
    assert priority_of(queue, number) == 9


def priority_of(queue, array):
    with queue.session.reading() as tx:
        return tx.value("SELECT priority FROM job_array WHERE id = ?", (array,))


def test_a_spec_file_tells_of_both(tmp_path):
    """DESIGN 4: who edits writes the file before the row, and may be killed between: either must prove the job."""

    class At:
        def spec(self, call):
            return str(tmp_path / f"{call}.spec")

    old = [f"{n:064x}" for n in range(3)]
    proofs.write(At(), "c", old)
    assert [proofs.read(At(), f"c.{n}").digests for n in range(3)] == [(each,) for each in old]
    proofs.renew(At(), "c", {1: (old[1], "f" * 64)})
    assert [proofs.read(At(), f"c.{n}").digests for n in range(3)] == [(old[0],), (old[1], "f" * 64), (old[2],)]
    proofs.renew(At(), "c", {1: ("f" * 64, "e" * 64), 2: (old[2], "d" * 64)})
    assert [proofs.read(At(), f"c.{n}").digests for n in range(3)] == [
        (old[0],),
        ("f" * 64, "e" * 64),
        (old[2], "d" * 64),
    ]
    proofs.write(At(), "c", old)
    assert proofs.read(At(), "c.1").digests == (old[1],)
