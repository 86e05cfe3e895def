r"""GPflow's stationary kernels between points, with a gradient of few operations.

With inputs divided by the lengthscales, a kernel is $K = \sigma^2 k(r^2)$. Both $K$ and its derivative in $r^2$ come
out of the same exponential, and $r^2$ is one matrix product, of points about a common centre: norms of points far from
zero would drown their distances. So the gradient is one elementwise product and two thin matrix products, where
autodiff goes back through every step. The values are GPflow's to rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from gpflow import kernels
from gpflow.inducing_variables import InducingPoints

from keras_odgp.covariances.distances import (
    SMALLEST_SQUARE,
    ScaledPoints,
    floored,
    left_factor,
    pairs,
    pull_back,
    right_factor,
    squared_distances,
)
from keras_odgp.numerics import identity_like


class _Profile(NamedTuple):
    """A stationary kernel as a function of the scaled squared distance.

    Attributes:
        scale: Factor of the squared distance that spares one in `evaluate`.
        slope: Factor of the derivative that is left out in `evaluate`.
        evaluate: From the variance (None for 1) and scaled squared distances to values and derivatives.
    """

    scale: float
    slope: float
    evaluate: Callable[[tf.Tensor | None, tf.Tensor], tuple[tf.Tensor, tf.Tensor]]


def _times(variance: tf.Tensor | None, values: tf.Tensor) -> tf.Tensor:
    return values if variance is None else variance * values


def _squared_exponential(variance: tf.Tensor | None, square: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    K = _times(variance, tf.exp(-square))
    return K, K


def _matern12(variance: tf.Tensor | None, square: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    distance = tf.sqrt(square)
    K = _times(variance, tf.exp(-distance))
    # The kernel has no derivative at distance zero; zero is what GPflow takes.
    return K, tf.where(square <= SMALLEST_SQUARE, tf.zeros_like(K), K / distance)


def _matern32(variance: tf.Tensor | None, square: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    distance = tf.sqrt(square)
    decay = _times(variance, tf.exp(-distance))
    return (1.0 + distance) * decay, decay


def _matern52(variance: tf.Tensor | None, square: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    distance = tf.sqrt(square)
    decay = _times(variance, tf.exp(-distance))
    linear = (1.0 + distance) * decay
    return linear + (square * decay) * (1.0 / 3.0), linear


_PROFILES: dict[type[kernels.Kernel], _Profile] = {
    kernels.SquaredExponential: _Profile(0.5, -1.0, _squared_exponential),
    kernels.Exponential: _Profile(0.25, -0.5, _matern12),
    kernels.Matern12: _Profile(1.0, -0.5, _matern12),
    kernels.Matern32: _Profile(3.0, -0.5, _matern32),
    kernels.Matern52: _Profile(5.0, -1.0 / 6.0, _matern52),
}


def evaluate(kernel: kernels.Kernel, X: Any, X2: Any = None) -> tf.Tensor:
    """What `kernel(X, X2)` returns.

    Args:
        kernel: Any kernel. Those of GPflow listed above, but not kernels derived from them, have the cheap gradient.
        X: Inputs, shape `[N, D]`.
        X2: Inputs, shape `[N2, D]`. Defaults to `X`.
    """
    profile = _PROFILES.get(type(kernel))
    points = [tf.convert_to_tensor(inputs) for inputs in (X, X2) if inputs is not None]
    if profile is None or any(inputs.shape.rank != 2 for inputs in points):
        return kernel(X, X2)
    first, *second = place(kernel, *points)
    return _covariance(profile, tf.reshape(tf.convert_to_tensor(kernel.variance), []), first, *(second or [first]))


def evaluate_each(kernel: kernels.Kernel, X: tf.Tensor) -> tf.Tensor:
    """What `kernel(X)` returns, `[S, N, N]`, for sets of inputs `[S, N, D]`."""
    return tf.map_fn(lambda inputs: evaluate(kernel, inputs), X) if is_known(kernel) else kernel(X)


def place(kernel: kernels.Kernel, *sets: InducingPoints | tf.Tensor) -> list[ScaledPoints]:
    """Inducing points and inputs `[N, D]` in the units of a known kernel, whose lengthscales are read once."""
    scale = _scale(kernel)
    arrays = [tf.convert_to_tensor(part.Z if isinstance(part, InducingPoints) else part) for part in sets]
    columns = [active_columns(kernel, points) for points in arrays]
    centre = _centre(columns[0])
    return [_scaled(points, centre, scale) for points in columns]


def _scaled(points: tf.Tensor, centre: tf.Tensor, scale: tf.Tensor) -> ScaledPoints:
    scaled = (points - centre) / scale  # divided first, far points would lose their digits
    return ScaledPoints(left_factor(scaled), right_factor(scaled), points, scale)


def unit_covariance(first: ScaledPoints, second: ScaledPoints, kernel: kernels.Kernel) -> tf.Tensor:
    """Covariances of two sets over the variance of the kernel."""
    return _covariance(_PROFILES[type(kernel)], None, first, second)


def amplitude(part: ScaledPoints, kernel: kernels.Kernel) -> tf.Tensor:
    """The standard deviation of the kernel: covariances are unit covariances times the amplitudes of both sets."""
    del part
    return tf.reshape(tf.sqrt(kernel.variance), [])


def _covariance(profile: _Profile, variance: tf.Tensor | None, first: ScaledPoints, second: ScaledPoints) -> tf.Tensor:
    points = pairs(first, second)

    @tf.custom_gradient
    def run(left: tf.Tensor, right: tf.Tensor, *variances: tf.Tensor) -> tuple[tf.Tensor, Any]:
        product = squared_distances(left, right, points)
        off_diagonal = 1.0 - identity_like(product) if first is second else None
        # On the diagonal exactly zero, where the product leaves rounding errors.
        square = floored(product if off_diagonal is None else product * off_diagonal)
        K, derivative = profile.evaluate(variances[0] if variances else None, square)
        if off_diagonal is not None:
            derivative *= off_diagonal

        def gradient(upstream: tf.Tensor) -> tuple[tf.Tensor, ...]:
            left_bar, right_bar = pull_back(upstream * derivative, left, right, points)
            return (
                profile.slope * left_bar,
                profile.slope * right_bar,
                *(tf.reduce_sum(upstream * K) / variance for variance in variances),
            )

        return K, gradient

    return run(first.left, second.right, *([] if variance is None else [variance]))


def _centre(points: tf.Tensor) -> tf.Tensor:
    """The median `[D]` of the finite entries of points, which outliers do not move; 0 where there are none.

    Distances do not depend on it, nor do gradients.
    """
    infinity = points.dtype.as_numpy_dtype(np.inf)
    is_finite = tf.math.is_finite(points)
    rising = tf.sort(tf.where(is_finite, points, infinity), axis=0)
    rising = tf.pad(rising, [[0, 1], [0, 0]], constant_values=infinity)
    middle = tf.reduce_sum(tf.cast(is_finite, tf.int32), axis=0) // 2
    centre = tf.gather(tf.transpose(rising), middle, batch_dims=1)
    return tf.stop_gradient(tf.where(tf.math.is_finite(centre), centre, tf.zeros_like(centre)))


def active_columns(kernel: kernels.Kernel, X: tf.Tensor) -> tf.Tensor:
    """The columns that a kernel sees, without an operation where it sees all."""
    dims = kernel.active_dims
    sees_all = isinstance(dims, slice) and dims == slice(None)
    return X if sees_all else kernel.slice(X, None)[0]


def is_known(kernel: kernels.Kernel) -> bool:
    """Whether it is one of the kernels listed above."""
    return type(kernel) in _PROFILES


def _scale(kernel: kernels.Kernel) -> tf.Tensor:
    return tf.convert_to_tensor(kernel.lengthscales) * _PROFILES[type(kernel)].scale ** -0.5


def prepare(kernel: kernels.Kernel, Z: tf.Tensor) -> tuple[tf.Tensor, ...]:
    """What `evaluate_prepared` needs of a known kernel and of points `[M, D]`: all but the variance."""
    columns = active_columns(kernel, Z)
    centre = _centre(columns)
    return centre, *_scaled(columns, centre, _scale(kernel))


def evaluate_prepared(
    kernel: kernels.Kernel, prepared: Sequence[tf.Tensor], variance: tf.Tensor, X: tf.Tensor
) -> tf.Tensor:
    """What `kernel(X, Z)` returns, `[N, M]`, for the points that were prepared."""
    centre, *parts = prepared
    points = ScaledPoints(*parts)
    inputs = _scaled(active_columns(kernel, X), centre, points.scale)
    square = floored(squared_distances(inputs.left, points.right, pairs(inputs, points)))
    return _PROFILES[type(kernel)].evaluate(variance, square)[0]
