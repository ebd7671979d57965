"""What submit takes in, what it refuses, and what it leaves when it does."""

from __future__ import annotations


def test_q01(tq):
    """Q01: with no worker alive a submit stores job and set, prints the id, and the job waits."""
    (tq.dir / "d.json").write_text('{"a": 1}')
    done = tq.ok("submit", "ok", "--data", "d.json")
    assert done.out == "1\n"
    job = tq.job(1)
    assert job["state"] == "pending"
    assert job["data"]["size"] == 8
