"""What holds a job, through the real command: dependencies, times, a person's word; and what status says of it."""

from __future__ import annotations

import json
import os
import time

import pytest
from e2e.kit import FAR, until

TRUE = ("--", "true")
FALSE = ("--", "false")


def told(tq, number):
    """The states of a job's history with their reasons, oldest first."""
    return [(row["state"], row["reason"]) for row in tq.history(number)]


def lines(tq, *jobs):
    """Put in the lines of a file; the answer."""
    return tq("submit", "--from", "-", input="".join(json.dumps({"argv": ["true"], **job}) + "\n" for job in jobs))


# dependencies ------------------------------------------------------------------------------------------------------


def test_a_failed_job_skips_what_comes_after_it(tq):
    """E06: a→b→c with a failing: b and c are skipped, with the reason naming a; wait and its exit status tell."""
    a = tq.submit(*FALSE)
    b = tq.submit("--after", f"ok:{a}", *TRUE)
    c = tq.submit("--after", b, *TRUE)
    job = tq.job(c)
    assert (job["state"], job["reason"], job["position"]) == ("held", "dependency", None)
    assert job["after"] == [{"job": b, "on": "ok"}]
    assert job["waiting_for"] == f"job {b} (held) to be done"
    assert told(tq, c) == [("held", "dependency")]
    tq.work()
    for number in (b, c):
        job = tq.job(number)
        assert (job["state"], job["reason"]) == ("skipped", "dep_failed")
        assert job["result"]["error"] == f"job {a} ended errored (exit)"
        assert told(tq, number) == [("held", "dependency"), ("skipped", "dep_failed")]
    assert f"job {a} ended errored (exit)" in tq.ok("status").out
    assert tq("wait", c).code == 1


def test_any_and_fail_run_after_an_end(tq):
    """E06: of jobs after one that failed and one that is done, those run that asked for it."""
    bad, good = tq.submit(*FALSE), tq.submit(*TRUE)
    found = {
        mode: tq.submit("--after", f"{mode}:{bad}", *TRUE) for mode in ("ok", "any", "fail")
    } | {f"{mode} done": tq.submit("--after", f"{mode}:{good}", *TRUE) for mode in ("ok", "any", "fail")}  # fmt: skip
    both = tq.submit("--after", f"fail:{bad}", "--after", f"ok:{good}", *TRUE)
    tq.work()
    assert {name: tq.state(number) for name, number in found.items()} == {
        "ok": "skipped", "any": "done", "fail": "done", "ok done": "done", "any done": "done", "fail done": "skipped",
    }  # fmt: skip
    assert tq.state(both) == "done"


def test_a_dependant_starts_with_the_end_it_waits_for(tq):
    """E06: an idle slot of the same worker takes it at once, not at the next poll."""
    a = tq.submit(*TRUE)
    b = tq.submit("--after", a, *TRUE)
    with tq.worker(env=FAR):
        until(lambda: tq.state(b) == "done", timeout=15)


def test_lines_of_one_file_follow_each_other(tq):
    """E06, E04: a list or a text, an id or the key of an earlier line; the same call again answers the same ids."""
    jobs = (
        {"key": "a"}, {"key": "b", "after": "ok:key:a"}, {"key": "c", "after": ["any:key:b", "key:a"]},
    )  # fmt: skip
    assert lines(tq, *jobs).out.split() == ["1", "2", "3"]
    assert [job["after"] for job in tq.jobs()] == [
        [], [{"job": 1, "on": "ok"}], [{"job": 1, "on": "ok"}, {"job": 2, "on": "any"}],
    ]  # fmt: skip
    assert lines(tq, *jobs).out.split() == ["1", "2", "3"]
    last = tq.submit("--after", "key:c", *TRUE)
    assert tq.job(last)["after"] == [{"job": 3, "on": "ok"}]
    tq.work()
    assert [job["state"] for job in tq.jobs()] == ["done"] * 4


@pytest.mark.parametrize(
    ("jobs", "word"),
    [
        ([{"key": "a", "after": "key:a"}], "its own"),
        ([{"after": "ok:key:b"}, {"key": "b"}], "a later line's"),
        ([{}, {"key": "a", "after": ["ok:key:b"]}, {"key": "b", "after": "key:a"}], "a later line's"),
    ],
)
def test_a_cycle_is_refused(tq, jobs, word):
    """E06: exit 2, naming line and key, and nothing is stored."""
    done = lines(tq, *jobs)
    assert done.code == 2
    assert word in done.err
    assert "cycle" in done.err
    assert ", line " in done.err
    assert tq.jobs() == []


