"""What submit takes in, what it refuses, and what it leaves when it does."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import random
import subprocess
from concurrent.futures import ThreadPoolExecutor

import pytest

SEEN = """
[types.seen]
run = ["python", "seen.py"]
"""
SEEN_PY = """
import json, os
params = os.environ.get("TRAINQ_PARAMS")
data = os.environ.get("TRAINQ_DATA")
json.dump({
    "params": json.load(open(params)) if params else None,
    "data": data and open(data, "rb").read().hex(),
    "env": {name: value for name, value in os.environ.items() if name.startswith("TRAINQ_PARAM_")},
}, open("seen.json", "w"))
"""


@pytest.fixture
def seen(tq):
    """A call that submits a job of a type that tells what it was given, runs it, and answers that."""
    tq.types(SEEN)
    (tq.dir / "seen.py").write_text(SEEN_PY)

    def call(*words):
        job = tq.submit("seen", *words)
        tq.ok("worker", "--once")
        assert tq.job(job)["state"] == "done"
        return json.loads((tq.dir / "seen.json").read_text())

    return call


def _nothing_stored(tq):
    assert tq.jobs() == []
    for name in ("data", "specs", "runs"):
        assert os.listdir(os.path.join(tq.root, name)) == []


def test_submit_stores_job_and_set_before_anything_runs(tq):
    """Q01: with no worker alive a submit stores job and set, prints the id, and the job waits."""
    text = b'{"a": 1}'
    (tq.dir / "d.json").write_bytes(text)
    done = tq.ok("submit", "ok", "--data", "d.json")
    assert done.out == "1\n"
    job = tq.job(1)
    assert job["state"] == "pending"
    assert job["data"]["size"] == len(text)
    assert job["data"]["sha256"] == hashlib.sha256(text).hexdigest()
    assert [move["state"] for move in tq.history(1)] == ["pending"]
    (tq.dir / "d.json").unlink()  # it is the queue's now
    tq.ok("worker", "--once")
    assert tq.job(1)["state"] == "done"


def test_training_set_comes_back_byte_exact(tq):
    """Q02: a set of 64 MiB reaches the job byte by byte, and is stored in less."""
    data = b'{"x": "%s"}' % random.Random(2).randbytes(32 << 20).hex().encode()
    (tq.dir / "big.json").write_bytes(data)
    program = "import hashlib, os; print(hashlib.sha256(open(os.environ['TRAINQ_DATA'], 'rb').read()).hexdigest())"
    job = tq.submit("--data", "big.json", "--", "python", "-c", program)
    stored = sum(entry.stat().st_size for entry in os.scandir(os.path.join(tq.root, "data")))
    assert 0 < stored < len(data)
    tq.ok("worker", "--once")
    assert tq.ok("logs", str(job)).out.strip() == hashlib.sha256(data).hexdigest()
    assert tq.job(job)["state"] == "done"


@pytest.mark.parametrize("content", [b"", b"\0", b"\xff\xfe\n\r\n", b"x" * 65_537, os.urandom(300_000)], ids=len)
def test_odd_training_sets_come_back_byte_exact(seen, tq, content):
    """Q02: empty, binary and incompressible sets too, also under a name with a blank and a byte that is no UTF-8."""
    name = os.fsencode(tq.dir) + b"/a \xff b"
    with open(name, "wb") as file:
        file.write(content)
    assert seen("--data", name)["data"] == content.hex()


def test_several_training_sets_keep_apart(tq):
    """Q02: named sets, the unnamed one and stdin reach the job each under its own name, also with one file name."""
    for name in ("a", "b", "c", "d"):
        (tq.dir / name).mkdir()
        (tq.dir / name / "x").write_text(name)
    program = "cat $TRAINQ_DATA $TRAINQ_DATA_MAIN $TRAINQ_DATA_STDIN -"
    job = tq.submit(
        "--data", "a/x", "--data", "main=b/x", "--data", "stdin=c/x", "--stdin", "d/x", "--shell", program
    )  # fmt: skip
    tq.ok("worker", "--once")
    assert tq.ok("logs", str(job)).out == "abcd"


def test_registry_names_the_command(tq):
    """Q04: a type of trainq.toml names the command that its jobs run, and `types` lists it."""
    job = tq.submit("ok")
    assert tq.job(job)["command"]["argv"] == ["python", "ok.py"]
    tq.ok("worker", "--once")
    assert tq.job(job)["state"] == "done"
    types = tq.ok("types", "--json").json["items"]
    assert {item["name"]: item["run"] for item in types}["ok"] == ["python", "ok.py"]
    assert "ok" in tq.ok("types").out


def test_registry_names_a_function(tq):
    """Q04: a type may name a Python function instead; it is called with the parameters."""
    tq.types('[types.fun]\ncall = "mine:train"\n')
    (tq.dir / "mine.py").write_text("from trainq import job\ndef train():\n    print('got', job.params['a'])\n")
    job = tq.submit("fun", "--param", "a=5")
    tq.ok("worker", "--once")
    assert tq.ok("logs", str(job)).out == "got 5\n"
    assert tq.job(job)["state"] == "done"


@pytest.mark.parametrize("name", ["nope", "", "OK", "o\nk", b"\xff\x1b[31m", "x" * 5000, "../ok"])
def test_unknown_type_is_refused(tq, name):
    """Q05: an unknown type exits 2, names itself and the known types in one line, and stores nothing."""
    done = tq("submit", name)
    assert done.code == 2
    lines = done.err.splitlines()
    assert lines[-1].startswith("hint: ")
    assert len(lines) == 2
    assert "\x1b" not in done.err
    if name in ("nope", "OK"):
        assert repr(name) in done.err
        assert "ok, slow, bad" in done.err
    _nothing_stored(tq)


def test_missing_type_is_refused(tq):
    """Q05: neither a type nor a command exits 2 and stores nothing."""
    assert tq("submit").code == 2
    assert tq("submit", "--").code == 2
    assert tq("submit", "--json").json["code"] == 2
    _nothing_stored(tq)


def test_fingerprint_is_that_of_the_training(tq):
    """Q06: same type, canonical content, parameters and seed give one fingerprint; another seed gives another."""
    (tq.dir / "one.json").write_text('{"a": 1, "b": [1.0, 2]}')
    (tq.dir / "two.json").write_text('{ "b":[1.0,2],\n "a":1 }\n')
    (tq.dir / "three.json").write_text('{"a": 2, "b": [1.0, 2]}')
    one = tq.submit("ok", "--data", "one.json", "--param", "x=1", "--param", "y=2", "--seed", "7")
    same = tq("submit", "ok", "--data", "two.json", "--param", "y=2", "--param", "x=1", "--seed", "7")
    assert same.code == 8
    again = tq.submit(
        "ok", "--data", "two.json", "--param", "y=2", "--param", "x=1", "--seed", "7", "--on-duplicate", "run"
    )
    others = [
        tq.submit("ok", "--data", "one.json", "--param", "x=1", "--param", "y=2", "--seed", "8"),
        tq.submit("ok", "--data", "three.json", "--param", "x=1", "--param", "y=2", "--seed", "7"),
        tq.submit("ok", "--data", "one.json", "--param", "x=1", "--param", "y=3", "--seed", "7"),
        tq.submit("slow", "--data", "one.json", "--param", "x=1", "--param", "y=2", "--seed", "7"),
    ]
    prints = {job["id"]: job["fingerprint"] for job in tq.jobs()}
    assert prints[one] == prints[again]
    assert len({prints[job] for job in (one, *others)}) == 5
    found = tq.ok("status", f"fp:{prints[one]}", "--json").json["items"]
    assert {job["id"] for job in found} == {one, again}
    tq.ok("worker", "--once")
    models = tq.ok("models", "list", "--fp", prints[one], "--json").json["items"]
    assert [model["job"] for model in models] == [one]


def test_parameters_pass_through(seen):
    """Q07: undeclared parameters reach the trainer with their types; the default is {}."""
    given = seen("--param", "a=0.36", "--param", "b=true", "--param", 's="0.33"')
    assert given["params"] == {"a": 0.36, "b": True, "s": "0.33"}
    assert seen()["params"] == {}


ODD = {
    "nothing": ("", ""),
    "null": ("null", None),
    "list": ("[1, 2]", [1, 2]),
    "object": ('{"k": {"v": [0.1]}}', {"k": {"v": [0.1]}}),
    "nan": ("NaN", "NaN"),
    "infinity": ("-Infinity", "-Infinity"),
    "comma": ("a,b", "a,b"),
    "equals": ("x=y=z", "x=y=z"),
    "umlaut": ("grün ☃ 𝄞", "grün ☃ 𝄞"),
    "lines": ("one\ntwo\t", "one\ntwo\t"),
    "large": (str(2**70), 2**70),
    "leading": ("007", "007"),
    "exponent": ("1e-3", 1e-3),
    "quote": ('it\'s "so"', 'it\'s "so"'),
    "surrogate": (r'"\ud800"', "\ud800"),
}


def test_odd_parameters_pass_through(seen):
    """Q07: whatever the text, the trainer receives that value."""
    words = [word for name, (text, _) in ODD.items() for word in ("--param", f"{name}={text}")]
    assert seen(*words)["params"] == {name: value for name, (_, value) in ODD.items()}


def test_bytes_of_a_parameter_pass_through(seen):
    """Q07: bytes that are no UTF-8 come out of the variable as they went in."""
    given = seen("--param", b"raw=a\xffb")
    assert os.fsencode(given["env"]["TRAINQ_PARAM_RAW"]) == b"a\xffb"


DECLARED = """
[types.strict]
run = ["python", "ok.py"]
data = "required"
[types.strict.params]
lr = { type = "float", default = 0.1, min = 0.0, max = 1.0 }
n = { type = "int", default = 3 }
mode = { type = "str", choices = ["fast", "slow"], default = "fast" }
"""


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("--param", "lr=abc"), "lr"),
        (("--param", "learn=1"), "learn"),
        (("--param", "lr=2"), "lr"),
        (("--param", "lr=NaN"), "lr"),
        (("--param", "n=1.5"), "n"),
        (("--param", "mode=other"), "mode"),
        (("--param", "lr"), "lr"),
        (("--param", "=1"), ""),
        (("--param", "n=1", "--param", "n=2"), "n"),
        (("--param", b"\xff=1"), ""),
        (("--seed", "x"), "--seed"),
        (("--time", "90"), "--time"),
        (("--priority", "high"), "--priority"),
        (("--queue", "nope"), "nope"),
        (("--on-duplicate", "maybe"), "--on-duplicate"),
        (("--model", "../../x"), ""),
        (("--env", "NOVALUE"), "--env"),
        (("--retries", "-1"), "--retries"),
        (("--no-such-option",), "--no-such-option"),
    ],
)
def test_validation_at_submit(tq, words, named):
    """Q08: what the type did not declare, or does not fit, exits 2 naming it, and nothing is stored."""
    tq.types(DECLARED)
    (tq.dir / "d").write_text("1")
    done = tq("submit", "strict", "--data", "d", *words)
    assert done.code == 2, done
    assert named in done.err
    assert len(done.err.splitlines()) <= 2
    assert tq("submit", "strict", "--data", "d", "--json", *words).json["code"] == 2
    _nothing_stored(tq)


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("--data", "absent"),
        ("--data", "."),
        ("--data", "d/"),
        ("--data", ""),
        ("--data", "pipe"),
        ("--data", "/dev/zero"),
        ("--data", "loop"),
        ("--data", "a=d", "--data", "a=d"),
        ("--data", "d", "--data", "d"),
        ("--data", "x" * 300),
        ("--data", "../" * 2000 + "d"),
    ],
)
def test_data_is_looked_at_at_submit(tq, words):
    """Q08: a training set that is missing, no file, or not readable exits 2 and nothing is stored; a pipe blocks not."""
    tq.types(DECLARED)
    (tq.dir / "d").write_text("1")
    os.mkfifo(tq.dir / "pipe")
    os.symlink("loop", tq.dir / "loop")
    done = tq("submit", "strict", *words)
    assert done.code == 2, done
    assert len(done.err.splitlines()) <= 2
    _nothing_stored(tq)


def test_type_that_takes_no_data_refuses_it(tq):
    """Q08: data = "none" is a promise of the type."""
    tq.types('[types.bare]\nrun = ["true"]\ndata = "none"\n')
    (tq.dir / "d").write_text("1")
    assert tq("submit", "bare", "--data", "d").code == 2
    _nothing_stored(tq)


def test_one_bad_line_stores_none(tq):
    """Q08: `--from` is all or nothing; the message names the line."""
    good, bad = '{"type": "ok"}\n', '{"type": "ok", "params": 3}\n'
    absent = '{"type": "ok", "data": "absent"}'
    for wrong in (
        bad,
        "{",
        '{"type": "nope"}',
        "[]",
        '{"argv": []}',
        "\xff",
        absent,
        '{"type": "ok", "queue": "q"}',
        "{}",
    ):
        text = good + wrong
        done = tq("submit", "--from", "-", input=text.encode("latin-1"))
        assert done.code == 2, (text, done)
        assert "line 2" in done.err, (text, done)
    _nothing_stored(tq)


def test_bytes_of_a_command_pass_through(tq):
    """Q08: a command is bytes; names made of it, or given, break no list and no document."""
    odd = b"a\xff\x1b[31m\nb"
    jobs = [
        tq.submit("--", "printf", "%s", odd),
        tq.submit("-n", odd, "--env", b"ODD=" + odd, "--shell", 'printf %s "$ODD"'),
        tq.submit("--shell", b"printf '" + odd + b"'"),
    ]
    lost = tq.submit("--", b"./" + odd)
    os.mkdir(os.fsencode(tq.dir) + b"/" + odd)
    there = tq.submit("--cwd", odd, "--", "pwd")
    tq.ok("worker", "--until", "empty")
    for job in jobs:
        assert os.fsencode(tq.ok("logs", str(job)).out) == odd
    assert os.fsencode(tq.ok("logs", str(there)).out).endswith(odd + b"\n")
    assert tq.job(lost)["reason"] == "spawn"
    assert base64.b64decode(tq.job(jobs[0])["command"]["argv_b64"][2]) == odd
    table = tq.ok("status", "--all").out
    assert "\x1b" not in table
    assert len(table.splitlines()) >= 6
    for words in (("--tag", odd), ("--key", odd), ("--model", odd), ("--queue", odd)):
        done = tq("submit", *words, "--", "true")
        assert (done.code, len(done.err.splitlines())) == (2, 2)
        assert "\x1b" not in done.err


@pytest.mark.parametrize("field", ["name", "key", "cwd", "shell", "argv", "env", "data", "stdin", "type", "params"])
def test_half_a_character_is_refused(tq, field):
    """Q08: half a UTF-16 pair, which only JSON can spell, is no text: refused, or as a parameter's value passed on."""
    half = "\ud800"
    value = {"argv": ["true", half], "env": {"A": half}, "params": {half: 1}}.get(field, half)
    line = {field: value} if field in ("argv", "shell", "type") else {"type": "ok", field: value}
    done = tq("submit", "--from", "-", input=json.dumps(line))
    assert done.code == 2, done
    assert len(done.err.splitlines()) <= 2
    assert "line 1" in done.err
    _nothing_stored(tq)


