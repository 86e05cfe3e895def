"""Regression with q at its optimum: the collapsed bound, whose only parameters are hyperparameters and features."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import gpflow
import tensorflow as tf
from check_shapes import check_shapes, inherit_check_shapes
from gpflow.kernels import Kernel, MultioutputKernel
from gpflow.models.util import data_input_to_tensor, inducingpoint_wrapper

from keras_odgp import numerics
from keras_odgp.covariances.stationary import evaluate
from keras_odgp.orthogonal import check_orthogonal_features
from keras_odgp.orthogonal.gram import cross, gram, num_features
from keras_odgp.orthogonal.marginals import schur
from keras_odgp.orthogonal.prediction import factorise_prior, whitened_covariances
from keras_odgp.orthogonal.solves import solve


class _Posterior(NamedTuple):
    """Roots of the precision of (u, v'), whitened, and the mean."""

    joint: tf.Tensor  # [R, R]
    orthogonal: tf.Tensor | None  # [K, K]
    mean: tf.Tensor  # [R, P]


class OrthogonalSGPR(gpflow.models.GPModel, gpflow.models.training_mixins.InternalDataTrainingLossMixin):
    r"""Sparse GP regression with base and orthogonal features and Gaussian noise, q at its closed-form optimum.

    Args:
        data: Inputs `[N, D]` and targets `[N, P]`.
        kernel: GPflow kernel; a zonal one (`keras_odgp.kernels`) for features on the sphere.
        inducing_variable: Base features, or an array `[M, D]` of inducing points.
        orthogonal_inducing_variable: Orthogonal features, or an array `[K, D]` of points. Defaults to None.
        noise_variance: Start of the noise variance. Defaults to 1.
        factorised: Whether q(u, v') factorises, as in `OrthogonalSVGP`. If not, the bound is that of SGPR with all
            features, and never lower.
        mean_function: Mean function. Defaults to zero.

    Example:

    >>> X = np.linspace(-1, 1, 50)[:, None]
    >>> features = keras_odgp.inducing.ActivationFeatures(np.random.randn(5, 2), "relu")
    >>> model = keras_odgp.gpflow_models.OrthogonalSGPR(
    ...     (X, np.sin(3 * X)), keras_odgp.kernels.ArcCosine(), features, X[::10].copy(), noise_variance=0.1
    ... )
    >>> bool(model.elbo() < 0)
    True

    Reference:

    - Titsias, Variational learning of inducing variables in sparse Gaussian processes, AISTATS 2009.
    """

    def __init__(
        self,
        data: Any,
        kernel: Kernel,
        inducing_variable: Any,
        orthogonal_inducing_variable: Any = None,
        *,
        noise_variance: float = 1.0,
        factorised: bool = True,
        mean_function: gpflow.functions.MeanFunction | None = None,
    ) -> None:
        if isinstance(kernel, MultioutputKernel):
            raise TypeError(
                "OrthogonalSGPR shares one kernel among all outputs. Got a multi-output kernel: use OrthogonalSVGP."
            )
        self.data = data_input_to_tensor(data)
        if any(part.shape.rank != 2 for part in self.data):
            shapes = [tuple(part.shape) for part in self.data]
            raise ValueError(f"Expected inputs of shape [N, D] and targets of shape [N, P]. Got shapes {shapes}.")
        super().__init__(
            kernel, gpflow.likelihoods.Gaussian(noise_variance), mean_function, num_latent_gps=self.data[1].shape[-1]
        )
        self.inducing_variable = inducingpoint_wrapper(inducing_variable)
        self.orthogonal_inducing_variable = None
        if orthogonal_inducing_variable is not None:
            self.orthogonal_inducing_variable = inducingpoint_wrapper(orthogonal_inducing_variable)
        self.factorised = factorised
        check_orthogonal_features(kernel, self.inducing_variable, self.orthogonal_inducing_variable)

    @inherit_check_shapes
    def maximum_log_likelihood_objective(self) -> tf.Tensor:
        """The ELBO."""
        return self.elbo()

    @check_shapes("return: []")
    def elbo(self) -> tf.Tensor:
        """The collapsed evidence lower bound."""
        X, Y = self.data
        residual = Y - self.mean_function(X)
        num_data, num_outputs = tf.cast(tf.shape(Y)[0], Y.dtype), tf.cast(tf.shape(Y)[1], Y.dtype)
        precision = 1.0 / tf.convert_to_tensor(self.likelihood.variance)
        G, kff = self._training_covariances(X)
        q = self._optimum(G, residual, precision)
        joint_log_determinant = _log_determinant(q.joint)
        projected = precision * tf.matmul(G, residual)
        quadratic = precision * tf.reduce_sum(tf.square(residual)) - tf.reduce_sum(projected * q.mean)
        evidence = num_data * (math.log(2 * math.pi) - tf.math.log(precision)) + joint_log_determinant
        unexplained = precision * (tf.reduce_sum(kff) - tf.reduce_sum(tf.square(G)))
        bound = -0.5 * (num_outputs * (evidence + unexplained) + quadratic)
        if not self.factorised or q.orthogonal is None:
            return bound
        base = q.joint[: num_features(self.inducing_variable), : num_features(self.inducing_variable)]
        information = _log_determinant(base) + _log_determinant(q.orthogonal) - joint_log_determinant
        return bound - 0.5 * num_outputs * information

    @inherit_check_shapes
    def predict_f(
        self, Xnew: Any, full_cov: bool = False, full_output_cov: bool = False
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Mean and variance, or covariance, of the latent functions at new inputs."""
        Xnew = tf.convert_to_tensor(Xnew)
        if Xnew.shape.rank != 2:
            raise ValueError(f"Expected inputs of shape [N, D]. Got shape {tuple(Xnew.shape)}.")
        X, Y = self.data
        features = (self.kernel, self.inducing_variable, self.orthogonal_inducing_variable)
        factors = factorise_prior(gram(*features))

        def covariances(inputs: tf.Tensor) -> tf.Tensor:
            parts = whitened_covariances(factors, cross(*features, inputs))
            return tf.concat([part for part in parts if part is not None], axis=0)

        precision = 1.0 / tf.convert_to_tensor(self.likelihood.variance)
        q = self._optimum(covariances(X), Y - self.mean_function(X), precision)
        G = covariances(Xnew)
        size = num_features(self.inducing_variable)
        parts = [tf.linalg.triangular_solve(q.joint, G)]
        if self.factorised and q.orthogonal is not None:
            parts = [
                tf.linalg.triangular_solve(q.joint[:size, :size], G[:size]),
                tf.linalg.triangular_solve(q.orthogonal, G[size:]),
            ]
        T = tf.concat(parts, axis=0)
        mean = tf.matmul(G, q.mean, transpose_a=True) + self.mean_function(Xnew)
        if full_cov:
            prior = evaluate(self.kernel, Xnew)
            covariance = prior - tf.matmul(G, G, transpose_a=True) + tf.matmul(T, T, transpose_a=True)
            covariance = tf.tile(covariance[None], [self.num_latent_gps, 1, 1])  # [P, N, N]
        else:
            variance = self.kernel(Xnew, full_cov=False) + tf.reduce_sum(tf.square(T) - tf.square(G), axis=0)
            covariance = tf.tile(variance[:, None], [1, self.num_latent_gps])  # [N, P]
        if full_output_cov:
            identity = tf.eye(self.num_latent_gps, dtype=mean.dtype)
            covariance = tf.einsum("pnm,pq->npmq" if full_cov else "np,pq->npq", covariance, identity)
        return mean, covariance

    def _training_covariances(self, X: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Whitened covariances `[R, N]` and prior variances `[N]`, by solves that differentiate cheaply."""
        features = (self.kernel, self.inducing_variable, self.orthogonal_inducing_variable)
        C, Gm = cross(*features, X), gram(*features)
        if Gm.Kvv is None:
            return solve(Gm.Kuu, [C.Kuf], name="Kuu")[0], C.kff
        if Gm.Kvu is None:
            (A,), B, Svf = solve(Gm.Kuu, [C.Kuf], name="Kuu"), None, C.Kvf
        else:
            A, B = solve(Gm.Kuu, [C.Kuf, tf.transpose(Gm.Kvu)], name="Kuu")
            Svf = C.Kvf - tf.matmul(B, A, transpose_a=True)
        Svv, reference = schur(Gm, B)
        (E,) = solve(Svv, [Svf], reference=reference, name="Svv")
        return tf.concat([A, E], axis=0), C.kff

    def _optimum(self, G: tf.Tensor, residual: tf.Tensor, precision: tf.Tensor) -> _Posterior:
        matrix = tf.eye(G.shape[0], dtype=G.dtype) + precision * tf.matmul(G, G, transpose_b=True)
        joint = numerics.cholesky(matrix, name="the posterior precision")
        mean = tf.linalg.cholesky_solve(joint, precision * tf.matmul(G, residual))
        if self.orthogonal_inducing_variable is None:
            return _Posterior(joint, None, mean)
        size = num_features(self.inducing_variable)
        return _Posterior(joint, numerics.cholesky(matrix[size:, size:], name="the posterior precision of v'"), mean)


def _log_determinant(L: tf.Tensor) -> tf.Tensor:
    return 2.0 * tf.reduce_sum(tf.math.log(tf.linalg.diag_part(L)))
