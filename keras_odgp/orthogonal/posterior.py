"""The orthogonally decoupled posterior as a GPflow posterior object: the one implementation behind every surface."""

from __future__ import annotations

from typing import Any

import gpflow
import tensorflow as tf
from check_shapes import inherit_check_shapes
from gpflow.inducing_variables import InducingVariables
from gpflow.kernels import Kernel, MultioutputKernel
from gpflow.posteriors import AbstractPosterior, PrecomputeCacheType, PrecomputedValue

from keras_odgp.covariances.prepared import feature_map
from keras_odgp.covariances.stationary import evaluate_each
from keras_odgp.orthogonal.cached import Cache, precompute, predict_covariances, predict_marginals
from keras_odgp.orthogonal.degeneracy import check_orthogonal_features
from keras_odgp.orthogonal.gram import cross, gram, latents, mixing, num_features
from keras_odgp.orthogonal.marginals import Marginals, marginals, whiten_q
from keras_odgp.orthogonal.optimal import Statistics, optimal_q, statistics, unwhiten_q
from keras_odgp.orthogonal.prediction import (
    Factors,
    PriorFactors,
    VarianceTerms,
    factorise,
    factorise_prior,
    variance_terms,
)
from keras_odgp.orthogonal.variational import (
    OrthogonalCovariance,
    Variational,
    check_shapes_of,
    variational,
    whitened_kl,
)


