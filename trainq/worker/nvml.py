"""The program that asks NVML, NVIDIA's library, what GPUs there are and who computes on them: `python -P nvml.py`.

A call into the driver can hang for ever, and a process that hangs there cannot even be killed. So it is never the
worker that calls: it runs this, and goes on without an answer when none comes (see `devices`). Imports nothing of
trainq.

Prints one JSON object: `gpus`, a list of `number id name vram_mib pids`, where `pids` is null if NVML does not tell;
and `troubles`, a list of sentences. Or `error` alone, and `absent` when the reason is that there is no driver.
"""

from __future__ import annotations

import json
from typing import Any

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator


def main() -> None:
    """Ask, and print the answer."""
    try:
        import pynvml

        pynvml.nvmlInit()  # without the shutdown: this process ends, and a driver in a bad state may hang there too
        answer = _answer(pynvml)
    except Exception as error:  # noqa: BLE001 - an old or foreign module of that name may raise anything
        absent = getattr(error, "value", None) == 12  # NVML_ERROR_LIBRARY_NOT_FOUND
        answer = {"error": str(error) or type(error).__name__, "absent": absent}
    print(json.dumps(answer))  # noqa: T201 - its one answer


def _answer(nvml: Any) -> dict[str, Any]:
    gpus: list[dict[str, Any]] = []
    troubles: list[str] = []
    for number in range(nvml.nvmlDeviceGetCount()):
        try:
            whole = nvml.nvmlDeviceGetHandleByIndex(number)
            found = [{"number": number, **_facts(nvml, handle, whole)} for handle in _devices(nvml, whole)]
        except nvml.NVMLError as error:  # it fell off the bus, or needs a reset
            troubles.append(f"GPU {number} does not answer: {error}")
            continue
        if not found:
            troubles.append(f"GPU {number} is in MIG mode and has no parts to compute on")
        gpus.extend(found)
    return {"gpus": gpus, "troubles": troubles}


def _devices(nvml: Any, whole: Any) -> Iterator[Any]:
    """What CUDA takes for a device: the GPU, or in MIG mode each of its parts."""
    try:
        is_mig = nvml.nvmlDeviceGetMigMode(whole)[0] == 1  # NVML_DEVICE_MIG_ENABLE
    except (nvml.NVMLError, AttributeError):  # a GPU, a driver or a module that knows no MIG
        is_mig = False
    if not is_mig:
        yield whole
        return
    for index in range(nvml.nvmlDeviceGetMaxMigDeviceCount(whole)):
        try:
            yield nvml.nvmlDeviceGetMigDeviceHandleByIndex(whole, index)
        except nvml.NVMLError:
            continue  # so many there can be at most; this one has not been made


def _facts(nvml: Any, handle: Any, whole: Any) -> dict[str, Any]:
    name, whole_name = _text(nvml.nvmlDeviceGetName(handle)), _text(nvml.nvmlDeviceGetName(whole))
    try:
        vram_mib = nvml.nvmlDeviceGetMemoryInfo(handle).total // 1024**2 or None
    except nvml.NVMLError:  # it has none of its own, but uses the host's
        vram_mib = None
    try:
        pids = [process.pid for process in nvml.nvmlDeviceGetComputeRunningProcesses(handle)]
    except nvml.NVMLError:
        pids = None
    return {
        "id": _text(nvml.nvmlDeviceGetUUID(handle)),
        "name": name if whole_name in name else f"{whole_name} {name}",
        "vram_mib": vram_mib,
        "pids": pids,
    }


def _text(value: str | bytes) -> str:
    """Older versions of the module give bytes."""
    return value.decode(errors="replace") if isinstance(value, bytes) else value


if __name__ == "__main__":
    main()
