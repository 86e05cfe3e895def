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

from keras_odgp.covariances.prepared import FeatureMap, Tensors
from keras_odgp.orthogonal.prediction import Factors, whitened_covariances
from keras_odgp.orthogonal.gram import Cross


class Cache(NamedTuple):
    """What predictions need of a posterior. Axis L is there only where outputs have covariances of their own.

    Attributes:
        prepared: What the feature map of each latent process needs of kernel and features.
        whitening: Transposed inverse of the factor of all F features, shape `[(L,) F, R]`; rotated if there are
            `changes`. With the covariance of the prior, orthogonal features change no variance, and R = M.
        alpha: Weights of the features in the mean, shape `[F, P]` or `[L, F, 1]`.
        changes: Eigenvalues of S - I, shape `[(L,) R, 1]`; or none.
        roots: Roots of S of each set for all outputs, shapes `[M, P M]` and `[K, P K]`; or none.
    """

    prepared: tuple[Tensors, ...]
    whitening: tf.Tensor
    alpha: tf.Tensor
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
    roots_of_q = (wide.sqrt, wide.orthogonal_sqrt)
    parts = [(whitened, sqrt) for whitened, sqrt in zip(_inverse(wide), roots_of_q) if sqrt is not None]
    changes, roots = (), ()
    if len(maps) == num_outputs:
        sqrts = [sqrt if len(maps) > 1 else sqrt[0] for _, sqrt in parts]
        values, vectors = zip(*(_eigen(sqrt) for sqrt in sqrts))
        rows = [tf.matmul(V, whitened, transpose_a=True) for V, (whitened, _) in zip(vectors, parts)]
        changes = (tf.cast(tf.concat(values, axis=-1)[..., None], dtype),)
    else:
        rows = [whitened for whitened, _ in parts]
        roots = tuple(tf.cast(_stack_outputs(sqrt), dtype) for _, sqrt in parts)
    whitening = tf.linalg.matrix_transpose(tf.concat(rows, axis=-2))  # [(L,) F, R]
    return Cache(prepared, tf.cast(scale * whitening, dtype), tf.cast(scale * alpha, dtype), changes, roots)


def _inverse(F: Factors) -> tuple[tf.Tensor, tf.Tensor | None]:
    """Rows `[(L,) M, F]` and `[(L,) K, F]` of the inverse of J: what the whitened covariances are of those of units."""
    sizes = F.alpha.shape[0], 0 if F.orthogonal_alpha is None else F.orthogonal_alpha.shape[0]
    lead = [] if len(F.Lu.shape) == 2 else [F.Lu.shape[0]]
    units = tf.eye(sum(sizes), batch_shape=lead, dtype=F.alpha.dtype)
    Kuf, Kvf = tf.split(units, sizes, axis=-2)
    return whitened_covariances(F, Cross(Kuf, Kvf, None))


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
    h, variance = _features(C, maps, X)
    mean = tf.matmul(h, C.alpha)
    y = tf.matmul(h, C.whitening)
    if C.changes:
        variance += tf.matmul(tf.square(y), C.changes[0])
    for whitened, T in _by_output(C, y):
        change = tf.reduce_sum(tf.square(T), axis=-1) - tf.reduce_sum(tf.square(whitened), axis=-1, keepdims=True)
        variance += change
    if len(mean.shape) == 3:  # [L, N, 1]
        return tf.transpose(mean[..., 0]), tf.transpose(variance[..., 0])
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
    shape = tf.shape(X)
    h, _ = _features(C, maps, tf.reshape(X, [-1, X.shape[-1]]))
    mean = tf.matmul(h, C.alpha)
    mean = tf.transpose(mean[..., 0]) if len(mean.shape) == 3 else mean
    y = tf.matmul(h, C.whitening)  # [(L,) S N, R]
    covariance = prior
    if C.changes:
        rows = tf.reshape(y, [-1, shape[0], shape[1], y.shape[-1]])  # [L, S, N, R]
        weights = tf.reshape(C.changes[0], [-1, 1, 1, y.shape[-1]])
        covariance += tf.matmul(rows * weights, rows, transpose_b=True)
    for whitened, T in _by_output(C, y):
        rows = tf.reshape(whitened, [shape[0], shape[1], whitened.shape[-1]])
        T = tf.reshape(T, [shape[0], shape[1], *T.shape[1:]])
        change = tf.einsum("snpm,stpm->psnt", T, T) - tf.matmul(rows, rows, transpose_b=True)
        covariance += change
    return tf.reshape(mean, [shape[0], shape[1], mean.shape[-1]]), tf.transpose(covariance, [1, 0, 2, 3])


def _features(C: Cache, maps: Sequence[FeatureMap], X: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Covariances of features over their scale, `[(L,) N, F]`, and prior variances, `[(L,) N or 1, 1]`."""
    parts = [each(tensors, X) for each, tensors in zip(maps, C.prepared)]
    if len(parts) == 1:
        return parts[0]
    values, prior = zip(*parts)
    return tf.stack(values), tf.stack([tf.broadcast_to(part, [tf.shape(X)[0], 1]) for part in prior])


def _by_output(C: Cache, y: tf.Tensor) -> list[tuple[tf.Tensor, tf.Tensor]]:
    """Whitened covariances `[N, M]` of each set, and what the roots of all outputs make of them, `[N, P, M]`."""
    parts, start = [], 0
    for root in C.roots:
        size, width = root.shape
        whitened = y[:, start : start + size]
        parts.append((whitened, tf.reshape(tf.matmul(whitened, root), [-1, width // size, size])))
        start += size
    return parts
