"""The environment a job gets: that of its submit, without secrets and what belongs to its place. Pure.

Values that somebody asked to keep, or gave under a secret-looking name, are never among the `plain` ones:
those go into the database, the `private` ones only into a 0600 file that dies with the job.
Names and values are text as `os.environ` has it: bytes that are no text come as surrogates (surrogateescape).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from trainq.base.errors import BadValue
from trainq.base.words import quoted

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

SECRET_WORDS: Final = ("KEY", "TOKEN", "SECRET", "PASSWORD", "PASSWD", "CREDENTIALS", "AUTH")
REMOVED: Final = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "DISPLAY", "TMPDIR", "XDG_RUNTIME_DIR")
REMOVED_PREFIXES: Final = ("TRAINQ_", "SLURM_", "SSH_")

_SECRET: Final = frozenset((*SECRET_WORDS, *(word + "S" for word in SECRET_WORDS)))


class Environment(NamedTuple):
    """What a submit passes on. `dropped`: secret-looking names left out; `kept`: names of `--env-keep`."""

    plain: dict[str, str]
    private: dict[str, str]
    dropped: tuple[str, ...]
    kept: tuple[str, ...]


def is_secret(name: str) -> bool:
    """Whether one of the `_`-separated words of the name, in any case, means a secret or several."""
    return not _SECRET.isdisjoint(name.upper().split("_"))


def is_removed(name: str) -> bool:
    """Whether the variable belongs to the place of the submit (its GPUs, screen, session), not to the job."""
    return name in REMOVED or name.startswith(REMOVED_PREFIXES)


def filter_environment(env: Mapping[Any, Any], keep: Iterable[str], extra: Mapping[str, str]) -> Environment:
    """The environment of a job: that of the submit (text or bytes), `--env-keep` names and `--env` values.

    A kept name passes whatever it is called; one that is not set is BadValue, so that a job never waits for
    hours to find its token missing. `--env` wins over the submit's own value. TRAINQ_ names are trainq's.
    """
    own = {_text(name): _text(value) for name, value in env.items()}
    kept = tuple(sorted(set(keep)))
    for name in kept:
        _check(name, "")
        if name not in own:
            raise BadValue(f"--env-keep {_shown(name)}: not set here", hint=f"export {_shown(name)}=...")
    private = {name: own[name] for name in kept}
    plain: dict[str, str] = {}
    dropped = []
    for name, value in own.items():
        if name in private or is_removed(name):
            continue
        if is_secret(name):
            dropped.append(name)
        else:
            plain[name] = value
    for name, value in extra.items():
        _check(name, value)
        (private if is_secret(name) or name in private else plain)[name] = value
    return Environment(plain, private, tuple(sorted(set(dropped) - set(private))), kept)


def restored(own: Mapping[str, str], dropped: Iterable[str]) -> dict[str, str]:
    """The worker's own values of the names a submit left out. Only for a worker of the submitter's uid."""
    return {name: own[name] for name in dropped if name in own}


def _check(name: str, value: str) -> None:
    if not name or "=" in name or "\0" in name:
        raise BadValue(f"not the name of a variable: {quoted(name)}; write --env NAME=VALUE")
    if name.startswith("TRAINQ_"):
        raise BadValue(f"{_shown(name)} is set by trainq itself and cannot be given to a job")
    if "\0" in value:
        raise BadValue(f"the value of {_shown(name)} holds a NUL, which no variable can")


def _shown(name: str) -> str:
    return name if name.isprintable() else quoted(name)


def _text(word: str | bytes) -> str:
    return word if isinstance(word, str) else word.decode("utf-8", "surrogateescape")
