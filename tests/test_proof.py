"""The digest that proves a job: the same at the submit and at the claim, and another one for anything else."""

from __future__ import annotations

import json
import os

import pytest
import store_builders as build

from trainq.artifacts import proofs
from trainq.artifacts.paths import Paths
from trainq.base.errors import Denied
from trainq.domain import proof
from trainq.domain.job import Outcome
from trainq.store import claims, jobs

SPEC = {
    "cwd": "/",
    "argv": ["a", "\udcff", "ü"],
    "params": {"x": 1e-7, "y": float("inf"), "z": 10**20},
    "mem": 5,
    "retry_grow": 2.0,
}
FULL = {
    "spec": SPEC, "type": "wine", "key": "k", "fingerprint": "f", "model_key": "m", "time_s": 7200, "grace_s": 1, "retries": 3,
    "data": (build.data_set(b"1", "b"), build.data_set(b"2", "a")),
}  # fmt: skip


@pytest.fixture
def session(tmp_path):
    session = build.place(tmp_path).session()
    yield session
    session.close()


def test_a_claimed_job_has_the_digest_of_its_submit(session):
    """E18: nothing that SQLite, JSON or the order of rows does makes it another one; the jobs of a call differ."""
    some = [build.new_job(**FULL), build.new_job(**FULL), build.new_job()]
    call = build.submission(environ='{"env":{"A":"\\udc80"},"dropped":[]}')
    with session.writing() as tx:
        jobs.submit(tx, call, some)
    wanted = list(proof.of_submission(call, some))
    assert len(set(wanted)) == 3
    assert [proof.of_claimed(build.take(session)) for _ in some] == wanted
    with session.reading() as tx:
        assert [proof.of_claimed(claims.as_claimed(tx, number)) for number in (1, 2, 3)] == wanted


def test_what_an_attempt_that_ran_out_of_memory_changes_is_not_in_it(session):
    """Its document asks for more memory then, and is still that of the submit."""
    spec = {**SPEC, "retry_on": ["oom"], "backoff_s": 0}
    build.put(session, build.new_job(**{**FULL, "spec": spec}))
    claimed = build.take(session)
    before = proof.of_claimed(claimed)
    build.settle(session, claimed.claim, Outcome("oom", error="full"))
    with session.reading() as tx:
        after = claims.as_claimed(tx, 1)
    assert after.spec["mem"] == 10
    assert proof.of_claimed(after) == before


@pytest.mark.parametrize("name", [name for name in FULL if name not in ("key", "retries")])
def test_each_thing_that_is_executed_or_accounted_is_in_it(name):
    """E18: another value, another digest."""
    call = build.submission()
    other = {"spec": {**SPEC, "cwd": "/tmp"}, "data": (build.data_set(b"3", "b"),)}.get(name, 5)
    (one,), (two,) = (proof.of_submission(call, [build.new_job(**each)]) for each in (FULL, {**FULL, name: other}))
    assert one != two


def test_a_spec_file_tells_of_its_jobs_by_their_places(tmp_path):
    """What was written is read; of any other place, and of a file that others may write, nothing is."""
    paths = Paths(str(tmp_path))
    os.mkdir(paths.specs)
    digests = [f"{n:064x}" for n in range(3)]
    proofs.write(paths, "0abc", digests)
    assert [proofs.read(paths, f"0abc.{n}") for n in range(3)] == [(os.geteuid(), (digest,)) for digest in digests]
    assert proofs.kept(paths) == ["0abc"]
    for uid in (f"0abc.{2**62}", f"0abc.{2**55}", f"0abc.{'9' * 5000}", f"{'9' * 200}.0"):
        with pytest.raises(Denied):
            proofs.read(paths, uid)
    for uid in ("0abc.3", "0abc.-1", "0abc.-2", "0abc.", "0abc.x", "0abd.0", "../0abc.0", ".0", json.dumps("x")):
        with pytest.raises(Denied):
            proofs.read(paths, uid)
    os.chmod(paths.spec("0abc"), 0o620)
    with pytest.raises(Denied):
        proofs.read(paths, "0abc.0")
    assert [proofs.drop(paths, "0abc"), proofs.drop(paths, "0abc")] == [True, False]


@pytest.mark.parametrize(
    "make", [os.mkdir, os.mkfifo, lambda path: os.symlink("x", path), lambda path: open(path, "w").close()]
)
def test_what_is_no_spec_file_proves_nothing(tmp_path, make):
    """A directory, a pipe, a link, an empty file: refused, and nobody waits."""
    paths = Paths(str(tmp_path))
    os.mkdir(paths.specs)
    make(paths.spec("0abc"))
    with pytest.raises(Denied):
        proofs.read(paths, "0abc.0")
