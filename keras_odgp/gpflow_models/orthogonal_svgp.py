"""The orthogonally decoupled posterior as a GPflow model."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import gpflow
import numpy as np
import tensorflow as tf
from check_shapes import check_shapes, inherit_check_shapes
from gpflow.kernels import Kernel
from gpflow.likelihoods import Gaussian, Likelihood, ScalarLikelihood
from gpflow.models.util import inducingpoint_wrapper
from gpflow.posteriors import PrecomputeCacheType

from keras_odgp.numerics import floor_variance
from keras_odgp.orthogonal import OrthogonalPosterior
from keras_odgp.orthogonal.gram import num_features
from keras_odgp.orthogonal.optimal import Statistics, add_statistics
from keras_odgp.orthogonal.variational import OrthogonalCovariance


class OrthogonalSVGP(gpflow.models.GPModel, gpflow.models.training_mixins.ExternalDataTrainingLossMixin):
    """Sparse variational GP with base features and features orthogonal to them.

    Covers SVGP (no orthogonal features), ODVGP (`orthogonal_covariance="prior"`) and SOLVE-GP (`"full"`), with
    inducing points, activations or harmonics in either role.

    Args:
        kernel: GPflow kernel; a zonal one (`keras_odgp.kernels`) for features on the sphere.
        likelihood: GPflow likelihood.
        inducing_variable: Base features, or an array `[M, D]` of inducing points.
        orthogonal_inducing_variable: Orthogonal features, or an array `[K, D]` of points. Defaults to None: plain
            SVGP.
        mean_function: Mean function. Defaults to zero.
        num_latent_gps: Number of latent functions P. Defaults to 1.
        q_mu: Start of the mean of q(u), shape `[M, P]`. Defaults to zero.
        q_sqrt: Start of the root of q(u), shape `[P, M, M]`. Defaults to the identity.
        orthogonal_q_mu: Start of the mean of q(v'), shape `[K, P]`. Defaults to zero.
        orthogonal_q_sqrt: Start of the root of q(v'), shape `[P, K, K]`. Defaults to the identity.
        whiten: Whether q is about whitened features. Defaults to True.
        orthogonal_covariance: `"full"` (SOLVE-GP) or `"prior"` (ODVGP). Defaults to `"full"`.
        num_data: Number of data, needed for mini-batches. Defaults to the size of the data given.

    Example:

    >>> X = np.linspace(-1, 1, 50)[:, None]
    >>> features = keras_odgp.inducing.ActivationFeatures(np.random.randn(5, 2), "softplus")
    >>> model = keras_odgp.gpflow_models.OrthogonalSVGP(
    ...     keras_odgp.kernels.ArcCosine(), gpflow.likelihoods.Gaussian(), features, X[::10].copy()
    ... )
    >>> model.set_optimal_q((X, np.sin(3 * X)))
    >>> mean, variance = model.predict_y(X)
    """

    def __init__(
        self,
        kernel: Kernel,
        likelihood: Likelihood,
        inducing_variable: Any,
        orthogonal_inducing_variable: Any = None,
        *,
        mean_function: gpflow.functions.MeanFunction | None = None,
        num_latent_gps: int = 1,
        q_mu: Any = None,
        q_sqrt: Any = None,
        orthogonal_q_mu: Any = None,
        orthogonal_q_sqrt: Any = None,
        whiten: bool = True,
        orthogonal_covariance: OrthogonalCovariance = "full",
        num_data: int | None = None,
    ) -> None:
        super().__init__(kernel, likelihood, mean_function, num_latent_gps)
        self.inducing_variable = inducingpoint_wrapper(inducing_variable)
        self.num_data = num_data
        self.whiten = whiten
        self.orthogonal_covariance = orthogonal_covariance
        self.q_mu, self.q_sqrt = _variational_parameters(self.inducing_variable, num_latent_gps, q_mu, q_sqrt)
        self.orthogonal_inducing_variable = None
        self.orthogonal_q_mu = self.orthogonal_q_sqrt = None
        if orthogonal_inducing_variable is None and (orthogonal_q_mu is not None or orthogonal_q_sqrt is not None):
            raise ValueError("Got `orthogonal_q_mu` or `orthogonal_q_sqrt` without `orthogonal_inducing_variable`.")
        if orthogonal_covariance == "prior" and orthogonal_q_sqrt is not None:
            raise ValueError("Got `orthogonal_q_sqrt`, but with 'prior' covariance there is none to start.")
        if orthogonal_inducing_variable is not None:
            self.orthogonal_inducing_variable = inducingpoint_wrapper(orthogonal_inducing_variable)
            self.orthogonal_q_mu, self.orthogonal_q_sqrt = _variational_parameters(
                self.orthogonal_inducing_variable, num_latent_gps, orthogonal_q_mu, orthogonal_q_sqrt
            )
            if orthogonal_covariance == "prior":
                self.orthogonal_q_sqrt = None
        self.posterior(None)  # raises now, rather than at the first step, if something does not fit

    def posterior(
        self, precompute_cache: PrecomputeCacheType | str | None = PrecomputeCacheType.TENSOR
    ) -> OrthogonalPosterior:
        """The posterior, by default with its factors computed, for fast predictions."""
        return OrthogonalPosterior.of(self, mean_function=self.mean_function, precompute_cache=precompute_cache)

    @check_shapes("return: []")
    def prior_kl(self) -> tf.Tensor:
        """Divergence of q from the prior."""
        return self.posterior(None).prior_kl()

    @inherit_check_shapes
    def maximum_log_likelihood_objective(self, data: Any) -> tf.Tensor:
        """The ELBO."""
        return self.elbo(data)

    @check_shapes("return: []")
    def elbo(self, data: Any) -> tf.Tensor:
        """Evidence lower bound on data (X, Y), scaled to `num_data` if that is given."""
        X, Y = data
        mean, variance, kl = self.posterior(None).marginals(tf.convert_to_tensor(X))
        self._check_targets(Y, mean.shape[-1])
        mean += self.mean_function(X)
        expectations = self.likelihood.variational_expectations(X, mean, floor_variance(variance), Y)
        scale = tf.constant(1.0, kl.dtype)
        if self.num_data is not None:
            scale = tf.cast(self.num_data, kl.dtype) / tf.cast(tf.shape(X)[0], kl.dtype)
        return tf.reduce_sum(expectations) * scale - kl

    @inherit_check_shapes
    def predict_f(
        self, Xnew: Any, full_cov: bool = False, full_output_cov: bool = False
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Mean and variance, or covariance, of the latent functions at new inputs."""
        return self.posterior(None).fused_predict_f(Xnew, full_cov=full_cov, full_output_cov=full_output_cov)

    def set_optimal_q(self, data: Any, *, batch_size: int = 4096) -> None:
        """Sets q to its optimum for the present hyperparameters, in one pass over the data. Gaussian likelihood only.

        Args:
            data: A pair (X, Y) of arrays, or an iterable of such pairs (a `tf.data.Dataset` in batches), which need
                never be in memory as a whole.
            batch_size: Number of rows at a time if arrays are given.
        """
        if not isinstance(self.likelihood, Gaussian):
            raise TypeError(
                f"The optimal q has a closed form for the Gaussian likelihood only. Got "
                f"{type(self.likelihood).__name__}: "
                "use gpflow.optimizers.NaturalGradient instead."
            )
        posterior = self.posterior(None)
        factors = posterior.prior_factors()

        @tf.function
        def batch_statistics(X: tf.Tensor, Y: tf.Tensor) -> Statistics:
            precision = 1.0 / self.likelihood.variance_at(X)
            return posterior.statistics(factors, X, Y - self.mean_function(X), precision)

        compiled, total = None, None
        for X, Y in _batches(data, batch_size, self.q_mu.dtype):
            self._check_targets(Y, self.num_latent_gps)
            if compiled is None:  # for batches of any length
                specs = (tf.TensorSpec([None, *array.shape[1:]], array.dtype) for array in (X, Y))
                compiled = batch_statistics.get_concrete_function(*specs)
            total = add_statistics(total, compiled(X, Y))
        if total is None:
            raise ValueError("Expected data with at least one batch. Got none.")
        posterior.set_optimal_q(factors, total)

    def _check_targets(self, Y: Any, num_outputs: int) -> None:
        """Raises if a likelihood that sees every output by itself is given another number of targets."""
        if isinstance(self.likelihood, ScalarLikelihood) and np.ndim(Y) > 0 and Y.shape[-1] not in (None, num_outputs):
            raise ValueError(
                f"Expected targets of shape [N, {num_outputs}], one column for each output. Got shape {tuple(Y.shape)}."
            )


def _variational_parameters(
    features: Any, num_outputs: int, mu: Any, sqrt: Any
) -> tuple[gpflow.Parameter, gpflow.Parameter]:
    size = num_features(features)
    mu = np.zeros((size, num_outputs)) if mu is None else mu
    sqrt = np.tile(np.eye(size), (num_outputs, 1, 1)) if sqrt is None else sqrt
    if np.ndim(sqrt) != 3 or np.shape(sqrt)[-1] != np.shape(sqrt)[-2]:
        raise ValueError(
            f"Expected a root of q of shape ({num_outputs}, {size}, {size}). Got shape {tuple(np.shape(sqrt))}."
        )
    return gpflow.Parameter(mu), gpflow.Parameter(sqrt, transform=gpflow.utilities.triangular())


def _batches(data: Any, batch_size: int, dtype: tf.DType) -> Iterator[tuple[tf.Tensor, tf.Tensor]]:
    """Pairs of tensors of one dtype, from a pair of arrays or from an iterable of pairs."""
    is_pair = isinstance(data, (tuple, list)) and len(data) == 2 and hasattr(data[0], "shape")
    batches: Iterable[Any] = data
    if is_pair:
        inputs, targets = data
        batches = ((inputs[i : i + batch_size], targets[i : i + batch_size]) for i in range(0, len(inputs), batch_size))
    for X, Y in batches:
        yield tf.cast(tf.convert_to_tensor(X), dtype), tf.cast(tf.convert_to_tensor(Y), dtype)
