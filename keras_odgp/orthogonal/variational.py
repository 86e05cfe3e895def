"""The variational distribution q(u) q(v') and its divergence from the prior."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import tensorflow as tf

from keras_odgp.orthogonal.gram import num_features

OrthogonalCovariance = Literal["full", "prior"]


class Variational(NamedTuple):
    """Means and lower triangular roots of q(u) and q(v').

    Attributes:
        mu: Mean of q(u), shape `[M, P]`.
        sqrt: Root of the covariance of q(u), shape `[P, M, M]`.
        orthogonal_mu: Mean of q(v'), shape `[K, P]`; None without orthogonal features.
        orthogonal_sqrt: Root of the covariance of q(v'), shape `[P, K, K]`; None where it is that of the prior.

    Example:

    >>> q = keras_odgp.orthogonal.Variational(tf.zeros([4, 1]), tf.eye(4)[None], None, None)
    >>> q.sqrt.shape.as_list()
    [1, 4, 4]
    """

    mu: tf.Tensor
    sqrt: tf.Tensor
    orthogonal_mu: tf.Tensor | None = None
    orthogonal_sqrt: tf.Tensor | None = None


def variational(q_mu: Any, q_sqrt: Any, orthogonal_q_mu: Any = None, orthogonal_q_sqrt: Any = None) -> Variational:
    """A `Variational` of tensors; what stands above the diagonals of the roots is ignored.

    Example:

    >>> q = keras_odgp.orthogonal.variational(np.zeros((4, 1)), np.ones((1, 4, 4)))  # [M, P] and [P, M, M]
    >>> int(tf.math.count_nonzero(q.sqrt))
    10
    """
    return Variational(
        tf.convert_to_tensor(q_mu),
        tf.linalg.band_part(tf.convert_to_tensor(q_sqrt), -1, 0),
        None if orthogonal_q_mu is None else tf.convert_to_tensor(orthogonal_q_mu),
        None if orthogonal_q_sqrt is None else tf.linalg.band_part(tf.convert_to_tensor(orthogonal_q_sqrt), -1, 0),
    )


def whitened_kl(q: Variational) -> tf.Tensor:
    """Divergence of a whitened q from the standard normal prior, summed over both parts and all outputs.

    Example:

    >>> q = keras_odgp.orthogonal.variational(np.ones((4, 1)), np.eye(4)[None])  # [M, P] and [P, M, M]
    >>> float(keras_odgp.orthogonal.whitened_kl(q))
    2.0
    """
    kl = _standard_kl(q.mu, q.sqrt)
    if q.orthogonal_sqrt is not None:
        return kl + _standard_kl(q.orthogonal_mu, q.orthogonal_sqrt)
    if q.orthogonal_mu is not None:
        return kl + 0.5 * tf.reduce_sum(tf.square(q.orthogonal_mu))
    return kl


@tf.custom_gradient
def _standard_kl(mu: tf.Tensor, sqrt: tf.Tensor) -> tuple[tf.Tensor, Any]:
    diagonal = tf.linalg.diag_part(sqrt)  # [P, M]
    log_determinant = tf.reduce_sum(tf.math.log(tf.square(diagonal)))
    size = tf.cast(tf.size(diagonal), mu.dtype)
    kl = tf.nn.l2_loss(mu) + tf.nn.l2_loss(sqrt) - 0.5 * (size + log_determinant)

    def gradient(upstream: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        # Multiplied first: the diagonal is then set in place, not in a copy.
        return upstream * mu, tf.linalg.set_diag(upstream * sqrt, upstream * (diagonal - 1.0 / diagonal))

    return kl, gradient


def check_shapes_of(q: Any, features: Any, *, num_outputs: int, prefix: str) -> None:
    """Raises if mean and root of one part of q do not fit each other or the number of features.

    Args:
        q: Mean and root; the root may be None.
        features: The inducing variables that q is about.
        num_outputs: Number of (latent) outputs P.
        prefix: Put before `q_mu` and `q_sqrt` in the message.
    """
    mu, sqrt = q
    size = num_features(features)
    expected = {f"{prefix}q_mu": (mu, (size, num_outputs)), f"{prefix}q_sqrt": (sqrt, (num_outputs, size, size))}
    for name, (value, shape) in expected.items():
        if value is not None and tuple(value.shape) != shape:
            raise ValueError(
                f"Expected `{name}` of shape {shape} for {size} features and {num_outputs} outputs. Got shape "
                f"{tuple(value.shape)}."
            )