def test_the_same_training_is_refused_while_it_waits(tq):
    """Q09: the very training that is waiting or running is refused with 8; one job stands."""
    tq.submit("ok", "--seed", "1")
    done = tq("submit", "ok", "--seed", "1")
    assert done.code == 8
    assert "job 1" in done.err
    assert [job["id"] for job in tq.jobs()] == [1]
    assert tq("submit", "ok", "--seed", "1", "--json").json["error"] == "duplicate"


def test_the_same_training_at_once(tq):
    """Q09: of eight submits of one training at the same moment one is taken, seven exit 8."""
    with ThreadPoolExecutor(8) as pool:
        codes = sorted(done.code for done in pool.map(lambda _: tq("submit", "ok"), range(8)))
    assert codes == [0] + [8] * 7
    assert len(tq.jobs()) == 1


def test_first_in_first_out(tq):
    """Q13: jobs start in the order of their submits; any of them can be taken out; the counts tell the rest."""

    def waiting():
        return tq.ok("status", "--summary", "--json").json["counts"]["pending"]

    a, b, c = (tq.submit("-n", name, "--", "true") for name in "abc")
    counts = [waiting()]
    tq.ok("cancel", str(b))
    counts.append(waiting())
    for _ in range(2):
        tq.ok("worker", "--once")
        counts.append(waiting())
    assert counts == [3, 2, 1, 0]
    started = sorted((move["at"], job) for job in (a, b, c) for move in tq.history(job) if move["state"] == "running")
    assert [job for _, job in started] == [a, c]


