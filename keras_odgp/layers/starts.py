"""Start values of a layer from the data that reach it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from gpflow.inducing_variables import InducingPoints, InducingVariables
from gpflow.kernels import Kernel, MultioutputKernel

from keras_odgp.gpflow_models import directions_at, points_from_data
from keras_odgp.inducing import ActivationFeatures
from keras_odgp.orthogonal.gram import latents, num_features

MOST_ROWS, MOST_NUMBERS = 10_000, 50_000_000  # a random subset of this size stands for larger data


class Subset:
    """A random subset of bounded size of the examples in a stream of batches, and how many there were.

    Attributes:
        values: The chosen examples: a structure of arrays with a common first axis; None before the first batch.
        total: Number of examples seen.
    """

    def __init__(self, *, seed: int = 0) -> None:
        self._rng = np.random.default_rng(seed)
        self._keys = np.empty(0)
        self.values: Any = None
        self.total = 0

    def add(self, batch: Any) -> None:
        """Adds a structure of arrays: each example draws a random key, and the smallest keys stay."""
        batch = keras.tree.map_structure(np.asarray, batch)
        arrays = keras.tree.flatten(batch)
        size = len(arrays[0])
        self.total += size
        self._keys = np.concatenate([self._keys, self._rng.random(size)])
        self.values = batch if self.values is None else _map(lambda *parts: np.concatenate(parts), self.values, batch)
        numbers = sum(array.size for array in arrays) / max(size, 1)
        limit = int(np.clip(MOST_NUMBERS / max(numbers, 1), 500, MOST_ROWS))
        if len(self._keys) > limit:
            chosen = np.sort(np.argpartition(self._keys, limit)[:limit])
            self._keys, self.values = self._keys[chosen], _map(lambda array: array[chosen], self.values)


def collect_rows(data: Any, *, seed: int) -> tuple[np.ndarray, int]:
    """Rows `[n, D]` of an array `[..., D]` or of the batches of a dataset, and how many there were in all."""
    subset = Subset(seed=seed)
    for batch in data if isinstance(data, tf.data.Dataset) else [data]:
        values = np.asarray(batch[0] if isinstance(batch, (tuple, list)) else batch, dtype=np.float64)
        if values.ndim < 2:
            raise ValueError(f"Expected data of shape [..., D], with at least two axes. Got shape {values.shape}.")
        subset.add(values.reshape(-1, values.shape[-1]))
    return (np.empty((0, 0)) if subset.values is None else subset.values), subset.total


def _map(function: Callable[..., np.ndarray], *structures: Any) -> Any:
    return keras.tree.map_structure(function, *structures)


def check_rows(rows: np.ndarray, layer: str, num_inputs: int) -> None:
    """Raises if there are no rows, or rows of another width, or with NaN."""
    if len(rows) == 0:
        raise ValueError(f"Expected data to adapt layer {layer!r} to. Got none.")
    if rows.shape[1] != num_inputs:
        raise ValueError(
            f"Layer {layer!r} takes {num_inputs} inputs. Got data to adapt to with {rows.shape[1]} columns."
        )
    finite = np.isfinite(rows).all(axis=1)
    if not finite.all():
        columns = np.flatnonzero(~np.isfinite(rows).all(axis=0)).tolist()
        raise ValueError(
            f"Expected finite data to adapt layer {layer!r} to. Got NaN or infinity in {(~finite).sum()} of "
            f"{len(finite)} rows, in columns {columns[:10]}: remove or fill them first."
        )


def check_range(kernel: Kernel, rows: np.ndarray, layer: str) -> None:
    """Raises if rows, or the prior variance at some of them, are so large that products overflow."""
    limit = float(np.finfo(rows.dtype).max) ** 0.5
    remedy = "standardise the inputs (`keras.layers.Normalization`), or use float64."
    if not np.abs(rows).max() < 1e-3 * limit:
        raise ValueError(
            f"Expected inputs of layer {layer!r} whose squares, and sums of these, fit into {rows.dtype}, so below "
            f"{1e-3 * limit:.0e}. Got inputs of up to {np.abs(rows).max():.0e}: {remedy}"
        )
    options = {"full_output_cov": False} if isinstance(kernel, MultioutputKernel) else {}
    largest = float(tf.reduce_max(kernel(tf.constant(rows), full_cov=False, **options)))
    if not largest < limit:
        raise ValueError(
            f"Expected data at which products of covariances of layer {layer!r} fit into {rows.dtype}, so "
            f"prior variances below {limit:.0e}. Got {largest:.0e} at inputs of up to {np.abs(rows).max():.0e}: "
            f"{remedy}"
        )


def start_features(
    features: InducingVariables | None, kernel: Kernel, rows: np.ndarray, *, seed: int, method: str
) -> None:
    """Moves points to the data, and lets units point at them; harmonics have nothing to start."""
    if isinstance(features, InducingPoints):
        features.Z.assign(start_points(rows, num_features(features), seed=seed, method=method))
    elif isinstance(features, ActivationFeatures):
        latent = latents(kernel, features, None)[0][0]
        features.weights.assign(start_directions(rows, num_features(features), latent, seed=seed, method=method))


def start_points(rows: np.ndarray, num: int, *, seed: int, method: str = "kmeans") -> np.ndarray:
    """Inducing points, shape `[num, D]`: centres of k-means, or a random subset of the rows."""
    if method == "kmeans":
        return points_from_data(rows, num, seed=seed)
    if method != "subset":
        raise ValueError(f"Expected `method` to be 'kmeans' or 'subset'. Got: {method!r}.")
    distinct = np.unique(rows, axis=0)
    if len(distinct) < num:
        return points_from_data(rows, num, seed=seed)  # which adds to what there is
    return distinct[np.random.default_rng(seed).choice(len(distinct), num, replace=False)]


def start_directions(rows: np.ndarray, num: int, kernel: Any, *, seed: int, method: str = "kmeans") -> np.ndarray:
    """Weights of units, shape `[num, D + 1]`, which point at such points."""
    return directions_at(start_points(rows, num, seed=seed, method=method), kernel)
