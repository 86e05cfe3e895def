"""Mean functions of GP layers: what a layer does before it has learned anything."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_odgp.weights import GuardedLayer

NAMES = ("auto", "identity", "linear")


def check_mean_function(mean_function: Any) -> None:
    """Raises unless it is a name, None or a Keras layer."""
    if mean_function is None or isinstance(mean_function, keras.Layer):
        return
    if not isinstance(mean_function, str) or mean_function not in NAMES:
        raise ValueError(
            f"Expected `mean_function` to be among {NAMES}, None or a Keras layer. Got: {mean_function!r}."
        )


@keras.saving.register_keras_serializable(package="keras_odgp")
class FixedLinear(GuardedLayer):
    """A linear map that is not trained: of the leading principal components, or zero padding where the width grows.

    Args:
        units: Number of outputs.
        **kwargs: Arguments of `keras.layers.Layer`.

    Input shape:

    `[..., D]`.

    Output shape:

    `[..., units]`.

    Example:

    >>> layer = keras_odgp.layers.FixedLinear(3)
    >>> layer(np.ones((1, 2))).numpy().tolist()
    [[1.0, 1.0, 0.0]]
    """

    def __init__(self, units: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.units = units
        self.supports_masking = True

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        start = np.eye(int(input_shape[-1] or 0), self.units)
        self.matrix = self.add_weight(
            name="matrix",
            shape=start.shape,
            initializer=lambda shape, dtype: tf.constant(start, dtype),
            trainable=False,
        )

    def adapt(self, data: np.ndarray) -> None:
        """Sets the map to the leading principal components of data `[N, D]`, if it lowers the width."""
        if not self.built:
            self.build(data.shape)
        if self.units >= data.shape[1]:
            return
        centred = data - data.mean(axis=0)
        _, components = np.linalg.eigh(centred.T @ centred)  # in columns, the leading one last
        leading = components[:, ::-1][:, : self.units]
        # The sign of a component is arbitrary: the largest entry positive, so that equal data give equal maps.
        largest = np.take_along_axis(leading, np.abs(leading).argmax(axis=0)[None], axis=0)
        self.matrix.assign(leading * np.sign(largest))

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        return keras.ops.matmul(inputs, self.matrix)

    def compute_output_shape(self, input_shape: tuple[int | None, ...]) -> tuple[int | None, ...]:
        return (*input_shape[:-1], self.units)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "units": self.units}


def make_mean_function(
    mean_function: Any, input_shape: tuple[int | None, ...], units: int, *, last: bool, dtype: Any
) -> keras.Layer | None:
    """A Keras layer that is built, or None for a mean of zero."""
    num_inputs = input_shape[-1]
    if mean_function == "auto":
        mean_function = None if last else ("identity" if num_inputs == units else "linear")
    if mean_function is None:
        return None
    if mean_function == "identity":
        layer = keras.layers.Identity(dtype=dtype, name="mean_function")
    elif mean_function == "linear":
        layer = FixedLinear(units, dtype=dtype, name="mean_function")
    else:
        layer = mean_function
    if not layer.built:
        layer.build(input_shape)
    shape = layer.compute_output_shape(input_shape)
    if shape[-1] != units:
        raise ValueError(
            f"Expected a mean function with as many outputs as units. Got {units} units, and outputs of shape "
            f"{tuple(shape)} of {mean_function!r}. Use 'linear' where the width changes, or 'auto', which chooses."
        )
    return layer
