"""Models: which are kept, found, reused, and what anybody sees of them at any moment."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from e2e.kit import until

# Errs when the file that it is told of is there, with the same parameters.
FICKLE = """
import os, sys
from trainq import job
if os.path.exists(job.params["fail_if"]): sys.exit(3)
open(os.path.join(job.model_dir, "model"), "w").write("good")
"""


def whole(version: Path) -> dict[str, Any]:
    """Check a version against its manifest, without trainq's own code; its manifest."""
    manifest: dict[str, Any] = json.loads((version / "manifest.json").read_bytes())
    for file in manifest["files"]:
        data = (version / file["path"]).read_bytes()
        assert hashlib.sha256(data).hexdigest() == file["sha256"]
        assert len(data) == file["size"]
    here = {str(path.relative_to(version)) for path in version.rglob("*") if path.is_file()}
    assert here == {file["path"] for file in manifest["files"]} | {"manifest.json"}
    return manifest


def test_a_pruned_job_whose_model_exists_is_done(tq):
    """Q40: a pruned id whose model still exists says done, progress 1."""
    number = tq.submit("ok")
    tq.work()
    pruned = tq.ok("prune", "--older-than", "0s", "--json").json
    assert {"id": number, "result": "removed", "error": None} in pruned["items"]
    job = tq.job(number)
    assert job["state"] == "done"
    assert job["progress"]["fraction"] == 1.0
    assert [(model["key"], model["version"], model["job"]) for model in tq.models()] == [("ok", 1, number)]
    assert "done" in tq.ok("status", number).out
    assert tq.ok("wait", number).code == 0


def test_a_pruned_job_that_failed_is_not_found(tq):
    """Q41: a pruned id of a canceled or errored job is not found: 3, its end in the message, history as the hint."""
    errored, canceled = tq.submit("bad"), tq.submit("slow")
    tq.ok("cancel", canceled)
    tq.work()
    tq.ok("prune", "--older-than", "0s")
    for number, word in ((errored, "errored"), (canceled, "canceled")):
        done = tq("status", number, "--json")
        assert done.code == 3
        assert done.json["kind"] == "error"
        assert done.json["error"] == "not_found"
        assert word in done.json["message"]
        assert done.json["hint"] == f"trainq history {number}"
        assert tq("retry", number).code == 3
        assert [row["state"] for row in tq.history(number)][-1] == word
        assert tq("wait", number).code == 1
    assert "no such luck" in tq.ok("logs", errored).out


def test_a_pruned_done_job_without_its_model_is_not_found(tq):
    """Q41: `done` is said of a pruned id only while its model exists."""
    number = tq.submit("--", "true")
    tq.work()
    tq.ok("prune", "--older-than", "0s")
    done = tq("status", number)
    assert done.code == 3
    assert "done" in done.err
    assert tq.ok("wait", number).code == 0


def test_search_gives_the_newest_that_succeeded(tq):
    """Q43: search by type and parameters answers the newest successful one, not a later failure."""
    tq.script("fickle.py", FICKLE)
    tq.types('[types.fickle]\nrun = ["python", "fickle.py"]\n')
    flag = tq.dir / "fail"
    tq.submit("fickle", "--param", "a=1", "--param", f"fail_if={flag}")
    tq.submit("fickle", "--param", "a=2", "--param", f"fail_if={flag}")
    tq.work()
    flag.touch()
    errored = tq.submit("fickle", "--param", "a=1", "--param", f"fail_if={flag}")
    tq.work()
    assert tq.state(errored) == "errored"
    found = tq.models("--type", "fickle", "--param", "a=1", "--latest")
    assert [(model["job"], model["params"]["a"]) for model in found] == [(1, 1)]
    assert tq.models("--type", "fickle", "--param", "a=3", "--latest") == []
    assert tq.models("--type", "nope") == []


def test_of_each_key_the_newest_are_kept(tq):
    """Q44: keep 2, train 4: versions 3 and 4 are listed and lie on the disk; `@latest` is the newest."""
    tq.types('[types.few]\nrun = ["python", "ok.py"]\nmodel = "required"\nkeep = 2')
    for i in range(4):
        tq.submit("few", "--param", f"i={i}")
    tq.work("--slots", "1")
    assert [model["version"] for model in tq.models("few")] == [3, 4]
    directory = Path(tq.root) / "models" / "few"
    assert sorted(os.listdir(directory)) == ["@3", "@4", "@latest"]
    assert os.readlink(directory / "@latest") == "@4"
    assert whole(directory / "@latest")["params"] == {"i": 3}
    assert tq.ok("models", "path", "few@latest").out.strip() == str(directory / "@4")