def test_priority_then_id(tq):
    """Q13: a higher priority first; ties go by id, also among jobs of one bulk submit."""
    lines = "".join(f'{{"argv": ["true"], "name": "n{n}", "priority": {n % 3}}}\n' for n in range(9))
    ids = [int(word) for word in tq.ok("submit", "--from", "-", input=lines).out.split()]
    tq.ok("worker", "--slots", "1", "--until", "idle")
    order = sorted(ids, key=lambda job: (-(ids.index(job) % 3), job))
    begun = sorted(ids, key=lambda job: tq.job(job)["attempt"]["claimed_at"])
    assert begun == order


def test_submit_again_is_a_new_job_retry_a_new_attempt(tq):
    """Q39: submit after cancel is a new job of the same fingerprint; retry keeps the id, adds an attempt, and the past."""
    first = tq.submit("bad")
    tq.ok("cancel", str(first))
    second = tq.submit("bad")
    assert second != first
    print_ = tq.job(first)["fingerprint"]
    assert tq.job(second)["fingerprint"] == print_
    assert {move["job"] for move in tq.history(f"fp:{print_}")} == {first, second}

    tq("worker", "--once")
    assert tq.job(second)["state"] == "errored"
    tq.ok("retry", str(second))
    tq("worker", "--once")
    job = tq.job(second)
    assert job["attempt"]["n"] == 2
    assert [one["n"] for one in job["attempts"]] == [1, 2]
    assert [move["state"] for move in tq.history(second)] == ["pending", "running", "errored"] * 2
    third = tq.submit("bad")
    assert third not in (first, second)


def test_reader_of_a_pipe_may_leave(tq):
    """Q01: ids are stored even when nobody reads them: a closed pipe ends the submit quietly."""
    process = subprocess.Popen(
        ["bash", "-c", 'python -m trainq --root "$0" submit -- true | true; echo ${PIPESTATUS[0]}', tq.root],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=tq.environment(), cwd=tq.dir,
    )  # fmt: skip
    out, err = process.communicate(timeout=60)
    assert out.strip() == b"0"
    assert err == b""
    assert len(tq.jobs()) == 1
