"""A worker that is killed while its job runs. tests/crash has the rest: every point, every file operation."""

from __future__ import annotations

import signal

from e2e.kit import until


def ends(tq, number: int) -> list[str]:
    return [row["state"] for row in tq.history(number) if row["state"] in ("done", "errored", "canceled")]


def test_a_worker_killed_while_its_job_runs(tq):
    """Q50: worker and job killed in the middle of a training: the log stays, the attempt is lost, the next one is done;
    used up it is errored poison, with every attempt kept."""
    twice = tq.submit("--shell", 'echo $TRAINQ_ATTEMPT; test "$TRAINQ_ATTEMPT" = 2 || sleep 60')
    poison = tq.submit("--max-attempts", "2", "--shell", "echo $TRAINQ_ATTEMPT; sleep 60")
    for _ in range(2):
        with tq.worker("--slots", "2") as worker:
            until(lambda: tq.state(poison) == "running")
            until(lambda: tq.ok("status", "--summary", "--json").json["counts"]["pending"] == 0)
            worker.signal(signal.SIGKILL)
            worker.process.wait()
        until(lambda: tq.ok("prune") and tq.state(poison) != "running")
    job = tq.job(poison)
    assert (job["state"], job["reason"], job["side"]) == ("errored", "poison", "system")
    assert len(job["attempts"]) == 2
    assert [row["reason"] for row in tq.history(poison) if row["state"] == "pending"] == [None, "zombie"]
    tq.work()
    assert ends(tq, twice) == ["done"]
    assert tq.job(twice)["attempt"]["n"] == 2
    assert tq.ok("logs", poison, "--attempt", "1").out.startswith("1\n")
