"""FEATURES E08, edit: what waits is changed with the real command, and real workers go by what it is then."""

from __future__ import annotations

import json
import os

import pytest
from e2e.kit import Tq, until


@pytest.fixture
def tq(tmp_path):
    command = Tq(tmp_path)
    command.ok("init", command.root, root=None)
    with open(os.path.join(command.root, "trainq.toml"), "a", encoding="utf-8") as file:
        file.write('\n[queues]\nnames = ["gpu"]\n')
    return command


def test_one_row_in_history_and_nothing_else(tq):
    """E08: each is one row in history and changes nothing else."""
    number = tq.submit("--time", "1h", "--", "true")
    before = tq.job(number)
    assert (
        tq.ok("edit", number, "--set", "priority=9", "--set", "time=2h", "--dry-run").out
        == f"{number} would be edited: priority 0 -> 9, time 1h -> 2h\n"
    )
    assert tq.job(number)["priority"] == 0
    done = tq.ok("edit", number, "--set", "priority=9", "--set", "time=2h", "--json").json
    assert done["kind"] == "changes"
    assert [(item["id"], item["result"], item["error"]) for item in done["items"]] == [(number, "edited", None)]
    after = tq.job(number)
    assert (after["priority"], after["request"]["time_s"]) == (9, 7200.0)
    rows = tq.history(number)
    assert [(row["state"], row["reason"]) for row in rows] == [("pending", None), ("pending", "edited")]
    assert rows[1]["message"] == "priority 0 -> 9, time 1h -> 2h"
    assert rows[1]["by"] == rows[0]["by"]
    changed = {name for name in after if after[name] != before[name]} - {"times", "generated_at"}
    assert changed == {"priority", "request"}
    assert tq.ok("edit", number, "--set", "priority=9").out == f"{number} already so\n"
    assert len(tq.history(number)) == 2
    tq.work()
    assert tq.state(number) == "done"


def test_the_order_is_that_of_the_new_priority(tq):
    """E08: the worker goes by what is asked for now."""
    first, second = (tq.submit("--shell", f"echo {n} >> order") for n in (1, 2))
    tq.ok("edit", second, "--set", "priority=1")
    tq.work("--slots", "1")
    assert (tq.dir / "order").read_text() == "2\n1\n"
    assert tq.state(first) == "done"


def test_an_idle_worker_of_the_other_queue_takes_it_at_once(tq):
    """E08: an edit rings the bell; what did not fit fits now."""
    number = tq.submit("--gpus", "2", "--", "true")
    with tq.worker("--queue", "gpu", "--sim-gpus", "1"):
        until(lambda: tq.ok("workers", "--json").json["items"])
        assert tq.state(number) == "pending"
        tq.ok("edit", number, "--set", "queue=gpu", "--set", "gpus=1")
        until(lambda: tq.state(number) == "done")


def test_what_runs_has_ended_or_is_not_there(tq):
    """E08: only what waits is edited: 4 for one job, 7 among several."""
    runs, ended, waits = (tq.submit("--", "sleep", "60") for _ in range(3))
    tq.ok("cancel", ended)
    with tq.worker("--slots", "1"):
        until(lambda: tq.state(runs) == "running")
        refused = tq("edit", runs, "--set", "priority=3")
        assert (refused.code, refused.err.splitlines()[0]) == (4, f"trainq: job {runs} runs; only what waits is edited")
        assert tq("edit", ended, "--set", "priority=3").code == 4
        several = tq("edit", f"{runs},{ended},{waits},99", "--set", "priority=3", "--json")
        assert several.code == 7
        assert [item["result"] for item in several.json["items"]] == ["refused", "ended", "edited", "unknown"]
        assert tq("edit", 99, "--set", "priority=3").code == 3
        tq.ok("cancel", "--state", "running", "--state", "pending")


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ((), 2, "what is to be set"),
        (("--set", "prioritty=3"), 2, "nothing of that name is edited"),
        (("--set", "env=A=b"), 2, "env of a job is not edited"),
        (("--set", "queue=nix"), 2, "no such queue"),
        (("--set", "priority=3", "--set", "gpus=many"), 2, "gpus: a whole number was expected"),
        (("--set", "priority=3", "--set", "warn=60s"), 2, "--warn needs a time limit"),
        (("--set", "priority=3", "--set", "deadline=2000-01-01"), 2, "it could never start"),
    ],
)
def test_a_bad_value_is_one_line_and_nothing_is_stored(tq, words, code, said):
    """E08: bad input gets one clear line and the documented exit code."""
    number = tq.submit("--", "true")
    done = tq("edit", number, *words)
    assert done.code == code
    assert said in done.err.splitlines()[0]
    assert tq.job(number)["priority"] == 0
    assert len(tq.history(number)) == 1
    assert tq("edit", "--set", "priority=3").code == 2


