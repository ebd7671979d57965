"""Arrays and sweeps with the real command and real workers: one thing to put in, watch, cancel, retry and wait for."""

from __future__ import annotations

import json

import pytest
from e2e.kit import until

ARRAY_KEYS = {"id", "name", "type", "queue", "state", "counts", "tasks"}
FAILING = 'sys.exit(int(os.environ["TRAINQ_ARRAY_INDEX"]) % 5 == 3 and not os.path.exists("mended"))'


def failing(tq, *words):
    """An array of ten of which 3 and 8 fail until `mended` is there; its number."""
    tq.script("some.py", f"import os, sys\n{FAILING}\n")
    return tq.submit("--array", "0-9", *words, "--", "python", "some.py")


def items(result):
    return {item["id"]: item for item in result.json["items"]}


def test_one_row_with_counts_and_only_the_errored_again(tq):
    """E05: `status` folds an array into one row with counts; `retry 12 --state errored` retries only those."""
    number = failing(tq)
    tq.submit("--", "true")
    tq.work("--slots", "3")
    listed = items(tq.ok("status", "--json"))
    assert list(listed) == [number + 11, number] or list(listed) == [number, number + 11]
    assert listed[number]["counts"]["done"] == 8
    assert listed[number]["counts"]["errored"] == 2
    (row,) = [line for line in tq.ok("status").out.splitlines() if line.startswith(f"{number} ")]
    assert "errored" in row
    assert "10/10, 2 errored" in row
    (tq.dir / "mended").touch()
    done = tq.ok("retry", number, "--state", "errored", "--json").json["items"]
    assert [(item["ref"], item["result"]) for item in done] == [
        (f"{number}[3]", "retried"),
        (f"{number}[8]", "retried"),
    ]
    tq.work()
    card = tq.ok("status", number, "--json").json
    assert card.keys() >= ARRAY_KEYS
    assert (card["kind"], card["id"], card["state"], card["counts"]["done"]) == ("array", number, "done", 10)
    assert [task["attempt"]["n"] for task in card["tasks"]] == [1, 1, 1, 2, 1, 1, 1, 1, 2, 1]
    assert [task["ref"] for task in card["tasks"]] == [f"{number}[{n}]" for n in range(10)]
    assert card["tasks"][3]["array"] == {"id": number, "index": 3, "count": 10}
    assert card["tasks"][3]["id"] == number + 4


def test_one_that_is_held(tq):
    """E05, E08: a list says so of the array, `explain` and a list of tasks of each."""
    number = tq.submit("--hold", "--array", "0-1", "--", "true")
    (item,) = tq.ok("status", "--json").json["items"]
    assert (item["state"], item["reason"], item["counts"]["held"]) == ("held", "user", 2)
    tasks = tq.ok("status", "--tasks", "--json").json["items"]
    assert all(task["waiting_for"].startswith("its release, held by ") for task in tasks)
    (explained,) = tq.ok("explain", number, "--json").json["items"]
    assert (explained["id"], explained["kind"], explained["reason"], explained["help"]) == (
        number, "array", "user", f"trainq release {number}",
    )  # fmt: skip
    assert explained["why"][1].startswith(f"{number}[0] is next: held: user; it waits for its release")
    tq.ok("release", number)
    assert tq.ok("status", "--json").json["items"][0]["reason"] == "no_worker"
    assert tq.ok("status", number, "--json").json["reason"] == "no_worker"
    assert "no_worker" in tq.ok("status").out


def test_a_begin_is_the_same_for_every_task(tq):
    """E05, E07: a time that is told from now on is one time."""
    number = tq.submit("--array", "0-50", "--begin", "+1h", "--", "true")
    tasks = tq.ok("status", number, "--json").json["tasks"]
    assert len({task["waiting_for"] for task in tasks}) == 1


def test_verbs_pass_over_the_tasks_that_do_not_allow_them(tq):
    """E05, CLI: `hold`, `edit` and `pause` act on every task of an array that allows it; the others are told, and exit 0."""
    number = tq.submit("--array", "0-1%1", "--shell", "until [ -e go ]; do sleep 0.1; done")
    with tq.worker("--slots", "2"):
        until(lambda: tq.state(number + 1) == "running")
        for words, did in (
            (("edit", number, "--set", "priority=2"), "edited"), (("hold", number), "held"), (("pause", number), "refused"),
        ):  # fmt: skip
            done = tq.ok(*words, "--json").json["items"]
            assert [item["result"] for item in done] == ["paused" if did == "refused" else "refused", did], words
        assert tq("hold", f"{number}[0]").code == 4
        assert tq("hold", f"{number}[0-1]").code == 7
        (tq.dir / "go").touch()
        tq.ok("resume", number)
        tq.ok("release", number)
        until(lambda: tq.ok("status", number, "--json").json["state"] == "done")


