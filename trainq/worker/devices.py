"""What GPUs this host has, and who else computes on them.

What must stay true:
- Nothing here raises, or waits for longer than it was told (driver.py asks).
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
from typing import TYPE_CHECKING, Final, NamedTuple

from trainq.base import clock, hosts
from trainq.base.words import printable
from trainq.worker import driver, tree
from trainq.worker.driver import Asker, NoAnswerError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from trainq.domain.devices import Device

LIMIT_S: Final = 30.0
"""How long an answer is waited for. A driver that is not kept loaded takes ten seconds and more for eight GPUs."""

_FIRST_NAMESPACE: Final = "pid:[4026531836]"
"""The link of the pids that the kernel itself, and so the driver, counts by: PROC_PID_INIT_INO in its proc_ns.h."""


class Seen(NamedTuple):
    """What a look saw. `trouble` is a sentence for people about what it could not see, and None on a host that has no
    GPU and no driver. `is_answer` is false if nothing answered: the devices are then as they were before."""

    devices: tuple[Device, ...]
    trouble: str | None = None
    is_answer: bool = True


def found(limit_s: float = LIMIT_S) -> Seen:
    """The GPUs of this host in the order of nvidia-smi, in MIG mode their parts. Takes up to `limit_s` seconds (and
    `driver.END_S` to end what hangs); none, and why, when nothing has answered by then. Never raises.

    A GPU that does not answer is left out, and those behind it keep their numbers.
    """
    try:
        listing = driver.listed(Asker(limit_s))
    except NoAnswerError as error:
        return Seen(()) if error.is_absence else Seen((), str(error), is_answer=False)
    return Seen(tuple(listing.devices), driver.sentence(listing.troubles))


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
        processes = driver.processes(Asker(limit_s, stopped), real)
    except NoAnswerError as error:
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
