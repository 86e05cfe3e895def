r"""Solves with a Cholesky factor, and the one rule that differentiates them.

If every use of $K = L L^\top$ is a solve $Y = L^{-1} Z$, then with $X = \sum \bar Y Y^\top$ over the solves

$$ \bar Z = L^{-\top} \bar Y, \qquad \bar K = -\tfrac12 L^{-\top} \mathrm{sym}(X) L^{-1}, $$

where sym mirrors the lower triangle upwards. The gradient in $L$ is never formed, nothing is factorised or inverted
twice, and only the lower blocks of $X$ have to be computed.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from keras_odgp import numerics
from keras_odgp.covariances import DiagonalCovariance

BLOCKS_FROM_SIZE = ((128, 4), (0, 1))  # measured: more blocks save flops, but no time


def block_bounds(size: int, smallest_block: int = 1) -> list[tuple[int, int]]:
    """Cuts `range(size)` into blocks.

    Triangles are treated block by block: with four, at 5/8 of the cost of the full square. Blocks below some size save
    flops but no time; what that size is depends on the product.
    """
    num_blocks = next(blocks for smallest, blocks in BLOCKS_FROM_SIZE if size >= smallest)
    num_blocks = max(1, min(num_blocks, size // smallest_block))
    bounds = [size * i // num_blocks for i in range(num_blocks + 1)]
    return list(itertools.pairwise(bounds))


def solve(
    K: tf.Tensor | DiagonalCovariance,
    right_hand_sides: Sequence[tf.Tensor],
    *,
    reference: tf.Tensor | None = None,
    name: str = "K",
) -> list[tf.Tensor]:
    """Solutions of L Y = Z for some Z, with one factorisation K = L L^T.

    Args:
        K: Covariance, shape `[..., M, M]`; a diagonal one costs a scaling of rows.
        right_hand_sides: Tensors of shape `[..., M, n]`.
        reference: Diagonal to which jitter is relative if the factorisation fails, shape `[..., M]`.
        name: Name of the matrix in errors.

    Returns:
        Tensors of the shapes of the right-hand sides.
    """
    if isinstance(K, DiagonalCovariance):
        root = tf.sqrt(K.diag)[..., None]
        return [Z / root for Z in right_hand_sides]

    @tf.custom_gradient
    def run(K: tf.Tensor, *sides: tf.Tensor) -> tuple[tuple[tf.Tensor, ...], Any]:
        L = numerics.factor(K, reference=reference, name=name)
        solutions = tuple(tf.linalg.triangular_solve(L, Z) for Z in sides)

        def gradient(*upstream: tf.Tensor) -> tuple[tf.Tensor, ...]:
            K_gradient = numerics.cholesky_gradient(L, -_lower_products(upstream, solutions))
            return (K_gradient, *(tf.linalg.triangular_solve(L, U, adjoint=True) for U in upstream))

        return solutions, gradient

    return list(run(K, *right_hand_sides))


def _lower_products(left: Sequence[tf.Tensor], right: Sequence[tf.Tensor]) -> tf.Tensor:
    """Sum of left_i right_i^T, of which blocks above the diagonal are left zero. Shape `[..., M, M]`."""
    rows = []
    size = left[0].shape[-2]
    for start, end in block_bounds(size, smallest_block=64):
        products = [tf.matmul(a[..., start:end, :], b[..., :end, :], transpose_b=True) for a, b in zip(left, right)]
        row = tf.add_n(products)
        padding = [[0, 0]] * (len(row.shape) - 1) + [[0, size - end]]
        rows.append(tf.pad(row, padding) if end < size else row)
    return tf.concat(rows, axis=-2) if len(rows) > 1 else rows[0]


def subtract_gram(K: tf.Tensor, B: tf.Tensor) -> tf.Tensor:
    """K - B^T B for symmetric K `[..., K, K]` and B `[..., M, K]`; one product in the gradient, where autodiff makes
    two.
    """

    @tf.custom_gradient
    def run(K: tf.Tensor, B: tf.Tensor) -> tuple[tf.Tensor, Any]:
        def gradient(upstream: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            return upstream, -tf.matmul(B, upstream + tf.linalg.matrix_transpose(upstream))

        return K - tf.matmul(B, B, transpose_a=True), gradient

    return run(K, B)