def test_explain_says_one_thing_of_an_array(tq):
    """E05, Q34: of its task that is next, and that its own limit holds it, if that is so; not the same of each."""
    number = tq.submit("--array", "0-9%1", "--shell", "until [ -e go ]; do sleep 0.1; done")
    (waits,) = tq.ok("explain", number, "--json").json["items"]
    assert (waits["reason"], waits["position"], waits["help"]) == ("no_worker", 1, "trainq worker")
    with tq.worker("--slots", "2"):
        until(lambda: tq.state(number + 1) == "running")
        (runs,) = tq.ok("explain", number, "--json").json["items"]
        assert (runs["state"], runs["reason"]) == ("running", "limit")
        assert runs["why"] == ["0/10, 1 running", f"{number}[1] is next: limit: at most 1 of its array run at once"]
        (task,) = tq.ok("explain", f"{number}[3]", "--json").json["items"]
        assert (task["reason"], task["starts_in_s"]) == ("limit", None)
        assert [one["reason"] for one in task["workers"]] == ["limit: at most 1 of its array run at once"]
        assert tq.ok("explain", number).out.startswith(f"array {number} (")
        (tq.dir / "go").touch()
        until(lambda: tq.ok("status", number, "--json").json["state"] == "done")
    (done,) = tq.ok("explain", number, "--json").json["items"]
    assert (done["state"], done["why"], done["help"]) == ("done", ["10/10"], None)


def test_history_names_the_tasks(tq):
    """E05: `12[3]`, whether a task has a row still or only its history."""
    number = tq.submit("--array", "0-1", "--", "true")
    tq.work()
    for is_pruned in (False, True):
        if is_pruned:
            tq.ok("prune", number)
        text = tq.ok("history", number).out
        assert [line.split()[0] for line in text.splitlines()[1:]] == [f"{number}[0]"] * 3 + [f"{number}[1]"] * 3
        rows = tq.ok("history", number, "--json").json["items"]
        assert [(row["job"], row["ref"]) for row in rows[:1]] == [(number + 1, f"{number}[0]")]


def test_lists_fold_and_tasks_unfolds(tq):
    """E05: `--all` folds, too; `--tasks` shows the tasks, filters find the array of which a task fits."""
    number = failing(tq, "--tag", "a")
    tq.work("--slots", "3")
    (item,) = tq.ok("status", "--all", "--json").json["items"]
    assert (item["kind"], item["tasks"], item["state"]) == ("array", None, "errored")
    assert [item["id"] for item in tq.ok("status", "--state", "errored", "--tag", "a", "--json").json["items"]] == [
        number
    ]
    assert tq.ok("status", "--state", "canceled", "--json").json["items"] == []
    tasks = tq.ok("status", "--tasks", "--state", "errored", "--sort", "id", "--json").json["items"]
    assert [task["ref"] for task in tasks] == [f"{number}[3]", f"{number}[8]"]
    assert f"{number}[8]" in tq.ok("status", number, "--state", "errored").out
    assert len(tq.ok("status", "--all", "--tasks").out.splitlines()) == 11
    whole = tq.ok("status", f"{number}[0-2,9]", "--json").json
    assert [task["ref"] for task in whole["items"]] == [f"{number}[{n}]" for n in (0, 1, 2, 9)]
    assert tq.ok("status", f"{number}[3]", "--json").json["kind"] == "job"
    assert "array" in tq.ok("status", number).out
    assert tq.ok("status", number, "-q").out == f"{number}\n"
    assert tq("status", f"{number}[77]").code == 3


