"""What a job gets, to the byte: arguments, environment, directory, input, training sets; and what the answers look like."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from e2e.kit import COMMAND, until

SHOW = "import sys, os; [print(os.fsencode(word).hex()) for word in sys.argv[1:]]"
SECRET = "s3cr3t-v4lu3"
NO_GRACE = {"TRAINQ_KEEP_FILE_GRACE": "0s"}


def typed(tq, line: bytes, shell: str = "bash") -> bytes:
    """Submit through a real shell and run it; what the job wrote."""
    done = subprocess.run([shell, "-c", line], env=tq.environment(), cwd=tq.dir, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    tq.work()
    return log_of(tq, int(done.stdout))


def log_of(tq, number: int, *words: str) -> bytes:
    """The log, as bytes."""
    return subprocess.run(
        [*COMMAND, "--root", tq.root, "logs", *words, str(number)],
        env=tq.environment(),
        capture_output=True,
        check=True,
    ).stdout


def found_in_root(tq, text: str) -> list[str]:
    """The files below the root that hold the text, in their name or content."""
    held = []
    for directory, _, names in os.walk(tq.root):
        for name in names:
            path = os.path.join(directory, name)
            if text in path or text.encode() in Path(path).read_bytes():
                held.append(path)
    return held


def environment_of(tq, number: int) -> dict[str, str]:
    """What a job that ran `env -0` got."""
    pairs = (entry.partition(b"=") for entry in log_of(tq, number).split(b"\0") if b"=" in entry)
    return {os.fsdecode(name): os.fsdecode(value) for name, _, value in pairs}


@pytest.mark.parametrize("shell", ["bash", "dash"])
def test_arguments_from_a_shell(tq, shell):
    """E01: what is typed in a shell reaches the program byte for byte, options and a second `--` included."""
    trainq = f"{sys.executable} -m trainq --root {tq.root}"
    line = (
        f"{trainq} submit -n x -- python -c '{SHOW}' -n --wait -- '' 'a b' \"it's\" '$HOME `id` *' 'new\nline' '\ttab' '\\' "
        "--root=/nowhere '{\"a\": 1}' '-' '--help'"
    )
    wanted = ["-n", "--wait", "--", "", "a b", "it's", "$HOME `id` *", "new\nline", "\ttab", "\\"]
    wanted += ["--root=/nowhere", '{"a": 1}', "-", "--help"]
    assert typed(tq, line.encode(), shell).decode().splitlines() == [word.encode().hex() for word in wanted]


def test_arguments_of_any_bytes(tq):
    """E01: every byte but NUL, alone and together, 5,000 arguments, and one of 100,000 bytes."""
    words = [bytes([n]) for n in range(1, 256)] + [bytes(range(1, 256)), b"\xff" * 100_000]
    words += [b"%d\xfe" % n for n in range(5000)]
    number = tq.submit("--", "python", "-c", SHOW, *words)
    tq.work()
    assert log_of(tq, number).decode().split() == [word.hex() for word in words]
    command = tq.job(number)["command"]
    assert len(command["argv"]) == len(command["argv_b64"]) == len(words) + 3


def test_a_line_for_the_shell_is_the_other_form(tq):
    """E01: `--shell LINE` is run by sh, with its quotes and variables; without it nothing is expanded."""
    expanded = tq.submit("--shell", 'echo "$((1+2))" | tr 3 x; printf "%s" "$0"')
    literal = tq.submit("--", "echo", "$((1+2))", "|", "tr")
    tq.work()
    assert log_of(tq, expanded).startswith(b"x\n")
    assert log_of(tq, literal) == b"$((1+2)) | tr\n"
    assert tq.job(expanded)["command"]["shell"] == 'echo "$((1+2))" | tr 3 x; printf "%s" "$0"'
    both = tq("submit", "--shell", "true", "--", "true")
    assert both.code == 2


def test_directory_umask_and_environment_are_those_of_the_submit(tq):
    """E02: cwd, umask and environment of the submit, not of the worker."""
    place = tq.dir / "a dir\nwith \udcff"
    place.mkdir()
    line = 'pwd >$OLDHERE/pwd; umask; printf "%s" "$MINE"; touch made; stat -c %a made'
    more = {"MINE": "ü\n\udcfe end", "OLDHERE": str(tq.dir), "TRAINQ_FOO": "1", "SLURM_JOB_ID": "7", "DISPLAY": ":0"}
    argv = [*COMMAND, "--root", tq.root, "submit", "--shell", line + "; env -0"]
    done = subprocess.run(
        argv, cwd=place, env=tq.environment(more), capture_output=True, check=True, preexec_fn=lambda: os.umask(0o027)
    )
    tq.work(env={"MINE": "the worker's", "ONLY_WORKER": "1"}, cwd="/")
    log = log_of(tq, int(done.stdout))
    assert os.fsdecode(os.path.realpath(os.fsencode((tq.dir / "pwd").read_bytes()[:-1]))) == str(place.resolve())
    assert log.startswith(b"0027\n" + os.fsencode(more["MINE"]) + b"640\n")
    got = environment_of(tq, int(done.stdout))
    assert got.keys() & {"TRAINQ_FOO", "SLURM_JOB_ID", "DISPLAY", "ONLY_WORKER"} == set()
    assert got["TRAINQ_JOB_ID"] == done.stdout.decode().strip()


def test_secret_looking_variables_stay_out(tq):
    """E02: they are left out and named on stderr; the root holds the value nowhere; others of the kind stay in."""
    more = {
        "MY_API_KEY": SECRET,
        "HF_TOKEN": SECRET,
        "PASSWORDS": SECRET,
        "TOKENIZERS_PARALLELISM": "false",
        "MONKEY": "1",
    }
    done = tq.ok("submit", "--", "env", "-0", env=more)
    for name in ("MY_API_KEY", "HF_TOKEN", "PASSWORDS"):
        assert name in done.err
    assert "TOKENIZERS" not in done.err
    assert "MONKEY" not in done.err
    assert SECRET not in done.err
    assert tq.ok("-q", "submit", "--", "true", env=more).err == ""
    tq.work()
    got = environment_of(tq, int(done.out))
    assert (got["TOKENIZERS_PARALLELISM"], got["MONKEY"]) == ("false", "1")
    assert got.keys() & {"MY_API_KEY", "HF_TOKEN", "PASSWORDS"} == set()
    assert found_in_root(tq, SECRET) == []


def test_the_workers_own_secret_reaches_the_job_of_the_same_user(tq):
    """E02: a name left out at submit has the worker's own value, when both are the same user."""
    number = tq.submit("--", "sh", "-c", 'test "$HF_TOKEN" = worker', env={"HF_TOKEN": SECRET})
    not_set = tq.submit("--", "sh", "-c", 'test -z "$HF_TOKEN"')
    tq.work(env={"HF_TOKEN": "worker"})
    assert (tq.state(number), tq.state(not_set)) == ("done", "done")


