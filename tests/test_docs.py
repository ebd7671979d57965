"""What the README lists is what the program has: commands, exit codes, settings, variables, job states; no more, no less."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import pytest
import readme

import trainq
from trainq.base import errors
from trainq.base.setting_rows import ROWS, spelled
from trainq.cli.commands import COMMANDS, root
from trainq.domain.states import STATES

PACKAGE = os.path.dirname(os.path.abspath(trainq.__file__))
OURS = {name: value for name, value in os.environ.items() if not name.startswith("TRAINQ_")}
ENV = {**OURS, "PYTHONPATH": os.path.dirname(PACKAGE), "NO_COLOR": "1", "COLUMNS": "80"}


def classes() -> list[type[errors.TrainqError]]:
    return [each for each in vars(errors).values() if isinstance(each, type) and issubclass(each, errors.TrainqError)]


def call(*words: str, **how) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "trainq", *words],
        capture_output=True,
        text=True,
        env=ENV,
        stdin=subprocess.DEVNULL,
        **how,
    )


def test_every_error_has_a_word_and_an_exit_status_of_the_readme():
    """One class is one word and one exit status that people can look up."""
    codes = {int(code) for code in readme.table("code")}
    found = classes()
    assert len(found) > 10
    for each in found:
        assert each.exit in codes, each
        assert re.fullmatch(r"[a-z]+(_[a-z]+)*", each.word), each
        assert (each.__doc__ or "").strip(), each
    words = [each.word for each in found]
    assert len(set(words)) == len(words), "two errors share a word"


def test_every_exit_status_of_the_readme_is_used():
    """No code is promised that nothing gives: what is no error is the end of a command or a signal."""
    ends = {0, 1, 7, 130, 143}  # done; not done; some of several; the two signals
    assert {int(code) for code in readme.table("code")} == ends | {each.exit for each in classes()}


def test_readme_lists_every_command():
    """The table of commands has a row for each one, in the order of the help."""
    listed = [re.match(r"`(\w+)", cell)[1] for cell in readme.table("command")]
    assert listed == list(COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_command_has_help_that_says_what_it_does(name):
    """`-h` of every command exits 0, tells what it is for in words, and explains each option."""
    done = call(name, "-h")
    assert (done.returncode, done.stderr) == (0, "")
    usage, about, *_ = done.stdout.split("\n\n")
    assert usage.startswith(f"Usage: trainq {name} [OPTIONS]")
    assert len(about.split()) > 3
    for param in root().get_command(None, name).params:
        if param.param_type_name == "option" and not param.hidden:
            assert (param.help or "").strip(), f"trainq {name}: {param.opts[0]} is not explained"


def test_options_of_the_readme_are_options_of_their_commands():
    """Every `--option` of a `trainq` line in the README, in blocks and in the text, is one that the command takes."""
    lines = [command.line for block in readme.blocks() if block.kind == "console" for command in block.commands()]
    lines += re.findall(r"`trainq ([^`]*)`", readme.text())
    known = {name: {opt for param in root().get_command(None, name).params for opt in param.opts} for name in COMMANDS}
    seen = 0
    for line in lines:
        for part in re.split(r"[|;&]|\$\(", line.split(" -- ")[0]):
            words = part.split()
            name = next((word for word in words if word in known), None)
            for option in (word for word in words if re.fullmatch(r"--[a-z-]+", word)) if name else ():
                assert option in known[name], f"{part}: no {option}"
                seen += 1
    assert seen > 10


def test_options_named_alone_in_the_readme_exist():
    """Every option that the text speaks of is one of some command."""
    known = {opt for name in COMMANDS for param in root().get_command(None, name).params for opt in param.opts}
    spoken = {
        option for code in re.findall(r"`([^`\n]+)`", readme.text()) for option in re.findall(r"(?<!\S)--[a-z-]+", code)
    }
    assert spoken - {"--user", "--now"} <= known, spoken - known


def test_readme_lists_every_setting_with_its_default():
    """The table and the list of what has no effect yet are all the settings there are."""
    listed = {name.strip("`"): default.strip("`") for name, (default, _) in readme.table("setting").items()}
    later = re.search(r"not there yet:(.*?)\n\n", readme.text(), re.DOTALL)[1]
    names = {f"{row.section}.{row.name}": row for row in ROWS}
    without_effect = {name for name in names if f"`{name}`" in later}
    assert listed.keys() | without_effect == names.keys()
    assert not listed.keys() & without_effect
    for name, default in listed.items():
        value = spelled(names[name], names[name].default)
        assert default == (value if isinstance(value, str) else json.dumps(value)), name


def test_readme_names_every_state():
    """The words a user meets in `status`."""
    sentence = re.search(r"A state is one word:(.*?)\. ", readme.text(), re.DOTALL)[1]
    assert set(re.findall(r"`(\w+)`", sentence)) == set(STATES)


def test_readme_lists_the_variables_a_job_gets(tmp_path):
    """The TRAINQ_ variables in the second attempt of a real job that has saved a checkpoint, of a type, with parameters, two
    training sets and a time limit."""
    (tmp_path / "root").mkdir()
    where = ("--root", str(tmp_path / "root"))
    assert call(*where, "init").returncode == 0
    code = """
