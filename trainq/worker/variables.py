"""The environment of a job: that of the submit, what the user set, and trainq's own variables on top.

Values of secret-looking names never lie in the store: kept ones come from a 0600 file, others from the worker's own
environment, and only when submitter and worker are the same uid. What does not apply is unset.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from trainq.base import hosts
from trainq.domain.environment import restored
from trainq.domain.params import param_variables
from trainq.worker.channel import with_guest

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trainq.artifacts.runs import RunFiles
    from trainq.domain.job import Claimed


def base(claimed: Claimed, secrets: Mapping[str, str]) -> dict[str, str]:
    """What the job's environment is before trainq adds its own."""
    env: dict[str, str] = dict(claimed.environ["env"])
    if claimed.row["user_id"] == os.getuid():
        env.update(restored(os.environ, claimed.environ["dropped"]))
    env.update(claimed.spec.get("env", {}))
    env.update(secrets)
    return env


def ours(
    claimed: Claimed, *, root: str, worker: str, socket: str, run: RunFiles, data: Mapping[str, str],
    model_dir: str | None, checkpoints: str, resume: bool, resume_from: str | None, resume_reason: str | None,
    deadline: float | None,
) -> dict[str, str]:  # fmt: skip
    """TRAINQ_*: names and meaning are a promise of the command line's contract."""
    row, spec = claimed.row, claimed.spec
    params: dict[str, Any] | None = spec.get("params")
    task: dict[str, Any] = spec.get("array", {})
    given = {
        "ROOT": root,
        "JOB_ID": str(row["id"]),
        "JOB_UID": claimed.uid,
        "JOB_NAME": row["name"],
        "ATTEMPT": str(row["attempt"]),
        "MAX_ATTEMPTS": str(row["max_attempts"]),
        "TYPE": row["type"],
        "QUEUE": row["queue"],
        "ARRAY_ID": str(row["id"] - _place(claimed) - 1) if task else None,  # the number before that of the first task
        **{f"ARRAY_{name.upper()}": str(task[name]) for name in ("index", "count", "number") if name in task},
        "SEED": str(spec.get("seed", 0)),
        "PARAMS": run.params,
        "MODEL_DIR": model_dir,
        "CHECKPOINT_DIR": checkpoints,
        "RUN_DIR": run.dir,
        "RESUME": "1" if resume else "0",
        "RESUME_FROM": resume_from,
        "RESUME_REASON": resume_reason,
        "SOCKET": socket,
        "DEADLINE": None if deadline is None else f"{deadline:.3f}",
        "GPUS": ",".join(claimed.gpus) or None,
        "WORKER": worker,
        "HOST": hosts.hostname(),
    }
    env = {f"TRAINQ_{name}": text for name, text in given.items() if text is not None}
    env.update(param_variables(params or {}))
    env["CUDA_VISIBLE_DEVICES"] = ",".join(claimed.gpus)  # empty: none, and nothing of the worker's own shines through
    env["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
    for name, path in data.items():
        env[f"TRAINQ_DATA_{name.upper()}" if name else "TRAINQ_DATA"] = path
    return env


def _place(claimed: Claimed) -> int:
    """Its place among the jobs of its submit call."""
    return int(claimed.uid.rpartition(".")[2])


def frozen(env: Mapping[str, str], top: str, code: str, cwd: str) -> dict[str, str]:
    """What is another for a job that runs in its own copy (`code`) of the directory `top`: where it is, where Python finds
    what lies in that directory, and that the repository around the queue is none of its code's."""
    found = {
        "GIT_CEILING_DIRECTORIES": os.pathsep.join(
            filter(None, (os.path.dirname(code), env.get("GIT_CEILING_DIRECTORIES")))
        )
    }
    if "PWD" in env:
        found["PWD"] = cwd
    if "PYTHONPATH" in env:
        entries = env["PYTHONPATH"].split(os.pathsep)
        found["PYTHONPATH"] = os.pathsep.join(
            code + entry[len(top) :] if f"{entry}/".startswith(f"{top}/") else entry for entry in entries
        )
    return found


def complete(env: Mapping[str, str]) -> dict[bytes, bytes]:
    """The environment as bytes, with the guest rooms at the end of PYTHONPATH."""
    whole = {**env, "PYTHONPATH": with_guest(env.get("PYTHONPATH"))}
    return {os.fsencode(name): os.fsencode(text) for name, text in whole.items()}
