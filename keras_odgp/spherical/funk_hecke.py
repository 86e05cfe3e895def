r"""Fourier (Funk-Hecke) coefficients of zonal functions.

The coefficient of a function $\kappa$ at level $\ell$ is the mean of $\kappa(t) P_\ell(t)$ over the sphere under its
normalised measure, so that $\kappa = \sum_\ell \lambda_\ell Z_\ell$. Everything here is computed in float64, whatever
the dtype of the model: it is a handful of numbers, and in float32 they underflow long before their ratios do.
For the same reason the coefficients that depend on a trained lengthscale are returned as logarithms.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache
from itertools import islice

import numpy as np
import tensorflow as tf

from keras_odgp.spherical.gegenbauer import check_dimension, check_num_levels, iterate_polynomials

NODES_PER_PANEL = 64
MIN_BETA_NODES = 192
lgamma = np.vectorize(math.lgamma, otypes=[np.float64])


def vanishes_for_relu_power(power: int, level: int) -> bool:
    """Whether max(t, 0)^power, and with it the arc-cosine kernel of that order, lacks a level."""
    return level > power and (level - power) % 2 == 0


@cache
def relu_power_coefficients(power: int, num_levels: int, dimension: int) -> np.ndarray:
    """Coefficients of max(t, 0)^power for power 0 (step), 1 (ReLU) or 2, in closed form, shape `[num_levels]`.

    Example:

    >>> keras_odgp.spherical.relu_power_coefficients(1, num_levels=4, dimension=3).round(4).tolist()
    [0.25, 0.1667, 0.0625, 0.0]
    """
    d = check_dimension(dimension)
    special = {(0, 0): 0.5, (1, 1): 1 / (2 * d), (2, 0): 1 / (2 * d), (2, 2): 1 / (d * (d + 2))}

    def coefficient(level: int) -> float:
        if (level - power) % 2 == 0:
            return special.get((power, level), 0.0)
        k = (level - power - 1) // 2
        sign = (-1) ** k * (1 if k >= 0 else -1)  # Gamma(k + 1/2) is negative at k = -1, the only negative k
        log_size = math.lgamma(d / 2) + math.lgamma(k + 0.5) - math.lgamma(level - k + (d - 1) / 2)
        return sign * math.factorial(power) / (2 ** (power + 1) * math.pi) * math.exp(log_size)

    values = np.array([coefficient(level) for level in range(check_num_levels(num_levels))])
    values.setflags(write=False)  # kept for later calls
    return values


def arc_cosine_coefficients(order: int, num_levels: int, dimension: int) -> np.ndarray:
    """Coefficients of the arc-cosine shape of order 0, 1 or 2, squares of those of ReLU, shape `[num_levels]`.

    Example:

    >>> relu = keras_odgp.spherical.relu_power_coefficients(1, num_levels=4, dimension=3)
    >>> np.allclose(keras_odgp.spherical.arc_cosine_coefficients(1, 4, 3), 2 * 3 * relu**2)
    True
    """
    d = dimension
    factor = 2.0 * {0: 1, 1: d, 2: d * (d + 2)}[order]
    return factor * relu_power_coefficients(order, num_levels, dimension) ** 2


def matern_log_coefficients(nu: float, lengthscale: tf.Tensor, levels: Sequence[int], dimension: int) -> tf.Tensor:
    r"""Log-coefficients of the chordal Matérn shape of half-integer order, shape `[len(levels)]`, float64.

    Each is a positive prefactor times the mean of a function in (0, 1] under a Beta distribution: nothing cancels, so
    the relative accuracy is the same at every level and dimension, for lengthscales from 0.01 on. Differentiable in
    `lengthscale`.

    Example:

    >>> logs = keras_odgp.spherical.matern_log_coefficients(2.5, tf.constant(1.0, tf.float64), range(30), dimension=3)
    >>> counts = [keras_odgp.spherical.num_harmonics(3, level) for level in range(30)]
    >>> round(float(np.exp(logs) @ counts), 4)  # the shape function at 1
    1.0
    """
    d = check_dimension(dimension)
    level = np.asarray(levels, dtype=np.float64)
    below = level < nu
    p = np.where(below, level, nu) + (d - 1) / 2
    q = level + (d - 1) / 2
    order = np.abs(level - nu) - 0.5  # of the function g under the mean
    exponent = np.where(below, 2 * level, 2 * nu)  # of a in the prefactor
    smooth = lgamma(d / 2) + lgamma(np.abs(nu - level)) - math.lgamma(nu)
    log_constant = np.where(
        below,
        smooth - lgamma(level + d / 2) - 2 * level * math.log(2),
        smooth
        + (d - 2) * math.log(2)
        + math.lgamma(nu + (d - 1) / 2)
        - 0.5 * math.log(math.pi)
        - lgamma(level + nu + d - 1),
    )
    sine, weights = _beta_rule(tuple(p), tuple(q))
    a = math.sqrt(2 * nu) / tf.cast(lengthscale, tf.float64)
    g = _decreasing_bessel(2 * a * sine, int(order.max()))  # [orders, nodes]
    means = tf.reduce_sum(weights * tf.gather(g, order.astype(int)), axis=-1)
    return log_constant + exponent * tf.math.log(a) + tf.math.log(means)


def squared_exponential_log_coefficients(lengthscale: tf.Tensor, levels: Sequence[int], dimension: int) -> tf.Tensor:
    """Log-coefficients of exp((t - 1) / lengthscale^2), shape `[len(levels)]`, float64, differentiable.

    Relatively accurate to 1e-8 for lengthscales from 0.03 on.

    Example:

    >>> one = tf.constant(1.0, tf.float64)
    >>> logs = keras_odgp.spherical.squared_exponential_log_coefficients(one, range(20), dimension=3)
    >>> round(float(np.exp(logs) @ [2 * level + 1 for level in range(20)]), 6)  # the shape function at 1
    1.0
    """
    d = check_dimension(dimension)
    level = np.asarray(levels, dtype=np.float64)
    sine, weights = _beta_rule(tuple(level + (d - 1) / 2), tuple(level + (d - 1) / 2))
    c = tf.cast(lengthscale, tf.float64) ** -2.0
    means = tf.linalg.matvec(weights, tf.exp(-2 * c * sine**2))
    return lgamma(d / 2) - lgamma(level + d / 2) + level * tf.math.log(c / 2) + tf.math.log(means)


@cache
def _beta_rule(p: tuple[float, ...], q: tuple[float, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Gauss-Legendre rule in phi for means over Beta(p, q) of functions of sqrt(B) = sin(phi).

    Returns:
        The values of sin(phi), shape `[n]`, and the weights, one row for each pair (p, q), shape `[len(p), n]`.
    """
    # The density narrows like (p + q)^(-1/2): the number of nodes keeps up with it in high dimensions.
    num_nodes = max(MIN_BETA_NODES, 8 * math.ceil(math.sqrt(max(p) + max(q))))
    nodes, weights = np.polynomial.legendre.leggauss(num_nodes)
    phi = (nodes + 1) * math.pi / 4
    log_beta = lgamma(p) + lgamma(q) - lgamma(np.add(p, q))
    log_density = (
        np.outer(2 * np.array(p) - 1, np.log(np.sin(phi)))
        + np.outer(2 * np.array(q) - 1, np.log(np.cos(phi)))
        - log_beta[:, None]
    )
    return np.sin(phi), 2 * np.exp(log_density) * weights * math.pi / 4


