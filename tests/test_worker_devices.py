"""What GPUs a host has and who computes on them: asked of programs that answer as nvidia-smi and NVML do, of real
processes.

There is no GPU here. `nvidia-smi` is a script that prints what the real one is known to print; `pynvml` is a module
with those names of nvidia-ml-py's that are used, and a test holds them against the real one where that is installed.
"""

from __future__ import annotations

import ast
import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
import uuid

import pytest
from store_builders import until

import trainq
from trainq.base import hosts
from trainq.domain.devices import Device, parse_sim
from trainq.worker import devices, driver
from trainq.worker.devices import Looker, Seen, foreign, found, is_below

HOUSE = os.path.dirname(os.path.dirname(trainq.__file__))
A100, T4 = "NVIDIA A100-SXM4-80GB", "Tesla T4"
# of this run alone: what another run starts in the name of a job is seen by all
UUID, UUID2 = (f"GPU-{uuid.uuid4()}" for _ in range(2))
MIG = "MIG-ec4c3916-65fa-5948-b9b5-9f21a2ddfcc0"
MIG2 = "MIG-000d40d3-5924-5906-9879-8b69bf58689b"
ONE, TWO = Device(UUID, A100, 81920, number=0), Device(UUID2, T4, 15360, number=1)
GPUS = f"0, {UUID}, {A100}, 81920\n1, {UUID2}, {T4}, 15360\n"
NO_DRIVER = (
    "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that the latest NVIDIA "
    "driver is installed and running.\n\n"
)
QUERY = "--query-gpu=index,uuid,name,memory.total"
APPS = "--query-compute-apps=gpu_uuid,pid"


@pytest.fixture(autouse=True)
def _host(tmp_path, monkeypatch):
    """A host without a driver, whose pids are those that the driver counts by."""
    os.mkdir(tmp_path / "bin")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setitem(sys.modules, "pynvml", None)
    monkeypatch.delenv("TRAINQ_JOB_UID", raising=False)
    monkeypatch.setattr(devices, "_FIRST_NAMESPACE", os.readlink("/proc/self/ns/pid"))


@pytest.fixture
def smi(tmp_path):
    """Puts an `nvidia-smi` on PATH that prints `answers[first argument]`; `script` is a shell line for all
    arguments."""
    path = tmp_path / "bin" / "nvidia-smi"

    def put(answers=None, *, status=0, script='/bin/cat "$0.$1"'):
        for name, text in {
            QUERY: GPUS,
            "--query-gpu=index,uuid": "".join(", ".join(row.split(", ")[:2]) + "\n" for row in GPUS.splitlines()),
            APPS: "",
            **(answers or {}),
        }.items():
            with open(f"{path}.{name}", "w") as file:
                file.write(text)
        with open(path, "w") as file:
            file.write(
                f'#!/bin/sh\nif [ ! -e "$0.$1" ]; then echo "Field is not a valid field to query."; exit 2; fi\n'
                f"{script} || exit\nexit {status}\n"
            )
        os.chmod(path, 0o755)
        return path

    return put


