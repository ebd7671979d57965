"""Sweeps and arrays as they are typed: the numbers, the grid, a sample of it, rows of files, and the state of the whole."""

from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainq.base.errors import BadValue
from trainq.domain.array import MOST_TASKS, bar, parse_array, ref_of, state_of, words_of
from trainq.domain.states import ENDED, STATES
from trainq.domain.sweep import parse_rows, parse_sweep, refuse_same, sampled, size_of, tasks

COUNTS = st.fixed_dictionaries({state: st.integers(0, 30) for state in STATES})


@pytest.mark.parametrize(
    ("text", "values", "most"),
    [
        ("0-3", [0, 1, 2, 3], None), ("5-8%2", [5, 6, 7, 8], 2), ("0-9:5,7", [0, 5, 7], None), ("7,3,3-4", [3, 4, 7], None),
        ("12", [12], None), ("0-0", [0], None), ("%8", None, 8), ("0-999%16", list(range(1000)), 16),
    ],
)  # fmt: skip
def test_numbers_of_an_array(text, values, most):
    """E05: the numbers are the user's, rising and each once; `%N` is how many run at once."""
    found = parse_array(text)
    assert (None if found.values is None else list(found.values), found.most) == (values, most)


@pytest.mark.parametrize(
    "text",
    ["", "%", "a", "0-", "-3", "3-1", "0-9:0", "0-9%0", "0-9%x", "0-9%-1", "1,,2", "0-9%2%3", "0-" + "9" * 40, "٣"],
)
def test_what_is_no_array(text):
    with pytest.raises(BadValue):
        parse_array(text)


def test_an_array_has_a_largest_size():
    """Q18: a range far beyond it is refused with its number, before it is made."""
    assert len(parse_array(f"1-{MOST_TASKS}").values or ()) == MOST_TASKS
    with pytest.raises(BadValue, match="1000000000 tasks"):
        parse_array("1-1000000000")
    axes = [parse_sweep("a=" + ",".join(map(str, range(500)))), parse_sweep("b=" + ",".join(map(str, range(500))))]
    with pytest.raises(BadValue, match="250000 tasks"):
        tasks(None, axes)
    assert len(tasks(None, axes, 10, 0)) == 10


@pytest.mark.parametrize(
    ("text", "values", "is_json"),
    [
        ("lr=1e-3,1e-4", ["1e-3", "1e-4"], False), ("lr=[1, 2.5, null]", [1, 2.5, None], True), ("x=a=b,c", ["a=b", "c"], False),
        ('s=["a,b", ""]', ["a,b", ""], True), ("one=5", ["5"], False), ("k=[[1,2],[3]]", [[1, 2], [3]], True),
    ],
)  # fmt: skip
def test_values_of_a_sweep(text, values, is_json):
    """E05: words between commas, or a list of JSON where a value has a comma or a kind of its own."""
    axis = parse_sweep(text)
    (name,) = axis.names
    assert [point.params[name] for point in axis.points] == values
    assert all((name in point.as_json) == is_json for point in axis.points)


@pytest.mark.parametrize("text", ["lr", "=1", "lr=", "lr=1,,2", "lr=1,1", "lr=[1,1]", "lr=[]", "lr=[1", "lr=[1],[2]"])
def test_what_is_no_sweep(text):
    with pytest.raises(BadValue):
        parse_sweep(text)


def test_the_product_turns_the_last_axis_fastest():
    """E05: sweeps combine as their product, in the order typed."""
    axes = [parse_sweep("a=1,2"), parse_sweep("b=x,y,z")]
    found = tasks(None, axes)
    assert [tuple(task.point.params.values()) for task in found] == list(itertools.product("12", "xyz"))
    assert [(task.place, task.number) for task in found] == [(place, None) for place in range(6)]


def test_numbers_and_points_make_an_index_of_their_own():
    """E05: with numbers the index is the number, or the number times the points plus the place among them."""
    assert [(task.place, task.number) for task in tasks([3, 7], [])] == [(3, 3), (7, 7)]
    found = tasks([3, 7], [parse_sweep("a=x,y")])
    assert [(task.place, task.number, task.point.params["a"]) for task in found] == [
        (6, 3, "x"), (7, 3, "y"), (14, 7, "x"), (15, 7, "y"),
    ]  # fmt: skip