@pytest.mark.parametrize(
    ("word", "code", "said"),
    [
        ("99", 3, "no such job: 99"),
        ("ok:key:nope", 3, "no such job"),
        ("last", 3, "no such job: last"),
        ("9" * 40, 3, "no such job"),
        ("okay:1", 2, "ok:12"),
        ("1-3", 2, "ok:12"),
        ("", 2, "ok:12"),
    ],
)
def test_what_is_not_there_is_refused(tq, word, code, said):
    """E06: an unknown job is 3, a wrong word 2; nothing is stored, alone or in a file."""
    for done in (tq("submit", "--after", word, *TRUE), lines(tq, {}, {"after": word})):
        assert done.code == code, done
        assert said in done.err
    assert tq.jobs() == []


def test_one_job_is_named_once(tq):
    """E06: twice the same is one, two ways for one job are refused; `last` is one job."""
    a = tq.submit("--key", "k", *TRUE)
    b = tq.submit("--after", f"{a},key:k,last", *TRUE)
    assert tq.job(b)["after"] == [{"job": a, "on": "ok"}]
    done = tq("submit", "--after", f"ok:{a},fail:key:k", *TRUE)
    assert (done.code, "the same job" in done.err) == (2, True)
    lines(tq, {}, {})
    done = tq("submit", "--after", "last", *TRUE)
    assert (done.code, "2 jobs" in done.err, "ok:4" in done.err) == (2, True, True)


def test_what_is_pruned_answers_still(tq):
    """E06: a dependency whose row is gone is done or failed as it was."""
    good, bad = tq.submit(*TRUE), tq.submit(*FALSE)
    tq.work()
    tq.ok("prune", "--older-than", "0s")
    after = {mode: tq.submit("--after", mode, *TRUE) for mode in (f"ok:{good}", f"ok:{bad}", f"fail:{bad}")}
    assert [tq.state(number) for number in after.values()] == ["pending", "skipped", "pending"]
    assert told(tq, after[f"ok:{good}"]) == [("pending", None)]


def test_a_model_that_answers_is_done(tq):
    """E06, with --reuse: a line after one that is not trained again waits for nothing."""
    tq.submit("ok", "--seed", "7")
    tq.work()
    done = tq(
        "submit", "--from", "-",
        input='{"type": "ok", "seed": 7, "reuse": true, "key": "a"}\n{"argv": ["true"], "after": "key:a"}\n',
    )  # fmt: skip
    assert done.code == 0, done
    assert tq.state(int(done.out.split()[1])) == "pending"


def test_cancel_skips_and_names(tq):
    """E06: the dependants of a canceled job are skipped in the same transaction, and their secrets are gone."""
    a = tq.submit(*TRUE)
    b = tq.submit("--after", a, "--env-keep", "MY_TOKEN", *TRUE, env={"MY_TOKEN": "x"})
    tq.ok("cancel", a)
    assert tq.job(b)["result"]["error"] == f"job {a} ended canceled (user)"
    assert os.listdir(os.path.join(tq.root, "specs")) == []


# retry -------------------------------------------------------------------------------------------------------------


def test_retry_with_dependants_reopens_what_was_skipped(tq):
    """E06, E08: transitively, each under its id with one row; without the option they stay skipped."""
    a = tq.submit("--shell", "test -e good")
    b, other = tq.submit("--after", a, *TRUE), tq.submit("--after", f"fail:{a}", *TRUE)
    c = tq.submit("--after", f"{a},{b}", *TRUE)
    tq.work()
    assert [tq.state(n) for n in (a, b, other, c)] == ["errored", "skipped", "done", "skipped"]
    done = tq("retry", b)
    assert (done.code, f"trainq retry {a} --with-dependants" in done.err) == (4, True), done
    done = tq.ok("retry", a, "--with-dependants", "--dry-run", "--json").json["items"]
    assert [(one["id"], one["result"]) for one in done] == [(a, "retried"), (b, "retried"), (c, "retried")]
    assert tq.state(b) == "skipped"
    tq.ok("retry", a)
    assert tq.state(b) == "skipped"
    done = tq.ok("retry", a, "--with-dependants", "--json").json["items"]
    assert [(one["id"], one["result"]) for one in done] == [(a, "already"), (b, "retried"), (c, "retried")]
    assert told(tq, b)[1:] == [("skipped", "dep_failed"), ("held", "dependency")]
    (tq.dir / "good").touch()
    tq.work()
    assert [tq.state(n) for n in (a, b, c)] == ["done"] * 3
    assert [state for state, _ in told(tq, c)] == ["held", "skipped", "held", "pending", "running", "done"]