class OrthogonalPosterior(AbstractPosterior):
    r"""Posterior $q(f)$ of a GP with base features u and features v that are orthogonalised against them.

    The prior splits into independent parts, $u$ and $v' = v - K_{vu} K_{uu}^{-1} u$, and so does $q(u)\, q(v')$.
    Without orthogonal features it is the posterior of SVGP; `orthogonal_covariance="prior"` keeps the covariance of
    v' at its prior, as ODVGP does; `"full"` is SOLVE-GP.

    Args:
        kernel: A GPflow kernel, multi-output kernels included.
        inducing_variable: Base features.
        q_mu: Mean of q(u), shape `[M, P]`.
        q_sqrt: Lower triangular root of the covariance of q(u), shape `[P, M, M]`.
        orthogonal_inducing_variable: Orthogonal features, or None.
        orthogonal_q_mu: Mean of q(v'), shape `[K, P]`.
        orthogonal_q_sqrt: Root of the covariance of q(v'), shape `[P, K, K]`; None for
            `orthogonal_covariance="prior"`.
        whiten: Whether q is about whitened features.
        orthogonal_covariance: `"full"` or `"prior"`.
        mean_function: Mean function of the GP, or None.
        precompute_cache: As in GPflow: `"tensor"`, `"variable"` or None (no cache).

    Example:

    >>> points = gpflow.inducing_variables.InducingPoints(np.random.randn(4, 2))
    >>> posterior = keras_odgp.orthogonal.OrthogonalPosterior(
    ...     gpflow.kernels.Matern52(), points, tf.ones([4, 1], tf.float64), tf.eye(4, dtype=tf.float64)[None]
    ... )
    >>> mean, variance = posterior.fused_predict_f(tf.zeros([5, 2], tf.float64))
    >>> mean.shape.as_list()
    [5, 1]

    References:

    - Salimbeni et al., Orthogonally decoupled variational Gaussian processes, NeurIPS 2018.
    - Shi, Titsias and Mnih, Sparse orthogonal variational inference for Gaussian processes, AISTATS 2020.
    """

    def __init__(
        self,
        kernel: Kernel,
        inducing_variable: InducingVariables,
        q_mu: Any,
        q_sqrt: Any,
        orthogonal_inducing_variable: InducingVariables | None = None,
        orthogonal_q_mu: Any = None,
        orthogonal_q_sqrt: Any = None,
        *,
        whiten: bool = True,
        orthogonal_covariance: OrthogonalCovariance = "full",
        mean_function: gpflow.functions.MeanFunction | None = None,
        precompute_cache: PrecomputeCacheType | str | None = None,
    ) -> None:
        super().__init__(kernel, inducing_variable, mean_function=mean_function)
        del self.X_data  # GPflow's name for what is called inducing_variable everywhere else
        check_orthogonal_covariance(orthogonal_covariance)
        num_latents = q_sqrt.shape[0]
        if isinstance(kernel, MultioutputKernel) and kernel.num_latent_gps != num_latents:
            raise ValueError(
                f"Expected q for {kernel.num_latent_gps} latent processes, as the kernel has. Got q for {num_latents}."
            )
        check_shapes_of((q_mu, q_sqrt), inducing_variable, num_outputs=num_latents, prefix="")
        if orthogonal_inducing_variable is not None:
            _check_orthogonal_q(orthogonal_q_mu, orthogonal_q_sqrt, orthogonal_covariance)
            orthogonal_q = (orthogonal_q_mu, orthogonal_q_sqrt)
            check_shapes_of(orthogonal_q, orthogonal_inducing_variable, num_outputs=num_latents, prefix="orthogonal_")
        check_orthogonal_features(kernel, inducing_variable, orthogonal_inducing_variable)
        processes = latents(kernel, inducing_variable, orthogonal_inducing_variable)
        if len(processes) not in (1, num_latents):
            raise ValueError(
                f"Expected q for {len(processes)} latent processes, one for each kernel. Got q for {num_latents}."
            )
        self.inducing_variable = inducing_variable
        self.orthogonal_inducing_variable = orthogonal_inducing_variable
        self.q_mu, self.q_sqrt = q_mu, q_sqrt
        self.orthogonal_q_mu, self.orthogonal_q_sqrt = orthogonal_q_mu, orthogonal_q_sqrt
        self.whiten = whiten
        self.orthogonal_covariance = orthogonal_covariance
        self._maps = [
            feature_map(latent_kernel, [features for features in sets if features is not None])
            for latent_kernel, *sets in processes
        ]
        self._layout: Cache | None = None
        if precompute_cache is not None:
            self.update_cache(PrecomputeCacheType(precompute_cache))

    @classmethod
    def of(cls, owner: Any, **options: Any) -> OrthogonalPosterior:
        """The posterior of a model, a layer or another posterior, whose parameters it shares."""
        return cls(
            owner.kernel,
            owner.inducing_variable,
            owner.q_mu,
            owner.q_sqrt,
            owner.orthogonal_inducing_variable,
            owner.orthogonal_q_mu,
            owner.orthogonal_q_sqrt,
            whiten=owner.whiten,
            orthogonal_covariance=owner.orthogonal_covariance,
            **options,
        )

    @property
    def q(self) -> Variational:
        """The variational distribution, as tensors."""
        if self.orthogonal_inducing_variable is None:
            return variational(self.q_mu, self.q_sqrt)
        sqrt = self.orthogonal_q_sqrt if self.orthogonal_covariance == "full" else None
        return variational(self.q_mu, self.q_sqrt, self.orthogonal_q_mu, sqrt)

    @property
    def _features(self) -> tuple[Kernel, InducingVariables, InducingVariables | None]:
        return self.kernel, self.inducing_variable, self.orthogonal_inducing_variable

    def marginals(self, X: tf.Tensor, *, full_output_cov: bool = False, name: str = "") -> Marginals:
        """Means and variances `[N, P]` at inputs `[N, D]`, without mean function, and the divergence of q from the
        prior.

        This is the path for training: both come from the same factorisations. With `full_output_cov`, covariances of
        the outputs, `[N, P, P]`, take the place of variances.
        """
        mean, variance, kl = marginals(X, *self._features, self.q, whiten=self.whiten, name=name)
        return Marginals(*self._mix(mean, variance, full_cov=False, full_output_cov=full_output_cov), kl)

    def prior_kl(self) -> tf.Tensor:
        """Divergence of q from the prior, a scalar."""
        return whitened_kl(self.q if self.whiten else whiten_q(gram(*self._features), self.q))

    def factors(self) -> Factors:
        """Everything that predictions need of the parameters."""
        return factorise(gram(*self._features), self.q, whiten=self.whiten)

    def prior_factors(self) -> PriorFactors:
        """What `statistics` needs of kernel and features."""
        return factorise_prior(gram(*self._features))

    def statistics(self, F: PriorFactors, X: tf.Tensor, Y: tf.Tensor, noise_precision: tf.Tensor) -> Statistics:
        """Sums over a batch of inputs `[N, D]`, targets `[N, P]` (less the mean function) and precisions of Gaussian
        noise, `[N, 1]` or `[N, P]`, from which the optimal q follows.
        """
        return statistics(F, X, Y, noise_precision, *self._features)

    def optimal_q(self, F: PriorFactors, total: Statistics) -> Variational:
        """The optimum of q for Gaussian noise, given the sums over all data; whitened as q is."""
        if mixing(self.kernel) is not None:
            raise TypeError("The optimal q has no closed form under a kernel that mixes latent functions.")
        q = optimal_q(total, num_features(self.inducing_variable), self.q_sqrt.shape[0])
        return q if self.whiten else unwhiten_q(F, q)

    def set_optimal_q(self, F: PriorFactors, total: Statistics) -> None:
        """Sets q to its optimum for Gaussian noise."""
        targets = (self.q_mu, self.q_sqrt, self.orthogonal_q_mu, self.orthogonal_q_sqrt)
        for parameter, value in zip(targets, self.optimal_q(F, total)):
            if parameter is not None:
                parameter.assign(value)

    def variance_terms(self, X: tf.Tensor) -> VarianceTerms:
        """The terms of the variance of the latent functions at inputs `[N, D]`: where it comes from."""
        return variance_terms(self.factors(), cross(*self._features, tf.convert_to_tensor(X)))

    def _precompute(self) -> tuple[PrecomputedValue, ...]:
        cache = precompute(self._maps, self.factors())
        self._layout = tf.nest.map_structure(lambda _: None, cache)
        return tuple(PrecomputedValue(part, (False,) * len(part.shape)) for part in tf.nest.flatten(cache))

    @inherit_check_shapes
    def _conditional_with_precompute(
        self, cache: tuple[tf.Tensor, ...], Xnew: tf.Tensor, full_cov: bool = False, full_output_cov: bool = False
    ) -> tuple[tf.Tensor, tf.Tensor]:
        filled = tf.nest.pack_sequence_as(self._layout, [tf.convert_to_tensor(part) for part in cache])
        return self._predict(filled, Xnew, full_cov=full_cov, full_output_cov=full_output_cov)

    @inherit_check_shapes
    def _conditional_fused(
        self, Xnew: tf.Tensor, full_cov: bool = False, full_output_cov: bool = False
    ) -> tuple[tf.Tensor, tf.Tensor]:
        Xnew = tf.convert_to_tensor(Xnew)
        if full_cov:
            cache = precompute(self._maps, self.factors())
            return self._predict(cache, Xnew, full_cov=True, full_output_cov=full_output_cov)
        mean, variance, _ = marginals(as_rows(Xnew), *self._features, self.q, whiten=self.whiten)
        mean, variance = _unfold(mean, Xnew), _unfold(variance, Xnew)
        return self._mix(mean, variance, full_cov=False, full_output_cov=full_output_cov)

    def _predict(
        self, cache: Cache, Xnew: tf.Tensor, *, full_cov: bool, full_output_cov: bool
    ) -> tuple[tf.Tensor, tf.Tensor]:
        Xnew = tf.convert_to_tensor(Xnew)
        if not full_cov:
            mean, variance = (_unfold(part, Xnew) for part in predict_marginals(cache, self._maps, as_rows(Xnew)))
            return self._mix(mean, variance, full_cov=False, full_output_cov=full_output_cov)
        batch = tf.shape(Xnew)[:-2]
        flat = tf.reshape(Xnew, tf.concat([[-1], tf.shape(Xnew)[-2:]], axis=0))
        flat = tf.ensure_shape(flat, [None, None, Xnew.shape[-1]])
        prior = tf.stack([evaluate_each(latent_kernel, flat) for latent_kernel, *_ in latents(*self._features)])
        results = predict_covariances(cache, self._maps, flat, prior)
        mean, covariance = (tf.reshape(part, tf.concat([batch, tf.shape(part)[1:]], axis=0)) for part in results)
        return self._mix(mean, covariance, full_cov=True, full_output_cov=full_output_cov)

    def _mix(
        self, mean: tf.Tensor, covariance: tf.Tensor, *, full_cov: bool, full_output_cov: bool
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """From latent functions to outputs, in the shapes of GPflow.

        The covariance comes as `[..., N, L]`, or `[..., L, N, N]` if `full_cov`, and leaves as

            full_cov  full_output_cov
            no        no               [..., N, P]
            yes       no               [..., P, N, N]
            no        yes              [..., N, P, P]
            yes       yes              [..., N, P, N, P]
        """
        W = mixing(self.kernel)
        if W is not None:
            mean = tf.einsum("...nl,pl->...np", mean, W)
        if full_output_cov:
            W = tf.eye(covariance.shape[-3 if full_cov else -1], dtype=mean.dtype) if W is None else W
            equation = "...lnm,pl,ql->...npmq" if full_cov else "...nl,pl,ql->...npq"
            return mean, tf.einsum(equation, covariance, W, W)
        if W is None:
            return mean, covariance
        return mean, tf.einsum("...lnm,pl->...pnm" if full_cov else "...nl,pl->...np", covariance, tf.square(W))


def as_rows(X: tf.Tensor) -> tf.Tensor:
    """Inputs `[..., N, D]` as rows: where only marginals are needed, leading axes are more points."""
    return X if len(X.shape) == 2 else tf.reshape(X, [-1, X.shape[-1]])


def _unfold(moments: tf.Tensor, X: tf.Tensor) -> tf.Tensor:
    """Moments `[rows, P]` in the shape of the inputs that were made rows."""
    if len(X.shape) == 2:
        return moments
    return tf.reshape(moments, tf.concat([tf.shape(X)[:-1], [moments.shape[-1]]], axis=0))


def _check_orthogonal_q(mu: Any, sqrt: Any, covariance: str) -> None:
    if mu is None or (sqrt is None) != (covariance == "prior"):
        expected = "`orthogonal_q_mu` and `orthogonal_q_sqrt`" if covariance == "full" else "`orthogonal_q_mu` alone"
        given = [name for name, q in (("orthogonal_q_mu", mu), ("orthogonal_q_sqrt", sqrt)) if q is not None]
        raise ValueError(f"Expected {expected} for orthogonal features with {covariance!r} covariance. Got: {given}.")


def check_orthogonal_covariance(value: str) -> None:
    """Raises unless the value is `"full"` or `"prior"`."""
    if value not in ("full", "prior"):
        raise ValueError(
            f"Expected `orthogonal_covariance` to be 'full' (SOLVE-GP) or 'prior' (ODVGP). Got: {value!r}."
        )
