"""What this version does not have is refused, or said, and never passed over in silence."""

from __future__ import annotations

import os

import pytest

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
