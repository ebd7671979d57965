"""`trainq gpus`: what the workers' GPUs are doing."""

from __future__ import annotations

from typing import Any

import typer

from trainq.cli.answer import Answer, Table
from trainq.cli.line import line_of


def run(ctx: typer.Context) -> Answer:
    """The GPUs of all workers: which job has each, and which are used by others."""
    from trainq.ops.gpus import gpus

    items = gpus(line_of(ctx).open_queue())
    doc = {"items": items, "total": len(items)}
    return Answer("gpu_list", doc, lambda: _lines(items), [item["id"] for item in items])


def _lines(items: list[dict[str, Any]]) -> list[str | Table]:
    from trainq.base.units import show_size

    if not items:
        return ["no worker offers GPUs; trainq worker --gpus auto"]
    rows = [
        [
            item["host"], item["worker"], item["id"], item["name"],
            show_size(item["vram_mib"] * 2**20) if item["vram_mib"] else "-", _held(item),
        ]
        for item in items
    ]  # fmt: skip
    return [Table(("host", "worker", "gpu", "name", "memory", "held by"), rows, ("name", "held by"))]


def _held(item: dict[str, Any]) -> str:
    if item["job"] is not None:
        return f"job {item['job']}"
    return f"others: {item['foreign']}" if item["foreign"] else "-"
