"""The environment of a job: what passes, what stays behind, and what is kept out of the database."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainq.base.errors import BadValue
from trainq.domain.environment import filter_environment, is_removed, is_secret, restored


@pytest.mark.parametrize(
    "name",
    ["KEY", "API_KEY", "AWS_SECRET_ACCESS_KEY", "HF_TOKEN", "TOKENS", "GITHUB_TOKENS", "PGPASSWORD_PASSWORD", "DB_PASSWD",
     "DB_PASSWDS", "GOOGLE_CREDENTIALS", "HTTP_AUTH", "AUTHS", "api_key", "My_Secrets_2", "_KEY_", "PASSWORDS"],
)  # fmt: skip
def test_secret_looking_names(name):
    """E02: one of the `_`-separated words is KEY, TOKEN, SECRET, PASSWORD, PASSWD, CREDENTIALS, AUTH or a plural."""
    assert is_secret(name)


@pytest.mark.parametrize(
    "name",
    [
        "TOKENIZERS_PARALLELISM",
        "KEYBOARD",
        "MONKEY",
        "AUTHOR",
        "XAUTHORITY",
        "PASS",
        "PATH",
        "",
        "_",
        "PGPASSFILE",
        "KEY-FILE",
    ],
)
def test_names_that_only_contain_such_a_word(name):
    """E02: a part of a word is no word; so TOKENIZERS_PARALLELISM passes."""
    assert not is_secret(name)


def test_the_environment_is_that_of_the_submit():
    """E02: what belongs to the submit's place stays behind in silence, secrets are named."""
    env = {
        "PATH": "/bin", "HOME": "/h", "EMPTY": "", "HF_TOKEN": "t", "API_KEY": "k", "CUDA_VISIBLE_DEVICES": "0",
        "CUDA_DEVICE_ORDER": "x", "TRAINQ_ROOT": "r", "SLURM_JOB_ID": "1", "SSH_AUTH_SOCK": "s", "DISPLAY": ":0",
        "TMPDIR": "/t", "XDG_RUNTIME_DIR": "/r", "CUDA_HOME": "/c", "TRAINQ": "stays", "XDG_DATA_HOME": "/d",
    }  # fmt: skip
    got = filter_environment(env, set(), {})
    assert got.plain == {
        "PATH": "/bin",
        "HOME": "/h",
        "EMPTY": "",
        "CUDA_HOME": "/c",
        "TRAINQ": "stays",
        "XDG_DATA_HOME": "/d",
    }
    assert got.private == {}
    assert got.dropped == ("API_KEY", "HF_TOKEN")
    assert is_removed("SSH_AUTH_SOCK")


def test_what_is_asked_for_passes_in_private():
    """E02: `--env-keep` values and secret-named `--env` values are apart, so that no database sees them."""
    env = {"HF_TOKEN": "t", "API_KEY": "k", "SSH_AUTH_SOCK": "s", "A": "a", "B": "b"}
    got = filter_environment(env, {"HF_TOKEN", "SSH_AUTH_SOCK", "B"}, {"DB_PASSWORD": "p", "A": "new", "B": "newer"})
    assert got.plain == {"A": "new"}
    assert got.private == {"HF_TOKEN": "t", "SSH_AUTH_SOCK": "s", "B": "newer", "DB_PASSWORD": "p"}
    assert got.dropped == ("API_KEY",)
    assert got.kept == ("B", "HF_TOKEN", "SSH_AUTH_SOCK")
    assert filter_environment({"API_KEY": "k"}, set(), {"API_KEY": "x"}).dropped == ()


def test_a_kept_name_that_is_not_set_is_refused():
    """E02: a missing token is found at submit, not after hours of waiting."""
    with pytest.raises(BadValue, match="--env-keep HF_TOKEN: not set here"):
        filter_environment({}, ["HF_TOKEN"], {})


@pytest.mark.parametrize(
    ("name", "value"),
    [("", "x"), ("A=B", "x"), ("A\0", "x"), ("A", "x\0"), ("TRAINQ_SEED", "1"), ("TRAINQ_\n\udcff", "1")],
)
def test_what_no_job_can_have_is_refused(name, value):
    """Names and values no environment holds, and trainq's own names, are refused in one line."""
    with pytest.raises(BadValue) as error:
        filter_environment({}, set(), {name: value})
    assert error.value.message.isprintable()
    with pytest.raises(BadValue):
        filter_environment({"A": ""}, {name if name != "A" else "B"}, {})


@given(st.dictionaries(st.binary(min_size=1), st.binary()))
def test_bytes_come_through(env):
    """E02: names and values of any bytes pass, and no secret is ever among the plain ones."""
    got = filter_environment(env, set(), {})
    for name, value in got.plain.items():
        assert env[name.encode("utf-8", "surrogateescape")] == value.encode("utf-8", "surrogateescape")
        assert not is_secret(name)
    assert len(got.plain) + len(got.dropped) == sum(
        not is_removed(name.decode("utf-8", "surrogateescape")) for name in env
    )


def test_a_worker_gives_its_own_values_of_what_was_left_out():
    """E02: only names the submit left out, and only if the worker has them."""
    assert restored({"HF_TOKEN": "w", "API_KEY": "w", "A": "w"}, ("HF_TOKEN", "OTHER_KEY")) == {"HF_TOKEN": "w"}
