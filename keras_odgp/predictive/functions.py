"""Functions drawn from a whole model: samples of its GP layers, composed."""

from __future__ import annotations

from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from keras_odgp.checks import check_count
from keras_odgp.layers import OrthogonalGP, recording
from keras_odgp.layers.function_samples import values_of
from keras_odgp.predictive.factors import ShapePass
from keras_odgp.predictive.inspection import gp_layers
from keras_odgp.predictive.mixture import MOST_ROWS, tensors
from keras_odgp.predictive.repeats import example, repeats_examples
from keras_odgp.sampling import FunctionSamples


def sample_functions(model: keras.Model, num: int, seed: int) -> ModelFunctions:
    """Functions drawn from the posterior of a model with GP layers.

    Each is a sample of every GP layer, composed, with the other layers as they are when the model predicts. It is one
    and the same function at every call, cheap at new inputs and differentiable in them. It has no noise: behind a
    likelihood layer, too, values are those of the latent functions. Training the model later does not change functions
    that were drawn.

    Args:
        model: A built Keras model of any kind with `OrthogonalGP` layers.
        num: Number of functions.
        seed: Seed: for the same weights and number, equal seeds give equal functions, in any process.

    Returns:
        A callable from inputs as for `model.predict` to values `[num, N, ..., units]`, a tensor, or the structure of
        the outputs of the model. All functions are evaluated in one pass.

    Example:

    >>> model = keras.Sequential([
    ...     keras.Input((2,)),
    ...     keras_odgp.layers.OrthogonalGP(2, num_inducing=8, num_orthogonal=8, num_data=50),
    ...     keras_odgp.layers.OrthogonalGP(1, num_inducing=8, num_orthogonal=8, num_data=50, return_moments=True),
    ... ])
    >>> functions = keras_odgp.sample_functions(model, 5, seed=0)
    >>> functions(np.ones((10, 2))).shape.as_list()
    [5, 10, 1]
    """
    return ModelFunctions(model, num, seed)


class ModelFunctions:
    """Functions of a model. Made by `sample_functions`."""

    def __init__(self, model: keras.Model, num: int, seed: int) -> None:
        check_count("num", num)
        check_count("seed", seed, least=0)
        self._model, self._num = model, int(num)
        self._samples = {
            id(layer): FunctionSamples(layer.posterior, self._num, layer_seed(seed, index))
            for index, layer in enumerate(gp_layers(model))
        }
        self._values = values_of(model)
        self._outputs: list[_Output] | None = None
        self._rows_per_example = 1

    def __call__(self, inputs: Any) -> Any:
        inputs = tensors(inputs)
        if self._outputs is None:
            with tf.init_scope():
                self._outputs = self._inspect(inputs)
        first = keras.tree.flatten(inputs)[0]
        chunk = max(1, MOST_ROWS // (self._num * self._rows_per_example))
        if first.shape[0] is None or first.shape[0] <= chunk:
            return self._evaluate(inputs)
        parts = [
            self._evaluate(keras.tree.map_structure(lambda array, s=start: array[s : s + chunk], inputs))
            for start in range(0, first.shape[0], chunk)
        ]
        return keras.tree.map_structure(lambda *values: tf.concat(values, axis=1), *parts)

    def _evaluate(self, inputs: Any) -> Any:
        rows = keras.tree.map_structure(lambda array: tf.concat([array] * self._num, axis=0), inputs)
        with keras.StatelessScope(self._values), recording.substituting(_FunctionPass(self._samples, self._num)):
            outputs = self._model(rows, training=False)
        kinds = iter(self._outputs or ())
        return keras.tree.map_structure(lambda output: self._finish(output, next(kinds)), outputs)

    def _finish(self, output: tf.Tensor, kind: _Output) -> tf.Tensor:
        """From rows of all functions, one after the other, to `[num, N, ..., units]`."""
        shaped = tf.reshape(output, tf.concat([[self._num, -1], tf.shape(output)[1:]], axis=0))
        shaped = tf.ensure_shape(shaped, [self._num, None, *output.shape[1:]])
        shaped = shaped[..., 0] if kind.is_moments else shaped
        return shaped[:, :, 0] if kind.is_repeated else shaped

    def _inspect(self, inputs: Any) -> list[_Output]:
        """What the outputs are, found by variances that no true layer has."""
        specs = keras.tree.map_structure(lambda array: tf.TensorSpec([None, *array.shape[1:]], array.dtype), inputs)
        found = ShapePass()

        def mark(layer: OrthogonalGP, inputs: tf.Tensor) -> tf.Tensor:
            found(layer, inputs)
            return _mark_variances(layer, inputs)

        with recording.substituting(mark):
            outputs = keras.tree.flatten(self._model(keras.tree.map_structure(example, specs), training=False))
        self._rows_per_example = found.rows_per_example
        return [
            _Output(_shows_moments(output), repeats_examples(self._model, specs, output.shape)) for output in outputs
        ]


class _Output(NamedTuple):
    """What is known of an output.

    Attributes:
        is_moments: Whether it has the moments of a GP layer, perhaps with a dispersion, on its last axis.
        is_repeated: Whether its second axis has copies of each example, to train on several samples.
    """

    is_moments: bool
    is_repeated: bool


class _FunctionPass:
    """Stands for the GP layers in a pass of rows that hold every example once for each function.

    Before the first GP layer all copies are alike, and that layer evaluates its functions at one of them.
    """

    def __init__(self, samples: dict[int, FunctionSamples], num: int) -> None:
        self._samples, self._num, self._are_alike = samples, num, True

    def __call__(self, layer: OrthogonalGP, inputs: tf.Tensor) -> tf.Tensor:
        samples = self._samples[id(layer)]
        size = tf.shape(inputs)[0] // self._num
        if self._are_alike:
            values = samples(inputs[:size])  # [num, N, ..., units]
        else:
            own = tf.reshape(inputs, tf.concat([[self._num, size], tf.shape(inputs)[1:]], axis=0))
            values = samples.each(tf.ensure_shape(own, [self._num, None, *inputs.shape[1:]]))
        self._are_alike = False
        values = tf.reshape(values, tf.concat([tf.shape(inputs)[:-1], [layer.units]], axis=0))
        values = tf.ensure_shape(values, [*inputs.shape[:-1], layer.units])
        if layer.mean_layer is not None:
            values += tf.cast(layer.mean_layer(inputs), values.dtype)
        return tf.stack([values, tf.zeros_like(values)], axis=-1) if layer.return_moments else values


def _mark_variances(layer: OrthogonalGP, inputs: tf.Tensor) -> tf.Tensor:
    values = tf.ones(tf.concat([tf.shape(inputs)[:-1], [layer.units]], axis=0), layer.compute_dtype)
    return tf.stack([values, np.nan * values], axis=-1) if layer.return_moments else values


def _shows_moments(output: tf.Tensor) -> bool:
    if output.shape.rank < 3 or output.shape[-1] not in (2, 3):
        return False
    missing = np.isnan(output)
    return bool(missing[..., 1].all() and not missing[..., 0].any())


def layer_seed(seed: int, index: int) -> int:
    """A seed of its own for each layer."""
    return int(np.random.SeedSequence((seed, index)).generate_state(1)[0])
