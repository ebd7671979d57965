"""`trainq submit`: put a job in, or many. Its options are the rows of `domain/request.py`."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

from typer.core import TyperArgument, TyperCommand, TyperOption

from trainq.base.errors import BadValue, TrainqError, Usage
from trainq.base.words import quoted
from trainq.cli import sweep
from trainq.cli.answer import Answer, Silence
from trainq.cli.changes import item_of
from trainq.cli.commands import CONTEXT
from trainq.cli.line import line_of
from trainq.domain.params import split_assignment
from trainq.domain.request import FIELDS, Request, argv_of, from_line, named_once

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from trainq.cli.line import Line
    from trainq.domain.job import NewArray
    from trainq.domain.request import Field
    from trainq.ops.change import Change
    from trainq.ops.queue import Queue
    from trainq.ops.submit import Submitted

HELP = """Put a job in and print its id.

\b
trainq submit TYPE [--param K=V]... [--data FILE]...   a model type of trainq.toml
trainq submit [OPTIONS] -- COMMAND...                  any command
trainq submit --sweep lr=1e-3,1e-4 TYPE                an array: a task for each value
trainq submit --from FILE.jsonl                        many jobs, all or none
"""
EXTRAS = ("param", "from_", "shell", "wait", "follow", "exit_code", *sweep.NAMES)


class Submit(TyperCommand):
    """Keeps what stands after `--` apart: it is the job's, byte for byte."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the words before `--`."""
        place = _tail_at(self, args)
        if place is not None:
            line_of(ctx).tail = tuple(args[place + 1 :])
            args = args[:place]
        try:
            return list(super().parse_args(ctx, list(args)))
        except Exception as error:
            name = getattr(error, "option_name", None)  # whatever class of it the installed parser has
            if isinstance(name, str):
                _refuse_parameter(line_of(ctx), args, name)
            raise

    def invoke(self, ctx: Any) -> Any:
        """Run with the options as one mapping: they are a table, not parameters of a function."""
        return run(line_of(ctx), dict(ctx.params))


def build() -> Submit:
    """The command with an option for each field that may be asked for."""
    return Submit(
        name="submit",
        help=HELP,
        context_settings=CONTEXT,
        rich_markup_mode=None,
        params=[
            TyperArgument(param_decls=["words"], nargs=-1, metavar="[TYPE]", type=str),
            _option(
                "param", ("--param",), "K=V", "a parameter: one value, commas included; may be repeated", many=True
            ),
            _option(
                "from_", ("--from",), "FILE", "a JSON object a line, with these options' names in snake_case; -: stdin"
            ),
            _option("shell", ("--shell",), "LINE", "run this line with sh"),
            *(_option(*row[:4], many=row[4]) for row in sweep.OPTIONS),
            *(_of_field(field) for field in FIELDS),
            _option("wait", ("--wait",), "", "wait until it has ended; exits 0 if it is done, else 1", flag=True),
            _option("follow", ("--follow", "-f"), "", "show its log and wait until it has ended", flag=True),
            _option("exit_code", ("--exit-code",), "any|job", "with --wait or -f: job gives the job's own exit status"),
        ],
    )


def _of_field(field: Field) -> TyperOption:
    return _option(field.name, field.flags, field.metavar, field.help, many=field.many, flag=field.flag)


def _option(
    name: str, flags: tuple[str, ...], metavar: str, text: str, *, many: bool = False, flag: bool = False
) -> TyperOption:
    if flag:
        return TyperOption(param_decls=[name, *flags], is_flag=True, default=False, help=text)
    return TyperOption(param_decls=[name, *flags], type=str, metavar=metavar, multiple=many, help=text)


def _tail_at(command: TyperCommand, args: list[str]) -> int | None:
    """Where the `--` is that ends the options: not one that is the value of an option."""
    takes_value = {name for param in command.params if not getattr(param, "is_flag", True) for name in param.opts}
    place = 0
    while place < len(args):
        if args[place] == "--":
            return place
        place += 2 if args[place] in takes_value else 1
    return None


