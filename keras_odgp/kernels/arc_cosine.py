"""The arc-cosine kernels of Cho and Saul (2009)."""

from __future__ import annotations

import math
from typing import Any

import gpflow
import numpy as np
import tensorflow as tf

from keras_odgp.kernels.zonal import ZonalKernel
from keras_odgp.spherical.funk_hecke import arc_cosine_coefficients, vanishes_for_relu_power


class ArcCosine(ZonalKernel):
    """Arc-cosine kernel: the covariance of an infinitely wide layer of (powers of) ReLU units.

    Agrees with `gpflow.kernels.ArcCosine` of the same order and parameters.

    Args:
        order: Order 0 (step), 1 (ReLU) or 2 (squared ReLU). Defaults to 1.
        variance: Variance, a positive scalar. Defaults to 1.
        weight_variances: Variances of the weights, a positive scalar or one for each input. Defaults to 1.
        bias_variance: Variance of the bias, a positive scalar. Defaults to 1.
        radial_power: Power of the norms. Defaults to the order, which makes it the arc-cosine kernel.
        active_dims: Columns of the input that the kernel sees. Defaults to all.
        name: Name of the module.

    Example:

    >>> kernel = keras_odgp.kernels.ArcCosine(weight_variances=[1.0, 0.5])
    >>> kernel(np.ones((3, 2))).shape.as_list()
    [3, 3]

    Reference:

    - Cho and Saul, Kernel methods for deep learning, NeurIPS 2009.
    """

    def __init__(
        self,
        order: int = 1,
        variance: Any = 1.0,
        weight_variances: Any = 1.0,
        bias_variance: Any = 1.0,
        *,
        radial_power: int | None = None,
        active_dims: gpflow.kernels.base.ActiveDims | None = None,
        name: str | None = None,
    ) -> None:
        if not isinstance(order, (int, np.integer)) or order not in (0, 1, 2):
            raise ValueError(f"Expected the `order` of an arc-cosine kernel to be 0, 1 or 2. Got: {order!r}.")
        super().__init__(
            variance,
            weight_variances,
            bias_variance,
            radial_power=order if radial_power is None else radial_power,
            active_dims=active_dims,
            name=name,
        )
        self.order = order

    @property
    def shape_at_one(self) -> float:
        return 3.0 if self.order == 2 else 1.0

    def _shape(self, t: tf.Tensor, hyperparameters: tuple[tf.Tensor, ...]) -> tf.Tensor:
        return _arc_cosine_shape(t, self.order)

    def _shape_derivative(self, t: tf.Tensor, hyperparameters: tuple[tf.Tensor, ...]) -> tf.Tensor:
        if self.order == 0:  # infinite at t = 1 and -1: held at the size it has one rounding error away
            smallest = 4 * np.finfo(t.dtype.as_numpy_dtype).eps
            return 1.0 / (math.pi * tf.sqrt(tf.maximum(1.0 - tf.square(t), smallest)))
        return (1.0 if self.order == 1 else 4.0) * _arc_cosine_shape(t, self.order - 1)

    def has_level(self, level: int) -> bool:
        return not vanishes_for_relu_power(self.order, level)

    def log_fourier_coefficients(self, levels: tuple[int, ...], dimension: int) -> tf.Tensor:
        coefficients = arc_cosine_coefficients(self.order, max(levels) + 1, dimension)
        return tf.constant(np.log(coefficients[list(levels)]), tf.float64)


def _arc_cosine_shape(t: tf.Tensor, order: int) -> tf.Tensor:
    # By the tangent of the half angle: it keeps all digits near t = 1 and -1, and is ten times faster than acos, which
    # TensorFlow does not vectorise.
    above = tf.maximum(1.0 + t, 0.0)
    sine = tf.sqrt(tf.maximum(above * (1.0 - t), np.finfo(t.dtype.as_numpy_dtype).tiny))
    share = (2.0 / math.pi) * tf.atan(above / sine)  # 1 - angle / pi
    if order == 0:
        return share
    if order == 1:
        return share * t + sine * (1.0 / math.pi)
    return share * (1.0 + 2.0 * tf.square(t)) + sine * t * (3.0 / math.pi)
