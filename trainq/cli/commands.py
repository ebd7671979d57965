"""The commands: one table of name, module and help. A module is imported when its command is used, not before."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

import typer
from typer.core import TyperGroup
from typer.main import get_command as make

from trainq.base.errors import Usage
from trainq.cli.line import filter_options, global_options

if TYPE_CHECKING:
    from collections.abc import Callable

COMMANDS: dict[str, str] = {
    "init": "make a queue",
    "submit": "put a job in, or many",
    "status": "what runs, waits and has ended; one job's card",
    "explain": "why a job is not running, worker by worker",
    "logs": "what a job wrote",
    "wait": "wait until jobs have ended or run",
    "cancel": "cancel jobs",
    "retry": "run ended jobs again, under the same id",
    "edit": "change what was asked for jobs that wait",
    "hold": "keep jobs from starting",
    "release": "let held jobs start",
    "pause": "start nothing from a queue, or freeze running jobs",
    "resume": "open a paused queue, or let frozen jobs go on",
    "worker": "run jobs here",
    "workers": "who is alive",
    "gpus": "what the workers' GPUs are doing",
    "prune": "the janitor: take back what is lost, delete what is old",
    "types": "the model types of trainq.toml",
    "models": "the versions of models",
    "history": "every change of state of a job",
    "report": "say progress and metrics, from inside a job",
    "doctor": "settings, store, directories: what is wrong",
    "db": "the store itself: for one host, or for several",
    "demo": "a real training, end to end, in a temporary queue",
    "completion": "the completion script of a shell",
}
CONTEXT: dict[str, Any] = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


class Commands(TyperGroup):
    """The group of all commands, made of the table above."""

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002  # the base's signature
        """All names, in the order of the table."""
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ARG002  # the base's signature
        """The command of that name, its module imported now."""
        return load(cmd_name) if cmd_name in COMMANDS else None

    def invoke(self, ctx: Any) -> Any:
        """Run the command; without one, print the help."""
        result = super().invoke(ctx)
        if ctx.invoked_subcommand is None:
            typer.echo(ctx.get_help())
            raise typer.Exit
        return result

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command that is meant. Raises Usage with the nearest name."""
        name = args[0]
        if name not in COMMANDS and not name.startswith("-"):
            from trainq.base.words import nearest, quoted

            near = nearest(name, COMMANDS)
            raise Usage(f"no such command: {quoted(name)}", hint=f"trainq {near}" if near else "trainq --help")
        if name in COMMANDS:
            ctx.find_root().obj.command = name
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002  # the base's signature
        """The list in the help, without importing anything."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


def root() -> Commands:
    """The command line as a whole."""
    return Commands(
        name="trainq",
        help="A training queue without a server. Start with: trainq demo",
        params=list(global_options()),
        no_args_is_help=False,
        invoke_without_command=True,
        context_settings=CONTEXT,
        rich_markup_mode=None,
        subcommand_metavar="COMMAND [ARGS]...",
    )


def load(name: str) -> Any:
    """One command with the global options on it."""
    module = importlib.import_module(f"trainq.cli.{name}")
    build: Callable[[], Any] | None = getattr(module, "build", None)
    command = build() if build is not None else from_function(module.run)
    command.name = name
    if getattr(module, "TAKES_FILTERS", False):
        command.params += filter_options()
    command.params += global_options()
    return command


def from_function(function: Callable[..., Any], cls: Any = None) -> Any:
    """A command of a function's annotations and docstring."""
    app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    app.command(cls=cls, context_settings=CONTEXT)(function)
    return make(app)
