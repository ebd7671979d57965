"""The global options: declared once, true for every command, written before or after the verb."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer
from typer.core import TyperOption

from trainq.base.errors import Usage

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trainq.domain.selectors import Filter
    from trainq.ops.queue import Queue

COLORS = ("auto", "always", "never")


class Line:
    """What this command line says for every command. `tail` is what stands after `--`, byte for byte. `awaited` are the
    jobs that go on when the command is interrupted, `watching` says that an interrupt is its usual end."""

    __slots__ = ("awaited", "color", "command", "debug", "filters", "json", "quiet", "root", "tail", "watching")

    def __init__(self, argv: Sequence[str]) -> None:
        words = argv[: argv.index("--")] if "--" in argv else argv
        # Looked at before parsing too, so that an error of the parser is answered in the form asked for.
        self.json = "--json" in words
        self.debug = "--debug" in words
        self.quiet = False
        self.root: str | None = None
        self.color = "auto"
        self.command = ""
        self.tail: tuple[str, ...] | None = None
        self.filters: dict[str, Any] = {}
        self.awaited: Sequence[int] = ()
        self.watching = False

    def open_queue(self, flags: Mapping[str, str] | None = None) -> Queue:
        """The queue that is meant."""
        from trainq.ops.queue import open_queue

        queue = open_queue(self.root, flags)
        if queue.made and not self.quiet:
            from trainq.cli.printer import note

            note(f"made a queue in {queue.paths.root}")
        return queue

    def filter(self) -> Filter:
        """Which jobs `--state`, `--queue` and so on cut a list to. Raises BadValue."""
        from trainq.base import clock
        from trainq.domain.selectors import parse_filter

        return parse_filter(now=clock.now(), **self.filters)

    def refuse_json(self, instead: str) -> None:
        """For commands whose answer is a stream or not for programs."""
        if self.json:
            raise Usage(f"{self.command} has no --json", hint=instead)


def line_of(ctx: typer.Context) -> Line:
    """The global options of the command line that a command was called with."""
    line = ctx.find_root().obj
    assert isinstance(line, Line)
    return line


def _take(ctx: Any, param: Any, value: Any) -> None:
    if value is None or value is False or ctx.resilient_parsing:
        return
    if param.name == "version":
        from trainq.version import __version__

        typer.echo(f"trainq {__version__}")
        raise typer.Exit
    if param.name == "root" and not value:
        raise Usage("--root is empty", hint="trainq --root DIR …, or leave it out")
    if param.name == "color" and value not in COLORS:
        raise Usage(f"--color takes {', '.join(COLORS)}, not {value!r}")
    setattr(line_of(ctx), param.name, value)


def _keep_filter(ctx: Any, param: Any, value: Any) -> None:
    if value is not None and value != () and not ctx.resilient_parsing:  # an empty word is refused, or fits nothing
        line_of(ctx).filters[param.name] = value


def _flag(*names: str, help: str, is_eager: bool = False) -> TyperOption:  # noqa: A002  # typer's word
    return TyperOption(
        param_decls=[*names], is_flag=True, default=False, expose_value=False, callback=_take, help=help,
        is_eager=is_eager,
    )  # fmt: skip


def _value(name: str, metavar: str, help: str) -> TyperOption:  # noqa: A002  # typer's word
    return TyperOption(param_decls=[name], type=str, metavar=metavar, expose_value=False, callback=_take, help=help)


def global_options() -> list[TyperOption]:
    """Fresh options to hang on a command."""
    return [
        _value("--root", "DIR", "the queue's directory; else TRAINQ_ROOT, the nearest .trainq/, ~/.trainq"),
        _flag("--json", help="one JSON document on stdout, for success and for errors"),
        _flag("--quiet", "-q", help="ids only, no notes"),
        _value("--color", "auto|always|never", "colours and tables; auto: on a terminal"),
        _flag("--debug", help="a traceback with an error"),
        _flag("--version", help="print the version", is_eager=True),
    ]


def filter_options() -> list[TyperOption]:
    """Fresh options that cut a list of jobs; what was said is in `Line.filter`."""
    rows = (
        ("--state", "STATE", True, "only jobs in this state; may be repeated, or a,b"),
        ("--queue", "QUEUE", True, "only jobs of this queue"),
        ("--user", "USER", True, "only jobs of this user"),
        ("--tag", "TAG", True, "only jobs with this tag"),
        ("--type", "TYPE", True, "only jobs of this model type"),
        ("--since", "TIME", False, "only jobs submitted since then: 2h, 18:00, 2026-11-30"),
        ("--before", "TIME", False, "only jobs submitted before then"),
    )
    return [
        TyperOption(
            param_decls=[name], type=str, metavar=metavar, multiple=many, expose_value=False, callback=_keep_filter,
            help=text,
        )
        for name, metavar, many, text in rows
    ]  # fmt: skip
