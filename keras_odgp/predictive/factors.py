"""Cached factors of the GP layers of a model, and passes through the model that use them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gpflow
import keras
import numpy as np
import tensorflow as tf

from keras_odgp.layers import OrthogonalGP
from keras_odgp.layers.likelihood_layers import DispersionLayer
from keras_odgp.numerics import float_context
from keras_odgp.orthogonal import OrthogonalPosterior


class _Cached:
    """What follows from the weights of a layer, kept in variables, and the weights that it was made from.

    Args:
        layer: The layer.
        parameters: GPflow parameters whose weights it follows from.
    """

    def __init__(self, layer: keras.Layer, parameters: Sequence[gpflow.Parameter]) -> None:
        self.layer = layer
        self._weights = [parameter.unconstrained_variable for parameter in parameters]
        self._values = self._snapshot()

    def _snapshot(self) -> list[np.ndarray]:
        return [weight.numpy().copy() for weight in self._weights]

    def refresh(self) -> None:
        """Computes it anew if a weight has changed since it was computed."""
        if all(np.array_equal(weight.numpy(), value) for weight, value in zip(self._weights, self._values)):
            return
        with float_context(self.layer.compute_dtype):
            self._update()
        self._values = self._snapshot()

    def _update(self) -> None:
        raise NotImplementedError

    def _storage(self) -> Sequence[tf.Variable]:
        raise NotImplementedError

    def variables(self) -> list[keras.Variable]:
        """Keras variables that share the storage, so that exports have them."""
        return [
            keras.Variable(
                initializer=variable,
                trainable=False,
                dtype=variable.dtype.name,
                autocast=False,
                aggregation="none",
                name=f"{self.layer.name}_factor_{index}",
            )
            for index, variable in enumerate(self._storage())
        ]


class CachedLayer(_Cached):
    """The factors of one GP layer."""

    def __init__(self, layer: OrthogonalGP) -> None:
        super().__init__(layer, layer.posterior.parameters)
        with tf.init_scope(), float_context(layer.compute_dtype):
            self.posterior = OrthogonalPosterior.of(layer.posterior, precompute_cache="variable")

    def _update(self) -> None:
        self.posterior.update_cache()

    def _storage(self) -> Sequence[tf.Variable]:
        return self.posterior.cache or ()


class CachedDispersion(_Cached):
    """The dispersion of a likelihood layer, without the operations of its constraint."""

    def __init__(self, layer: DispersionLayer) -> None:
        super().__init__(layer, [layer.parameter])
        with tf.init_scope(), float_context(layer.compute_dtype):
            self.value = tf.Variable(tf.convert_to_tensor(layer.parameter), trainable=False)

    def _update(self) -> None:
        self.value.assign(tf.convert_to_tensor(self.layer.parameter))

    def _storage(self) -> Sequence[tf.Variable]:
        return [self.value]


class SampledPass:
    """Stands for the GP layers during one pass of rows that hold every example `num_samples` times, sample by sample.

    Hidden layers pass on one sample for each copy of an example. Noise belongs to the sample and is shared by the
    examples. Before the first hidden layer all copies are alike, and moments are computed for one of them only.

    Args:
        layers: Cached layers by the id of their layer.
        num_samples: Number of copies of each example.
        seed: Seed of the noise.
    """

    def __init__(self, layers: dict[int, CachedLayer], num_samples: int, seed: int) -> None:
        self._layers, self._num_samples, self._seed = layers, num_samples, seed
        self._num_hidden = 0

    def __call__(self, layer: OrthogonalGP, inputs: tf.Tensor) -> tf.Tensor:
        shape, num = layer.compute_output_shape(inputs.shape), self._num_samples
        distinct = num if self._num_hidden else 1
        rows = inputs if distinct == num else inputs[: tf.shape(inputs)[0] // num]
        moments = layer.cached_marginals(rows, self._layers[id(layer)].posterior)
        if layer.return_moments and distinct == num:
            return tf.stack(moments, axis=-1)
        mean, variance = (
            tf.reshape(part, tf.concat([[distinct, -1], tf.shape(part)[1:]], axis=0)) for part in moments
        )  # [1 or S, N, ..., units]
        if layer.return_moments:
            output = tf.stack([mean, variance], axis=-1)
            output = tf.repeat(output, num // distinct, axis=0)
        else:
            noise = self._noise([num, *moments[0].shape[1:]], tf.shape(mean)[2:], mean.dtype)
            output = mean + tf.sqrt(variance) * noise[:, None]
        return tf.ensure_shape(tf.reshape(output, tf.concat([[-1], tf.shape(output)[2:]], axis=0)), shape)

    def _noise(self, static: list[int | None], shape: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
        index, self._num_hidden = self._num_hidden, self._num_hidden + 1
        if None in static:
            return stratified_normal(tf.concat([[self._num_samples], shape], axis=0), (self._seed, index), dtype)
        with tf.init_scope():  # the same in every batch: a constant of a compiled function
            noise = stratified_normal(static, (self._seed, index), dtype)
        return tf.constant(noise.numpy())


class ShapePass:
    """Stands for the GP layers in a pass that only finds out about shapes.

    Attributes:
        has_hidden: Whether a layer passes on samples.
        rows_per_example: The largest number of rows that one example becomes in a GP layer: more than 1 for sequences.
    """

    def __init__(self) -> None:
        self.has_hidden = False
        self.rows_per_example = 1

    def __call__(self, layer: OrthogonalGP, inputs: tf.Tensor) -> tf.Tensor:
        self.has_hidden |= not layer.return_moments
        inner = [size for size in inputs.shape[1:-1] if size is not None]
        self.rows_per_example = max(self.rows_per_example, int(np.prod(inner, dtype=int)))
        shape = layer.compute_output_shape(inputs.shape)
        end = shape[len(inputs.shape) - 1 :]
        zeros = tf.zeros(tf.concat([tf.shape(inputs)[:-1], end], axis=0), layer.compute_dtype)
        return tf.ensure_shape(zeros, shape)


def stratified_normal(shape: Any, seed: tuple[int, int], dtype: tf.DType) -> tf.Tensor:
    """Normal numbers `[S, ...]`; along the first axis one from each of S equally likely strata, in random order.

    Each number is standard normal and those of one sample are independent, as in plain Monte Carlo, but what is nearly
    linear in the noise is averaged almost without error (Latin hypercube sampling).
    """
    strata, within = (
        tf.random.stateless_uniform(shape, [seed[0], 2 * seed[1] + part], dtype=tf.float64) for part in (0, 1)
    )
    order = tf.cast(tf.argsort(strata, axis=0), tf.float64)
    uniform = (order + tf.clip_by_value(within, 1e-9, 1.0 - 1e-9)) / tf.cast(tf.shape(order)[0], tf.float64)
    return tf.cast(tf.math.ndtri(uniform), dtype)