FAKE = """
import json, os
with open(__file__ + ".json") as file:
    _facts = json.load(file)
if "greeting" in _facts:
    print(_facts["greeting"])

class NVMLError(Exception):
    def __init__(self, value):
        super().__init__(value)
        self.value = value
    def __str__(self):
        return {3: "Not Supported", 4: "Insufficient Permissions", 6: "Not Found", 9: "Driver Not Loaded",
                12: "NVML Shared Library Not Found", 15: "GPU is lost"}[self.value]

class _Struct:
    def __init__(self, **fields):
        self.__dict__.update(fields)

def _told(device, name):
    value = device[name]
    if isinstance(value, dict):
        raise NVMLError(value["error"])
    return value.encode() if isinstance(value, str) and _facts.get("bytes") else value

def nvmlInit():
    if _facts.get("hang"):
        open(_facts["hang"]).read()
    if _facts.get("raise"):
        raise RuntimeError(_facts["raise"])
    if "error" in _facts:
        raise NVMLError(_facts["error"])

def nvmlDeviceGetCount():
    return len(_facts["gpus"])

def nvmlDeviceGetHandleByIndex(index):
    device = _facts["gpus"][index]
    if "error" in device:
        raise NVMLError(device["error"])
    return device

def nvmlDeviceGetUUID(handle):
    return _told(handle, "uuid")

def nvmlDeviceGetName(handle):
    return _told(handle, "name")

def nvmlDeviceGetMemoryInfo(handle):
    return _Struct(total=_told(handle, "total"), free=0, used=0)

def nvmlDeviceGetComputeRunningProcesses(handle):
    return [_Struct(pid=pid, usedGpuMemory=None) for pid in _told(handle, "pids")]
"""
FAKE_MIG = """
def nvmlDeviceGetMigMode(handle):
    if "parts" not in handle:
        raise NVMLError(3)
    return [int(handle["parts"] is not None), 0]

def nvmlDeviceGetMaxMigDeviceCount(handle):
    return 7

def nvmlDeviceGetMigDeviceHandleByIndex(handle, index):
    if index >= len(handle["parts"]) or handle["parts"][index] is None:
        raise NVMLError(6)
    return handle["parts"][index]
"""


def gpu(uuid=UUID, name=A100, mib=81920, pids=(), **more):
    return {"uuid": uuid, "name": name, "total": mib * 1024**2 if isinstance(mib, int) else mib, "pids": pids, **more}


@pytest.fixture
def nvml(tmp_path, monkeypatch):
    """Makes `pynvml` importable, here and in what is started here."""
    place = tmp_path / "modules"

    def put(*gpus, knows_mig=True, **facts):
        os.makedirs(place, exist_ok=True)
        with open(place / "pynvml.py", "w") as file:
            file.write(FAKE + FAKE_MIG * knows_mig)
        with open(place / "pynvml.py.json", "w") as file:
            json.dump({"gpus": gpus, **facts}, file)
        monkeypatch.delitem(sys.modules, "pynvml", raising=False)
        monkeypatch.setenv("PYTHONPATH", str(place))
        if str(place) not in sys.path:
            monkeypatch.syspath_prepend(place)

    return put


@contextlib.contextmanager
def process(**env):
    """A process of ours that is ready and does nothing, with this added to its environment."""
    child = subprocess.Popen(
        [sys.executable, "-S", "-c", "print(flush=True); input()"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, **env},
    )  # fmt: skip
    try:
        child.stdout.readline()
        yield child.pid
    finally:
        child.kill()
        child.communicate()


def nobody(_pid):
    return False


# what there is


def test_a_host_without_gpus_has_none_and_nothing_is_wrong():
    """No module, no nvidia-smi: most hosts."""
    assert found() == Seen(())


def test_gpus_are_found_by_nvidia_smi(smi):
    """E16: in its order, with their names and memory."""
    smi()
    assert found() == Seen((ONE, TWO))


@pytest.mark.parametrize("word", ["[N/A]", "[Not Supported]", "[Insufficient Permissions]", "[Unknown Error]", "0"])
def test_memory_that_is_not_told_is_not_known(smi, word):
    """A GPU that uses the host's memory (GB10) says `[N/A]`."""
    smi({QUERY: f"0, {UUID}, NVIDIA GB10, {word}\n"})
    assert found() == Seen((Device(UUID, "NVIDIA GB10", None, number=0),))


def test_a_name_may_hold_commas(smi):
    smi({QUERY: f"3, {UUID}, Odd, very odd, 100\n"})
    assert found() == Seen((Device(UUID, "Odd, very odd", 100, number=3),))


