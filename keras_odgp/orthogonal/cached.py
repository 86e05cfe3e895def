r"""The prediction path: matrices computed once, then means and (co)variances at any inputs by products alone.

With $h(x)$ the covariances of all features with $f(x)$, and $J$ the factor of the covariance of all features, of blocks
$L_u$, $B^\top$ and $L_v$, the whitened covariances are $y = J^{-1} h(x)$. The mean is $\alpha^\top h(x)$ and the variance
$k(x, x) - y^\top (I - S)\, y$, with S the whitened covariance of q. The inverse of the factor is formed once, by
triangular solves in float64; what is squared is whitened first, so that the variance loses no more digits than by
solves (that of the covariance itself, $h^\top Q h$, would lose half of them).

Where every output has covariances of its own, or there is one output, the eigenvectors of $I - S = V D V^\top$ go into
the same matrix: a single product, and the variance is $k(x, x) - \sum_i d_i (V^\top y)_i^2$. Outputs that share their
covariances share that product, and apply a root of S each, which takes fewer operations.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import tensorflow as tf

from keras_odgp.covariances.prepared import FeatureMap, Features, Tensors
from keras_odgp.orthogonal.prediction import Factors, whitened_covariances
from keras_odgp.orthogonal.gram import Cross


class Cache(NamedTuple):
    """What predictions need of a posterior. Axis L is there only where outputs have covariances of their own.

    Attributes:
        prepared: What the feature map of each latent process needs of kernel and features.
        alpha: Weights of the features in the mean, shape `[F, P]` or `[L, F, 1]`.
        whitening: For each set that changes the variance, the rows of the inverse of J, transposed, and rotated if
            there are `changes`: `[(L,) M, M]`, since base features are whitened without the others, and `[(L,) F, K]`.
        changes: Eigenvalues of S - I of each such set, shapes `[(L,) M, 1]` and `[(L,) K, 1]`; or none.
        roots: Roots of S of each such set for all outputs, shapes `[M, P M]` and `[K, P K]`; or none.
    """

    prepared: tuple[Tensors, ...]
    alpha: tf.Tensor
    whitening: Tensors
    changes: Tensors
    roots: Tensors


def precompute(maps: Sequence[FeatureMap], F: Factors) -> Cache:
    """The matrices of predictions, computed in float64 whatever the dtype of the model."""
    prepared, scales = zip(*(each.prepare() for each in maps))
    scale = tf.cast(tf.stack(scales) if len(scales) > 1 else scales[0], tf.float64)[..., None]  # [(L,) F, 1]
    dtype, num_outputs = F.alpha.dtype, F.sqrt.shape[0]
    wide = F.cast(tf.float64)
    alpha = wide.alpha if wide.orthogonal_alpha is None else tf.concat([wide.alpha, wide.orthogonal_alpha], axis=0)
    if len(maps) > 1:
        alpha = tf.transpose(alpha)[..., None]
    whitening, changes, roots = [], [], []
    for rows, sqrt in zip(_inverse(wide), (wide.sqrt, wide.orthogonal_sqrt)):
        if sqrt is None:  # with the covariance of the prior, or without features, nothing changes
            continue
        if len(maps) == num_outputs:
            values, vectors = _eigen(sqrt if len(maps) > 1 else sqrt[0])
            rows = tf.matmul(vectors, rows, transpose_a=True)
            changes.append(values[..., None])
        else:
            roots.append(_stack_outputs(sqrt))
        whitening.append(scale[..., : rows.shape[-1], :] * tf.linalg.matrix_transpose(rows))

    def rounded(parts: list[tf.Tensor]) -> Tensors:
        return tuple(tf.cast(part, dtype) for part in parts)

    return Cache(prepared, *rounded([scale * alpha]), rounded(whitening), rounded(changes), rounded(roots))


def _inverse(F: Factors) -> tuple[tf.Tensor, tf.Tensor | None]:
    """The inverse of J: its rows `[(L,) M, M]` of base features, without zeros, and `[(L,) K, F]` of the others."""
    num_base = F.alpha.shape[0]
    num_orthogonal = 0 if F.orthogonal_alpha is None else F.orthogonal_alpha.shape[0]
    lead = [] if len(F.Lu.shape) == 2 else [F.Lu.shape[0]]
    # The whitened form of covariances that are columns of the identity.
    units = tf.eye(num_base + num_orthogonal, batch_shape=lead, dtype=F.alpha.dtype)
    A, E = whitened_covariances(F, Cross(units[..., :num_base, :], units[..., num_base:, :], None))
    return A[..., :num_base], E


def _eigen(sqrt: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    S = tf.matmul(sqrt, sqrt, transpose_b=True)
    values, vectors = tf.linalg.eigh(S - tf.eye(S.shape[-1], dtype=S.dtype))
    return values, vectors


def _stack_outputs(sqrt: tf.Tensor) -> tf.Tensor:
    """[P, M, M] to the matrix [M, P M]."""
    num_outputs, size, _ = sqrt.shape
    return tf.reshape(tf.transpose(sqrt, [1, 0, 2]), [size, num_outputs * size])


def predict_marginals(C: Cache, maps: Sequence[FeatureMap], X: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Means and variances of latent functions, `[N, P]`, at inputs `[N, D]`."""
    h = _features(C, maps, X)
    mean, variance = tf.matmul(h.all, C.alpha), h.prior
    for index, y in enumerate(_whitened(C, h)):
        if C.changes:
            variance += tf.matmul(tf.square(y), C.changes[index])
        else:
            squares = tf.reduce_sum(tf.square(_by_output(y, C.roots[index])), axis=-1)
            variance += squares - tf.reduce_sum(tf.square(y), axis=-1, keepdims=True)
    if h.scale is not None:
        mean, variance = mean * h.scale[0], variance * h.scale[1]
    if len(maps) > 1:
        return _outputs_last(mean), _outputs_last(variance)
    return mean, variance


