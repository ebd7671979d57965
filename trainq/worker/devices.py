"""What GPUs this host has, and who else computes on them.

NVML is asked when the module of nvidia-ml-py is there and works, else nvidia-smi; a host with neither has no GPUs.

What must stay true:
- Nothing here raises, or waits for longer than it was told. A driver in a bad state hangs whoever calls it, in a way
  that not even KILL ends; so the worker never calls it. Programs do, and one that gives no answer is killed and not
  waited for.
- No answer is never taken for "nobody": devices then stay as they were last seen.
- A process is ours only if the caller says so. Jobs of other trainq workers are foreign, and from their start on, not
  only from their first kernel: the environment of a job says which GPUs it was given.

What cannot be seen: jobs of other users' workers before they compute; other workers' jobs in the moment in which two
workers start one each; and in a container of its own pids, whose a process is. The driver counts pids as the host does,
so there everything on a GPU that none of our jobs holds is foreign.
"""

from __future__ import annotations

import os
import re
import time
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from trainq.base import clock, hosts
from trainq.base.words import printable
from trainq.domain.devices import Device
from trainq.worker import tree

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

LIMIT_S: Final = 30.0
"""How long an answer is waited for. A driver that is not kept loaded takes ten seconds and more for eight GPUs."""

SLICE_S: Final = 0.1
"""How soon a look that is to stop does."""

END_S: Final = 1.0
"""How long a killed program is waited for; one that hangs in the driver is left alone."""

ANSWER_BYTES: Final = 4 * 1024**2
_CSV: Final = "--format=csv,noheader,nounits"
_FIRST_NAMESPACE: Final = "pid:[4026531836]"
"""The link of the pids that the kernel itself, and so the driver, counts by: PROC_PID_INIT_INO in its proc_ns.h."""

_Pids: TypeAlias = tuple[int | None, ...] | None
"""The processes that compute on a GPU, None for one that has no number; None for all of it: it cannot be seen."""


class Seen(NamedTuple):
    """What a look saw. `trouble` is a sentence for people about what it could not see, and None on a host that has no
    GPU and no driver. `is_answer` is false if nothing answered: the devices are then as they were before."""

    devices: tuple[Device, ...]
    trouble: str | None = None
    is_answer: bool = True


def found(limit_s: float = LIMIT_S) -> Seen:
    """The GPUs of this host in the order of nvidia-smi, in MIG mode their parts. Takes up to `limit_s` seconds (and
    `END_S` to end what hangs); none, and why, when nothing has answered by then. Never raises.

    A GPU that does not answer is left out, and those behind it keep their numbers.
    """
    asker = _Asker(limit_s)
    try:
        listing = _by_module(asker)
        if listing is not None:
            return Seen(tuple(listing.devices), _sentence(listing.troubles))
        failure = None
    except _NoAnswerError as error:
        failure = error.with_traceback(None)  # which would keep this frame, and with it a program that hangs
    try:
        smi = _smi()
        if smi is not None:
            return _listed_by_smi(asker, smi)
    except _NoAnswerError as error:
        failure = error.with_traceback(None)
    if failure is None or failure.is_absence:
        return Seen(())
    return Seen((), str(failure), is_answer=False)


def foreign(
    devices: Sequence[Device],
    ours: Callable[[int], bool],
    *,
    held: Collection[str] = (),
    limit_s: float = LIMIT_S,
    stopped: Callable[[], bool] = lambda: False,
) -> Seen:
    """The same devices, with `foreign` set on those on which a process computes that is not ours, or that do not
    answer. Takes up to `limit_s` seconds, less once `stopped` says so; without an answer the devices are given back as
    they are, and why. Raises nothing but what `ours` does.

    `ours` is asked about pids of this host (see `is_below`). `held` are the ids of the devices that our jobs hold: on
    them a process counts as ours if the driver gives it no number that means anything here. A process that only shows
    pictures is not on the driver's list of those that compute. What is listed and gone is foreign: it still holds
    memory there.
    """
    real = [device for device in devices if not device.is_simulated]
    if not real:
        return Seen(tuple(devices))
    try:
        processes = _processes(_Asker(limit_s, stopped), real)
    except _NoAnswerError as error:
        return Seen(tuple(devices), str(error), is_answer=False)
    elsewhere = _given_elsewhere({device.id for device in real}, ours)
    has_own_pids = _has_own_pids()

    def is_ours(device: Device, pid: int | None) -> bool:
        return device.id in held if pid is None or has_own_pids else ours(pid)

    def who(device: Device) -> str | None:
        if device.is_simulated:
            return None
        if device.id not in processes:
            return "the driver does not answer for it"
        others = [pid for pid in processes[device.id] or () if not is_ours(device, pid)]
        words = [_words(pid, has_own_pids) for pid in others]
        words.extend(_words(pid) for pid in elsewhere.get(device.id, ()) if has_own_pids or pid not in others)
        more = f" and {len(words) - 1} more" if len(words) > 1 else ""
        return words[0] + more if words else None

    blind = [str(device.number) for device in real if processes.get(device.id, ()) is None]
    trouble = f"the driver does not tell who computes on GPU {', '.join(blind)}" if blind else None
    return Seen(tuple(device._replace(foreign=who(device)) for device in devices), trouble)