@pytest.mark.parametrize(
    ("text", "status", "words"),
    [
        ("No devices were found\n", 6, "No devices were found"),
        ("No devices were found\n", 0, "No devices were found"),
        (NO_DRIVER, 9, "couldn't communicate with the NVIDIA driver"),
        ("Failed to initialize NVML: Driver/library version mismatch\n", 18, "version mismatch"),
        ("", 127, "exit status 127"),
        (f"0, [N/A], {A100}, 81920\n", 0, "nvidia-smi: 0, [N/A]"),
        ("0, UUID, [Unknown Error], [Unknown Error]\n", 0, "Unknown Error"),
        ("\x1b[31m\x00\xff" * 1000, 0, "nvidia-smi: "),
    ],
)
def test_a_driver_in_a_bad_state_gives_no_gpus_and_says_why(smi, text, status, words):
    smi({QUERY: text.replace("UUID", UUID)}, status=status)
    seen = found()
    assert seen.devices == ()
    assert not seen.is_answer
    assert words in seen.trouble
    assert seen.trouble.isprintable()
    assert len(seen.trouble) < 400


def test_a_lost_gpu_leaves_the_others_their_numbers(smi):
    lost = (
        "Unable to determine the device handle for GPU 0000:02:00.0: "
        "GPU is lost.  Reboot the system to recover this GPU"
    )
    smi({QUERY: f"{lost}\n{GPUS.splitlines()[1]}\n"}, status=15)
    seen = found()
    assert seen.devices == (TWO,)
    assert "GPU is lost. Reboot" in seen.trouble


def test_a_gpu_in_parts_is_its_parts(smi):
    """MIG: CUDA takes each part for a device; the whole is none."""
    smi({
        "--query-gpu=index,mig.mode.current": "0, Enabled\n1, [N/A]\n",
        "-L": f"GPU 0: {A100} (UUID: {UUID})\n"
        f"  MIG 2g.20gb     Device  0: (UUID: {MIG})\n"
        f"  MIG 1g.10gb+me  Device  1: (UUID: MIG-{UUID}/3/0)\n"
        f"GPU 1: {T4} (UUID: {UUID2})\n",
    })  # fmt: skip
    assert found() == Seen((
        Device(MIG, f"{A100} MIG 2g.20gb", 20480, number=0),
        Device(f"MIG-{UUID}/3/0", f"{A100} MIG 1g.10gb+me", 10240, number=0),
        TWO,
    ))  # fmt: skip


def test_a_gpu_that_could_be_in_parts_and_is_not_is_one(smi):
    smi({"--query-gpu=index,mig.mode.current": "0, Disabled\n1, [N/A]\n"})
    assert found() == Seen((ONE, TWO))


def test_a_gpu_in_mig_mode_without_parts_is_none(smi):
    """Nothing can compute on it until somebody makes parts."""
    smi({"--query-gpu=index,mig.mode.current": "0, Enabled\n1, [N/A]\n", "-L": f"GPU 0: {A100} (UUID: {UUID})\n"})
    assert found() == Seen((TWO,), "GPU 0 is in MIG mode and has no parts to compute on")


@pytest.mark.parametrize("as_bytes", [False, True])
def test_gpus_are_found_by_nvml(nvml, smi, as_bytes):
    """E16: nvidia-ml-py when it is there; nvidia-smi is not asked then."""
    smi({QUERY: NO_DRIVER}, status=9)
    nvml(gpu(), gpu(UUID2, T4, 15360), bytes=as_bytes)
    assert found() == Seen((ONE, TWO))


def test_nvml_may_not_know_the_memory_or_mig(nvml):
    """A module that is older than MIG; a GPU that uses the host's memory."""
    nvml(gpu(name="NVIDIA GB10", mib={"error": 3}), knows_mig=False)
    assert found() == Seen((Device(UUID, "NVIDIA GB10", None, number=0),))


def test_nvml_tells_the_parts(nvml):
    parts = [gpu(MIG, f"{A100} MIG 2g.20gb", 19968), None, gpu(MIG2, "MIG 1g.10gb", 9728)]
    nvml(gpu(parts=parts), gpu(UUID2, T4, 15360, parts=None))
    assert found() == Seen((
        Device(MIG, f"{A100} MIG 2g.20gb", 19968, number=0),
        Device(MIG2, f"{A100} MIG 1g.10gb", 9728, number=0),
        TWO,
    ))  # fmt: skip
    nvml(gpu(parts=[]), gpu(UUID2, T4, 15360))
    assert found() == Seen((TWO,), "GPU 0 is in MIG mode and has no parts to compute on")


