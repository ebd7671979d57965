"""Two doctors meet: `trainq doctor --meet`, here on one host, whose locks are those that are tried."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest
from conftest import Trainq
from e2e.kit import until

from trainq.base import files
from trainq.base.errors import NotPossible, TimedOut
from trainq.ops import meet as meeting
from trainq.ops.init import init
from trainq.ops.meet import meet
from trainq.ops.queue import open_queue

QUICK = "from trainq.ops import meet; meet.TRY_S = 0.3; {more}; from trainq.cli.main import main; main()"
UNLOCKED = (
    "from trainq.store.gate import Gate; "
    "Gate.enter = lambda self, *_: self._open(); Gate.leave = lambda self: None"
)  # fmt: skip


class Doctors(Trainq):
    """Doctors on one queue, each a process, that try for a shorter time than usual."""

    def start_one(self, *words: str, more: str = "pass", **pipes: int) -> subprocess.Popen[bytes]:
        line = [sys.executable, "-c", QUICK.format(more=more), "doctor", "--meet", *words]
        both = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | pipes
        return subprocess.Popen(line, cwd=self.cwd, env=self.env, **both)

    @property
    def book(self) -> str:
        return os.path.join(self.root, "locks", "meeting.book")

    def names(self) -> list[str]:
        """Who has signed in."""
        try:
            return list(json.loads(files.read_bytes(self.book))["people"])
        except (FileNotFoundError, ValueError):
            return []


@pytest.fixture
def doctors(tmp_path):
    root = str(tmp_path / "queue")
    init(root, "shared")
    return Doctors(root, str(tmp_path))


def told(process: subprocess.Popen[bytes]) -> dict[str, dict[str, str]]:
    out, err = process.communicate(timeout=60)
    answer = json.loads(out)
    assert answer["kind"] == "doctor", (answer, err)
    return {check["name"]: check for check in answer["checks"]}


def states(checks: dict[str, dict[str, str]]) -> list[str]:
    return [checks[name]["state"] for name in ("hosts", "exclusion", "visibility", "clocks")]


SAME_HOST = ["warning", "ok", "ok", "ok"]


def meet_in_vain(doctors: Doctors) -> None:
    with pytest.raises(TimedOut, match=r"no other doctor came within 0\.2 s"):
        list(meet(open_queue(doctors.root), 0.2))


def test_two_meet(doctors):
    """E19: both find that the lock keeps them apart and that each sees what the other wrote; nothing of them stays."""
    both = [doctors.start_one("--json") for _ in range(2)]
    for checks in map(told, both):
        assert states(checks) == SAME_HOST, checks
        assert "which is this host" in checks["hosts"]["message"]
    assert [process.returncode for process in both] == [1, 1]
    assert doctors.names() == []
    assert {name for name in os.listdir(os.path.dirname(doctors.book)) if name.startswith("meeting")} == {
        "meeting.book", "meeting.lock",
    }  # fmt: skip


def test_who_waited_in_vain_is_not_met(doctors):
    """It signs out; and who could not (it was killed) has no file any more, or does not stir."""
    meet_in_vain(doctors)
    assert doctors.names() == []
    with doctors.start_one() as killed:
        until(doctors.names)
        killed.kill()
        killed.communicate()
    assert len(doctors.names()) == 1
    meet_in_vain(doctors)
    files.write_durably(os.path.join(doctors.root, "locks", "meeting.inside"), b"")  # as if killed in its turn
    both = [doctors.start_one("--json") for _ in range(2)]
    assert [states(told(process)) for process in both] == [SAME_HOST] * 2


def test_an_interrupted_one_signs_out(doctors):
    with doctors.start_one() as process:
        until(doctors.names)
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=20) == 130
    assert doctors.names() == []


def test_a_third_one_is_refused(doctors):
    """Two meet at a time: the third hears it at once, and does not spoil what the two find."""
    slow = "meet.TRY_S = 2"
    both = [doctors.start_one("--json", more=slow) for _ in range(2)]
    until(lambda: _are_paired(doctors))
    third = doctors.start_one()
    _, err = third.communicate(timeout=60)
    assert (third.returncode, b"two doctors are meeting here" in err) == (4, True), err
    assert err.count(b"hint:") == 1
    assert [states(told(process)) for process in both] == [SAME_HOST] * 2


def _are_paired(doctors: Doctors) -> bool:
    try:
        people = json.loads(files.read_bytes(doctors.book))["people"]
    except (FileNotFoundError, ValueError):
        return False
    return len(people) == 2 and all(one["other"] for one in people.values())


def test_a_lock_that_keeps_nobody_out_is_found(doctors):
    """Both find it, though what they write of each other is lost as well: when they miss each other for that, nothing is
    said to be proved."""
    for _ in range(5):
        both = [doctors.start_one("--json", more=UNLOCKED) for _ in range(2)]
        for checks in map(told, both):
            found = checks.get("exclusion", checks["hosts"])
            assert found["state"] in ("bad", "warning"), checks
        if [process.returncode for process in both] == [6, 6]:
            return
    raise AssertionError(both)


LATE = (
    "found = meet._Doctor.find_other; import os, time; "
    "meet._Doctor.find_other = lambda self, wait_s: (found(self, wait_s), {then})[0]"
)  # fmt: skip


def test_one_that_is_late_is_waited_for(doctors):
    """E19: a doctor whose host is busy comes late to a step that the other one has done by then; that nothing of it is seen
    meanwhile is no fault of the mount."""
    both = [doctors.start_one("--json", more=more) for more in (LATE.format(then="time.sleep(2)"), "pass")]
    assert [states(told(process)) for process in both] == [SAME_HOST] * 2


@pytest.mark.parametrize("step", ["try_lock", "try_reading", "compare"])
def test_one_that_is_killed_while_they_meet_is_not_waited_for(doctors, step):
    """E19: the other one hears no more of it, and ends with a warning before its long wait is over; nothing is proved."""
    patient = "meet._DEAD_S = 1; meet.WAIT_S = 600"
    killed = doctors.start_one(more=f"import os; meet._Doctor.{step} = lambda *_: os._exit(9)")
    other = doctors.start_one("--json", more=patient)
    checks = told(other)
    assert killed.wait(timeout=20) == 9
    assert (checks["hosts"]["state"], "visibility" in checks) == ("warning", False), checks
    killed.communicate()


def test_storage_that_shows_nothing_of_the_other_one_is_found(doctors):
    """E19: both go on looking into the book, and neither sees what the other one's file says by then."""
    both = [
        doctors.start_one("--json", more="meet._Doctor._written_in = staticmethod(lambda path: 1.0)") for _ in range(2)
    ]
    for checks in map(told, both):
        assert states(checks) == ["warning", "ok", "bad", "ok"], checks
    assert [process.returncode for process in both] == [6, 6]


