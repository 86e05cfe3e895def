"""Kernels, features, inputs and comparisons to test with."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import gpflow
import numpy as np

from keras_odgp.inducing import ActivationFeatures, SphericalHarmonics
from keras_odgp.kernels import ArcCosine, Matern12, Matern32, Matern52, SquaredExponential, ZonalKernel

KERNELS: dict[str, Callable[..., ZonalKernel]] = {
    "arccos": ArcCosine,
    "matern12": Matern12,
    "matern32": Matern32,
    "matern52": Matern52,
    "squared_exponential": SquaredExponential,
}
FEATURES = ("points", "harmonics", "activations")
PAIRS = list(itertools.product(FEATURES, FEATURES))


def unit_vectors(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    x = rng.normal(size=shape)
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


def make_feature(
    kind: str,
    kernel: ZonalKernel,
    num_inputs: int,
    rng: np.random.Generator,
    *,
    num: int = 5,
    num_levels: int | None = None,
    activation: str = "softplus",
) -> Any:
    """A small set of features of one kind; levels are few enough that harmonics stay small."""
    if num_levels is None:
        num_levels = 3 if num_inputs > 10 else 5
    if kind == "points":
        return gpflow.inducing_variables.InducingPoints(rng.normal(size=(num, num_inputs)))
    if kind == "harmonics":
        return SphericalHarmonics(num_inputs + 1, kernel.active_levels(num_levels))
    return ActivationFeatures(2.0 * rng.normal(size=(num, num_inputs + 1)), activation, num_levels)


def assert_same(left: Any, right: Any) -> None:
    """Results of one computation done twice: products shared among threads may round differently in the last bits."""
    left, right = np.asarray(left), np.asarray(right)
    assert left.dtype == right.dtype
    if not np.issubdtype(right.dtype, np.floating):
        np.testing.assert_array_equal(left, right)
        return
    rounding = 1e3 * np.finfo(right.dtype).eps
    np.testing.assert_allclose(left, right, rtol=rounding, atol=rounding * np.abs(right).max(initial=0.0))