def test_nvml_without_one_gpu_has_the_others(nvml):
    nvml({"error": 15}, gpu(UUID2, T4, 15360))
    assert found() == Seen((TWO,), "GPU 0 does not answer: GPU is lost")


def test_the_module_without_a_driver_is_a_host_without_gpus(nvml):
    """Who installs the extra everywhere hears no complaint from hosts that have no GPU; a driver that fails is one."""
    nvml(error=12)
    assert found() == Seen(())
    nvml(error=9)
    assert found() == Seen((), "NVML: Driver Not Loaded", is_answer=False)


@pytest.mark.parametrize("facts", [{"error": 12}, {"error": 9}, {"raise": "an old module"}, {"gpus": [{}]}])
def test_nvidia_smi_is_asked_when_nvml_fails(nvml, smi, facts):
    nvml(**facts)
    smi()
    assert found() == Seen((ONE, TWO))
    smi({QUERY: NO_DRIVER}, status=9)
    assert "couldn't communicate" in found().trouble


def test_a_module_that_cannot_be_imported_there_is_no_answer(nvml, smi, tmp_path):
    nvml()
    (tmp_path / "modules" / "pynvml.py").write_text("import os\nprint('{', flush=True)\nos._exit(3)\n")
    assert found() == Seen((), "NVML gave no answer that can be read (exit status 3)", is_answer=False)
    smi()
    assert found() == Seen((ONE, TWO))


def test_what_other_modules_print_is_no_answer(nvml):
    nvml(gpu(), greeting="welcome to this module")
    assert found() == Seen((ONE,))


def test_the_module_is_never_taken_from_the_current_directory(nvml, tmp_path, monkeypatch):
    """Where a worker is started others may write files."""
    nvml(gpu())
    monkeypatch.delenv("PYTHONPATH")
    monkeypatch.chdir(tmp_path / "modules")
    assert found().devices == ()
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "modules"))
    assert found() == Seen((ONE,))


def test_the_real_module_has_the_names_that_are_used():
    """The fake follows nvidia-ml-py: each name that the program takes from it is there, and so is the one error
    value."""
    with open(os.path.join(HOUSE, "trainq", "worker", "nvml.py")) as file:
        tree = ast.parse(file.read())
    used = {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in ("nvml", "pynvml")
    }
    assert len(used) > 9
    code = f"import pynvml; print([n for n in {sorted(used)} if not hasattr(pynvml, n)], pynvml.NVMLError(12).value)"
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True)
    if "No module named 'pynvml'" in done.stderr:
        pytest.skip("nvidia-ml-py is not installed")
    assert done.stdout == "[] 12\n"


# what does not answer


def hanging(tmp_path, first="true"):
    """A shell line that tells its pid and that of a child, and waits for a writer that never comes."""
    os.mkfifo(tmp_path / "never")
    wait = f'read x < "{tmp_path}/never"'
    return f'{first}; ({wait}) & echo $$ $! > "{tmp_path}/pids"; {wait}'


def pids_of(tmp_path):
    until(lambda: os.path.exists(tmp_path / "pids") and (tmp_path / "pids").read_text().endswith("\n"))
    return [int(word) for word in (tmp_path / "pids").read_text().split()]


def test_an_nvidia_smi_that_hangs_is_ended_with_all_it_started(smi, tmp_path):
    """Never longer than was said, also when what it started holds its output open; no answer is not "no GPUs"."""
    smi(script=hanging(tmp_path, f"echo '{GPUS.splitlines()[0]}'"))
    began = time.monotonic()
    seen = found(0.5)
    assert time.monotonic() - began < 20
    assert seen == Seen((), "nvidia-smi gave no answer within 0.5 s: is the driver in a bad state?", is_answer=False)
    until(lambda: all(hosts.start_of(pid) is None for pid in pids_of(tmp_path)))