def test_an_old_version_is_deleted_after_the_grace_only(tq):
    """Q44: what no version names any more lies aside, whole, for `keep.file_grace`; then the key's next publisher
    deletes it, or the janitor."""
    tq.types('[types.one]\nrun = ["python", "ok.py"]\nmodel = "required"\nkeep = 1')
    aside = Path(tq.root) / "models" / ".aside" / "one"
    for i in range(3):
        tq.submit("one", "--param", f"i={i}")
    tq.work("--slots", "1")
    old = sorted(os.listdir(aside))
    assert [name.partition("-")[0] for name in old] == ["@1", "@2"]
    assert [whole(aside / name)["params"]["i"] for name in old] == [0, 1]
    tq.ok("prune")
    assert sorted(os.listdir(aside)) == old
    tq.submit("one", "--param", "i=3")
    tq.work(env={"TRAINQ_KEEP_FILE_GRACE": "0s"})
    assert os.listdir(aside) == []
    tq.submit("one", "--param", "i=4")
    tq.work()
    assert len(os.listdir(aside)) == 1
    tq.ok("prune", env={"TRAINQ_KEEP_FILE_GRACE": "0s"})
    assert os.listdir(aside) == []


@pytest.mark.parametrize("where", ["publish.hashed", "publish.placed"])
def test_a_crash_during_the_save_leaves_the_kept_ones(tq, where):
    """Q44: kill -9 during the fourth save leaves versions 2 and 3 intact and loadable; then the fourth comes."""
    tq.types('[types.few]\nrun = ["python", "ok.py"]\nmodel = "required"\nkeep = 2')
    for i in range(3):
        tq.submit("few", "--param", f"i={i}")
    tq.work("--slots", "1")
    fourth = tq.submit("few", "--param", "i=3")
    killed = tq("worker", "--once", env={"TRAINQ_CRASH": where})
    assert killed.code == -9, killed
    assert [model["version"] for model in tq.models("few")] == [2, 3]
    for version in (2, 3):
        assert whole(Path(tq.root) / "models" / "few" / f"@{version}")["params"] == {"i": version - 1}
    until(lambda: tq.ok("prune") and tq.state(fourth) == "pending")
    tq.work()
    assert tq.state(fourth) == "done"
    models = tq.models("few")
    assert models[-1]["job"] == fourth
    assert [model["job"] for model in models] == [3, fourth]
    for model in models:
        assert whole(Path(model["path"]))["job"] == model["job"]


def test_every_version_that_is_seen_is_whole(tq):
    """Q45: whoever looks during 20 trainings sees versions with a manifest whose digests match, and no other name."""
    tq.types('[types.big]\nrun = ["python", "big.py"]\nmodel = "required"\nkeep = 0')
    tq.script(
        "big.py",
        """
        import os
        from trainq import job
        os.mkdir(job.model_dir + "/sub")
        for name in ("a", "sub/b"):
            with open(os.path.join(job.model_dir, name), "wb") as file:
                for _ in range(20): file.write(os.urandom(10000))
        """,
    )
    lines = [json.dumps({"type": "big", "params": {"i": i}}) for i in range(20)]
    tq.ok("submit", "--from", "-", input="\n".join(lines))
    directory = Path(tq.root) / "models" / "big"
    looks = 0
    with tq.worker("--until", "empty", "--slots", "2") as worker:
        while worker.process.poll() is None:
            for name in os.listdir(directory) if directory.exists() else ():
                assert name == "@latest" or name.removeprefix("@").isdigit()
                assert whole((directory / name).resolve())["type"] == "big"
                looks += 1
    assert worker.process.returncode == 0
    assert looks > 20
    assert len(tq.models("big")) == 20
    assert os.listdir(Path(tq.root) / "models" / ".staging") == []


def test_reuse_answers_with_the_model_that_is_there(tq):
    """Q46: `--reuse` of a finished input exits 0 with done and starts nothing; without the flag it trains."""
    data = tq.script("d.json", '{"b": 1, "a": [1, 2]}')
    first = tq.submit("ok", "--data", data, "--param", "i=1")
    tq.work()
    same = tq.script("e.json", '{"a": [1,2],\n "b": 1}')
    again = tq.ok("submit", "ok", "--reuse", "--data", same, "--param", "i=1", "--json").json["items"][0]
    assert (again["id"], again["result"], again["state"]) == (first, "reused", "done")
    assert again["model"]["version"] == 1
    assert len([row for row in tq.history(f"fp:{tq.job(first)['fingerprint']}") if row["state"] == "running"]) == 1
    assert tq.ok("status", "--summary", "--json").json["counts"]["pending"] == 0
    other = tq.ok("submit", "ok", "--reuse", "--data", same, "--param", "i=2", "--json").json["items"][0]
    assert other["result"] == "submitted"
    assert tq.submit("ok", "--data", data, "--param", "i=1") > first
    tq.work()
    assert [model["version"] for model in tq.models("ok")] == [1, 2, 3]


