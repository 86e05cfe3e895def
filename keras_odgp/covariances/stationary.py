r"""GPflow's stationary kernels between points, with a gradient of few operations.

With inputs divided by the lengthscales, a kernel is $K = \sigma^2 k(r^2)$. Both $K$ and its derivative in $r^2$ come
out of the same exponential, and $r^2$ is one matrix product,
$[x, \lVert x\rVert^2, 1]\,[-2z, 1, \lVert z\rVert^2]^\top$, of points about a common centre: norms of points far from
zero would drown their distances. So the gradient is one elementwise product and two thin
matrix products, where autodiff goes back through every step. The values are GPflow's to rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from gpflow import kernels
from gpflow.inducing_variables import InducingPoints

from keras_odgp.numerics import RELATIVE_JITTER, apart, identity_like

SMALLEST_SQUARE = 1e-36  # below it, as in GPflow, a squared distance counts as zero
# Of squared distances in one product: a tenth of the jitter. In float32, where ordinary inputs exceed that, ten times
# the jitter: what is in between, retries of the factorisation make up for.
LARGEST_ERROR = {tf.float64: 0.1 * RELATIVE_JITTER[tf.float64], tf.float32: 10.0 * RELATIVE_JITTER[tf.float32]}


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


class ScaledPoints(NamedTuple):
    """Points over the lengthscales, as the two factors of squared distances, both of shape `[N, D + 2]`."""

    left: tf.Tensor
    right: tf.Tensor


def place(kernel: kernels.Kernel, *sets: InducingPoints | tf.Tensor) -> list[ScaledPoints]:
    """Inducing points and inputs `[N, D]` in the units of a known kernel, whose lengthscales are read once."""
    scale = _scale(kernel)
    arrays = [tf.convert_to_tensor(part.Z if isinstance(part, InducingPoints) else part) for part in sets]
    columns = [active_columns(kernel, points) for points in arrays]
    centre = _centre(columns[0])
    scaled = [(points - centre) / scale for points in columns]  # divided first, far points would lose their digits
    return [ScaledPoints(_left(points), _right(points)) for points in scaled]


def unit_covariance(first: ScaledPoints, second: ScaledPoints, kernel: kernels.Kernel) -> tf.Tensor:
    """Covariances of two sets over the variance of the kernel."""
    return _covariance(_PROFILES[type(kernel)], None, first, second)


def amplitude(part: ScaledPoints, kernel: kernels.Kernel) -> tf.Tensor:
    """The standard deviation of the kernel: covariances are unit covariances times the amplitudes of both sets."""
    del part
    return tf.reshape(tf.sqrt(kernel.variance), [])


def _covariance(profile: _Profile, variance: tf.Tensor | None, first: ScaledPoints, second: ScaledPoints) -> tf.Tensor:
    @tf.custom_gradient
    def run(left: tf.Tensor, right: tf.Tensor, *variances: tf.Tensor) -> tuple[tf.Tensor, Any]:
        product = _squared_distances(left, right)
        off_diagonal = 1.0 - identity_like(product) if first is second else None
        # On the diagonal exactly zero, where the product leaves rounding errors.
        square = _floored(product if off_diagonal is None else product * off_diagonal)
        K, derivative = profile.evaluate(variances[0] if variances else None, square)
        if off_diagonal is not None:
            derivative *= off_diagonal

        def gradient(upstream: tf.Tensor) -> tuple[tf.Tensor, ...]:
            left_bar, right_bar = _pull_back(upstream * derivative, left, right)
            return (
                profile.slope * left_bar,
                profile.slope * right_bar,
                *(tf.reduce_sum(upstream * K) / variance for variance in variances),
            )

        return K, gradient

    return run(first.left, second.right, *([] if variance is None else [variance]))


def _centre(points: tf.Tensor) -> tf.Tensor:
    """The median `[D]` of points, which outliers do not move; distances do not depend on it, nor do gradients."""
    return tf.stop_gradient(tf.sort(points, axis=0)[tf.shape(points)[0] // 2])


def _squared_distances(left: tf.Tensor, right: tf.Tensor) -> tf.Tensor:
    """Squared distances `[N, M]` from their factors, by one product, or column by column where that loses too much."""

    @tf.custom_gradient
    def run(left: tf.Tensor, right: tf.Tensor) -> tuple[tf.Tensor, Any]:
        square = _by_columns_if_far(_product, _square_by_columns, left, right)
        return square, lambda upstream: _pull_back(upstream, left, right)

    return run(left, right)


def _pull_back(upstream: tf.Tensor, left: tf.Tensor, right: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Gradients in both factors of squared distances; differentiated further as those of the product."""

    @tf.custom_gradient
    def run(upstream: tf.Tensor, left: tf.Tensor, right: tf.Tensor) -> tuple[Any, Any]:
        def gradient(left_bar: tf.Tensor, right_bar: tf.Tensor) -> tuple[tf.Tensor, ...]:
            upstream_bar = _product(left_bar, right) + _product(left, right_bar)
            return upstream_bar, tf.matmul(upstream, right_bar), tf.matmul(upstream, left_bar, transpose_a=True)

        return _by_columns_if_far(_pull_back_product, _pull_back_by_columns, left, right, upstream), gradient

    return run(upstream, left, right)


