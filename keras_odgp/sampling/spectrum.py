r"""The prior variance of a zonal kernel by level: which levels are few enough to be exact, and the law of the rest.

The share of level $\ell$ is $\lambda_\ell J(d, \ell) / \kappa(1)$. Shares are computed below `NUM_LEVELS`. What is left
above is nothing for smooth kernels, and falls like a power of the level for others, which is read off the last two
octaves.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from keras_odgp.kernels import ZonalKernel
from keras_odgp.spherical import num_harmonics

NUM_LEVELS = 256
MOST_EXACT_LEVELS = 16  # in low dimensions, where levels have few harmonics, but each level is a step of recurrences
HIGHEST_LEVEL = 2**16  # the little that lies above is put there: at higher ones cosines lose their digits
NEGLIGIBLE = 1e-10  # share of the variance: a hundred-thousandth of a standard deviation


class Tail(NamedTuple):
    """The levels that are sampled, with their law.

    Attributes:
        share: Their share of the prior variance.
        levels: The levels of the kernel below `NUM_LEVELS`, shape `[n]`.
        cumulative: Their probabilities, summed up, shape `[n]`; 1 less the probability of those above at the end.
        exponent: The probability of levels above y falls like y to minus this.
    """

    share: float
    levels: np.ndarray
    cumulative: np.ndarray
    exponent: float

    def quantile(self, uniform: tf.Tensor) -> tf.Tensor:
        """Levels at probabilities `[n]` in [0, 1), float64, shape `[n]`."""
        index = tf.searchsorted(self.cumulative, uniform, side="right")
        below = tf.gather(tf.constant(self.levels, tf.float64), tf.minimum(index, len(self.levels) - 1))
        last, step = float(self.levels[-1]), float(self.levels[-1] - self.levels[-2])
        left = (1.0 - uniform) / max(1.0 - self.cumulative[-1], 1e-300)
        reach = tf.minimum(last * left ** (-1.0 / self.exponent), HIGHEST_LEVEL)
        above = last + step * tf.math.ceil((reach - last) / step)  # in steps: levels the kernel lacks are left out
        return tf.where(index < len(self.levels), below, above)


def split_levels(
    kernel: ZonalKernel, dimension: int, most: int, required: tuple[int, ...] = ()
) -> tuple[tuple[int, ...], Tail | None]:
    """The levels of which all harmonics are used, and the others, or None if they are negligible.

    Args:
        kernel: The kernel.
        dimension: Dimension d of the space around the sphere.
        most: Number of harmonics that the lowest levels may have together.
        required: Levels that are used in any case.
    """
    levels = kernel.active_levels(NUM_LEVELS)
    counts = [num_harmonics(dimension, level) for level in levels]
    with np.errstate(divide="ignore"):  # where a coefficient underflows, its share is nothing
        log_coefficients = np.asarray(kernel.log_fourier_coefficients(levels, dimension))
    shares = np.exp(log_coefficients + [math.log(count) for count in counts]) / kernel.shape_at_one
    fitting = [level for level, total in zip(levels, np.cumsum(counts, dtype=float)) if total <= most]
    exact = tuple(sorted({levels[0], *(level for level in fitting if level < MOST_EXACT_LEVELS), *required}))
    above = 1.0 - shares.sum()
    above = above if above > NEGLIGIBLE else 0.0
    sampled = np.where(np.isin(levels, exact), 0.0, shares)
    share = sampled.sum() + above
    if share < NEGLIGIBLE:
        return exact, None
    octaves = [shares[np.array(levels) >= start].sum() for start in (NUM_LEVELS // 4, NUM_LEVELS // 2)]
    exponent = math.log2((octaves[0] - octaves[1] + 1e-300) / (octaves[1] + 1e-300))
    cumulative = np.cumsum(sampled) / share
    if above == 0.0:
        cumulative /= cumulative[-1]  # exactly one at the end
    return exact, Tail(float(share), np.array(levels), cumulative, max(exponent, 0.5))
