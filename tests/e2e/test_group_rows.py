"""E18, a queue for a group: every member submits, runs, looks and cleans up, and nobody's worker runs what its owner has not
submitted, whatever a member writes into the rows. Two real users, whose umask leaves nothing to others."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import site
import sqlite3
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from e2e.kit import HOUSE, Tq, until

from trainq.base import hosts

pytestmark = pytest.mark.skipif(
    os.getuid() != 0 or not shutil.which("setpriv"), reason="other uids need root and setpriv"
)
GROUP, ANN, BOB = 65500, 65533, 65534


class Member(Tq):
    """The command as somebody else, with a home and a working directory of their own."""

    def __init__(self, directory: Path, root: str, user_id: int, groups: str = f"--groups={GROUP}") -> None:
        directory.mkdir(mode=0o755)
        super().__init__(directory)
        self.root = root
        self.user_id = user_id
        self.env["PYTHONDONTWRITEBYTECODE"] = "1"
        self.python_path = python_of_all()
        self.command = (self.python_path, *self.command[1:])
        self.env["PYTHONPATH"] = os.pathsep.join([HOUSE, *site.getsitepackages()])
        self.before = become(user_id, groups)
        for path in (self.dir, self.home):
            os.chown(path, user_id, user_id)
            os.chmod(path, 0o700)

    def __call__(self, *words, before=(), **how):
        return super().__call__(*words, before=(*self.before, *before), **how)

    def worker(self, *words, env=None, before=()):
        return super().worker(*words, env=env, before=(*self.before, *before))

    def python(self, code: str, *words: object) -> str:
        """What this user may do without trainq."""
        line = [*self.before, self.python_path, "-c", code, *map(str, words)]
        return subprocess.run(line, check=True, capture_output=True, text=True, env=self.env, cwd=self.dir).stdout

    def write(self, sql: str, *values: object) -> None:
        """Write into the rows, as every member can."""
        code = (
            "import json, sqlite3, sys\n"
            "db = sqlite3.connect(sys.argv[1], timeout=30)\n"
            "with db: db.execute(sys.argv[2], json.loads(sys.argv[3]))\n"
            "db.close()"
        )
        self.python(code, database(self.root), sql, json.dumps(values))


def become(user_id: int, groups: str) -> tuple[str, ...]:
    """What starts a program as this user, without any rights of root's, and with the narrowest umask."""
    rights = ("--inh-caps=-all", "sh", "-c", 'umask 077; exec "$@"', "-")
    return ("setpriv", f"--reuid={user_id}", f"--regid={user_id}", groups, *rights)


def python_of_all() -> str:
    """This interpreter, or where its home is shut for others the same one of the system."""
    line = (*become(BOB, "--clear-groups"), sys.executable, "-c", "")
    if not subprocess.run(line, check=False, capture_output=True).returncode:
        return sys.executable
    name = f"python{sys.version_info.major}.{sys.version_info.minor}"
    return shutil.which(name, path="/usr/local/bin:/usr/bin:/bin") or pytest.skip(
        "the interpreter is shut for other users"
    )


def database(root: str) -> str:
    return next(path for path in (f"{root}/queue.sqlite", f"{root}/shared.sqlite") if os.path.exists(path))


def mode(*path: object) -> str:
    return f"{stat.S_IMODE(os.lstat(os.path.join(*map(str, path))).st_mode):04o}"


def called(tq: Tq, job: int) -> str:
    """The uid of a job's submit call."""
    with contextlib.closing(sqlite3.connect(database(tq.root))) as db:
        sql = "SELECT s.uid FROM job j JOIN submission s ON s.id = j.submission_id WHERE j.id = ?"
        return str(db.execute(sql, (job,)).fetchone()[0])


def spec_file(tq: Tq, job: int) -> str:
    return os.path.join(tq.root, "specs", f"{called(tq, job)}.spec")


@pytest.fixture
def place():
    with tempfile.TemporaryDirectory() as directory:
        os.chmod(directory, 0o777)
        yield Path(directory)


@pytest.fixture(params=["--local", "--shared"])
def members(place, request):
    """Ann, whose queue it is, and Bob."""
    return make(place, request.param)


@pytest.fixture
def two(place):
    """The same on a queue for one host."""
    return make(place, "--local")


def make(place: Path, how: str) -> tuple[Member, Member]:
    root = str(place / "queue")
    ann, bob = Member(place / "ann", root, ANN), Member(place / "bob", root, BOB)
    made = ann.ok("init", how, "--group", GROUP, root, "--json", root=None).json
    assert (made["result"], made["group"]) == ("made", str(GROUP))
    return ann, bob


def refused(tq: Tq, job: int) -> str:
    """The error of a job that was not run, after a look at everything that must hold then."""
    card = tq.job(job)
    assert (card["state"], card["reason"], card["side"]) == ("errored", "poison", "system"), card
    assert card["attempt"]["pid"] is None
    error = card["result"]["error"]
    assert error in [row["message"] for row in tq.history(job)]
    sick = tq("doctor", "--json")
    assert sick.code == 1
    said = [
        check["message"] for check in sick.json["checks"] if (check["name"], check["state"]) == ("group", "warning")
    ]
    assert len(said) == 1
    assert said[0].startswith(f"job {job} is said to be that of ")
    return str(error)


# who may what ------------------------------------------------------------------------------------------------------


