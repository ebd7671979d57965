"""Every block of the README does what the README says it does."""

from __future__ import annotations

import configparser
import csv
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tomllib

import pytest
import readme

import trainq

pytestmark = pytest.mark.timeout(300)
PACKAGE_PARENT = os.path.dirname(os.path.dirname(os.path.abspath(trainq.__file__)))
RUN = [section for section in dict.fromkeys(block.section for block in readme.blocks()) if section != readme.INSTALL]
MARK = "\x1e"


class Reader:
    """Somebody who reads a section from top to bottom and types all of it, in a home of their own."""

    def __init__(self, home: str) -> None:
        self.home = self.cwd = home
        self.bin = os.path.join(home, "bin")
        os.mkdir(self.bin)
        self._program("python", f'exec {shlex.quote(sys.executable)} "$@"')
        self._program("python3", f'exec {shlex.quote(sys.executable)} "$@"')
        self._program("trainq", f'exec {shlex.quote(sys.executable)} -m trainq "$@"')
        # The files of the section "All the time" name the command in a checkout.
        os.makedirs(os.path.join(home, "trainq", ".venv"))
        os.symlink(self.bin, os.path.join(home, "trainq", ".venv", "bin"))
        kept = {
            name: value for name, value in os.environ.items() if not name.startswith(("TRAINQ_", "PYTEST_", "XDG_"))
        }
        self.env = {
            **kept,
            "HOME": home,
            "PATH": f"{self.bin}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": PACKAGE_PARENT,
            "NO_COLOR": "1",
            "LC_ALL": "C.UTF-8",
        }

    def _program(self, name: str, line: str) -> None:
        path = os.path.join(self.bin, name)
        with open(path, "w") as file:
            file.write(f"#!/bin/sh\n{line}\n")
        os.chmod(path, 0o755)

    def put(self, block: readme.Block) -> str:
        """Write a block to the file it names; a TOML block goes to the end of it."""
        path = os.path.join(self.cwd, block.file)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "a" if block.kind == "toml" else "w", encoding="utf-8") as file:
            file.write(block.text)
        return path

    def type(self, block: readme.Block) -> None:
        """Type the commands of a block into one shell; each must answer as written and exit 0."""
        commands = block.commands()
        script = [f"{command.line}\nprintf '{MARK}%s{MARK}' $?" for command in commands]
        done = self.shell("\n".join(["exec 2>&1", *script, "wait", f"printf '%s{MARK}' \"$PWD\""]))
        outputs, codes = done.split(MARK)[0:-1:2], done.split(MARK)[1:-1:2]
        assert len(codes) == len(commands), f"README line {block.number}: the shell ended early:\n{done}"
        for command, output, code in zip(commands, outputs, codes, strict=False):
            said = f"README line {block.number}: $ {command.line}\n{output}(exit {code})"
            assert code == "0", said
            if command.expected:
                seen = "".join(f"{' '.join(line.split())}\n" for line in output.splitlines())
                assert re.fullmatch(readme.pattern(command.expected), seen), said
        self.cwd = outputs[-1]

    def shell(self, script: str) -> str:
        """What a script of bash writes; whatever it left running is ended."""
        process = subprocess.Popen(
            ["bash", "-c", script], cwd=self.cwd, env=self.env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            text=True, start_new_session=True,
        )  # fmt: skip
        try:
            return process.communicate(timeout=200)[0]
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


@pytest.mark.parametrize("section", RUN)
def test_readme_section_typed_from_top_to_bottom_works(section, tmp_path):
    """A newcomer with nothing but the README gets what it promises, block by block."""
    reader = Reader(str(tmp_path))
    for block in (block for block in readme.blocks() if block.section == section):
        if block.kind == "console":
            reader.type(block)
        elif block.kind == "ini":
            check_unit(reader, reader.put(block))
        elif block.kind == "cron":
            check_crontab(reader, block.text)
        else:
            check_syntax(block)
            reader.put(block)


def check_syntax(block):
    assert block.file, f"README line {block.number}: this block names no file"
    if block.kind == "toml":
        tomllib.loads(block.text)
    elif block.kind == "python":
        compile(block.text, block.file, "exec")
    elif block.kind == "json":
        assert [json.loads(line) for line in block.text.splitlines()]
    elif block.kind == "csv":
        assert len({len(row) for row in csv.reader(block.text.splitlines())}) == 1
    elif block.kind == "sh":
        subprocess.run(["sh", "-n"], input=block.text, text=True, check=True)
    else:
        pytest.fail(f"README line {block.number}: nothing tests a block of kind {block.kind!r}")