def test_an_nvml_that_hangs_hangs_nobody(nvml, tmp_path):
    """It is called by a program of its own, which can be given up; the time is for both ways together."""
    os.mkfifo(tmp_path / "never")
    nvml(hang=str(tmp_path / "never"))
    began = time.monotonic()
    seen = found(0.5)
    assert time.monotonic() - began < 20
    assert seen == Seen((), "NVML gave no answer within 0.5 s: is the driver in a bad state?", is_answer=False)


def test_what_cannot_be_killed_is_left_alone(smi, tmp_path, monkeypatch):
    """A process that hangs in the driver outlives a KILL; nobody waits for that."""
    monkeypatch.setattr(driver, "END_S", 0.05)
    kill = os.killpg
    monkeypatch.setattr(os, "killpg", lambda _group, _number: None)
    smi(script=hanging(tmp_path))
    with pytest.warns(ResourceWarning, match="still running"):
        assert "no answer within 0.5 s" in found(0.5).trouble
    assert hosts.start_of(pids_of(tmp_path)[0]) is not None
    kill(pids_of(tmp_path)[0], signal.SIGKILL)
    until(lambda: all(hosts.start_of(pid) is None for pid in pids_of(tmp_path)))


def test_half_an_answer_is_none(smi):
    """A program that was killed has not said all: its output is that of a host with fewer GPUs, or with idle ones."""
    smi(script='/bin/cat "$0.$1"; kill -9 $$')
    assert found() == Seen((), "nvidia-smi was killed by signal 9", is_answer=False)
    assert foreign((ONE,), nobody) == Seen((ONE,), "nvidia-smi was killed by signal 9", is_answer=False)


def test_an_answer_whose_end_was_seen_by_others_is_none(smi):
    """A worker that ends strays reaps children that it does not know: they are not taken for well ended ones."""
    smi()
    code = (
        "import signal; signal.signal(signal.SIGCHLD, signal.SIG_IGN)\n"
        "from trainq.worker.devices import found; print(found())"
    )
    env = {**os.environ, "PYTHONPATH": HOUSE}
    told = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True).stdout
    assert told == f"{Seen((), 'nvidia-smi was ended by something else', is_answer=False)}\n"


def test_an_nvidia_smi_that_cannot_be_started(smi):
    path = smi()
    path.write_text("#!/no/such/shell\n")
    assert found() == Seen((), "nvidia-smi cannot be started: No such file or directory", is_answer=False)


def test_an_endless_answer_is_cut_off(smi):
    smi(script="while :; do echo yyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyy; done", answers={})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(driver, "ANSWER_BYTES", 1000)
        assert found() == Seen((), "nvidia-smi does not stop to print", is_answer=False)


# who computes


def both_ways(way, nvml, smi, *pids):
    """GPU 0 with these processes, GPU 1 without any, told one way or the other."""
    if way == "nvml":
        nvml(gpu(pids=pids), gpu(UUID2, T4, 15360))
    else:
        smi({APPS: "".join(f"{UUID}, {pid}\n" for pid in pids)})


@pytest.mark.parametrize("way", ["nvml", "smi"])
def test_a_gpu_on_which_others_compute_is_foreign(way, nvml, smi):
    """E16: a process that is not ours, in words; a GPU without one is not."""
    with process() as pid:
        both_ways(way, nvml, smi, pid)
        name = os.path.basename(sys.executable)[:15]
        words = f"pid {pid} of {hosts.user_name(os.getuid())} ({name})"
        assert foreign((ONE, TWO), nobody) == Seen((ONE._replace(foreign=words), TWO))
        assert foreign((TWO,), nobody) == Seen((TWO,))


@pytest.mark.parametrize("way", ["nvml", "smi"])
def test_a_gpu_on_which_our_jobs_compute_is_not(way, nvml, smi):
    with process() as pid, process() as other:
        both_ways(way, nvml, smi, pid)
        assert foreign((ONE, TWO), lambda asked: asked == pid) == Seen((ONE, TWO))
        both_ways(way, nvml, smi, pid, other)
        assert foreign((ONE,), lambda asked: asked == pid).devices[0].foreign.startswith(f"pid {other} of ")
        assert foreign((ONE,), nobody).devices[0].foreign.endswith(") and 1 more")


