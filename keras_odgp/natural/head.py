"""A last GP layer whose q is moved in natural parameters."""

from __future__ import annotations

import tensorflow as tf

from keras_odgp.heads import Sites, gaussian_sites, site_statistics, tangent_sites
from keras_odgp.layers import OrthogonalGP
from keras_odgp.likelihoods import OutputLikelihood
from keras_odgp.numerics import float_context
from keras_odgp.orthogonal.gram import gram
from keras_odgp.orthogonal.marginals import whiten_q
from keras_odgp.orthogonal.optimal import Statistics
from keras_odgp.orthogonal.posterior import OrthogonalPosterior

SMALLEST_KL_WEIGHT = 1e-3


class Head:
    """A last GP layer during training: the sums that make its q, and running sums over batches.

    Args:
        layer: The layer.
        index: Which output of the model its moments reach.
        likelihood: The likelihood of that output; None for the closed form of Gaussian noise.
    """

    def __init__(self, layer: OrthogonalGP, index: int, likelihood: OutputLikelihood | None) -> None:
        self.layer, self.index, self._likelihood = layer, index, likelihood
        with float_context(layer.compute_dtype):
            self._present = Statistics(*(tf.Variable(part) for part in _statistics_of_q(layer.posterior)))
        self._running = Statistics(*(tf.Variable(tf.zeros_like(part)) for part in self._present))
        self._count = tf.Variable(tf.zeros([], layer.compute_dtype))

    def update(
        self,
        inputs: tf.Tensor,
        y: tf.Tensor,
        weights: tf.Tensor | None,
        output: tf.Tensor,
        *,
        decay: tf.Tensor,
        rate: tf.Tensor,
    ) -> None:
        """Adds a batch to the running sums, and moves q towards its optimum under them."""
        layer = self.layer
        output, decay, rate = (tf.cast(part, layer.compute_dtype) for part in (output, decay, rate))
        with float_context(layer.compute_dtype):
            factors = layer.posterior.prior_factors()
        sites = self._sites(y, output)
        if weights is not None:
            sites = sites.weighted(weights)
        count = self._count.assign(decay * self._count + sites.num_data)
        # The less the divergence counts, the more do the data: with a KL warm-up q is the optimum of the warmed loss.
        kl_weight = tf.maximum(tf.cast(tf.convert_to_tensor(layer.kl_weight), count.dtype), SMALLEST_KL_WEIGHT)
        scale = tf.cast(layer.num_data, count.dtype) / (kl_weight * count)
        batch = site_statistics(layer, factors, inputs, sites)
        for present, running, new in zip(self._present, self._running, batch):
            total = running.assign(decay * running + new)
            present.assign_add(rate * (scale * total - present))
        with float_context(layer.compute_dtype):
            layer.posterior.set_optimal_q(factors, Statistics(*map(tf.convert_to_tensor, self._present)))

    def _sites(self, y: tf.Tensor, output: tf.Tensor) -> Sites:
        return gaussian_sites(y, output) if self._likelihood is None else tangent_sites(self._likelihood, y, output)


def _statistics_of_q(posterior: OrthogonalPosterior) -> Statistics:
    """The sums under which the present q is optimal, shapes `[P, R, R]` and `[R, P]`."""
    q = posterior.q
    if not posterior.whiten:
        features = (posterior.inducing_variable, posterior.orthogonal_inducing_variable)
        q = whiten_q(gram(posterior.kernel, *features), q)
    parts = [(q.mu, q.sqrt)] if q.orthogonal_mu is None else [(q.mu, q.sqrt), (q.orthogonal_mu, q.orthogonal_sqrt)]
    blocks, projections = [], []
    for mu, sqrt in parts:
        identity = tf.eye(mu.shape[0], batch_shape=[mu.shape[1]], dtype=mu.dtype)
        precision = identity if sqrt is None else tf.linalg.cholesky_solve(sqrt, identity)
        projections.append(tf.einsum("pmk,kp->mp", precision, mu))
        blocks.append(tf.linalg.LinearOperatorFullMatrix(precision - identity))
    return Statistics(tf.linalg.LinearOperatorBlockDiag(blocks).to_dense(), tf.concat(projections, axis=0))