class Looker:
    """The last look at a worker's GPUs, for the loop to read at any time. It has no thread: the loop asks `begin`, and
    then lets a thread of its pool call `refresh`. Until the first one nothing is known, and nobody is seen as
    foreign."""

    def __init__(self, devices: Sequence[Device], ours: Callable[[int], bool], *, limit_s: float = LIMIT_S) -> None:
        self.seen = Seen(tuple(devices))
        self.looked_s: float | None = None
        """When the last look that had an answer began, in seconds of `clock.boot_s`; None: there was none."""
        self._ours = ours
        self._limit_s = limit_s
        self._is_real = any(not device.is_simulated for device in devices)
        self._began_s: float | None = None
        self._is_under_way = False
        self._is_stopped = False

    def begin(self, every_s: float) -> bool:
        """Whether it is time to look: none is under way and the last one began `every_s` seconds ago. If so the caller
        sees to it that `refresh` is called; until that returns this says no."""
        if not self._is_real or self._is_under_way or self._is_stopped:
            return False
        if self._began_s is not None and clock.boot_s() < self._began_s + every_s:
            return False
        self._is_under_way = True
        return True

    def refresh(self, held: Collection[str] = ()) -> Seen:
        """Look now, and keep what was seen; `held` and the rest as for `foreign`. For a thread, of which there may be
        one at a time."""
        self._is_under_way = True
        try:
            self._began_s = began_s = clock.boot_s()
            seen = foreign(
                self.seen.devices, self._ours, held=held, limit_s=self._limit_s, stopped=lambda: self._is_stopped
            )
            if not self._is_stopped:
                self.seen = seen
                if seen.is_answer:
                    self.looked_s = began_s
        finally:
            self._is_under_way = False
        return self.seen

    def stop(self) -> None:
        """At the worker's end: a look that is under way gives up at once, and none begins."""
        self._is_stopped = True


def is_below(pid: int, ancestor: int) -> bool:
    """Whether a process is `ancestor` or descends from it. All that jobs leave behind stays below the worker (it and
    its keepers are subreapers), so with its own pid this tells a worker whose a process is."""
    now: int | None = pid
    for _ in range(3):  # a process on the way that ends meanwhile is no answer: then its child has another parent
        while now is not None and now > 1 and now != ancestor:
            above = tree.stat(now)
            now = None if above is None else above.parent
        if now is not None or tree.stat(pid) is None:
            break
        now = pid
    return now == ancestor


class _NoAnswerError(Exception):
    """Why there is no answer, in words. `is_absence`: there is no driver that could give one."""

    def __init__(self, words: str, *, is_absence: bool = False) -> None:
        super().__init__(words)
        self.is_absence = is_absence


class _Listing(NamedTuple):
    devices: list[Device]
    pids: dict[str, _Pids]
    troubles: list[str]


