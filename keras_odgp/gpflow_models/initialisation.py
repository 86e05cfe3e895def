"""Where features start: inducing points among the data, directions of units from the data or at random."""

from __future__ import annotations

import numpy as np
import scipy.cluster.vq

from keras_odgp.kernels import ZonalKernel


def points_from_data(X: np.ndarray, num: int, *, seed: int = 0) -> np.ndarray:
    """Inducing points at the centres of k-means, shape `[num, D]`; all distinct rows, and noise copies of them, if
    there are fewer.

    Args:
        X: Inputs, shape `[N, D]`.
        num: Number of points.
        seed: Seed of the clustering.

    Example:

    >>> keras_odgp.gpflow_models.points_from_data(np.random.randn(100, 3), 10).shape
    (10, 3)
    """
    X = np.asarray(X, dtype=np.float64)
    rng = np.random.default_rng(seed)
    distinct = np.unique(X, axis=0)
    if len(distinct) <= num:
        extra = distinct[rng.integers(len(distinct), size=num - len(distinct))]
        scale = X.std(axis=0) + 1e-3
        return np.concatenate([distinct, extra + 0.1 * scale * rng.normal(size=extra.shape)])
    sample = distinct if len(distinct) <= 100 * num else distinct[rng.choice(len(distinct), 100 * num, replace=False)]
    scale = sample.std(axis=0)
    scale[scale == 0] = 1.0
    centres, _ = scipy.cluster.vq.kmeans2(sample / scale, num, minit="++", seed=rng, missing="warn")
    return centres * scale


def directions_from_data(X: np.ndarray, num: int, kernel: ZonalKernel, *, seed: int = 0) -> np.ndarray:
    """Weights of units that point at k-means centres of the data, in the space that the kernel scales, shape `[num, D
    + 1]`.

    Example:

    >>> kernel = keras_odgp.kernels.ArcCosine()
    >>> keras_odgp.gpflow_models.directions_from_data(np.random.randn(100, 3), 10, kernel).shape
    (10, 4)
    """
    return directions_at(points_from_data(X, num, seed=seed), kernel)


def directions_at(points: np.ndarray, kernel: ZonalKernel) -> np.ndarray:
    """Weights of units that point at inputs `[M, D]`, in the space that the kernel scales, shape `[M, D + 1]`.

    Example:

    >>> keras_odgp.gpflow_models.directions_at(np.zeros((2, 3)), keras_odgp.kernels.ArcCosine()).tolist()
    [[0.0, 0.0, 0.0, 1.0], [0.0, 0.0, 0.0, 1.0]]
    """
    scaled = np.array(points, dtype=np.float64)
    scaled[:, kernel.active_dims] *= np.sqrt(kernel.weight_variances.numpy())
    return np.concatenate([scaled, np.full((len(scaled), 1), np.sqrt(kernel.bias_variance.numpy()))], axis=1)


def random_directions(num: int, num_inputs: int, *, seed: int = 0) -> np.ndarray:
    """Weights of units, uniform on the unit sphere, shape `[num, num_inputs + 1]`.

    Example:

    >>> weights = keras_odgp.gpflow_models.random_directions(10, 3)
    >>> weights.shape, np.allclose(np.linalg.norm(weights, axis=1), 1.0)
    ((10, 4), True)
    """
    weights = np.random.default_rng(seed).normal(size=(num, num_inputs + 1))
    return weights / np.linalg.norm(weights, axis=1, keepdims=True)