def test_a_kept_secret_lies_in_one_file_until_the_end(tq):
    """E02: `--env-keep` and secret-looking `--env` lie in a 0600 file, reach the job, and are gone at its end."""
    more = {"MY_TOKEN": SECRET}
    line = f'test "$MY_TOKEN" = {SECRET[:3]}""{SECRET[3:]} && test "$AUTH" = other && test "$PLAIN" = p'
    number = tq.submit("--env-keep", "MY_TOKEN", "--env", "AUTH=other", "--env", "PLAIN=p", "--shell", line, env=more)
    (path,) = found_in_root(tq, SECRET)
    assert os.path.dirname(path) == os.path.join(tq.root, "specs")
    assert os.stat(path).st_mode & 0o777 == 0o600
    assert SECRET not in json.dumps(tq.ok("status", number, "--show-env", "--json").json)
    assert tq.ok("status", number, "--show-env", "--json").json["env"]["PLAIN"] == "p"
    tq.work()
    assert tq.state(number) == "done", log_of(tq, number)
    assert found_in_root(tq, SECRET) == []
    assert os.listdir(os.path.join(tq.root, "specs")) == []


@pytest.mark.parametrize("how", ["cancel waiting", "cancel running", "errored", "poison"])
def test_however_a_job_ends_its_secrets_go(tq, how):
    """E02: the file goes at the end of the job, also when it never ran, failed or lost its worker."""
    line = "exit 3" if how == "errored" else "sleep 60"
    words = ("--env-keep", "MY_TOKEN", "--max-attempts", "1", "--shell", line)
    number = tq.submit(*words, env={"MY_TOKEN": SECRET})
    if how == "cancel waiting":
        tq.ok("cancel", number)
    elif how == "errored":
        tq.work()
    else:
        with tq.worker() as worker:
            until(lambda: tq.state(number) == "running")
            if how == "poison":
                worker.signal(9)
            else:
                tq.ok("cancel", number, "--wait")
        if how == "poison":
            with tq.worker():
                until(lambda: tq.state(number) == "errored")
    until(lambda: not os.listdir(os.path.join(tq.root, "specs")), 5)
    assert found_in_root(tq, SECRET) == []