class _Asker:
    """Runs programs for one answer, all within the same time."""

    def __init__(self, limit_s: float, stopped: Callable[[], bool] = lambda: False) -> None:
        self._limit_s = limit_s
        self._until_s = clock.boot_s() + limit_s
        self._stopped = stopped

    def run(self, name: str, command: Sequence[str]) -> tuple[int, str]:
        """The exit status and the output of a program. Raises _NoAnswerError: it did not end by itself in time."""
        import subprocess

        self._check(name)
        null = subprocess.DEVNULL
        try:
            process = subprocess.Popen(
                command, cwd="/", stdin=null, stdout=subprocess.PIPE, stderr=null, start_new_session=True
            )
        except OSError as error:
            raise _NoAnswerError(f"{name} cannot be started: {error.strerror}") from None
        assert process.stdout is not None
        try:
            text = self._read(name, process.stdout.fileno())
            status = self._wait(name, process.pid)
            process.wait()
        except _NoAnswerError:
            _end(process)
            raise
        finally:
            process.stdout.close()
        return status, text.decode("utf-8", "replace")

    def _check(self, name: str) -> float:
        """The seconds that are left."""
        if self._stopped():
            raise _NoAnswerError("the worker ends")
        left_s = self._until_s - clock.boot_s()
        if left_s <= 0:
            raise _NoAnswerError(f"{name} gave no answer within {self._limit_s:g} s: is the driver in a bad state?")
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
                raise _NoAnswerError(f"{name} does not stop to print")

    def _wait(self, name: str, pid: int) -> int:
        """Its exit status, asked for without reaping: who else may reap it (a worker that ends strays, a caller that
        ignores CHLD) must not make a killed program look like one that ended well."""
        while True:
            try:
                ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                raise _NoAnswerError(f"{name} was ended by something else") from None
            if ended is not None:
                break
            time.sleep(min(0.005, self._check(name)))
        if ended.si_code != os.CLD_EXITED:
            raise _NoAnswerError(f"{name} was killed by signal {ended.si_status}")
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


# by the module


def _by_module(asker: _Asker) -> _Listing | None:
    """All that NVML says; None without the module. Raises _NoAnswerError."""
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
            raise _NoAnswerError(f"NVML: {_line(answer['error'])}", is_absence=answer["absent"])
        gpus = answer["gpus"]
        return _Listing(
            [Device(gpu["id"], _line(gpu["name"]), gpu["vram_mib"], number=gpu["number"]) for gpu in gpus],
            {gpu["id"]: None if gpu["pids"] is None else tuple(gpu["pids"]) for gpu in gpus},
            [_line(trouble) for trouble in answer["troubles"]],
        )
    except (ValueError, KeyError, TypeError):  # something else printed there, or it died
        raise _NoAnswerError(f"NVML gave no answer that can be read (exit status {status})") from None


# by nvidia-smi; its output is described in its manual, `nvidia-smi --help-query-gpu` and `--help-query-compute-apps`


def _smi() -> str | None:
    import shutil

    path = shutil.which("nvidia-smi")
    return None if path is None else os.path.abspath(path)


def _listed_by_smi(asker: _Asker, smi: str) -> Seen:
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
        raise _NoAnswerError(_sentence(troubles) or f"nvidia-smi lists no GPU (exit status {status})")
    whole = _with_mig(asker, smi)
    if whole:
        devices, more = _in_parts(asker, smi, devices, whole)
        troubles.extend(more)
    return Seen(tuple(devices), _sentence(troubles))


def _with_mig(asker: _Asker, smi: str) -> set[int]:
    """The numbers of the GPUs in MIG mode."""
    _, text = asker.run("nvidia-smi", [smi, "--query-gpu=index,mig.mode.current", _CSV])
    return {
        int(number) for number in re.findall(r"^(\d+), *Enabled", text, re.MULTILINE)
    }  # else it knows no such field


def _in_parts(asker: _Asker, smi: str, devices: list[Device], whole: set[int]) -> tuple[list[Device], list[str]]:
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


def _processes(asker: _Asker, devices: Sequence[Device]) -> dict[str, _Pids]:
    """Who computes on these devices, by id; without those that the driver does not list. Raises _NoAnswerError."""
    listing, failure = None, None
    try:
        listing = _by_module(asker)
        if listing is not None and None not in listing.pids.values():
            return listing.pids
    except _NoAnswerError as error:
        failure = error.with_traceback(None)
    smi = _smi()
    if smi is None:
        if listing is not None:
            return listing.pids
        raise failure or _NoAnswerError("neither NVML nor nvidia-smi is there any more")
    try:
        told = _processes_by_smi(asker, smi, devices)
    except _NoAnswerError:
        if listing is not None:
            return listing.pids
        raise
    return (
        told if listing is None else {**told, **{id_: pids for id_, pids in listing.pids.items() if pids is not None}}
    )


