"""The training path: marginal means and variances at a batch of inputs, and the divergence, with few and large
operations.

A step costs one Cholesky factorisation of an M x M matrix and one of a K x K matrix, whatever the number of outputs;
none of M x M for a harmonic base, none at all if the orthogonal features are harmonics of other levels.
"""

from __future__ import annotations

from typing import NamedTuple

import tensorflow as tf
from gpflow.inducing_variables import InducingVariables
from gpflow.kernels import Kernel

from keras_odgp import numerics
from keras_odgp.covariances import DiagonalCovariance
from keras_odgp.orthogonal.gram import Covariance, Cross, Gram
from keras_odgp.orthogonal.projection import project
from keras_odgp.orthogonal.solves import solve, subtract_gram
from keras_odgp.orthogonal.standard import standardised
from keras_odgp.orthogonal.variational import Variational, whitened_kl


class Marginals(NamedTuple):
    """What a training step needs.

    Attributes:
        mean: Means of the latent functions, shape `[N, P]`.
        variance: Variances of the latent functions, shape `[N, P]`.
        kl: Divergence of q from the prior, a scalar.

    Example:

    >>> X = tf.constant(np.random.randn(5, 2))
    >>> q = keras_odgp.orthogonal.variational(np.zeros((4, 1)), np.eye(4)[None])
    >>> points = gpflow.inducing_variables.InducingPoints(np.random.randn(4, 2))
    >>> parts = keras_odgp.orthogonal.marginals(X, gpflow.kernels.Matern52(), points, None, q, whiten=True)
    >>> parts.mean.shape.as_list(), float(parts.kl)
    ([5, 1], 0.0)
    """

    mean: tf.Tensor
    variance: tf.Tensor
    kl: tf.Tensor


def marginals(
    X: tf.Tensor,
    kernel: Kernel,
    base: InducingVariables,
    orthogonal: InducingVariables | None,
    q: Variational,
    *,
    whiten: bool,
    name: str = "",
) -> Marginals:
    """Marginal moments of the latent functions at inputs `[N, D]`, and the divergence of q from the prior.

    Example:

    >>> X = tf.constant(np.random.randn(5, 2))
    >>> base, orthogonal = (gpflow.inducing_variables.InducingPoints(np.random.randn(n, 2)) for n in (4, 3))
    >>> q = keras_odgp.orthogonal.variational(np.zeros((4, 1)), np.eye(4)[None], np.zeros((3, 1)), np.eye(3)[None])
    >>> mean, variance, kl = keras_odgp.orthogonal.marginals(
    ...     X, gpflow.kernels.Matern52(), base, orthogonal, q, whiten=True
    ... )
    >>> variance.numpy().round(6).ravel().tolist()  # q is the prior
    [1.0, 1.0, 1.0, 1.0, 1.0]
    """
    G, C, amplitudes = standardised(kernel, base, orthogonal, X)
    if amplitudes is None:
        return moments(G, C, q, whiten=whiten, name=name)
    mean, variance, kl = moments(G, C, q if whiten else amplitudes.take_out(q), whiten=whiten, name=name)
    return Marginals(*amplitudes.put_back(mean, variance), kl)


def moments(G: Gram, C: Cross, q: Variational, *, whiten: bool, name: str = "") -> Marginals:
    """The same from covariances."""
    sides = [C.Kuf] if G.Kvu is None else [C.Kuf, tf.linalg.matrix_transpose(G.Kvu)]
    solutions, mu, sqrt = _solve_and_whiten(G.Kuu, sides, q.mu, q.sqrt, whiten=whiten, name=f"Kuu{name}")
    A, B = solutions[0], None if G.Kvu is None else solutions[1]
    if G.Kvv is None:
        mean, change = project(A, mu, sqrt)
        return _finish(C, mean, change, Variational(mu, sqrt))
    Svv, reference = schur(G, B)
    if q.orthogonal_sqrt is None:
        Lv = root(Svv, reference=reference, name=f"Svv{name}")
        orthogonal_mu = q.orthogonal_mu if whiten else solve_means(Lv, q.orthogonal_mu)
        b = solve_means(Lv, orthogonal_mu, adjoint=True)
        shifted = mu if B is None else mu - apply(B, b)
        mean, change = project(A, shifted, sqrt)
        mean += weigh(C.Kvf, b)
        return _finish(C, mean, change, Variational(mu, sqrt, orthogonal_mu))
    # Minus B, not minus the product: then the gradient negates no matrix with a column for each datum.
    Svf = C.Kvf if B is None else C.Kvf + tf.matmul(-B, A, transpose_a=True)
    (E,), orthogonal_mu, orthogonal_sqrt = _solve_and_whiten(
        Svv, [Svf], q.orthogonal_mu, q.orthogonal_sqrt, whiten=whiten, reference=reference, name=f"Svv{name}"
    )
    mean, change = project(A, mu, sqrt)
    orthogonal_mean, orthogonal_change = project(E, orthogonal_mu, orthogonal_sqrt)
    return _finish(
        C, mean + orthogonal_mean, change + orthogonal_change, Variational(mu, sqrt, orthogonal_mu, orthogonal_sqrt)
    )