def test_modes_whatever_the_umask(members):
    """Directories are the group's and set-gid, what all write is 0660, what one has made others read; secrets are 0600."""
    ann, bob = members
    job = bob.submit("--model", "k", "--env-keep", "MY_TOKEN", "--", "sh", "-c",
                     'mkdir "$TRAINQ_MODEL_DIR/d"; echo m > "$TRAINQ_MODEL_DIR/d/model"; sleep 0.2; id -u',
                     env={"MY_TOKEN": "geheim"})  # fmt: skip
    secrets = [name for name in os.listdir(f"{bob.root}/specs") if name.endswith(".env")]
    assert [mode(bob.root, "specs", name) for name in secrets] == ["0600"]
    bob.ok("worker", "--once")
    assert mode(ann.root) == "2770"
    assert {mode(ann.root, name) for name in ("bell", "locks", "data")} == {"2770"}
    assert {mode(ann.root, name) for name in ("specs", "runs", "models", "models/.staging", "models/.aside")} == {
        "3770"
    }
    assert {mode(path) for path in (database(ann.root), f"{ann.root}/queue.lock", f"{ann.root}/bell/gen")} == {"0660"}
    assert mode(ann.root, "trainq.toml") == "0640"
    assert mode(spec_file(bob, job)) == "0640"
    assert {mode(ann.root, "runs", job, *more) for more in ((), ("1",), ("checkpoints",))} == {"2750"}
    assert mode(ann.root, "runs", job, "1", "log") == "0640"
    assert mode(ann.root, "models", "k") == "2770"
    os.rmdir(f"{ann.root}/models/.aside")
    ann.ok("init", "--group", GROUP, ann.root, root=None)
    assert mode(ann.root, "models/.aside") == "3770"
    assert {mode(ann.root, "models/k/@1", name) for name in ("", "d")} == {"2750"}
    assert {mode(ann.root, "models/k/@1", name) for name in ("manifest.json", "d/model")} == {"0640"}
    for path in (ann.root, *Path(ann.root).rglob("*")):
        assert os.lstat(path).st_gid == GROUP, path
    assert ann.python("import sys; print(open(sys.argv[1]).read())", f"{ann.root}/models/k/@1/d/model").strip() == "m"


def test_each_worker_runs_its_own_user_s_jobs(members):
    """E18: a worker takes its user's jobs alone, past any number of others' before them, and goes idle; with --user it
    runs those of that user, as itself. Looks, logs, waits and models are everybody's."""
    ann, bob = members
    first = [ann.submit("--priority", "5", "--", "id", "-u") for _ in range(3)]
    own = bob.submit("--model", "m", "--shell", 'id -u; echo b > "$TRAINQ_MODEL_DIR/f"')
    assert [job["id"] for job in bob.ok("worker", "--until", "idle", "--json").json["jobs"]] == [own]
    assert ann.ok("logs", own).out == f"{BOB}\n"
    assert {ann.state(job) for job in first} == {"pending"}
    assert len(ann.ok("worker", "--until", "idle", "--json").json["jobs"]) == 3
    assert bob.ok("wait", *first).code == 0
    assert bob.ok("logs", first[0]).out == f"{ANN}\n"
    third = ann.submit("--model", "m", "--shell", 'id -u; echo a > "$TRAINQ_MODEL_DIR/f"', cwd="/")
    bob.ok("worker", "--until", "idle", "--user", ANN)
    assert ann.ok("logs", third).out == f"{BOB}\n"
    assert [one["version"] for one in bob.models()] == [1, 2]
    for each in members:
        assert each.ok("doctor", "--json").json["checks"]
        assert len(each.ok("workers", "--json").json["items"]) >= 0
    assert bob("worker", "--once", "--user", "nobody at all").code == 2
    assert bob("worker", "--once", "--user", "*").code == 2


def test_a_worker_for_others_says_so_at_its_start(two):
    """Whose jobs it runs with whose rights, by name; one line more for who is not known to be in the queue's group. Its
    own user's worker says neither."""
    _, bob = two
    own = bob.ok("worker", "--until", "idle").err + bob.ok("worker", "--until", "idle", "--user", BOB).err
    assert "run here as" not in own
    assert "group" not in own
    me, owner = hosts.user_name(BOB), hosts.user_name(ANN)
    said = bob.ok("worker", "--until", "idle", "--user", ANN, "--user", BOB, "--user", "daemon").err
    assert f"jobs of {owner}, daemon run here as {me}" in said
    assert [line for line in said.splitlines() if "not known to be in the queue's group" in line] == [
        line for line in said.splitlines() if "daemon is not known to be in the queue's group" in line
    ]
    assert said.count("not known to be in the queue's group") == 1
    events = [
        json.loads(line) for line in bob.ok("worker", "--until", "idle", "--user", ANN, "--jsonl").out.splitlines()
    ]
    assert [event["users"] for event in events if event["event"] == "for others"] == [[owner]]


def test_a_model_shows_whose_it_is(two):
    """By the job that made it and by its directory, also once the job is pruned; when they differ show and path say so on
    stderr, and doctor names it: what is loaded from there is its owner's."""
    ann, bob = two
    for who, words in ((ann, ()), (bob, ("--user", ANN))):
        ann.submit("--model", "k", "--shell", 'echo a > "$TRAINQ_MODEL_DIR/f"', cwd="/")
        who.ok("worker", "--until", "idle", *words)
    names = [hosts.user_name(each.user_id) for each in two]
    for _ in range(2):
        items = bob.ok("models", "list", "--json").json["items"]
        assert [item["user"] for item in items] == [names[0], names[0]]
        for version, owner in zip((1, 2), names, strict=True):
            shown = ann.ok("models", "show", f"k@{version}", "--json").json
            assert (shown["user"], shown["owner"]) == (names[0], owner)
            for action in ("show", "path"):
                said = ann.ok("models", action, f"k@{version}").err
                assert said == (
                    "" if version == 1 else f"trainq: its directory belongs to {names[1]}, its job to {names[0]}\n"
                )
        assert f"k@2: its directory belongs to {names[1]}, its job to {names[0]}" in ann.ok("doctor").out
        ann.ok("prune", "--older-than", "0s")


def test_a_waiting_worker_hears_of_its_own_user_s_jobs(two):
    """An idle worker takes no turn for what others submit, and its own user's job at once."""
    ann, bob = two
    with bob.worker() as worker:
        other = ann.submit("--", "true")
        own = bob.submit("--", "true")
        until(lambda: bob.state(own) == "done")
        assert ann.state(other) == "pending"
        assert [event["id"] for event in worker.said("job started")] == [own]


def test_two_workers_at_once_share_one_key(members):
    """Both users' workers at work on one key: every version is whole, and `@latest` is the newest."""
    ann, bob = members
    jobs = [
        each.submit("--model", "shared/key", "--shell", 'echo x > "$TRAINQ_MODEL_DIR/f"') for each in (ann, bob) * 3
    ]
    with ann.worker("--name", "a"), bob.worker("--name", "b"):
        ann.ok("wait", *jobs, timeout=90)
        until(lambda: os.path.basename(os.readlink(f"{ann.root}/models/shared/key/@latest")) == "@6")
    assert [one["version"] for one in ann.models()] == [4, 5, 6]


