"""What this version does not have is refused, or said, and never passed over in silence."""

from __future__ import annotations

import os

import pytest

from trainq.base.setting_rows import NOT_USED, ROWS

URL = "postgresql://me:geheim@host/db"


@pytest.mark.parametrize("words", [("status",), ("submit", "--", "true"), ("worker", "--once"), ("prune",), ("init",)])
@pytest.mark.parametrize("name", ["TRAINQ_URL", "TRAINQ_STORE_URL"])
def test_a_server_in_a_variable_is_refused(run_trainq, tmp_path, words, name):
    """Exit 6, one line and a hint, no password; nothing is put into the local queue instead."""
    where = ("init", str(tmp_path / "other")) if words == ("init",) else words
    done = run_trainq(*where, **{name: URL})
    assert (done.code, done.out) == (6, ""), done
    assert "not supported by this version" in done.err
    assert "geheim" not in done.err
    assert len(done.err.splitlines()) == 2
    assert not os.path.exists(tmp_path / "other")


def test_a_server_in_the_file_is_refused(run_trainq):
    """As in a variable; doctor, too, calls the queue unusable and shows no password."""
    with open(os.path.join(run_trainq.root, "trainq.toml"), "a", encoding="utf-8") as file:
        file.write(f'\n[store]\nurl = "{URL}"\n')
    done = run_trainq("status")
    assert (done.code, done.out) == (6, ""), done
    assert "[store] url" in done.err
    assert "trainq.toml" in done.err
    sick = run_trainq("doctor")
    assert sick.code == 6
    assert "geheim" not in done.err + sick.out + sick.err


def test_gpus_of_a_type_are_refused_at_submit(run_trainq):
    """Q08: a type that asks for GPUs is not run without them; 0 is fine."""
    with open(os.path.join(run_trainq.root, "trainq.toml"), "a", encoding="utf-8") as file:
        file.write('\n[types.big]\nrun = ["true"]\ngpus = 1\n[types.small]\nrun = ["true"]\ngpus = 0\n')
    done = run_trainq("submit", "big")
    assert done.code == 2, done
    assert "gpus = 1 is not supported by this version" in done.err
    assert run_trainq.ok("submit", "small").ids == [1]


def test_doctor_says_what_nothing_goes_by(run_trainq):
    """Marked in the list of settings, and a warning when one is set."""
    assert {f"{row.section}.{row.name}" for row in ROWS} >= NOT_USED
    settings = {one["name"]: one["used"] for one in run_trainq("doctor", "--json").json["settings"]}
    assert {name for name, used in settings.items() if not used} == NOT_USED
    assert not [one for one in run_trainq("doctor", "--json").json["checks"] if "not used" in one["message"]]
    sick = run_trainq("doctor", "--json", TRAINQ_QUEUES_FAIR="true")
    assert sick.code == 1
    said = [one["message"] for one in sick.json["checks"] if one["state"] == "warning" and one["name"] == "settings"]
    assert said == ["queues.fair is set and not used yet"]
    assert "not used yet" in run_trainq("doctor", "--all").out
