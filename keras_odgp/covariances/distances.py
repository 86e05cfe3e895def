r"""Squared distances of points from factors that are one matrix product, with derivatives given by hand.

For points $x$ and $z$ about a common centre, $r^2$ is one product, $[x, \lVert x\rVert^2, 1]\,[-2z, 1,
\lVert z\rVert^2]^\top$. Far from the centre norms would drown distances; there they are taken column by column, from
the points as they came: those of one cluster would lose their digits with a centre in another. Distances are
differentiable twice; third derivatives of far points lack terms. Lengthscales get their gradient through the factors
even there, whose rounding grows with the distance: in float32 by about 1e-4 of a typical gradient for points 1e3
lengthscales from the centre, and by 1e-2 at 1e5.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from keras_odgp.numerics import RELATIVE_JITTER, apart

SMALLEST_SQUARE = 1e-36  # below it, as in GPflow, a squared distance counts as zero
# Of squared distances in one product: a tenth of the jitter. In float32, where ordinary inputs exceed that, ten times
# the jitter: what is in between, retries of the factorisation make up for.
LARGEST_ERROR = {tf.float64: 0.1 * RELATIVE_JITTER[tf.float64], tf.float32: 10.0 * RELATIVE_JITTER[tf.float32]}


class ScaledPoints(NamedTuple):
    """Points over the lengthscales: the two factors of squared distances, and what differences are taken from.

    Attributes:
        left: Shape `[N, D + 2]`.
        right: Shape `[N, D + 2]`.
        points: Shape `[N, D]`, neither centred nor scaled, which would round them.
        scale: The lengthscales, shape `[]` or `[D]`.
    """

    left: tf.Tensor
    right: tf.Tensor
    points: tf.Tensor
    scale: tf.Tensor


class Pairs(NamedTuple):
    """Two sets of points, from which scaled differences are taken: `[N, D]`, `[M, D]` and the lengthscales."""

    first: tf.Tensor
    second: tf.Tensor
    scale: tf.Tensor


def pairs(first: ScaledPoints, second: ScaledPoints) -> Pairs:
    """The points of two sets. They are not to be differentiated: the factors are."""
    return Pairs(*(tf.stop_gradient(each) for each in (first.points, second.points, first.scale)))


def squared_distances(left: tf.Tensor, right: tf.Tensor, pairs: Pairs) -> tf.Tensor:
    """Squared distances `[N, M]` from their factors, by one product, or column by column where that loses too much."""

    @tf.custom_gradient
    def run(left: tf.Tensor, right: tf.Tensor) -> tuple[tf.Tensor, Any]:
        square = _by_columns_if_far(_product, _square_by_columns, left, right, pairs)
        return square, lambda upstream: pull_back(upstream, left, right, pairs)

    return run(left, right)


def pull_back(upstream: tf.Tensor, left: tf.Tensor, right: tf.Tensor, pairs: Pairs) -> tuple[tf.Tensor, tf.Tensor]:
    """Gradients in both factors of squared distances."""

    @tf.custom_gradient
    def run(upstream: tf.Tensor, left: tf.Tensor, right: tf.Tensor) -> tuple[Any, Any]:
        def gradient(left_bar: tf.Tensor, right_bar: tf.Tensor) -> tuple[tf.Tensor, ...]:
            return tf.cond(
                _is_far(left, right),
                lambda: _twice_by_columns(pairs, upstream, left_bar, right_bar),
                lambda: _twice_by_product(upstream, left, right, left_bar, right_bar),
            )

        return _by_columns_if_far(_pull_back_product, _pull_back_by_columns, left, right, pairs, upstream), gradient

    return run(upstream, left, right)


def _by_columns_if_far(
    by_product: Any, by_columns: Any, left: tf.Tensor, right: tf.Tensor, pairs: Pairs, *others: tf.Tensor
) -> Any:
    """The result of one of two functions of the same points: of their factors, or of their columns."""

    def choose(is_far: tf.Tensor, left: tf.Tensor, right: tf.Tensor, pairs: Pairs, *others: tf.Tensor) -> Any:
        return tf.cond(is_far, lambda: by_columns(pairs, *others), lambda: by_product(left, right, *others))

    # Whose derivatives are given by hand: TensorFlow need not keep what it would take them from.
    left, right, *rest = (tf.stop_gradient(tensor) for tensor in (left, right, *others))
    return apart(choose)(_is_far(left, right), left, right, pairs, *rest)


def _is_far(left: tf.Tensor, right: tf.Tensor) -> tf.Tensor:
    """Whether one product would lose too much of squared distances.

    Rounding of a product is relative to the squared norms. For points thousands of lengthscales from the centre (30 in
    float32) it would decide which neighbours are together, and K would not be positive definite, whatever the jitter.
    Points that are not finite have no say: they must not change what becomes of the others.
    """
    norms = tf.concat([left[:, -2], right[:, -1]], axis=0)
    largest = tf.reduce_max(tf.where(tf.math.is_finite(norms), norms, tf.zeros_like(norms)))
    return largest * np.finfo(left.dtype.as_numpy_dtype).eps > LARGEST_ERROR[left.dtype]


def _product(left: tf.Tensor, right: tf.Tensor) -> tf.Tensor:
    return tf.matmul(left, right, transpose_b=True)


def _pull_back_product(left: tf.Tensor, right: tf.Tensor, upstream: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    return tf.matmul(upstream, right), tf.matmul(upstream, left, transpose_a=True)


def _columns(pairs: Pairs) -> Pairs:
    """The same as `[D, N]`, `[D, M]` and `[D]`."""
    scale = tf.broadcast_to(pairs.scale, tf.shape(pairs.first)[1:])
    return Pairs(tf.transpose(pairs.first), tf.transpose(pairs.second), scale)


def _difference(column: Pairs) -> tf.Tensor:
    """Scaled differences `[N, M]` in one column, right to the last digit, wherever the points are."""
    return (column.first[:, None] - column.second) / column.scale


def _square_by_columns(pairs: Pairs) -> tf.Tensor:
    def nothing(points: tf.Tensor) -> tf.Tensor:  # but NaN for points that are not finite
        return tf.reduce_sum(0.0 * points, axis=1)

    def add(total: tf.Tensor, column: Pairs) -> tf.Tensor:
        return total + tf.square(_difference(column))

    start = nothing(pairs.first)[:, None] + nothing(pairs.second)
    return tf.foldl(add, _columns(pairs), start, parallel_iterations=1)  # whatever D, two arrays [N, M]


def _pull_back_by_columns(pairs: Pairs, upstream: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Gradients as if squared norms were none of the factors: those of points are complete without them."""

    def pull(column: Pairs) -> tuple[tf.Tensor, tf.Tensor]:
        weighted = upstream * _difference(column)
        return 2.0 * tf.reduce_sum(weighted, axis=1), tf.reduce_sum(weighted, axis=0)

    signature = (upstream.dtype, upstream.dtype)
    bars = tf.map_fn(pull, _columns(pairs), parallel_iterations=1, fn_output_signature=signature)
    left_bar, right_bar = (tf.pad(tf.transpose(bar), [[0, 0], [0, 2]]) for bar in bars)
    return left_bar, right_bar


