"""Data sets that break careless numerics, and data that must be refused."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

NUM_DATA, NUM_INPUTS = 40, 3


# Names of data sets whose inputs are hostile, for any kernel.
INPUTS = (
    "ordinary data",
    "duplicated rows",
    "all rows equal",
    "all inputs zero",
    "constant column",
    "collinear columns",
    "inputs of scale 1e-8",
    "inputs of scale 1e8",
    "columns of scales 1e-8, 1 and 1e8",
    "inputs far from zero",
    "outlier of 1e6 in the inputs",
    "clusters 100 apart",
    "clusters 1e4 apart",
    "clusters 1e8 apart",
    "equal clusters 1e6 apart",
)


class Data(NamedTuple):
    """Inputs, targets, the batch size to train with, and the likelihood they are for."""

    x: np.ndarray
    y: np.ndarray
    batch_size: int = 16  # which leaves a ragged last batch of 40 rows
    likelihood: str = "gaussian"


def ordinary(num: int = NUM_DATA) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(7)
    x = rng.normal(size=(num, NUM_INPUTS))
    return x, np.sin(2.0 * x[:, :1]) + 0.1 * rng.normal(size=(num, 1))


def _clusters(distance: float, share: float = 0.4) -> Data:
    """Rows of two clusters, near enough to each other within them that covariances there matter."""
    x, y = ordinary(100)
    return Data(x + distance * (np.arange(100) % 10 < 10 * share)[:, None], y, batch_size=32)


def _replaced(values: np.ndarray, index: object, value: object) -> np.ndarray:
    values = values.copy()
    values[index] = value
    return values


def trainable() -> dict[str, Data]:
    """What has to train."""
    x, y = ordinary()
    labels = (y > 0.0) * 1.0
    one_outlier = _replaced(x, (0, 0), 1e6)
    counts = np.random.default_rng(8).poisson(np.exp(y)) * 1.0
    positive = np.exp(y)
    return {
        "ordinary data": Data(x, y),
        "duplicated rows": Data(np.repeat(x[:4], 10, axis=0), np.repeat(y[:4], 10, axis=0)),
        "duplicated rows, other targets": Data(np.repeat(x[:4], 10, axis=0), y),
        "all rows equal": Data(np.ones_like(x), y),
        "all inputs zero": Data(np.zeros_like(x), y),
        "constant column": Data(_replaced(x, (slice(None), 1), 5.0), y),
        "collinear columns": Data(x[:, :1] * np.array([1.0, 2.0, -3.0]), y),
        "inputs of scale 1e-8": Data(1e-8 * x, y),
        "inputs of scale 1e8": Data(1e8 * x, y),
        "columns of scales 1e-8, 1 and 1e8": Data(x * np.array([1e-8, 1.0, 1e8]), y),
        "inputs far from zero": Data(x + 1e6, y),
        "clusters 100 apart": _clusters(100.0),
        "clusters 1e4 apart": _clusters(1e4),
        "clusters 1e8 apart": _clusters(1e8),
        "equal clusters 1e6 apart": _clusters(1e6, share=0.5),
        "targets of scale 1e-8": Data(x, 1e-8 * y),
        "targets of scale 1e8": Data(x, 1e8 * y),
        "outlier of 1e6 in the inputs": Data(one_outlier, y),
        "outlier of 1e6 in the targets": Data(x, _replaced(y, 0, 1e6)),
        "all targets equal": Data(x, np.full_like(y, 3.0)),
        "all targets zero": Data(x, np.zeros_like(y)),
        "fewer data than features": Data(x[:5], y[:5]),
        "one datum": Data(x[:1], y[:1]),
        "batches of one": Data(x, y, batch_size=1),
        "one ragged batch of one": Data(x[:33], y[:33]),
        "empty class": Data(x, np.zeros_like(labels), likelihood="bernoulli"),
        "separable classes": Data(x, (x[:, :1] > 0.0) * 1.0, likelihood="bernoulli"),
        "separable classes of scale 1e8": Data(1e8 * x, (x[:, :1] > 0.0) * 1.0, likelihood="bernoulli"),
        "three classes, one empty": Data(x, 2 * (y[:, 0] > 0.0), likelihood="softmax"),
        "three classes, two empty": Data(x, np.full(len(x), 2), likelihood="softmax"),
        "counts with an outlier of 1e6": Data(x, _replaced(counts, 0, 1e6), likelihood="poisson"),
        "all counts zero": Data(x, np.zeros_like(counts), likelihood="poisson"),
        "positive targets of scale 1e-8 (gamma)": Data(x, 1e-8 * positive, likelihood="gamma"),
        "positive targets of scale 1e8 (gamma)": Data(x, 1e8 * positive, likelihood="gamma"),
        "positive targets of scale 1e-8 (exponential)": Data(x, 1e-8 * positive, likelihood="exponential"),
        "positive targets of scale 1e8 (exponential)": Data(x, 1e8 * positive, likelihood="exponential"),
    }


def refused() -> dict[str, tuple[Data, str]]:
    """What has to be refused, and a part of the message."""
    x, y = ordinary()
    return {
        "NaN in the inputs": (Data(_replaced(x, (3, 1), np.nan), y), r"finite data to adapt.*columns \[1\]"),
        "infinity in the inputs": (Data(_replaced(x, (3, 2), np.inf), y), r"finite data to adapt.*columns \[2\]"),
        "NaN in the targets": (Data(x, _replaced(y, 3, np.nan)), "finite targets"),
        "infinity in the targets": (Data(x, _replaced(y, 3, -np.inf)), "finite targets"),
        "no data": (Data(x[:0], y[:0]), "Expected data to adapt"),
        "another number of targets": (Data(x, y[:-1]), "equal length"),
        "another number of columns": (Data(x[:, :2], y), r"shape.*\(1, 2\)|inputs"),
        "targets of another shape": (Data(x, np.repeat(y, 2, axis=1)), "Expected targets of shape"),
    }
