"""The judge of the soak sees what it is there to see."""

from __future__ import annotations

import pytest

from crash import harness, verdict


@pytest.fixture(scope="module")
def tq(tmp_path_factory):
    return harness.template(tmp_path_factory.mktemp("original"))


def judge(tq, tmp_path, marks, acknowledged=(1,), may_be=None):
    for name, lines in marks.items():
        (tmp_path / f"{name}.marks").write_text("".join(f"{line}\n" for line in lines))
    return verdict.judge(tq.root, str(tmp_path), set(acknowledged), may_be or {})


WELL = ["1.0 7 begin", "1.1 7 ", "1.2 7 end"]


def test_a_good_end(tq, tmp_path):
    """Nothing to complain of: the job is there, ended once, and its attempt said that it came to its end."""
    found = judge(tq, tmp_path, {"1-1": WELL})
    assert (found.jobs, found.attempts, *found[2:]) == (1, 1, [], [], [], [])


def test_lost(tq, tmp_path):
    """An acknowledged job that is gone, and one that ended otherwise than it should."""
    found = judge(tq, tmp_path, {"1-1": WELL}, acknowledged=(1, 2), may_be={1: {"canceled"}})
    assert len(found.lost) == 2
    assert judge(tq, tmp_path, {}, may_be={1: {"canceled", "asked"}}).lost == []


def test_double(tq, tmp_path):
    """A step of an attempt after a later one has begun; not one before, and not one of another job."""
    found = judge(tq, tmp_path, {"1-1": WELL, "1-2": ["1.15 8 begin", "1.3 8 "], "2-1": ["0.1 9 begin", "9.0 9 "]})
    assert len(found.double) == 1
    assert judge(tq, tmp_path, {"1-2": ["1.25 8 begin"]}).double == []


def test_wrong(tq, tmp_path):
    """Done though its attempt never came to its end; training data or a checkpoint that were not what they should be."""
    assert len(judge(tq, tmp_path, {"1-1": WELL[:2]}).wrong) == 1
    assert len(judge(tq, tmp_path, {"1-1": [*WELL, "1.3 7 torn: 3"]}).wrong) == 2
