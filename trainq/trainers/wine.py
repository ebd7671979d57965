"""Train a classifier on a table: a linear model by stochastic gradient descent.

The training set is a CSV file with a header and the class in its last column; without one (by hand:
`python -m trainq.trainers.wine`) it is the wine set that comes with scikit-learn.
Parameters: alpha (regularisation), epochs.
"""

from __future__ import annotations

import csv
import json
import os
import sys
from collections import Counter

import joblib
from sklearn.datasets import load_wine
from sklearn.linear_model import SGDClassifier
from sklearn.metrics import log_loss
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from trainq import job


def read(path: str) -> tuple[list[list[float]], list[str]]:
    """The features and the classes of a CSV file; ValueError says what is wrong, and in which line."""
    features, classes = [], []
    with open(path, newline="", encoding="utf-8") as file:
        table = csv.reader(file)
        width = len(next(table, []))
        if width < 2:
            raise ValueError("no header with at least two columns")
        for row in filter(None, table):
            try:
                numbers = [float(cell) for cell in row[:-1]]
            except ValueError as error:
                raise ValueError(f"line {table.line_num}: {error}") from None
            if len(row) != width or not all(abs(number) < 1e100 for number in numbers):
                raise ValueError(f"line {table.line_num}: expected {width - 1} finite numbers and a class")
            features.append(numbers)
            classes.append(row[-1])
    counts = Counter(classes)
    if len(counts) < 2 or min(counts.values()) < 4:
        raise ValueError(f"expected two or more classes of at least four rows each, got {dict(counts)}")
    return features, classes


def main() -> None:
    """Read, train, save."""
    alpha = job.params.get("alpha", 0.001)
    epochs = job.params.get("epochs", 300)
    path = job.data()
    if path:
        try:
            features, classes = read(path)
        except (OSError, ValueError, csv.Error) as error:
            sys.exit(f"wine: bad training set {path!r}: {error}")
    else:
        features, classes = load_wine(return_X_y=True)

    x, x_test, y, y_test = train_test_split(features, classes, test_size=0.25, stratify=classes, random_state=job.seed)
    scaler = StandardScaler().fit(x)
    x, x_test = scaler.transform(x), scaler.transform(x_test)
    model = SGDClassifier(loss="log_loss", alpha=alpha, learning_rate="constant", eta0=0.001, random_state=job.seed)
    known = sorted(set(y))
    scores = {}
    for epoch in range(1, epochs + 1):
        if job.should_stop():
            sys.exit(f"wine: stopped after {epoch - 1} of {epochs} epochs")
        model.partial_fit(x, y, classes=known)
        scores = {
            "accuracy": float(model.score(x_test, y_test)),
            "loss": float(log_loss(y_test, model.predict_proba(x_test), labels=model.classes_)),
        }
        job.metric(scores, step=epoch, group="test")
        job.progress(step=epoch, total=epochs)

    joblib.dump(make_pipeline(scaler, model), os.path.join(job.model_dir, "model.joblib"))
    with open(os.path.join(job.model_dir, "metrics.json"), "w", encoding="utf-8") as file:
        json.dump(scores, file)
    print(f"wine: {len(known)} classes, accuracy {scores['accuracy']:.3f}, loss {scores['loss']:.3f}")


if __name__ == "__main__":
    main()