def test_what_a_task_is_told(tq):
    """E05: index, count and number of the array, and its parameters, are in its environment; what is no task has none."""
    tq.script(
        "told.py",
        """
        import json, os
        told = {name: text for name, text in os.environ.items() if name.startswith(("TRAINQ_ARRAY", "TRAINQ_PARAM_"))}
        told["params"] = json.load(open(os.environ["TRAINQ_PARAMS"])) if "TRAINQ_PARAMS" in os.environ else {}
        print(json.dumps(told))
        """,
    )
    plain = tq.submit("--", "python", "told.py")
    number = tq.submit(
        "--array", "5-7:2", "--sweep", "lr=1e-3,x", "--sweep", "n=[1]", "--param", "k=2", "--", "python", "told.py"
    )
    sweep = tq.submit("--sweep", "lr=1,2", "--", "python", "told.py")
    tq.work("--slots", "4")
    assert json.loads(tq.ok("logs", plain).out) == {"params": {}}
    found = [json.loads(tq.ok("logs", f"{number}[{index}]").out) for index in (10, 11, 14, 15)]
    assert [one["params"] for one in found] == [{"k": 2, "lr": lr, "n": 1} for lr in (0.001, "x", 0.001, "x")]
    assert {name: text for name, text in found[3].items() if name != "params"} == {
        "TRAINQ_ARRAY_ID": str(number), "TRAINQ_ARRAY_INDEX": "15", "TRAINQ_ARRAY_COUNT": "4", "TRAINQ_ARRAY_NUMBER": "7",
        "TRAINQ_PARAM_LR": "x", "TRAINQ_PARAM_N": "1", "TRAINQ_PARAM_K": "2",
    }  # fmt: skip
    second = json.loads(tq.ok("logs", f"{sweep}[1]").out)
    assert (second["TRAINQ_ARRAY_ID"], second["params"], "TRAINQ_ARRAY_NUMBER" in second) == (
        str(sweep),
        {"lr": 2},
        False,
    )


@pytest.mark.parametrize("workers", [1, 2])
def test_so_many_run_at_once(tq, workers):
    """E05: `%2` is never exceeded, by one worker or by several: looked at while they run, and read from history."""
    number = tq.submit("--array", "0-9%2", "--", "sleep", "0.15")
    seen = []
    with tq.worker("--slots", "4"):
        if workers == 2:
            with tq.worker("--slots", "4"):
                until(lambda: seen.append(running(tq, number)) or tq.state(number) == "done")
        else:
            until(lambda: seen.append(running(tq, number)) or tq.state(number) == "done")
    assert max(seen) <= 2
    spans = []
    for task in tq.ok("status", number, "--json").json["tasks"]:
        (attempt,) = task["attempts"]
        spans += [(attempt["claimed_at"], 1), (attempt["ended_at"], -1)]
    at_once = most = 0
    for _, step in sorted(spans):  # of the same moment the end comes first
        at_once += step
        most = max(most, at_once)
    assert most == 2


def running(tq, number):
    return tq.ok("status", number, "--json").json["counts"]["running"]


def test_cancel_some_and_wait_for_all(tq):
    """E05: cancel, wait and status by `12`, `12[3]`, `12[5-9]`; what has ended is passed over."""
    number = failing(tq)
    done = tq.ok("cancel", f"{number}[5-9]")
    assert done.out.splitlines() == [f"{number}[{n}] canceled" for n in range(5, 10)]
    assert tq("wait", number, "--timeout", "0.2s").code == 5
    tq.work("--slots", "3")
    waited = tq("wait", number, "--json")
    assert waited.code == 1
    (item,) = waited.json["items"]
    assert {state: n for state, n in item["counts"].items() if n} == {"done": 4, "errored": 1, "canceled": 5}
    assert tq("wait", f"{number}[0-2]").code == 0
    assert tq("wait", f"{number}[3]", "--exit-code", "job").code == 1
    again = tq.ok("cancel", number).out
    assert f"{number}[9] already canceled" in again
    assert f"{number}[0] ended: job {number}[0] is already done" in again
    (tq.dir / "mended").touch()
    assert {item["result"] for item in tq.ok("retry", "last", "--json").json["items"]} == {"retried", "ended"}
    tq.work("--slots", "3")
    assert tq("wait", "last").code == 0


def test_every_verb_names_a_task_as_it_was_typed(tq):
    """E05, E08: `12[3]` in the answer, the error and as `ref` in JSON, also once it has ended or is pruned: not the number that
    the task has for itself."""
    array = tq.submit("--array", "0-1", "--", "true")
    for verb, did in (("hold", "held"), ("release", "released")):
        assert tq.ok(verb, f"{array}[1]").out == f"{array}[1] {did}\n"
        (item,) = tq.ok(verb, f"{array}[1]", "--json").json["items"]
        assert (item["id"], item["ref"], item["result"]) == (array + 2, f"{array}[1]", "already")
    assert f"job {array}[1] is pending" in tq("pause", f"{array}[1]").err
    assert [item["ref"] for item in tq.ok("resume", array, "--json").json["items"]] == [f"{array}[0]", f"{array}[1]"]
    tq.work()
    for _ in range(2):
        for verb in ("hold", "release", "pause", "resume"):
            refused = tq(verb, f"{array}[1]")
            assert (refused.code, f"job {array}[1] is already done" in refused.err) == (4, True), refused
        tq("prune", array)


