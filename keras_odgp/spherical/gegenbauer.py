r"""Zonal polynomials on the unit sphere of $\mathbb R^d$, and truncated series of them.

$P_\ell$ is the Gegenbauer polynomial of index $(d-2)/2$ scaled to $P_\ell(1) = 1$. The zonal harmonic is
$Z_\ell = J(d, \ell) P_\ell$, with $J(d, \ell)$ the number of spherical harmonics of level $\ell$. In this scaling
one recurrence holds for every $d \ge 2$, the circle included.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import islice
from typing import Any, Protocol

import numpy as np
import tensorflow as tf

Array = Any  # a NumPy array or a tensor: the recurrences below only add and multiply


def check_dimension(dimension: int) -> int:
    """Returns `dimension`, or raises if no sphere of that dimension carries harmonics."""
    if not isinstance(dimension, (int, np.integer)) or dimension < 2:
        raise ValueError(
            f"Expected `dimension` to be an integer of at least 2 (number of inputs + 1). Got: {dimension!r}."
        )
    return int(dimension)


def check_num_levels(num_levels: int) -> int:
    """Returns `num_levels`, or raises if it is not a positive integer."""
    if isinstance(num_levels, bool) or not isinstance(num_levels, (int, np.integer)) or num_levels < 1:
        raise ValueError(
            f"Expected `num_levels` to be an integer of at least 1 (levels 0, ..., num_levels - 1). Got: "
            f"{num_levels!r}."
        )
    return int(num_levels)


def num_harmonics(dimension: int, level: int) -> int:
    """Number of linearly independent spherical harmonics of one level.

    Args:
        dimension: Dimension d of the surrounding space; the sphere is that of unit vectors in R^d.
        level: Level (degree) of the harmonics.

    Example:

    >>> [num_harmonics(3, level) for level in range(4)]
    [1, 3, 5, 7]
    """
    dimension, level = check_dimension(dimension), int(level)  # NumPy integers would overflow
    if level < 0:
        raise ValueError(f"Expected a `level` of at least 0. Got: {level}.")
    if level == 0:
        return 1
    return (2 * level + dimension - 2) * math.comb(level + dimension - 3, level - 1) // level


def recurrence(level: int, dimension: int) -> tuple[float, float]:
    """Factors (a, b) of P_{l+1} = a t P_l - b P_{l-1}."""
    if level == 0:
        return 1.0, 0.0
    denominator = level + dimension - 2
    return (2 * level + dimension - 2) / denominator, level / denominator


def iterate_polynomials(t: Array, dimension: int) -> Iterator[Array]:
    """Yields P_0(t), P_1(t), ... without end, two arrays kept at a time."""
    previous, current = 0.0 * t, 1.0 + 0.0 * t
    level = 0
    while True:
        yield current
        a, b = recurrence(level, dimension)
        previous, current = current, a * t * current - b * previous
        level += 1


def zonal_polynomials(t: tf.Tensor, num_levels: int, dimension: int) -> tf.Tensor:
    """Normalised Gegenbauer polynomials P_l(t), with P_l(1) = 1, for l = 0, ..., num_levels - 1.

    Args:
        t: Cosines in [-1, 1], of any shape `[...]`.
        num_levels: Number of levels L.
        dimension: Dimension d of the surrounding space, at least 2.

    Returns:
        Tensor of shape `[L, ...]`.

    Example:

    >>> zonal_polynomials(tf.constant([0.5]), 3, dimension=2).numpy().ravel().tolist()
    [1.0, 0.5, -0.5]
    """
    check_dimension(dimension)
    t = tf.convert_to_tensor(t)
    return tf.stack(list(islice(iterate_polynomials(t, dimension), check_num_levels(num_levels))))


def zonal_series(
    t: tf.Tensor, coefficients: tf.Tensor | np.ndarray, *, levels: Sequence[int], dimension: int
) -> tf.Tensor:
    """Evaluates the truncated zonal series sum_i coefficients[i] Z_{levels[i]}(t).

    Short series are polynomials in t^2 (plus, for odd levels, t times such a polynomial); long ones, where powers of
    t would cancel, go by Clenshaw's recurrence. The derivative is again a series of the same kind and is given as
    a custom gradient, so differentiation stores `t` and nothing else.

    Args:
        t: Cosines in [-1, 1], of any shape `[...]`.
        coefficients: One coefficient for each level, shape `[len(levels)]`. A NumPy array is a constant; for a tensor
            the gradient with respect to the coefficients is computed as well.
        levels: Levels of the series, in increasing order.
        dimension: Dimension d of the surrounding space, at least 2.

    Returns:
        Tensor of the shape and dtype of `t`.

    Example:

    >>> t = tf.constant([1.0, -1.0], tf.float64)
    >>> zonal_series(t, np.array([1.0, 1.0]), levels=(0, 1), dimension=3).numpy().tolist()
    [4.0, -2.0]
    """
    check_dimension(dimension)
    levels = tuple(int(level) for level in levels)
    t = tf.convert_to_tensor(t)
    if not levels:
        return tf.zeros_like(t)
    counts = np.array([num_harmonics(dimension, level) for level in levels], dtype=np.float64)
    # Products with J and with the matrix of monomials are in float64 whatever the dtype of t: they cancel.
    constant = not tf.is_tensor(coefficients)
    if constant:
        coefficients = np.asarray(coefficients, dtype=np.float64)
    if tuple(coefficients.shape) != (len(levels),) or list(levels) != sorted(set(levels)):
        raise ValueError(
            f"Expected increasing levels and one coefficient for each. Got levels {levels} and coefficients of shape "
            f"{tuple(coefficients.shape)}."
        )
    weights = counts * (coefficients if constant else tf.cast(coefficients, tf.float64))
    if max(levels) <= _highest_monomial_level(t.dtype):
        exponents, matrix = _monomial_matrix(levels, dimension)
        weights = matrix @ weights if constant else tf.linalg.matvec(matrix, weights)
        return _combine(_Monomials(exponents), t, weights)
    return _combine(_Gegenbauer(levels, dimension), t, weights)


def _highest_monomial_level(dtype: tf.DType) -> int:
    """Beyond it the monomials cancel to worse than 1e-12 (float64) or 1e-6 (float32) of the largest value."""
    return 15 if dtype == tf.float64 else 7


@cache
def _monomial_matrix(levels: tuple[int, ...], dimension: int) -> tuple[tuple[int, ...], np.ndarray]:
    """Exponents that occur in the P_l of `levels`, and the matrix from weights of P_l to weights of powers of t."""
    current = np.eye(max(levels) + 2)[0]  # entry i is the weight of t^i
    rows, previous = [], np.zeros_like(current)
    for level in range(max(levels) + 1):
        rows.append(current)
        a, b = recurrence(level, dimension)
        previous, current = current, a * np.roll(current, 1) - b * previous
    exponents = tuple(e for e in range(max(levels) + 1) if any(level >= e and (level - e) % 2 == 0 for level in levels))
    return exponents, np.stack([rows[level] for level in levels], axis=1)[list(exponents)]


class _Basis(Protocol):
    """Functions of t whose weighted sums are closed under differentiation."""

    def evaluate(self, t: tf.Tensor, weights: Array) -> tf.Tensor:
        """Sum of the basis functions at t, weighted."""

    def differentiate(self, weights: Array) -> tuple[_Basis, Array] | None:
        """Basis and weights of the derivative of the weighted sum, or None where it is zero."""

    def project(self, t: tf.Tensor, values: tf.Tensor) -> tf.Tensor:
        """Sum over all entries of `values` times each basis function."""


def _combine(basis: _Basis, t: tf.Tensor, weights: Array) -> tf.Tensor:
    """Weighted sum of basis functions; constant (NumPy) weights get no gradient."""
    constant = isinstance(weights, np.ndarray)

    def derivative(upstream: tf.Tensor, t: tf.Tensor, weights: Array) -> tf.Tensor:
        slope = basis.differentiate(weights)
        return tf.zeros_like(t) if slope is None else upstream * _combine(slope[0], t, slope[1])

    @tf.custom_gradient
    def with_constant_weights(t: tf.Tensor) -> tuple[tf.Tensor, Any]:
        return basis.evaluate(t, weights), lambda upstream: derivative(upstream, t, weights)

    @tf.custom_gradient
    def with_weights(t: tf.Tensor, weights: tf.Tensor) -> tuple[tf.Tensor, Any]:
        def gradient(upstream: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            return derivative(upstream, t, weights), tf.cast(basis.project(t, upstream), weights.dtype)

        return basis.evaluate(t, weights), gradient

    return with_constant_weights(t) if constant else with_weights(t, weights)


def _scalars(weights: Array, dtype: tf.DType) -> list[Array]:
    if isinstance(weights, np.ndarray):
        return list(weights.astype(dtype.as_numpy_dtype))
    return tf.unstack(tf.cast(weights, dtype))


@dataclass(frozen=True)
class _Monomials:
    """Powers of t with increasing exponents, summed by Horner's rule in t^2."""

    exponents: tuple[int, ...]

    def evaluate(self, t: tf.Tensor, weights: Array) -> tf.Tensor:
        by_exponent = dict(zip(self.exponents, _scalars(weights, t.dtype)))
        square = tf.square(t) if self.exponents[-1] >= 2 else None
        even = _horner(square, {e // 2: w for e, w in by_exponent.items() if e % 2 == 0})
        odd = _horner(square, {e // 2: w for e, w in by_exponent.items() if e % 2 == 1})
        if odd is None:
            return tf.zeros_like(t) + even
        return odd * t if even is None else odd * t + even

    def differentiate(self, weights: Array) -> tuple[_Basis, Array] | None:
        keep = [i for i, e in enumerate(self.exponents) if e > 0]
        if not keep:
            return None
        exponents = np.array(self.exponents)[keep]
        kept = weights[keep] if isinstance(weights, np.ndarray) else tf.gather(weights, keep)
        return _Monomials(tuple((exponents - 1).tolist())), exponents.astype(np.float64) * kept

    def project(self, t: tf.Tensor, values: tf.Tensor) -> tf.Tensor:
        sums, exponent = [], 0
        for target in self.exponents:
            for _ in range(target - exponent):
                values = values * t
            exponent = target
            sums.append(tf.reduce_sum(values))
        return tf.stack(sums)


def _horner(square: tf.Tensor | None, by_power: dict[int, Array]) -> Array | None:
    if not by_power:
        return None
    top = max(by_power)
    value = by_power[top]
    for power in range(top - 1, -1, -1):
        value = value * square
        if power in by_power:
            value = value + by_power[power]
    return value


@dataclass(frozen=True)
class _Gegenbauer:
    """The polynomials P_l of some levels, summed by Clenshaw's recurrence."""

    levels: tuple[int, ...]
    dimension: int

    def evaluate(self, t: tf.Tensor, weights: Array) -> tf.Tensor:
        by_level = dict(zip(self.levels, _scalars(weights, t.dtype)))
        later = current = tf.zeros_like(t)
        for level in range(max(self.levels), -1, -1):
            a, _ = recurrence(level, self.dimension)
            _, b = recurrence(level + 1, self.dimension)
            later, current = current, a * t * current - b * later + by_level.get(level, 0.0)
        return current

    def differentiate(self, weights: Array) -> tuple[_Basis, Array] | None:
        keep = [i for i, level in enumerate(self.levels) if level > 0]
        if not keep:
            return None
        levels = np.array(self.levels)[keep]
        factors = levels * (levels + self.dimension - 2) / (self.dimension - 1)
        kept = weights[keep] if isinstance(weights, np.ndarray) else tf.gather(weights, keep)
        return _Gegenbauer(tuple((levels - 1).tolist()), self.dimension + 2), factors * kept

    def project(self, t: tf.Tensor, values: tf.Tensor) -> tf.Tensor:
        polynomials = islice(iterate_polynomials(t, self.dimension), max(self.levels) + 1)
        wanted = set(self.levels)
        return tf.stack([tf.reduce_sum(values * p) for level, p in enumerate(polynomials) if level in wanted])
