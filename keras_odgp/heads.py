"""GP layers whose moments reach an output of a model, and the statistics from which their optimal q follows."""

from __future__ import annotations

from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from keras_odgp.layers import GaussianLikelihood, OrthogonalGP, recording
from keras_odgp.likelihoods import OutputLikelihood
from keras_odgp.losses import VariationalLoss
from keras_odgp.numerics import float_context
from keras_odgp.orthogonal.gram import mixing
from keras_odgp.orthogonal.optimal import Statistics
from keras_odgp.orthogonal.prediction import PriorFactors

SMALLEST_PRECISION = 1e-8  # of a Gaussian in place of a likelihood that is flat, or not concave, at a datum


def call_recording(model: keras.Model, inputs: Any) -> tuple[list[tf.Tensor], dict[OrthogonalGP, tf.Tensor]]:
    """Outputs of a model, and what reaches each of its GP layers, in the order in which it does."""
    reached: dict[OrthogonalGP, tf.Tensor] = {}

    def visitor(layer: Any, layer_inputs: tf.Tensor) -> None:
        reached[layer] = layer_inputs

    with recording.visiting(visitor):
        outputs = model(inputs, training=False)
    return keras.tree.flatten(outputs), reached


def find_heads(model: keras.Model, few: Any, num_columns: int) -> dict[OrthogonalGP, int]:
    """Layers whose moments are the first columns of an output with so many, and the index of that output."""
    outputs, reached = call_recording(model, few)
    heads = {}
    for layer, inputs in reached.items():
        if not layer.return_moments or mixing(layer.posterior.kernel) is not None:
            continue
        mean, variance, _ = layer.marginals(inputs)
        moments = tf.stack([mean, variance], axis=-1).numpy()
        for index, output in enumerate(outputs):
            columns = np.asarray(output)
            is_shape = columns.shape == (*moments.shape[:-1], num_columns)
            if is_shape and np.allclose(columns[..., :2], moments, 1e-4, 1e-6):
                heads[layer] = index
    return heads


def is_gaussian(model: keras.Model) -> bool:
    """Whether a model has Gaussian noise, by the name of its loss or, where that says nothing, by its layers."""
    loss = getattr(model, "loss", None)
    if isinstance(loss, VariationalLoss) and isinstance(loss.likelihood, str):
        return loss.likelihood == "gaussian"
    return any(isinstance(layer, GaussianLikelihood) for layer in model._flatten_layers())


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