def test_who_is_not_in_the_group_is_locked_out(two, place):
    """Another user sees nothing and changes nothing; exit 6 and a line that says why."""
    ann, _ = two
    ann.submit("--", "true")
    stranger = Member(place / "eve", ann.root, 65532, "--clear-groups")
    for words in (("status",), ("submit", "--", "true"), ("worker", "--once"), ("prune",), ("doctor",)):
        done = stranger(*words)
        assert (done.code, done.out) == (6, ""), done
        assert (
            f"not open to you: it is that of group {GROUP} and belongs to {ann.user_id} (uid {ann.user_id})" in done.err
        )
    with pytest.raises(subprocess.CalledProcessError):
        stranger.python("import os, sys; os.listdir(sys.argv[1])", ann.root)


def test_lists_by_user(two):
    """Q57: two users submit five each: `--user` shows that user's, newest first, `--all` all ten; an array is one of the five."""
    ann, bob = two
    numbers: dict[int, list[int]] = {ANN: [], BOB: []}
    for turn in range(5):
        for who, user_id in ((ann, ANN), (bob, BOB)):
            numbers[user_id].append(who.submit(*(("--array", "0-3") if turn == 4 else ()), "--", "true"))
    names = {user_id: ann.job(numbers[user_id][0])["user"] for user_id in (ANN, BOB)}
    for who in (ann, bob):
        everything = [item["id"] for item in who.ok("status", "--all", "--json").json["items"]]
        assert everything == sorted([*numbers[ANN], *numbers[BOB]], reverse=True)
        for user_id in (ANN, BOB):
            found = who.ok("status", "--all", "--user", names[user_id], "--json").json
            assert [item["id"] for item in found["items"]] == numbers[user_id][::-1]
            assert (found["total"], {item["user"] for item in found["items"]}) == (5, {names[user_id]})
    ids = ",".join(map(str, numbers[ANN]))
    assert [one["result"] for one in bob("cancel", ids, "--json").json["items"]] == ["denied"] * 8
    assert bob("cancel", f"{numbers[ANN][4]}[1]").code == 4
    assert ann.ok("status", numbers[ANN][4], "--json").json["counts"]["canceled"] == 0


def test_cancel_retry_and_prune_are_the_owner_s(members):
    """Q58: others' jobs: exit 4 and nothing changed. One's own: canceled, retried under its proof, run, pruned. The queue's
    owner may all of it."""
    ann, bob = members
    anns, bobs = ann.submit("--", "true"), bob.submit("--", "true")
    for words in (("cancel", anns), ("retry", anns), ("prune", anns)):
        done = bob(*words)
        assert done.code == 4 or words[0] == "retry", done
    assert ann.state(anns) == "pending"
    bob.ok("cancel", bobs)
    bob.ok("retry", bobs)
    bob.ok("worker", "--once")
    assert (bob.state(bobs), bob.job(bobs)["attempt"]["n"]) == ("done", 1)
    ann.ok("cancel", anns)
    assert (bob("retry", anns).code, bob("prune", anns).code) == (4, 4)
    bob.ok("prune", bobs)
    assert not os.path.exists(f"{bob.root}/runs/{bobs}")
    again = bob.submit("--", "sleep", "60")
    ann.ok("cancel", again)


def test_hold_release_pause_and_reopening_are_the_owner_s(members):
    """E08, E06, Q58: the same of what waits, of what runs, and of what was skipped because of a job of one's own."""
    ann, bob = members
    waits, runs = ann.submit("--hold", "--", "true"), ann.submit("--", "sleep", "60")
    free, failing = ann.submit("--priority", "-1", "--", "true"), bob.submit("--priority", "-1", "--", "false")
    skipped = ann.submit("--after", f"ok:{failing}", "--", "true")
    bob.ok("worker", "--until", "idle")
    until(lambda: ann.state(skipped) == "skipped")
    before = {number: ann.history(number) for number in (waits, free, skipped)}
    with ann.worker("--max-jobs", "1"):
        until(lambda: ann.job(runs)["attempt"]["pid"])
        for words in (("hold", free), ("release", waits), ("pause", runs)):
            refused = bob(*words, "--json")
            assert (refused.code, refused.json["error"]) == (4, "denied"), refused
        ann.ok("pause", runs)
        assert bob("resume", runs).code == 4
        assert ann.job(runs)["reason"] == "frozen"
        ann.ok("cancel", runs, "--wait")
    done = bob("retry", failing, "--with-dependants", "--json")
    assert (done.code, results(done)) == (7, [(failing, "retried"), (skipped, "denied")])
    assert {number: ann.history(number) for number in before} == before


def results(done):
    return [(item["id"], item["result"]) for item in done.json["items"]]


def test_a_group_s_queue_is_paused_and_opened_by_its_owner(members, place):
    """Q59, E08, Q58: a pause stops everybody's jobs, so a member may neither pause nor open what the owner has paused: 4, or
    7 for several, and nothing changed. What is so already is told as ever. Root may all of it."""
    ann, bob = members
    root = Member(place / "root", ann.root, 0)
    ann.types(queues='names = ["default", "other"]')
    refused = bob("pause", "--queue", "other")
    assert (refused.code, f"only {hosts.known_as(ANN)} pauses it" in refused.err) == (4, True), refused
    several = bob("pause", "--all", "--json")
    assert (several.code, results(several)) == (7, [("default", "denied"), ("other", "denied")])
    assert bob("pause", "--all", "--dry-run").code == 7
    assert results(ann.ok("pause", "--queue", "other", "--json")) == [("other", "paused")]
    assert results(bob("pause", "--all", "--json")) == [("default", "denied"), ("other", "already")]
    for words in (("--queue", "other"), ("--all",), ("--all", "--dry-run")):
        refused = bob("resume", *words)
        assert (refused.code, f"queue other was paused by {hosts.user_name(ANN)}@" in refused.err) == (4, True), refused
    assert results(bob.ok("resume", "--queue", "default", "--json")) == [("default", "already")]
    waiting = bob.submit("--queue", "other", "--", "true")
    bob.ok("worker", "--until", "idle")
    assert bob.state(waiting) == "pending"
    assert results(root.ok("resume", "--all", "--json")) == [("other", "resumed")]
    assert results(root.ok("pause", "--all", "--json")) == [("default", "paused"), ("other", "paused")]
    assert results(ann.ok("resume", "--all", "--json")) == [("default", "resumed"), ("other", "resumed")]
    bob.ok("worker", "--until", "idle")
    assert bob.state(waiting) == "done"