@pytest.mark.parametrize("way", ["nvml", "smi"])
def test_a_gpu_is_free_again_when_they_are_gone(way, nvml, smi):
    """What was seen before does not stick."""
    both_ways(way, nvml, smi)
    assert foreign((ONE._replace(foreign="pid 7 of bob (python)"), TWO), nobody) == Seen((ONE, TWO))


def test_what_is_listed_and_gone_still_holds_the_gpu(smi):
    """The driver lists what holds memory there: a context that outlived its process, or a process that is hidden from
    us."""
    with process() as pid:
        pass
    smi({APPS: f"{UUID}, {pid}\n"})
    assert foreign((ONE,), nobody).devices[0].foreign == f"pid {pid}, which is gone or hidden"


def test_pictures_are_not_computing(nvml):
    """A display server holds memory, and is on another list of NVML's that nobody asks for."""
    nvml(gpu(pids=[], graphics=[os.getpid()]))
    assert foreign((ONE,), nobody) == Seen((ONE,))


def test_a_process_without_a_number_is_foreign_unless_a_job_of_ours_is_there(smi):
    smi({APPS: f"{UUID}, [Insufficient Permissions]\n"})
    assert foreign((ONE, TWO), nobody).devices == (ONE._replace(foreign="a process that the driver does not name"), TWO)
    assert foreign((ONE, TWO), nobody, held=(UUID,)).devices == (ONE, TWO)


def test_a_driver_that_does_not_tell_leaves_the_gpu_usable_and_says_so(nvml, smi):
    """Where processes cannot be seen at all (a virtual GPU) every GPU would be foreign for ever."""
    nvml(gpu(pids={"error": 4}), gpu(UUID2, T4, 15360))
    assert foreign((ONE, TWO), nobody) == Seen((ONE, TWO), "the driver does not tell who computes on GPU 0")
    smi({APPS: "[Not Supported]\n"})
    assert foreign((ONE, TWO), nobody) == Seen((ONE, TWO), "the driver does not tell who computes on GPU 0")


def test_nvidia_smi_tells_what_nvml_does_not(nvml, smi):
    """A driver older than the module: NVML has no such function, nvidia-smi comes with the driver."""
    with process() as pid:
        nvml(gpu(pids={"error": 3}), gpu(UUID2, T4, 15360))
        smi({APPS: f"{UUID}, {pid}\n{UUID2}, {pid}\n"})
        one, two = foreign((ONE, TWO), nobody).devices
        assert one.foreign.startswith(f"pid {pid} ")
        assert two == TWO  # here NVML has told
        smi(script="exit 9")
        assert foreign((ONE, TWO), nobody) == Seen((ONE, TWO), "the driver does not tell who computes on GPU 0")


@pytest.mark.parametrize("way", ["nvml", "smi"])
def test_a_gpu_that_is_lost_meanwhile_is_left_alone(way, nvml, smi):
    if way == "nvml":
        nvml(gpu(), {"error": 15})
    else:
        smi({"--query-gpu=index,uuid": f"0, {UUID}\n"})
    assert foreign((ONE, TWO), nobody).devices == (ONE, TWO._replace(foreign="the driver does not answer for it"))


def test_no_answer_changes_nothing(smi):
    """Neither is a foreign GPU free now, nor a free one foreign."""
    before = (ONE._replace(foreign="pid 7 of bob (python)"), TWO)
    assert foreign(before, nobody) == Seen(before, "neither NVML nor nvidia-smi is there any more", is_answer=False)
    smi({"--query-gpu=index,uuid": NO_DRIVER}, status=9)
    seen = foreign(before, nobody)
    assert (seen.devices, seen.is_answer) == (before, False)
    assert "couldn't communicate" in seen.trouble


def test_nvml_tells_who_is_on_which_part(nvml):
    with process() as pid:
        nvml(gpu(parts=[gpu(MIG, pids=[pid]), gpu(MIG2)]))
        parts = (Device(MIG, A100, number=0), Device(MIG2, A100, number=0))
        one, two = foreign(parts, nobody).devices
        assert one.foreign.startswith(f"pid {pid} ")
        assert two.foreign is None