def _refuse_parameter(line: Line, args: list[str], option: str) -> None:
    """An unknown option that is a parameter of the type is refused with the right line. Raises Usage."""
    from trainq.domain.types import find_type

    root = args[args.index("--root") + 1] if "--root" in args[:-1] else line.root
    name = option.lstrip("-").replace("-", "_")
    try:
        line.root = root
        settings = line.open_queue().settings
        kinds = [find_type(settings, word) for word in args if word in settings.type_tables]
    except TrainqError:
        return  # the parser's own error stands
    kind = next((kind for kind in kinds if name in kind.params), None)
    if kind is None:
        return
    import shlex

    given = next(place for place, word in enumerate(args) if word.partition("=")[0] == option)
    value = args[given].partition("=")[2] if "=" in args[given] else args[given + 1] if given + 1 < len(args) else "…"
    raise Usage(
        f"no such option: {option}; {name} is a parameter of type {kind.name}",
        hint=f"trainq submit {kind.name} --param {shlex.quote(f'{name}={value}')}",
    )


def run(line: Line, given: dict[str, Any]) -> Any:
    """Read the words, submit, and wait if that was asked for."""
    extras = {name: given.pop(name) for name in EXTRAS}
    words = given.pop("words") or ()
    if extras["follow"] and line.json:
        raise Usage("submit -f shows a log and has no --json", hint="trainq submit --wait --json …")
    if extras["exit_code"] not in (None, "any", "job"):
        raise BadValue(f"--exit-code: any or job was expected, not {extras['exit_code']!r}")
    from trainq.ops.code import ask_early

    asked = ask_early()
    queue = line.open_queue()
    array: NewArray | None = None
    notes: list[str] = []
    if extras["from_"] is None:
        requests = [_request(queue, line, words, extras, _read(given))]
        if sweep.is_asked_for(extras):
            requests, array, notes = sweep.spread(requests[0], extras)
    else:
        beside = (*given.values(), extras["shell"], extras["param"])
        if words or line.tail or any(map(sweep.is_given, beside)) or sweep.is_asked_for(extras):
            raise Usage("--from names everything itself: no type, command or option of a job beside it")
        requests = _lines(extras["from_"])
    _refuse_many(extras, len(requests) if array is None else max(2, len(requests)))
    from trainq.ops.submit import submit

    done = submit(queue, requests, asked, array)
    return _answer(queue, line, done._replace(notes=(*notes, *done.notes)), extras, _absent(requests))


def _refuse_many(extras: dict[str, Any], jobs: int) -> None:
    """What is for one job is refused for more, before anything is stored. Raises Usage."""
    if jobs > 1 and extras["wait"] and extras["exit_code"] == "job":
        raise Usage(f"--exit-code job is for one job, not {jobs} and no array")
    if jobs > 1 and extras["follow"]:
        raise Usage(f"-f follows one job, not {jobs} and no array")


def _read(given: dict[str, Any]) -> dict[str, Any]:
    """The fields that were given, read by their rows. Raises BadValue naming the option."""
    values: dict[str, Any] = {}
    for field in FIELDS:
        raw = given[field.name]
        if not sweep.is_given(raw):
            continue
        try:
            if not field.many:
                values[field.name] = field.read(raw) if not field.flag else True
                continue
            values[field.name] = _gathered(field, [field.read(text) for text in raw])
        except BadValue as error:
            raise BadValue(f"{field.flags[0]}: {error.message}", hint=error.hint) from None
    return values


def _gathered(field: Field, found: list[Any]) -> Any:
    """What an option that may be repeated came to; of variables the last one counts, as in every shell."""
    if field.name == "after":
        return tuple(wish for some in found for wish in some)
    if not isinstance(found[0], tuple):
        return tuple(found)
    return dict(found) if field.name == "env" else named_once(found)