def _decreasing_bessel(s: tf.Tensor, highest: int) -> tf.Tensor:
    """g_m(s) = exp(-s) theta_m(s) / theta_m(0) with reverse Bessel polynomials theta_m, m = 0, ..., highest."""
    values = [tf.exp(-s)]
    values.append((1 + s) * values[0])
    for m in range(2, highest + 1):
        values.append(values[-1] + s**2 / ((2 * m - 1) * (2 * m - 3)) * values[-2])
    return tf.stack(values[: highest + 1])


def quadrature_coefficients(
    function: Callable[[np.ndarray], np.ndarray], num_levels: int, dimension: int
) -> np.ndarray:
    """Coefficients of a zonal function by quadrature, absolutely accurate, shape `[num_levels]`.

    Gauss-Legendre in the angle on two panels, which meet at t = 0: kinks there, and square roots at t = 1, do no
    harm.

    Example:

    >>> keras_odgp.spherical.quadrature_coefficients(lambda t: 1 + t, num_levels=2, dimension=4).round(6).tolist()
    [1.0, 0.25]
    """
    d = check_dimension(dimension)
    num_nodes = max(NODES_PER_PANEL, 8 * math.ceil(math.sqrt(d + 2 * num_levels)))
    nodes, weights = np.polynomial.legendre.leggauss(num_nodes)
    quarter = (nodes + 1) * math.pi / 4
    theta = np.concatenate([quarter, quarter + math.pi / 2])
    t = np.cos(theta)
    log_omega = math.lgamma(d / 2) - math.lgamma((d - 1) / 2) - 0.5 * math.log(math.pi)
    measure = np.tile(weights, 2) * math.pi / 4 * np.exp(log_omega + (d - 2) * np.log(np.sin(theta)))
    integrand = measure * function(t)
    return np.array([integrand @ p for p in islice(iterate_polynomials(t, d), check_num_levels(num_levels))])


def softplus_coefficient(slope: float, level: int, dimension: int) -> float:
    r"""Coefficient of log(1 + exp(slope t)) / slope at an even level of at least 6.

    A sum over the poles of the second derivative, which are at $t = \pm i b$, $b = \pi/\text{slope}$ times odd
    numbers. The hypergeometric functions in it are transformed (quadratically) so that the terms of their series that
    matter are all
    positive: coefficients far below the rounding of the function itself keep their relative accuracy, where
        quadrature would
    return noise.
    """
    d = check_dimension(dimension)
    b = np.arange(1, 2048 * math.ceil(max(1.0, slope)), 2) * math.pi / slope
    root = np.hypot(b, 1.0)  # sqrt(1 + b^2)
    series = _hypergeometric(level, 1 - d / 2, level + d / 2, -1.0 / (b + root) ** 2)
    terms = (2.0 / (b + root)) ** level * series
    log_factor = math.lgamma(level) + math.lgamma(d / 2 + 1) - math.lgamma(level + d / 2) - (level - 1) * math.log(2)
    sign = -1 if level % 4 == 0 else 1
    return sign * 2.0 / (slope * d) * math.exp(log_factor) * float(np.sum(terms[::-1]))


def _hypergeometric(a: float, b: float, c: float, z: np.ndarray) -> np.ndarray:
    """2F1(a, b; c; z) by its series, for a, c > 0 and -1 < z <= 0."""
    total, term, k = np.ones_like(z), np.ones_like(z), 0
    while np.any(np.abs(term) > 1e-17 * total):
        term = term * ((a + k) * (b + k) / ((c + k) * (k + 1)) * z)
        total = total + term
        k += 1
    return total
