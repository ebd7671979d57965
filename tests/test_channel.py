"""The worker's end of the channel: no client can stop, block or grow it, and no other can speak for it."""

from __future__ import annotations

import contextlib
import json
import math
import os
import resource
import socket
import stat
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from listening import UID, Listening

from trainq.worker import channel as module

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def worker() -> Iterator[Listening]:
    listening = Listening()
    yield listening
    listening.close()


def is_closed(client: socket.socket) -> bool:
    """Has the worker closed this client's connection? (Its own unread words make that a reset.)"""
    client.setblocking(False)
    try:
        return client.recv(1) == b""
    except BlockingIOError:
        return False
    except ConnectionResetError:
        return True


def test_messages_arrive_well_formed_with_their_address(worker: Listening) -> None:
    """What on_message gets has all keys, and the uid and attempt of the hello."""
    worker.connect({"do": "progress", "step": 1, "total": 4}, {"do": "metric", "values": {"loss": 1}})
    worker.until(lambda: len(worker.heard) == 2)
    assert worker.heard == [
        (UID, 1, {"do": "progress", "fraction": 0.25, "step": 1, "total": 4, "message": None}),
        (UID, 1, {"do": "metric", "values": {"loss": 1.0}, "step": None, "group": None}),
    ]


@pytest.mark.parametrize(
    ("sent", "heard"),
    [
        ({"fraction": 7}, {"fraction": 1.0}),
        ({"fraction": -1, "step": 10**30}, {"fraction": 0.0, "step": None}),
        ({"fraction": "x", "message": "m"}, {"fraction": None, "message": "m"}),
        ({"step": 3, "total": 0}, {"fraction": None, "step": 3, "total": 0}),
        ({"step": [1], "total": {}, "message": "\ud800"}, {"step": None, "message": "?"}),
        ({"message": "x" * 5000}, {"message": "x" * 1000}),
    ],
)
def test_odd_progress_is_put_right(worker: Listening, sent: dict[str, Any], heard: dict[str, Any]) -> None:
    """Values that are out of range or of another type never reach the worker."""
    worker.connect({"do": "progress", **sent})
    worker.until(lambda: worker.heard)
    assert heard.items() <= worker.heard[0][2].items()


def test_odd_metrics_are_put_right(worker: Listening) -> None:
    """Non-finite numbers come as floats, what is no number is left out, the rest of the line counts."""
    values = b'{"a":"nan","b":"-inf","c":1e999,"d":"abc","e":null,"f":NaN,"g":2,"h":[1],"i":1' + b"0" * 400 + b"}"
    worker.connect(b'{"do":"metric","values":' + values + b',"step":3,"group":"train"}\n')
    worker.until(lambda: worker.heard)
    message = worker.heard[0][2]
    assert set(message["values"]) == {"a", "b", "c", "f", "g"}
    assert math.isnan(message["values"]["a"])
    assert message["values"]["b"] == -math.inf
    assert (message["step"], message["group"]) == (3, "train")


def test_unknown_words_are_passed_over(worker: Listening) -> None:
    """A newer client's words do no harm: the connection stays, the next known word counts, an ack is given."""
    client = worker.connect(
        {"do": "sing", "ack": 7},
        {"what": 1},
        {"do": ["x"]},
        {"do": "progress"},
        {"do": "metric", "values": 3},
    )
    client.sendall(b'{"do":"progress","fraction":0.5,"later":true}\n')
    worker.until(lambda: worker.heard)
    assert len(worker.heard) == 1
    assert client.recv(100) == b'{"ack":7}\n'


@pytest.mark.parametrize(
    "bad",
    [
        b"not json\n",
        b'{"do":"progress","message":"\xff"}\n',
        b"[1]\n",
        b"[" * 100_000 + b"\n",
        b"\n",
        b"x" * (module.LINE_LIMIT + 1),
        b'{"do":"' + b"x" * module.LINE_LIMIT + b'"}\n',
        b'{"do":"metric","values":{"a":' + b"1" * 5000 + b"}}\n",
    ],
    ids=["text", "utf-8", "list", "deep", "empty", "endless", "long", "digits"],
)
def test_a_bad_line_costs_only_its_connection(worker: Listening, bad: bytes) -> None:
    """Invalid JSON, invalid UTF-8, a line over 1 MiB: that client goes, another is heard as before."""
    good = worker.connect()
    client = worker.connect()
    client.setblocking(False)
    left = memoryview(bad)

    def sent_and_closed() -> bool:
        nonlocal left
        try:
            while left:
                left = left[client.send(left) :]
        except BlockingIOError:
            return False
        except (BrokenPipeError, ConnectionResetError):
            return True
        return is_closed(client)

    worker.until(sent_and_closed)
    good.sendall(b'{"do":"progress","fraction":0.5}\n')
    worker.until(lambda: worker.heard)
    assert len(worker.heard) == 1
    assert not is_closed(good)


