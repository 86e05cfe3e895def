"""Functions drawn from the prior of GPflow's stationary kernels, by the random Fourier features of GPflux."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf
from gpflow import kernels
from gpflow.inducing_variables import InducingPoints, InducingVariables

# Twice the order of a Matérn kernel: its spectral density is a Student-t of so many degrees of freedom.
DEGREES_OF_FREEDOM: dict[type[kernels.Kernel], float | None] = {
    kernels.SquaredExponential: None,  # normal
    kernels.Matern12: 1.0,
    kernels.Matern32: 3.0,
    kernels.Matern52: 5.0,
}


class FourierPrior:
    """S functions with P outputs each, drawn from the prior of a stationary kernel.

    Every function has frequencies of its own, so that mean and covariance over draws are those of the prior. GPflux's
    layers evaluate them; the frequencies are drawn here, because there they have no seed.

    Args:
        kernel: A kernel among those of `DEGREES_OF_FREEDOM`, its parameters constant.
        features: Sets of features at which `at` will be called: points.
        num: Number of functions S.
        num_outputs: Number of outputs P.
        seed: Seed, a tensor `[2]`.
        num_frequencies: Number of frequencies R of each function.
    """

    def __init__(
        self,
        kernel: kernels.Stationary,
        features: list[InducingVariables],
        num: int,
        num_outputs: int,
        seed: tf.Tensor,
        *,
        num_frequencies: int,
    ) -> None:
        from gpflux.layers.basis_functions.fourier_features import RandomFourierFeatures  # noqa: PLC0415

        self.kernel = kernel
        self.dtype = kernel.variance.dtype
        seeds = tf.random.split(seed, 3)
        columns = len(np.arange(features[0].shape[1])[kernel.active_dims])  # type: ignore[index, arg-type]
        frequencies = _draw_frequencies(kernel, [num, num_frequencies, columns], seeds[:2])
        self._features: list[Any] = []
        for own in tf.unstack(tf.cast(frequencies, self.dtype)):
            layer = RandomFourierFeatures(kernel, num_frequencies, dtype=self.dtype)
            layer.build(tf.TensorShape([None, columns]))
            layer.W.assign(own)
            self._features.append(layer)
        shape = [num, 2 * num_frequencies, num_outputs]
        self._weights = tf.cast(tf.random.stateless_normal(shape, seeds[2], dtype=tf.float64), self.dtype)

    def __call__(self, X: tf.Tensor) -> tf.Tensor:
        """Values `[S, N, P]` at inputs `[S, N, D]`, or `[1, N, D]` for all functions."""
        inputs = self.kernel.slice(X, None)[0]
        own = len(self._features) * [inputs[0]] if inputs.shape[0] == 1 else tf.unstack(inputs)
        basis = tf.stack([layer(part) for layer, part in zip(self._features, own)])  # [S, N, 2 R]
        return tf.matmul(basis, self._weights)

    def at(self, features: InducingVariables) -> tf.Tensor:
        """Values `[S, M, P]` at inducing points."""
        if not isinstance(features, InducingPoints):
            raise TypeError(f"Function samples under {type(self.kernel).__name__} need points. Got: {features!r}.")
        return self(tf.convert_to_tensor(features.Z)[None])


def _draw_frequencies(kernel: kernels.Kernel, shape: list[int], seeds: tf.Tensor) -> tf.Tensor:
    normals = tf.random.stateless_normal(shape, seeds[0], dtype=tf.float64)
    degrees = DEGREES_OF_FREEDOM[type(kernel)]
    if degrees is None:
        return normals
    half = 0.5 * degrees
    return normals * tf.math.rsqrt(
        tf.random.stateless_gamma([*shape[:2], 1], seeds[1], alpha=half, beta=half, dtype=tf.float64)
    )