@pytest.mark.parametrize(
    "text",
    [
        "[]", "7", "null", "{}", '{"people": [], "turns": {}}', '{"people": {"../../x": {}}, "turns": {}}',
        '{"people": {}, "turns": 0}', '{"people": {"00112233aabbccdd": {"host": 1}}, "turns": {}}', "\xff\0",
    ],
)  # fmt: skip
def test_a_book_of_another_shape_is_a_new_one(doctors, text):
    """Every member can write there."""
    with open(doctors.book, "w", encoding="latin-1") as file:
        file.write(text)
    meet_in_vain(doctors)
    assert doctors.names() == []


def test_a_number_too_large_for_a_book_makes_it_a_new_one():
    one = {"host": "h", "identity": "i", "ahead_s": 0.0, "beat": 10**400, "other": None, "result": None}
    text = json.dumps({"people": {"00112233aabbccdd": one}, "turns": {}}).encode()
    assert meeting.parsed(text) == meeting.Book({}, {})


def test_a_lock_that_is_held_for_ever_is_named(doctors):
    """Neither of the doctor's locks is waited for without an end: who holds it is told, and it is no fault of the queue."""
    hold = (
        "import sys; from trainq.store.gate import Gate; gate = Gate(sys.argv[1], 1, is_shared=True); gate.enter(); "
        "print(flush=True); sys.stdin.read()"
    )
    doctors.env["TRAINQ_TIMES_LOCK_WAIT"] = "0.3s"
    for name, check in (("doctor", "locks"), ("meeting", "hosts")):
        words = [sys.executable, "-c", hold, os.path.join(doctors.root, "locks", f"{name}.lock")]
        with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=doctors.env) as holder:
            holder.stdout.readline()
            found = doctors("doctor", "--json", *(["--meet"] if name == "meeting" else []), timeout=20)
            (seen,) = [each for each in found.json["checks"] if each["name"] == check]
            assert (found.code, seen["state"]) == (1, "warning"), found
            assert f"{name}.lock: still held by pid {holder.pid} on " in seen["message"]
            holder.stdin.close()


