"""FEATURES Q34: a waiting job says why, worker by worker, in words and JSON, and names the command that would help."""

from __future__ import annotations

import os

import pytest
from e2e.kit import Tq, until

WAITS = "until [ -e go ]; do sleep 0.1; done"


@pytest.fixture
def tq(tmp_path):
    command = Tq(tmp_path)
    command.ok("init", command.root, root=None)
    with open(os.path.join(command.root, "trainq.toml"), "a", encoding="utf-8") as file:
        file.write('\n[queues]\nnames = ["cpu"]\n[limits]\ngpus = { a100 = 3, v100 = 8 }\n')
    return command


def explained(tq, number):
    return tq.ok("explain", number, "--json").json["items"][0]


def test_no_worker_at_all(tq):
    """Q34: a job with no live worker says so, and what to type; the list shows the short reason."""
    job = tq.submit("--", "true")
    said = explained(tq, job)
    assert (said["reason"], said["why"], said["workers"], said["help"]) == (
        "no_worker",
        ["no live worker"],
        [],
        "trainq worker",
    )
    assert tq.job(job)["reason"] == "no_worker"
    assert tq.job(job)["waiting_for"] == "no live worker"
    text = tq.ok("explain", job).out
    assert "position 1 in queue default" in text
    assert "try: trainq worker" in text


def test_what_is_held_says_by_what_and_what_would_help(tq):
    """Q34: alone and among others."""
    held = tq.submit("--hold", "--", "true")
    after = tq.submit("--after", f"ok:{held}", "--", "true")
    items = tq.ok("explain", f"{held},{after}", "--json").json["items"]
    assert [item["help"] for item in items] == [f"trainq release {held}", f"trainq explain {held}"]
    assert items[1]["why"] == [f"held: dependency; it waits for job {held} (held) to be done"]
    assert items == [explained(tq, held), explained(tq, after)]


def test_the_worker_that_would_help_has_what_is_asked_for(tq):
    """Q34."""
    job = tq.submit("--gpus", "2", "--gpu-type", "a100", "--queue", "cpu", "--", "true")
    assert explained(tq, job)["help"] == "trainq worker --queue cpu, on a host with 2 a100"


def test_nobody_knows_when_a_paused_queue_goes_on(tq):
    """Q34, Q59: there is room, and no time to tell of."""
    job = tq.submit("--", "true")
    tq.ok("pause", "--all")
    with tq.worker():
        until(lambda: tq.ok("workers", "--json").json["items"])
        said = explained(tq, job)
    assert (said["starts_in_s"], said["help"]) == (None, "trainq resume --queue default")


def test_worker_by_worker(tq):
    """Issue: `h2: 1 of 2 a100 free, needs 2; h3: serves queue cpu only`, position, and an estimate from progress."""
    first = tq.submit("--gpu-type", "a100", "--shell", f"trainq report --progress 0.5; {WAITS}")
    with (
        tq.worker("--slots", "4", "--sim-gpus", "2:a100", "--queue", "default", "--name", "h2"),
        tq.worker("--queue", "cpu", "--name", "h3"),
        tq.worker("--sim-gpus", "1:v100", "--name", "h4", "--queue", "default"),
    ):
        until(lambda: tq.job(first)["progress"]["fraction"] == 0.5)
        two = tq.submit("--gpus", "2", "--gpu-type", "a100", "--", "true")
        one = tq.submit("--gpus", "2", "--gpu-type", "a100", "--", "true")
        said = until(lambda: (found := explained(tq, one))["reason"] == "resources" and found)
        by_name = {worker["name"]: worker for worker in said["workers"]}
        assert by_name["h2"]["reason"] == "1 of 2 a100 free, needs 2"
        assert by_name["h3"]["reason"] == "serves queue cpu only"
        assert by_name["h4"]["reason"] == "has no a100"
        assert [by_name[name]["fits"] for name in ("h2", "h3", "h4")] == [True, False, False]
        assert said["position"] == 2
        assert said["starts_in_s"] > 0
        assert tq.job(two)["reason"] == "resources"
        lost = tq.submit("--gpu-type", "v100", "--gpus", "8", "--", "true")
        assert explained(tq, lost)["why"][0] == "no live worker for 8 v100"
        assert tq.job(lost)["waiting_for"] == "no live worker for 8 v100"
        busy = explained(tq, first)
        assert busy["state"] == "running"
        assert "50% done" in busy["why"][0]
        (tq.dir / "go").touch()
        until(lambda: [tq.state(number) for number in (first, two, one)] == ["done"] * 3)
    assert explained(tq, one)["why"] == ["it has ended: done"]


def test_a_limit_is_named(tq):
    """Q16, Q34: what a limit keeps waiting says which one, and how far it is used."""
    first = tq.submit("--gpus", "3", "--gpu-type", "a100", "--shell", WAITS)
    with tq.worker("--slots", "4", "--sim-gpus", "8:a100"):
        until(lambda: tq.state(first) == "running")
        job = tq.submit("--gpus", "2", "--", "true")
        said = until(lambda: (found := explained(tq, job))["reason"] == "limit" and found)
        assert said["why"] == ["limit: 3 of 3 a100 that may be used are in use"]
        assert tq.job(job)["reason"] == "limit"
        gpus = tq.ok("gpus", "--json").json["items"]
        assert [one["job"] for one in gpus] == [first] * 3 + [None] * 5
        assert "job 1" in tq.ok("gpus").out
        (tq.dir / "go").touch()
        until(lambda: tq.state(job) == "done")


def test_what_cannot_be_explained_is_an_error(tq):
    """Unknown jobs exit 3, no selector 2, and among several 7."""
    assert tq("explain", 7).code == 3
    assert tq("explain").code == 2
    job = tq.submit("--", "true")
    assert tq("explain", job, 7).code == 7
    assert tq.ok("explain", "--state", "pending").out.startswith(f"job {job} ")