@pytest.mark.parametrize("first", [{"do": "progress", "fraction": 1}, {"hello": 1, "attempt": 1}, {"hello": "x"}])
def test_who_does_not_say_hello_is_not_heard(worker: Listening, first: dict[str, Any]) -> None:
    """The first line names the job; without it the connection is closed."""
    client = worker.connect(first, {"do": "progress", "fraction": 1}, hello=False)
    worker.until(lambda: is_closed(client))
    assert worker.heard == []


def test_stop_reaches_every_process_of_the_attempt_and_no_other(worker: Listening) -> None:
    """push goes to all connections of the attempt; a stop also to one that connects later; drop forgets it."""
    ours = [worker.connect(), worker.connect()]
    other = worker.connect({"hello": UID, "attempt": 2}, hello=False)
    worker.settle()
    worker.channel.push(UID, 1, {"do": "stop", "reason": "canceled"})
    ours.append(worker.connect())
    worker.settle()
    for client in ours:
        assert json.loads(client.recv(100)) == {"do": "stop", "reason": "canceled"}
    other.setblocking(False)
    with pytest.raises(BlockingIOError):
        other.recv(100)
    worker.channel.drop(UID, 1)
    late = worker.connect()
    worker.settle()
    late.setblocking(False)
    with pytest.raises(BlockingIOError):
        late.recv(100)


def test_drop_delivers_the_last_words(worker: Listening) -> None:
    """What a job had sent before its end is heard although the loop never saw it: even from a fresh connection."""
    with worker.connect({"do": "metric", "values": {"loss": 0.5}}, *[{"do": "progress", "step": n} for n in range(9)]):
        pass
    assert worker.heard == []
    worker.channel.drop(UID, 1)
    assert len(worker.heard) == 10


def test_drop_closes_only_this_attempt(worker: Listening) -> None:
    """A stray of the ended attempt is cut off, the next attempt's process is not."""
    stray, next_one = worker.connect(), worker.connect({"hello": UID, "attempt": 2}, hello=False)
    worker.settle()
    worker.channel.drop(UID, 1)
    assert is_closed(stray)
    assert not is_closed(next_one)


def test_drop_of_a_job_that_never_stops_talking_ends(worker: Listening) -> None:
    """drop reads a bounded amount, also while a process of the job goes on writing."""
    script = (
        "import os,socket;s=socket.socket(socket.AF_UNIX);s.connect(os.environ['TRAINQ_SOCKET']);"
        's.sendall(b\'{"hello":"0123-uid","attempt":1}\\n\')\n'
        'try:\n while True: s.sendall(b\'{"do":"x"}\\n\'*1000)\nexcept OSError: pass'
    )
    with worker.start(script) as process:
        worker.until(lambda: worker.channel._of((UID, 1)))
        worker.channel.drop(UID, 1)
        assert worker.channel._of((UID, 1)) == []
        worker.until(lambda: process.poll() is not None)


def test_a_slow_reader_never_blocks_the_worker(worker: Listening) -> None:
    """Pushes to a process that reads nothing end with its connection, not with a wait; others get theirs."""
    slow = worker.connect()
    good = worker.connect({"hello": "other", "attempt": 1}, hello=False)
    worker.settle()
    for _ in range(2000):
        worker.channel.push(UID, 1, {"do": "note", "text": "x" * 1000})
    assert worker.channel._of((UID, 1)) == []
    worker.channel.push("other", 1, {"do": "stop", "reason": "time"})
    assert b"stop" in good.recv(100)
    assert slow.recv(100)


def test_what_did_not_fit_is_sent_when_there_is_room(worker: Listening) -> None:
    """A reader that was slow for a moment gets every line, whole and in order."""
    client = worker.connect()
    worker.settle()
    (connection,) = worker.channel._of((UID, 1))
    count = 0
    while not connection.out:
        worker.channel.push(UID, 1, {"do": "note", "n": count, "text": "x" * 1000})
        count += 1
    client.setblocking(False)
    received = b""

    def all_there() -> bool:
        nonlocal received
        try:
            received += client.recv(1 << 20)
        except BlockingIOError:
            pass
        return received.count(b"\n") == count

    worker.until(all_there)
    assert [json.loads(line)["n"] for line in received.splitlines()] == list(range(count))
    worker.settle()  # and the loop is not woken for writing any more


def test_on_message_may_drop(worker: Listening) -> None:
    """A callback may end the attempt that is being read: the rest of what was read is then not delivered."""
    heard = []

    def drop(uid: str, attempt: int, message: dict[str, Any]) -> None:
        heard.append(message)
        worker.channel.drop(uid, attempt)

    worker.channel._on_message = drop
    client = worker.connect(*[{"do": "progress", "step": n, "ack": n} for n in range(5)])
    worker.until(lambda: is_closed(client))
    assert [message["step"] for message in heard] == [0]