def test_an_array_is_edited_as_one(tq):
    """E05, E08: every task that waits; lists show it of the whole; its limit stays."""
    number = tq.submit("--array", "0-3%1", "--shell", "echo $TRAINQ_ARRAY_INDEX >> order")
    tq.ok("cancel", f"{number}[3]")
    done = tq("edit", number, "--set", "priority=5", "--set", "tag=a,b", "--set", "name=new", "--json")
    assert done.code == 0
    assert [item["result"] for item in done.json["items"]] == ["edited"] * 3 + ["ended"]
    (item,) = tq.ok("status", "--json").json["items"]
    assert (item["name"], item["priority"], item["tags"], item["limit"]) == ("new", 5, ["a", "b"], 1)
    tq.ok("edit", f"{number}[2]", "--set", "priority=6")
    tq.work("--slots", "3")
    assert (tq.dir / "order").read_text() == "2\n0\n1\n"


def test_a_time_to_begin(tq):
    """E07, E08: it is held from then on, and let go when that is taken away; an idle worker takes it."""
    number = tq.submit("--", "true")
    tq.ok("edit", number, "--set", "begin=+2h")
    assert (tq.job(number)["state"], tq.job(number)["reason"]) == ("held", "begin_time")
    with tq.worker():
        until(lambda: tq.ok("workers", "--json").json["items"])
        tq.ok("edit", number, "--set", "begin=")
        until(lambda: tq.state(number) == "done")
    assert [(row["state"], row["message"] and row["message"].split()[0]) for row in tq.history(number)][:3] == [
        ("pending", None),
        ("held", "begin"),
        ("pending", "begin"),
    ]


def test_a_deadline_that_is_set_later_ends_it(tq):
    """E07, E08."""
    number = tq.submit("--gpus", "1", "--", "true")
    tq.ok("edit", number, "--set", "deadline=+1s")
    with tq.worker():
        until(lambda: tq.state(number) == "canceled")
    assert tq.job(number)["reason"] == "deadline"


def test_by_a_filter(tq):
    """E08: filters name jobs as for other verbs."""
    tagged, other = tq.submit("--tag", "a", "--", "true"), tq.submit("--", "true")
    assert tq.ok("edit", "--tag", "a", "--set", "priority=2").out == f"{tagged} edited: priority 0 -> 2\n"
    assert (tq.job(tagged)["priority"], tq.job(other)["priority"]) == (2, 0)


def test_a_retry_goes_by_what_was_edited(tq):
    """E08: the values are the job's from then on."""
    number = tq.submit("--", "false")
    tq.ok("edit", number, "--set", "name=second", "--set", "cpus=2")
    tq.work()
    tq.ok("retry", number)
    card = tq.job(number)
    assert (card["name"], card["request"]["cpus"], json.dumps(card["command"]["argv"])) == ("second", 2, '["false"]')


def test_a_queue_that_is_paused_is_told_of(tq):
    """E08: as at a submit, for who moves a job where nothing is started from; not for who leaves it there."""
    number = tq.submit("--", "true")
    tq.ok("pause", "--queue", "gpu")
    assert "queue gpu is paused" in tq.ok("edit", number, "--set", "queue=gpu").err
    assert tq.ok("edit", number, "--set", "priority=2").err == ""


def test_a_bad_value_for_several_is_2(tq):
    """E08: refused as for one, with one line, whatever the number of jobs."""
    number = tq.submit("--array", "0-2", "--", "true")
    done = tq("edit", number, "--set", "priority=3", "--set", "warn=60s")
    assert (done.code, done.out) == (2, "")
    assert "needs a time limit" in done.err
    assert len(tq.history(f"{number}[1]")) == 1