def test_nvidia_smi_tells_only_on_which_gpu(smi):
    """Then a process on any part is one on all; on another GPU, none."""
    with process() as pid:
        parts = (Device(MIG, A100, number=0), Device(MIG2, A100, number=0), TWO)
        smi({APPS: f"{UUID}, {pid}\n"})
        assert [bool(device.foreign) for device in foreign(parts, nobody).devices] == [True, True, False]
        smi({APPS: f"{UUID2}, {pid}\n"})
        assert [bool(device.foreign) for device in foreign(parts, nobody).devices] == [False, False, True]
        smi({APPS: f"{MIG2}, {pid}\n"})
        assert [bool(device.foreign) for device in foreign(parts, nobody).devices] == [False, True, False]


# other workers


def test_what_another_worker_gave_out_is_foreign_before_anything_computes(smi):
    """DESIGN 3: two workers of one host do not share a GPU. A job that still imports its libraries is on no list."""
    smi()
    given = {
        "TRAINQ_JOB_UID": "u1",
        "TRAINQ_JOB_ID": "12",
        "TRAINQ_WORKER": "w\n2",
        "CUDA_VISIBLE_DEVICES": f"GPU-x,{UUID}",
    }
    with process(**given) as pid:
        one, two = foreign((ONE, TWO), nobody).devices
        assert two == TWO
        assert one.foreign.startswith(f"pid {pid} of ")
        assert one.foreign.endswith(", job 12 of worker w\\n2)")
        assert foreign((ONE, TWO), lambda asked: asked == pid) == Seen((ONE, TWO))  # it is ours
    assert foreign((ONE, TWO), nobody) == Seen((ONE, TWO))  # it has ended


@pytest.mark.parametrize(
    "env",
    [
        {"CUDA_VISIBLE_DEVICES": UUID},  # no job, and may never compute
        {"TRAINQ_JOB_UID": "u1", "CUDA_VISIBLE_DEVICES": ""},
        {"TRAINQ_JOB_UID": "u1", "CUDA_VISIBLE_DEVICES": UUID2},
        {"TRAINQ_JOB_UID": "u1", "CUDA_VISIBLE_DEVICES": "0"},  # not given out by trainq, which writes ids
        {"NOT_TRAINQ_JOB_UID": "u1", "X": f"TRAINQ_JOB_UID=u1 CUDA_VISIBLE_DEVICES={UUID}"},
    ],
)
def test_what_was_not_given_out_is_not(smi, env):
    smi()
    with process(**env):
        assert foreign((ONE,), nobody) == Seen((ONE,))


def test_a_worker_inside_a_job_gives_out_what_that_job_has(smi, monkeypatch):
    """The job around it was given the same GPUs: that is no reason to leave them alone; another job is."""
    smi()
    with process(TRAINQ_JOB_UID="around", CUDA_VISIBLE_DEVICES=UUID) as pid:
        monkeypatch.setenv("TRAINQ_JOB_UID", "around")
        assert foreign((ONE,), nobody) == Seen((ONE,))
        monkeypatch.setenv("TRAINQ_JOB_UID", "another")
        assert foreign((ONE,), nobody).devices[0].foreign.startswith(f"pid {pid} ")


def test_simulated_gpus_are_nobodys(smi):
    """Two workers may simulate the same ones, and no driver is asked."""
    simulated = parse_sim("2")
    with process(TRAINQ_JOB_UID="u1", CUDA_VISIBLE_DEVICES="sim-0"):
        assert foreign(simulated, nobody) == Seen(simulated)
        smi()
        assert foreign((*simulated, ONE), nobody) == Seen((*simulated, ONE))


# pids


def test_in_a_container_pids_mean_nothing(smi, monkeypatch):
    """The driver counts as the host does: there only the GPUs that our jobs hold tell whose a process is."""
    monkeypatch.setattr(devices, "_FIRST_NAMESPACE", "pid:[1]")
    smi({APPS: f"{UUID}, 4711\n{UUID2}, 4712\n"})
    seen = foreign((ONE, TWO), lambda _pid: True, held=(UUID,))
    assert seen.devices == (ONE, TWO._replace(foreign="pid 4712 outside this container"))