def test_what_comes_after_two_failures_needs_both(tq):
    """E06: retried alone, one of them leaves it skipped, and says which other has failed; then it can be reopened itself."""
    a, b = tq.submit("--shell", "test -e good"), tq.submit("--shell", "test -e good")
    c = tq.submit("--after", f"{a},{b}", *TRUE)
    tq.work()
    done = tq.ok("retry", a, "--with-dependants", "--json").json["items"]
    assert [(one["id"], one["result"], one["error"]) for one in done] == [
        (a, "retried", None), (c, "ended", f"job {c} comes after job {b}, which is errored"),
    ]  # fmt: skip
    tq.ok("retry", b)
    done = tq("retry", c)
    assert (done.code, "--with-dependants" in done.err) == (4, True)
    assert tq.ok("retry", c, "--with-dependants").out == f"{c} retried\n"
    (tq.dir / "good").touch()
    tq.work()
    assert tq.state(c) == "done"


# times -------------------------------------------------------------------------------------------------------------


def test_a_begin_time_wakes_an_idle_worker(tq):
    """E07: held with its time in status; a worker that looks at nothing for minutes starts it then, and not before."""
    number = tq.submit("--begin", "+2s", *TRUE)
    job = tq.job(number)
    assert (job["state"], job["reason"], job["waiting_for"]) == ("held", "begin_time", job["times"]["begin_at"])
    assert "\nbegins" in tq.ok("status", number).out
    with tq.worker(env=FAR):
        until(lambda: tq.state(number) == "done", timeout=20)
    rows = tq.history(number)
    assert [row["state"] for row in rows] == ["held", "pending", "running", "done"]
    assert rows[1]["at"] >= job["times"]["begin_at"]


def test_a_deadline_cancels_what_has_not_started(tq):
    """E07: canceled deadline, by an idle worker at that time; whatever held it; one that has started runs on."""
    held = tq.submit("--hold", "--deadline", "+1s", *TRUE)
    follower = tq.submit("--after", held, *TRUE)
    with tq.worker(env=FAR):
        running = tq.submit("--deadline", "+1s", "--", "sleep", "2")
        until(lambda: tq.state(held) == "canceled", timeout=20)
        until(lambda: tq.state(running) == "done", timeout=20)
    assert told(tq, held) == [("held", "user"), ("canceled", "deadline")]
    assert tq.job(follower)["result"]["error"] == f"job {held} ended canceled (deadline)"


def test_prune_ends_what_is_too_late(tq):
    """E07: where no worker is, the janitor of cron does it."""
    number = tq.submit("--deadline", "+0.2s", *TRUE)
    time.sleep(0.3)
    tq.ok("prune")
    assert told(tq, number) == [("pending", None), ("canceled", "deadline")]


@pytest.mark.parametrize(
    "words",
    [
        ("--begin", "2h"), ("--begin", "soon"), ("--deadline", "2020-01-01"), ("--begin", "+2h", "--deadline", "+1h"),
    ],
)  # fmt: skip
def test_times_that_cannot_be_are_refused(tq, words):
    """E07: exit 2, and nothing is stored."""
    assert tq("submit", *words, *TRUE).code == 2
    assert lines(tq, dict(zip((word[2:] for word in words[::2]), words[1::2], strict=True))).code == 2
    assert tq.jobs() == []


def test_a_begin_in_the_past_is_now(tq):
    """E07: nothing is held for a time that has come."""
    number = tq.submit("--begin", "2020-01-01", *TRUE)
    assert told(tq, number) == [("pending", None)]


# a person ----------------------------------------------------------------------------------------------------------


def test_hold_and_release(tq):
    """E08: one row each with who and why; a second time is "already"; held, a worker passes it; `position` is null."""
    number, other = tq.submit(*TRUE), tq.submit(*TRUE)
    assert tq.ok("hold", number, "--dry-run").out == f"{number} would be held\n"
    assert tq.state(number) == "pending"
    assert tq.ok("hold", number, "-m", "wait for me").out == f"{number} held\n"
    assert tq.ok("hold", number).out == f"{number} already on hold\n"
    job = tq.job(number)
    assert (job["state"], job["reason"], job["position"]) == ("held", "user", None)
    assert job["waiting_for"].startswith("its release, held by ")
    card = tq.ok("status", number).out
    assert f"next: trainq release {number}" in card
    assert "wait for me" in card
    tq.ok("worker", "--until", "idle")
    assert [tq.state(each) for each in (number, other)] == ["held", "done"]
    assert tq.ok("release", number, "--json").json["items"] == [{"id": number, "result": "released", "error": None}]
    assert tq.ok("release", number).out == f"{number} already on no hold\n"
    rows = tq.history(number)
    assert [(row["state"], row["reason"], row["message"]) for row in rows] == [
        ("pending", None, None), ("held", "user", "wait for me"), ("pending", None, None),
    ]  # fmt: skip
    assert rows[1]["by"] == rows[2]["by"] == rows[0]["by"]
    tq.work()
    assert tq.state(number) == "done"


