"""Inducing features that are units of a neural network (Dutordoir et al., 2021)."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import gpflow
import numpy as np
import tensorflow as tf
from check_shapes import Shape

from keras_odgp.spherical import Activation, get_activation, num_harmonics
from keras_odgp.spherical.directions import split_norms
from keras_odgp.spherical.gegenbauer import check_num_levels

if TYPE_CHECKING:
    from keras_odgp.kernels import ZonalKernel


class ActivationFeatures(gpflow.inducing_variables.InducingVariables):
    r"""Inducing features $\phi_m(x) = \lVert z_m \rVert^p r^p \sigma_L(\tilde z_m^\top \tilde x)$: units of a neural
    network.

    $\sigma_L$ is the activation truncated to the levels below `num_levels` that both it and the kernel have. Need a
    zonal kernel (`keras_odgp.kernels`).

    Args:
        weights: Weights and bias of each unit, shape `[M, D + 1]` for D inputs, the bias last. Only their
            directions matter, so no row may be zero. Trained unless frozen.
        activation: `"relu"`, `"softplus"`, `"gelu"`, `"swish"`, `"tanh"`, `"erf"`, `"step"`, `"relu_squared"`, or a
            name given to `keras_odgp.spherical.register_activation`. Defaults to `"softplus"`.
        num_levels: Number of levels L at which the activation is truncated. Defaults to 6.
        slope: The activation is $\sigma(\text{slope}\, t)/\text{slope}$. Defaults to 1; larger values bring softplus
            closer to ReLU and lift its higher levels.
        name: Name of the module.

    Example:

    >>> features = keras_odgp.inducing.ActivationFeatures(np.random.randn(10, 3), "softplus")
    >>> features.shape
    (10, 2, 1)

    Reference:

    - Dutordoir et al., Deep neural networks as point estimates for deep Gaussian processes, NeurIPS 2021.
    """

    def __init__(
        self,
        weights: Any,
        activation: str | Activation = "softplus",
        num_levels: int = 6,
        *,
        slope: float = 1.0,
        name: str | None = None,
    ) -> None:
        super().__init__(name=name)
        self.activation = get_activation(activation)
        self.num_levels = check_num_levels(num_levels)
        if not (np.isfinite(slope) and slope > 0):
            raise ValueError(f"Expected a finite `slope` above 0. Got: {slope!r}.")
        self.slope = float(slope)
        _check_weights(weights)
        if not isinstance(weights, (tf.Variable, gpflow.Parameter)):
            weights = gpflow.Parameter(weights)
        self.weights = weights
        self._warn_if_above_rank(self.rank(), "")

    @property
    def num_inducing(self) -> tf.Tensor:
        return tf.shape(self.weights)[0]

    @property
    def shape(self) -> Shape:
        num_units, width = self.weights.shape
        return (num_units, width - 1, 1)

    def active_levels(self, kernel: ZonalKernel | None = None) -> tuple[int, ...]:
        """Levels at which neither the activation nor (if given) the kernel vanishes."""
        levels = self.activation.active_levels(self.num_levels)
        return levels if kernel is None else tuple(level for level in levels if kernel.has_level(level))

    def rank(self, kernel: ZonalKernel | None = None) -> int:
        """Dimension R of the space that such features span: more than R of them add nothing.

        Without a kernel, that for a kernel which has all levels.
        """
        columns = np.arange(self.weights.shape[1] - 1)
        dimension = len(columns if kernel is None else columns[kernel.active_dims]) + 1
        levels = self.active_levels(kernel)
        present = self.coefficients(levels, dimension) != 0.0  # the highest may have fallen below rounding
        return sum(num_harmonics(dimension, level) for level, there in zip(levels, present) if there)

    def coefficients(self, levels: tuple[int, ...], dimension: int) -> np.ndarray:
        """Fourier coefficients of the activation at some levels, shape `[len(levels)]`, float64."""
        return self.activation.coefficients(self.num_levels, dimension, self.slope)[list(levels)]

    def check_levels(self, kernel: ZonalKernel) -> None:
        """Raises an error if the features and the kernel have no level in common."""
        if not self.active_levels(kernel):
            raise ValueError(
                f"{self.activation.name} features with num_levels={self.num_levels} have levels "
                f"{list(self.active_levels())}, none of which {type(kernel).__name__} has. Use more levels, or another "
                "activation."
            )

    def project(self, kernel: ZonalKernel) -> tuple[tf.Tensor, tf.Tensor]:
        """Directions of the weights, shape `[M, d]`, and the factors ||z||^p, shape `[M]`."""
        self.check_levels(kernel)
        if self.rank(kernel) != self._checked_rank:
            self._warn_if_above_rank(
                self.rank(kernel), f" under {type(kernel).__name__} with its levels and active_dims"
            )
        weights = tf.convert_to_tensor(self.weights)
        active, _ = kernel.slice(weights[:, :-1], None)
        if kernel.ard and active.shape[1] != kernel.weight_variances.shape[0]:
            raise ValueError(
                f"ActivationFeatures has weights for {active.shape[1]} (active) inputs and a bias, but the kernel has "
                f"{kernel.weight_variances.shape[0]} weight variances. Give weights of shape [M, D + 1]."
            )
        active = tf.concat([active, weights[:, -1:]], axis=-1)
        # Scaled first, so that squares neither underflow nor overflow. By what does not matter, so it has no gradient.
        largest = tf.stop_gradient(tf.reduce_max(tf.abs(active), axis=-1, keepdims=True))
        message = (
            "ActivationFeatures: a row of `weights` is zero in the active columns and the bias, or NaN: it has no "
            "direction."
        )
        with tf.control_dependencies([tf.debugging.Assert(tf.reduce_all(largest > 0.0), [message])]):
            scaled = active / largest
        directions, norms = split_norms(scaled)
        return directions, kernel.radial_factor(largest[:, 0] * norms)

    def _warn_if_above_rank(self, rank: int, where: str) -> None:
        self._checked_rank = rank
        num_units = self.weights.shape[0]
        if num_units is not None and num_units > rank:
            warnings.warn(
                f"{num_units} {self.activation.name} features of {self.weights.shape[1] - 1} inputs with "
                f"num_levels={self.num_levels} span a space of dimension R = {rank}{where}: their covariance is "
                f"singular and "
                f"{num_units - rank} of them add nothing. Use at most {rank} "
                f"features{'' if where else ', or more levels'}.",
                stacklevel=3,
            )


def _check_weights(weights: Any) -> None:
    expected = "Expected `weights` of shape [M, D + 1], one row of D weights and a bias for each unit"
    if len(weights.shape if hasattr(weights, "shape") else np.shape(weights)) != 2:
        raise ValueError(f"{expected}. Got shape {tuple(np.shape(weights))}.")
    if tf.is_symbolic_tensor(weights):
        return
    values = np.asarray(weights, dtype=np.float64)
    if values.shape[0] < 1 or values.shape[1] < 2:
        raise ValueError(f"{expected}, with M >= 1 and D >= 1. Got shape {values.shape}.")
    if not np.isfinite(values).all():
        rows = np.flatnonzero(~np.isfinite(values).all(axis=1)).tolist()
        raise ValueError(f"{expected}, all of them finite. Got NaN or infinity in rows {rows[:10]}.")
    if (values == 0).all(axis=1).any():
        rows = np.flatnonzero((values == 0).all(axis=1)).tolist()
        raise ValueError(
            f"{expected}, no row all zero, because a unit needs a direction. Got zeros in rows {rows[:10]}."
        )