def _by_columns_if_far(ordinary: Any, by_columns: Any, left: tf.Tensor, right: tf.Tensor, *others: tf.Tensor) -> Any:
    """The result of one of two functions of the same.

    Rounding of a product is relative to the squared norms. For points thousands of lengthscales from the centre (30 in
    float32) it would decide which neighbours are together, and K would not be positive definite, whatever the jitter.
    """
    largest = tf.maximum(tf.reduce_max(left[:, -2]), tf.reduce_max(right[:, -1]))
    error = largest * np.finfo(left.dtype.as_numpy_dtype).eps
    is_far = (error > LARGEST_ERROR[left.dtype]) & tf.math.is_finite(largest)

    def choose(is_far: tf.Tensor, *tensors: tf.Tensor) -> Any:
        return tf.cond(is_far, lambda: by_columns(*tensors), lambda: ordinary(*tensors))

    # Whose derivatives are given by hand: TensorFlow need not keep what it would take them from.
    return apart(choose)(is_far, *(tf.stop_gradient(tensor) for tensor in (left, right, *others)))


def _product(left: tf.Tensor, right: tf.Tensor) -> tf.Tensor:
    return tf.matmul(left, right, transpose_b=True)


def _pull_back_product(left: tf.Tensor, right: tf.Tensor, upstream: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    return tf.matmul(upstream, right), tf.matmul(upstream, left, transpose_a=True)


def _columns(left: tf.Tensor, right: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Columns of both sets of points, `[D, N]` and `[D, M]`."""
    return tf.transpose(left[:, :-2]), tf.transpose(-0.5 * right[:, :-2])


def _square_by_columns(left: tf.Tensor, right: tf.Tensor) -> tf.Tensor:
    start = tf.zeros((tf.shape(left)[0], tf.shape(right)[0]), left.dtype)

    def add(total: tf.Tensor, pair: tuple[tf.Tensor, tf.Tensor]) -> tf.Tensor:
        return total + tf.square(pair[0][:, None] - pair[1])

    return tf.foldl(add, _columns(left, right), start, parallel_iterations=1)  # whatever D, two arrays [N, M]


def _pull_back_by_columns(left: tf.Tensor, right: tf.Tensor, upstream: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Gradients as if squared norms were none of the factors: those of points are complete without them."""

    def pull(pair: tuple[tf.Tensor, tf.Tensor]) -> tuple[tf.Tensor, tf.Tensor]:
        weighted = upstream * (pair[0][:, None] - pair[1])
        return 2.0 * tf.reduce_sum(weighted, axis=1), tf.reduce_sum(weighted, axis=0)

    signature = (left.dtype, right.dtype)
    bars = tf.map_fn(pull, _columns(left, right), parallel_iterations=1, fn_output_signature=signature)
    left_bar, right_bar = (tf.pad(tf.transpose(bar), [[0, 0], [0, 2]]) for bar in bars)
    return left_bar, right_bar


def _floored(square: tf.Tensor) -> tf.Tensor:
    """Squared distances that rounding has not made negative, and whose root has a derivative."""
    return tf.maximum(square, SMALLEST_SQUARE)


def _left(points: tf.Tensor) -> tf.Tensor:
    norms = _squared_norms(points)
    return tf.concat([points, norms, tf.ones_like(norms)], axis=-1)


def _right(points: tf.Tensor) -> tf.Tensor:
    norms = _squared_norms(points)
    return tf.concat([-2.0 * points, tf.ones_like(norms), norms], axis=-1)


def _squared_norms(points: tf.Tensor) -> tf.Tensor:
    return tf.reduce_sum(tf.square(points), axis=-1, keepdims=True)


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
    return _scale(kernel), _centre(active_columns(kernel, Z)), place(kernel, Z)[0].right


def evaluate_prepared(
    kernel: kernels.Kernel, prepared: Sequence[tf.Tensor], variance: tf.Tensor, X: tf.Tensor
) -> tf.Tensor:
    """What `kernel(X, Z)` returns, `[N, M]`, for the points that were prepared."""
    scale, centre, right = prepared
    square = _floored(_squared_distances(_left((active_columns(kernel, X) - centre) / scale), right))
    return _PROFILES[type(kernel)].evaluate(variance, square)[0]
