"""Asks the driver what GPUs there are and who computes on them: NVML by a program of its own (nvml.py) when the module of
nvidia-ml-py is there and works, else nvidia-smi; a host with neither has no GPUs.

A driver in a bad state hangs whoever calls it, in a way that not even KILL ends; so the worker never calls it. Programs
do, and one that gives no answer is killed and not waited for.
"""

from __future__ import annotations

import os
import re
import time
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from trainq.base import clock
from trainq.base.words import printable
from trainq.domain.devices import Device

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

SLICE_S: Final = 0.1
"""How soon a look that is to stop does."""

END_S: Final = 1.0
"""How long a killed program is waited for; one that hangs in the driver is left alone."""

ANSWER_BYTES: Final = 4 * 1024**2
_CSV: Final = "--format=csv,noheader,nounits"

Pids: TypeAlias = tuple[int | None, ...] | None
"""The processes that compute on a GPU, None for one that has no number; None for all of it: it cannot be seen."""


class NoAnswerError(Exception):
    """Why there is no answer, in words. `is_absence`: there is no driver that could give one."""

    def __init__(self, words: str, *, is_absence: bool = False) -> None:
        super().__init__(words)
        self.is_absence = is_absence


class Listing(NamedTuple):
    """What was told: the devices in the order of nvidia-smi, the processes on them where NVML tells, and sentences about
    what could not be seen."""

    devices: list[Device]
    pids: dict[str, Pids]
    troubles: list[str]


class Asker:
    """Runs programs for one answer, all within the same time."""

    def __init__(self, limit_s: float, stopped: Callable[[], bool] = lambda: False) -> None:
        self._limit_s = limit_s
        self._until_s = clock.boot_s() + limit_s
        self._stopped = stopped

    def run(self, name: str, command: Sequence[str]) -> tuple[int, str]:
        """The exit status and the output of a program. Raises NoAnswerError: it did not end by itself in time."""
        import subprocess

        self._check(name)
        null = subprocess.DEVNULL
        try:
            process = subprocess.Popen(
                command, cwd="/", stdin=null, stdout=subprocess.PIPE, stderr=null, start_new_session=True
            )
        except OSError as error:
            raise NoAnswerError(f"{name} cannot be started: {error.strerror}") from None
        assert process.stdout is not None
        try:
            text = self._read(name, process.stdout.fileno())
            status = self._wait(name, process.pid)
            process.wait()
        except NoAnswerError:
            _end(process)
            raise
        finally:
            process.stdout.close()
        return status, text.decode("utf-8", "replace")

    def _check(self, name: str) -> float:
        """The seconds that are left."""
        if self._stopped():
            raise NoAnswerError("the worker ends")
        left_s = self._until_s - clock.boot_s()
        if left_s <= 0:
            raise NoAnswerError(f"{name} gave no answer within {self._limit_s:g} s: is the driver in a bad state?")
        return left_s

    def _read(self, name: str, fd: int) -> bytes:
        import select

        ready = select.poll()
        ready.register(fd, select.POLLIN)
        text = b""
        while True:
            if not ready.poll(1000 * min(SLICE_S, self._check(name))):
                continue
            part = os.read(fd, 65536)
            if not part:
                return text
            text += part
            if len(text) > ANSWER_BYTES:
                raise NoAnswerError(f"{name} does not stop to print")

    def _wait(self, name: str, pid: int) -> int:
        """Its exit status, asked for without reaping: who else may reap it (a worker that ends strays, a caller that
        ignores CHLD) must not make a killed program look like one that ended well."""
        while True:
            try:
                ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                raise NoAnswerError(f"{name} was ended by something else") from None
            if ended is not None:
                break
            time.sleep(min(0.005, self._check(name)))
        if ended.si_code != os.CLD_EXITED:
            raise NoAnswerError(f"{name} was killed by signal {ended.si_status}")
        return ended.si_status


