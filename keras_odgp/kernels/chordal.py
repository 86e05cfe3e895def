"""Matérn and squared exponential kernels in the chord between two directions."""

from __future__ import annotations

import math
from typing import Any

import gpflow
import numpy as np
import tensorflow as tf

from keras_odgp.kernels.zonal import ZonalKernel, positive_parameter
from keras_odgp.spherical.funk_hecke import matern_log_coefficients, squared_exponential_log_coefficients

_ARGS = """

    Args:
        variance: Variance, a positive scalar. Defaults to 1.
        lengthscale: Lengthscale on the chord, which is at most 2; a positive scalar. Defaults to 1.
        weight_variances: Variances of the weights, a positive scalar or one for each input. Defaults to 1.
        bias_variance: Variance of the bias, a positive scalar. Defaults to 1.
        radial_power: Power of the norms. Defaults to 1; with 0 the kernel sees directions only.
        active_dims: Columns of the input that the kernel sees. Defaults to all.
        name: Name of the module.

    Example:

    >>> kernel = keras_odgp.kernels.{name}(lengthscale=0.5)
    >>> kernel(np.random.randn(4, 2)).shape.as_list()  # inputs [N, D], covariances [N, N]
    [4, 4]
"""


class ChordalKernel(ZonalKernel):
    r"""Base of the zonal kernels that are functions of the chord $\chi = \sqrt{2 - 2t}$ over a lengthscale.

    Example:

    >>> isinstance(keras_odgp.kernels.Matern52(lengthscale=0.5), keras_odgp.kernels.ChordalKernel)
    True
    """

    def __init__(
        self,
        variance: Any = 1.0,
        lengthscale: Any = 1.0,
        weight_variances: Any = 1.0,
        bias_variance: Any = 1.0,
        *,
        radial_power: int = 1,
        active_dims: gpflow.kernels.base.ActiveDims | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(
            variance, weight_variances, bias_variance, radial_power=radial_power, active_dims=active_dims, name=name
        )
        if np.ndim(lengthscale) != 0:
            raise ValueError(
                "Expected a scalar `lengthscale`: it measures the chord on the sphere. For one scale per input give "
                f"`weight_variances` of shape [D]. Got a lengthscale of shape {np.shape(lengthscale)}."
            )
        self.lengthscale = positive_parameter("lengthscale", lengthscale)

    @property
    def shape_at_one(self) -> float:
        return 1.0

    num_shape_hyperparameters = 1

    def shape_hyperparameters(self) -> tuple[tf.Tensor, ...]:
        return (tf.convert_to_tensor(self.lengthscale),)

    def _hyperparameter_gradients(
        self, weighted_derivative: tf.Tensor, t: tf.Tensor, hyperparameters: tuple[tf.Tensor, ...]
    ) -> tuple[tf.Tensor, ...]:
        # A function of chi / rho has d/d rho = (chi^2 / rho) d/dt.
        (lengthscale,) = hyperparameters
        return (tf.reduce_sum(weighted_derivative * (2.0 - 2.0 * t)) / lengthscale,)

    def has_level(self, level: int) -> bool:
        return True


class _Matern(ChordalKernel):
    nu: float

    def _scaled_chord(self, t: tf.Tensor, lengthscale: tf.Tensor) -> tf.Tensor:
        return math.sqrt(2 * self.nu) / lengthscale * tf.sqrt(tf.maximum(2.0 - 2.0 * t, 0.0))

    def log_fourier_coefficients(self, levels: tuple[int, ...], dimension: int) -> tf.Tensor:
        return matern_log_coefficients(self.nu, tf.convert_to_tensor(self.lengthscale), levels, dimension)


class Matern12(_Matern):
    __doc__ = r"""Matérn kernel of smoothness 1/2 in the chord: $\kappa(t) = e^{-\chi/\rho}$.

    It has a cusp at t = 1, where a rounding error of the cosine becomes its square root: between inputs closer than
    about 1e-7 (1e-3 in float32) its values are accurate to that only. Prefer float64.""" + _ARGS.format(
        name="Matern12"
    )

    nu = 0.5

    def _shape(self, t: tf.Tensor, hyperparameters: tuple[tf.Tensor, ...]) -> tf.Tensor:
        return tf.exp(-self._scaled_chord(t, hyperparameters[0]))

    def _shape_derivative(self, t: tf.Tensor, hyperparameters: tuple[tf.Tensor, ...]) -> tf.Tensor:
        # Infinite at t = 1: held at the size it has one rounding error away.
        (lengthscale,) = hyperparameters
        below_one = 1.0 - 2.0 * np.finfo(t.dtype.as_numpy_dtype).eps
        s = self._scaled_chord(tf.minimum(t, below_one), lengthscale)
        return tf.exp(-s) / (tf.square(lengthscale) * s)


class Matern32(_Matern):
    __doc__ = r"""Matérn kernel of smoothness 3/2 in the chord: $\kappa(t) = (1 + S) e^{-S}$, $S = \sqrt3
    \chi/\rho$.""" + _ARGS.format(name="Matern32")

    nu = 1.5

    def _shape(self, t: tf.Tensor, hyperparameters: tuple[tf.Tensor, ...]) -> tf.Tensor:
        s = self._scaled_chord(t, hyperparameters[0])
        return (1.0 + s) * tf.exp(-s)

    def _shape_derivative(self, t: tf.Tensor, hyperparameters: tuple[tf.Tensor, ...]) -> tf.Tensor:
        return 3.0 / tf.square(hyperparameters[0]) * tf.exp(-self._scaled_chord(t, hyperparameters[0]))


class Matern52(_Matern):
    __doc__ = r"""Matérn kernel of smoothness 5/2 in the chord: $\kappa(t) = (1 + S + S^2/3) e^{-S}$, $S = \sqrt5
    \chi/\rho$.""" + _ARGS.format(name="Matern52")

    nu = 2.5

    def _shape(self, t: tf.Tensor, hyperparameters: tuple[tf.Tensor, ...]) -> tf.Tensor:
        s = self._scaled_chord(t, hyperparameters[0])
        return (1.0 + s + tf.square(s) / 3.0) * tf.exp(-s)

    def _shape_derivative(self, t: tf.Tensor, hyperparameters: tuple[tf.Tensor, ...]) -> tf.Tensor:
        s = self._scaled_chord(t, hyperparameters[0])
        return (5.0 / 3.0) / tf.square(hyperparameters[0]) * (1.0 + s) * tf.exp(-s)


class SquaredExponential(ChordalKernel):
    __doc__ = r"""Squared exponential kernel in the chord: $\kappa(t) = e^{-\chi^2 / (2\rho^2)}$.""" + _ARGS.format(
        name="SquaredExponential"
    )

    def _shape(self, t: tf.Tensor, hyperparameters: tuple[tf.Tensor, ...]) -> tf.Tensor:
        return tf.exp((t - 1.0) / tf.square(hyperparameters[0]))

    def _shape_derivative(self, t: tf.Tensor, hyperparameters: tuple[tf.Tensor, ...]) -> tf.Tensor:
        return self._shape(t, hyperparameters) / tf.square(hyperparameters[0])

    def log_fourier_coefficients(self, levels: tuple[int, ...], dimension: int) -> tf.Tensor:
        return squared_exponential_log_coefficients(tf.convert_to_tensor(self.lengthscale), levels, dimension)
