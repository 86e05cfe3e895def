"""From moments of latent functions, one for each sample of the hidden layers, to distributions of targets."""

from __future__ import annotations

import math
from typing import Any

import gpflow
import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp
from gpflow.likelihoods import Likelihood, MonteCarloLikelihood, ScalarLikelihood

from keras_odgp.likelihoods import OutputLikelihood
from keras_odgp.numerics import float_context
from keras_odgp.predictive.factors import stratified_normal
from keras_odgp.predictive.mixture import LATENT_VALUES

tfd = tfp.distributions

_LATENT_SEED = 2**30  # index of their noise, beyond those of layers
_QUADRATURE = gpflow.quadrature.hermgauss(20)  # as many nodes as GPflow takes
_SUPPORT: dict[type[Likelihood], tuple[float, float]] = {
    gpflow.likelihoods.Gamma: (0.0, np.inf),
    gpflow.likelihoods.Exponential: (0.0, np.inf),
    gpflow.likelihoods.Beta: (0.0, 1.0),
    gpflow.likelihoods.Poisson: (-1.0, np.inf),
    gpflow.likelihoods.Bernoulli: (-1.0, 1.0),
}


class Observations:
    """What a likelihood says of targets, given components: outputs of a model `[..., S, units, columns]`.

    Args:
        likelihood: The likelihood.
        seed: Seed of samples of latent functions, for likelihoods without quadrature.
    """

    def __init__(self, likelihood: OutputLikelihood, seed: int) -> None:
        self.likelihood, self._seed = likelihood, seed

    def moments(self, components: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Mean and variance of the targets, both `[..., units]`, by the law of total variance."""
        if components.shape[-3] == 1 and not isinstance(self._gpflow(components), MonteCarloLikelihood):
            return self.likelihood.mean_and_variance(tf.squeeze(components, -3))
        mean, variance = self._component_moments(components)  # [..., S, P]
        total = tf.reduce_mean(mean, axis=-2, keepdims=True)
        return total[..., 0, :], tf.reduce_mean(variance + tf.square(mean - total), axis=-2)

    def noise(self, components: tf.Tensor) -> tf.Tensor:
        """Expected variance of the targets given the latent functions, `[..., units]`."""
        self.likelihood.check_variance()
        F, X, weights = self._nodes(components)
        with float_context(components.dtype):
            variance = self._gpflow(components).conditional_variance(X, F)
        variance = tf.reshape(variance, self._node_shape(components, weights))
        return tf.reduce_mean(tf.einsum("...kp,k->...p", variance, weights), axis=-2)

    def log_density(self, y: Any, components: tf.Tensor) -> tf.Tensor:
        """Logarithm of the predictive density, `[...]`."""
        y = self.likelihood.align(y, components[..., 0, :, :])[..., None, :]
        width = tf.concat([tf.shape(components)[:-2], tf.shape(y)[-1:]], axis=0)
        y = tf.ensure_shape(tf.broadcast_to(y, width), [*components.shape[:-2], y.shape[-1]])
        if not isinstance(self._gpflow(components), MonteCarloLikelihood):
            values = self.likelihood.log_density(y, components)
        else:
            F, X, weights = self._nodes(components)
            shape = self._node_shape(components, weights)[:-1]
            y = tf.broadcast_to(y[..., None, :], tf.concat([shape, tf.shape(y)[-1:]], axis=0))
            y = tf.reshape(y, [-1, y.shape[-1]])
            with float_context(components.dtype):
                y = tf.cast(y, tf.int32) if self.likelihood.is_softmax else y
                logs = self._gpflow(components).log_prob(X, F, y)
            values = tf.reduce_logsumexp(tf.reshape(logs, shape) + tf.math.log(weights), axis=-1)
        count = tf.cast(tf.shape(values)[-1], values.dtype)
        return tf.reduce_logsumexp(values, axis=-1) - tf.math.log(count)

    def units(self, components: tf.Tensor) -> Any:
        """The distribution of each target for each component, a batch `[..., S, units]`.

        Raises:
            NotImplementedError: If the likelihood has no known distribution.
        """
        self.likelihood.check_variance()
        likelihood = self._gpflow(components)
        if isinstance(likelihood, gpflow.likelihoods.Gaussian):
            mean, variance = self._component_moments(components)
            return tfd.Normal(mean, tf.sqrt(variance))
        if isinstance(likelihood, gpflow.likelihoods.Bernoulli):
            return tfd.Bernoulli(probs=self._component_moments(components)[0], dtype=components.dtype)
        F, X, weights = self._nodes(components)
        with float_context(components.dtype):
            moments = likelihood.conditional_mean(X, F), likelihood.conditional_variance(X, F)
        shape = self._node_shape(components, weights)
        mean, variance = (tf.einsum("...kp->...pk", tf.reshape(part, shape)) for part in moments)
        return tfd.MixtureSameFamily(tfd.Categorical(probs=weights), _conditional(likelihood, mean, variance))

    def distribution(self, components: tf.Tensor) -> Any:
        """The joint distribution of the targets of each datum, a batch `[...]` of events `[units]`, or of labels."""
        if self.likelihood.is_softmax:
            return tfd.Categorical(probs=self.moments(components)[0])
        units = tfd.Independent(self.units(components), 1)
        return tfd.MixtureSameFamily(tfd.Categorical(logits=tf.zeros(components.shape[-3], components.dtype)), units)

    def quantiles(self, components: tf.Tensor, q: tf.Tensor) -> tf.Tensor:
        """Quantiles of each target, `[Q, ..., units]`: the least y at which the distribution function reaches q."""
        units = self.units(components)
        mean, variance = self.moments(components)
        q = tf.reshape(tf.cast(q, mean.dtype), [-1, *([1] * len(mean.shape))])
        # No distribution has less than q below, or more than q above, these bounds (Cantelli); slack for rounding.
        deviation = 1.01 * tf.sqrt(variance)
        low = mean - deviation * tf.sqrt(1.0 / q - 1.0) - 1e-6 * deviation
        high = mean + deviation * tf.sqrt(q / (1.0 - q)) + 1e-6 * deviation
        likelihood = self._gpflow(components)
        least, most = next(
            (bounds for cls, bounds in _SUPPORT.items() if isinstance(likelihood, cls)), (-np.inf, np.inf)
        )
        is_discrete = isinstance(likelihood, (gpflow.likelihoods.Poisson, gpflow.likelihoods.Bernoulli))
        low, high = tf.maximum(low, least), tf.minimum(high + float(is_discrete), most)
        for _ in range(70 if mean.dtype == tf.float64 else 40):
            middle = 0.5 * (low + high)
            at = tf.floor(middle) if is_discrete else middle
            reached = tf.reduce_mean(_distribution_function(units, at[..., None, :], is_discrete), axis=-2) >= q
            low, high = tf.where(reached, low, middle), tf.where(reached, middle, high)
        return tf.floor(high) if is_discrete else high

    def _gpflow(self, components: tf.Tensor) -> Likelihood:
        return self.likelihood._gpflow(components.shape[-2])

    def _component_moments(self, components: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        likelihood = self._gpflow(components)
        if not isinstance(likelihood, MonteCarloLikelihood):
            return self.likelihood.mean_and_variance(components)
        F, X, weights = self._nodes(components)  # GPflow would draw other samples at every call
        with float_context(components.dtype):
            parts = likelihood.conditional_mean(X, F), likelihood.conditional_variance(X, F)
        mean, variance = (tf.reshape(part, self._node_shape(components, weights)) for part in parts)
        total = tf.einsum("...kp,k->...p", mean, weights)
        second = tf.einsum("...kp,k->...p", variance + tf.square(mean), weights)
        return total, second - tf.square(total)

    def _nodes(self, components: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Values of latent functions, and of what travels in GPflow's X, both `[n, units]`, and weights `[K]`.

        Nodes of a quadrature if each target has a latent function of its own, otherwise samples.
        """
        num, units = components.shape[-3:-1]
        if isinstance(self._gpflow(components), ScalarLikelihood):
            nodes, weights = (tf.constant(part, components.dtype) for part in _QUADRATURE)
            offsets, weights = math.sqrt(2.0) * nodes[:, None], weights / math.sqrt(math.pi)
        else:
            draws = math.ceil(LATENT_VALUES / num)
            noise = stratified_normal([num * draws, units], (self._seed, _LATENT_SEED), components.dtype)
            offsets, weights = tf.reshape(noise, [num, draws, units]), tf.fill([draws], 1.0 / draws)
            weights = tf.cast(weights, components.dtype)
        F = components[..., None, :, 0] + tf.sqrt(components[..., None, :, 1]) * offsets  # [..., S, K, P]
        X = components[..., None, :, 2] if components.shape[-1] == 3 else components[..., None, :, 0]
        X = tf.broadcast_to(X, tf.shape(F))
        return tf.reshape(F, [-1, units]), tf.reshape(X, [-1, units]), weights

    def _node_shape(self, components: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
        shape = tf.shape(components)
        return tf.concat([shape[:-2], tf.shape(weights), shape[-2:-1]], axis=0)  # [..., S, K, P]


def _distribution_function(units: Any, y: tf.Tensor, is_discrete: bool) -> tf.Tensor:
    if isinstance(units, tfd.Bernoulli):
        return tf.where(y >= 1.0, tf.ones_like(y), tf.where(y < 0.0, tf.zeros_like(y), 1.0 - units.probs))
    if is_discrete:
        return tf.where(y < 0.0, tf.zeros_like(y), units.cdf(tf.maximum(y, 0.0)))
    return units.cdf(y)


def _conditional(likelihood: Likelihood, mean: tf.Tensor, variance: tf.Tensor) -> Any:
    """The distribution of y given f, from its mean and variance, which fix it."""
    if isinstance(likelihood, gpflow.likelihoods.StudentT):
        df = tf.cast(likelihood.df, mean.dtype)
        return tfd.StudentT(df, mean, tf.sqrt(variance * (df - 2.0) / df))
    if isinstance(likelihood, gpflow.likelihoods.Gamma):
        return tfd.Gamma(tf.square(mean) / variance, mean / variance)
    if isinstance(likelihood, gpflow.likelihoods.Beta):
        scale = mean * (1.0 - mean) / variance - 1.0
        return tfd.Beta(mean * scale, (1.0 - mean) * scale)
    if isinstance(likelihood, gpflow.likelihoods.Poisson):
        return tfd.Poisson(mean)
    if isinstance(likelihood, gpflow.likelihoods.Exponential):
        return tfd.Exponential(1.0 / mean)
    raise NotImplementedError(
        f"No distribution of targets is known for the likelihood {type(likelihood).__name__}: `predict` and "
        "`log_density` work, but `distribution`, `sample` and `quantiles` do not."
    )
