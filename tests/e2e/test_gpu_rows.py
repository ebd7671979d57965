"""FEATURES group 4, GPUs: requests, offers, limits, and what a job is given; the real command with simulated GPUs."""

from __future__ import annotations

import json
import os

import pytest
from e2e.kit import Tq, until

SHOW = 'echo "$CUDA_VISIBLE_DEVICES|$CUDA_DEVICE_ORDER|$TRAINQ_GPUS"'


@pytest.fixture
def tq(tmp_path):
    command = Tq(tmp_path)
    command.ok("init", command.root, root=None)
    return command


def settings(tq, text):
    with open(os.path.join(tq.root, "trainq.toml"), "a", encoding="utf-8") as file:
        file.write(text)


def test_a_type_is_known_by_its_words(tq):
    """Q10: a worker with a `nvidia.teslav100` takes a job for `NVIDIA-TeslaV100` and one for any GPU, and not one for
    `a100`; a job without GPUs is taken by any worker."""
    fits = tq.submit("--gpu-type", "NVIDIA-TeslaV100", "--", "true")
    other = tq.submit("--gpu-type", "a100", "--", "true")
    any_ = tq.submit("--gpus", "1", "--", "true")
    plain = tq.submit("--", "true")
    tq.ok("worker", "--until", "idle", "--sim-gpus", "1", "--gpu-type", "nvidia.teslav100")
    assert [tq.state(number) for number in (fits, other, any_, plain)] == ["done", "pending", "done", "done"]
    tq.ok("worker", "--until", "idle", "--gpus", "none")
    assert tq.state(other) == "pending"
    tq.ok("worker", "--until", "idle", "--sim-gpus", "1:NVIDIA A100-SXM4-80GB")
    assert tq.state(other) == "done"


def test_unknown_types_and_closed_ones_are_refused_differently(tq):
    """Q11: with limits v100=2,k80=0, `foo` and `k80` both exit 2 with two error words, and nothing is stored."""
    settings(tq, "\n[limits]\ngpus = { v100 = 2, k80 = 0 }\n")
    words = []
    for kind, count in (("foo", 1), ("k80", 1), ("tesla-v100", 3)):
        done = tq("submit", "--gpu-type", kind, "--gpus", count, "--json", "--", "true")
        assert done.code == 2, done
        words.append(json.loads(done.out)["error"])
    assert words == ["unknown_gpu_type", "gpu_limit", "gpu_limit"]
    assert tq("status", "--all", "--json").json["total"] == 0
    tq.submit("--gpu-type", "v100", "--gpus", "2", "--", "true")


def test_no_gpus_is_type_cpu(tq):
    """Q12: gpus 0 means type cpu, type cpu means gpus 0; what was asked for and the defaults are on the card."""
    for words in ((), ("--gpus", "0"), ("--gpu-type", "cpu")):
        request = tq.job(tq.submit(*words, "--", "true"))["request"]
        assert (request["gpus"], request["gpu_type"]) == (0, "cpu")
    request = tq.job(tq.submit("--gpu-type", "A100.80gb", "--cpus", "4", "--mem", "1G", "--", "true"))["request"]
    assert (request["gpus"], request["gpu_type"], request["cpus"], request["mem_mib"]) == (1, "a100-80gb", 4, 1024)
    assert tq("submit", "--gpus", "1", "--gpu-type", "cpu", "--", "true").code == 2


def test_a_type_of_trainq_toml_says_what_it_needs(tq):
    """Q12: the needs of a model type are its jobs', unless they are typed."""
    settings(tq, '\n[types.big]\nrun = ["true"]\ngpus = 2\ngpu_type = "A100"\nvram = "40G"\ncpus = 3\n')
    first = tq.job(tq.submit("big"))["request"]
    assert (first["gpus"], first["gpu_type"], first["vram_mib"], first["cpus"]) == (2, "a100", 40960, 3)
    typed = tq.job(tq.submit("big", "--gpus", "0", "--seed", "1"))["request"]
    assert (typed["gpus"], typed["gpu_type"], typed["vram_mib"], typed["cpus"]) == (0, "cpu", None, 3)


