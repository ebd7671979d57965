"""Model types of trainq.toml: what each key means, and that a wrong one is named with its line."""

from __future__ import annotations

import pytest

from trainq.base.errors import BadSettings, UnknownType
from trainq.base.setting_rows import sample
from trainq.base.settings import load
from trainq.domain.types import TypeSpec, find_type, load_types


@pytest.fixture
def types(tmp_path):
    """Types of a trainq.toml with this text."""

    def types(text):
        (tmp_path / "trainq.toml").write_text(text)
        return load_types(load(str(tmp_path), environ={}))

    return types


def test_a_short_type_has_the_defaults(types):
    """Q04: `[types.ok] run = ["python", "ok.py"]` is all a type needs."""
    assert types('[types.ok]\nrun = ["python", "ok.py"]\n') == {"ok": TypeSpec("ok", run=("python", "ok.py"))}


def test_every_key_is_read(types):
    """Q04: a type from config with a command or a callable, parameters, data, model, limits."""
    got = types("""
[queues]
names = ["gpu"]
[types.a]
call = "pkg.mod:train"
data = "required"
model = "required"
key = "{user}/{type}-{param.language}"
python = "python3.12"
keep = 0
time = "2h"
stall_after = "30m"
retries = 2
queue = "gpu"
gpus = 1
executor = "local"
[types.a.params]
language = { type = "str", choices = ["de", "en"], default = "de" }
alpha = { type = "float", default = 1, min = 0, max = 2.5 }
n = { type = "int" }
extra = { type = "json", default = { a = [1] } }
[types.b]
run = ["x"]
params = {}
""")
    a = got["a"]
    assert a._replace(params={}) == TypeSpec(
        "a", call="pkg.mod:train", declares_params=True, data="required", model="required",
        key="{user}/{type}-{param.language}", python="python3.12", keep=0, time_s=7200, stall_after_s=1800, retries=2,
        queue="gpu", gpus=1,
    )  # fmt: skip
    assert a.params["language"] == ("language", "text", "de", True, ("de", "en"), None, None)
    assert a.params["alpha"] == ("alpha", "float", 1.0, True, (), 0.0, 2.5)
    assert isinstance(a.params["alpha"].default, float)
    assert a.params["n"] == ("n", "int", None, False, (), None, None)
    assert a.params["extra"].default == {"a": [1]}
    assert got["b"].declares_params is True
    assert list(got) == ["a", "b"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[types.ok]\nrun = ["x"]\n\nkepp = 3\n', "trainq.toml: line 4: [types.ok] kepp: unknown key; did you mean keep?"),
        ('types.ok = { run = ["x"], kepp = 3 }\n', "trainq.toml: line 1: [types.ok] kepp: unknown key; did you mean keep?"),
        ("[types.ok]\n", 'line 1: [types] ok: needs run = ["program", …] or call'),
        ('[types.ok]\nrun = ["x"]\ncall = "a:b"\n', "line 3: [types.ok] call: run and call exclude each other"),
        ('[types.ok]\nnotebook = "a.ipynb"\n', "line 2: [types.ok] notebook: 'a.ipynb' is not supported by this version"),
        ("[types.ok]\ndatabricks = { a = 1 }\n", "not supported by this version"),
        ('[types.ok]\nrun = ["x"]\nexecutor = "slurm"\n', "line 3: [types.ok] executor: 'slurm' is not supported"),
        ("[types]\nok = 3\n", "line 2: [types] ok: expected a table [types.ok], got 3"),
        ('[types."a/b"]\nrun = ["x"]\n', "line 1: [types] a/b: a type's name is letters"),
        ('[types."-a"]\nrun = ["x"]\n', "a type's name is letters"),
        ('[types."a\\nb"]\nrun = ["x"]\n', "[types] 'a\\nb': a type's name is letters"),
        ('[types.""]\nrun = ["x"]\n', "a type's name is letters"),
        ('[types.ok]\nrun = "python ok.py"\n', "[types.ok] run: expected a list of words such as"),
        ("[types.ok]\nrun = []\n", "[types.ok] run: expected a list of words"),
        ('[types.ok]\nrun = ["x", 3]\n', "[types.ok] run: expected a list of words"),
        ('[types.ok]\nrun = [""]\n', "[types.ok] run: not a command"),
        ('[types.ok]\nrun = ["a\\u0000"]\n', "[types.ok] run: not a command"),
        ('[types.ok]\ncall = "mod"\n', '[types.ok] call: expected "module:function", got \'mod\''),
        ('[types.ok]\ncall = "mod:f()"\n', '[types.ok] call: expected "module:function"'),
        ("[types.ok]\ncall = 3\n", '[types.ok] call: expected "module:function"'),
        ('[types.ok]\nrun = ["x"]\npython = "python3"\n', "[types.ok] python: only for call"),
        ('[types.ok]\nrun = ["x"]\ndata = "maybe"\n', "[types.ok] data: expected required or optional or none, got 'maybe'"),
        ('[types.ok]\nrun = ["x"]\nmodel = "none"\n', "[types.ok] model: expected required or optional"),
        ('[types.ok]\nrun = ["x"]\ntime = 90\n', "line 3: [types.ok] time: duration '90' has no unit: write 90s"),
        ('[types.ok]\nrun = ["x"]\ntime = "0s"\n', "[types.ok] time: expected more than 0"),
        ('[types.ok]\nrun = ["x"]\nkeep = true\n', "[types.ok] keep: expected a whole number"),
        ('[types.ok]\nrun = ["x"]\nretries = -1\n', "[types.ok] retries: expected a whole number of at least 0"),
        ('[types.ok]\nrun = ["x"]\nqueue = "gpuu"\n', "[types.ok] queue: no such queue: 'gpuu'; known: default"),
        ('[types.ok]\nrun = ["x"]\nkey = "../x"\n', "[types.ok] key: model key '../x' has a part that begins with '.'"),
        ('[types.ok]\nrun = ["x"]\nkey = "{usr}"\n', "[types.ok] key: unknown placeholder '{usr}'"),
        ('[types.ok]\nrun = ["x"]\nkey = "{param.lang}"\nparams.lange = { type = "text" }\n', "did you mean lange?"),
        ('[types.ok]\nrun = ["x"]\nparams = 3\n', "[types.ok] params: expected a table [types.ok.params]"),
        ('[types.ok]\nrun = ["x"]\n[types.ok.params]\nlr = "float"\n', "line 4: [types.ok.params] lr: expected a table such as"),
        ('[types.ok]\nrun = ["x"]\n[types.ok.params]\nlr = { }\n', "line 4: [types.ok.params] lr: needs a type"),
        ('[types.ok]\nrun = ["x"]\n[types.ok.params]\nlr = { type = "real" }\n', "expected a type of int, float, bool, text, json, got 'real'"),
        ('[types.ok]\nrun = ["x"]\n[types.ok.params]\nlr = { type = ["int"] }\n', "expected a type of int"),
        ('[types.ok]\nrun = ["x"]\n[types.ok.params]\nlr = { type = "int", defalt = 3 }\n', "line 4: [types.ok.params.lr] defalt: unknown key; did you mean default?"),
        ('[types.ok]\nrun = ["x"]\n[types.ok.params]\nlr = { type = "int", default = "3" }\n', "[types.ok.params.lr] default: expected an int, got '3'"),
        ('[types.ok]\nrun = ["x"]\n[types.ok.params]\nlr = { type = "float", default = inf }\n', "default: expected a float, got inf"),
        ('[types.ok]\nrun = ["x"]\n[types.ok.params]\nlr = { type = "float", min = nan }\n', "min: expected a float, got nan"),
        ('[types.ok]\nrun = ["x"]\n[types.ok.params]\nlr = { type = "float", min = 1, max = 0 }\n', "max 0.0 is below min 1.0"),
        ('[types.ok]\nrun = ["x"]\n[types.ok.params]\nlr = { type = "float", min = 1, default = 0 }\n', "default: expected at least 1.0, got 0"),
        ('[types.ok]\nrun = ["x"]\n[types.ok.params]\nlr = { type = "text", min = 1 }\n', "min: only int and float have a min, not text"),
        ('[types.ok]\nrun = ["x"]\n[types.ok.params]\nlr = { type = "text", choices = [] }\n', "choices: expected a list of values, got []"),
        ('[types.ok]\nrun = ["x"]\n[types.ok.params]\nlr = { type = "text", choices = ["a", 1] }\n', "choices: expected text, got 1"),
        ('[types.ok]\nrun = ["x"]\n[types.ok.params]\nlr = { type = "text", choices = ["a"], default = "b" }\n', "default: expected one of 'a', got 'b'"),
        ('[types.ok]\nrun = ["x"]\n[types.ok.params]\nlr = { type = "json", default = 2020-01-01 }\n', "default: expected a value of JSON"),
        ('[types.ok]\nrun = ["x"]\n[types.ok.params]\n"" = { type = "int" }\n', "a parameter needs a name"),
    ],
)  # fmt: skip
def test_a_type_that_cannot_be_used_is_refused(types, text, said):
    """A broken type exits 6 with file, line, key, what was expected and the nearest known key."""
    with pytest.raises(BadSettings) as error:
        types(text)
    assert said in error.value.message
    assert error.value.message.isprintable()


def test_an_unknown_type_is_named_with_the_known_ones(tmp_path):
    """Q05: an unknown type is refused, named in the message, together with the known types."""
    (tmp_path / "trainq.toml").write_text('[types.ok]\nrun = ["x"]\n[types.slow]\nrun = ["x"]\n')
    settings = load(str(tmp_path), environ={})
    assert find_type(settings, "slow").name == "slow"
    with pytest.raises(UnknownType, match="no such type: 'nope'; known: ok, slow") as error:
        find_type(settings, "nope")
    assert error.value.exit == 2
    with pytest.raises(UnknownType, match="known: none; make one"):
        find_type(load(None, environ={}), "nope")


def test_the_sample_type_is_a_type(types):
    """The commented type that init writes works when its lines are uncommented."""
    wine = types("".join(line.removeprefix("#") for line in sample().splitlines(keepends=True)))["wine"]
    assert wine.run == ("python", "train_wine.py")
    assert wine.params["alpha"].default == 0.5