def test_retry_reads_kept_secrets_again(tq):
    """E02: `retry` takes the kept names from its own environment, and is refused when one is missing."""
    number = tq.submit("--env-keep", "MY_TOKEN", "--shell", 'test "$MY_TOKEN" = new', env={"MY_TOKEN": SECRET})
    tq.work()
    assert tq.state(number) == "errored"
    refused = tq("retry", number)
    assert refused.code == 2
    assert "MY_TOKEN" in refused.err
    assert tq.state(number) == "errored"
    tq.ok("retry", number, env={"MY_TOKEN": "new"})
    assert len(os.listdir(os.path.join(tq.root, "specs"))) == 1
    tq.work()
    job = tq.job(number)
    assert (job["state"], job["attempt"]["n"]) == ("done", 2)
    assert os.listdir(os.path.join(tq.root, "specs")) == []


def test_retry_at_once_does_not_lose_its_secrets(tq):
    """E02: a retry that comes while the end of the last attempt is being cleaned keeps its variables."""
    number = tq.submit("--env-keep", "MY_TOKEN", "--shell", 'test "$MY_TOKEN" = t6', env={"MY_TOKEN": "t0"})
    with tq.worker(env={"TRAINQ_LIMITS_BREAKER": "0"}):  # six quick failures in a row are what is tried here
        for n in range(1, 7):
            until(lambda: tq.state(number) == "errored")
            tq.ok("retry", number, env={"MY_TOKEN": f"t{n}"})
        until(lambda: tq.state(number) in ("done", "errored"))
    assert [row["state"] for row in tq.history(number)][-1] == "done", log_of(tq, number)


def test_retries_keep_the_secrets(tq):
    """E02: an attempt that is repeated by itself still has its kept variables."""
    line = 'test "$MY_TOKEN" = x || exit 9; test "$TRAINQ_ATTEMPT" = 2'
    number = tq.submit(
        "--env-keep", "MY_TOKEN", "--retries", "2", "--backoff", "0s", "--shell", line, env={"MY_TOKEN": "x"}
    )
    tq.work()
    assert (tq.state(number), tq.job(number)["attempt"]["n"]) == ("done", 2)


def test_env_sets_variables(tq):
    """E02: `--env K=V` wins over the submit's own and may hold anything but NUL; trainq's own names are refused."""
    number = tq.submit(
        "--env", "A=x=y\nz", "--env", b"B=\xff\xfe", "--env", "C=", "--", "env", "-0",
        env={"A": "before"},
    )  # fmt: skip
    tq.work()
    got = environment_of(tq, number)
    assert (got["A"], got["B"], got["C"]) == ("x=y\nz", "\udcff\udcfe", "")
    assert tq("submit", "--env", "TRAINQ_JOB_ID=99", "--", "true").code == 2
    assert tq("submit", "--env", "=x", "--", "true").code == 2
    assert tq("submit", "--env", "nothing", "--", "true").code == 2
    assert tq("submit", "--env-keep", "NOT_SET_KEY", "--", "true").code == 2
    assert len(tq.jobs()) == 1


