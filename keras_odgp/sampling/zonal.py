r"""Functions drawn from the prior of a zonal kernel, and their inner products with features.

A function is $f_0(x) = r^p \sum_i w_i b_i(\tilde x)$ with independent normal weights, and every $b_i$ belongs to one
level. Low levels have all their harmonics, so that they are exact. Of the others, which are many and have little
variance, levels are drawn with probabilities proportional to $\lambda_\ell J$, and for each a random harmonic

$$ b(\tilde x) = c_\ell \operatorname{Re}\big((a + i a')^\top \tilde x\big)^\ell, $$

with $a$, $a'$ orthonormal and uniform: a wave along a random great circle. All rotations of a harmonic being equally
likely, its covariance is a multiple of the zonal harmonic $Z_\ell$, and $c_\ell$ makes it $Z_\ell / J$. So the mean
and the covariance of $f_0$ over draws are those of the prior, however few the waves. A zonal harmonic with a random
pole would do the same, but costs $\ell$ steps of a recurrence where a wave costs one power, and is a spike of height
$\sqrt J$ at its pole.

As a functional of $f_0$, an inducing variable is a sum over levels, with the same weights $w_i$.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import tensorflow as tf
from gpflow.inducing_variables import InducingPoints, InducingVariables

from keras_odgp.covariances.sphere import over_kernel
from keras_odgp.inducing import ActivationFeatures, SphericalHarmonics
from keras_odgp.kernels import ZonalKernel
from keras_odgp.sampling.spectrum import Tail, split_levels
from keras_odgp.spherical import num_harmonics, spherical_harmonics
from keras_odgp.spherical.directions import split_norms


class Waves(NamedTuple):
    """Random harmonics of S functions, R for each.

    Attributes:
        first: One direction of each great circle, shape `[S, R, d]`.
        second: Another, orthogonal to it, shape `[S, R, d]`.
        level: Levels, shape `[S, R]`.
        log_scale: Logarithms of the factors c, shape `[S, R]`.
        weights: Weights, shape `[S, R, P]`.
    """

    first: tf.Tensor
    second: tf.Tensor
    level: tf.Tensor
    log_scale: tf.Tensor
    weights: tf.Tensor


class ZonalPrior:
    """S functions with P outputs each, drawn from the prior of a zonal kernel.

    Args:
        kernel: The kernel, its parameters constant.
        features: Sets of features at which `at` will be called.
        num: Number of functions S.
        num_outputs: Number of outputs P.
        seed: Seed, a tensor `[2]`.
        num_harmonics: Number of harmonics that the exact levels may have together.
        num_waves: Number of random harmonics R of each function.
    """

    def __init__(
        self,
        kernel: ZonalKernel,
        features: list[InducingVariables],
        num: int,
        num_outputs: int,
        seed: tf.Tensor,
        *,
        num_harmonics: int,
        num_waves: int,
    ) -> None:
        self.kernel = kernel
        self.dtype = kernel.variance.dtype
        self.dimension = _dimension(kernel, features[0])
        # Of a level of harmonic features every coefficient is needed. It is small: the model evaluates it anyway.
        required = {level for part in features if isinstance(part, SphericalHarmonics) for level in part.levels}
        self.levels, tail = split_levels(kernel, self.dimension, num_harmonics, tuple(required))
        seeds = tf.random.split(seed, 2)
        shape = [num, sum(self._counts), num_outputs]
        self._normals = tf.cast(tf.random.stateless_normal(shape, seeds[0], dtype=tf.float64), self.dtype)  # [S, I, P]
        self._waves = None if tail is None else self._draw_waves(tail, [num, num_waves, num_outputs], seeds[1])

    @property
    def _counts(self) -> list[int]:
        return [num_harmonics(self.dimension, level) for level in self.levels]

    def _scales(self) -> tf.Tensor:
        """Standard deviations of the weights of the exact harmonics, shape `[I]`, float64."""
        log_coefficients = self.kernel.log_fourier_coefficients(self.levels, self.dimension)
        variance = tf.cast(self.kernel.variance, tf.float64)
        return tf.repeat(tf.sqrt(variance) * tf.exp(0.5 * log_coefficients), self._counts)

    def _draw_waves(self, tail: Tail, shape: list[int], seed: tf.Tensor) -> Waves:
        num, num_waves, _ = shape
        seeds = tf.random.split(seed, 3)
        # One from each of R strata: every level of much variance gets its share of waves, in every function.
        uniform = tf.random.stateless_uniform([num, num_waves], seeds[0], dtype=tf.float64)
        uniform = (tf.range(num_waves, dtype=tf.float64) + uniform) / num_waves
        level = tf.reshape(tail.quantile(tf.reshape(uniform, [-1])), [num, num_waves])
        normals = tf.random.stateless_normal([2, num, num_waves, self.dimension], seeds[1], dtype=tf.float64)
        first, _ = split_norms(normals[0])
        second, _ = split_norms(normals[1] - first * tf.reduce_sum(first * normals[1], axis=-1, keepdims=True))
        half = 0.5 * self.dimension
        log_scale = 0.5 * (
            math.log(2.0) + tf.math.lgamma(level + half) - tf.math.lgamma(level + 1.0) - math.lgamma(half)
        )
        variance = tf.cast(self.kernel.variance, tf.float64) * (self.kernel.shape_at_one * tail.share / num_waves)
        weights = tf.sqrt(variance) * tf.random.stateless_normal(shape, seeds[2], dtype=tf.float64)
        return Waves(*(tf.cast(part, self.dtype) for part in (first, second, level, log_scale, weights)))

    def __call__(self, X: tf.Tensor) -> tf.Tensor:
        """Values `[S, N, P]` at inputs `[S, N, D]`, or `[1, N, D]` for all functions."""
        directions, radial = self.kernel.project(self.kernel.slice(X, None)[0])
        return radial[..., None] * self._evaluate(directions, None)

    def at(self, features: InducingVariables) -> tf.Tensor:
        """What the inducing variables of a set of features are for these functions, shape `[S, M, P]`."""
        if isinstance(features, SphericalHarmonics):
            # The weights of these harmonics over s^2 lambda, which is the square of their scales.
            chosen = np.repeat(np.isin(self.levels, features.levels), self._counts)
            normals = tf.boolean_mask(self._normals, chosen, axis=1)
            return normals / tf.cast(tf.boolean_mask(self._scales(), chosen), self.dtype)[:, None]
        if isinstance(features, ActivationFeatures):
            directions, norms = features.project(self.kernel)
            return norms[:, None] * self._evaluate(directions[None], self._ratios(features))
        if isinstance(features, InducingPoints):
            return self(tf.convert_to_tensor(features.Z)[None])
        raise TypeError(f"Function samples know points, activations and harmonics as features. Got: {features!r}.")

    def _ratios(self, features: ActivationFeatures) -> tf.Tensor:
        """Coefficients of the activation over those of the kernel, by level, float64; zero where either has none."""
        active = features.active_levels(self.kernel)
        ratios = over_kernel(features.coefficients(active, self.dimension), active, self.dimension, self.kernel)
        values = ratios / tf.cast(self.kernel.variance, tf.float64)
        return tf.scatter_nd([[level] for level in active], values, [features.num_levels])

    def _evaluate(self, directions: tf.Tensor, ratios: tf.Tensor | None) -> tf.Tensor:
        """Values `[S, N, P]` at directions `[1 or S, N, d]`, each level times its ratio, if there are any."""

        def factors(levels: tf.Tensor) -> tf.Tensor:
            if ratios is None:
                return tf.ones_like(levels)
            index = tf.minimum(tf.cast(levels, tf.int32), ratios.shape[0])
            return tf.gather(tf.cast(tf.pad(ratios, [[0, 1]]), levels.dtype), index)

        scales = self._scales() * tf.repeat(factors(tf.constant(self.levels, tf.float64)), self._counts)
        basis = tf.transpose(spherical_harmonics(directions, self.levels), [1, 0, 2])  # [1 or S, I, N]
        values = tf.matmul(basis, tf.cast(scales, self.dtype)[:, None] * self._normals, transpose_a=True)
        if self._waves is None:
            return values
        weights = factors(self._waves.level)[..., None] * self._waves.weights
        return values + tf.matmul(_evaluate_waves(self._waves, directions), weights)


def _evaluate_waves(waves: Waves, directions: tf.Tensor) -> tf.Tensor:
    """Values `[S, N, R]` at directions `[1 or S, N, d]`."""
    real, imaginary = (tf.matmul(directions, axis, transpose_b=True) for axis in (waves.first, waves.second))
    # Zero is beyond reach of rounding but for chance; there the logarithm would have no gradient.
    square = tf.maximum(tf.square(real) + tf.square(imaginary), np.finfo(real.dtype.as_numpy_dtype).tiny)
    level = waves.level[:, None, :]
    size = tf.exp(0.5 * level * tf.math.log(square) + waves.log_scale[:, None, :])
    return size * tf.cos(level * tf.atan2(imaginary, real))


def _dimension(kernel: ZonalKernel, features: InducingVariables) -> int:
    """Dimension of the space around the sphere, as the features have it."""
    if isinstance(features, SphericalHarmonics):
        return features.dimension
    return len(np.arange(features.shape[1])[kernel.active_dims]) + 1  # type: ignore[index, arg-type]
