"""Settings: where each comes from, and that nothing wrong passes in silence."""

from __future__ import annotations

import os
import subprocess
import sys
import typing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainq.base import settings as module
from trainq.base.errors import BadSettings, BadValue, Unwritable
from trainq.base.setting_rows import ROWS, SECTIONS, sample
from trainq.base.settings import load
from trainq.base.toml import line_of


@pytest.fixture
def write(tmp_path):
    """Writes trainq.toml and gives its root."""

    def write(text):
        data = text if isinstance(text, bytes) else text.encode()
        (tmp_path / "trainq.toml").write_bytes(data)
        return str(tmp_path)

    return write


def refused(root, environ=None):
    with pytest.raises(BadSettings) as error:
        load(root, environ=environ or {})
    assert error.value.exit == 6
    assert error.value.message.isprintable()
    return error.value.message


def test_without_a_file_the_defaults_hold(tmp_path):
    """The values of CLI.md are the defaults; no file is needed for them."""
    for root in (None, str(tmp_path), str(tmp_path / "nowhere")):
        got = load(root, environ={})
        assert got.times.heartbeat == 10
        assert got.times.zombie_after == 300
        assert got.keep.models == 3
        assert got.keep.jobs == 3600
        assert got.worker.slots == 2
        assert got.queues.names == ("default",)
        assert got.limits.gpus == {}
        assert got.type_tables == {}
        assert {origin for _, _, origin in got.rows()} == {"default"}


def test_every_row_has_its_attribute():
    """The annotated sections and the table of rows name the same settings."""
    named = {section: set(typing.get_type_hints(getattr(module, section.capitalize()))) for section in SECTIONS}
    assert named == {section: {row.name for row in ROWS if row.section == section} for section in SECTIONS}


def test_settings_do_not_change():
    """A section is a value: nobody turns a knob behind the others' backs."""
    got = load(None, environ={})
    with pytest.raises(AttributeError):
        got.times.grace = 1


def test_the_file_is_read(write):
    """Each kind of setting from trainq.toml, with its origin."""
    root = write(
        'limits.gpus = { a100 = 8, k80 = 0 }\n[times]\ngrace = "1h30m"\n[keep]\nmodels = 0\n'
        '[limits]\nper_user = { gpus = 4 }\n[worker]\nforeign_gpus = "ignore"\n'
        '[queues]\nnames = ["gpu", "größe"]\nfair = true\n'.replace("limits.gpus", "#limits.gpus")
    )
    got = load(root, environ={})
    assert got.times.grace == 5400
    assert got.keep.models == 0
    assert got.limits.per_user == {"gpus": 4}
    assert got.worker.foreign_gpus == "ignore"
    assert got.queues.names == ("default", "gpu", "größe")
    assert got.queues.fair is True
    rows = {name: (value, origin) for name, value, origin in got.rows()}
    assert rows["times.grace"] == ("90m", "file")
    assert rows["times.poll"] == ("1s", "default")


def test_flag_beats_variable_beats_file(write):
    """flag > TRAINQ_<SECTION>_<NAME> > trainq.toml > default, each shown with its origin."""
    root = write('[worker]\nslots = 3\n[times]\npoll = "3s"\ngrace = "3s"\n')
    environ = {"TRAINQ_WORKER_SLOTS": "4", "TRAINQ_TIMES_POLL": "4s", "TRAINQ_ROOT": "x", "OTHER": "y"}
    got = load(root, environ=environ, flags={"worker.slots": 5})
    assert (got.worker.slots, got.times.poll, got.times.grace) == (5, 4, 3)
    origin = {name: origin for name, _, origin in got.rows()}
    assert (origin["worker.slots"], origin["times.poll"], origin["times.grace"]) == ("flag", "env", "file")
    assert load(root, environ={}, flags={"times.grace": "9s"}).times.grace == 9
    with pytest.raises(BadValue, match="--slots: expected a whole number"):
        load(root, environ={}, flags={"worker.slots": "many"})


def test_every_kind_has_a_spelling_as_variable():
    """Lists and tables in a variable: `a,b` and `a100=8,k80=0`."""
    got = load(
        None,
        environ={
            "TRAINQ_QUEUES_NAMES": "gpu,big",
            "TRAINQ_LIMITS_GPUS": "a100=8, k80=0",
            "TRAINQ_QUEUES_FAIR": "yes",
            "TRAINQ_QUEUES_STRICT_FIFO": "0",
            "TRAINQ_WORKER_FOREIGN_GPUS": "ignore",
        },
    )
    assert got.queues.names == ("default", "gpu", "big")
    assert got.limits.gpus == {"a100": 8, "k80": 0}
    assert (got.queues.fair, got.queues.strict_fifo) == (True, False)
    assert got.worker.foreign_gpus == "ignore"


