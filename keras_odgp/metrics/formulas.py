"""The formulas, entry by entry: behind the Keras metrics and the functions for arrays alike."""

from __future__ import annotations

import math

import gpflow
import numpy as np
import tensorflow as tf

from keras_odgp.checks import check_count


def squared_error(y: tf.Tensor, mean: tf.Tensor) -> tf.Tensor:
    return tf.square(y - mean)


def absolute_error(y: tf.Tensor, mean: tf.Tensor) -> tf.Tensor:
    return tf.abs(y - mean)


def gaussian_nlpd(y: tf.Tensor, mean: tf.Tensor, variance: tf.Tensor) -> tf.Tensor:
    return -gpflow.logdensities.gaussian(y, mean, variance)


def gaussian_crps(y: tf.Tensor, mean: tf.Tensor, variance: tf.Tensor) -> tf.Tensor:
    """Continuous ranked probability score of a Gaussian (Gneiting and Raftery, 2007)."""
    deviation = tf.sqrt(variance)
    z = (y - mean) / deviation
    density = tf.exp(-0.5 * tf.square(z)) / math.sqrt(2.0 * math.pi)
    return deviation * (z * tf.math.erf(z / math.sqrt(2.0)) + 2.0 * density - 1.0 / math.sqrt(math.pi))


def within(y: tf.Tensor, mean: tf.Tensor, variance: tf.Tensor, levels: np.ndarray) -> tf.Tensor:
    """Whether targets `[...]` lie in the central intervals of a Gaussian at levels `[L]`: 0 or 1, `[..., L]`."""
    # The level of the smallest central interval with y in it: no quantile is needed, however many levels there are.
    level = tf.math.erf(tf.abs(y - mean) / tf.sqrt(2.0 * variance))
    return tf.cast(level[..., None] <= tf.constant(levels, level.dtype), level.dtype)


def inner_levels(num_levels: int) -> np.ndarray:
    """Levels that divide (0, 1) evenly."""
    check_count("num_levels", num_levels)
    return np.arange(1, num_levels + 1) / (num_levels + 1)


def check_level(level: float) -> float:
    if not 0.0 < level < 1.0:
        raise ValueError(f"Expected `level` between 0 and 1, both excluded. Got: {level!r}.")
    return float(level)


def binary_hits(labels: tf.Tensor, probabilities: tf.Tensor) -> tf.Tensor:
    """Whether labels 0 and 1 are the likelier ones, entry by entry."""
    return tf.cast(tf.equal(labels > 0.5, probabilities > 0.5), tf.float64)


def class_hits(labels: tf.Tensor, probabilities: tf.Tensor) -> tf.Tensor:
    """Whether labels `[...]` are the likeliest classes of probabilities `[..., C]`."""
    return tf.cast(tf.equal(tf.cast(labels, tf.int64), tf.argmax(probabilities, axis=-1)), tf.float64)
