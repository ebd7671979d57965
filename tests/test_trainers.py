"""The trainers that come with trainq: by hand and as jobs they end with a model that loads, or with one clear line."""

from __future__ import annotations

import csv
import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from listening import REPOSITORY, UID, Listening

from trainq import trainers
from trainq.base.settings import load
from trainq.domain.types import load_types
from trainq.trainers import datasets

if TYPE_CHECKING:
    from collections.abc import Iterator

joblib = pytest.importorskip("joblib")
pytest.importorskip("sklearn")

INPUTS: dict[str, Any] = {
    "wine": [[13.0, 2.3, 2.4, 15, 99, 2.3, 2.0, 0.3, 1.6, 5.0, 0.9, 2.6, 700]],
    "diabetes": [[48, 1, 26, 94, 189, 115, 49, 4, 4.6, 91]],
    "intents": ["how much money have I got?", "somebody stole my card"],
}
SCORES = {"wine": ["accuracy", "loss"], "diabetes": ["r2", "rmse"], "intents": ["accuracy", "loss"]}


@pytest.fixture
def worker() -> Iterator[Listening]:
    listening = Listening()
    yield listening
    listening.close()


def run_as_job(worker: Listening, name: str, directory: Path, **given: Any) -> tuple[int, str, str]:
    """A trainer as a job with these parameters and data; its model lies in directory/model."""
    (directory / "params.json").write_text(json.dumps(given.get("params", {})))
    env = {
        "TRAINQ_PARAMS": str(directory / "params.json"),
        "TRAINQ_MODEL_DIR": str(directory / "model"),
        "TRAINQ_SEED": str(given.get("seed", 0)),
        "PYTHONWARNINGS": "error",
    }
    if "data" in given:
        env["TRAINQ_DATA"] = str(given["data"])
    script = f"import runpy; runpy.run_module('trainq.trainers.{name}', run_name='__main__')"
    return worker.run(script, **env)


@pytest.mark.parametrize("name", INPUTS)
def test_by_hand(name: str, tmp_path: Path) -> None:
    """Without a queue, parameters or data: the bundled set is trained on and ./model holds a usable model."""
    env = {key: value for key, value in os.environ.items() if not key.startswith("TRAINQ_")}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", f"trainq.trainers.{name}"],
        env={**env, "PYTHONPATH": REPOSITORY},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"{name}: ")
    assert done.stdout.count("\n") == 1
    scores = json.loads((tmp_path / "model/metrics.json").read_text())
    assert sorted(scores) == SCORES[name]
    assert scores["r2" if name == "diabetes" else "accuracy"] > {"wine": 0.9, "diabetes": 0.25, "intents": 0.75}[name]
    assert len(joblib.load(tmp_path / "model/model.joblib").predict(INPUTS[name])) == len(INPUTS[name])


@pytest.mark.parametrize("name", INPUTS)
def test_as_a_job(name: str, worker: Listening, tmp_path: Path) -> None:
    """With its training set and parameters: progress to the end, every epoch's metrics, the model where it belongs."""
    data = tmp_path / "data"
    getattr(datasets, f"write_{name}")(str(data))
    status, _, err = run_as_job(worker, name, tmp_path, data=data, params={"epochs": 30, "alpha": 0.36})
    assert (status, err) == (0, "")
    assert worker.progress()[-1] == {
        "do": "progress",
        "fraction": 1.0,
        "step": 30,
        "total": 30,
        "message": None,
    }
    scores = json.loads((tmp_path / "model/metrics.json").read_text())
    for score in SCORES[name]:
        points = worker.metrics(score)
        assert [step for step, _ in points] == list(range(1, 31))
        assert points[-1][1] == scores[score]
    predicted = joblib.load(tmp_path / "model/model.joblib").predict(INPUTS[name])
    if name == "wine":
        assert predicted[0] in {"class_0", "class_1", "class_2"}
    if name == "diabetes":
        assert 25 < predicted[0] < 350