def test_a_member_opens_what_the_breaker_has_closed_and_what_is_their_own_pause(two):
    """E13, Q59: the breaker is nobody's word; and who has paused a queue (when they might) opens it."""
    ann, bob = two
    ann.types(limits="breaker = 1")
    failing = bob.submit("--", "false")
    bob.ok("worker", "--until", "idle")
    assert bob.state(failing) == "errored"
    waiting = bob.submit("--", "true")
    assert bob.job(waiting)["reason"] == "breaker"
    assert results(bob.ok("resume", "--queue", "default", "--json")) == [("default", "resumed")]
    for name, code in ((hosts.user_name(ANN), 4), (f"not-{hosts.user_name(BOB)}", 4), (hosts.user_name(BOB), 0)):
        sql = "UPDATE queue SET paused_at = 1, reason = 'queue_paused', paused_by = ?"
        bob.write(sql, f"{name}@elsewhere")
        assert bob("resume", "--all").code == code, name
    bob.ok("worker", "--until", "idle")
    assert bob.state(waiting) == "done"


def test_a_quarantine_is_ended_by_whose_worker_it_is(two):
    """E13, Q58: as a drain is: another member's 4, and the worker claims nothing still; the owner of the queue may."""
    ann, bob = two
    with bob.worker("--name", "bob's", "--slots", "1") as worker:
        for n in range(3):
            bob.submit("--", f"no-such-program-{n}")
        until(lambda: worker.said("quarantined"))
        bob.write("UPDATE worker SET user_id = 0")  # root's, say
        refused = bob("workers", "clear", "bob's")
        assert (refused.code, "belongs to root" in refused.err) == (4, True), refused
        assert bob.ok("workers", "--json").json["items"][0]["state"] == "quarantined"
        assert results(ann.ok("workers", "clear", "bob's", "--json")) == [("bob's", "cleared")]
        assert results(ann.ok("workers", "clear", "bob's", "--json")) == [("bob's", "already")]


def test_each_janitor_clears_away_its_own(members):
    """Either user's pass retires the rows of both and deletes its own user's files, without trouble; what is the other's is
    gone after their pass, and the checks find nothing then."""
    ann, bob = members
    for each in members:
        data = each.dir / "large"
        data.write_bytes(os.urandom(3 << 19))
        os.chown(data, each.user_id, each.user_id)
        each.submit(
            "--model", f"own{each.user_id}", "--data", "large", "--", "sh", "-c", 'echo > "$TRAINQ_MODEL_DIR/f"'
        )
        each.ok("worker", "--once")
    now = {"TRAINQ_KEEP_FILE_GRACE": "0s", "TRAINQ_KEEP_RUNS": "0s"}
    first = bob.ok("prune", "--json", env={**now, "TRAINQ_KEEP_JOBS": "0s"}).json
    assert (len(first["items"]), first["trouble"]) == (2, [])
    assert [os.lstat(f"{bob.root}/runs/{name}").st_uid for name in os.listdir(f"{bob.root}/runs")] == [ANN]
    assert [os.lstat(f"{bob.root}/specs/{name}").st_uid for name in os.listdir(f"{bob.root}/specs")] == [ANN]
    assert os.listdir(f"{bob.root}/data") == []
    assert ann.ok("prune", "--json", env=now).json["trouble"] == []
    assert os.listdir(f"{ann.root}/runs") == os.listdir(f"{ann.root}/specs") == []
    assert {one["key"] for one in ann.models()} == {f"own{ANN}", f"own{BOB}"}


def test_a_member_s_prune_takes_others_jobs_by_the_queue_s_age_only(two):
    """A shorter --older-than is for one's own ended jobs; whose queue it is and root may say it of everybody's."""
    ann, bob = two
    anns, bobs = ann.submit("--", "true"), bob.submit("--", "true")
    more = bob.submit("--", "true")
    for each in two:
        each.ok("worker", "--until", "idle")
    for words in (("--dry-run",), ()):
        done = bob.ok("prune", "--older-than", "0s", *words, "--json").json
        assert sorted(item["id"] for item in done["items"]) == [bobs, more]
    assert ann.state(anns) == "done"
    for each in two:
        again = bob.submit("--", "true")
        bob.ok("worker", "--until", "idle")
        assert again in [item["id"] for item in each.ok("prune", "--older-than", "0s", "--json").json["items"]]


def test_a_key_that_is_another_s_says_so(two):
    """A submit under a key answers with the job that waits: whose it is when it is another's, and that it is another
    command when it is. What is the same and one's own is said in few words."""
    ann, bob = two
    job = ann.submit("--key", "K", "--", "echo", "1")
    notes = {
        (ann, "1"): f"trainq: job {job} is already waiting or running\n",
        (ann, "2"): f"trainq: job {job} is already waiting or running, with another command\n",
        (bob, "1"): f"trainq: job {job} is already waiting or running; it belongs to {ANN}\n",
        (bob, "2"): f"trainq: job {job} is already waiting or running, with another command; it belongs to {ANN}\n",
    }
    for (who, word), note in notes.items():
        done = who.ok("submit", "--key", "K", "--", "echo", word)
        assert (done.out, done.err) == (f"{job}\n", note)
    item = bob.ok("submit", "--key", "K", "--json", "--", "echo", "2").json["items"][0]
    assert (item["result"], item["id"]) == ("duplicate", job)


def test_a_dead_worker_s_job_is_taken_back_by_the_other(two):
    """Whoever prunes gives back what was lost, and the owner's next worker runs it on."""
    ann, bob = two
    job = ann.submit("--shell", 'test "$TRAINQ_ATTEMPT" != 1 || sleep 60')
    with ann.worker() as worker:
        until(lambda: ann.job(job)["attempt"]["pid"])
        worker.signal(9)
    until(lambda: bob.ok("prune").code == 0 and bob.state(job) == "pending", timeout=40)
    ann.ok("worker", "--once")
    assert (ann.state(job), ann.job(job)["attempt"]["n"]) == ("done", 2)


