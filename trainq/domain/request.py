"""What may be asked for a job: one table, a row a field.

Submit's options, the lines of `--from`, the document stored with the job and the help are all read from it; a new
option is one row and its use. A row's `read` turns a word of the command line into the value, its `check` looks at a
value that came as JSON; both raise BadValue naming what was expected.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from trainq.base.errors import BadValue
from trainq.base.units import duration, moment, size
from trainq.base.words import quoted
from trainq.domain.devices import check_type
from trainq.domain.held import check_after, read_after
from trainq.domain.params import check_text
from trainq.domain.states import USER_CAUSES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

ON_DUPLICATE: Final = ("return", "fail", "replace", "run")
SNAPSHOT: Final = ("none", "git", "copy")
NAME_LIMIT: Final = 1000
BIGGEST: Final = 2**53
GPUS_MOST: Final = 1024


class Field(NamedTuple):
    """One thing that can be asked for."""

    name: str
    flags: tuple[str, ...]
    read: Callable[[str], Any]
    check: Callable[[Any], Any]
    help: str
    metavar: str = "TEXT"
    many: bool = False
    flag: bool = False
    spec: str | None = None  # its name in the document stored with the job
    editable: bool = False  # of a job that waits: it says when, where and how long it runs, not what


def _named(value: Any) -> str:
    """Text that is not empty; it may hold bytes that are no UTF-8."""
    if not isinstance(value, str):
        raise BadValue(f"text was expected, not {value!r}")
    if not value:
        raise BadValue("it is empty")
    if len(value) > NAME_LIMIT or "\0" in value:
        raise BadValue(f"at most {NAME_LIMIT} characters and no NUL were expected")
    return check_text(value)


def _filled(value: Any) -> str:
    text = _named(value)
    if readable(text) != text:
        raise BadValue(f"it is not UTF-8: {quoted(text)}")
    return text


def _label(value: Any) -> str:
    return readable(_named(value))


def readable(text: str) -> str:
    """The text with U+FFFD for each byte that is no UTF-8: what is for people only can be stored so."""
    return text if text.isascii() else text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def _path(value: Any) -> str:
    if not isinstance(value, str) or not value or "\0" in value:
        raise BadValue(f"a path was expected, not {value!r}")
    return check_text(value)


def _whole(least: int, most: int = BIGGEST) -> Callable[[Any], int]:
    def check(value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise BadValue(f"a whole number from {least} was expected, not {value!r}")
        return value

    return check


def _read_whole(least: int, most: int = BIGGEST) -> Callable[[str], int]:
    check = _whole(least, most)

    def read(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise BadValue(f"a whole number was expected, not {text!r}") from None
        return check(value)

    return read


def _duration(value: Any) -> float:
    if not isinstance(value, str):
        raise BadValue(f'a duration such as "90s" or "2h" was expected, not {value!r}')
    return duration(value)


def _positive(value: Any) -> float:
    seconds = _duration(value)
    if seconds <= 0:
        raise BadValue(f"a duration above zero was expected, not {value!r}")
    return seconds


def _moment(value: Any) -> str:
    """The word for a time, as it was typed: only who knows what time it is can tell which."""
    if not isinstance(value, str):
        raise BadValue(f'a time such as "18:00" or "+2h" was expected, not {value!r}')
    moment(value, 1e9)
    return value


def _size(value: Any) -> int:
    if not isinstance(value, str):
        raise BadValue(f'a size such as "18G" was expected, not {value!r}')
    return size(value)


def _factor(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 1.0 < value <= 100.0:
        raise BadValue(f"a factor above 1, such as 1.5, was expected, not {value!r}")
    return float(value)


def _read_factor(text: str) -> float:
    try:
        return _factor(float(text))
    except ValueError:
        raise BadValue(f"a factor above 1, such as 1.5, was expected, not {text!r}") from None


def _shell_line(value: Any) -> str:
    if not isinstance(value, str) or not value.strip() or "\0" in value:
        raise BadValue(f"a line for the shell was expected, not {value!r}")
    return check_text(value)


def _choice(words: tuple[str, ...]) -> Callable[[Any], str]:
    def check(value: Any) -> str:
        if value not in words:
            raise BadValue(f"one of {', '.join(words)} was expected, not {value!r}")
        return str(value)

    return check


def _tag(value: Any) -> str:
    tag = _filled(value)
    if any(letter.isspace() or letter == "," for letter in tag):
        raise BadValue(f"a tag has no spaces and no commas: {value!r}")
    return tag


def _hosts(value: Any) -> tuple[str, ...]:
    names = value.split(",") if isinstance(value, str) else value
    if not isinstance(names, (list, tuple)) or not names:
        raise BadValue(f"names of hosts such as h1,h2 were expected, not {value!r}")
    hosts = tuple(_filled(name) for name in names)
    for host in hosts:
        if any(letter.isspace() for letter in host):
            raise BadValue(f"a host's name has no spaces: {host!r}")
    return hosts


def _causes(value: Any) -> tuple[str, ...]:
    words = value.split(",") if isinstance(value, str) else value
    if not isinstance(words, (list, tuple)):
        raise BadValue(f"reasons such as exit,signal,oom were expected, not {value!r}")
    for word in words:
        if word not in USER_CAUSES:
            raise BadValue(f"no such reason: {word!r}; there are {', '.join(USER_CAUSES)}")
    return tuple(words)


def _assignments(value: Any) -> dict[str, str]:
    if not isinstance(value, dict) or not all(isinstance(item, str) for pair in value.items() for item in pair):
        raise BadValue("an object of texts was expected")
    for name, text in value.items():
        _variable(name, text)
    return value


def _read_assignment(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise BadValue(f"NAME=VALUE was expected, not {text!r}")
    _variable(name, value)
    return name, value


def _variable(name: str, value: str) -> None:
    if not name or "=" in name or "\0" in name or "\0" in value:
        raise BadValue(f"this cannot be a variable of the environment: {name!r}")
    check_text(name + value)


def _variable_name(value: Any) -> str:
    name = _named(value)
    _variable(name, "")
    return name


def _data(value: Any) -> dict[str, str]:
    if isinstance(value, str):
        return dict([_read_data(value)])
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return named_once(_read_data(item) for item in value)
    if isinstance(value, dict):
        return {_data_name(name): _path(path) for name, path in value.items()}
    raise BadValue(f"a file, or an object of names and files, was expected, not {value!r}")


DATA_NAME_MAX: Final = 100
"""It becomes a directory and part of a variable's name."""


