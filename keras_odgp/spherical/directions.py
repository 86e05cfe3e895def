"""Vectors as points of the sphere."""

from __future__ import annotations

from typing import Any

import tensorflow as tf


@tf.custom_gradient
def split_norms(vectors: tf.Tensor) -> tuple[Any, Any]:
    """Directions `[..., d]` and norms `[...]` of vectors `[..., d]`, none of them zero.

    The gradient is written out: every set of features and of inputs goes through here several times in a step, and
    autodiff would make of each a score of small operations.
    """
    norms = tf.norm(vectors, axis=-1)
    directions = vectors / norms[..., None]

    def gradient(directions_bar: tf.Tensor, norms_bar: tf.Tensor) -> tf.Tensor:
        along = norms_bar - tf.reduce_sum(directions * directions_bar, axis=-1) / norms
        return directions_bar / norms[..., None] + directions * along[..., None]

    return (directions, norms), gradient