def test_what_wants_one_task_is_refused_for_all(tq):
    """E05: `logs` and `--exit-code job` want one task: exit 2 with the right spelling."""
    number = failing(tq)
    for words in (("logs", number), ("logs", "-f", "last"), ("wait", number, "--exit-code", "job")):
        refused = tq(*words)
        assert refused.code == 2, refused
        assert f"'{number}[" in refused.err
    for words in (("-f",), ("--wait", "--exit-code", "job")):
        assert tq("submit", *words, "--array", "0", "--", "true").code == 2
    assert tq("status", number, "--show-env").code == 2
    assert len(tq.jobs()) == 1


def test_submit_and_wait(tq):
    with tq.worker():
        answer = tq("submit", "--wait", "--json", "--array", "0-2", "--", "true")
    assert answer.code == 0, answer
    (item,) = answer.json["items"]
    assert (item["id"], item["result"], item["tasks"], item["job"]["counts"]["done"]) == (1, "submitted", 3, 3)


def test_files_of_parameters(tq):
    """E05: a row of `--params` is a task; types say what a value is, else JSON if it parses; errors name file and line."""
    tq.types(
        '[types.wine]\nrun = ["true"]\n[types.wine.params]\nlr = { type = "float" }\nopt = { type = "text", default = "a" }\n'
    )
    (tq.dir / "runs.csv").write_bytes(b'\xef\xbb\xbflr,opt\r\n1e-3,"1,5"\r\n2,7\r\n')
    (tq.dir / "runs.jsonl").write_text('{"lr": 1}\n{"lr": 2, "opt": "x"}\n')
    for name, wanted in (
        ("runs.csv", [{"lr": 0.001, "opt": "1,5"}, {"lr": 2.0, "opt": "7"}]),
        ("runs.jsonl", [{"lr": 1.0, "opt": "a"}, {"lr": 2.0, "opt": "x"}]),
    ):
        number = tq.submit("wine", "--params", name)
        assert [task["params"] for task in tq.ok("status", number, "--json").json["tasks"]] == wanted
    number = tq.submit("--params", "runs.csv", "--sweep", "k=1,2", "--", "true")
    params = [task["params"] for task in tq.ok("status", number, "--json").json["tasks"]]
    assert params == [{"lr": lr, "opt": opt, "k": k} for lr, opt in ((0.001, "1,5"), (2, 7)) for k in (1, 2)]
    (tq.dir / "bad.csv").write_text("lr\n1\nfast\n")
    (tq.dir / "bad.jsonl").write_text('{"lr": 1}\n{"lr": NaN}\n')
    before = len(tq.jobs("--tasks"))
    for words, said in (
        (("wine", "--params", "bad.csv"), "bad.csv, line 3: type wine, parameter lr: expected a float"),
        (("--params", "bad.jsonl", "--", "true"), "bad.jsonl, line 2: parameter lr"),
        (("--params", "none.csv", "--", "true"), "none.csv: no such file"),
        (("--sweep", "lr=1", "--param", "lr=2", "--", "true"), "parameter lr is given twice"),
        (("--sample", "3", "--", "true"), "--sample of which tasks?"),
        (("--sweep", "a=1", "--key", "k", "--", "true"), "--key is for one job"),
        (("--sweep", "a=1", "--on-duplicate", "replace", "--", "true"), "--on-duplicate replace"),
        (("--array", "1-200000", "--", "true"), "200000 tasks are more than the 100000"),
    ):
        refused = tq("submit", *words)
        assert (refused.code, said in refused.err) == (2, True), refused
    assert tq("submit", "--from", "runs.jsonl", "--array", "0-3").code == 2
    assert len(tq.jobs("--tasks")) == before


def test_a_sample(tq):
    """E05: `--sample N --seed S` is reproducible; one larger than the grid takes all and says so."""

    def params(*words):
        number = tq.submit("--sweep", "a=1,2,3,4,5,6", "--sweep", "b=1,2,3,4,5,6", *words, "--", "true")
        return [tuple(task["params"].items()) for task in tq.ok("status", number, "--json").json["tasks"]]

    found = params("--sample", "5", "--seed", "3")
    assert len(set(found)) == 5
    assert params("--sample", "5", "--seed", "3") == found
    assert params("--sample", "5", "--seed", "4") != found
    large = tq.ok("submit", "--sweep", "a=1,2", "--sample", "9", "--", "true")
    assert "only 2, all of them are taken" in large.err