def _request(
    queue: Queue, line: Line, words: tuple[str, ...], extras: dict[str, Any], values: dict[str, Any]
) -> Request:
    try:
        params = named_once(split_assignment(text) for text in extras["param"] or ())
    except BadValue as error:
        raise BadValue(f"--param: {error.message}") from None
    if words:
        _refuse_command(queue, words)
    if line.tail == ():
        raise Usage("nothing after --: which command?", hint="trainq submit -- python train.py")
    argv = argv_of(line.tail) if line.tail is not None else None
    if not words and argv is None and extras["shell"] is None:
        raise Usage("what to run?", hint="trainq submit TYPE, or trainq submit -- COMMAND")
    return Request(values, words[0] if words else None, params or None, argv, extras["shell"])


def _refuse_command(queue: Queue, words: tuple[str, ...]) -> None:
    """A command without `--` is refused with the right line, before it is taken for a type."""
    import shlex

    if len(words) == 1 and words[0] not in queue.settings.type_tables and len(words[0].split()) > 1:
        plain = all(letter.isalnum() or letter in " ./_-+=:,@%" for letter in words[0])
        line = f"-- {words[0]}" if plain else f"--shell {shlex.quote(words[0])}"
        raise Usage(f"a command stands after --: {quoted(words[0])} is not a type", hint=f"trainq submit {line}")
    if len(words) == 1 and (words[0] in queue.settings.type_tables or not _is_program(words[0])):
        return
    program = ("python", *words) if words[0].endswith(".py") and not os.access(words[0], os.X_OK) else words
    raise Usage(
        f"a command stands after --: {words[0]!r} is not a type", hint=f"trainq submit -- {shlex.join(program)}"
    )


def _absent(requests: list[Request]) -> list[str]:
    """Programs that are not found here. They may be on the worker's host, so this is no error."""
    places = os.environ.get("PATH", os.defpath).split(os.pathsep)
    names = dict.fromkeys(
        request.argv[0]
        for request in requests
        if request.argv and "/" not in request.argv[0] and "PATH" not in request.values.get("env", ())
    )
    return [name for name in names if not any(os.access(os.path.join(place, name), os.X_OK) for place in places)]


def _is_program(word: str) -> bool:
    import shutil

    return "/" in word or word.endswith((".py", ".sh")) or os.path.exists(word) or shutil.which(word) is not None


def _lines(path: str) -> list[Request]:
    """The requests of a file of JSON objects. Raises BadValue naming the line."""
    import sys

    try:
        if path == "-":
            data = sys.stdin.buffer.read()
        else:
            with open(path, "rb") as file:
                data = file.read()
    except OSError as error:
        raise BadValue(f"--from {path}: {(error.strerror or 'cannot be read').lower()}") from None
    requests = list(_read_lines(data, "standard input" if path == "-" else path))
    if not requests:
        raise BadValue(f"--from {path}: no job in it")
    return requests


def _read_lines(data: bytes, name: str) -> Iterator[Request]:
    for number, raw in enumerate(_text_lines(data, name), 1):
        if not raw or raw.isspace():
            continue
        where = f"{name}, line {number}"
        try:
            yield from_line(json.loads(raw), where)
        except BadValue as error:
            raise BadValue(f"{where}: {error.message}") from None
        except (ValueError, RecursionError) as error:
            raise BadValue(f"{where}: not JSON: {str(error).partition(chr(10))[0]}") from None


def _text_lines(data: bytes, name: str) -> list[str]:
    """The lines as text. Decoded in one go: a hundred thousand lines are usual."""
    try:
        return data.decode("utf-8-sig").split("\n")
    except UnicodeDecodeError as error:
        number = data.count(b"\n", 0, error.start) + 1
        raise BadValue(f"{name}, line {number}: not JSON: not UTF-8") from None


