"""`trainq models`: the versions of models."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from trainq.base.errors import Usage
from trainq.cli.answer import Answer, Table
from trainq.cli.line import line_of
from trainq.cli.words import action_of, short_values
from trainq.ops import models

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trainq.ops.models import Model

ACTIONS = ("list", "show", "path")


def run(
    ctx: typer.Context,
    action: Annotated[str, typer.Argument(metavar="[list|show|path]", help="what to do")] = "list",
    key: Annotated[str | None, typer.Argument(metavar="MODEL", help="KEY, KEY@3 or KEY@latest")] = None,
    type_: Annotated[str | None, typer.Option("--type", metavar="TYPE", help="only of this model type")] = None,
    param: Annotated[list[str] | None, typer.Option("--param", metavar="K=V", help="only trained with this; may be repeated")] = None,
    fp: Annotated[str | None, typer.Option("--fp", metavar="F", help="only of this training (fingerprint, or its beginning)")] = None,
    latest: Annotated[bool, typer.Option("--latest", help="only the newest of each key")] = False,
) -> Answer:  # fmt: skip
    """The versions of models: list them, show one, or print where it is."""
    from trainq.domain.params import split_assignment

    line = line_of(ctx)
    action_of(action, ACTIONS, "models")
    if action == "list":
        params = dict(split_assignment(text) for text in param or [])
        found = models.search(
            line.open_queue(), name=key, type_=type_, fingerprint=_prefix(fp), params=params, latest=latest
        )
        names = [f"{model['key']}@{model['version']}" for model in found]
        doc = {"items": found, "total": len(found), "truncated": False}
        return Answer("model_list", doc, lambda: table(found), names)
    if key is None:
        raise Usage(f"{action} which model?", hint="trainq models list")
    queue = line.open_queue()
    model = models.one(queue, key)
    doubt = models.whose(model) if queue.is_for_group else None
    notes = [] if doubt is None else [doubt]
    name = f"{model['key']}@{model['version']}"
    if action == "path":
        return Answer("model", model, lambda: [model["path"]], (model["path"],), notes=notes)
    return Answer("model", model, lambda: _card(model), (name,), notes=notes)


def _prefix(text: str | None) -> str | None:
    from trainq.domain.selectors import Fingerprint, parse_selector

    if text is None:
        return None
    selector = parse_selector(f"fp:{text.removeprefix('fp:')}")
    assert isinstance(selector, Fingerprint)
    return selector.prefix


def table(found: list[Model]) -> Iterator[str | Table]:
    """Versions in a table."""
    from trainq.base.units import show_size

    if not found:
        yield "no models"
        return
    names = [f"{model['key']}@{model['version']}" for model in found]
    rows = [
        [
            name, model["type"] or "", str(model["job"]), show_size(model["size"]), short_values(model["metrics"]),
            short_values(model["params"]),
        ]
        for name, model in zip(names, found, strict=True)
    ]  # fmt: skip
    yield Table(("model", "type", "job", "size", "metrics", "params"), rows, ("metrics", "params"))
    # Paths are long and are copied whole: a line each, not a column.
    yield Table((), [[name, model["path"]] for name, model in zip(names, found, strict=True)])


def _card(model: dict[str, Any]) -> Iterator[str | Table]:
    from trainq.base.units import show_size
    from trainq.cli.printer import lines_of

    yield lines_of(
        [
            ("model", f"{model['key']}@{model['version']}"),
            ("path", model["path"]),
            ("type", model["type"]),
            ("params", short_values(model["params"])),
            ("metrics", short_values(model["metrics"])),
            ("fingerprint", model["fingerprint"]),
            ("job", f"{model['job']}, attempt {model['attempt']}"),
            ("user", model["user"]),
            ("made", model["created_at"]),
            ("size", show_size(model["size"])),
            ("pinned", "yes" if model["pinned"] else None),
        ]
    )
    if model["files"] is None:
        yield f"its manifest cannot be read: look at {model['path']}"
    elif model["files"]:
        rows = [[item["path"], show_size(item["size"]), item["sha256"][:12]] for item in model["files"]]
        yield Table(("file", "size", "sha256"), rows, ("file",))