def test_the_same_training_refuses_the_whole_array(tq):
    """Q08: a training of it that waits or runs already, or stands in it twice, is refused with the whole; not with run."""
    tq.types()
    tq.submit("ok", "--param", "lr=2")
    refused = tq("submit", "ok", "--sweep", "lr=1,2,3")
    assert refused.code == 8
    assert "the training of task 1" in refused.err
    first = tq.submit("ok", "--sweep", "lr=4,5")
    again = tq("submit", "ok", "--sweep", "lr=5,6")
    assert again.code == 8
    assert f"{first}[1]" in again.err
    assert tq("submit", "ok", "--param", "lr=5").code == 8
    (tq.dir / "twice.csv").write_text("lr\n7\n7\n")
    twice = tq("submit", "ok", "--params", "twice.csv")
    assert twice.code == 8
    assert "tasks 0 and 1 are the same training" in twice.err
    tq.ok("submit", "ok", "--params", "twice.csv", "--on-duplicate", "run")
    number = tq.submit("ok", "--array", "0-2")  # their trainers are told the number: three trainings
    prints = {task["fingerprint"] for task in tq.ok("status", number, "--json").json["tasks"]}
    assert len(prints) == 3


def test_the_size_of_a_queue_counts_every_task(tq):
    """Q18: an array that does not fit as a whole is refused as a whole, with 9."""
    limit = {"TRAINQ_LIMITS_QUEUE_SIZE": "5"}
    assert tq("submit", "--array", "0-5", "--", "true", env=limit).code == 9
    tq.ok("submit", "--array", "0-3", "--", "true", env=limit)
    assert tq("submit", "--array", "0-1", "--", "true", env=limit).code == 9
    tq.ok("submit", "--", "true", env=limit)
    assert tq("submit", "--", "true", env=limit).code == 9


def test_an_array_that_does_not_fit_stores_nothing(tq):
    """Q18: ten tasks into a queue of at most five: exit 9, no row, no number taken; sweeps and files of rows the same."""
    limit = {"TRAINQ_LIMITS_QUEUE_SIZE": "5"}
    (tq.dir / "runs.csv").write_text("lr\n" + "1\n" * 6)
    for words in (("--array", "0-9"), ("--array", "0-9%2"), ("--sweep", "lr=1,2,3,4,5,6"), ("--params", "runs.csv")):
        refused = tq("submit", *words, "--", "true", env=limit)
        assert (refused.code, refused.out, "0 of at most 5 jobs" in refused.err) == (9, "", True), refused
        assert tq.jobs() == tq.jobs("--tasks") == []
    assert tq.submit("--array", "0-4", "--", "true", env=limit) == 1
    assert tq("submit", "--array", "0-0", "--", "true", env=limit).code == 9
    assert tq.ok("status", "--summary", "--json").json["total"] == 5


def test_an_array_ages_as_one(tq):
    """`[keep] jobs`: none of its tasks is pruned before the last has ended; then `history`, `wait` and the row go on."""
    number = tq.submit("--array", "0-2", "--", "true")
    for _ in range(2):
        tq.ok("worker", "--once")
    assert tq.ok("prune", "--older-than", "0s", "--json").json["items"] == []
    tq.work()
    assert len(tq.ok("prune", "--older-than", "0s", "--json").json["items"]) == 3
    gone = tq("status", number)
    assert (gone.code, f"array {number} is pruned; it ended done" in gone.err) == (3, True), gone
    assert tq("status", f"{number}[1]").code == 3
    other = tq.submit("--", "true")
    among = tq("status", number, other, "--json")
    assert (among.code, among.json["unknown"], [item["id"] for item in among.json["items"]]) == (
        7,
        [str(number)],
        [other],
    )
    tq.ok("cancel", other)
    tq.ok("prune", other)
    assert tq("retry", number).code == 3
    assert tq("wait", number).code == 0
    assert [move["state"] for move in tq.history(f"{number}[1]")] == ["pending", "running", "done"]
    assert tq("logs", f"{number}[1]").code == 0
    item = items(tq.ok("status", "--json"))[number]
    assert (item["kind"], item["counts"]["done"]) == ("array", 3)
    (row,) = [line for line in tq.ok("status").out.splitlines() if line.startswith(str(number))]
    assert "3/3" in row


def test_watching_an_array(tq):
    """Q57: a stream of an array ends when all of it has."""
    number = tq.submit("--array", "0-2", "--", "true")
    tq.work()
    lines = [json.loads(line) for line in tq.ok("status", number, "--watch", "--jsonl").out.splitlines()]
    assert {line["ref"] for line in lines} == {f"{number}[{n}]" for n in range(3)}
    assert "3/3" in tq.ok("status", number, "--watch").out