def test_another_directory(tq):
    """E02: `--cwd DIR` is where it runs, relative to the submit's; one that is gone is errored spawn, named."""
    (tq.dir / "sub").mkdir()
    inside = tq.submit("--cwd", "sub", "--", "pwd")
    gone = tq.submit("--cwd", "vanishes", "--", "pwd")
    tq.work(cwd="/")
    assert log_of(tq, inside).decode().strip() == str((tq.dir / "sub").resolve())
    job = tq.job(gone)
    assert (job["state"], job["reason"]) == ("errored", "spawn")
    assert "vanishes" in job["result"]["error"]
    assert b"vanishes" in log_of(tq, gone)


def test_input_from_a_file_and_from_here(tq):
    """E01: `--stdin FILE` and `--stdin -` give the job those bytes; without it its input is empty."""
    given = bytes(range(256)) * 9000
    (tq.dir / "in").write_bytes(given)
    from_file = tq.submit("--stdin", "in", "--", "cat")
    piped = tq.submit("--stdin", "-", "--", "cat", input=given + b"more")
    empty = tq.submit("--", "cat", input=b"not for the job")
    nothing = tq.submit("--stdin", "-", "--", "cat")
    (tq.dir / "in").unlink()
    tq.work()
    assert log_of(tq, from_file) == given
    assert log_of(tq, piped) == given + b"more"
    assert log_of(tq, empty) == log_of(tq, nothing) == b""
    assert tq("submit", "--stdin", "not there", "--", "cat").code == 2


def test_training_sets_with_names(tq):
    """Q07: named data sets come as TRAINQ_DATA_<NAME>, the nameless as TRAINQ_DATA, with their suffix, and through
    `job.data`."""
    for name, text in (("a.csv", "A"), ("b.json", '{"b": 1}'), ("c=d.bin", "C")):
        (tq.dir / name).write_text(text)
    script = tq.script(
        "show.py",
        """
        import os
        from trainq import job
        paths = [job.data(), job.data("test"), job.data("Valid_1"), job.data("none")]
        assert paths[:3] == [os.environ["TRAINQ_DATA"], os.environ["TRAINQ_DATA_TEST"], os.environ["TRAINQ_DATA_VALID_1"]]
        for path in paths: print(path and (os.path.splitext(path)[1], open(path).read()))
        """,
    )
    words = ("--data", "a.csv", "--data", "test=b.json", "--data", "Valid_1=./c=d.bin", "--", "python", str(script))
    number = tq.submit(*words)
    tq.work()
    shown = log_of(tq, number).decode().splitlines()
    assert shown == ["('.csv', 'A')", "('.json', '{\"b\": 1}')", "('.bin', 'C')", "None"]
    assert not os.path.exists(os.path.join(tq.root, "runs", str(number), "1", "data"))
    missing = tq("submit", "--data", "x=not-there", "--", "true")
    assert missing.code == 2
    assert "not-there" in missing.err
    assert tq("submit", "--data", str(tq.dir), "--", "true").code == 2


def test_the_same_name_twice_is_refused(tq):
    """Q08: two training sets of one name, or of names with one variable, are refused: none would be lost silently."""
    (tq.dir / "a").write_text("a")
    (tq.dir / "b").write_text("b")
    assert tq("submit", "--data", "x=a", "--data", "x=b", "--", "true").code == 2
    assert tq("submit", "--data", "a", "--data", "b", "--", "true").code == 2
    assert tq("submit", "--data", "x=a", "--data", "X=b", "--", "true").code == 2
    assert tq.jobs() == []


def test_a_replaced_job_leaves_no_secret(tq):
    """E03: `--on-duplicate replace` cancels what waits under the key and takes its kept variables with it."""
    words = ("--key", "k", "--env-keep", "MY_TOKEN", "--on-duplicate", "replace", "--", "true")
    first = tq.submit(*words, env={"MY_TOKEN": SECRET})
    second = tq.submit(*words, env={"MY_TOKEN": "new"})
    assert (tq.state(first), tq.state(second)) == ("canceled", "pending")
    assert found_in_root(tq, SECRET) == []
    assert len(os.listdir(os.path.join(tq.root, "specs"))) == 1


