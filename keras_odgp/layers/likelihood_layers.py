"""Layers that own the dispersion of a likelihood and append it to the moments of the latent functions."""

from __future__ import annotations

from typing import Any

import gpflow
import keras
import numpy as np
import tensorflow as tf

from keras_odgp.layers import recording
from keras_odgp.numerics import float_context
from keras_odgp.weights import AdoptingLayer

LOWER_BOUND = 1e-6  # as in GPflow's likelihoods

_DOC = """

    Args:
        initial_{name}: Start value, a positive number. Defaults to {default}.
        per_output: Whether each unit has a {name} of its own. Defaults to True.
        dtype: `"float64"` (default) or `"float32"`.
        **kwargs: Arguments of `keras.layers.Layer`.

    Input shape:

    `[..., units, 2]`, as from a GP layer with `return_moments=True`.

    Output shape:

    `[..., units, 3]`.

    Example:

    >>> layer = keras_odgp.layers.{cls}()
    >>> layer(np.array([[[0.0, 1.0]]])).numpy().round(6).tolist()
    [[[0.0, 1.0, {default}]]]
    """


class DispersionLayer(AdoptingLayer):
    """Appends a trained positive number to the moments of each unit."""

    parameter_name: str
    default: float

    def __init__(self, initial: float | None, per_output: bool, dtype: Any, **kwargs: Any) -> None:
        super().__init__(dtype=dtype, **kwargs)
        self._initial = self.default if initial is None else initial
        if not (np.isscalar(self._initial) and LOWER_BOUND < self._initial < np.inf):
            raise ValueError(
                f"Expected `initial_{self.parameter_name}` to be a number above {LOWER_BOUND}. Got: {initial!r}."
            )
        self.per_output = per_output
        self.supports_masking = True

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        if len(input_shape) < 3 or input_shape[-1] != 2 or input_shape[-2] is None:
            raise ValueError(
                f"Expected moments of shape [..., units, 2] for layer {self.name!r}. Got shape {tuple(input_shape)}. "
                "Give the GP layer before it `return_moments=True`."
            )
        self.input_spec = keras.InputSpec(min_ndim=3, axes={-1: 2, -2: input_shape[-2]})
        shape = (input_shape[-2],) if self.per_output else ()
        with tf.init_scope(), float_context(self.compute_dtype):
            transform = gpflow.utilities.positive(lower=LOWER_BOUND)
            module = tf.Module()
            self._parameter = gpflow.Parameter(np.full(shape, self._initial), transform=transform)
            setattr(module, self.parameter_name, self._parameter)
        self.adopt(module)

    @property
    def parameter(self) -> gpflow.Parameter:
        """The dispersion as a GPflow parameter, shape `[units]` or `[]`."""
        if not self.built:
            raise ValueError(f"Layer {self.name!r} has no parameter before it is built. Call it on data.")
        return self._parameter

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        dispersion = recording.provided(self)
        if dispersion is None:
            with float_context(self.compute_dtype):
                dispersion = tf.convert_to_tensor(self._parameter)
        inputs = tf.cast(inputs, self.compute_dtype)  # wrappers call without Keras's casting
        recording.visit(self, inputs)
        column = tf.broadcast_to(dispersion, tf.shape(inputs)[:-1])
        return tf.concat([inputs, column[..., None]], axis=-1)

    def compute_output_shape(self, input_shape: tuple[int | None, ...]) -> tuple[int | None, ...]:
        return (*input_shape[:-1], 3)

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            f"initial_{self.parameter_name}": self._initial,
            "per_output": self.per_output,
        }


@keras.saving.register_keras_serializable(package="keras_odgp")
class GaussianLikelihood(DispersionLayer):
    __doc__ = "Appends the learned noise variance to the moments." + _DOC.format(
        name="variance", default=0.1, cls="GaussianLikelihood"
    )

    parameter_name, default = "variance", 0.1

    def __init__(
        self, initial_variance: float | None = None, per_output: bool = True, dtype: Any = "float64", **kwargs: Any
    ) -> None:
        super().__init__(initial_variance, per_output, dtype, **kwargs)
        self.initial_variance = self._initial

    @property
    def variance(self) -> gpflow.Parameter:
        """The noise variance."""
        return self.parameter


@keras.saving.register_keras_serializable(package="keras_odgp")
class StudentTLikelihood(DispersionLayer):
    __doc__ = "Appends the learned scale of Student-t noise (of 3 degrees of freedom) to the moments." + _DOC.format(
        name="scale", default=0.3, cls="StudentTLikelihood"
    )

    parameter_name, default = "scale", 0.3

    def __init__(
        self, initial_scale: float | None = None, per_output: bool = True, dtype: Any = "float64", **kwargs: Any
    ) -> None:
        super().__init__(initial_scale, per_output, dtype, **kwargs)
        self.initial_scale = self._initial

    @property
    def scale(self) -> gpflow.Parameter:
        """The scale of the noise."""
        return self.parameter


@keras.saving.register_keras_serializable(package="keras_odgp")
class GammaLikelihood(DispersionLayer):
    __doc__ = (
        "Appends the learned shape of a Gamma distribution to the moments; the latent function is the logarithm of "
        "its scale." + _DOC.format(name="shape", default=1.0, cls="GammaLikelihood")
    )

    parameter_name, default = "shape", 1.0

    def __init__(
        self, initial_shape: float | None = None, per_output: bool = True, dtype: Any = "float64", **kwargs: Any
    ) -> None:
        super().__init__(initial_shape, per_output, dtype, **kwargs)
        self.initial_shape = self._initial

    @property
    def shape(self) -> gpflow.Parameter:
        """The shape of the Gamma distribution."""
        return self.parameter


@keras.saving.register_keras_serializable(package="keras_odgp")
class BetaLikelihood(DispersionLayer):
    __doc__ = (
        "Appends the learned scale (the sum of both shape parameters) of a Beta distribution to the moments; the "
        "latent function is the probit of its mean." + _DOC.format(name="scale", default=1.0, cls="BetaLikelihood")
    )

    parameter_name, default = "scale", 1.0

    def __init__(
        self, initial_scale: float | None = None, per_output: bool = True, dtype: Any = "float64", **kwargs: Any
    ) -> None:
        super().__init__(initial_scale, per_output, dtype, **kwargs)
        self.initial_scale = self._initial

    @property
    def scale(self) -> gpflow.Parameter:
        """The scale of the Beta distribution."""
        return self.parameter