def whiten_q(G: Gram, q: Variational, *, name: str = "") -> Variational:
    """The whitened form of an unwhitened q."""
    sides = [] if G.Kvu is None else [tf.linalg.matrix_transpose(G.Kvu)]
    solutions, mu, sqrt = _solve_and_whiten(G.Kuu, sides, q.mu, q.sqrt, whiten=False, name=f"Kuu{name}")
    if G.Kvv is None:
        return Variational(mu, sqrt)
    Svv, reference = schur(G, solutions[0] if sides else None)
    if q.orthogonal_sqrt is None:
        return Variational(mu, sqrt, solve_means(root(Svv, reference=reference, name=f"Svv{name}"), q.orthogonal_mu))
    _, orthogonal_mu, orthogonal_sqrt = _solve_and_whiten(
        Svv, [], q.orthogonal_mu, q.orthogonal_sqrt, whiten=False, reference=reference, name=f"Svv{name}"
    )
    return Variational(mu, sqrt, orthogonal_mu, orthogonal_sqrt)


def schur(G: Gram, B: tf.Tensor | None) -> tuple[Covariance, tf.Tensor]:
    """Covariance of the orthogonal features given the base, and the diagonal that jitter is relative to."""
    diagonal = G.Kvv.diag if isinstance(G.Kvv, DiagonalCovariance) else tf.linalg.diag_part(G.Kvv)
    return (G.Kvv if B is None else subtract_gram(G.Kvv, B)), tf.stop_gradient(diagonal)


def _finish(C: Cross, mean: tf.Tensor, change: tf.Tensor, whitened: Variational) -> Marginals:
    # Tiled, not broadcast: then the graph is the same for one output and for many.
    prior = tf.tile(C.kff[:, None], [1, mean.shape[1]]) if len(C.kff.shape) == 1 else tf.transpose(C.kff)
    return Marginals(mean, prior + change, whitened_kl(whitened))


def _solve_and_whiten(
    K: Covariance,
    sides: list[tf.Tensor],
    mu: tf.Tensor,
    sqrt: tf.Tensor,
    *,
    whiten: bool,
    reference: tf.Tensor | None = None,
    name: str,
) -> tuple[list[tf.Tensor], tf.Tensor, tf.Tensor]:
    """Solves for all right-hand sides and, where q is not whitened, for its mean and root, with one factorisation."""
    if whiten:
        return solve(K, sides, reference=reference, name=name), mu, sqrt
    num_outputs, size = sqrt.shape[0], sqrt.shape[1]
    if len(K.shape) == 3:  # every output has its own K
        *solutions, means, roots = solve(K, [*sides, tf.transpose(mu)[..., None], sqrt], reference=reference, name=name)
        return solutions, tf.transpose(means[..., 0]), roots
    stacked = tf.reshape(tf.transpose(sqrt, [1, 0, 2]), [size, num_outputs * size])
    *solutions, mean, roots = solve(K, [*sides, mu, stacked], reference=reference, name=name)
    return solutions, mean, tf.transpose(tf.reshape(roots, [size, num_outputs, size]), [1, 0, 2])


def root(K: Covariance, *, reference: tf.Tensor | None = None, name: str) -> Covariance:
    """The Cholesky factor, diagonal for a diagonal covariance; differentiable."""
    if isinstance(K, DiagonalCovariance):
        return DiagonalCovariance(tf.sqrt(K.diag))
    return numerics.cholesky(K, reference=reference, name=name)


def solve_means(L: Covariance, mu: tf.Tensor, *, adjoint: bool = False) -> tf.Tensor:
    """L^-1 mu, or L^-T mu, for means `[K, P]`, with L `[K, K]` or, one for each output, `[P, K, K]`."""
    if isinstance(L, DiagonalCovariance):
        return mu / (L.diag[:, None] if len(L.diag.shape) == 1 else tf.transpose(L.diag))
    if len(L.shape) == 2:
        return tf.linalg.triangular_solve(L, mu, adjoint=adjoint)
    return tf.transpose(tf.linalg.triangular_solve(L, tf.transpose(mu)[..., None], adjoint=adjoint)[..., 0])


def apply(B: tf.Tensor, b: tf.Tensor) -> tf.Tensor:
    """B b for `[M, K]` or `[P, M, K]` and `[K, P]`: shape `[M, P]`."""
    return tf.matmul(B, b) if len(B.shape) == 2 else tf.einsum("pmk,kp->mp", B, b)


def weigh(Kuf: tf.Tensor, alpha: tf.Tensor) -> tf.Tensor:
    """Kuf^T alpha for `[M, N]` or `[P, M, N]` and `[M, P]`: shape `[N, P]`."""
    return tf.matmul(Kuf, alpha, transpose_a=True) if len(Kuf.shape) == 2 else tf.einsum("pmn,mp->np", Kuf, alpha)