def test_one_job_cannot_take_all_connections(worker: Listening, monkeypatch: pytest.MonkeyPatch) -> None:
    """DESIGN 2.10: there is an end to them; then who has the most loses its last one, and every other job is heard."""
    monkeypatch.setattr(worker.channel, "_most", 3)
    greedy = []
    for _ in range(5):
        greedy.append(worker.connect())
        worker.settle()
    assert sum(not is_closed(client) for client in greedy) <= 3
    other = worker.connect({"hello": "other", "attempt": 1}, {"do": "progress", "fraction": 1}, hello=False)
    worker.until(lambda: worker.heard)
    for _ in range(5):
        greedy.append(worker.connect())
        worker.settle()
    other.sendall(b'{"do":"progress","fraction":0.5}\n')
    worker.until(lambda: len(worker.heard) == 2)
    assert {uid for uid, _, _ in worker.heard} == {"other"}
    greedy[0].sendall(b'{"do":"progress","fraction":0.5}\n')
    worker.until(lambda: len(worker.heard) == 3)


def test_who_says_nothing_cannot_take_all_connections(worker: Listening, monkeypatch: pytest.MonkeyPatch) -> None:
    """DESIGN 2.10: of those that have not said who they are the first goes: who has just come may be about to say it."""
    monkeypatch.setattr(worker.channel, "_most", 3)
    silent = [worker.connect(hello=False) for _ in range(3)]
    worker.settle()
    ours = worker.connect({"do": "progress", "fraction": 1})
    silent.append(worker.connect(hello=False))
    worker.until(lambda: worker.heard)
    assert [is_closed(client) for client in (*silent, ours)] == [True, True, False, False, False]


def test_without_descriptors_it_waits(worker: Listening) -> None:
    """DESIGN 2.10: with none left for who connects the loop does not turn in circles; it is heard when there are some."""
    client = socket.socket(socket.AF_UNIX)
    worker.clients.append(client)
    client.connect(worker.channel.path)
    client.sendall(b'{"hello":"0123-uid","attempt":1}\n{"do":"progress","fraction":1}\n')
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (client.fileno() + 10, limits[1]))
    taken = []
    try:
        with contextlib.suppress(OSError):
            while True:
                taken.append(os.open(os.devnull, os.O_RDONLY))
        worker.turn()
        assert worker.selector.select(0) == []
        worker.channel.listen_again()
        worker.turn()
        assert worker.selector.select(0) == []
    finally:
        for fd in taken:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    worker.channel.listen_again()
    worker.until(lambda: worker.heard)


@pytest.mark.skipif(os.geteuid() != 0, reason="a second uid needs root")
def test_another_user_is_not_heard(worker: Listening) -> None:
    """SO_PEERCRED: a process of another uid is cut off, even where the directory would let it in."""
    for path in (worker.runtime, os.path.dirname(worker.channel.path)):
        os.chmod(path, 0o755)
    os.chmod(worker.channel.path, 0o777)
    script = (
        "import os,socket;os.setuid(65534);s=socket.socket(socket.AF_UNIX);s.connect(os.environ['TRAINQ_SOCKET'])\n"
        'try:\n s.sendall(b\'{"hello":"0123-uid","attempt":1}\\n{"do":"progress","fraction":1}\\n\')\n print(s.recv(1))\n'
        "except OSError: print(b'')"
    )
    status, out, err = worker.run(script)
    assert (status, out.strip(), worker.heard) == (0, "b''", []), err


def test_the_socket_lies_in_a_private_directory(worker: Listening) -> None:
    """0700 and this user's, whatever the umask; the path fits into a socket address; close removes it."""
    directory = os.lstat(os.path.dirname(worker.channel.path))
    assert stat.S_IMODE(directory.st_mode) == 0o700
    assert directory.st_uid == os.geteuid()
    assert len(os.fsencode(worker.channel.path)) < 100


def test_close_removes_the_socket() -> None:
    """Nothing is left but the directory that the user's workers share."""
    listening = Listening()
    listening.connect()
    listening.settle()
    path = listening.channel.path
    listening.channel.close()
    left = os.listdir(os.path.dirname(path))
    listening.remove()
    assert left == []
    assert not listening.selector.get_map()


