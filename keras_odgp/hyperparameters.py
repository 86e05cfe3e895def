"""Start values of the kernel and the noise of a model of one GP layer."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import scipy.optimize
import tensorflow as tf

from keras_odgp.heads import call_recording, flatten_targets, gaussian_sites, site_statistics
from keras_odgp.layers import GaussianLikelihood, OrthogonalGP
from keras_odgp.likelihoods import OutputLikelihood
from keras_odgp.numerics import float_context

MOST_EXAMPLES = 1000
MOST_ITERATIONS = 25
FARTHEST = 5.0  # that a parameter goes from where it is, in unconstrained values: about a factor of 150 downwards


def start_hyperparameters(model: keras.Model, layer: OrthogonalGP, index: int, examples: Any, targets: Any) -> None:
    """Moves the kernel and the noise to where the ELBO with optimal q is best, for some of the data, by L-BFGS.

    These are a handful of numbers that few data tell well, but at the pace of a stochastic optimiser they take
    thousands of steps. The data stand for themselves alone: as if there were more of them, q would overfit them. At its
    optimum q does not enter the gradient, so it is set, and then held, at each evaluation.
    """
    variables = _variables(model, layer)
    start = _flatten(variables)
    if start.size == 0:
        return
    inputs, chosen = keras.tree.map_structure(
        lambda part: tf.convert_to_tensor(part[:MOST_EXAMPLES]), (examples, targets)
    )
    y = flatten_targets(model, chosen)[index]
    likelihood = OutputLikelihood("gaussian")

    @tf.function(autograph=False)  # a few dozen evaluations: worth compiling
    def evaluate() -> tuple[tf.Tensor, list[tf.Tensor]]:
        outputs, reached = call_recording(model, inputs)
        sites = gaussian_sites(y, tf.cast(outputs[index], layer.compute_dtype))
        with float_context(layer.compute_dtype):
            factors = layer.posterior.prior_factors()
            layer.posterior.set_optimal_q(factors, site_statistics(layer, factors, reached[layer], sites))
        with tf.GradientTape() as tape:
            outputs, _ = call_recording(model, inputs)
            fit = tf.reduce_mean(likelihood.variational_expectations(y, outputs[index]))
            with float_context(layer.compute_dtype):
                kl = layer.posterior.prior_kl()
            loss = tf.cast(kl, fit.dtype) / tf.cast(sites.num_data, fit.dtype) - fit
        return loss, tape.gradient(loss, variables, unconnected_gradients="zero")

    def objective(values: np.ndarray) -> tuple[float, np.ndarray]:
        _assign(variables, values)
        loss, gradient = evaluate()
        return float(loss), np.concatenate([np.reshape(part, -1) for part in gradient]).astype(np.float64)

    try:
        best = scipy.optimize.minimize(
            objective,
            start,
            jac=True,
            method="L-BFGS-B",
            bounds=[(value - FARTHEST, value + FARTHEST) for value in start],
            options={"maxiter": MOST_ITERATIONS},
        )
        found = best.x if np.isfinite(best.fun) and np.isfinite(best.x).all() else start
    except tf.errors.InvalidArgumentError:  # a covariance that could not be factorised
        found = start
    _assign(variables, found)


def _variables(model: keras.Model, layer: OrthogonalGP) -> list[tf.Variable]:
    """Those of the kernel, and of the layers that append noise, which training would change."""
    kernel = list(layer.posterior.kernel.trainable_variables) if layer.trainable else []
    likelihoods = (part for part in model._flatten_layers() if isinstance(part, GaussianLikelihood))
    return kernel + [variable.value for part in likelihoods for variable in part.trainable_variables]


def _flatten(variables: list[tf.Variable]) -> np.ndarray:
    return np.concatenate([np.zeros(0), *(np.reshape(variable.numpy(), -1) for variable in variables)])


def _assign(variables: list[tf.Variable], values: np.ndarray) -> None:
    sizes = [int(np.prod(variable.shape)) for variable in variables]
    for variable, part in zip(variables, np.split(values, np.cumsum(sizes)[:-1])):
        variable.assign(tf.cast(part.reshape(variable.shape), variable.dtype))