def predict_covariances(
    C: Cache, maps: Sequence[FeatureMap], X: tf.Tensor, prior: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Means `[S, N, P]` and covariances `[S, P, N, N]` of latent functions at inputs `[S, N, D]`.

    Args:
        C: The cache.
        maps: Feature map of each latent process.
        X: Inputs.
        prior: Covariances of the prior, shape `[1 or L, S, N, N]`.
    """
    lead = tf.shape(X)[:2]
    h = _features(C, maps, tf.reshape(X, [-1, X.shape[-1]])).scaled()
    mean, covariance = tf.matmul(h.all, C.alpha), prior
    for index, y in enumerate(_whitened(C, h)):
        rows = tf.reshape(y, [-1, *tf.unstack(lead), y.shape[-1]])  # [1 or L, S, N, R]
        if C.changes:
            changes = tf.reshape(C.changes[index], [-1, 1, 1, y.shape[-1]])
            covariance += tf.matmul(rows * changes, rows, transpose_b=True)
        else:
            T = tf.transpose(_by_output(y, C.roots[index]), [1, 0, 2])  # [P, S N, R]
            T = tf.reshape(T, [T.shape[0], *tf.unstack(lead), y.shape[-1]])
            covariance += tf.matmul(T, T, transpose_b=True) - tf.matmul(rows, rows, transpose_b=True)
    mean = _outputs_last(mean) if len(maps) > 1 else mean
    return tf.reshape(mean, [*tf.unstack(lead), mean.shape[-1]]), tf.transpose(covariance, [1, 0, 2, 3])


def _features(C: Cache, maps: Sequence[FeatureMap], X: tf.Tensor) -> Features:
    """Covariances of features, with a leading axis L where outputs have their own."""
    parts = [each(tensors, X) for each, tensors in zip(maps, C.prepared)]
    if len(parts) == 1:
        return parts[0]
    first, values, prior, _ = zip(*(part.scaled() for part in parts))
    return Features(
        tf.stack(first), tf.stack(values), tf.stack([tf.broadcast_to(part, [tf.shape(X)[0], 1]) for part in prior])
    )


def _whitened(C: Cache, h: Features) -> list[tf.Tensor]:
    """Whitened covariances of each set that changes the variance, `[(L,) N, M]` and `[(L,) N, K]`."""
    return [tf.matmul(values, matrix) for values, matrix in zip((h.first, h.all), C.whitening)]


def _by_output(y: tf.Tensor, roots: tf.Tensor) -> tf.Tensor:
    """What the roots of all outputs make of whitened covariances: `[N, P, M]`."""
    size, width = roots.shape
    return tf.reshape(tf.matmul(y, roots), [-1, width // size, size])


def _outputs_last(parts: tf.Tensor) -> tf.Tensor:
    """[L, N, 1] to [N, L]."""
    return tf.transpose(parts[..., 0])
