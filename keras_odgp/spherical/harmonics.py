r"""Orthonormal spherical harmonics in any dimension, by descent to the circle.

With $x = (\rho\, y, t)$ on the sphere of $\mathbb R^k$, $y$ on that of $\mathbb R^{k-1}$ and $\rho^2 = 1 - t^2$,
the functions

$$ c\, \rho^m P^{[k+2m]}_{\ell-m}(t)\, Y_{m j}(y), \qquad 0 \le m \le \ell, $$

are an orthonormal basis of level $\ell$ if the $Y_{m j}$ are one of level $m$, one dimension lower. Written with
homogeneous polynomials ($\rho^m Y_{mj}(y)$ is a polynomial in the coordinates of $x$), they have no singular points
and no square roots. All $J$ harmonics cost $O(J)$ products per input; building them from zonal functions at $J$
fundamental directions costs $O(J^2)$, and a factorisation at start-up.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache

import numpy as np
import tensorflow as tf

from keras_odgp.spherical.gegenbauer import check_dimension, num_harmonics, recurrence


def check_levels(levels: int | Sequence[int]) -> tuple[int, ...]:
    """Levels 0, ..., levels - 1 for an integer; otherwise the given ones, sorted, or an error."""
    chosen = (
        list(range(levels)) if isinstance(levels, (int, np.integer)) else np.atleast_1d(np.asarray(levels)).tolist()
    )
    whole = all(isinstance(level, int) and level >= 0 for level in chosen)
    result = tuple(sorted(chosen)) if whole else ()
    if not result or len(set(result)) < len(result):
        raise ValueError(
            "Expected `levels` to be a positive number L (levels 0, ..., L - 1) or a non-empty list of distinct "
            "levels, "
            f"each at least 0. Got: {levels!r}."
        )
    return result


def spherical_harmonics(x: tf.Tensor, levels: int | Sequence[int]) -> tf.Tensor:
    """Spherical harmonics, orthonormal under the normalised measure on the sphere.

    Args:
        x: Unit vectors, shape `[..., d]` with d at least 2 and known statically.
        levels: A number L for levels 0, ..., L - 1, or a list of levels. Every level comes whole.

    Returns:
        Tensor of shape `[M, ...]`, with M the number of harmonics, ordered by level.

    Example:

    >>> spherical_harmonics(tf.constant([[0.0, 0.0, 1.0]], tf.float64), 2).shape.as_list()
    [4, 1]
    """
    x = tf.convert_to_tensor(x)
    dimension = check_dimension(x.shape[-1])
    wanted = check_levels(levels)
    coordinates = tf.unstack(x, axis=-1)
    square = coordinates[0] ** 2 + coordinates[1] ** 2
    harmonics = _circle(coordinates[0], coordinates[1], max(wanted))
    for k in range(3, dimension + 1):
        t = coordinates[k - 1]
        square = square + t**2
        table = _polar_factors(t, square, max(wanted), k)
        factor, lower = _descent(wanted if k == dimension else tuple(range(max(wanted) + 1)), k, max(wanted))
        harmonics = tf.gather(table, factor) * tf.gather(harmonics, lower)
    return tf.gather(harmonics, _circle_rows(wanted)) if dimension == 2 else harmonics


def _circle(x: tf.Tensor, y: tf.Tensor, highest: int) -> tf.Tensor:
    """Real and imaginary parts of (x + iy)^m times sqrt(2), m = 0, ..., highest, shape `[2 highest + 1, ...]`."""
    rows, real, imaginary = [tf.ones_like(x)], x, y
    for _ in range(highest):
        rows += [math.sqrt(2.0) * real, math.sqrt(2.0) * imaginary]
        real, imaginary = x * real - y * imaginary, x * imaginary + y * real
    return tf.stack(rows)


def _circle_rows(levels: tuple[int, ...]) -> list[int]:
    return [row for level in levels for row in ([0] if level == 0 else [2 * level - 1, 2 * level])]


def _polar_factors(t: tf.Tensor, square: tf.Tensor, highest: int, k: int) -> tf.Tensor:
    """Normalised homogeneous P_n^{[k+2m]}(t) for n + m <= highest, shape `[(highest + 1)(highest + 2) / 2, ...]`.

    Rows are ordered by n, then by m; `square` is the squared norm of the first k coordinates.
    """
    blocks = []
    previous = current = tf.ones_like(t)[None]
    for n in range(highest + 1):
        num_m = highest + 1 - n
        current = current[:num_m] if n > 0 else tf.repeat(current, num_m, axis=0)
        scale = np.array([_normaliser(k, m, n) for m in range(num_m)])
        blocks.append(_rows(scale, current) * current)
        factors = np.array([recurrence(n, k + 2 * m) for m in range(num_m)])
        raised = _rows(factors[:, 0], current) * t * current
        if n > 0:
            raised -= _rows(factors[:, 1], current) * square * previous[:num_m]
        previous, current = current, raised
    return tf.concat(blocks, axis=0)


def _rows(values: np.ndarray, like: tf.Tensor) -> tf.Tensor:
    return tf.reshape(tf.constant(values, like.dtype), [-1] + [1] * (len(like.shape) - 1))


def _normaliser(k: int, m: int, n: int) -> float:
    """Square root of omega_{k+2m} J(k+2m, n) / omega_k, with omega_d = Gamma(d/2) / (sqrt(pi) Gamma((d-1)/2))."""

    def log_omega(d: int) -> float:
        return math.lgamma(d / 2) - math.lgamma((d - 1) / 2)

    return math.exp(0.5 * (log_omega(k + 2 * m) - log_omega(k) + math.log(num_harmonics(k + 2 * m, n))))


@cache
def _descent(levels: tuple[int, ...], k: int, highest: int) -> tuple[np.ndarray, np.ndarray]:
    """For each harmonic in R^k: its row among the polar factors, and its row among the harmonics of R^{k-1}."""
    block_starts = np.cumsum([0] + [highest + 1 - n for n in range(highest + 1)])
    level_starts = np.cumsum([0] + [num_harmonics(k - 1, m) for m in range(highest + 1)])
    factor, lower = [], []
    for level in levels:
        for m in range(level + 1):
            rows = np.arange(level_starts[m], level_starts[m + 1])
            lower.append(rows)
            factor.append(np.full(len(rows), block_starts[level - m] + m))
    return np.concatenate(factor), np.concatenate(lower)