def _read_data(text: str) -> tuple[str, str]:
    name, equals, path = text.partition("=")
    if equals and name.isidentifier():
        return _data_name(name), _path(path)
    return "", _path(text)


def named_once(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """The pairs as a table. BadValue when a name comes twice: the first value would be lost in silence."""
    table: dict[str, Any] = {}
    for name, value in pairs:
        if name in table:
            raise BadValue(
                f"{quoted(name)} is given twice" if name else "two files without a name; NAME=FILE names them"
            )
        table[name] = value
    return table


def _data_name(name: str) -> str:
    if name and not name.isidentifier():
        raise BadValue(f"a training set's name is made of letters, digits and _: {name!r}")
    if len(name.encode()) > DATA_NAME_MAX:
        raise BadValue(f"a training set's name has at most {DATA_NAME_MAX} bytes, this one {len(name.encode())}")
    return name


def _yes(value: Any) -> bool:
    if not isinstance(value, bool):
        raise BadValue(f"true or false was expected, not {value!r}")
    return value


def _yes_word(_text: str) -> bool:
    return True


FIELDS: Final[tuple[Field, ...]] = (
    Field("name", ("--name", "-n"), _label, _label, "a name for lists and logs; default: the program's or type's", editable=True),
    Field("tag", ("--tag",), _tag, _tag, "a word to filter by; may be repeated", many=True, editable=True),
    Field("key", ("--key",), _filled, _filled, "makes the submit repeatable: one waiting or running job per key"),
    Field(
        "on_duplicate", ("--on-duplicate",), _choice(ON_DUPLICATE), _choice(ON_DUPLICATE),
        "what to do when it is there already: return its id (default with --key), fail (default of types), replace, run",
        "|".join(ON_DUPLICATE), spec="on_duplicate",
    ),
    Field("after", ("--after",), read_after, check_after, "not before these have ended: ok:12 (done), any:13, fail:14, ok:key:K", "ok:ID,…", many=True),
    Field("begin", ("--begin",), _moment, _moment, "not before this time: 18:00, +2h, '2026-11-30 18:00'", "TIME", editable=True),
    Field("deadline", ("--deadline",), _moment, _moment, "canceled if it has not started by this time", "TIME", editable=True),
    Field("hold", ("--hold",), _yes_word, _yes, "not before it is released: trainq release", flag=True),
    Field("priority", ("--priority",), _read_whole(-10**9, 10**9), _whole(-10**9, 10**9), "higher runs sooner; 0", "N", editable=True),
    Field("queue", ("--queue",), _filled, _filled, "the queue it waits in", editable=True),
    Field("time", ("--time",), _positive, _positive, "time limit of an attempt, such as 2h", "T", editable=True),
    Field("warn", ("--warn",), _positive, _positive, "TERM so long before the limit, KILL at it; below --time", "T", spec="warn_s", editable=True),
    Field("gpus", ("--gpus",), _read_whole(0, GPUS_MOST), _whole(0, GPUS_MOST), "GPUs it needs, all of one model; 0", "N", editable=True),
    Field("gpu_type", ("--gpu-type",), check_type, check_type, "of this type, such as a100 or a100-80gb; cpu: none", "T", editable=True),
    Field("vram", ("--vram",), size, _size, "memory each of its GPUs must have, such as 18G", "SIZE", spec="vram", editable=True),
    Field("cpus", ("--cpus",), _read_whole(1, 10**6), _whole(1, 10**6), "processors to count on for it", "N", spec="cpus", editable=True),
    Field("mem", ("--mem",), size, _size, "memory to count on for it, such as 32G", "SIZE", spec="mem", editable=True),
    Field("on", ("--on",), _hosts, _hosts, "only on these hosts", "HOST,…", spec="on", editable=True),
    Field("not_on", ("--not-on",), _hosts, _hosts, "not on these", "HOST,…", spec="not_on", editable=True),
    Field("retry_grow", ("--retry-grow",), _read_factor, _factor, "after oom, ask for so many times --mem and --vram", "X", spec="retry_grow", editable=True),
    Field("on_end", ("--on-end",), _shell_line, _shell_line, "a shell line to run on the worker's host once it has ended", "LINE", spec="on_end", editable=True),
    Field("grace", ("--grace",), _duration, _duration, "between TERM and KILL", "T", editable=True),
    Field("retries", ("--retries",), _read_whole(0, 10**6), _whole(0, 10**6), "how often to try again by itself; 0", "N", editable=True),
    Field("retry_on", ("--retry-on",), _causes, _causes, "which ends to retry; exit,signal,oom", "REASON,…", editable=True),
    Field("backoff", ("--backoff",), _duration, _duration, "wait before the first retry, then doubled up to 10m; 10s", "T", spec="backoff_s", editable=True),
    Field("max_attempts", ("--max-attempts",), _read_whole(1, 10**6), _whole(1, 10**6), "how many lost workers it may cost", "N", editable=True),
    Field("cwd", ("--cwd",), _path, _path, "where it runs; default: here", "DIR"),
    Field("env", ("--env",), _read_assignment, _assignments, "set a variable; may be repeated", "K=V", many=True),
    Field("env_keep", ("--env-keep",), _variable_name, _variable_name, "keep a secret-looking variable, outside the store", "NAME", many=True),
    Field(
        "snapshot", ("--snapshot",), _choice(SNAPSHOT), _choice(SNAPSHOT),
        "run the code as it is now: git freezes the repository's files, copy what lies below here; none",
        "|".join(SNAPSHOT),
    ),
    Field("split_stderr", ("--split-stderr",), _yes_word, _yes, "keep stderr in a file of its own", flag=True, spec="split_stderr"),
    Field("stdin", ("--stdin",), _path, _path, "give it this file as standard input; - is yours", "FILE"),
    Field("data", ("--data",), _read_data, _data, "a training set, stored with the job; may be repeated", "[NAME=]FILE", many=True),
    Field("model", ("--model",), _filled, _filled, "publish what it writes to TRAINQ_MODEL_DIR under this key", "KEY"),
    Field("keep", ("--keep",), _read_whole(0, 10**6), _whole(0, 10**6), "versions of the model to keep; 0: all", "N", spec="keep"),
    Field("reuse", ("--reuse",), _yes_word, _yes, "if this very training has a verified model, answer with it", flag=True),
    Field("seed", ("--seed",), _read_whole(-(2**63), 2**63 - 1), _whole(-(2**63), 2**63 - 1), "part of the fingerprint; 0", "N"),
)  # fmt: skip

EXECUTED: Final = ("type", "param", "params", "argv", "shell")
"""What else is asked for a job, besides the fields: all that it executes."""
BY_NAME: Final[dict[str, Field]] = {field.name: field for field in FIELDS}
IN_SPEC: Final[dict[str, str]] = {field.name: field.spec for field in FIELDS if field.spec is not None}


class Request(NamedTuple):
    """One job as asked for. `values` holds the fields that were given, under their names in `FIELDS`."""

    values: Mapping[str, Any]
    type: str | None = None
    params: Mapping[str, Any] | None = None
    argv: tuple[str, ...] | None = None
    shell: str | None = None
    from_text: bool = True  # parameters are words of a command line, not JSON values
    where: str = ""  # said before what is wrong with it: the line of a file
    as_json: frozenset[str] = frozenset()  # parameters that are values of JSON all the same
    task: Mapping[str, int] | None = None  # of a task of an array: its index, the count, and the number of --array


def from_line(doc: Any, where: str = "") -> Request:
    """The request in one JSON object of `--from`. Raises BadValue naming the field."""
    if not isinstance(doc, dict):
        raise BadValue("an object was expected")
    values: dict[str, Any] = {}
    extras: dict[str, Any] = {}
    for name, value in doc.items():
        field = BY_NAME.get(name)
        if field is None and name not in _EXTRA_CHECKS:
            raise _unknown(name)
        if value is None:
            continue
        if field is not None:
            values[name] = _checked(field, value)
        else:
            extras[name] = _extra(name, value)
    return Request(values, from_text=False, where=where, **extras)


def check_warn(warn_s: float | None, time_s: float | None) -> None:
    """TERM can come only before a limit that there is. Raises BadValue."""
    if warn_s is None:
        return
    if time_s is None:
        raise BadValue("--warn needs a time limit", hint="--time 2h --warn 60s")
    if warn_s >= time_s:
        raise BadValue(f"--warn {warn_s:g}s is not below the time limit of {time_s:g}s")


def argv_of(value: Any) -> tuple[str, ...]:
    """A command as a list of texts. Looked at as a whole, since a bulk submit has a hundred thousand of them."""
    try:
        whole = "".join(value) if isinstance(value, (list, tuple)) else ""
    except TypeError:
        whole = ""
    if not whole and not (isinstance(value, (list, tuple)) and value and all(isinstance(word, str) for word in value)):
        raise BadValue("a list of texts was expected")
    if "\0" in whole:
        raise BadValue("an argument holds a NUL")
    if not value[0]:
        raise BadValue("the program's name is empty")
    return tuple(value) if whole.isascii() else tuple(map(check_text, value))


def _checked(field: Field, value: Any) -> Any:
    try:
        if field.many and field.name in ("tag", "env_keep"):
            items = value if isinstance(value, list) else [value]
            return tuple(field.check(item) for item in items)
        return field.check(value)
    except BadValue as error:
        raise BadValue(f"{field.name}: {error.message}") from None


def _extra(name: str, value: Any) -> Any:
    try:
        return _EXTRA_CHECKS[name](value)
    except BadValue as error:
        raise BadValue(f"{name}: {error.message}") from None


def _object(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise BadValue(f"an object was expected, not {value!r}")
    return value


_EXTRA_CHECKS: Final[dict[str, Callable[[Any], Any]]] = {
    "type": _filled,
    "params": _object,
    "argv": argv_of,
    "shell": _shell_line,
}


def _unknown(name: str) -> BadValue:
    import difflib

    near = difflib.get_close_matches(str(name), [*BY_NAME, *_EXTRA_CHECKS], 1)
    return BadValue(f"unknown field {name!r}" + (f"; did you mean {near[0]!r}?" if near else ""))