def test_reuse_does_not_trust_a_damaged_model(tq):
    """Q46: a model whose bytes changed on the disk does not answer; the training is done anew."""
    tq.submit("ok")
    tq.work()
    path = Path(tq.models()[0]["path"]) / "model.json"
    path.chmod(0o600)
    path.write_text("[]")
    item = tq.ok("submit", "ok", "--reuse", "--json").json["items"][0]
    assert item["result"] == "submitted"


def test_reuse_after_the_job_was_pruned(tq):
    """Q46: the model answers also when its job's row is gone."""
    first = tq.submit("ok")
    tq.work()
    tq.ok("prune", "--older-than", "0s")
    item = tq.ok("submit", "ok", "--reuse", "--wait", "--json").json["items"][0]
    assert (item["id"], item["result"], item["state"]) == (first, "reused", "done")


def test_a_function_is_a_type(tq):
    """Q04: `call = "module:function"` gets the parameters by keyword, in the submit's directory, and may report."""
    tq.types(f'[types.fn]\ncall = "mine:train"\nmodel = "required"\npython = "{sys.executable}"')
    tq.script(
        "mine.py",
        """
        from trainq import job
        def train(alpha, label="x"):
            open(job.model_dir + "/m", "w").write(repr((alpha, label)))
            job.metric("loss", alpha)
        """,
    )
    number = tq.submit("fn", "--param", "alpha=0.25")
    broken = tq.submit("fn", "--param", "alpha=1", "--param", "nope=1")
    tq.work()
    assert tq.state(number) == "done", tq.ok("logs", number).out
    model = tq.models("fn")[0]
    assert (Path(model["path"]) / "m").read_text() == "(0.25, 'x')"
    assert model["metrics"] == {"loss": 0.25}
    job = tq.job(broken)
    assert (job["state"], job["reason"], job["side"]) == ("errored", "exit", "user")
    assert "unexpected keyword" in job["result"]["error"]


def test_a_missing_function_is_an_import_error(tq):
    """Q25: a `call` whose module is not there is errored import at once, with the last lines."""
    tq.types(f'[types.fn]\ncall = "not_here:train"\npython = "{sys.executable}"')
    number = tq.submit("fn")
    tq.work()
    job = tq.job(number)
    assert (job["state"], job["reason"]) == ("errored", "import")
    assert "ModuleNotFoundError" in job["result"]["error"]


def test_one_model_per_user_and_language(tq):
    """Q44: a type may say `keep = 1` and make its key of parameters: one model for each value, the newest."""
    tq.types(
        '[types.nlu]\nrun = ["python", "ok.py"]\nmodel = "required"\nkeep = 1\nkey = "{param.user}/{param.language}"'
    )
    for language in ("en", "de", "en"):
        tq.submit("nlu", "--param", f"language={language}", "--param", "user=anna", "--seed", len(tq.models()))
        tq.work()
    found = [(model["key"], model["version"]) for model in tq.models()]
    assert found == [("anna/de", 1), ("anna/en", 2)]
    assert sorted(os.listdir(Path(tq.root) / "models" / "anna" / "en")) == ["@2", "@latest"]
    done = tq("submit", "nlu", "--param", "language=en", "--param", "user=../x")
    assert done.code == 2
    assert tq("submit", "nlu", "--param", "language=en").code == 2
    assert not list(Path(tq.root).glob("../x*"))


def test_a_command_publishes_under_the_key_it_names(tq):
    """Q44: a command job publishes only with `--model KEY`, and `--keep` says how many."""
    for i in range(3):
        tq.submit("--model", "team/x", "--keep", "1", "--shell", f"echo {i} >$TRAINQ_MODEL_DIR/m")
    silent = tq.submit("--shell", '[ -z "$TRAINQ_MODEL_DIR" ]')
    tq.work("--slots", "1")
    assert tq.state(silent) == "done"
    assert [(model["key"], model["version"]) for model in tq.models()] == [("team/x", 3)]
    assert (Path(tq.models()[0]["path"]) / "m").read_text() == "2\n"


