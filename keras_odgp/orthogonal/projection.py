r"""Means and variance changes that a Gaussian $q = \mathcal N(m, R R^\top)$ of whitened features makes at the data.

With $A$ the whitened covariances of features and data, output $p$ at datum $i$ gets the mean $a_i^\top m_p$ and the
variance change $\lVert R_p^\top a_i \rVert^2 - \lVert a_i \rVert^2$. All outputs go through the same few matrix
products.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from keras_odgp.orthogonal.solves import block_bounds


def project(A: tf.Tensor, q_mu: tf.Tensor, q_sqrt: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Means and variance changes.

    Args:
        A: Whitened covariances, shape `[M, N]`, or `[P, M, N]` if every output has its own.
        q_mu: Means, shape `[M, P]`.
        q_sqrt: Lower triangular roots, shape `[P, M, M]`.

    Returns:
        Means and variance changes, both of shape `[N, P]`.
    """
    if len(A.shape) == 3:
        return _project_separate(A, q_mu, q_sqrt)
    mean, change = _project_shared(A, q_mu, q_sqrt)  # a custom gradient returns a list
    return mean, change


def _project_separate(A: tf.Tensor, q_mu: tf.Tensor, q_sqrt: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    mean = tf.einsum("pmn,mp->np", A, q_mu)
    T = tf.matmul(q_sqrt, A, transpose_a=True)  # [P, M, N]
    change = tf.reduce_sum(tf.square(T) - tf.square(A), axis=-2)
    return mean, tf.transpose(change)


@tf.custom_gradient
def _project_shared(A: tf.Tensor, q_mu: tf.Tensor, q_sqrt: tf.Tensor) -> tuple[Any, Any]:
    num_outputs, size = q_sqrt.shape[0], q_sqrt.shape[1]
    bounds = block_bounds(size)
    blocks = [_stack_outputs(q_sqrt[:, start:, start:end]) for start, end in bounds]  # [M - start, P h]
    T = [tf.matmul(block, A[start:], transpose_a=True) for block, (start, _) in zip(blocks, bounds)]  # [P h, N]
    squares = tf.add_n([tf.reduce_sum(tf.square(_split_outputs(t, num_outputs)), axis=1) for t in T])  # [P, N]
    mean = tf.matmul(A, q_mu, transpose_a=True)  # [N, P]
    change = tf.transpose(squares - tf.reduce_sum(tf.square(A), axis=0))

    def gradient(mean_bar: tf.Tensor, change_bar: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        twice = 2.0 * tf.transpose(change_bar)  # [P, N]
        weighted = [tf.reshape(_split_outputs(t, num_outputs) * twice[:, None, :], tf.shape(t)) for t in T]  # [P h, N]
        # Columns of q_sqrt: one product for each block and all outputs. Above the diagonal it is of no account, because
        # `variational` masks q_sqrt, and so its gradient.
        columns = []
        for w, (start, end) in zip(weighted, bounds):
            column = tf.matmul(A[start:], w, transpose_b=True)  # [M - start, P h]
            column = tf.transpose(tf.reshape(column, [size - start, num_outputs, end - start]), [1, 0, 2])
            columns.append(tf.pad(column, [[0, 0], [start, 0], [0, 0]]))
        q_sqrt_bar = tf.concat(columns, axis=-1)
        # Rows of A from the block on: the product sums over outputs by itself. Added up row by row of blocks, since
        # what is above a block is zero.
        whole = tf.matmul(q_mu, mean_bar, transpose_b=True) - A * tf.reduce_sum(twice, axis=0)
        products = [tf.matmul(block, w) for block, w in zip(blocks, weighted)]  # [M - start, N]
        rows = []
        for start, end in bounds:
            parts = [part[start - first : end - first] for part, (first, _) in zip(products, bounds) if first <= start]
            rows.append(tf.add_n([whole[start:end], *parts]))
        A_bar = tf.concat(rows, axis=0) if len(rows) > 1 else rows[0]
        return A_bar, tf.matmul(A, mean_bar), q_sqrt_bar

    return (mean, change), gradient


def _stack_outputs(block: tf.Tensor) -> tf.Tensor:
    """[P, rows, h] to the matrix [rows, P h]."""
    num_outputs, rows, width = block.shape
    return tf.reshape(tf.transpose(block, [1, 0, 2]), [rows, num_outputs * width])


def _split_outputs(stacked: tf.Tensor, num_outputs: int) -> tf.Tensor:
    """[P h, N] to [P, h, N]."""
    return tf.reshape(stacked, [num_outputs, stacked.shape[0] // num_outputs, -1])
