"""Train a regressor on a table: an elastic net by stochastic gradient descent.

The training set is a CSV file of numbers with a header and the target in its last column; without one (by
hand: `python -m trainq.trainers.diabetes`) it is the diabetes set that comes with scikit-learn.
Parameters: alpha (regularisation), l1_ratio (0: squares only, 1: absolute values only), epochs.
"""

from __future__ import annotations

import csv
import json
import os
import sys

import joblib
import numpy as np
from sklearn.datasets import load_diabetes
from sklearn.linear_model import SGDRegressor
from sklearn.metrics import r2_score, root_mean_squared_error
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from trainq import job


def read(path: str) -> tuple[list[list[float]], list[float]]:
    """The features and the targets of a CSV file; ValueError says what is wrong, and in which line."""
    rows = []
    with open(path, newline="", encoding="utf-8") as file:
        table = csv.reader(file)
        width = len(next(table, []))
        if width < 2:
            raise ValueError("no header with at least two columns")
        for row in filter(None, table):
            try:
                numbers = [float(cell) for cell in row]
            except ValueError as error:
                raise ValueError(f"line {table.line_num}: {error}") from None
            if len(row) != width or not all(abs(number) < 1e100 for number in numbers):
                raise ValueError(f"line {table.line_num}: expected {width} finite numbers")
            rows.append(numbers)
    if len(rows) < 8:
        raise ValueError(f"expected at least eight rows, got {len(rows)}")
    return [row[:-1] for row in rows], [row[-1] for row in rows]


def main() -> None:
    """Read, train, save."""
    alpha = job.params.get("alpha", 0.01)
    l1_ratio = job.params.get("l1_ratio", 0.15)
    epochs = job.params.get("epochs", 1500)
    path = job.data()
    if path:
        try:
            features, targets = read(path)
        except (OSError, ValueError, csv.Error) as error:
            sys.exit(f"diabetes: bad training set {path!r}: {error}")
    else:
        features, targets = load_diabetes(return_X_y=True, scaled=False)

    x, x_test, y, y_test = train_test_split(features, targets, test_size=0.25, random_state=job.seed)
    scaler = StandardScaler().fit(x)
    x, x_test = scaler.transform(x), scaler.transform(x_test)
    # The model learns the target in units of its spread, so that alpha means the same for every data set.
    center, spread = float(np.mean(y)), float(np.std(y)) or 1.0
    y = (np.asarray(y) - center) / spread
    model = SGDRegressor(
        penalty="elasticnet",
        alpha=alpha,
        l1_ratio=l1_ratio,
        learning_rate="constant",
        eta0=0.0001,
        random_state=job.seed,
    )
    scores = {}
    for epoch in range(1, epochs + 1):
        if job.should_stop():
            sys.exit(f"diabetes: stopped after {epoch - 1} of {epochs} epochs")
        model.partial_fit(x, y)
        predicted = model.predict(x_test) * spread + center
        scores = {
            "rmse": float(root_mean_squared_error(y_test, predicted)),
            "r2": float(r2_score(y_test, predicted)),
        }
        job.metric(scores, step=epoch, group="test")
        job.progress(step=epoch, total=epochs)

    model.coef_ *= spread
    model.intercept_ = model.intercept_ * spread + center
    joblib.dump(make_pipeline(scaler, model), os.path.join(job.model_dir, "model.joblib"))
    with open(os.path.join(job.model_dir, "metrics.json"), "w", encoding="utf-8") as file:
        json.dump(scores, file)
    print(f"diabetes: rmse {scores['rmse']:.2f}, r2 {scores['r2']:.3f}")


if __name__ == "__main__":
    main()
