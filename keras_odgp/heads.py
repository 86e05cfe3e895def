"""GP layers whose moments reach an output of a model, and the statistics from which their optimal q follows."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from keras_odgp._private import flatten_layers
from keras_odgp.layers import GaussianLikelihood, OrthogonalGP, recording
from keras_odgp.likelihoods import OutputLikelihood
from keras_odgp.losses import VariationalLoss
from keras_odgp.numerics import float_context
from keras_odgp.orthogonal.gram import mixing
from keras_odgp.orthogonal.optimal import Statistics
from keras_odgp.orthogonal.prediction import PriorFactors

SMALLEST_PRECISION = 1e-8  # of a Gaussian in place of a likelihood that is flat, or not concave, at a datum


def call_recording(
    model: keras.Model, inputs: Any, answers: Mapping[OrthogonalGP, float] = MappingProxyType({})
) -> tuple[list[tf.Tensor], dict[OrthogonalGP, tf.Tensor]]:
    """Outputs of a model, and what reaches each of its GP layers, in the order in which it does.

    Layers that have an answer pass on that number everywhere, which spares their work.
    """
    reached: dict[OrthogonalGP, tf.Tensor] = {}

    def visitor(layer: Any, layer_inputs: tf.Tensor) -> None:
        if isinstance(layer, OrthogonalGP):
            reached[layer] = layer_inputs

    def answer(layer: OrthogonalGP, layer_inputs: tf.Tensor) -> tf.Tensor | None:
        if layer not in answers:
            return None
        columns = layer.compute_output_shape(layer_inputs.shape)[len(layer_inputs.shape) - 1 :]
        shape = tf.concat([tf.shape(layer_inputs)[:-1], columns], axis=0)
        return tf.fill(shape, tf.constant(answers[layer], layer.compute_dtype))

    with recording.visiting(visitor), recording.substituting(answer) if answers else contextlib.nullcontext():
        outputs = model(inputs, training=False)
    return keras.tree.flatten(outputs), reached


def noise_stands_apart(model: keras.Model, few: Any, head: OrthogonalGP, index: int) -> bool:
    """Whether the columns after the moments of an output do not depend on the layer that the moments are of."""
    layers = [layer for layer in flatten_layers(model) if isinstance(layer, OrthogonalGP)]
    columns = [
        call_recording(model, few, {layer: value * (layer is head) for layer in layers})[0][index][..., 2:]
        for value in (0.0, 1.0)
    ]
    return bool(tf.reduce_all(columns[0] == columns[1]))


def find_heads(model: keras.Model, few: Any, num_columns: int) -> dict[OrthogonalGP, int]:
    """Layers whose moments are the first columns of an output with so many, and the index of that output."""
    return {layer: index for layer, index, _ in _trace(model, few, num_columns)}


def gaussian_heads(model: keras.Model, few: Any) -> dict[OrthogonalGP, int]:
    """Those of them that have Gaussian noise, by the loss of the output or by the layer that appends the noise."""
    heads = {}
    for layer, index, likelihood_layer in _trace(model, few, num_columns=3):
        loss = _loss_of(model, index)
        by_loss = isinstance(loss, VariationalLoss) and loss.likelihood == "gaussian"
        if by_loss or (not isinstance(loss, VariationalLoss) and isinstance(likelihood_layer, GaussianLikelihood)):
            heads[layer] = index
    return heads


def _trace(model: keras.Model, few: Any, num_columns: int) -> list[tuple[OrthogonalGP, int, keras.Layer | None]]:
    """Layers, the outputs that their moments reach, and the likelihood layers they pass on the way.

    Every layer answers with numbers of its own, which are looked for in the outputs: true moments will not do, because
    layers that have not learned yet have equal ones.
    """
    rng = np.random.default_rng(0)
    marks: dict[OrthogonalGP, np.ndarray] = {}
    likelihood_inputs: list[tuple[keras.Layer, np.ndarray]] = []

    def answer(layer: OrthogonalGP, inputs: tf.Tensor) -> tf.Tensor:
        shape = (*inputs.shape[:-1], layer.units, *([2] if layer.return_moments else []))
        mark = rng.uniform(0.5, 1.5, size=shape)
        if layer.return_moments and mixing(layer.posterior.kernel) is None:
            marks[layer] = mark
        return tf.constant(mark, layer.compute_dtype)

    def visitor(layer: Any, inputs: tf.Tensor) -> None:
        if not isinstance(layer, OrthogonalGP):
            likelihood_inputs.append((layer, np.asarray(inputs)))

    with recording.substituting(answer), recording.visiting(visitor):
        outputs = [np.asarray(output) for output in keras.tree.flatten(model(few, training=False))]

    def shows(values: np.ndarray, mark: np.ndarray) -> bool:
        return values.shape[:-1] == mark.shape[:-1] and np.allclose(values[..., :2], mark, rtol=1e-4)

    return [
        (layer, index, next((found for found, values in likelihood_inputs if shows(values, mark)), None))
        for layer, mark in marks.items()
        for index, output in enumerate(outputs)
        if output.ndim and output.shape[-1] == num_columns and shows(output, mark)
    ]


def _loss_of(model: keras.Model, index: int) -> Any:
    loss = getattr(model, "loss", None)
    if isinstance(loss, dict):
        return loss.get(output_names(model)[index])
    return loss[index] if isinstance(loss, (list, tuple)) else loss


def output_names(model: keras.Model) -> list[str]:
    """Names of the outputs of a functional model, in the order in which they are flattened."""
    return sorted(model.output) if isinstance(model.output, dict) else list(model.output_names)


def flatten_targets(model: keras.Model, targets: Any) -> list[Any]:
    """Targets in the order of the outputs; those in a dictionary are named after them."""
    if isinstance(targets, dict) and getattr(model, "output_names", None) and not isinstance(model.output, dict):
        return [targets[name] for name in model.output_names]
    return keras.tree.flatten(targets)


class Sites(NamedTuple):
    """Gaussians in place of the likelihood of each datum.

    Attributes:
        targets: Means, shape `[..., units]`.
        precision: Precisions, shape `[..., units]`. Samples of one datum share its weight.
        num_data: Number of data, a scalar.
    """

    targets: tf.Tensor
    precision: tf.Tensor
    num_data: tf.Tensor

    def weighted(self, weights: tf.Tensor) -> Sites:
        """Sites that count as often as weights `[...]` say, which may lack the last axes."""
        weights = tf.cast(weights, self.precision.dtype)
        for _ in range(len(self.precision.shape) - len(weights.shape)):
            weights = weights[..., None]
        return self._replace(precision=weights * self.precision)


def gaussian_sites(y: Any, output: tf.Tensor) -> Sites:
    """The likelihood itself where it is Gaussian, for an output with the variance of the noise as third column."""
    aligned, weight, num_data = _align(OutputLikelihood("gaussian"), y, output)
    return Sites(aligned, weight / output[..., 2], num_data)


def tangent_sites(likelihood: OutputLikelihood, y: Any, output: tf.Tensor) -> Sites:
    r"""The Gaussians whose expected logarithms have the same gradients as those of the likelihood.

    With $E_i$ the expectation at datum i under its marginal $N(\mu_i, v_i)$, the precision is $-2 \partial E_i /
    \partial v_i$ and the mean $\mu_i$ plus $\partial E_i / \partial \mu_i$ divided by it.
    """
    _, weight, num_data = _align(likelihood, y, output)
    mean, variance, rest = output[..., 0], output[..., 1], output[..., 2:]
    with tf.GradientTape() as tape:
        tape.watch((mean, variance))
        moments = tf.stack([mean, variance], axis=-1)
        expectations = likelihood.variational_expectations(y, tf.concat([moments, rest], axis=-1))
    slope, curvature = tape.gradient(expectations, (mean, variance))
    precision = tf.maximum(-2.0 * curvature, SMALLEST_PRECISION)
    return Sites(mean + slope / precision, weight * precision, num_data)


def _align(likelihood: OutputLikelihood, y: Any, output: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Targets in the shape of the output, the weight of each of its rows, and the number of data.

    Samples of one datum, on axes that only the output has, share its weight.
    """
    aligned = likelihood.align(y, output)
    weight = tf.cast(tf.size(y), output.dtype) / tf.cast(tf.size(aligned), output.dtype)
    return aligned, weight, weight * tf.cast(tf.size(output[..., 0, 0]), output.dtype)


def site_statistics(layer: OrthogonalGP, factors: PriorFactors, inputs: tf.Tensor, sites: Sites) -> Statistics:
    """Sums over a batch, from which the optimal q of a layer follows, given the inputs that reach it."""
    targets = sites.targets
    if layer.mean_layer is not None:
        targets -= tf.cast(layer.mean_layer(inputs), targets.dtype)
    rows, units = [-1, inputs.shape[-1]], [-1, layer.units]
    with float_context(layer.compute_dtype):
        return layer.posterior.statistics(
            factors, tf.reshape(inputs, rows), tf.reshape(targets, units), tf.reshape(sites.precision, units)
        )