def test_an_index_is_a_number_that_a_store_can_hold():
    """E05: a number times the points of a large grid may be more than any."""
    axes = [parse_sweep(f"p{n}=" + ",".join(map(str, range(1000)))) for n in range(4)]
    assert tasks([9], axes, 1)[0].place < 10**13
    with pytest.raises(BadValue, match=r"task .* is more than"):
        tasks([10**11], axes, 1)


def test_a_parameter_has_one_place():
    refuse_same([("a",), ("b", "c")])
    with pytest.raises(BadValue, match="parameter b is given twice"):
        refuse_same([("a", "b"), ("c",), ("b",)])


@given(st.integers(1, 10**12), st.integers(1, 200), st.integers(-(2**63), 2**63 - 1))
def test_a_sample_is_reproducible_distinct_and_inside(size, wanted, seed):
    """E05: `--sample N --seed S` is the same for the same seed; no point comes twice, none lies outside the grid."""
    wanted = min(size, wanted)
    found = sampled(size, wanted, seed)
    assert found == sampled(size, wanted, seed)
    assert found == sorted(set(found))
    assert len(found) == wanted
    assert found[0] >= 0
    assert found[-1] < size


def test_a_sample_stays_the_same_sample():
    """What a seed stands for is a promise: it was taken once and written here."""
    assert sampled(1000, 5, 0) == [284, 503, 684, 839, 841]
    assert sampled(1000, 5, 1) != sampled(1000, 5, 0)
    each = [sum(place in sampled(6, 2, seed) for seed in range(300)) for place in range(6)]
    assert min(each) > 60  # of 100


def test_a_sample_of_more_than_there_is_takes_all():
    axes = [parse_sweep("a=1,2,3")]
    assert size_of(None, axes) == 3
    assert tasks(None, axes, 99, 5) == tasks(None, axes)


@given(st.lists(st.integers(1, 5), min_size=1, max_size=4), st.integers(1, 40), st.integers(0, 9))
def test_a_sample_is_of_the_grid(sizes, wanted, seed):
    """Every point that is sampled is one of the grid, and no two are the same."""
    axes = [parse_sweep(f"p{n}=" + ",".join(map(str, range(size)))) for n, size in enumerate(sizes)]
    whole = [tuple(task.point.params.items()) for task in tasks(None, axes)]
    some = [tuple(task.point.params.items()) for task in tasks(None, axes, wanted, seed)]
    assert len(set(some)) == len(some) == min(wanted, len(whole))
    assert set(some) <= set(whole)


def test_rows_of_csv():
    """E05: the header names the parameters; byte order mark, CRLF, quoted commas and quoted lines are as CSV has them."""
    axis = parse_rows(b'\xef\xbb\xbflr, note\r\n1e-3,"a, ""b"""\r\n\r\n5,"two\r\nlines"\r\n', "runs.csv")
    assert axis.names == ("lr", "note")
    assert [dict(point.params) for point in axis.points] == [
        {"lr": "1e-3", "note": 'a, "b"'}, {"lr": "5", "note": "two\r\nlines"},
    ]  # fmt: skip
    assert [point.where for point in axis.points] == ["runs.csv, line 2", "runs.csv, line 5"]
    assert not any(point.as_json for point in axis.points)


def test_rows_of_jsonl():
    axis = parse_rows(b'{"a": 1}\n\n{"a": "x", "b": [1, 2]}\r\n', "runs.JSONL")
    assert axis.names == ("a", "b")
    assert [dict(point.params) for point in axis.points] == [{"a": 1}, {"a": "x", "b": [1, 2]}]
    assert [point.where for point in axis.points] == ["runs.JSONL, line 1", "runs.JSONL, line 3"]
    assert [set(point.as_json) for point in axis.points] == [{"a"}, {"a", "b"}]