def test_what_a_job_reports_reaches_status_and_the_manifest(tq):
    """Q96: progress and metrics from `trainq.job` are in the status while it runs, and in the model at its end."""
    tq.types('[types.told]\nrun = ["python", "told.py"]\nmodel = "required"')
    go = tq.dir / "go"
    tq.script(
        "told.py",
        f"""
        import os, time
        from trainq import job
        job.progress(step=3, total=12, message="half \\udcff way\\n")
        job.metric({{"loss": 0.5, "worse": float("nan")}})
        while not os.path.exists({str(go)!r}): time.sleep(0.01)
        job.metric("loss", 0.25)
        open(job.model_dir + "/m", "w").write("x")
        """,
    )
    number = tq.submit("told")
    with tq.worker():
        progress = until(lambda: (p := tq.job(number)["progress"])["step"] and p)
        assert (progress["fraction"], progress["step"], progress["total"]) == (0.25, 3, 12)
        assert progress["message"].startswith("half ")
        go.touch()
        until(lambda: tq.state(number) == "done")
    model = tq.models("told")[0]
    assert model["metrics"] == {"loss": 0.25, "worse": None}
    assert whole(Path(model["path"]))["metrics"] == {"loss": 0.25, "worse": None}
    assert tq.job(number)["progress"]["fraction"] == 1.0


def test_a_job_may_not_make_up_metrics_without_end(tq):
    """Q96: of more than 1,000 names the first are kept, with their newest values; that is said once in the log, and the
    job is done."""
    tq.script(
        "many.py",
        """
        from trainq import job
        for n in range(0, 1500, 100):
            job.metric({f"m{i}": i for i in range(n, n + 100)})
        job.metric("m0", 7)
        open(job.model_dir + "/m", "w").write("x")
        """,
    )
    number = tq.submit("--model", "many", "--", "python", "many.py")
    tq.work()
    assert tq.state(number) == "done"
    assert tq.models("many")[0]["metrics"] == {f"m{i}": i or 7 for i in range(1000)}
    assert tq.ok("logs", number).out.count("more than 1000 names of metrics") == 1


def test_report_does_the_same_for_any_program(tq):
    """Q96: `trainq report` inside a job, from a shell; outside it warns and exits 0, with --strict 4."""
    line = (
        "python -m trainq report --step 10/100 --message hello && python -m trainq report --metric loss=0.1 --metric acc=0.9"
        " && echo x >$TRAINQ_MODEL_DIR/m"
    )
    number = tq.submit("--model", "sh", "--shell", line)
    tq.work()
    job = tq.job(number)
    assert job["state"] == "done", tq.ok("logs", number).out
    assert (job["progress"]["step"], job["progress"]["total"], job["progress"]["message"]) == (10, 100, "hello")
    assert tq.models("sh")[0]["metrics"] == {"loss": 0.1, "acc": 0.9}
    outside = tq("report", "--metric", "loss=1")
    assert outside.code == 0
    assert outside.err
    assert tq("report", "--strict", "--metric", "loss=1").code == 4


def test_what_cannot_be_a_model_is_the_users_fault(tq):
    """Q47: a link out of the model is errored model, side user; nothing is published and nothing is left staged."""
    number = tq.submit("--model", "m", "--shell", "ln -s /etc/passwd $TRAINQ_MODEL_DIR/p")
    fifo = tq.submit("--model", "m", "--shell", "mkfifo $TRAINQ_MODEL_DIR/p")
    tq.work()
    for one in (number, fifo):
        job = tq.job(one)
        assert (job["state"], job["reason"], job["side"]) == ("errored", "model", "user")
    assert tq.models() == []
    assert os.listdir(Path(tq.root) / "models" / ".staging") == []


def test_a_required_model_that_is_missing_is_an_error(tq):
    """Q21: exit 0 without the model that the type requires is errored model, never done."""
    tq.script("nothing.py", "")
    tq.types(
        '[types.none]\nrun = ["python", "nothing.py"]\nmodel = "required"\n[types.may]\nrun = ["python", "nothing.py"]'
    )
    required, optional = tq.submit("none"), tq.submit("may")
    tq.work()
    assert (tq.state(required), tq.job(required)["reason"]) == ("errored", "model")
    assert tq.state(optional) == "done"
    assert tq.job(optional)["model"]["version"] is None


def test_latest_is_the_newest_whoever_came_last(tq):
    """Q44: when many slots and workers publish under one key at once, `@latest` ends on the newest version."""
    line = json.dumps({"shell": "echo x >$TRAINQ_MODEL_DIR/m", "model": "m", "keep": 1})
    directory = Path(tq.root) / "models" / "m"
    for rounds in range(1, 4):
        tq.ok("submit", "--from", "-", input="\n".join([line] * 40))
        with (
            tq.worker("--until", "empty", "--slots", "8") as one,
            tq.worker("--until", "empty", "--slots", "8") as other,
        ):
            assert (one.end().code, other.end().code) == (0, 0)
        assert sorted(os.listdir(directory)) == [f"@{40 * rounds}", "@latest"]
        assert os.readlink(directory / "@latest") == f"@{40 * rounds}"
