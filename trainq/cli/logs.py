"""`trainq logs`: what a job wrote."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from trainq.base.errors import BadValue
from trainq.cli import printer, streams
from trainq.cli.answer import Silence
from trainq.cli.line import line_of
from trainq.ops import logs

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

LINE_LIMIT = 1 << 20


def run(
    ctx: typer.Context,
    selectors: Annotated[list[str] | None, typer.Argument(metavar="SEL", help="one job: 12, 12[3], last, key:K")] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="go on until the job has ended")] = False,
    lines: Annotated[int | None, typer.Option("--lines", "-n", metavar="N", help="only the last N lines")] = None,
    attempt: Annotated[int | None, typer.Option("--attempt", metavar="K", help="of this attempt; default: the last")] = None,
    stderr: Annotated[bool, typer.Option("--stderr", help="its stderr, if it was submitted with --split-stderr")] = False,
    path: Annotated[bool, typer.Option("--path", help="print where the file is")] = False,
    jsonl: Annotated[bool, typer.Option("--jsonl", help="one JSON object a line of the log")] = False,
) -> Any:  # fmt: skip
    """What a job wrote: raw bytes into a pipe, escaped on a terminal. Exits 4 if it never ran.

    Python keeps back what it prints until its buffer is full: start it with python -u, or with PYTHONUNBUFFERED=1.
    """
    line = line_of(ctx)
    line.refuse_json("trainq logs --jsonl")
    if lines is not None and lines < 0:
        raise BadValue(f"--lines takes 0 or more, not {lines}")
    queue = line.open_queue()
    words = selectors or []
    if follow and attempt is None:
        line.awaited = [logs.job_of(queue, words)]
        logs.await_start(queue, words)
    log = logs.find(queue, words, attempt=attempt, stderr=stderr)
    if path:
        import os

        printer.write(os.fsencode(log.path) + b"\n")
        printer.flush()
        return Silence()
    start = logs.start_of(log, lines)
    if follow:
        line.awaited = [log.job_id]
        show(logs.follow(queue, log, start, stderr=stderr, one=attempt is not None), log, jsonl=jsonl)
    else:
        show(logs.read(log, start), log, jsonl=jsonl)
    return Silence()


def show(pieces: Iterable[bytes], log: logs.Log, *, jsonl: bool = False) -> None:
    """Write a log as it comes."""
    if jsonl:
        streams.json_lines(_item(log, text) for text in _lines(pieces))
    elif printer.is_terminal():
        from trainq.artifacts.logs import Escaper

        escaper = Escaper()
        for piece in pieces:
            _out(escaper.feed(piece).encode())
        _out(escaper.finish().encode())
    else:
        for piece in pieces:
            _out(piece)


def _out(data: bytes) -> None:
    printer.write(data)
    printer.flush()


def _item(log: logs.Log, text: bytes) -> dict[str, Any]:
    return {"job": log.job_id, "attempt": log.attempt, "text": text.decode("utf-8", "surrogateescape")}


def _lines(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Lines without their ends; one that is longer than the limit comes in parts."""
    rest = b""
    for piece in pieces:
        *whole, rest = (rest + piece).split(b"\n")
        yield from whole
        if len(rest) > LINE_LIMIT:
            yield rest
            rest = b""
    if rest:
        yield rest