@pytest.mark.parametrize("name", INPUTS)
def test_the_seed_decides(name: str, worker: Listening, tmp_path: Path) -> None:
    """The same seed trains the same model, another one another."""
    (tmp_path / "params.json").write_text('{"epochs": 3}')
    script = (
        "import os, runpy\nfor seed in '112':\n    os.environ['TRAINQ_SEED'] = seed\n"
        f"    runpy.run_module('trainq.trainers.{name}', run_name='__main__')\n"
        f"    print('scores', open({str(tmp_path / 'metrics.json')!r}).read())"
    )
    given = {"TRAINQ_PARAMS": str(tmp_path / "params.json"), "TRAINQ_MODEL_DIR": str(tmp_path)}
    _, out, err = worker.run(script, **given)
    assert err == ""
    scores = [line for line in out.splitlines() if line.startswith("scores")]
    assert scores[0] == scores[1] != scores[2]


@pytest.mark.parametrize("name", INPUTS)
def test_a_stopped_trainer_leaves_no_model(name: str, worker: Listening, tmp_path: Path) -> None:
    """Asked to stop it ends soon, says so in one line and never with status 0."""
    worker.channel.push(UID, 1, {"do": "stop", "reason": "canceled"})
    status, out, err = run_as_job(worker, name, tmp_path, params={"epochs": 100_000})
    assert (status, out) == (1, "")
    assert err.startswith(f"{name}: stopped after ")
    assert err.count("\n") == 1
    assert not (tmp_path / "model/model.joblib").exists()


BAD = [
    ("wine", b"", "no header"),
    ("wine", b"a\n1\n", "no header with at least two columns"),
    ("wine", b"a,b,c\n1,2,x\n1,?,x\n", "line 3: could not convert string to float: '?'"),
    ("wine", b"a,b,c\n1,2,x\n\n1,x\n", "line 4: expected 2 finite numbers and a class"),
    ("wine", b"a,b\nnan,x\n", "line 2: expected 1 finite numbers"),
    ("wine", b"a,b\n1e999,x\n", "line 2: expected 1 finite numbers"),
    ("wine", b"a,b\n" + b"1,x\n" * 20, "two or more classes of at least four rows each, got {'x': 20}"),
    ("wine", b"a,b\n" + b"1,x\n" * 20 + b"1,y\n", "at least four rows each"),
    ("wine", b"a,b\n\xff,x\n", "can't decode byte 0xff"),
    ("wine", b"a,b\n\0,x\n", "line"),
    ("wine", None, "No such file"),
    ("diabetes", b"", "no header"),
    ("diabetes", b"a,b\n1,2\n1,\n", "line 3: could not convert string to float: ''"),
    ("diabetes", b"a,b\n1,2,3\n", "line 2: expected 2 finite numbers"),
    ("diabetes", b"a,b\n1,inf\n", "line 2: expected 2 finite numbers"),
    ("diabetes", b"a,b\n" + b"1,2\n" * 7, "at least eight rows, got 7"),
    ("diabetes", None, "No such file"),
    ("intents", b"", "Expecting value"),
    ("intents", b"[]", 'expected {"language"'),
    ("intents", b'{"intents": 3}', 'expected {"language"'),
    ("intents", b'{"language": "de", "intents": []}', "its language is 'de', the job's is 'en'"),
    ("intents", b'{"intents": []}', "its language is None, the job's is 'en'"),
    ("intents", b'{"language": "en", "intents": []}', "two or more intents"),
    (
        "intents",
        b'{"language": "en", "intents": [1]}',
        "intent 1: expected a name and at least four utterances",
    ),
    (
        "intents",
        b'{"language": "en", "intents": [{"name": "a", "utterances": ["a", "b", "c"]}]}',
        "at least four",
    ),
    (
        "intents",
        b'{"language": "en", "intents": [{"name": "a", "utterances": ["a", "b", "c", 4]}]}',
        "not a text",
    ),
    ("intents", b"[" * 100_000, "recursion"),
    ("intents", None, "No such file"),
]