def test_two_jobs_never_share_a_gpu(tq):
    """E16: two 1-GPU jobs at once have different ones, one without GPUs sees none, and the card says which."""
    line = SHOW + "; touch here-$TRAINQ_JOB_ID; until [ -e go ]; do sleep 0.1; done"
    one, two = (tq.submit("--gpus", "1", "--shell", line) for _ in range(2))
    none = tq.submit("--shell", SHOW)
    with tq.worker("--slots", "3", "--sim-gpus", "2:a100", env={"CUDA_VISIBLE_DEVICES": "7"}):
        until(lambda: [os.path.exists(tq.dir / f"here-{number}") for number in (one, two)] == [True, True])
        until(lambda: tq.state(none) == "done")
        waits = tq.submit("--gpus", "1", "--", "true")
        given = [tq.job(number)["attempt"]["gpus"] for number in (one, two)]
        assert sorted(given) == [["sim-0"], ["sim-1"]]
        assert tq.state(waits) == "pending"
        (tq.dir / "go").touch()
        until(lambda: tq.state(waits) == "done")
    for number, ids in zip((one, two), given, strict=True):
        assert tq.ok("logs", number).out == f"{ids[0]}|PCI_BUS_ID|{ids[0]}\n"
        assert tq.job(number)["attempts"][-1]["gpus"] == ids
    assert tq.ok("logs", none).out == "|PCI_BUS_ID|\n"


def test_a_limit_of_a_type_is_exact_over_all_workers(tq):
    """Q16: limit v100=4, old done jobs, one running job of 3: a 2-GPU job waits, a 1-GPU job starts; another worker
    knows of it, too."""
    settings(tq, "\n[limits]\ngpus = { v100 = 4 }\n")
    for _ in range(5):
        tq.submit("--gpus", "1", "--", "true")
    tq.ok("worker", "--until", "idle", "--sim-gpus", "1:v100")
    line = "touch here-$TRAINQ_JOB_ID; until [ -e go ]; do sleep 0.1; done"
    three = tq.submit("--gpus", "3", "--gpu-type", "v100", "--shell", line)
    with tq.worker("--slots", "4", "--sim-gpus", "8:v100"), tq.worker("--slots", "4", "--sim-gpus", "8:Tesla-V100"):
        until(lambda: tq.state(three) == "running")
        two = tq.submit("--gpus", "2", "--shell", line)
        one = tq.submit("--gpus", "1", "--shell", line)
        until(lambda: tq.state(one) == "running")
        until(lambda: os.path.exists(tq.dir / f"here-{one}"))
        assert tq.state(two) == "pending"
        (tq.dir / "go").touch()
        until(lambda: tq.state(two) == "done")


def test_a_limit_of_a_user_holds_for_jobs_and_gpus(tq):
    """Issue: per-user limits are exact, in the transaction that claims."""
    settings(tq, "\n[limits]\nper_user = { gpus = 2, running = 3 }\n")
    line = "until [ -e go ]; do sleep 0.1; done"
    big = [tq.submit("--gpus", "2", "--shell", line), tq.submit("--gpus", "1", "--shell", line)]
    plain = [tq.submit("--shell", line) for _ in range(3)]
    assert tq("submit", "--gpus", "3", "--", "true").code == 2
    with tq.worker("--slots", "8", "--sim-gpus", "8"):
        until(lambda: [tq.state(number) for number in plain] == ["running", "running", "pending"])
        assert [tq.state(number) for number in big] == ["running", "pending"]
        (tq.dir / "go").touch()
        until(lambda: all(tq.state(number) == "done" for number in big + plain))


@pytest.mark.parametrize("strict", [False, True])
def test_what_fits_passes_what_does_not(tq, strict):
    """Q17: the head needs 8 of 4 GPUs, the second one: by default it starts, with strict_fifo nothing passes."""
    settings(tq, f"\n[queues]\nstrict_fifo = {str(strict).lower()}\n")
    head = tq.submit("--gpus", "8", "--", "true")
    second = tq.submit("--gpus", "1", "--", "true")
    tq.ok("worker", "--once", "--sim-gpus", "4")
    assert [tq.state(number) for number in (head, second)] == ["pending", "pending" if strict else "done"]
    tq.ok("worker", "--until", "idle", "--sim-gpus", "8")
    assert tq.state(head) == "done"