def test_a_key_makes_submit_repeatable(tq):
    """E03: twenty submits of one key, at once, give one job and its id twenty times; a key is free when its job ended."""
    many = [
        subprocess.Popen(
            [*COMMAND, "--root", tq.root, "-q", "submit", "--key", "nightly ü", "--", "true"],
            env=tq.environment(), cwd=tq.dir, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )
        for _ in range(20)
    ]  # fmt: skip
    answers = [(*process.communicate(timeout=60), process.returncode) for process in many]
    assert {(out, code) for out, _, code in answers} == {(b"1\n", 0)}, answers
    assert len(tq.jobs()) == 1
    assert tq("submit", "--key", "nightly ü", "--on-duplicate", "fail", "--", "true").code == 8
    item = tq.ok("--json", "submit", "--key", "nightly ü", "--", "true").json["items"][0]
    assert (item["id"], item["result"]) == (1, "duplicate")
    assert tq.submit("--key", "nightly ü", "--on-duplicate", "run", "--", "true") == 2
    tq.work()
    assert tq.submit("--key", "nightly ü", "--", "true") == 3
    assert tq.ok("status", "key:nightly ü", "--json").json["total"] == 3


def test_lines_of_a_file_all_or_none(tq):
    """E04: 100,000 lines land in one transaction; one bad line exits 2 naming line and field, and nothing is stored."""
    line = json.dumps({"argv": ["true"], "name": "n", "tag": ["a"]})
    good = "\n".join([line, "", *[line] * 99_999])
    for bad, words in (
        ('{"argv": ["true"], "priorty": 1}', ("line 3", "priorty", "priority")),
        ('{"argv": ["true"], "time": 5}', ("line 3", "time")),
        ('{"type": "nope"}', ("nope",)),
        ('{"argv": "true"}', ("line 3", "argv")),
        ("{", ("line 3", "JSON")),
        ('["true"]', ("line 3", "object")),
        ('{"argv": ["true"], "type": "ok"}', ("only one",)),
        ('{"argv": ["\\u0000"]}', ("line 3", "NUL")),
    ):
        done = tq("submit", "--from", "-", input=f"{line}\n\n{bad}\n{line}\n")
        assert done.code == 2, (bad, done)
        assert all(word in done.err for word in words), (bad, done.err)
    assert tq("submit", "--from", "-", input=b"\xff\n").code == 2
    assert tq("submit", "--from", "-", input="").code == 2
    assert tq("submit", "--from", "not there").code == 2
    assert tq.ok("status", "--all", "--json").json["total"] == 0
    (tq.dir / "jobs.jsonl").write_text(good)
    ids = tq.ok("submit", "--from", "jobs.jsonl").out.split()
    assert ids == [str(n) for n in range(1, 100_001)]
    assert tq.ok("status", "--summary", "--json").json["counts"]["pending"] == 100_000


COMMANDS = [
    ("init", "ROOT"), ("types",), ("types", "show", "ok"), ("types", "check"), ("submit", "--", "true"),
    ("submit", "ok", "--param", "i=5"), ("status",), ("status", "1"), ("status", "--summary"), ("status", "--all"),
    ("wait", "1"), ("wait", "1", "--any"), ("cancel", "3"), ("cancel", "3"), ("retry", "3"), ("worker", "--once"),
    ("workers",), ("prune",), ("history", "1"), ("models",), ("models", "show", "ok"), ("models", "path", "ok@latest"),
    ("report", "--progress", "0.5"), ("doctor",),
]  # fmt: skip
ERRORS = [
    (("submit", "nope"), 2), (("submit", "ok", "--param", "x"), 2), (("submit",), 2), (("frobnicate",), 2),
    (("status", "99"), 3), (("history", "99"), 3), (("logs", "99", "--jsonl"), 3), (("cancel", "99"), 3),
    (("models", "show", "nope"), 3), (("cancel", "1"), 4), (("retry", "1"), 4), (("wait", "3", "--timeout", "0s"), 5),
    (("cancel", "1,99"), 7), (("submit", "ok", "--param", "i=9"), 8), (("cancel",), 2), (("status", "--limit", "x"), 2),
    (("--nonsense", "status"), 2), (("report", "--strict", "--progress", "0.5"), 4), (("wait", "2"), 1),
    (("logs", "3", "--jsonl"), 4), (("status", "1", "--columns", "nope"), 2), (("worker", "--slots", "x"), 2),
]  # fmt: skip