@pytest.mark.parametrize(("name", "content", "words"), BAD, ids=range(len(BAD)))
def test_what_is_wrong_with_bad_data_is_named(name: str, content: bytes | None, words: str, tmp_path: Path) -> None:
    """Each fault of a training set is said in one line, with the line of the file where it has one."""
    data = tmp_path / "bad"
    if content is not None:
        data.write_bytes(content)
    read = importlib.import_module(f"trainq.trainers.{name}").read
    with pytest.raises((OSError, ValueError, csv.Error, RecursionError)) as raised:
        read(str(data), *(["en"] if name == "intents" else []))
    assert words in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("name", INPUTS)
def test_bad_data_ends_the_job_with_one_line(name: str, worker: Listening, tmp_path: Path) -> None:
    """One line that names the trainer, the file and the fault; status 1, no traceback, no model."""
    data = tmp_path / "bad"
    data.write_bytes(b"[" * 100_000 if name == "intents" else b"\xff\n1\n")
    status, out, err = run_as_job(worker, name, tmp_path, data=data)
    assert (status, out) == (1, "")
    assert err.startswith(f"{name}: bad training set '{data}': ")
    assert err.count("\n") == 1
    assert not (tmp_path / "model").exists()


def test_a_constant_column_and_a_constant_target_are_no_error(worker: Listening, tmp_path: Path) -> None:
    """Data without any spread is dull, not bad."""
    data = tmp_path / "dull"
    data.write_text("a,b\n" + "1,2\n" * 20)
    assert run_as_job(worker, "diabetes", tmp_path, data=data, params={"epochs": 2})[::2] == (0, "")
    assert joblib.load(tmp_path / "model/model.joblib").predict([[1]]) == pytest.approx([2])


def test_the_types_are_what_trainq_reads(tmp_path: Path) -> None:
    """Q04: types.toml is valid as (part of) a trainq.toml; each default is the trainer's own."""
    python = '/opt/my "python"/bin/python'
    (tmp_path / "trainq.toml").write_text(trainers.types_toml(python))
    types = load_types(load(str(tmp_path), environ={}))
    assert sorted(types) == ["diabetes", "intents", "wine"]
    for name, spec in types.items():
        assert spec.run == (python, "-m", f"trainq.trainers.{name}")
        assert spec.model == "required"
        source = Path(REPOSITORY, "trainq/trainers", f"{name}.py").read_text()
        for param, declared in spec.params.items():
            if param != "language":
                assert f'job.params.get("{param}", {declared.default})' in source
    assert (types["intents"].key, types["intents"].keep) == ("{user}/{param.language}", 1)


def test_the_bundled_intents() -> None:
    """Eight to twelve intents with ten utterances and more, none of them twice."""
    found = json.loads(Path(trainers.INTENTS).read_text())
    assert found["language"] == "en"
    assert 8 <= len(found["intents"]) <= 12
    utterances = [text for intent in found["intents"] for text in intent["utterances"]]
    assert all(len(intent["utterances"]) >= 10 for intent in found["intents"])
    assert len({text.casefold() for text in utterances}) == len(utterances)


def test_data_sets_as_files(tmp_path: Path) -> None:
    """The writers, and the command for them, give whole files with a header; a wrong word or place is one line."""
    datasets.write_wine(str(tmp_path / "wine.csv"))
    datasets.write_diabetes(str(tmp_path / "diabetes.csv"))
    for name, rows, columns in (("wine", 178, 14), ("diabetes", 442, 11)):
        with open(tmp_path / f"{name}.csv", newline="") as file:
            table = list(csv.reader(file))
        assert len(table) == rows + 1
        assert {len(row) for row in table} == {columns}
    command = [sys.executable, "-m", "trainq.trainers.datasets"]
    env = {**os.environ, "PYTHONPATH": REPOSITORY}
    subprocess.run([*command, "intents", str(tmp_path / "i.json")], env=env, check=True)
    assert (tmp_path / "i.json").read_bytes() == Path(trainers.INTENTS).read_bytes()
    for words in (["wine"], ["cars", "f"], ["intents", str(tmp_path / "no/such")]):
        done = subprocess.run([*command, *words], env=env, capture_output=True, text=True)
        assert done.returncode == 1
        assert done.stderr.count("\n") == 1