def _end(process: Any) -> None:
    """Kill a program's group, and wait a moment for it."""
    import signal
    import subprocess

    try:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        os.killpg(process.pid, signal.SIGKILL)  # not reaped yet, so the number is still its own
    except (ChildProcessError, ProcessLookupError, PermissionError):
        pass  # gone, or out of reach: then it is left alone as well
    try:
        process.wait(END_S)
    except subprocess.TimeoutExpired:
        pass  # it hangs in the driver; Python reaps it when it starts a program after its end


def listed(asker: Asker) -> Listing:
    """The GPUs of this host, whoever tells of them; who computes on them only if NVML does. Raises NoAnswerError."""
    failure = None
    try:
        listing = _by_module(asker)
        if listing is not None:
            return listing
    except NoAnswerError as error:
        failure = error.with_traceback(None)  # which would keep this frame, and with it a program that hangs
    smi = _smi()
    if smi is not None:
        return _listed_by_smi(asker, smi)
    raise failure or NoAnswerError("there is neither NVML nor nvidia-smi", is_absence=True)


def processes(asker: Asker, devices: Sequence[Device]) -> dict[str, Pids]:
    """Who computes on these devices, by id; without those that the driver does not list. Raises NoAnswerError."""
    listing, failure = None, None
    try:
        listing = _by_module(asker)
        if listing is not None and None not in listing.pids.values():
            return listing.pids
    except NoAnswerError as error:
        failure = error.with_traceback(None)
    smi = _smi()
    if smi is None:
        if listing is not None:
            return listing.pids
        raise failure or NoAnswerError("neither NVML nor nvidia-smi is there any more")
    try:
        told = _processes_by_smi(asker, smi, devices)
    except NoAnswerError:
        if listing is not None:
            return listing.pids
        raise
    return (
        told if listing is None else {**told, **{id_: pids for id_, pids in listing.pids.items() if pids is not None}}
    )


# by the module


def _by_module(asker: Asker) -> Listing | None:
    """All that NVML says; None without the module. Raises NoAnswerError."""
    import importlib.util
    import json
    import sys

    from trainq.worker import nvml

    try:
        if importlib.util.find_spec("pynvml") is None:
            return None
    except ValueError:  # somebody put a thing without a spec there
        return None
    status, text = asker.run("NVML", [sys.executable, "-P", nvml.__file__])
    try:
        answer = json.loads(text.rstrip().rpartition("\n")[2])  # its last line: other modules may greet before it
        if "error" in answer:
            raise NoAnswerError(f"NVML: {_line(answer['error'])}", is_absence=answer["absent"])
        gpus = answer["gpus"]
        return Listing(
            [Device(gpu["id"], _line(gpu["name"]), gpu["vram_mib"], number=gpu["number"]) for gpu in gpus],
            {gpu["id"]: None if gpu["pids"] is None else tuple(gpu["pids"]) for gpu in gpus},
            [_line(trouble) for trouble in answer["troubles"]],
        )
    except (ValueError, KeyError, TypeError):  # something else printed there, or it died
        raise NoAnswerError(f"NVML gave no answer that can be read (exit status {status})") from None


# by nvidia-smi; its output is described in its manual, `nvidia-smi --help-query-gpu` and `--help-query-compute-apps`


def _smi() -> str | None:
    import shutil

    path = shutil.which("nvidia-smi")
    return None if path is None else os.path.abspath(path)


def _listed_by_smi(asker: Asker, smi: str) -> Listing:
    devices: list[Device] = []
    troubles: list[str] = []
    status, text = asker.run("nvidia-smi", [smi, "--query-gpu=index,uuid,name,memory.total", _CSV])
    for line in filter(None, map(str.strip, text.splitlines())):
        row = re.fullmatch(r"(\d+), *(GPU-[^,\s]+), *([^\[\s].*?), *([^,]*)", line)
        if row is None:  # a message, or a GPU that does not say who it is
            troubles.append(f"nvidia-smi: {_line(line)}")
            continue
        vram_mib = int(row[4]) if row[4].isdecimal() else None  # [N/A]: it has none of its own, but uses the host's
        devices.append(Device(row[2], _line(row[3]), vram_mib or None, number=int(row[1])))
    if not devices:
        raise NoAnswerError(sentence(troubles) or f"nvidia-smi lists no GPU (exit status {status})")
    whole = _with_mig(asker, smi)
    if whole:
        devices, more = _in_parts(asker, smi, devices, whole)
        troubles.extend(more)
    return Listing(devices, {}, troubles)