def _processes_by_smi(asker: _Asker, smi: str, devices: Iterable[Device]) -> dict[str, _Pids]:
    status, text = asker.run("nvidia-smi", [smi, "--query-gpu=index,uuid", _CSV])
    there = {uuid: int(number) for number, uuid in re.findall(r"^(\d+), *(GPU-\S+)\s*$", text, re.MULTILINE)}
    if not there:
        raise _NoAnswerError(f"nvidia-smi: {_line(text) or f'exit status {status}'}")
    status, text = asker.run("nvidia-smi", [smi, "--query-compute-apps=gpu_uuid,pid", _CSV])
    computing: dict[str, list[int | None]] = {}
    for uuid, pid in re.findall(r"^((?:GPU|MIG)-[^,\s]+), *(.*?)\s*$", text, re.MULTILINE):
        computing.setdefault(uuid, []).append(int(pid) if pid.isdecimal() else None)
    is_told = status == 0 and (bool(computing) or not text.strip())
    processes: dict[str, _Pids] = {}
    for device in devices:
        names = {device.id} & there.keys()
        if device.id.startswith("MIG-"):  # the list may name the GPU only: on each of its parts then is what is on any
            names = {uuid for uuid, number in there.items() if number == device.number}
        if names:
            pids = [pid for uuid in {*names, device.id} for pid in computing.get(uuid, ())]
            processes[device.id] = tuple(dict.fromkeys(pids)) if is_told else None
    return processes


# whose processes they are


def _has_own_pids() -> bool:
    """Whether pids here are others than those the driver tells."""
    try:
        return os.readlink("/proc/self/ns/pid") != _FIRST_NAMESPACE
    except OSError:
        return False


def _given_elsewhere(ids: set[str], ours: Callable[[int], bool]) -> dict[str, list[int]]:
    """The processes of other workers' jobs by the ids of these devices that they were given; of those that we may
    read."""
    around = os.environb.get(b"TRAINQ_JOB_UID")  # we may be part of a job ourselves, and its GPUs are ours to give
    given: dict[str, list[int]] = {}
    for pid in sorted(map(int, filter(str.isdecimal, os.listdir("/proc")))):
        variables = _variables(pid)
        if variables.get("TRAINQ_JOB_UID", around) == around:
            continue
        theirs = ids.intersection(variables.get("CUDA_VISIBLE_DEVICES", b"").decode("ascii", "replace").split(","))
        if theirs and not ours(pid):
            for each in theirs:
                given.setdefault(each, []).append(pid)
    return given


def _variables(pid: int) -> dict[str, bytes]:
    """What a process was started with, if it is a job's: GPUs, uid, id and worker; else, or if it is hidden,
    nothing."""
    text = b"\0" + tree.read(f"/proc/{pid}/environ")
    if b"\0TRAINQ_JOB_UID=" not in text:
        return {}
    wanted = rb"\0(TRAINQ_JOB_UID|TRAINQ_JOB_ID|TRAINQ_WORKER|CUDA_VISIBLE_DEVICES)=([^\0]*)"
    return {name.decode(): value for name, value in re.findall(wanted, text)}


def _words(pid: int | None, is_outside: bool = False) -> str:
    """A process for people: `pid 4711 of bob (python)`."""
    if pid is None:
        return "a process that the driver does not name"
    if is_outside:
        return f"pid {pid} outside this container"
    status = tree.read(f"/proc/{pid}/status").decode("utf-8", "replace")
    name = re.search(r"^Name:\t(.*)$", status, re.MULTILINE)
    user = re.search(r"^Uid:\t(\d+)", status, re.MULTILINE)
    if name is None or user is None:
        return f"pid {pid}, which is gone or hidden"
    what = printable(name[1])
    job = {name: printable(os.fsdecode(value)) for name, value in _variables(pid).items()}
    if job:
        what += f", job {job.get('TRAINQ_JOB_ID', '?')} of worker {job.get('TRAINQ_WORKER', '?')}"
    return f"pid {pid} of {hosts.user_name(int(user[1]))} ({what})"


def _line(text: str) -> str:
    """A message of another program as one short line."""
    return printable(" ".join(text.split()))[:300]


def _sentence(troubles: Sequence[str]) -> str | None:
    more = f" (and {len(troubles) - 1} more)" if len(troubles) > 1 else ""
    return troubles[0] + more if troubles else None