@pytest.mark.parametrize("runtime", ["", "relative", "/nonexistent", "/tmp", "long"])
def test_an_unusable_runtime_directory_is_not_used(
    runtime: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    """Not there, open to others or too long for a socket: /tmp is taken."""
    if runtime == "long":
        made = tmp_path / ("x" * 100)
        made.mkdir(mode=0o700)
        runtime = str(made)
    monkeypatch.setenv("XDG_RUNTIME_DIR", runtime)
    directory, own = module._private_directory()
    assert directory == f"/tmp/trainq-{os.geteuid()}"
    assert not own
    assert len(os.fsencode(directory)) < 60


def test_a_name_taken_by_somebody_else_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the shared name is a link or can be entered by others, the worker makes a directory of its own."""
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    monkeypatch.setattr(module.runtime, "is_private", lambda directory: False)
    directory, own = module._private_directory()
    try:
        assert own
        assert stat.S_IMODE(os.lstat(directory).st_mode) == 0o700
    finally:
        os.rmdir(directory)


def test_private_means_private(tmp_path: Any) -> None:
    """A link to a private directory, a directory others can enter and a file are none."""
    good, bad, link, file = (tmp_path / name for name in ("good", "bad", "link", "file"))
    good.mkdir(mode=0o700)
    bad.mkdir()
    bad.chmod(0o710)
    link.symlink_to(good)
    file.touch(mode=0o600)
    assert [module.runtime.is_private(str(path)) for path in (good, bad, link, file, tmp_path / "none")] == [
        True,
        False,
        False,
        False,
        False,
    ]


def test_sockets_of_dead_workers_are_swept(worker: Listening) -> None:
    """The next worker removes what a killed one left; a living worker's, a fresh one and other files stay."""
    directory = os.path.dirname(worker.channel.path)
    paths = {name: os.path.join(directory, name) for name in ("dead", "fresh", "file")}
    for name in ("dead", "fresh"):
        with socket.socket(socket.AF_UNIX) as left:
            left.bind(paths[name])
    with open(paths["file"], "w"):
        pass
    for path in (paths["dead"], paths["file"], worker.channel.path):
        os.utime(path, (1, 1))
    module._sweep(directory)
    assert sorted(os.listdir(directory)) == sorted(["fresh", "file", os.path.basename(worker.channel.path)])
    worker.settle()
    worker.connect({"do": "progress", "fraction": 1})
    worker.until(lambda: worker.heard)


def test_a_socket_swept_away_comes_back(worker: Listening) -> None:
    """ensure makes the socket again at the same path, also when the whole directory went; else it does nothing."""
    worker.channel.ensure()
    listener = worker.channel._listener
    worker.channel.ensure()
    assert worker.channel._listener is listener
    os.unlink(worker.channel.path)
    os.rmdir(os.path.dirname(worker.channel.path))
    worker.channel.ensure()
    worker.connect({"do": "progress", "fraction": 1})
    worker.until(lambda: worker.heard)


def test_a_directory_that_is_a_strangers_now_is_left(worker: Listening) -> None:
    """ensure looks at the directory as the start did: one that others can enter, or a link, is trusted no more."""
    before = worker.channel.path
    os.chmod(os.path.dirname(before), 0o777)
    worker.channel.ensure()
    after = worker.channel.path
    assert os.path.dirname(after) != os.path.dirname(before)
    assert module.runtime.is_private(os.path.dirname(after))
    worker.connect({"do": "progress", "fraction": 1})
    worker.until(lambda: worker.heard)


def test_a_socket_that_cannot_be_made_again_leaves_the_old_one(
    worker: Listening, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker goes on with what it has, and can try again."""
    listener, path = worker.channel._listener, worker.channel.path
    os.unlink(path)
    monkeypatch.setattr(module, "_private_directory", lambda: ("/nonexistent", False))
    with pytest.raises(module.Unwritable):
        worker.channel.ensure()
    assert worker.channel._listener is listener
    assert listener in [key.fileobj for key in worker.selector.get_map().values()]
    monkeypatch.undo()
    monkeypatch.setenv("XDG_RUNTIME_DIR", worker.runtime)
    worker.channel.ensure()
    assert worker.channel.path == path
    worker.connect({"do": "progress", "fraction": 1})
    worker.until(lambda: worker.heard)


def test_with_guest() -> None:
    """The guest directory stands at the end, once; an empty PYTHONPATH does not become the current directory."""
    guest = module.guest_directory()
    assert os.listdir(os.path.join(guest, "trainq"))
    assert module.with_guest(None) == module.with_guest("") == guest
    assert module.with_guest(f"{guest}:/a:/b") == f"/a:/b:{guest}"


def test_no_thread_and_closed_for_children(worker: Listening) -> None:
    """A started job inherits no descriptor of the channel."""
    worker.connect()
    worker.settle()
    script = "import os;print([os.readlink(f'/proc/self/fd/{n}') for n in os.listdir('/proc/self/fd') if int(n) > 2 and os.path.exists(f'/proc/self/fd/{n}')])"
    out = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, close_fds=False, check=True)
    assert "socket" not in out.stdout
