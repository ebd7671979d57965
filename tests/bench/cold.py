"""A cold `submit -- true` and a cold `status` of 100 jobs, against the imports of typer and peewee alone."""

from __future__ import annotations

import sys

from tests.bench.common import command, fill, interleaved, opened, trainq_command


def run(place: str) -> None:
    queue = opened(place)
    fill(queue, 100)
    root = queue.paths.root
    trainq = trainq_command()
    imports = [sys.executable, "-c", "import typer, peewee"]
    for argv in (imports, [*trainq, "--root", root, "status"], [*trainq, "--root", root, "submit", "--", "true"]):
        command(argv)  # compiled files are written by the first run
    found = interleaved(
        25,
        bare=lambda: command([sys.executable, "-c", "pass"]),
        imports=lambda: command(imports),
        submit=lambda: command([*trainq, "--root", root, "submit", "--", "true"]),
        status=lambda: command([*trainq, "--root", root, "status"]),
    )
    print(f"python {found['bare'] * 1e3:.0f} ms, import typer, peewee {found['imports'] * 1e3:.0f} ms")
    for name in ("submit", "status"):
        print(
            f"cold {name}: {found[name] * 1e3:.0f} ms = {found[name] / found['imports']:.2f} x of the imports (wanted <= 1.4)"
        )