def test_a_release_wakes_an_idle_worker(tq):
    """E08: a worker that looks at nothing for minutes starts it at once."""
    number = tq.submit("--hold", *TRUE)
    with tq.worker(env=FAR):
        tq.ok("release", number)
        until(lambda: tq.state(number) == "done", timeout=20)


def test_a_hold_beside_a_dependency(tq):
    """E08, Q34: both are said, the person first; released, the job still waits for the other."""
    a = tq.submit(*TRUE)
    b = tq.submit("--after", a, *TRUE)
    tq.ok("hold", b)
    job = tq.job(b)
    assert job["reason"] == "user"
    assert job["waiting_for"].endswith(f"; job {a} (pending) to be done")
    tq.ok("release", b)
    assert told(tq, b) == [("held", "dependency"), ("held", "user"), ("held", "dependency")]
    tq.work()
    assert tq.state(b) == "done"


@pytest.mark.parametrize("verb", ["hold", "release"])
def test_what_a_hold_is_not_for(tq, verb):
    """E08: no selector 2, unknown 3, running and ended 4 with a word; in a list a running one is refused (7)."""
    assert tq(verb).code == 2
    assert tq(verb, "99").code == 3
    ended = tq.submit(*TRUE)
    tq.work()
    done = tq(verb, ended)
    assert (done.code, "already done" in done.err) == (4, True), done
    with tq.worker():
        runs = tq.submit("slow")
        until(lambda: tq.state(runs) == "running")
        done, several = tq(verb, runs), tq(verb, f"{runs},{ended}", "--json")
        tq.ok("cancel", runs, "--now")
    if verb == "hold":
        assert (done.code, "runs" in done.err) == (4, True), done
        assert [one["result"] for one in several.json["items"]] == ["refused", "ended"]
        assert several.code == 7
    else:
        assert (done.code, "already" in done.out) == (0, True), done


def test_hold_by_a_filter(tq):
    """E08: all that fit, and only they."""
    lines(tq, {"tag": "a"}, {"tag": "b"}, {"tag": "a"})
    assert tq.ok("hold", "--tag", "a").out == "1 held\n3 held\n"
    assert [job["state"] for job in tq.jobs()] == ["held", "pending", "held"]
    assert tq.ok("release", "--state", "held").out == "1 released\n3 released\n"


def test_after_an_array(tq):
    """E05, E06: `--after ok:ID` waits for all tasks; a task, and the last submit, are named in the same way; what was skipped
    is opened again with what it waits for."""
    tq.script(
        "task.py", 'import os, sys\nsys.exit(os.environ["TRAINQ_ARRAY_INDEX"] == "1" and not os.path.exists("good"))\n'
    )
    array = tq.submit("--array", "0-2%1", "--", "python", "task.py")
    last = tq.submit("--after", "ok:last", "--", "true")
    task = tq.submit("--after", f"{array}[0]", "--", "true")
    bad = tq.submit("--after", f"fail:{array}", "--", "true")
    collect = tq.submit("--array", "0-1", "--after", f"any:{array}", "--", "true")
    card = tq.job(last)
    assert (card["after"], card["waiting_for"]) == ([{"job": array, "on": "ok"}], f"job {array} (pending) to be done")
    assert tq.ok("explain", last, "--json").json["items"][0]["help"] == f"trainq explain {array}"
    tq.work()
    assert [tq.state(one) for one in (last, task, bad)] == ["skipped", "done", "done"]
    assert tq.ok("status", collect, "--json").json["state"] == "done"
    assert tq.job(last)["result"]["error"] == f"array {array} ended errored (1 of 3 tasks are not done)"
    (tq.dir / "good").touch()
    done = tq.ok("retry", array, "--state", "errored", "--with-dependants", "--json").json["items"]
    assert [(item["id"], item["result"]) for item in done] == [(array + 2, "retried"), (last, "retried")]
    tq.work()
    assert tq.state(last) == "done"


def test_a_canceled_array_skips_what_comes_after_it(tq):
    """E05, E06."""
    array = tq.submit("--array", "0-2", "--", "true")
    last = tq.submit("--after", array, "--", "true")
    tq.ok("cancel", array)
    assert tq.state(last) == "skipped"
    for word in (f"{array}[7]", f"{array}[0][1]", f"{array}[0-1]", f"{last}[0]"):
        assert tq("submit", "--after", word, "--", "true").code in (2, 3), word
