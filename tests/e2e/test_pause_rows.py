"""Queues that nothing is claimed from, jobs that stand still, workers that finish and go: asked for by other processes."""

from __future__ import annotations

from e2e.kit import until


def results(done):
    return [(item["id"], item["result"]) for item in done.json["items"]]


def kept(tq):
    """What is known of the queues, without when."""
    return tq.ok("resume", "--all", "--dry-run", "--json").json["items"]


# queues (Q59) -----------------------------------------------------------------------------------------------------


def test_a_worker_starts_nothing_while_all_is_paused(tq):
    """Q59: `pause --all`: a worker that finds work for two queues starts none of it, what runs goes on, and `resume --all`
    lets it start all; both say "already" when they are repeated."""
    tq.types(queues='names = ["default", "other"]')
    running = tq.submit("slow")
    with tq.worker("--slots", "3") as worker:
        until(lambda: "begun" in tq("logs", running).out)
        assert results(tq.ok("pause", "--all", "--json")) == [("default", "paused"), ("other", "paused")]
        waiting = [tq.submit("--", "true"), tq.submit("--queue", "other", "--", "true")]
        assert results(tq.ok("pause", "--all", "--json")) == [("default", "already"), ("other", "already")]
        (tq.dir / "go").touch()
        until(lambda: tq.state(running) == "done")
        assert tq.ok("worker", "--until", "idle").out == "nothing to do\n"
        assert [(tq.job(job)["state"], tq.job(job)["reason"]) for job in waiting] == [("pending", "queue_paused")] * 2
        assert len(worker.said("job started")) == 1
        assert results(tq.ok("resume", "--all", "--json")) == [("default", "resumed"), ("other", "resumed")]
        until(lambda: [tq.state(job) for job in waiting] == ["done", "done"])
    assert tq.ok("resume", "--all").out == "no queue is paused\n"


def test_one_queue_is_paused_and_people_see_who_when_and_what_for(tq):
    """Q59: the other goes on; `status`, `submit`, the card, `doctor` and a worker say who paused it, when and why."""
    tq.types(queues='names = ["default", "other"]')
    line = ("pause", "--queue", "default", "-m", "new drivers\n\x1b[1m")
    assert tq.ok(*line, "--dry-run").out == "default would be paused\n"
    assert kept(tq) == []
    assert tq.ok(*line).out == "default paused\n"
    assert tq.ok(*line).out == "default already is paused\n"
    waiting = tq.submit("--", "true")
    with tq.worker("--until", "idle", "--queue", "default", "--queue", "other") as worker:
        worker.end()
        (said,) = worker.said("queue paused")
        assert (said["queue"], said["reason"], said["message"]) == ("default", "queue_paused", "new drivers\n\x1b[1m")
    other = tq.submit("--queue", "other", "--", "true")
    tq.ok("worker", "--until", "idle")
    assert (tq.state(waiting), tq.state(other)) == ("pending", "done")
    sentence = tq.job(waiting)["waiting_for"]
    assert sentence.startswith("queue default is paused by ")
    assert " since " in sentence
    assert sentence.endswith(r": new drivers\n\x1b[1m")
    for shown in (tq.ok("status").out, tq.ok("submit", "--", "true").err, tq("doctor").out):
        assert sentence in shown
        assert "trainq resume --queue default" in shown
    tq.ok("resume", "--queue", "default")
    tq.work()
    assert {job["state"] for job in tq.jobs()} == {"done"}


def test_all_are_those_that_are_known_now(tq):
    """Q59: `--all` covers the queues of the settings, with a row or not, and a queue that only jobs know any more; one that
    is named later is open."""
    tq.types(queues='names = ["default", "old"]')
    old = tq.submit("--queue", "old", "--", "true")
    tq.types(queues='names = ["default", "new"]')
    assert results(tq.ok("pause", "--all", "--json")) == [(name, "paused") for name in ("default", "new", "old")]
    tq.types(queues='names = ["default", "old", "later"]')
    later = tq.submit("--queue", "later", "--", "true")
    tq.ok("worker", "--until", "idle")
    assert (tq.state(old), tq.state(later)) == ("pending", "done")
    tq.types(queues='names = ["default"]')
    assert results(tq.ok("resume", "--queue", "old", "--json")) == [("old", "resumed")]
    assert results(tq.ok("resume", "--all", "--json")) == [("default", "resumed"), ("new", "resumed")]


def test_what_is_no_queue_is_not_paused(tq):
    """Q59: without a queue 2, an unknown one 3, and then none of those named is paused."""
    for verb in ("pause", "resume"):
        assert tq(verb).code == 2
        done = tq(verb, "--queue", "default", "--queue", "nope")
        assert (done.code, "no such queue: 'nope'" in done.err) == (3, True)
    assert kept(tq) == []
    assert tq("pause", "--queue", "nope", "--json").json["error"] == "not_found"