def _twice_by_product(
    upstream: tf.Tensor, left: tf.Tensor, right: tf.Tensor, left_bar: tf.Tensor, right_bar: tf.Tensor
) -> tuple[tf.Tensor, ...]:
    """Gradients of `_pull_back_product` in all it is given."""
    upstream_bar = _product(left_bar, right) + _product(left, right_bar)
    return upstream_bar, tf.matmul(upstream, right_bar), tf.matmul(upstream, left_bar, transpose_a=True)


def _twice_by_columns(
    pairs: Pairs, upstream: tf.Tensor, left_bar: tf.Tensor, right_bar: tf.Tensor
) -> tuple[tf.Tensor, ...]:
    """Gradients of `_pull_back_by_columns` in the upstream and both factors."""
    a, b = left_bar[:, :-2], right_bar[:, :-2]

    def add(total: tf.Tensor, columns: tuple[Pairs, tf.Tensor, tf.Tensor]) -> tf.Tensor:
        column, of_x, of_z = columns
        return tf.ensure_shape(total + _difference(column) * (2.0 * of_x[:, None] + of_z), total.shape)

    columns = (_columns(pairs), tf.transpose(a), tf.transpose(b))
    upstream_bar = tf.foldl(add, columns, tf.zeros_like(upstream), parallel_iterations=1)
    of_left = 2.0 * tf.reduce_sum(upstream, axis=1)[:, None] * a + tf.matmul(upstream, b)
    of_right = 0.5 * tf.reduce_sum(upstream, axis=0)[:, None] * b + tf.matmul(upstream, a, transpose_a=True)
    return upstream_bar, tf.pad(of_left, [[0, 0], [0, 2]]), tf.pad(of_right, [[0, 0], [0, 2]])


def floored(square: tf.Tensor) -> tf.Tensor:
    """Squared distances that rounding has not made negative, and whose root has a derivative."""
    return tf.maximum(square, SMALLEST_SQUARE)


def left_factor(points: tf.Tensor) -> tf.Tensor:
    norms = _squared_norms(points)
    return tf.concat([points, norms, tf.ones_like(norms)], axis=-1)


def right_factor(points: tf.Tensor) -> tf.Tensor:
    norms = _squared_norms(points)
    return tf.concat([-2.0 * points, tf.ones_like(norms), norms], axis=-1)


def _squared_norms(points: tf.Tensor) -> tf.Tensor:
    return tf.reduce_sum(tf.square(points), axis=-1, keepdims=True)
