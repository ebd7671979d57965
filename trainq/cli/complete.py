"""What the shell asks while a command line is typed. Prints words or nothing, never an error, and exits 0.

The first line of the answer says how to take the rest: `words`, `open` (words after which typing goes on without a
space), or `files` (the shell knows better). What can stand at a place follows from the command's own parameters: an
option's name or metavar says which kind of thing it takes.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trainq.ops.complete import Word

FILES = ("FILE", "DIR")
BY_NAME = {
    "queue": "queue",
    "type": "type",
    "type_": "type",
    "key": "key",
    "model": "model",
    "user": "user",
    "state": "state",
    "gpu_type": "gpu_type",
    "on": "host",
    "not_on": "host",
    "after": "after",
}
BY_METAVAR = {"SEL": "selector", "TYPE": "type", "MODEL": "model", "QUEUE": "queue", "WORKER": "worker"}


class _Files(Exception):  # an answer
    """File names can stand here."""


def answer(shell: str) -> int:
    """Answer the shell; always 0."""
    text = ""
    try:
        text = _answer(shell)
    except BaseException:  # noqa: BLE001  # somebody is typing: an error in between helps nobody
        text = ""
    try:
        sys.stdout.buffer.write(text.encode("utf-8", "surrogateescape"))
        sys.stdout.flush()
    except (OSError, AttributeError):
        pass  # the shell has gone on
    return 0


def _answer(shell: str) -> str:
    if shell == "bash":
        before, typed, cut = _from_bash(os.environ)
    else:
        before, typed, cut = sys.argv[1:-1], sys.argv[-1] if len(sys.argv) > 1 else "", 0
    try:
        found = offers(before, typed)
    except _Files:
        return "files\n"
    found = [word for word in found if not any(letter in word[0] for letter in "\n\t\r")]
    kind = "open" if found and all(word.endswith((":", "=")) for word, _ in found) else "words"
    return "".join(f"{line}\n" for line in (kind, *(_line(shell, word, said, cut) for word, said in found)))


def offers(before: Sequence[str], typed: str) -> list[Word]:
    """The words that can follow `before` and begin with `typed`. Raises _Files where file names can."""
    from trainq.cli.commands import COMMANDS, load
    from trainq.cli.line import global_options

    options: list[Any] = list(global_options())
    root, position = None, 0
    command, waiting = None, None
    for word in before:
        if waiting is not None:
            root = word if waiting.name == "root" else root
            waiting = None
        elif word == "--":
            raise _Files
        elif word.startswith("-") and word != "-":
            name, equals, value = word.partition("=")
            option = _option(options, name)
            if option is not None and not option.is_flag:
                waiting = None if equals else option
                root = value if equals and option.name == "root" else root
        elif command is None:
            if word not in COMMANDS:
                return []
            command = load(word)
            options = command.params
        else:
            position += 1
    if waiting is not None:
        return _values(waiting, root, typed)
    name, equals, value = typed.partition("=")
    if equals and name.startswith("--") and (option := _option(options, name)) is not None:
        return [(f"{name}={word}", said) for word, said in _values(option, root, value)]
    if typed.startswith("-"):
        return _option_names(options, typed)
    if command is None:
        return [item for item in COMMANDS.items() if item[0].startswith(typed)]
    arguments = [param for param in command.params if param.param_type_name == "argument"]
    if not arguments or (position >= len(arguments) and arguments[-1].nargs == 1):
        return []
    return _values(arguments[min(position, len(arguments) - 1)], root, typed)


def _option(options: Sequence[Any], name: str) -> Any:
    return next((option for option in options if name in option.opts), None)


def _option_names(options: Sequence[Any], typed: str) -> list[Word]:
    found = []
    for option in options:
        if option.param_type_name == "option":
            found += [(name, option.help or "") for name in option.opts if name.startswith(typed)]
    if "--help".startswith(typed):
        found.append(("--help", "how to use it"))
    return [word for word in found if word[0].startswith("--")] or found


def _values(param: Any, root: str | None, typed: str) -> list[Word]:
    """What a parameter can take."""
    from trainq.ops.complete import words

    if param.name == "sets":
        return _sets(root, typed)
    metavar = (param.metavar or "").strip("[].")
    if any(word in metavar for word in FILES) or metavar.startswith("COMMAND"):
        raise _Files
    if "|" in metavar:
        return [(word, "") for word in metavar.split("|") if word.startswith(typed)]
    kind = BY_NAME.get(param.name) or BY_METAVAR.get(metavar.strip(" ]["))
    return [] if kind is None else words(kind, root, typed)


def _sets(root: str | None, typed: str) -> list[Word]:
    """What `edit --set` can set, then the values of that."""
    from trainq.domain.edit import EDITABLE
    from trainq.domain.request import BY_NAME as FIELDS
    from trainq.ops.complete import words

    name, equals, value = typed.partition("=")
    if not equals:
        return [(f"{name}=", FIELDS[name].help) for name in EDITABLE if name.startswith(typed)]
    kind = BY_NAME.get(name)
    return [] if kind is None else [(f"{name}={word}", said) for word, said in words(kind, root, value)]


def _line(shell: str, word: str, said: str, cut: int) -> str:
    said = said.split("\n", 1)[0]
    if shell == "bash":
        import shlex

        return word[cut:] if word.endswith((":", "=")) else shlex.quote(word[cut:]) if word[cut:] else ""
    if shell == "zsh":
        escaped = word.replace("\\", "\\\\").replace(":", "\\:")
        return f"{escaped}:{said}" if said else escaped
    return f"{word}\t{said}" if said else word


def _from_bash(environ: Any) -> tuple[list[str], str, int]:
    """The whole words, the one being typed, and how much of that the shell already takes for finished: bash breaks
    words at `:`, `=` and `@`, and wants only what comes after the last of them."""
    line = os.fsencode(environ["COMP_LINE"])[: int(environ["COMP_POINT"])]
    words, typed = _split(os.fsdecode(line))
    breaks = [typed.rfind(letter) for letter in ":=@" if letter in environ.get("COMP_WORDBREAKS", ":=@")]
    return words[1:], typed, max([-1, *breaks]) + 1


def _split(line: str) -> tuple[list[str], str]:
    """The words of a line that is still being typed, the last one apart; an open quote is taken for closed."""
    import shlex

    for closing in ("", '"', "'", "\\"):
        try:
            words = shlex.split(line + closing)
        except ValueError:
            continue
        if line[-1:].isspace() and not closing:
            return words, ""
        return words[:-1], words[-1] if words else ""
    return [], ""