import os
from trainq import job
if job.attempt == 1:
    job.checkpoint.save(b"1", step=1, strict=True)
    raise SystemExit(75)
print('\\n'.join(n for n in os.environ if n.startswith('TRAINQ_')))
"""
    run = json.dumps([sys.executable, "-c", code])
    (tmp_path / "root" / "trainq.toml").write_text(
        f'[types.env]\nrun = {run}\n[types.env.params]\nalpha = {{ type = "float", default = 0.5 }}\n'
    )
    for name in ("a", "b"):
        (tmp_path / name).write_text("1")
    asked = ("submit", "env", "--data", "a", "--data", "test=b", "--time", "1h", "--array", "3")
    done = call(*where, *asked, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert call(*where, "worker", "--until", "idle").returncode == 0
    seen = set(call(*where, "logs", "1[3]").stdout.split())
    listed = {name for cell in readme.table("variable") for name in re.findall(r"`(TRAINQ_[A-Z_<>]+)`", cell)}
    plain = {name for name in listed if "<" not in name}
    assert seen == plain | {"TRAINQ_PARAM_ALPHA", "TRAINQ_DATA_TEST"}


def test_readme_leads_to_files_that_are_there():
    """Every link into the repository has a file at its end."""
    links = [link for link in re.findall(r"\]\(([^)]+)\)", readme.text()) if not link.startswith("https://")]
    assert links
    for link in links:
        where = os.path.join(PACKAGE, link.removeprefix("trainq/")) if link.startswith("trainq/") else link
        assert os.path.isfile(os.path.join(readme.REPOSITORY, where)), link


def test_design_is_part_of_the_package():
    """DESIGN.md tells what must stay true and what is not promised."""
    with open(os.path.join(PACKAGE, "DESIGN.md"), encoding="utf-8") as file:
        text = file.read()
    for heading in ("must stay true", "Not promised"):
        assert re.search(rf"^## .*{heading}", text, re.MULTILINE | re.IGNORECASE), heading


def test_changelog_speaks_of_this_version():
    """The newest entry of the changelog is the version of the package."""
    with open(os.path.join(readme.REPOSITORY, "CHANGELOG.md"), encoding="utf-8") as file:
        newest = re.search(r"^## \[([^]]+)\] - (unreleased|\d{4}-\d\d-\d\d)$", file.read(), re.MULTILINE)
    assert newest is not None
    assert newest[1] == trainq.__version__


def test_ci_runs_the_line_of_the_readme():
    """`.ci/run` takes the test command out of the README: there is just one line for it to find."""
    with open(os.path.join(readme.REPOSITORY, ".ci", "run"), encoding="utf-8") as file:
        expression = re.search(r"sed -n \"s/(.*)/\\\\1/p\"", file.read())[1]
    found = subprocess.run(
        ["bash", "-c", f'sed -n "s/{expression}/\\\\1/p" README.md'], cwd=readme.REPOSITORY, capture_output=True, text=True,
        check=True,
    ).stdout.splitlines()  # fmt: skip
    assert found == [readme.install_lines()[1]]