def test_what_stands_in_place_of_the_others_file(doctors, tmp_path):
    """A link is not followed, a pipe not waited for, and what is no time is nothing seen."""
    path = str(tmp_path / "theirs")
    for make in (lambda: os.symlink("/etc/passwd", path), lambda: os.mkfifo(path), lambda: os.mkdir(path)):
        make()
        with pytest.raises(OSError, match="theirs"):
            meeting.written_in(path)
        os.rmdir(path) if os.path.isdir(path) and not os.path.islink(path) else os.unlink(path)
    for text, seen in ((b"1.5\n", 1.5), (b"", None), (b"x", None), (b"nan", None), (b"\xff", None)):
        files.write_durably(path, text)
        assert meeting.written_in(path) == seen


def test_who_waits_is_told_so_at_once(doctors):
    """On stderr, with the line for the other host; a program hears nothing of it."""
    line = f"waiting up to 60 s for a doctor on another host: trainq --root {doctors.root} doctor --meet"
    with doctors.start_one() as process:
        assert line in process.stderr.readline().decode()
        process.send_signal(signal.SIGINT)
    for words in (("--json",), ("--quiet",)):
        with doctors.start_one(*words) as process:
            until(doctors.names)
            process.send_signal(signal.SIGINT)
            assert b"waiting" not in process.communicate(timeout=20)[1]


def test_nobody_came_is_not_that_the_queue_cannot_be_used(doctors):
    found = subprocess.run(
        [sys.executable, "-c", QUICK.format(more="meet.WAIT_S = 0.2"), "doctor", "--meet", "--json"],
        capture_output=True, cwd=doctors.cwd, env=doctors.env, check=False,
    )  # fmt: skip
    checks = [check for check in json.loads(found.stdout)["checks"] if check["name"] == "hosts"]
    assert (found.returncode, [check["state"] for check in checks]) == (1, ["warning"]), found
    assert "no other doctor came" in checks[0]["message"]
    plain = doctors.ok("doctor", "--json").json["checks"]
    assert ["to prove it" in check["message"] for check in plain if check["name"] == "hosts"] == [True]


def test_on_a_queue_for_one_host_there_is_nobody_to_meet(run_trainq):
    """It says so at once, with the way to a queue for several."""
    refused = run_trainq("doctor", "--meet", timeout=20)
    assert (refused.code, "for one host" in refused.err) == (4, True), refused
    assert f"hint: on the host of that disk: trainq --root {run_trainq.root} db convert --shared" in refused.err
    with pytest.raises(NotPossible):
        next(meet(open_queue(run_trainq.root)))


def test_the_store_is_told_in_words_that_are_true(doctors):
    """Of a shared queue nobody shall think that several hosts have one write-ahead log."""
    (store,) = [check for check in doctors.ok("doctor", "--json").json["checks"] if check["name"] == "store"]
    assert "shared mode: one host at a time" in store["message"]
    assert "wal" not in store["message"]