def check_unit(reader, path):
    """The unit of systemd is one, stops later than the grace, and its command is a worker that runs."""
    unit = configparser.ConfigParser(interpolation=None, delimiters="=", strict=True)
    unit.optionxform = str
    unit.read(path, encoding="utf-8")
    assert set(unit.sections()) == {"Unit", "Service", "Install"}
    assert float(unit["Service"]["TimeoutStopSec"]) > 30
    assert unit["Service"]["KillMode"] == "mixed"
    line = unit["Service"]["ExecStart"].replace("%h", reader.home)
    assert "worker" in shlex.split(line)
    said = reader.shell(f"trainq init ~/.trainq && {line} --once 2>&1; echo exit $?")
    assert said.endswith("exit 0\n"), said
    if shutil.which("systemd-analyze"):
        seen = subprocess.run(
            ["systemd-analyze", "--user", "verify", path], env={**reader.env, "XDG_RUNTIME_DIR": reader.home},
            capture_output=True, text=True,
        )  # fmt: skip
        about_it = [said for said in seen.stderr.splitlines() if "trainq-worker.service" in said]
        assert not about_it, about_it


def check_crontab(reader, text):
    """A line of the crontab has five fields and a command of sh that works."""
    for line in text.splitlines():
        *when, command = line.split(None, 5)
        assert len(when) == 5, line
        assert all(re.fullmatch(r"(\*|\d+)(/\d+)?", field) for field in when), line
        assert "%" not in command, "cron takes % for the end of the line"
        said = reader.shell(f"trainq init ~/.trainq >/dev/null; env -i HOME={reader.home} PYTHONPATH={PACKAGE_PARENT} "
                            f"/bin/sh -c {shlex.quote(command)} 2>&1; echo exit $?")  # fmt: skip
        assert said == "exit 0\n", said


def test_trainers_of_the_readme_are_those_of_the_package():
    """The block to copy is the same as what `trainq demo` uses."""
    from trainq.trainers import types_toml

    block = next(block for block in readme.blocks() if "[types.wine]" in block.text)
    assert tomllib.loads(block.text) == tomllib.loads(types_toml())


def test_install_lines_name_what_there_is():
    """Two lines, each makes the environment, installs a declared extra, and runs something of it."""
    with open(os.path.join(readme.REPOSITORY, "pyproject.toml"), "rb") as file:
        extras = tomllib.load(file)["project"]["optional-dependencies"]
    lines = readme.install_lines()
    assert len(lines) == 2
    for line, extra, program in zip(lines, ("demo", "test"), ("trainq", "pytest"), strict=True):
        subprocess.run(["bash", "-n", "-c", line], check=True)
        venv, pip, run = [shlex.split(step) for step in line.split(" && ")]
        assert venv == ["python3", "-m", "venv", ".venv"]
        assert pip == [".venv/bin/pip", "install", f".[{extra}]"]
        assert extra in extras
        assert run[0] == f".venv/bin/{program}"


@pytest.mark.skipif("TRAINQ_TEST_INSTALL" not in os.environ, reason="TRAINQ_TEST_INSTALL=CHECKOUT installs from there")
@pytest.mark.timeout(600)
def test_first_line_sets_up_a_bare_machine_and_trains(tmp_path):
    """The first line of the README, as it stands, in a fresh copy of the checkout: models come out."""
    copy = str(tmp_path / "checkout")
    away = shutil.ignore_patterns(".git", ".venv", ".*_cache", ".hypothesis", "__pycache__")
    shutil.copytree(os.environ["TRAINQ_TEST_INSTALL"], copy, ignore=away)
    env = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("TRAINQ_", "VIRTUAL_ENV", "PYTHONPATH"))
    }
    done = subprocess.run(
        ["bash", "-c", readme.install_lines()[0]], cwd=copy, env={**env, "HOME": str(tmp_path)}, stdin=subprocess.DEVNULL,
        capture_output=True, text=True, timeout=500,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    for model in ("wine", "diabetes", "en"):
        assert re.search(rf"\b{model}\b", done.stdout), done.stdout