def one_document(done, words) -> dict:
    """stdout is exactly one JSON document with the frame of the contract."""
    assert "Traceback" not in done.err, (words, done)
    document = json.loads(done.out)
    assert done.out.endswith("\n"), words
    assert document["schema"] == "trainq/1", words
    assert document["kind"], words
    return document


def test_every_command_answers_one_document(tq):
    """Q96: every command with `--json` prints one JSON document on stdout, for success and for each error, with its
    exit code."""
    tq.submit("ok")
    tq.submit("bad")
    tq.work()
    tq.submit("ok", "--param", "i=9")
    for words in COMMANDS:
        args = [tq.root if word == "ROOT" else word for word in words]
        done = tq(*args, "--json") if "--" not in args else tq("--json", *args)
        assert done.code in (0, 1) if words[0] == "doctor" else done.code == 0, (words, done)
        assert one_document(done, words)["kind"] != "error"
    waiting = tq.submit("ok", "--param", "i=9", "--on-duplicate", "run")
    for words, code in ERRORS:
        args = [str(waiting) if word == "3" else word for word in words]
        done = tq(*args) if "--jsonl" in args else tq("--json", *args)
        assert done.code == code, (words, done)
        if "--jsonl" in args:
            continue
        document = one_document(done, words)
        if document["kind"] == "error":
            assert document["code"] == code, (words, document)
            assert "\n" not in document["message"], words
            assert document["hint"], words


def test_a_broken_queue_answers_in_json_too(tq, tmp_path):
    """Q96: 6 for a missing root, a broken file of settings and a damaged database, each as one document."""
    missing = tq("--json", "status", root=str(tmp_path / "not here"))
    assert (missing.code, one_document(missing, "")["code"]) == (6, 6)
    assert "init" in missing.json["hint"]
    config = Path(tq.root) / "trainq.toml"
    config.write_text("[times]\nheartbeet = 1\n")
    broken = tq("--json", "status")
    assert (broken.code, one_document(broken, "")["code"]) == (6, 6)
    assert "heartbeat" in broken.json["message"] + broken.json["hint"]
    config.write_text("")
    (Path(tq.root) / "queue.sqlite").write_bytes(b"")
    for words in (("status",), ("submit", "--", "true"), ("worker", "--once"), ("prune",), ("models",)):
        done = tq("--json", *words)
        assert (done.code, one_document(done, words)["code"]) == (6, 6)
    assert (Path(tq.root) / "queue.sqlite").read_bytes() == b""


def test_odd_bytes_never_break_a_document(tq):
    """Q96: names, arguments and errors of any bytes: JSON stays JSON with `_b64` twins, tables keep their rows."""
    line = "printf '\\377\\033[1m\\n' >&2; exit 3"
    number = tq.submit("-n", b"n\xff\x1b[31m\nx", "--tag", "t\x1b", "--", "sh", "-c", line, b"\xff")
    tq.work()
    job = tq.job(number)
    assert job["name"] == "n\ufffd\x1b[31m\nx"
    assert job["command"]["argv_b64"][-1] == "/w=="
    assert job["state"] == "errored"
    table = tq.ok("status", "--all").out
    assert "\x1b" not in table
    assert len([line for line in table.splitlines() if line.strip()]) == 2
    assert "\x1b" not in tq.ok("status", number).out
    assert "\x1b" not in tq.ok("history", number).out
    assert tq.ok("status", "--tag", "t\x1b", "--json").json["total"] == 1
    assert "\ufffd" in json.dumps(job["result"], ensure_ascii=False) or "\\\\xff" in json.dumps(job["result"])
