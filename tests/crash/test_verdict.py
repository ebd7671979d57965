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


COUNTED = ["1.0 7 begin", "1.1 7 resumes 0", "1.2 7 committed 1", "1.3 7 committed 2"]


def test_forgotten(tq, tmp_path):
    """A committed checkpoint that the next attempt did not get is a fault: a kill alone does not excuse it."""
    attempts = {
        "1-1": WELL,
        "2-1": COUNTED,
        "2-2": ["2.0 8 begin", "2.1 8 resumes 2"],
        "2-3": ["3.0 9 begin", "3.1 9 resumes 1"],
    }
    assert judge(tq, tmp_path, attempts).wrong == ["job 2, attempt 3: goes on from 1, had 2 committed"]


def test_passed_over(tmp_path):
    """Two restores that crashed excuse an older checkpoint; not one, not one that made a newer, not another's."""
    older = [(4.0, "begin"), (4.1, "resumes 1")]
    marks = {(2, 1): [(1.0, "resumes 0"), (1.2, "committed 1"), (1.3, "committed 2")], (2, 4): older}
    two = [verdict.Restore(2, 2, 2), verdict.Restore(2, 3, 2)]
    assert list(verdict._forgotten(marks, two)) == []
    for crashed in (two[:1], [two[0], two[0]], [two[0], verdict.Restore(2, 3, 1)], [two[0], verdict.Restore(3, 3, 2)]):
        assert len(list(verdict._forgotten(marks, crashed))) == 1
    newer = {**marks, (2, 3): [(3.0, "resumes 2"), (3.1, "committed 3")], (2, 5): [(5.0, "resumes 3")]}
    assert list(verdict._forgotten(newer, two)) == [
        "job 2, attempt 4: goes on from 1, had 2 committed",
        "job 2, attempt 4: goes on from 1, had 3 committed",
    ]
