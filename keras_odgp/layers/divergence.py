"""The divergence of a layer from its prior, per datum, as a loss and as a metric."""

from __future__ import annotations

import warnings
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_odgp.checks import check_count
from keras_odgp.layers import recording
from keras_odgp.weights import AdoptingLayer


class DivergenceLayer(AdoptingLayer):
    """A layer that adds its divergence from the prior, divided by the number of data, to the losses of a model.

    Attributes:
        kl_metric: Mean of the divergence over the batches of an epoch.
        kl_weight: Weight of the divergence in the loss, 1 unless it is warmed up.

    Args:
        num_data: Number of data, or None if it is not known yet.
        **kwargs: Arguments of `keras.layers.Layer`.
    """

    def __init__(self, num_data: int | None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if num_data is not None:
            check_count("num_data", num_data)
        self._num_data, self._num_data_weight = num_data, None
        self.kl_metric = keras.metrics.Mean(name=f"{self.name}_kl")
        self._kl_term: tf.Tensor | None = None

    def add_divergence_weights(self) -> None:
        """Called within `build`. Both are weights because Python numbers would be baked into a compiled step."""
        self._num_data_weight = self._add_constant("num_data", self._num_data or 0)
        self.kl_weight = self._add_constant("kl_weight", 1.0)

    def _add_constant(self, name: str, value: float) -> keras.Variable:
        return self.add_weight(name=name, shape=(), initializer=keras.initializers.Constant(value), trainable=False)

    @property
    def num_data(self) -> int | None:
        """Number of data by which the divergence is divided: the layer's weight, once it is built; None if unknown."""
        if self._num_data_weight is not None:
            with tf.init_scope():  # at tracing too the present value counts
                value = np.asarray(keras.ops.convert_to_numpy(self._num_data_weight))
            if value.ndim == 0 and value.dtype.kind == "f":  # otherwise Keras has not given it a value yet
                return int(value) or None
        return self._num_data

    def set_num_data(self, num_data: int) -> None:
        """Sets the number of data, by which the divergence is divided."""
        check_count("num_data", num_data)
        self._num_data = int(num_data)
        if self._num_data_weight is not None:
            self._num_data_weight.assign(float(num_data))

    def add_divergence(self, kl: tf.Tensor, training: bool) -> None:
        """Called within `call`."""
        if self._kl_term is not None and any(term is self._kl_term for term in self.losses):
            return  # called twice in one pass over the model: there is one q, so it counts once
        if self.num_data is None and not recording.is_visiting():
            message = (
                f"Layer {self.name!r} does not know the number of data, by which its KL divergence is divided. Call "
                "`keras_odgp.adapt(model, x_train, y_train)` before training, or give the layer `num_data`."
            )
            if training:
                raise ValueError(message)
            warnings.warn(f"{message} Until then its loss is not finite; predictions are right.", stacklevel=2)
        self.kl_metric.update_state(kl)
        # Keras adds losses without casting them, and its own are of this dtype.
        self._kl_term = tf.cast(self.kl_weight * kl / self._num_data_weight, keras.config.floatx())
        self.add_loss(self._kl_term)