# what is refused ---------------------------------------------------------------------------------------------------


def test_a_forged_user_column_is_refused_and_reported(members):
    """E18: a job that a member's row says is somebody else's is not run by that one's worker: it ends errored and names
    both, in status, history and doctor. The worker is well, and the queue open, however many of them there are."""
    ann, bob = members
    jobs = [bob.submit("--", "touch", "stolen") for _ in range(6)]
    bob.write("UPDATE job SET user_id = ?, user = 'ann'", ANN)
    bob.write("UPDATE lane SET user_id = ?", ANN)
    report = ann.ok("worker", "--until", "idle", "--json", "--slots", "1").json
    assert (report["quarantine"], len(report["jobs"])) == (None, 6)
    for job in jobs[1:]:
        bob.write("DELETE FROM job WHERE id = ?", job)
    error = refused(ann, jobs[0])
    assert f"(uid {ANN})" in error
    assert f"(uid {BOB})" in error
    assert not os.path.exists(ann.dir / "stolen")
    card = ann.ok("status", jobs[0]).out
    assert f"next: trainq history {jobs[0]}; trainq retry {jobs[0]}" in card
    log = ann("logs", jobs[0])
    assert (log.code, f"attempt 1 of job {jobs[0]} never ran: {error}" in log.err) == (4, True), log
    own = ann.submit("--", "true")
    ann.ok("worker", "--once")
    assert ann.state(own) == "done"


def test_an_attempt_to_have_anothers_job_run_as_oneself_is_refused(two):
    """The other way round: a row of mine that says Bob's is not run by his worker, nor by mine with --user."""
    ann, bob = two
    job = ann.submit("--", "true")
    ann.write("UPDATE job SET user_id = ? WHERE id = ?", BOB, job)
    ann.write("UPDATE lane SET user_id = ?", BOB)
    ann.ok("worker", "--until", "idle", "--user", BOB)
    assert f"(uid {ANN})" in refused(bob, job)


CHANGES = {
    "command": "UPDATE spec SET doc = replace(doc, 'true', 'fail')",
    "hook": "UPDATE spec SET doc = json_set(doc, '$.on_end', 'touch stolen')",
    "directory": "UPDATE spec SET doc = json_set(doc, '$.cwd', '/tmp')",
    "environment": """UPDATE environ SET doc = json_set(doc, '$.env.LD_PRELOAD', '/tmp/evil.so')""",
    "umask": "UPDATE submission SET umask = 0",
    "key": "UPDATE job SET model_key = 'other'",
    "limit": "UPDATE job SET time_s = 1",
    "name": "UPDATE job SET name = 'other'",
    "queue": "UPDATE job SET queue = 'other'",
    "set": "UPDATE job_data SET name = 'other'",
    "uid": "UPDATE submission SET uid = '0abc'",
    "place": "UPDATE submission SET first_id = 2, count = 2",
}


@pytest.mark.parametrize("what", CHANGES)
def test_what_was_changed_since_the_submit_is_refused(two, what):
    """Whatever of a job is executed or accounted is as its owner has submitted it, or it is not run."""
    ann, bob = two
    Path(ann.root, "trainq.toml").write_text('[queues]\nnames = ["default", "other"]\n')
    (ann.dir / "set").write_text("data")
    os.chown(ann.dir / "set", ANN, ANN)
    job = ann.submit("--model", "m", "--data", "set", "--", "true")
    bob.write(CHANGES[what])
    ann.ok("worker", "--until", "idle")
    assert f"(uid {ANN})" in refused(ann, job)


def test_a_task_of_an_array_is_proved_with_its_index(two):
    """E05: the tasks of an array run for a group, too; one whose index was changed does not."""
    ann, bob = two
    number = ann.submit("--array", "0-2", "--", "sh", "-c", "echo $TRAINQ_ARRAY_ID $TRAINQ_ARRAY_INDEX")
    bob.write("UPDATE spec SET doc = json_set(doc, '$.array.index', 7) WHERE job_id = ?", number + 2)
    ann.ok("worker", "--until", "idle")
    assert f"(uid {ANN})" in refused(ann, number + 2)
    counts = ann.ok("status", number, "--json").json["counts"]
    assert (counts["done"], counts["errored"]) == (2, 1)
    assert ann.ok("logs", f"{number}[2]").out == f"{number} 2\n"


def stored(tq: Tq, job: int) -> tuple[str, str, str]:
    """State, reason and error of a job of which trainq may not be able to read more."""
    with contextlib.closing(sqlite3.connect(database(tq.root))) as db:
        return db.execute("SELECT state, reason, error FROM job WHERE id = ?", (job,)).fetchone()


SPOILED = {
    "no JSON": "UPDATE spec SET doc = '{' WHERE job_id = 1",
    "no object": "UPDATE spec SET doc = '[]' WHERE job_id = 1",
    "other values": """UPDATE spec SET doc = '{"cwd": 5, "warn_s": "x", "stall_after_s": []}' WHERE job_id = 1""",
    "too deep": "UPDATE spec SET doc = replace(hex(zeroblob(50000)), '00', '[') WHERE job_id = 1",
    "no number": "UPDATE spec SET doc = '{\"a\":' || replace(hex(zeroblob(5000)), '00', '11') || '}' WHERE job_id = 1",
    "bytes": "UPDATE spec SET doc = x'ff' WHERE job_id = 1",
    "no text": "UPDATE spec SET doc = CAST(x'22ff22' AS TEXT) WHERE job_id = 1",
    "no spec": "DELETE FROM spec WHERE job_id = 1",
    "no call": "UPDATE job SET submission_id = 99 WHERE id = 1",
    "environment": "UPDATE environ SET doc = '[5]' WHERE id = (SELECT environ_id FROM submission WHERE first_id = 1)",
    "set": "UPDATE data SET z = CAST(x'ff' AS TEXT)",
    "set's name": "UPDATE job_data SET name = x'ff'",
    "place": "UPDATE submission SET first_id = 'x', count = 2 WHERE first_id = 1",
    "far away": "UPDATE submission SET first_id = -4611686018427387904 WHERE first_id = 1",
    "umask": "UPDATE submission SET umask = x'ff' WHERE first_id = 1",
    "name": "UPDATE job SET name = x'ff' WHERE id = 1",
    "limit": "UPDATE job SET time_s = 'x', grace_s = 'x' WHERE id = 1",
    "attempts": "UPDATE job SET max_attempts = 'x' WHERE id = 1",
    "attempt": "UPDATE job SET attempt = 9223372036854775807 WHERE id = 1",
}


