"""Factors of a posterior: all that the whitened covariances and the mean need of its parameters."""

from __future__ import annotations

from typing import NamedTuple

import tensorflow as tf

from keras_odgp.covariances import DiagonalCovariance
from keras_odgp.orthogonal.gram import Covariance, Cross, Gram
from keras_odgp.orthogonal.marginals import apply, root, schur, solve_means
from keras_odgp.orthogonal.variational import Variational


class Factors(NamedTuple):
    """What predictions need of a posterior, with an optional leading axis L for outputs with kernels of their own.

    Attributes:
        Lu: Factor of the covariance of base features, `[M, M]`, diagonal for harmonics.
        sqrt: Whitened root of q(u), `[P, M, M]`.
        alpha: Weights of Kuf in the mean, `[M, P]`.
        B: Lu^-1 Kuv, `[M, K]`.
        Lv: Factor of the covariance of orthogonal features given the base, `[K, K]`.
        orthogonal_sqrt: Whitened root of q(v'), `[P, K, K]`.
        orthogonal_alpha: Weights of Kvf in the mean, `[K, P]`.

    What a posterior does not have is None.
    """

    Lu: Covariance
    sqrt: tf.Tensor
    alpha: tf.Tensor
    B: tf.Tensor | None = None
    Lv: Covariance | None = None
    orthogonal_sqrt: tf.Tensor | None = None
    orthogonal_alpha: tf.Tensor | None = None

    def cast(self, dtype: tf.DType) -> Factors:
        """The same in another dtype."""

        def convert(part: Covariance | None) -> Covariance | None:
            if isinstance(part, DiagonalCovariance):
                return DiagonalCovariance(tf.cast(part.diag, dtype))
            return None if part is None else tf.cast(part, dtype)

        return Factors(*map(convert, self))


class PriorFactors(NamedTuple):
    """The part of `Factors` that does not depend on q."""

    Lu: Covariance
    B: tf.Tensor | None
    Lv: Covariance | None


def factorise_prior(G: Gram, *, name: str = "") -> PriorFactors:
    """Factors of the prior covariances of both sets of features."""
    Lu = root(G.Kuu, name=f"Kuu{name}")
    if G.Kvv is None:
        return PriorFactors(Lu, None, None)
    B = None if G.Kvu is None else _solve(Lu, tf.linalg.matrix_transpose(G.Kvu))
    Svv, reference = schur(G, B)
    return PriorFactors(Lu, B, root(Svv, reference=reference, name=f"Svv{name}"))


def factorise(G: Gram, q: Variational, *, whiten: bool, name: str = "") -> Factors:
    """The factors of a posterior."""
    Lu, B, Lv = factorise_prior(G, name=name)
    mu, sqrt = (q.mu, q.sqrt) if whiten else (solve_means(Lu, q.mu), _solve(Lu, q.sqrt))
    if Lv is None:
        return Factors(Lu, sqrt, solve_means(Lu, mu, adjoint=True))
    orthogonal_mu = q.orthogonal_mu if whiten else solve_means(Lv, q.orthogonal_mu)
    orthogonal_sqrt = q.orthogonal_sqrt
    if not whiten and orthogonal_sqrt is not None:
        orthogonal_sqrt = _solve(Lv, orthogonal_sqrt)
    orthogonal_alpha = solve_means(Lv, orthogonal_mu, adjoint=True)
    if B is not None:
        mu -= apply(B, orthogonal_alpha)
    return Factors(Lu, sqrt, solve_means(Lu, mu, adjoint=True), B, Lv, orthogonal_sqrt, orthogonal_alpha)


def whitened_covariances(F: Factors | PriorFactors, C: Cross) -> tuple[tf.Tensor, tf.Tensor | None]:
    """A = Lu^-1 Kuf and E = Lv^-1 (Kvf - B^T A), shapes `[(L,) M, N]` and `[(L,) K, N]`."""
    A = _solve(F.Lu, C.Kuf)
    if F.Lv is None:
        return A, None
    Svf = C.Kvf if F.B is None else C.Kvf - tf.matmul(F.B, A, transpose_a=True)
    return A, _solve(F.Lv, Svf)


class VarianceTerms(NamedTuple):
    """The terms whose sum (with these signs) is the variance of the latent functions, each of shape `[N, L]`.

    Attributes:
        prior: Variance of the prior.
        explained: Minus what the base features explain of it.
        uncertainty: Plus what is left uncertain about the base features.
        orthogonal_explained: Minus what the orthogonal features explain.
        orthogonal_uncertainty: Plus what is left uncertain about the orthogonal features.
    """

    prior: tf.Tensor
    explained: tf.Tensor
    uncertainty: tf.Tensor
    orthogonal_explained: tf.Tensor
    orthogonal_uncertainty: tf.Tensor


def variance_terms(F: Factors, C: Cross) -> VarianceTerms:
    """The terms of the variance at the inputs of `C`."""
    A, E = whitened_covariances(F, C)
    num_latents = F.sqrt.shape[0]

    def pair(whitened: tf.Tensor, sqrt: tf.Tensor | None) -> tuple[tf.Tensor, tf.Tensor]:
        explained = tf.reduce_sum(tf.square(whitened), axis=-2)
        if sqrt is None:  # the covariance of the prior
            return explained, explained
        return explained, tf.reduce_sum(tf.square(tf.matmul(sqrt, whitened, transpose_a=True)), axis=-2)

    explained, uncertainty = pair(A, F.sqrt)
    zero = tf.zeros_like(explained)
    orthogonal_explained, orthogonal_uncertainty = (zero, zero) if E is None else pair(E, F.orthogonal_sqrt)
    terms = (C.kff, -explained, uncertainty, -orthogonal_explained, orthogonal_uncertainty)
    return VarianceTerms(*(tf.transpose(tf.broadcast_to(t, [num_latents, tf.shape(C.kff)[-1]])) for t in terms))


def _solve(L: Covariance, Z: tf.Tensor) -> tf.Tensor:
    """L^-1 Z for L `[M, M]` or `[L, M, M]` and Z `[M, n]` or `[L, M, n]`."""
    if isinstance(L, DiagonalCovariance):
        return Z / L.diag[..., None]
    if len(Z.shape) > len(L.shape):  # one factor for all outputs: stack them instead of repeating the factor
        num, size, width = Z.shape
        stacked = tf.reshape(tf.transpose(Z, [1, 0, 2]), [size, num * width])
        return tf.transpose(tf.reshape(tf.linalg.triangular_solve(L, stacked), [size, num, width]), [1, 0, 2])
    return tf.linalg.triangular_solve(L, Z)