def test_the_url_has_its_own_variable_and_never_shows_a_password():
    """TRAINQ_URL sets [store] url; rows() hides the password."""
    got = load(None, environ={"TRAINQ_URL": "postgresql://me:se:cr@et@host/db"})
    assert got.store.url == "postgresql://me:se:cr@et@host/db"
    assert got.rows()[0] == ("store.url", "postgresql://me:***@host/db", "env")
    assert load(None, environ={"TRAINQ_URL": "postgresql://me@host/db"}).rows()[0][1] == "postgresql://me@host/db"
    assert load(None, environ={"TRAINQ_URL": "a", "TRAINQ_STORE_URL": "b"}).store.url == "b"


def test_job_variables_are_no_settings():
    """A submit from inside a job sees TRAINQ_JOB_ID and its like, and does not stumble over them."""
    names = (
        "TRAINQ_ROOT TRAINQ_JOB_ID TRAINQ_JOB_UID TRAINQ_JOB_NAME TRAINQ_ATTEMPT TRAINQ_MAX_ATTEMPTS TRAINQ_TYPE "
        "TRAINQ_QUEUE TRAINQ_SEED TRAINQ_PARAMS TRAINQ_PARAM_X TRAINQ_DATA TRAINQ_DATA_X TRAINQ_MODEL_DIR "
        "TRAINQ_CHECKPOINT_DIR TRAINQ_RUN_DIR TRAINQ_RESUME TRAINQ_RESUME_REASON TRAINQ_SOCKET TRAINQ_ARRAY_ID "
        "TRAINQ_ARRAY_INDEX TRAINQ_ARRAY_COUNT TRAINQ_DEADLINE TRAINQ_GPUS TRAINQ_WORKER TRAINQ_HOST TRAINQ_STATE "
        "TRAINQ_REASON TRAINQ_EXIT_CODE"
    )
    assert load(None, environ=dict.fromkeys(names.split(), "1")).origins == {}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[times]\n\nheartbeat = \n", "trainq.toml: line 3, column 13: invalid value"),
        ("[times\n", "trainq.toml: line 1, column 7: expected ']'"),
        ('a = "', "trainq.toml: line 1, column 6: unterminated string"),
        ("x = [1,", "trainq.toml: line 1, column 8: invalid value"),
        ('[times]\npoll = "1s"\npoll = "2s"\n', "line 3, column 12: cannot overwrite a value"),
        (b'[times]\n# ok\nx = "\xff"\n', "trainq.toml: line 3, column 6: not UTF-8"),
        ("x = " + "[" * 100_000, "trainq.toml: nested too deep"),
        ("x = " + "9" * 5000, "trainq.toml: exceeds the limit"),
        ("[times]\x00", "trainq.toml: line 1"),
    ],
)  # fmt: skip
def test_broken_toml_names_line_and_column(write, text, said):
    """Broken TOML exits 6 with file, line and column."""
    assert said in refused(write(text))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('# x\n[times]\nzombi_after = "5m"\n', "trainq.toml: line 3: [times] zombi_after: unknown key; did you mean zombie_after?"),
        ('times.zombi_after = "5m"\n', "trainq.toml: line 1: [times] zombi_after: unknown key"),
        ('times = { poll = "1s",  zombi_after = "5m" }\n', "trainq.toml: line 1: [times] zombi_after: unknown key"),
        ("\n[time]\nx = 1\n", "trainq.toml: line 2: time: unknown key; did you mean times?"),
        ('zombie_after = "5m"\n', "trainq.toml: line 1: zombie_after: unknown key; write it under [times]"),
        ("qqqqqq = 1\n", "trainq.toml: line 1: qqqqqq: unknown key; known: keep, limits"),
        ("times = 5\n", "trainq.toml: line 1: times: expected a table [times], got 5"),
        ("[[times]]\n", "trainq.toml: line 1: times: expected a table [times], got [{}]"),
        ("[times]\npoll = 10\n", "line 2: [times] poll: duration '10' has no unit: write 10s"),
        ("[times]\npoll = 1.5\n", "line 2: [times] poll: duration '1.5' has no unit: write 1.5s"),
        ("[times]\npoll = nan\n", "line 2: [times] poll: not a duration"),
        ("[times]\npoll = true\n", 'line 2: [times] poll: expected a duration such as "1s", got True'),
        ('[times]\npoll = "0s"\n', "line 2: [times] poll: expected at least 0.01s"),
        ('[times]\npoll = "-1s"\n', "line 2: [times] poll: not a duration"),
        ("[keep]\nmodels = -1\n", "line 2: [keep] models: expected a number from 0 to 2147483647, got -1"),
        ("[keep]\nmodels = true\n", "[keep] models: expected a whole number, got True"),
        ('[keep]\nmodels = "3"\n', "[keep] models: expected a whole number, got '3'"),
        ("[keep]\nmodels = 99999999999999\n", "[keep] models: expected a number"),
        ("[limits]\nmax_attempts = 0\n", "[limits] max_attempts: expected a number from 1"),
        ("[queues]\nfair = 1\n", "[queues] fair: expected true or false, got 1"),
        ('[queues]\nnames = "gpu"\n', '[queues] names: expected a list such as ["default", "gpu"]'),
        ('[queues]\nnames = ["a b"]\n', "[queues] names: a queue's name is letters"),
        ('[queues]\nnames = ["-q"]\n', "[queues] names: a queue's name is letters"),
        ("[queues]\nnames = [\n  3,\n]\n", "line 2: [queues] names: a queue's name is letters"),
        ('[worker]\nforeign_gpus = "share"\n', "[worker] foreign_gpus: expected avoid or ignore, got 'share'"),
        ("[store]\nurl = 3\n", "[store] url: expected text, got 3"),
        ("[limits]\ngpus = 3\n", "[limits] gpus: expected a table such as { a100"),
        ("[limits]\ngpus = { a100 = -1 }\n", "[limits] gpus: 'a100': expected a number"),
        ("[limits]\nper_user = { gpu = 1 }\n", "[limits] per_user: unknown key 'gpu'; did you mean gpus?"),
        ('[limits]\n"a\\nb" = 1\n', "[limits] 'a\\nb': unknown key"),
    ],
)  # fmt: skip
def test_a_wrong_key_or_value_names_file_line_and_what_was_expected(write, text, said):
    """An unknown key exits 6 with file, line and the nearest known key; a wrong value says what was expected."""
    assert said in refused(write(text))