@pytest.mark.parametrize("what", SPOILED)
def test_a_job_whose_rows_cannot_be_read_stops_no_worker(two, what):
    """Invariant 10: it ends errored with its number and a word of why, what comes after it runs, and the worker is well."""
    ann, bob = two
    (ann.dir / "set").write_text("data")
    os.chown(ann.dir / "set", ANN, ANN)
    bad = ann.submit("--priority", "9", "--data", "set", "--", "touch", "ran")
    good = ann.submit("--env", "OTHER=1", "--", "true", env={"MORE": "1"})
    bob.write("UPDATE environ SET id = id")
    bob.write(SPOILED[what])
    sick = ann("doctor", "--json")
    if what != "attempt":  # which is read only once it is counted up
        assert sick.code == 1
        said = [check["message"] for check in sick.json["checks"] if check["name"] == "group"]
        assert len(said) == 1
        assert said[0].startswith(f"job {bad} ")
    done = ann.ok("worker", "--until", "idle", "--json", "--slots", "1")
    assert done.json["quarantine"] is None
    assert ann.state(good) == "done"
    state, reason, error = stored(ann, bad)
    assert (state, reason) == ("errored", "poison")
    assert f"job {bad} " in error
    assert not os.path.exists(ann.dir / "ran")
    for words in (("status",), ("history", bad), ("prune",), ("doctor",)):
        assert ann(*words).code in (0, 1, 3), words


WHILE_IT_RUNS = {
    "costs": "UPDATE job SET user_used = 'x', retries = 'x', system_used = x'ff', max_attempts = 'x', idle_requeues = 'x'",
    "spec": "UPDATE spec SET doc = '{'",
    "retries": """UPDATE spec SET doc = '{"retry_on": 5, "backoff_s": "x", "retry_grow": "x", "mem": "x"}'""",
    "grace": "UPDATE job SET cancel_at = 1, cancel_grace_s = 'x'",
    "message": "UPDATE job SET cancel_by = x'ff', message = x'ff', error = x'ff'",
}


@pytest.mark.parametrize("what", WHILE_IT_RUNS)
def test_a_job_whose_rows_are_spoiled_while_it_runs_stops_no_worker(two, what):
    """Invariant 10: however it ends then, it ends, and the next one runs."""
    ann, bob = two
    job = ann.submit("--retries", "1", "--shell", "while test ! -e go; do sleep 0.05; done; exit 3")
    with ann.worker("--slots", "1") as worker:
        until(lambda: ann.job(job)["attempt"]["pid"])
        bob.write(WHILE_IT_RUNS[what])
        (ann.dir / "go").touch()
        good = ann.submit("--", "true")
        until(lambda: stored(ann, good)[0] == "done")
        assert stored(ann, job)[0] in ("errored", "canceled", "held")
        assert worker.said("job ended")[0]["id"] == job


@pytest.mark.parametrize(
    "spoils",
    [
        "INSERT INTO queue(name, paused_at, reason) VALUES(x'ff00', 1, 'queue_paused')",
        "INSERT INTO queue(name, paused_at, reason) VALUES(7, 'x', x'ff')",
        "INSERT INTO queue(name, paused_at, reason, quick_failures, message) VALUES('default', x'00', 'breaker', 'x', 9)",
        "UPDATE job_array SET count = 1e300, name = x'ff', most = 'y', tags = 5, user = x'ff'",
        "UPDATE job_array SET held = 'x', open = x'ff', done = -5, ended_at = 'never'",
        "UPDATE job_array SET at = 'x', user_id = 'z', queue = x'ff', priority = 'p', type = 7",
        "UPDATE dep SET mode = x'ff', ended = 5",
    ],
)
def test_rows_of_queues_and_arrays_that_cannot_be_read_stop_no_command(two, spoils):
    """E18: what another member has written there is answered with something, be it wrong, and not with a bug."""
    ann, bob = two
    array = ann.submit("--array", "0-1", "--", "true")
    last = ann.submit("--after", array, "--", "true")
    bob.write(spoils)
    for line in (
        "status", "status --json", f"status {array} --json", f"status {last} --json", f"explain 1-{last}", "doctor --json",
        "pause --all --dry-run", "resume --all --dry-run", "resume --all", f"submit --after {array} -- true",
        f"hold {array}", f"release {array}", "worker --until idle", "prune",
    ):  # fmt: skip
        done = ann(*line.split())
        assert done.code != 70, (line, done)
        assert "Traceback" not in done.err, (line, done)


def test_what_waits_by_a_spoiled_time_or_priority_stops_no_worker(two):
    """Invariant 10: neither in the index of what is due, nor where the first of several queues is looked for."""
    ann, bob = two
    Path(ann.root, "trainq.toml").write_text('[queues]\nnames = ["default", "other"]\n')
    held, first, good = ann.submit("--", "true"), ann.submit("--", "true"), ann.submit("--queue", "other", "--", "true")
    bob.write("UPDATE job SET state = 'held', due_at = 'x' WHERE id = ?", held)
    bob.write("UPDATE job SET priority = 'x' WHERE id = ?", first)
    ann.ok("worker", "--until", "idle")
    assert (ann.state(first), ann.state(good)) == ("done", "done")
    assert ann("status").code == 0