def _answer(queue: Queue, line: Line, done: Submitted, extras: dict[str, Any], absent: list[str]) -> Any:
    from trainq.ops.paused import warning

    notes = [f"{name} is not found in PATH here; the job is stored all the same" for name in absent]
    if done.left_out:
        notes.append(f"left out of the job's environment: {', '.join(done.left_out)}; --env-keep NAME keeps one")
    notes += done.notes
    for change in done.changes:
        if change.result == "duplicate":
            notes.append(_duplicate(change, queue.actor.user))
        elif change.result == "reused":
            model = (change.facts or {})["model"]
            notes.append(f"trained before: {model['key']}@{model['version']}, {model['path']}")
    ids = [change.id for change in done.changes]
    notes += [warning(name, closed) for name, closed in done.paused.items()]
    waits = extras["wait"] or extras["follow"]
    items = [item_of(change) for change in done.changes] if line.json or waits else []  # a bulk submit has many
    answer = Answer("changes", {"items": items}, lambda: ["\n".join(map(str, ids))], ids, notes=notes)
    return _await(queue, line, answer, extras) if waits else answer


def _duplicate(change: Change, user: str) -> str:
    """A key answers with whatever job stands under it: that it is not the same, or another's, must not go unseen."""
    facts = change.facts or {}
    what = ", with another command" if facts["command"] == "another" else ""
    whose = f"; it belongs to {facts['user']}" if facts["user"] != user else ""
    return f"job {change.id} is already waiting or running{what}{whose}"


def _await(queue: Queue, line: Line, answer: Answer, extras: dict[str, Any]) -> Any:
    """Follow or wait; the answer once the jobs have ended, with how they ended."""
    from trainq.cli import printer
    from trainq.cli.wait import told, verdict
    from trainq.ops import query
    from trainq.ops.cards import array_item
    from trainq.ops.wait import wait

    def tell(notes: Sequence[str]) -> None:
        for text in () if line.quiet else notes:
            printer.note(text)

    words = [str(number) for number in answer.ids]
    line.awaited = answer.ids
    tell([*answer.notes, *_unserved(queue, answer.ids)])
    answer = answer._replace(notes=())
    if extras["follow"]:
        tell([f"job {words[0]}"])
        _follow(queue, words)
    elif not line.json:
        printer.show(answer, line)
    rows = wait(queue, words).rows
    tell(told(rows))
    code = verdict(rows, own=extras["exit_code"] == "job")
    if not line.json:
        return Silence(code)
    listing = query.chosen(queue, words, full=True)
    jobs = {job["id"]: job for job in listing.jobs}
    if listing.array is not None:
        jobs[listing.array["id"]] = array_item(listing.array, listing.view)
    for item in answer.doc["items"]:
        item["job"] = jobs.get(item["id"])
    return answer._replace(exit=code)


def _follow(queue: Queue, words: list[str]) -> None:
    """Show the job's log until it has ended; nothing, if it ends without a start."""
    from trainq.cli.logs import show
    from trainq.ops import logs

    logs.await_start(queue, words)
    if logs.has_run(queue, words):
        log = logs.find(queue, words)
        show(logs.follow(queue, log), log)


def _unserved(queue: Queue, ids: Sequence[int]) -> list[str]:
    """A note when one of these jobs waits in a queue that no live worker takes jobs from."""
    from trainq.ops import query
    from trainq.ops.workers import crew, takes

    rows = query.chosen(queue, [str(number) for number in ids], full=False).rows
    names = {row["queue"] for row in rows if row["state"] == "pending"}
    items = crew(queue).items
    idle = sorted(name for name in names if not any(takes(worker, name) for worker in items))
    if not idle:
        return []
    return (
        ["no worker is running; trainq worker"]
        if not any(worker["state"] != "gone" for worker in items)
        else [f"no worker takes jobs from queue {name}; trainq workers" for name in idle]
    )