def test_what_descends_from_a_process_is_below_it():
    """Whose a process is, by its parents."""
    code = (
        "import subprocess, sys\nwith subprocess.Popen([sys.executable, '-S', '-c', 'print(flush=True); input()']"
        ", stdin=subprocess.PIPE, stdout=subprocess.PIPE) as p:\n"
        "    p.stdout.readline(); print(p.pid, flush=True); input(); p.kill()"
    )
    with process() as sibling:
        child = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        try:
            grandchild = int(child.stdout.readline())
            assert is_below(grandchild, child.pid)
            assert is_below(grandchild, os.getpid())
            assert is_below(child.pid, child.pid)
            assert not is_below(child.pid, grandchild)
            assert not is_below(grandchild, sibling)
            assert not is_below(os.getpid(), child.pid)
            assert not is_below(1, os.getpid())
            assert not is_below(0, os.getpid())
        finally:
            child.communicate(b"\n")
        assert not is_below(grandchild, os.getpid())


# the looker


def test_a_looker_keeps_what_it_saw(smi):
    """Before the first look nobody is foreign; a look that fails leaves the last answer, and says so."""
    with process() as pid:
        smi({APPS: f"{UUID}, {pid}\n"})
        looker = Looker((ONE, TWO), nobody)
        assert looker.seen == Seen((ONE, TWO))
        assert looker.looked_s is None
        assert looker.refresh() == looker.seen
        known, at = looker.seen.devices, looker.looked_s
        assert [bool(device.foreign) for device in known] == [True, False]
        assert at is not None
        smi(script="exit 9")
        looker.refresh()
        assert (looker.seen.devices, looker.seen.is_answer, looker.looked_s) == (known, False, at)
        smi()
        assert looker.refresh() == Seen((ONE, TWO))
        assert looker.looked_s > at


def test_a_looker_is_due_now_and_then(smi):
    """One look at a time, and not more often than asked for."""
    smi()
    looker = Looker((ONE,), nobody)
    assert looker.begin(3600)
    assert not looker.begin(0)  # one is under way
    looker.refresh()
    assert not looker.begin(3600)
    assert looker.begin(0)
    looker.refresh()
    looker.stop()
    assert not looker.begin(0)


def test_a_looker_goes_on_after_a_bad_predicate(smi):
    """What the caller's own function raises is the caller's; the next look can begin."""
    smi({APPS: f"{UUID}, 1\n"})

    def broken(_pid):
        raise ZeroDivisionError

    looker = Looker((ONE,), broken)
    with pytest.raises(ZeroDivisionError):
        looker.refresh()
    assert looker.begin(0)


def test_a_looker_of_simulated_gpus_never_looks():
    assert not Looker(parse_sim("2"), nobody).begin(0)
    assert not Looker((), nobody).begin(0)


def test_a_look_that_is_under_way_can_be_given_up(smi, tmp_path):
    """A worker that ends does not wait for a driver."""
    smi(script=hanging(tmp_path))
    looker = Looker((ONE,), nobody, limit_s=3600)
    thread = threading.Thread(target=looker.refresh)
    thread.start()
    pids = pids_of(tmp_path)
    looker.stop()
    thread.join(30)
    assert not thread.is_alive()
    assert looker.seen == Seen((ONE,))
    until(lambda: all(hosts.start_of(pid) is None for pid in pids))


def test_neither_the_module_nor_programs_are_loaded_before_they_are_needed():
    """The import diet: a worker without GPUs pays for nothing."""
    code = (
        "import sys; from trainq.worker import devices\n"
        "print(sorted({'pynvml', 'subprocess', 'json', 'shutil'} & set(sys.modules)))"
    )
    env = {**os.environ, "PYTHONPATH": HOUSE}
    assert subprocess.run([sys.executable, "-S", "-c", code], env=env, capture_output=True, text=True).stdout == "[]\n"
