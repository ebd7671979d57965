"""A worker's end of the channel, for tests of both ends: real sockets, one poll loop, in a directory of its own."""

from __future__ import annotations

import json
import os
import selectors
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from typing import TYPE_CHECKING, Any

import trainq
from trainq.worker.channel import Channel

if TYPE_CHECKING:
    from collections.abc import Callable

# Where the package is that is tested: the checkout, or where it was installed.
REPOSITORY = os.path.dirname(os.path.dirname(os.path.abspath(trainq.__file__)))
UID = "0123-uid"


class Listening:
    """A channel and all it has heard."""

    def __init__(self) -> None:
        self.runtime = tempfile.mkdtemp(prefix="tq", dir="/tmp")
        before = os.environ.get("XDG_RUNTIME_DIR")
        os.environ["XDG_RUNTIME_DIR"] = self.runtime
        self.selector = selectors.DefaultSelector()
        self.heard: list[tuple[str, int, dict[str, Any]]] = []
        try:
            self.channel = Channel(self.selector, lambda *said: self.heard.append(said))
        finally:
            if before is None:
                del os.environ["XDG_RUNTIME_DIR"]
            else:
                os.environ["XDG_RUNTIME_DIR"] = before
        self.clients: list[socket.socket] = []

    def close(self) -> None:
        self.channel.close()
        self.selector.close()
        self.remove()

    def remove(self) -> None:
        for client in self.clients:
            client.close()
        shutil.rmtree(self.runtime)

    def turn(self, timeout_s: float = 0.02) -> None:
        for key, _ in self.selector.select(timeout_s):
            key.data()

    def until(self, condition: Callable[[], Any], within_s: float = 20) -> Any:
        """Run the loop until the condition holds; fails after a generous time."""
        end = time.monotonic() + within_s
        while not (found := condition()):
            assert time.monotonic() < end, f"did not happen; heard {self.heard[-5:]}"
            self.turn()
        return found

    def settle(self) -> None:
        """Run the loop until nothing is ready."""
        while ready := self.selector.select(0):
            for key, _ in ready:
                key.data()

    def connect(self, *lines: Any, hello: bool = True) -> socket.socket:
        """A raw client; lines are objects or bytes."""
        client = socket.socket(socket.AF_UNIX)
        self.clients.append(client)
        client.settimeout(20)
        client.connect(self.channel.path)
        if hello:
            lines = ({"hello": UID, "attempt": 1}, *lines)
        for line in lines:
            client.sendall(line if isinstance(line, bytes) else json.dumps(line).encode() + b"\n")
        return client

    def env(self, **more: str) -> dict[str, str]:
        """The environment of a job of this worker."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith("TRAINQ_")}
        return {
            **kept,
            "PYTHONPATH": REPOSITORY,
            "TRAINQ_SOCKET": self.channel.path,
            "TRAINQ_JOB_UID": UID,
            "TRAINQ_ATTEMPT": "1",
            **more,
        }

    def start(self, script: str, **more: str) -> subprocess.Popen[str]:
        """Start a script as a job."""
        return subprocess.Popen(
            [sys.executable, "-c", script],
            env=self.env(**more),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, script: str, **more: str) -> tuple[int, str, str]:
        """Run a script as a job to its end: its status, stdout and stderr. All it said is heard afterwards."""
        with self.start(script, **more) as process:
            self.until(lambda: process.poll() is not None, 60)
            out, err = process.communicate()
        self.settle()
        return process.returncode, out, err

    def metrics(self, name: str) -> list[tuple[Any, float]]:
        """(step, value) of each point heard of a name, in order."""
        said = [message for _, _, message in self.heard if message["do"] == "metric"]
        return [(message["step"], message["values"][name]) for message in said if name in message["values"]]

    def progress(self) -> list[dict[str, Any]]:
        return [message for _, _, message in self.heard if message["do"] == "progress"]
