"""A function drawn from a GP layer, its mean function included."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import keras
import tensorflow as tf

from keras_odgp.sampling import FunctionSamples

if TYPE_CHECKING:
    from keras_odgp.layers.orthogonal_gp import OrthogonalGP

Values = list[tuple[keras.Variable, tf.Tensor]]


def values_of(layer: keras.Layer) -> Values:
    """The variables of a layer and the values they have now; a `keras.StatelessScope` of them keeps the layer so."""
    return [(variable, tf.convert_to_tensor(variable.value)) for variable in layer.variables]


class FunctionSample:
    """One function `[..., D]` to `[..., units]`, the same at every call. Made by `OrthogonalGP.sample_function`."""

    def __init__(self, layer: OrthogonalGP, seed: int) -> None:
        self._samples = FunctionSamples(layer.posterior, 1, seed)
        self._mean = layer.mean_layer
        self._mean_values = [] if self._mean is None else values_of(self._mean)
        self._width = layer.input_spec.axes[-1]

    def __call__(self, inputs: Any) -> tf.Tensor:
        inputs = tf.cast(inputs, self._samples.dtype)
        if inputs.shape.rank in (None, 0) or inputs.shape[-1] != self._width:
            raise ValueError(f"Expected inputs of shape [..., {self._width}]. Got shape {inputs.shape}.")
        rows = tf.reshape(inputs, [-1, self._width])
        values = self._samples(rows)[0]
        if self._mean is not None:
            with keras.StatelessScope(self._mean_values):
                values += tf.cast(self._mean(rows), values.dtype)
        shaped = tf.reshape(values, tf.concat([tf.shape(inputs)[:-1], [values.shape[-1]]], axis=0))
        return tf.ensure_shape(shaped, [*inputs.shape[:-1], values.shape[-1]])
