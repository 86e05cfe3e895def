r"""Closed-form optimum of q for a Gaussian likelihood.

With the whitened covariances stacked, $G = [A; E]$, precisions $\beta_i$ of the noise, and $\Lambda = I + \sum_i
\beta_i g_i g_i^\top$, the optimal factorised q has the mean $\Lambda^{-1} \sum_i \beta_i g_i y_i$ and the covariances
$\Lambda_{uu}^{-1}$ and $\Lambda_{vv}^{-1}$. Only sums over the data enter, so they can be accumulated batch by batch.
"""

from __future__ import annotations

from typing import NamedTuple

import tensorflow as tf
from gpflow.inducing_variables import InducingVariables
from gpflow.kernels import Kernel

from keras_odgp import numerics
from keras_odgp.covariances import DiagonalCovariance
from keras_odgp.orthogonal.gram import Covariance, cross
from keras_odgp.orthogonal.prediction import PriorFactors, whitened_covariances
from keras_odgp.orthogonal.variational import Variational


class Statistics(NamedTuple):
    """Sums over data.

    Attributes:
        precision: Sum of beta g g^T, shape `[R, R]` or `[L, R, R]`, R = M + K.
        projection: Sum of beta g y^T, shape `[R, P]`.
    """

    precision: tf.Tensor
    projection: tf.Tensor


def statistics(
    F: PriorFactors,
    X: tf.Tensor,
    Y: tf.Tensor,
    noise_precision: tf.Tensor,
    kernel: Kernel,
    base: InducingVariables,
    orthogonal: InducingVariables | None,
) -> Statistics:
    """The sums over one batch of inputs `[N, D]`, targets `[N, P]` and noise precisions `[N, 1]` or `[N, P]`."""
    parts = [part for part in whitened_covariances(F, cross(kernel, base, orthogonal, X)) if part is not None]
    G = tf.concat(parts, axis=-2)  # [(L,) R, N]
    if noise_precision.shape[-1] == 1:
        weighted = G * tf.transpose(noise_precision)
    else:  # every output has a precision of its own
        weighted = G * tf.transpose(noise_precision)[:, None, :]  # [P, R, N]
    projection = tf.matmul(weighted, Y) if len(weighted.shape) == 2 else tf.einsum("prn,np->rp", weighted, Y)
    return Statistics(tf.matmul(weighted, G, transpose_b=True), projection)


def add_statistics(left: Statistics | None, right: Statistics) -> Statistics:
    """Sums over the data of both."""
    return right if left is None else Statistics(*(old + new for old, new in zip(left, right)))


def optimal_q(stats: Statistics, num_base: int, num_outputs: int, *, name: str = "") -> Variational:
    """The whitened optimum of the factorised q."""
    size = stats.precision.shape[-1]
    precision = stats.precision + tf.eye(size, dtype=stats.precision.dtype)
    L = numerics.cholesky(precision, name=f"the posterior precision{name}")
    if len(L.shape) == 2:
        mean = tf.linalg.cholesky_solve(L, stats.projection)
    else:
        mean = tf.transpose(tf.linalg.cholesky_solve(L, tf.transpose(stats.projection)[..., None])[..., 0])
    sqrt = _inverse_root(precision[..., :num_base, :num_base], num_outputs, name)
    if num_base == size:
        return Variational(mean, sqrt)
    orthogonal_sqrt = _inverse_root(precision[..., num_base:, num_base:], num_outputs, name)
    return Variational(mean[:num_base], sqrt, mean[num_base:], orthogonal_sqrt)


def _inverse_root(precision: tf.Tensor, num_outputs: int, name: str) -> tf.Tensor:
    """Lower triangular roots of the inverse, one for each output, shape `[P, M, M]`.

    With rows and columns in reverse order, precision = U U^T with U upper triangular; the root is U^-T. No inverse is
    factorised.
    """
    reversed_factor = numerics.cholesky(tf.reverse(precision, [-2, -1]), name=f"the posterior precision{name}")
    U = tf.reverse(tf.linalg.band_part(reversed_factor, -1, 0), [-2, -1])
    identity = tf.eye(precision.shape[-1], batch_shape=precision.shape[:-2], dtype=precision.dtype)
    root = tf.linalg.triangular_solve(U, identity, lower=False, adjoint=True)
    return tf.tile(root[None], [num_outputs, 1, 1]) if len(root.shape) == 2 else root


def unwhiten_q(F: PriorFactors, q: Variational) -> Variational:
    """The unwhitened form of a whitened q: mean and root multiplied by the factor of the prior covariance."""

    def mean(L: Covariance, mu: tf.Tensor) -> tf.Tensor:
        if isinstance(L, DiagonalCovariance):
            return mu * (L.diag[:, None] if len(L.diag.shape) == 1 else tf.transpose(L.diag))
        return tf.matmul(L, mu) if len(L.shape) == 2 else tf.einsum("pmk,kp->mp", L, mu)

    def sqrt(L: Covariance, R: tf.Tensor) -> tf.Tensor:
        return L.diag[..., None] * R if isinstance(L, DiagonalCovariance) else tf.matmul(L, R)

    if q.orthogonal_mu is None:
        return Variational(mean(F.Lu, q.mu), sqrt(F.Lu, q.sqrt))
    orthogonal_sqrt = None if q.orthogonal_sqrt is None else sqrt(F.Lv, q.orthogonal_sqrt)
    return Variational(mean(F.Lu, q.mu), sqrt(F.Lu, q.sqrt), mean(F.Lv, q.orthogonal_mu), orthogonal_sqrt)
