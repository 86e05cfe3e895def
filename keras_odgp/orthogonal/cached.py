r"""The prediction path: matrices computed once, then means and (co)variances at any inputs by products alone.

With $h(x)$ the covariances of all features with $f(x)$, and $J$ the factor of the covariance of all features, of blocks
$L_u$, $B^\top$ and $L_v$, the whitened covariances are $y = J^{-1} h(x)$. The mean is $\alpha^\top h(x)$ and the
variance $k(x, x) - y^\top (I - S)\, y$, with S the whitened covariance of q. The inverse of the factor is formed once,
by triangular solves. What is squared is whitened first: so the variance loses the digits of the condition of the
factor, half of those that the inverse of the covariance itself, $h^\top Q h$, would lose. All that is multiplied to
$h(x)$ is float64, also where $h(x)$ itself is float32: rounded to float32, an inverse is that of no nearby matrix, as
the solves of the training path are, and variances would turn negative.

Where every output has covariances of its own, or there is one output, the eigenvectors of $I - S = V D V^\top$ go into
the same matrix: a single product, and the variance is $k(x, x) - \sum_i d_i (V^\top y)_i^2$. Outputs that share their
covariances share that product, and apply a root of S each, which takes fewer operations.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from keras_odgp.covariances.prepared import FeatureMap, Features, Tensors
from keras_odgp.orthogonal.gram import Cross
from keras_odgp.orthogonal.prediction import Factors, whitened_covariances


class Cache(NamedTuple):
    """What predictions need of a posterior. Axis L is there only where outputs have covariances of their own.

    Attributes:
        prepared: What the feature map of each latent process needs of kernel and features.
        alpha: Weights of the features of each set in the mean, shapes `[M, P]` and `[K, P]`, or `[L, M, 1]` and so on.
        whitening: For each set that changes the variance, the blocks of its rows of the inverse of J, transposed, and
            rotated if there are `changes`: `[(L,) M, M]` of base features, `[(L,) M, K]` and `[(L,) K, K]` of the
            others. Each block is a product of its own, so that zeros are not multiplied; and small products are left
            to one thread, which for few inputs is faster.
        changes: Eigenvalues of S - I of each such set, shapes `[(L,) M, 1]` and `[(L,) K, 1]`; or none.
        roots: Roots of S of each such set for all outputs, shapes `[M, P M]` and `[K, P K]`; or none.
    """

    prepared: tuple[Tensors, ...]
    alpha: Tensors
    whitening: tuple[Tensors, ...]
    changes: Tensors
    roots: Tensors


def precompute(maps: Sequence[FeatureMap], F: Factors) -> Cache:
    """The matrices of predictions, float64 whatever the dtype of the model."""
    prepared, scales = zip(*(each.prepare() for each in maps))
    scales = [tf.cast(_stack(parts), tf.float64)[..., None] for parts in zip(*scales)]  # [(L,) M, 1] of each set
    is_separate = len(maps) == F.sqrt.shape[0]
    wide = F.cast(tf.float64)
    alphas = [alpha for alpha in (wide.alpha, wide.orthogonal_alpha) if alpha is not None]
    if len(maps) > 1:
        alphas = [tf.transpose(alpha)[..., None] for alpha in alphas]
    whitening, changes, roots = [], [], []
    for blocks, sqrt in zip(_inverse(wide), (wide.sqrt, wide.orthogonal_sqrt)):
        if sqrt is None:  # with the covariance of the prior nothing changes
            continue
        if is_separate:
            values, vectors = _eigen(sqrt if len(maps) > 1 else sqrt[0])
            rows = [tf.matmul(block, vectors, transpose_a=True) for block in blocks]
            changes.append(values[..., None])
        else:
            rows = [tf.linalg.matrix_transpose(block) for block in blocks]
            roots.append(_stack_outputs(sqrt))
        whitening.append([scale * row for scale, row in zip(scales, rows)])
    alphas = [scale * alpha for scale, alpha in zip(scales, alphas)]
    return Cache(prepared, *_tuples([alphas, whitening, changes, roots]))


def _inverse(F: Factors) -> list[list[tf.Tensor]]:
    """Blocks of the inverse of J, row by row: `[(L,) M, M]`; `[(L,) K, M]` and `[(L,) K, K]`."""
    num_base = F.alpha.shape[0]
    num_orthogonal = 0 if F.orthogonal_alpha is None else F.orthogonal_alpha.shape[0]
    lead = [] if len(F.Lu.shape) == 2 else [F.Lu.shape[0]]
    # The whitened form of covariances that are columns of the identity.
    units = tf.eye(num_base + num_orthogonal, batch_shape=lead, dtype=F.alpha.dtype)
    A, E = whitened_covariances(F, Cross(units[..., :num_base, :], units[..., num_base:, :], None))
    rows = [[A[..., :num_base]]]
    return rows if E is None else [*rows, tf.split(E, [num_base, num_orthogonal], axis=-1)]


def _stack(parts: Tensors) -> tf.Tensor:
    """With a leading axis L if there are several."""
    return tf.stack(parts) if len(parts) > 1 else parts[0]


def _tuples(nested: Any) -> Any:
    return tuple(map(_tuples, nested)) if isinstance(nested, list) else nested


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
    dtype, h = h.prior.dtype, h.cast(tf.float64)
    mean, variance = _products(h, C.alpha), h.prior
    for index, y in enumerate(_whitened(C, h)):
        if C.changes:
            variance += tf.matmul(tf.square(y), C.changes[index])
        else:
            squares = tf.reduce_sum(tf.square(_by_output(y, C.roots[index])), axis=-1)
            variance += squares - tf.reduce_sum(tf.square(y), axis=-1, keepdims=True)
    if h.scale is not None:
        mean, variance = mean * h.scale[0], variance * h.scale[1]
    if len(maps) > 1:
        mean, variance = _outputs_last(mean), _outputs_last(variance)
    return tf.cast(mean, dtype), tf.cast(variance, dtype)


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
    h = _features(C, maps, tf.reshape(X, [-1, X.shape[-1]])).scaled().cast(tf.float64)
    mean, covariance = _products(h, C.alpha), tf.cast(prior, tf.float64)
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
    mean, covariance = tf.cast(mean, prior.dtype), tf.cast(covariance, prior.dtype)
    return tf.reshape(mean, [*tf.unstack(lead), mean.shape[-1]]), tf.transpose(covariance, [1, 0, 2, 3])


def _features(C: Cache, maps: Sequence[FeatureMap], X: tf.Tensor) -> Features:
    """Covariances of features, with a leading axis L where outputs have their own."""
    latents = [each(tensors, X) for each, tensors in zip(maps, C.prepared)]
    if len(latents) == 1:
        return latents[0]
    latents = [latent.scaled() for latent in latents]
    prior = [tf.broadcast_to(latent.prior, [tf.shape(X)[0], 1]) for latent in latents]
    return Features([tf.stack(parts) for parts in zip(*(latent.sets for latent in latents))], tf.stack(prior))


def _whitened(C: Cache, h: Features) -> list[tf.Tensor]:
    """Whitened covariances of each set that changes the variance, `[(L,) N, M]` and `[(L,) N, K]`."""
    return [_products(h, blocks) for blocks in C.whitening]


def _products(h: Features, blocks: Tensors) -> tf.Tensor:
    """Sum of the products of the first sets with one block each."""
    products = [tf.matmul(values, block) for values, block in zip(h.sets, blocks)]
    return products[0] if len(products) == 1 else products[0] + products[1]


def _by_output(y: tf.Tensor, roots: tf.Tensor) -> tf.Tensor:
    """What the roots of all outputs make of whitened covariances: `[N, P, M]`."""
    size, width = roots.shape
    return tf.reshape(tf.matmul(y, roots), [-1, width // size, size])


def _outputs_last(parts: tf.Tensor) -> tf.Tensor:
    """[L, N, 1] to [N, L]."""
    return tf.transpose(parts[..., 0])