@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        ("TRAINQ_TIMES_ZOMBI_AFTER", "5m", "unknown setting; did you mean TRAINQ_TIMES_ZOMBIE_AFTER?"),
        ("TRAINQ_TIMES_POLL", "10", "TRAINQ_TIMES_POLL: duration '10' has no unit"),
        ("TRAINQ_TIMES_POLL", "", "TRAINQ_TIMES_POLL: not a duration"),
        (
            "TRAINQ_WORKER_SLOTS",
            "two\udcff\n",
            "TRAINQ_WORKER_SLOTS: expected a whole number, got 'two\\udcff\\n'",
        ),
        ("TRAINQ_WORKER_SLOTS", "9" * 6000, "TRAINQ_WORKER_SLOTS: expected"),
        ("TRAINQ_QUEUES_FAIR", "maybe", "TRAINQ_QUEUES_FAIR: expected true or false"),
        ("TRAINQ_LIMITS_GPUS", "a100", "TRAINQ_LIMITS_GPUS: 'a100': expected a whole number"),
        ("TRAINQ_KEEP_\udcff", "", "TRAINQ_KEEP_\\udcff: unknown setting"),
    ],
)
def test_a_wrong_variable_is_named(variable, value, said):
    """A variable of a known section with an unknown name, or a value that does not fit, exits 6."""
    assert said in refused(None, {variable: value})


@pytest.mark.parametrize(
    "text",
    [
        '[times]\nheartbeat = "4m"\n',
        '[times]\nholder_limit = "5m"\n',
        '[times]\nzombie_after = "4m"\n',
        '[times]\nheartbeat = "10m"\n',
    ],
)
def test_the_order_of_limits_holds(write, text):
    """heartbeat < holder_limit < zombie_after, else 6; equal is not less."""
    assert "[times] heartbeat (" in refused(write(text))


