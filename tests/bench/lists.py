"""`status --all --limit 50` and `status --summary` with a million jobs against a thousand."""

from __future__ import annotations

from tests.bench.common import command, fill, interleaved, opened, trainq_command


def run(place: str) -> None:
    small, large = opened(place), opened(place)
    fill(small, 1_000)
    fill(large, 1_000_000)
    trainq = trainq_command()

    def ask(queue: object, *words: str) -> float:
        return command([*trainq, "--root", queue.paths.root, "status", *words])  # type: ignore[attr-defined]

    for words in (("--all", "--limit", "50"), ("--summary",), ()):
        found = interleaved(9, small=lambda: ask(small, *words), large=lambda: ask(large, *words))  # noqa: B023
        print(f"status {' '.join(words)}: {found['small'] * 1e3:.0f} ms and {found['large'] * 1e3:.0f} ms = "
              f"{found['large'] / found['small']:.2f} x (wanted <= 1.5)")  # fmt: skip