@pytest.mark.parametrize(
    ("name", "data", "said"),
    [
        ("r.csv", b"", "r.csv: no row"), ("r.csv", b"a,b\n", "r.csv: no row"), ("r.csv", b"a,b\n1\n", "line 2: 1 values for 2"),
        ("r.jsonl", b'{"a": 1}\n{"a": 1, "a": 2}\n', "line 2: 'a' stands there twice"),
        ("r.jsonl", b'{"a": {"b": 1, "b": 1}}\n', "line 1: 'b' stands there twice"),
        ("r.csv", b"a,a\n1,2\n", "line 1: 'a' stands there twice"), ("r.csv", b"a,\n1,2\n", "line 1: a parameter needs a name"),
        ("r.csv", b'a\n1\n"x\n', "line 3: not CSV"), ("r.csv", b"a\n1\n\xff\n", "line 3: not UTF-8"),
        ("r.jsonl", b'{"a": 1}\n[1]\n', "line 2: an object"), ("r.jsonl", b'{"a": 1}\n{"a": \n', "line 2: not JSON"),
        ("r.jsonl", b"\n", "no row"), ("r.txt", b"a\n1\n", "ends in .csv or .jsonl"),
    ],
)  # fmt: skip
def test_what_is_no_file_of_parameters(name, data, said):
    """E05: an error names the file and the line."""
    with pytest.raises(BadValue) as error:
        parse_rows(data, name)
    assert said in error.value.message
    assert error.value.message.startswith(name)


def test_a_value_of_csv_may_be_as_long_as_one_of_json():
    """E05: whatever the csv module's own limit is."""
    long = "x" * 200_000
    for name, data in (("r.csv", f"a\n{long}\n"), ("r.jsonl", json.dumps({"a": long}))):
        assert parse_rows(data.encode(), name).points[0].params == {"a": long}


@given(st.lists(st.fixed_dictionaries({"a": st.text(), "b": st.text(min_size=1)}), min_size=1))
def test_any_text_comes_back_from_csv(rows):
    import csv
    import io

    out = io.StringIO(newline="")
    writer = csv.DictWriter(out, ("a", "b"), quoting=csv.QUOTE_ALL)
    writer.writeheader()
    writer.writerows(rows)
    try:
        data = out.getvalue().encode()
    except UnicodeEncodeError:
        return  # half a pair: no file holds that
    assert [dict(point.params) for point in parse_rows(data, "r.csv").points] == rows


@given(st.lists(st.dictionaries(st.text(min_size=1), st.integers() | st.text() | st.none()), min_size=1))
def test_any_objects_come_back_from_jsonl(rows):
    data = "".join(json.dumps(row) + "\n" for row in rows).encode()
    assert [dict(point.params) for point in parse_rows(data, "r.jsonl").points] == rows


@given(COUNTS)
def test_the_state_of_the_whole(counts):
    """E05: running if any runs, else pending, held; ended, done only if all of it is, else the worst."""
    state = state_of(counts)
    order = ("running", "pending", "held", "errored", "canceled", "skipped", "done")
    assert state == next((one for one in order if counts[one]), "done")
    assert (state == "done") == all(not counts[one] for one in order[:-1])
    picture = bar(counts)
    assert len(picture) == 12
    if sum(counts[one] for one in ENDED) == sum(counts.values()) > 0:
        assert "." not in picture
    assert ("#" in picture) >= (counts["done"] > 0)
    assert ("!" in picture) == (counts["errored"] + counts["canceled"] + counts["skipped"] > 0)


def test_words_of_the_whole():
    counts = {**dict.fromkeys(STATES, 0), "done": 40, "errored": 5, "running": 2, "pending": 53}
    assert words_of(counts) == "45/100, 5 errored, 2 running"
    assert bar(counts) == "[####!>....]"
    assert bar({**counts, "done": 1, "errored": 500, "running": 1, "pending": 0}) == "[#!!!!!!!!>]"
    assert ref_of({"id": 15, "array_id": 12, "array_index": 3}) == "12[3]"
    assert ref_of({"id": 15, "array_id": None}) == ref_of({"id": 15}) == "15"