def test_a_big_job_is_not_passed_for_ever(tq):
    """Q17: after `reserve_after` a worker is kept for the big job: what it frees is not given to small ones."""
    settings(tq, '\n[limits]\nreserve_after = "1s"\n')
    line = "sleep 0.7"
    for _ in range(2):
        tq.submit("--gpus", "1", "--shell", "sleep 3")
    with tq.worker("--slots", "4", "--sim-gpus", "2"):
        until(lambda: tq.state(2) == "running")
        big = tq.submit("--gpus", "2", "--shell", "true")
        small = [tq.submit("--gpus", "1", "--shell", line) for _ in range(20)]
        until(lambda: tq.state(big) == "done", timeout=60)
        assert tq.state(small[-1]) == "pending"


def test_memory_processors_and_hosts_are_kept_to(tq):
    """Issue: what is asked for of processors and memory is counted, and hosts can be named or left out."""
    here = os.uname().nodename
    cpus = len(os.sched_getaffinity(0))
    too_big = tq.submit("--cpus", cpus + 1, "--", "true")
    elsewhere = tq.submit("--on", "another,host", "--", "true")
    not_here = tq.submit("--not-on", here, "--", "true")
    much = tq.submit("--mem", "1000T", "--", "true")
    fine = tq.submit("--on", f"another,{here}", "--cpus", cpus, "--mem", "1M", "--", "true")
    tq.ok("worker", "--until", "idle")
    assert [tq.state(number) for number in (too_big, elsewhere, not_here, much, fine)] == ["pending"] * 4 + ["done"]


@pytest.mark.parametrize(
    "wrong",
    [
        ("--sim-gpus", "x"),
        ("--sim-gpus", "1", "--gpus", "0"),
        ("--gpus", "what"),
        ("--gpus", "77"),
        ("--gpu-type", "a100"),
    ],
)
def test_gpus_that_are_not_there_are_refused(tq, wrong):
    """E16: one line, exit 2, and no worker."""
    done = tq("worker", "--once", *wrong, env={"PATH": "/nowhere"})
    assert (done.code, done.out) == (2, ""), done
    assert len(done.err.splitlines()) <= 2


SMI = """#!/bin/sh
case $1 in
--query-gpu=index,uuid,name,memory.total) echo "0, GPU-$$NAME, Tesla T4, 15360" ;;
--query-gpu=index,uuid) echo "0, GPU-$$NAME" ;;
--query-compute-apps=*) echo asked >> asked; [ ! -e busy ] || echo "GPU-$$NAME, [Insufficient Permissions]" ;;
esac
"""


@pytest.mark.skipif(os.path.exists("/dev/nvidiactl"), reason="there is a driver here")
def test_our_own_job_is_not_taken_for_somebody_else(tq):
    """E16: where the driver names no process (or counts them as no container does), one on a GPU that was given to a job
    is that job's: `gpus` says so, and the GPU is given to the next as soon as the job has ended."""
    name = f"{os.getpid()}-{tq.dir.parent.name}"
    program = tq.home / "nvidia-smi"
    program.write_text(
        SMI.replace("$$NAME", name).replace(" asked;", f" {tq.dir}/asked;").replace(" busy ", f" {tq.dir}/busy ")
    )
    program.chmod(0o755)
    tq.env["PATH"] = f"{tq.home}:{tq.env['PATH']}"
    job = tq.submit("--gpus", "1", "--shell", "touch busy; until [ -e go ]; do sleep 0.1; done; rm busy")
    with tq.worker("--slots", "1", "--gpus", "auto") as worker:
        until((tq.dir / "busy").exists)
        looks = (tq.dir / "asked").stat().st_size
        until(lambda: (tq.dir / "asked").stat().st_size >= looks + 2 * len("asked\n"))  # what the first saw is told
        (gpu,) = tq.ok("gpus", "--json").json["items"]
        assert (gpu["job"], gpu["foreign"]) == (job, None), worker.log
        (tq.dir / "go").touch()
        until(lambda: tq.state(job) == "done")
