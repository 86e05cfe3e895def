r"""Functions drawn from the posterior, by Matheron's rule with both sets of features.

A function $f_0$ of the prior has inducing variables $u_0$ and $v_0$, and $v_0' = v_0 - K_{vu} K_{uu}^{-1} u_0$. With
$u$ and $v'$ drawn from q,

$$ f(x) = f_0(x) + K_{fu} K_{uu}^{-1} (u - u_0) + S_{fv} S_{vv}^{-1} (v' - v_0'), \qquad
S_{fv} = K_{fv} - K_{fu} K_{uu}^{-1} K_{uv}, $$

is a draw of the posterior: what the features know of $f_0$ is exchanged for what q says. Everything but $f_0(x)$,
$K_{fu}$ and $K_{fv}$ is a matter of the draw and computed once, as weights of the two covariances.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import gpflow
import tensorflow as tf
from gpflow.inducing_variables import InducingVariables
from gpflow.kernels import Kernel

from keras_odgp.checks import check_count
from keras_odgp.covariances import DiagonalCovariance
from keras_odgp.kernels import ZonalKernel
from keras_odgp.numerics import float_context, relative_jitter
from keras_odgp.orthogonal import OrthogonalPosterior, Variational
from keras_odgp.orthogonal.gram import Covariance, cross, gram, latents, mixing
from keras_odgp.orthogonal.marginals import solve_means
from keras_odgp.orthogonal.prediction import factorise
from keras_odgp.sampling.fourier import DEGREES_OF_FREEDOM, FourierPrior
from keras_odgp.sampling.zonal import ZonalPrior

NUM_HARMONICS, NUM_WAVES, NUM_FREQUENCIES = 512, 256, 512


class FunctionSamples:
    r"""Functions drawn from a posterior, each one and the same at every call.

    Values at new inputs cost no factorisation and no solve, and are differentiable in the inputs. The functions keep
    the parameters that the posterior had when they were drawn.

    For zonal kernels, mean and covariance over draws are those of the posterior exactly (but for the share of the
    prior variance above level 65,536), and the low levels of the sphere are normal; higher ones are sums of random
    harmonics, normal only in the limit of many. For GPflow's squared exponential and Matérn kernels, with inducing
    points, GPflux's random Fourier features do the same. Outputs of one function share the random harmonics or
    frequencies: they are uncorrelated, as in the posterior.

    Args:
        posterior: The posterior; its mean function, if any, is left out.
        num: Number of functions S.
        seed: Seed: equal seeds and parameters give equal functions, in any process.
        num_harmonics: Number of harmonics that levels without randomness may have together. Defaults to 512.
        num_waves: Number of random harmonics of higher levels. Defaults to 256.
        num_frequencies: Number of random frequencies for stationary kernels. Defaults to 512.

    Example:

    >>> posterior = keras_odgp.gpflow_models.OrthogonalSVGP(
    ...     keras_odgp.kernels.ArcCosine(), gpflow.likelihoods.Gaussian(), np.random.randn(6, 2), np.random.randn(5, 2)
    ... ).posterior()
    >>> functions = keras_odgp.sampling.FunctionSamples(posterior, 3, seed=0)
    >>> functions(np.ones((10, 2))).shape.as_list()
    [3, 10, 1]

    Reference:

    - Wilson et al., Efficiently sampling functions from Gaussian process posteriors, ICML 2020.
    """

    def __init__(
        self,
        posterior: OrthogonalPosterior,
        num: int,
        seed: int,
        *,
        num_harmonics: int = NUM_HARMONICS,
        num_waves: int = NUM_WAVES,
        num_frequencies: int = NUM_FREQUENCIES,
    ) -> None:
        for name, value, least in (
            ("num", num, 1),
            ("seed", seed, 0),
            ("num_harmonics", num_harmonics, 1),
            ("num_waves", num_waves, 1),
            ("num_frequencies", num_frequencies, 1),
        ):
            check_count(name, value, least)
        self.num = int(num)
        self.dtype = tf.as_dtype(posterior.q_mu.dtype)
        self._compiled: dict[tuple[int, int], Any] = {}
        sizes = {"num_harmonics": num_harmonics, "num_waves": num_waves, "num_frequencies": num_frequencies}
        with tf.init_scope(), float_context(self.dtype):
            frozen = gpflow.utilities.freeze(_Parts(posterior))
            self._mixing = mixing(frozen.kernel)
            parts = latents(frozen.kernel, frozen.base, frozen.orthogonal)
            q = posterior.q
            num_latents = q.mu.shape[1]
            split = [q] if len(parts) == 1 else [_column(q, index) for index in range(num_latents)]
            seeds = tf.random.split([seed % 2**31, seed // 2**31], len(parts))
            self._latents = [
                _draw(part, own, self.num, own_seed, whiten=posterior.whiten, sizes=sizes)
                for part, own, own_seed in zip(parts, split, seeds)
            ]

    def __call__(self, X: Any) -> tf.Tensor:
        """Values `[S, ..., P]` of all functions at inputs `[..., D]`."""
        X = tf.cast(X, self.dtype)
        return self._evaluate(tf.reshape(X, [1, -1, X.shape[-1]]), X.shape[:-1], tf.shape(X)[:-1])

    def each(self, X: Any) -> tf.Tensor:
        """Values `[S, ..., P]` of each function at its own inputs `[S, ..., D]`."""
        X = tf.cast(X, self.dtype)
        X = tf.ensure_shape(X, [self.num, *X.shape[1:]])
        flat = tf.reshape(X, [self.num, -1, X.shape[-1]])
        return self._evaluate(flat, X.shape[1:-1], tf.shape(X)[1:-1])

    def _evaluate(self, X: tf.Tensor, static: tf.TensorShape, lead: tf.Tensor) -> tf.Tensor:
        if tf.executing_eagerly():  # several hundred small operations
            value = self._compile(X.shape[0], X.shape[2])(X)
        else:
            value = self._values(X)
        shaped = tf.reshape(value, tf.concat([[self.num], lead, [value.shape[-1]]], axis=0))
        return tf.ensure_shape(shaped, [self.num, *static, value.shape[-1]])

    def _compile(self, num: int, width: int) -> Any:
        if (num, width) not in self._compiled:
            signature = [tf.TensorSpec([num, None, width], self.dtype)]
            function = tf.function(self._values, input_signature=signature, autograph=False)
            # The traced function itself: TensorFlow would warn of a method, which all draws share, traced too often.
            self._compiled[num, width] = function.get_concrete_function()
        return self._compiled[num, width]

    def _values(self, X: tf.Tensor) -> tf.Tensor:
        """Values `[S, N, P]` at inputs `[1 or S, N, D]`."""
        with float_context(self.dtype):
            values = [latent(X) for latent in self._latents]
        value = values[0] if len(values) == 1 else tf.concat(values, axis=-1)  # [S, N, L]
        return value if self._mixing is None else tf.einsum("snl,pl->snp", value, self._mixing)


class _Parts(tf.Module):
    """What of a posterior is evaluated at new inputs."""

    def __init__(self, posterior: OrthogonalPosterior) -> None:
        super().__init__()
        self.kernel = posterior.kernel
        self.base = posterior.inducing_variable
        self.orthogonal = posterior.orthogonal_inducing_variable


class _LatentSamples(NamedTuple):
    """S functions, with P outputs that share kernel and features.

    Attributes:
        prior: Functions of the prior.
        part: Kernel and both sets of features.
        alpha: Weights of Kuf, shape `[S, M, P]`.
        orthogonal_alpha: Weights of Kvf, shape `[S, K, P]`, or None.
    """

    prior: ZonalPrior | FourierPrior
    part: tuple[Kernel, InducingVariables, InducingVariables | None]
    alpha: tf.Tensor
    orthogonal_alpha: tf.Tensor | None

    def __call__(self, X: tf.Tensor) -> tf.Tensor:
        """Values `[S, N, P]` at inputs `[1 or S, N, D]`."""
        C = cross(*self.part, tf.reshape(X, [-1, X.shape[-1]]))
        value = self.prior(X) + _weigh(C.Kuf, self.alpha, X)
        return value if self.orthogonal_alpha is None else value + _weigh(C.Kvf, self.orthogonal_alpha, X)


def _weigh(Kuf: tf.Tensor, alpha: tf.Tensor, X: tf.Tensor) -> tf.Tensor:
    """Kuf^T alpha for `[M, N]` or `[M, S N]` and `[S, M, P]`: shape `[S, N, P]`."""
    if X.shape[0] == 1:
        return tf.matmul(Kuf[None], alpha, transpose_a=True)
    rows = tf.reshape(Kuf, [Kuf.shape[0], X.shape[0], -1])
    return tf.matmul(tf.transpose(rows, [1, 0, 2]), alpha, transpose_a=True)


def _column(q: Variational, index: int) -> Variational:
    """What q says of one latent process."""
    mu, orthogonal_mu = (None if mu is None else mu[:, index : index + 1] for mu in (q.mu, q.orthogonal_mu))
    sqrt, orthogonal_sqrt = (None if sqrt is None else sqrt[index : index + 1] for sqrt in (q.sqrt, q.orthogonal_sqrt))
    return Variational(mu, sqrt, orthogonal_mu, orthogonal_sqrt)


def _draw(
    part: tuple[Kernel, InducingVariables, InducingVariables | None],
    q: Variational,
    num: int,
    seed: tf.Tensor,
    *,
    whiten: bool,
    sizes: dict[str, int],
) -> _LatentSamples:
    _, base, orthogonal = part
    num_outputs = q.mu.shape[1]
    seeds = tf.random.split(seed, 5)
    prior = _draw_prior(part, num, num_outputs, seeds[0], sizes)
    G = gram(*part)
    F = factorise(G, q, whiten=whiten)

    def columns(values: tf.Tensor) -> tf.Tensor:  # [S, M, P] to [M, S P], for solves
        return tf.reshape(tf.transpose(values, [1, 0, 2]), [values.shape[1], -1])

    def uncolumns(values: tf.Tensor) -> tf.Tensor:
        return tf.transpose(tf.reshape(values, [values.shape[0], num, num_outputs]), [1, 0, 2])

    # Deviations of q from its mean and of the prior from zero, both whitened. The means are in F already.
    u0 = solve_means(F.Lu, columns(prior.at(base) + _jitter_noise(G.Kuu, num, num_outputs, seeds[1])))
    u = columns(_deviations(F.sqrt, num, seeds[2]))
    if orthogonal is None:
        return _LatentSamples(prior, part, F.alpha + uncolumns(solve_means(F.Lu, u - u0, adjoint=True)), None)
    v0 = columns(prior.at(orthogonal) + _jitter_noise(G.Kvv, num, num_outputs, seeds[3]))
    v0 = solve_means(F.Lv, v0 if F.B is None else v0 - tf.matmul(F.B, u0, transpose_a=True))
    shape = [num, v0.shape[0], num_outputs]
    v = _deviations(F.orthogonal_sqrt, num, seeds[4]) if F.orthogonal_sqrt is not None else _normal(shape, seeds[4], v0)
    b = solve_means(F.Lv, columns(v) - v0, adjoint=True)
    a = u - u0 if F.B is None else u - u0 - tf.matmul(F.B, b)
    a = solve_means(F.Lu, a, adjoint=True)
    return _LatentSamples(prior, part, F.alpha + uncolumns(a), F.orthogonal_alpha + uncolumns(b))


def _draw_prior(
    part: tuple[Kernel, InducingVariables, InducingVariables | None],
    num: int,
    num_outputs: int,
    seed: tf.Tensor,
    sizes: dict[str, int],
) -> ZonalPrior | FourierPrior:
    kernel, *sets = part
    features = [features for features in sets if features is not None]
    if isinstance(kernel, ZonalKernel):
        of_zonal = {name: sizes[name] for name in ("num_harmonics", "num_waves")}
        return ZonalPrior(kernel, features, num, num_outputs, seed, **of_zonal)
    if type(kernel) in DEGREES_OF_FREEDOM:
        return FourierPrior(kernel, features, num, num_outputs, seed, num_frequencies=sizes["num_frequencies"])
    names = [kind.__name__ for kind in DEGREES_OF_FREEDOM]
    raise TypeError(
        f"Function samples need a zonal kernel of keras_odgp.kernels, or one of gpflow.kernels among {names}. Got "
        f"{type(kernel).__module__}.{type(kernel).__name__}."
    )


def _normal(shape: list[int], seed: tf.Tensor, like: tf.Tensor) -> tf.Tensor:
    return tf.cast(tf.random.stateless_normal(shape, seed, dtype=tf.float64), like.dtype)


def _deviations(sqrt: tf.Tensor, num: int, seed: tf.Tensor) -> tf.Tensor:
    """Draws `[S, M, P]` from normal distributions with roots `[P, M, M]` and mean zero."""
    noise = _normal([sqrt.shape[0], sqrt.shape[1], num], seed, sqrt)
    return tf.transpose(tf.matmul(sqrt, noise), [2, 1, 0])


def _jitter_noise(K: Covariance, num: int, num_outputs: int, seed: tf.Tensor) -> tf.Tensor | float:
    """The noise on inducing variables that the jitter of their covariance stands for, `[S, M, P]`."""
    if isinstance(K, DiagonalCovariance):
        return 0.0
    jitter = relative_jitter(K.dtype)
    scale = tf.sqrt(tf.linalg.diag_part(K) * (jitter / (1.0 + jitter)))
    return scale[:, None] * _normal([num, K.shape[0], num_outputs], seed, K)
