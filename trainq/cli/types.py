"""`trainq types`: the registry of model types."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from trainq.base.errors import Usage
from trainq.cli.answer import Answer, Table
from trainq.cli.line import line_of
from trainq.cli.words import action_of, counted
from trainq.ops import types

if TYPE_CHECKING:
    from collections.abc import Iterator

ACTIONS = ("list", "show", "check")


def run(
    ctx: typer.Context,
    action: Annotated[str, typer.Argument(metavar="[list|show|check]", help="what to do")] = "list",
    name: Annotated[str | None, typer.Argument(metavar="TYPE", help="for show: which")] = None,
) -> Answer:
    """The model types of trainq.toml: list them, show one, or check that what they name is there."""
    line = line_of(ctx)
    action_of(action, ACTIONS, "types")
    if action == "show" and name is None:
        raise Usage("show which type?", hint="trainq types list")
    if action != "show" and name is not None:
        raise Usage(f"types {action} takes no name", hint=f"trainq types show {name}")
    queue = line.open_queue()
    if action == "show" and name is not None:
        one = types.one(queue, name)
        doc = {"items": [one], "total": 1, "truncated": False}
        return Answer("type_list", doc, lambda: _card(one), (name,))
    found = types.all_types(queue)
    names = [item["name"] for item in found]
    doc = {"items": found, "total": len(found), "truncated": False}
    if action == "list":
        return Answer("type_list", doc, lambda: _table(found, queue.paths.config), names)
    problems = types.problems(queue)
    doc["problems"] = problems
    said = problems or [f"{counted(len(found), 'type')}, nothing wrong"]
    return Answer("type_list", doc, lambda: said, names, 1 if problems else 0)


def _table(found: list[dict[str, Any]], config: str) -> Iterator[str | Table]:
    if not found:
        yield f"no types yet; a [types.NAME] table in {config} makes one"
        return
    rows = [[item["name"], _start(item), _params(item), item["data"], item["model"]] for item in found]
    yield Table(("type", "run", "params", "data", "model"), rows, ("run", "params"))


def _card(item: dict[str, Any]) -> Iterator[str | Table]:
    from trainq.cli.printer import lines_of

    rest = ("data", "model", "key", "keep", "time_s", "stall_after_s", "retries", "queue")
    yield lines_of(
        [
            ("type", item["name"]),
            ("run", _start(item)),
            *((name, None if item[name] is None else str(item[name])) for name in rest),
        ]
    )
    if item["params"]:
        rows = [[param["name"], param["type"], _default(param), _range(param)] for param in item["params"]]
        yield Table(("param", "type", "default", "values"), rows)
    yield f"next: trainq submit {item['name']}" + (" --data FILE" if item["data"] == "required" else "")


def _start(item: dict[str, Any]) -> str:
    import shlex

    return shlex.join(item["run"]) if item["run"] else f"call {item['call']}"


def _params(item: dict[str, Any]) -> str:
    if item["params"] is None:
        return "any"
    return " ".join(f"{param['name']}:{param['type']}" for param in item["params"])


def _default(param: dict[str, Any]) -> str:
    import json

    return "required" if param["required"] else json.dumps(param["default"], ensure_ascii=False)


def _range(param: dict[str, Any]) -> str:
    if param["choices"]:
        return "|".join(str(choice) for choice in param["choices"])
    low, high = param["min"], param["max"]
    if low is None and high is None:
        return ""
    return f"{'' if low is None else low}..{'' if high is None else high}"