def _with_mig(asker: Asker, smi: str) -> set[int]:
    """The numbers of the GPUs in MIG mode."""
    _, text = asker.run("nvidia-smi", [smi, "--query-gpu=index,mig.mode.current", _CSV])
    return {
        int(number) for number in re.findall(r"^(\d+), *Enabled", text, re.MULTILINE)
    }  # else it knows no such field


def _in_parts(asker: Asker, smi: str, devices: list[Device], whole: set[int]) -> tuple[list[Device], list[str]]:
    """The devices, those GPUs replaced by their parts. Their memory is what their name says, a little more than they
    have: nvidia-smi has no other line for it."""
    _, text = asker.run("nvidia-smi", [smi, "-L"])
    parts: dict[int, list[tuple[str, str]]] = {}
    number = -1
    for line in text.splitlines():
        gpu = re.match(r"GPU (\d+): ", line)
        part = re.match(r"\s+MIG (\S+)\s+Device\s+\d+: \(UUID: (MIG-[^)\s]+)\)", line)
        if gpu:
            number = int(gpu[1])
        elif part:
            parts.setdefault(number, []).append((part[1], part[2]))
    found: list[Device] = []
    troubles: list[str] = []
    for device in devices:
        if device.number not in whole:
            found.append(device)
        elif device.number not in parts:
            troubles.append(f"GPU {device.number} is in MIG mode and has no parts to compute on")
        else:
            for profile, uuid in parts[device.number]:
                size = re.search(r"(\d+)gb", profile)
                vram_mib = int(size[1]) * 1024 if size else device.vram_mib
                found.append(Device(uuid, f"{device.name} MIG {profile}", vram_mib, number=device.number))
    return found, troubles


def _processes_by_smi(asker: Asker, smi: str, devices: Iterable[Device]) -> dict[str, Pids]:
    status, text = asker.run("nvidia-smi", [smi, "--query-gpu=index,uuid", _CSV])
    there = {uuid: int(number) for number, uuid in re.findall(r"^(\d+), *(GPU-\S+)\s*$", text, re.MULTILINE)}
    if not there:
        raise NoAnswerError(f"nvidia-smi: {_line(text) or f'exit status {status}'}")
    status, text = asker.run("nvidia-smi", [smi, "--query-compute-apps=gpu_uuid,pid", _CSV])
    computing: dict[str, list[int | None]] = {}
    for uuid, pid in re.findall(r"^((?:GPU|MIG)-[^,\s]+), *(.*?)\s*$", text, re.MULTILINE):
        computing.setdefault(uuid, []).append(int(pid) if pid.isdecimal() else None)
    is_told = status == 0 and (bool(computing) or not text.strip())
    processes: dict[str, Pids] = {}
    for device in devices:
        names = {device.id} & there.keys()
        if device.id.startswith("MIG-"):  # the list may name the GPU only: on each of its parts then is what is on any
            names = {uuid for uuid, number in there.items() if number == device.number}
        if names:
            pids = [pid for uuid in {*names, device.id} for pid in computing.get(uuid, ())]
            processes[device.id] = tuple(dict.fromkeys(pids)) if is_told else None
    return processes


def _line(text: str) -> str:
    """A message of another program as one short line."""
    return printable(" ".join(text.split()))[:300]


def sentence(troubles: Sequence[str]) -> str | None:
    """The first of them, and how many there are."""
    more = f" (and {len(troubles) - 1} more)" if len(troubles) > 1 else ""
    return troubles[0] + more if troubles else None
