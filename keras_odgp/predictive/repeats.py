"""Whether a model repeats each example, to train on several samples of its hidden layers."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_odgp._private import flatten_layers
from keras_odgp.layers import recording
from keras_odgp.predictive.factors import ShapePass


def repeats_examples(model: keras.Model, specs: Any, output_shape: tf.TensorShape) -> bool:
    """Whether the second axis of the output `[N, R, units, columns]` holds samples of one example.

    It does if a `keras.layers.RepeatVector` makes it and the copies that reach GP layers are alike, but for samples.
    They are not in a model that generates a sequence from them: its recurrent layers make each step another.

    Args:
        model: The model.
        specs: Shapes and dtypes of its inputs.
        output_shape: Shape of its output.
    """
    sizes = {layer.n for layer in flatten_layers(model) if isinstance(layer, keras.layers.RepeatVector)}
    if len(output_shape) != 4 or output_shape[1] not in sizes:
        return False
    reached: list[np.ndarray] = []
    with recording.substituting(_ones), recording.visiting(lambda _, inputs: reached.append(np.asarray(inputs))):
        model(keras.tree.map_structure(example, specs), training=False)
    is_copied = [array.ndim > 2 and array.shape[1] == output_shape[1] for array in reached]
    return is_copied[0] and all(
        bool((array == array[:, :1]).all()) for array, copied in zip(reached, is_copied) if copied
    )


def _ones(layer: Any, inputs: tf.Tensor) -> tf.Tensor:
    """The same for all, but not zero, of which a recurrent layer may make zeros at every step."""
    return ShapePass()(layer, inputs) + 1.0


def example(spec: tf.TensorSpec) -> tf.Tensor:
    """One example, in which neighbouring numbers differ; whole numbers are 0 and 1, which any embedding takes."""
    shape = [1, *(size or 2 for size in spec.shape[1:])]
    if spec.dtype == tf.string:
        return tf.fill(shape, "")
    numbers = np.arange(np.prod(shape))
    values = numbers % 2 if spec.dtype.is_integer else np.sin(1.0 + numbers)
    return tf.constant(values.reshape(shape), spec.dtype)
