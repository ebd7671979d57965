"""scikit-learn's bundled data sets as files that a job can be submitted with.

By hand: `python -m trainq.trainers.datasets wine wine.csv` (or `diabetes`, `intents`).
"""

from __future__ import annotations

import csv
import shutil
import sys
from typing import TYPE_CHECKING, Any

from trainq.trainers import INTENTS

if TYPE_CHECKING:
    from collections.abc import Iterable


def write_wine(path: str) -> None:
    """178 wines of three cultivars: 13 chemical measures and, in the last column, the cultivar."""
    from sklearn.datasets import load_wine

    wine = load_wine()
    cultivars = (wine.target_names[number] for number in wine.target)
    _write(path, wine.feature_names, "cultivar", wine.data, cultivars)


def write_diabetes(path: str) -> None:
    """442 patients: ten measures and, in the last column, how the disease has gone on after a year."""
    from sklearn.datasets import load_diabetes

    diabetes = load_diabetes(scaled=False)
    _write(path, diabetes.feature_names, "progression", diabetes.data, diabetes.target)


def write_intents(path: str) -> None:
    """The utterances of customers of a bank, in ten intents, as JSON."""
    shutil.copyfile(INTENTS, path)


def _write(path: str, names: list[str], target: str, rows: Iterable[Any], targets: Iterable[Any]) -> None:
    with open(path, "w", newline="", encoding="utf-8") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow([*names, target])
        table.writerows([*row, value] for row, value in zip(rows, targets, strict=True))


def main() -> None:
    """Write the named set to the named file."""
    writers = {"wine": write_wine, "diabetes": write_diabetes, "intents": write_intents}
    if len(sys.argv) != 3 or sys.argv[1] not in writers:
        sys.exit("usage: python -m trainq.trainers.datasets wine|diabetes|intents FILE")
    try:
        writers[sys.argv[1]](sys.argv[2])
    except OSError as error:
        sys.exit(f"datasets: {error}")


if __name__ == "__main__":
    main()