@pytest.mark.parametrize("how", ["copied", "link", "replayed", "gone", "shut"])
def test_another_s_spec_file_proves_nothing(two, how):
    """A copy of Ann's file is Bob's, a link to it is no file, and her own file tells of her own job alone."""
    ann, bob = two
    good, bad = ann.submit("--", "true"), bob.submit("--", "touch", "stolen")
    theirs, own = spec_file(ann, good), spec_file(bob, bad)
    bob.write("UPDATE job SET user_id = ?, user = '65533' WHERE id = ?", ANN, bad)
    bob.write("UPDATE job SET lane_id = (SELECT lane_id FROM job WHERE id = ?) WHERE id = ?", good, bad)
    if how == "copied":
        bob.python("import shutil, sys; shutil.copyfile(*sys.argv[1:])", theirs, own)
    elif how == "link":
        bob.python("import os, sys; os.unlink(sys.argv[2]); os.symlink(*sys.argv[1:])", theirs, own)
    elif how == "gone":
        bob.python("import os, sys; os.unlink(sys.argv[1])", own)
    elif how == "shut":
        bob.python("import os, sys; os.chmod(sys.argv[1], 0)", own)
    else:
        bob.write("UPDATE job SET submission_id = (SELECT submission_id FROM job WHERE id = ?) WHERE id = ?", good, bad)
        bob.write("UPDATE submission SET count = 2 WHERE first_id = ?", good)
    ann.ok("worker", "--until", "idle")
    refused(ann, bad)
    assert ann.state(good) == "done"
    assert not os.path.exists(ann.dir / "stolen")


@pytest.mark.parametrize("attempt", ["remove", "rename", "write", "replace"])
def test_a_member_cannot_touch_another_s_spec_file(two, attempt):
    """specs/ is sticky: what one has put there stays until its owner takes it."""
    ann, bob = two
    path = spec_file(ann, ann.submit("--", "true"))
    code = {
        "remove": "os.unlink(path)",
        "rename": "os.rename(path, path + 'x')",
        "write": "open(path, 'r+b')",
        "replace": "open(path + 'x', 'w').close(); os.rename(path + 'x', path)",
    }[attempt]
    with pytest.raises(subprocess.CalledProcessError) as caught:
        bob.python(f"import os, sys; path = sys.argv[1]; {code}", path)
    assert "PermissionError" in caught.value.stderr


def test_a_run_directory_that_lies_there_already_is_not_run_in(two):
    """Checkpoints are code: whoever puts a run directory there before does not get another's job to go on from it."""
    ann, bob = two
    code = "import os, sys; os.makedirs(sys.argv[1], 0o777)"
    bob.python(code, f"{bob.root}/runs/1/checkpoints/1")
    job = ann.submit("--", "true")
    ann.ok("worker", "--until", "idle")
    card = ann.job(job)
    assert (card["state"], card["reason"]) == ("errored", "poison")
    assert f"(uid {BOB})" in card["result"]["error"]


@pytest.mark.parametrize("name", ["specs", "runs", "models", "data", "locks", "bell"])
def test_a_directory_that_was_replaced_is_not_used(two, name):
    """A link in the place of a directory of the queue would lead a janitor into its user's own files: it does nothing."""
    ann, bob = two
    ann.submit("--", "true")
    precious = ann.dir / "7"
    precious.mkdir()
    os.chown(precious, ANN, ANN)
    bob.python("import os, sys; os.rename(sys.argv[1], sys.argv[1] + 'x'); os.symlink(sys.argv[2], sys.argv[1])",
               f"{bob.root}/{name}", ann.dir)  # fmt: skip
    for words in (("prune", "--older-than", "0s"), ("submit", "--", "true"), ("worker", "--once")):
        done = ann(*words, env={"TRAINQ_KEEP_FILE_GRACE": "0s", "TRAINQ_KEEP_RUNS": "0s"})
        assert done.code == 6, done
        assert f"{name}: not the directory" in done.err
    assert precious.exists()
    assert ann("doctor").code == 6


@pytest.mark.parametrize("bits", [0o2750, 0o750, 0o700])
@pytest.mark.parametrize("swapped", [None, "bell", "theirs"])
def test_a_group_s_queue_that_was_shut_is_not_taken_for_one_user_s(two, bits, swapped):
    """Without the group's right to write in the root, what the members have written is there still: nothing is run,
    nothing put in, and one line says how to open it again. Whatever a member had put in the place of specs/."""
    ann, bob = two
    job = bob.submit("--", "touch", "stolen")
    bob.write("UPDATE job SET user_id = ?, user = 'ann'", ANN)
    bob.write("UPDATE lane SET user_id = ?", ANN)
    if swapped == "bell":
        bob.python(
            "import os, sys; os.chdir(sys.argv[1]); os.rename('specs', 'x'); os.rename('bell', 'specs')", bob.root
        )
    elif swapped == "theirs":
        bob.python("import os, sys; os.chdir(sys.argv[1]); os.rename('specs', 'x'); os.mkdir('specs', 0o750)", bob.root)
    ann.python("import os, sys; os.chmod(sys.argv[1], int(sys.argv[2]))", ann.root, bits)
    for words in (("worker", "--once"), ("submit", "--", "true"), ("prune",), ("status",), ("init", ann.root)):
        done = ann(*words, root=None if words[0] == "init" else ann.root)
        assert done.code == 6, done
        assert "this was a group's queue" in done.err
        assert "chmod 2770" in done.err
    assert not os.path.exists(ann.dir / "stolen")
    if swapped is None:
        os.chmod(ann.root, 0o2770)
        ann.ok("worker", "--once")
        refused(ann, job)


@pytest.mark.parametrize("bits", [0o2755, 0o2700, 0o755])
def test_a_queue_of_one_user_may_lie_in_a_group_s_directory(two, place, bits):
    """What was made in a set-gid directory and never was a group's is one user's, and used as ever."""
    ann, _ = two
    root = place / "ann" / "work" / "own"
    root.mkdir()
    os.chown(root, ANN, GROUP)
    os.chmod(root, bits)
    ann.ok("init", root, root=None)
    ann.ok("submit", "--", "true", root=str(root))
    assert ann.ok("worker", "--once", "--json", root=str(root)).json["total"] == 1


@pytest.mark.parametrize("name", ["specs", "runs", "models"])
def test_a_directory_that_changed_places_is_not_used(two, name):
    """Nor one of the owner's own: in one that is not sticky everybody takes away what is others'."""
    ann, bob = two
    code = "import os, sys; os.chdir(sys.argv[1]); os.rename(sys.argv[2], 'x'); os.rename('data', sys.argv[2])"
    bob.python(code, bob.root, name)
    for words in (("prune",), ("submit", "--", "true"), ("worker", "--once")):
        done = ann(*words)
        assert done.code == 6, done
        assert f"{name}: not the directory" in done.err
    assert f"{name}: not that of the queue's owner" in ann("doctor").out