def test_fast_settings_hold(write):
    """The fast times of the feature checks are accepted."""
    root = write('[times]\nheartbeat = "0.5s"\nholder_limit = "2s"\nzombie_after = "4s"\npoll = "0.2s"\ngrace = "1s"\n')
    assert load(root, environ={}).times.heartbeat == 0.5


def test_a_file_that_cannot_be_read_is_named(tmp_path, write):
    """A directory, a pipe and a file without permission: one line each, no hanging."""
    (tmp_path / "a" / "trainq.toml").mkdir(parents=True)
    (tmp_path / "b").mkdir()
    os.mkfifo(tmp_path / "b" / "trainq.toml")
    assert "not a file" in refused(str(tmp_path / "a"))
    assert "not a file" in refused(str(tmp_path / "b"))
    if os.geteuid():
        os.chmod(os.path.join(write(""), "trainq.toml"), 0)
        with pytest.raises(Unwritable, match="cannot be read"):
            load(str(tmp_path), environ={})


def uncommented(text):
    return "".join(line.removeprefix("#") for line in text.splitlines(keepends=True))


def test_the_sample_loads_as_it_is_and_with_every_line_uncommented(write):
    """What init writes changes nothing; taking the `#` of every line away gives valid settings too."""
    assert load(write(sample()), environ={}).origins == {}
    got = load(write(uncommented(sample())), environ={})
    assert {name for name, _, origin in got.rows() if origin != "file"} == {"store.url"}
    fresh = {name: value for name, value, _ in load(None, environ={}).rows()}
    differ = {name for name, value, _ in got.rows() if fresh[name] != value}
    assert differ == {"queues.names", "limits.gpus", "limits.per_user"}
    assert got.type_tables["wine"]["run"] == ["python", "train_wine.py"]


def test_every_row_and_its_help_stand_in_the_sample():
    """A new setting is one row: the sample follows by itself."""
    for row in ROWS:
        is_used = f"{row.section}.{row.name}" != "store.url"
        assert (f"\n#{row.name} = " in sample()) == is_used
        assert (row.help in sample()) == is_used
    assert all(len(line) <= 110 for line in sample().splitlines())


def test_a_byte_order_mark_and_windows_line_ends_do_no_harm(write):
    """A file from another system's editor loads the same."""
    assert load(write(b'\xef\xbb\xbf[times]\r\npoll = "3s"\r\n'), environ={}).times.poll == 3
    assert load(write(b"\xef\xbb\xbf# only words\r\n"), environ={}).times.poll == 1


def test_no_file_costs_no_parser(write):
    """Without a file, or with comments only, tomllib is not imported; HOME may be unset."""
    code = "import sys; from trainq.base.settings import load; load(sys.argv[1]); print('tomllib' in sys.modules)"
    for text, loaded in (("", "False"), (sample(), "False"), ("[times]\n", "True")):
        done = subprocess.run(
            [sys.executable, "-c", code, write(text)], capture_output=True, text=True, check=True, env={}
        )
        assert done.stdout.strip() == loaded


TEXT = '''top = 1
[a]
x = 1
"y z" = """
x = 2
"""
b.c = 3
[types."wine.1".params]
alpha = { type = "float",
  default = 0.5 }
[[list]]
"\\u0041" = 1
'''


@pytest.mark.parametrize(
    ("path", "line"),
    [
        (("top",), 1), (("a",), 2), (("a", "x"), 3), (("a", "y z"), 4), (("a", "b", "c"), 7), (("a", "b"), 7),
        (("types", "wine.1", "params", "alpha"), 9), (("types", "wine.1", "params", "alpha", "default"), 9),
        (("types",), 8), (("types", "wine.1"), 8), (("list", "A"), 12), (("nowhere",), None), (("a", "none"), 2),
    ],
)  # fmt: skip
def test_the_line_of_a_key_is_found(path, line):
    """Dotted, quoted, nested and inline keys are found; what is not told apart is the innermost line around it."""
    assert line_of(TEXT, path) == line


@given(st.text() | st.text(alphabet="[]{}=\"'.#\n axtimesgrcpoln015"))
def test_no_text_ends_in_a_traceback(tmp_path_factory, text):
    """Whatever is in the file, it loads or is BadSettings in one line."""
    root = tmp_path_factory.getbasetemp()
    (root / "trainq.toml").write_bytes(text.encode("utf-8", "surrogatepass"))
    try:
        load(str(root), environ={})
    except BadSettings as error:
        printable = error.message.isprintable()
    else:
        printable = True
    assert printable
