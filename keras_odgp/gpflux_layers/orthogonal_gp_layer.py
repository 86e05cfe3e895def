"""The orthogonally decoupled posterior as a GPflux layer."""

from __future__ import annotations

from typing import Any

import gpflow
import numpy as np
import tensorflow as tf
from gpflow.inducing_variables import (
    FallbackSeparateIndependentInducingVariables,
    InducingVariables,
    MultioutputInducingVariables,
    SharedIndependentInducingVariables,
)
from gpflow.kernels import Kernel, MultioutputKernel, SharedIndependent
from gpflow.mean_functions import MeanFunction
from gpflow.posteriors import PrecomputeCacheType
from gpflux.layers import GPLayer
from gpflux.sampling.sample import Sample

from keras_odgp.checks import check_count
from keras_odgp.inducing import SphericalHarmonics
from keras_odgp.numerics import floor_variance
from keras_odgp.orthogonal import OrthogonalPosterior
from keras_odgp.orthogonal.gram import latents, mixing, num_features
from keras_odgp.orthogonal.posterior import check_orthogonal_covariance
from keras_odgp.orthogonal.variational import OrthogonalCovariance
from keras_odgp.sampling import FunctionSamples


class OrthogonalGPLayer(GPLayer):
    """A `gpflux.layers.GPLayer` with base features and features orthogonal to them.

    Stands wherever a `GPLayer` does: in a `gpflux.models.DeepGP` or a `tf_keras` model, next to other layers of GPflux.
    As there, calling it gives a distribution, of which the next layer takes a sample, and training adds the divergence
    from the prior, less the log-density of priors on kernel parameters, divided by `num_data`.

    Args:
        kernel: A GPflow kernel. One that is not multi-output is shared by all outputs.
        inducing_variable: Base features; shared by all outputs, unless they are multi-output.
        num_data: Number of data in the training set.
        orthogonal_inducing_variable: Orthogonal features, likewise. Defaults to None: the model of `GPLayer`.
        mean_function: A GPflow mean function. Defaults to the identity, with a warning if `verbose`.
        orthogonal_covariance: `"full"` (SOLVE-GP) or `"prior"` (ODVGP). Defaults to `"full"`.
        num_samples: Number of samples that the distribution turns into. Defaults to None: one, without an axis for it.
        full_cov: Whether the distribution is joint over inputs. Defaults to False.
        full_output_cov: Whether it is joint over outputs. Defaults to False.
        num_latent_gps: Number of latent processes. Defaults to what kernel or features say, and must be given if these
            are not multi-output.
        whiten: Whether q is about whitened features. Defaults to True.
        name: Name of the layer.
        verbose: Whether to warn of the default mean function. Defaults to True.

    Example:

    >>> import gpflux
    >>> from keras_odgp import gpflux_layers
    >>> x = np.random.randn(30, 2)
    >>> features = keras_odgp.inducing.ActivationFeatures(np.random.randn(5, 3), "softplus")
    >>> points = gpflow.inducing_variables.InducingPoints(x[:4].copy())
    >>> layer = gpflux_layers.OrthogonalGPLayer(
    ...     keras_odgp.kernels.ArcCosine(), features, 30, points, gpflow.mean_functions.Zero(), num_latent_gps=1
    ... )
    >>> model = gpflux.models.DeepGP([layer], gpflow.likelihoods.Gaussian(0.1))
    >>> mean, variance = model.predict_f(x)
    >>> variance.shape.as_list()
    [30, 1]
    """

    def __init__(
        self,
        kernel: Kernel,
        inducing_variable: InducingVariables,
        num_data: int,
        orthogonal_inducing_variable: InducingVariables | None = None,
        mean_function: MeanFunction | None = None,
        *,
        orthogonal_covariance: OrthogonalCovariance = "full",
        num_samples: int | None = None,
        full_cov: bool = False,
        full_output_cov: bool = False,
        num_latent_gps: int | None = None,
        whiten: bool = True,
        name: str | None = None,
        verbose: bool = True,
    ) -> None:
        check_count("num_data", num_data)
        check_orthogonal_covariance(orthogonal_covariance)
        check_type("kernel", kernel, Kernel)
        if mean_function is not None:
            check_type("mean_function", mean_function, MeanFunction)
        base = _multioutput("inducing_variable", inducing_variable)
        orthogonal = None
        if orthogonal_inducing_variable is not None:
            orthogonal = _multioutput("orthogonal_inducing_variable", orthogonal_inducing_variable)
        num_latents = _num_latents(kernel, base, orthogonal, num_latent_gps)
        super().__init__(
            kernel if isinstance(kernel, MultioutputKernel) else SharedIndependent(kernel, num_latents),
            base,
            num_data,
            mean_function,
            num_samples=num_samples,
            full_cov=full_cov,
            full_output_cov=full_output_cov,
            whiten=whiten,
            name=name,
            verbose=verbose,
        )
        self.orthogonal_inducing_variable = orthogonal
        self.orthogonal_covariance = orthogonal_covariance
        self.orthogonal_q_mu = self.orthogonal_q_sqrt = None
        if orthogonal is not None:
            size = num_features(orthogonal)
            self.orthogonal_q_mu = gpflow.Parameter(np.zeros((size, num_latents)), name=f"{self.name}_orthogonal_q_mu")
            if orthogonal_covariance == "full":
                self.orthogonal_q_sqrt = gpflow.Parameter(
                    np.tile(np.eye(size), (num_latents, 1, 1)),
                    transform=gpflow.utilities.triangular(),
                    name=f"{self.name}_orthogonal_q_sqrt",
                )
        self._is_called, self._kl_of_call = False, None
        self.posterior(None)  # raises now, rather than at the first step, if something does not fit

    def posterior(
        self, precompute_cache: PrecomputeCacheType | str | None = PrecomputeCacheType.TENSOR
    ) -> OrthogonalPosterior:
        """The posterior, without mean function, by default with its factors computed, for fast predictions."""
        return OrthogonalPosterior.of(self, precompute_cache=precompute_cache)

    def predict(
        self, inputs: Any, *, full_cov: bool = False, full_output_cov: bool = False
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Mean `[..., N, P]`, mean function included, and covariance at inputs `[..., N, D]`, in GPflow's shapes."""
        posterior = self.posterior(None)
        inputs = _with_width(tf.convert_to_tensor(inputs), width_of(posterior))
        if full_cov:
            mean, covariance = posterior.fused_predict_f(inputs, full_cov=True, full_output_cov=full_output_cov)
            return mean + self._mean_at(inputs), covariance
        # Only marginals are needed: leading axes are more points.
        flat = tf.reshape(inputs, [-1, inputs.shape[-1] or tf.shape(inputs)[-1]])
        mean, covariance, kl = posterior.marginals(
            flat, full_output_cov=full_output_cov, name=f" of layer {self.name!r}"
        )
        if self._is_called:
            self._kl_of_call = kl
        lead = tf.shape(inputs)[:-1]
        mean, covariance = (tf.reshape(part, tf.concat([lead, part.shape[1:]], axis=0)) for part in (mean, covariance))
        return mean + self._mean_at(inputs), covariance if full_output_cov else floor_variance(covariance)

    def _mean_at(self, inputs: tf.Tensor) -> tf.Tensor:
        mean, width = self.mean_function(inputs), num_outputs(self)
        if mean.shape[-1] not in (None, 1, width):
            raise ValueError(
                f"Expected a mean function with {width} outputs, as many as layer {self.name!r} has. Got "
                f"{mean.shape[-1]} of {type(self.mean_function).__name__}: use `gpflow.mean_functions.Linear` where "
                "the width changes, or `Zero`."
            )
        return mean

    def call(self, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        # As in GPLayer, except that the divergence comes from the factorisations that the moments had to make, and
        # that a kernel may be frozen as a whole.
        self._is_called = True
        try:
            outputs = super(GPLayer, self).call(inputs, *args, **kwargs)
            kl = self._kl_of_call
        finally:
            self._is_called, self._kl_of_call = False, None
        loss = tf.zeros([], self.dtype)  # Keras 2 wants a loss at every call
        if kwargs.get("training"):
            loss = self.prior_kl() if kl is None else kl
            for parameter in self.kernel.trainable_parameters:
                loss -= parameter.log_prior_density()
            loss /= self.num_data
        self.add_loss(loss)
        self.add_metric(loss, name=f"{self.name}_prior_kl", aggregation="mean")
        return outputs

    def prior_kl(self) -> tf.Tensor:
        """Divergence of q from the prior, a scalar."""
        return self.posterior(None).prior_kl()

    def sample(self, seed: int | None = None) -> Sample:
        """A function drawn from the posterior, mean function included, from inputs `[N, D]` to values `[N, P]`.

        It is one and the same function at every call, and keeps the parameters that the layer has now.

        Args:
            seed: Seed. Defaults to a new one at every call, which `tf.random.set_seed` determines.
        """
        if seed is None:
            seed = int(tf.random.uniform([], maxval=tf.int32.max, dtype=tf.int32))
        functions = FunctionSamples(self.posterior(None), 1, seed)
        return _FunctionSample(functions) + gpflow.utilities.freeze(self.mean_function)


class _FunctionSample(Sample):
    def __init__(self, functions: FunctionSamples) -> None:
        self._functions = functions

    def __call__(self, X: Any) -> tf.Tensor:
        return self._functions(X)[0]


def num_outputs(layer: GPLayer) -> int:
    """Number of outputs, which a kernel mixes from latent processes or has one for each."""
    W = mixing(layer.kernel)
    return layer.num_latent_gps if W is None else int(W.shape[0])


def width_of(posterior: OrthogonalPosterior) -> int | None:
    """Width D of the inputs, as far as the features tell."""
    parts = latents(posterior.kernel, posterior.inducing_variable, posterior.orthogonal_inducing_variable)
    for kernel, *features in parts:
        for feature in features:
            if isinstance(feature, SphericalHarmonics) and kernel.active_dims == slice(None):
                return feature.dimension - 1
            if feature is not None and feature.shape is not None and feature.shape[1] is not None:
                return int(feature.shape[1])
    return None


def _with_width(inputs: tf.Tensor, width: int | None) -> tf.Tensor:
    """The inputs, their width known also where they come from a `DeepGP`, which leaves it open."""
    if len(inputs.shape) < 2 or width not in (None, inputs.shape[-1] or width):
        raise ValueError(f"Expected inputs of shape [..., N, {width or 'D'}]. Got shape {tuple(inputs.shape)}.")
    return tf.ensure_shape(inputs, [*inputs.shape[:-1], width or inputs.shape[-1]])


def check_type(argument: str, value: Any, expected: type) -> None:
    """Raises unless the value is of the type."""
    if not isinstance(value, expected):
        raise TypeError(f"Expected `{argument}` to be a {expected.__module__}.{expected.__name__}. Got: {value!r}.")


def _multioutput(argument: str, features: Any) -> MultioutputInducingVariables:
    check_type(argument, features, InducingVariables)
    if isinstance(features, MultioutputInducingVariables):
        return features
    return SharedIndependentInducingVariables(features)


def _num_latents(kernel: Kernel, base: Any, orthogonal: Any, given: int | None) -> int:
    """The number of latent processes on which all agree that have an opinion."""
    if given is not None:
        check_count("num_latent_gps", given)
    counts = {kernel.num_latent_gps} if isinstance(kernel, MultioutputKernel) else set()
    counts |= {
        len(features.inducing_variables)
        for features in (base, orthogonal)
        if isinstance(features, FallbackSeparateIndependentInducingVariables)
    }
    counts |= set() if given is None else {given}
    if len(counts) != 1:
        raise ValueError(
            "Expected one number of latent processes, from a multi-output kernel, separate inducing variables or "
            f"`num_latent_gps`. Got: {sorted(counts)}."
        )
    return counts.pop()