@pytest.mark.parametrize("how", ["theirs", "link", "open"])
def test_settings_that_are_not_the_owner_s_are_refused(two, how):
    """What a type runs is the queue's owner's word: a trainq.toml of a member's, a link, or one that others can write stops
    whoever would read it, with one line."""
    ann, bob = two
    path = f"{ann.root}/trainq.toml"
    if how == "theirs":
        bob.python(
            "import os, sys; os.unlink(sys.argv[1]); open(sys.argv[1], 'w').close(); os.chmod(sys.argv[1], 0o640)", path
        )
    elif how == "link":
        bob.python(
            "import os, sys; os.rename(sys.argv[1], sys.argv[1] + 'x'); os.symlink('trainq.tomlx', sys.argv[1])", path
        )
    else:
        ann.python("import os, sys; os.chmod(sys.argv[1], 0o660)", path)
    for each in two:
        for words in (("submit", "--", "true"), ("worker", "--once"), ("prune",), ("types",)):
            done = each(*words)
            assert (done.code, len(done.err.splitlines())) == (6, 2), done
            assert "trainq.toml" in done.err


# init --------------------------------------------------------------------------------------------------------------


def test_init_refuses_a_group_that_is_not_there_or_not_one_s_own(two, place):
    """Exit 2, and nothing is made."""
    ann, _ = two
    for group in ("no-such-group", "0"):
        done = ann("init", "--group", group, place / "other", root=None)
        assert (done.code, done.out) == (2, ""), done
        assert group in done.err
    assert not os.path.exists(place / "other")


def test_init_on_one_that_is_there_already(two, place):
    """Again it says "already"; another group, or a queue of one user, is not made into this one."""
    ann, bob = two
    assert ann.ok("init", "--group", GROUP, ann.root, "--json", root=None).json["result"] == "already"
    assert bob.ok("init", ann.root, "--json", root=None).json["result"] == "already"
    assert ann("init", "--group", ANN, ann.root, root=None).code == 4
    alone = str(place / "ann" / "work" / "alone")
    ann.ok("init", alone, root=None)
    assert ann("init", "--group", GROUP, alone, root=None).code == 4
    assert (mode(alone), mode(alone, "specs"), mode(alone, "trainq.toml")) == ("0700", "0700", "0600")
    ann.ok("submit", "--", "true", root=alone)
    assert os.listdir(f"{alone}/specs") == []
    assert ann("worker", "--once", "--user", ANN, root=alone).code == 2


@pytest.mark.parametrize("bits", [0o770, 0o2770, 0o775])
def test_a_directory_that_a_group_can_write_is_no_queue_of_one_user(two, place, bits):
    """It is refused until it is made one of a group's, or shut."""
    ann, _ = two
    root = place / "ann" / "work" / "open"
    root.mkdir()
    os.chown(root, ANN, GROUP)
    os.chmod(root, bits)
    done = ann("init", root, root=None)
    assert (done.code, done.out) == (6, ""), done
    assert "group can write here" in done.err
    ann.ok("init", "--group", GROUP, root, root=None)
    assert mode(root) == "2770"
    os.chmod(root, 0o770)
    assert ann("status", root=str(root)).code == 6


def test_only_the_owner_edits_what_is_executed(members):
    """E08, E18: who may cancel it may give it another place in the queue; what runs, only its owner says."""
    ann, bob = members
    job = bob.submit("--shell", "echo ran > ran")
    for member, set_, code in (
        (bob, "time=1h", 0), (bob, "queue=default", 0), (bob, "time=2h", 0), (ann, "priority=3", 0), (ann, "time=3h", 4), (ann, "on_end=true", 4),
        (ann, "retries=1", 4), (bob, "retries=1", 0), (ann, "retries=2", 0), (ann, "retries=0", 0),
    ):  # fmt: skip
        done = member("edit", job, "--set", set_)
        assert done.code == code, (set_, done)
        assert done.code == 0 or "only its owner may edit" in done.err
    other = ann.submit("--", "true")
    assert bob("edit", other, "--set", "priority=3").code == 4
    assert ann.ok("doctor", "--json").json
    bob.ok("worker", "--until", "idle")
    card = bob.job(job)
    assert (card["state"], card["priority"], card["request"]["time_s"]) == ("done", 3, 7200.0)
    assert (bob.dir / "ran").exists()


def test_an_edit_proves_nothing_that_others_wrote(two):
    """E18: rows that a member has changed do not become their owner's by an edit of his."""
    _, bob = two
    ann = two[0]
    job = bob.submit("--shell", "true")
    ann.write("UPDATE spec SET doc = json_set(doc, '$.shell', 'touch forged') WHERE job_id = ?", job)
    done = bob("edit", job, "--set", "time=1h")
    assert (done.code, "its rows were changed" in done.err) == (4, True), done
    bob.ok("edit", job, "--set", "priority=1")  # what is executed is not touched by that
    bob.work()
    refused(bob, job)


def test_a_row_that_was_changed_after_an_edit_is_refused(two):
    """E18: an edited job is proved like any other, and another task of its call by its own line."""
    ann, bob = two
    number = bob.submit("--array", "0-2", "--shell", "true")
    bob.ok("edit", f"{number}[1]", "--set", "time=1h")
    ann.write("UPDATE job SET time_s = 5 WHERE id = ?", number + 2)
    bob.work()
    refused(bob, number + 2)
    assert [bob.state(number + n) for n in (1, 3)] == ["done", "done"]


@pytest.mark.parametrize("fair", [True, False])
def test_with_fair_members_take_turns(two, fair):
    """CLI.md `[queues] fair`: who has the least running goes first, though others came before; without it the oldest."""
    ann, bob = two
    ann.types(queues=f"fair = {str(fair).lower()}")
    anns = [ann.submit("--", "sleep", "60") for _ in range(2)]
    bobs = bob.submit("--cwd", "/", "--", "sleep", "60")  # his own directories are shut
    users = [word for user_id in (ANN, BOB) for word in ("--users", str(user_id))]
    with ann.worker("--slots", "2", *users):
        running = until(lambda: (found := [job["id"] for job in ann.jobs("--state", "running")])[1:] and found)
        assert running == ([anns[0], bobs] if fair else anns)
        for number in (*anns, bobs):
            ann("cancel", number)
