from __future__ import annotations

import gpflow
import numpy as np
import pytest
import tensorflow as tf
from builders import assert_same

from keras_odgp.gpflow_models import (
    OrthogonalSVGP,
    directions_from_data,
    fit_lbfgs,
    points_from_data,
    random_directions,
)
from keras_odgp.inducing import ActivationFeatures
from keras_odgp.kernels import ArcCosine, Matern52


def data(rng, num=60):
    X = rng.uniform(-2, 2, size=(num, 1))
    return X, np.sin(3 * X) + 0.1 * rng.normal(size=X.shape)


def test_two_stages_reach_the_collapsed_optimum(rng):
    X, Y = data(rng)
    model = OrthogonalSVGP(Matern52(), gpflow.likelihoods.Gaussian(), X[:6].copy(), X[6:10].copy())
    gpflow.utilities.set_trainable(model.inducing_variable, False)
    gpflow.utilities.set_trainable(model.orthogonal_inducing_variable, False)
    result = fit_lbfgs(model, (X, Y), max_iterations=600, progress=False)
    assert result.loss == pytest.approx(float(model.training_loss((X, Y)))) and result.message
    assert result.num_iterations == len(result.losses) <= 700 and result.num_restarts == 0
    reached = float(model.elbo((X, Y)))
    model.set_optimal_q((X, Y))
    best = float(model.elbo((X, Y)))
    # L-BFGS over q is slow at the end, but it must come close to the closed form at the same hyperparameters.
    assert best - 0.5 < reached <= best + 1e-6
    assert fit_lbfgs(model, (X, Y), max_iterations=20, progress=False).loss <= -best + 1e-6


def test_first_stage_leaves_hyperparameters_alone(rng):
    X, Y = data(rng)
    model = OrthogonalSVGP(Matern52(), gpflow.likelihoods.Gaussian(0.5), X[:6].copy())
    before = float(model.training_loss((X, Y)))
    fit_lbfgs(model, (X, Y), first_stage_iterations=5, max_iterations=0, progress=False)
    assert float(model.training_loss((X, Y))) < before
    assert model.kernel.variance.numpy() == 1.0 and model.likelihood.variance.numpy() == pytest.approx(0.5)


class _Walled(gpflow.models.GPModel, gpflow.models.training_mixins.InternalDataTrainingLossMixin):
    """A loss that is NaN beyond a wall, which the first, long step of the line search runs into."""

    def __init__(self) -> None:
        super().__init__(gpflow.kernels.Matern52(), gpflow.likelihoods.Gaussian(), num_latent_gps=1)
        gpflow.utilities.set_trainable(self, False)
        self.x = gpflow.Parameter(np.array([0.5, 0.5]))

    def maximum_log_likelihood_objective(self) -> tf.Tensor:
        return tf.reduce_sum(0.1 * tf.math.log(self.x) - self.x)  # NaN below zero, best at 0.1

    def predict_f(self, Xnew, full_cov=False, full_output_cov=False):
        raise NotImplementedError


def test_it_goes_on_from_the_best_point_after_a_non_finite_loss():
    model = _Walled()
    result = fit_lbfgs(model, progress=False)
    assert result.num_restarts >= 1 and result.converged
    np.testing.assert_allclose(model.x, 0.1, atol=1e-3)


def test_no_iterations_change_nothing(rng):
    X, Y = data(rng)
    model = OrthogonalSVGP(Matern52(), gpflow.likelihoods.Gaussian(), X[:6].copy())
    result = fit_lbfgs(model, (X, Y), max_iterations=0, first_stage_iterations=0)
    assert result.loss == pytest.approx(float(model.training_loss((X, Y)))) and "no iterations" in result.message


def test_bad_starts_are_named(rng):
    X, Y = data(rng)
    model = OrthogonalSVGP(Matern52(), gpflow.likelihoods.Gaussian(), X[:6].copy())
    with pytest.raises(ValueError, match="not finite at the start"):
        fit_lbfgs(model, (X * np.nan, Y), progress=False)
    gpflow.utilities.set_trainable(model, False)
    with pytest.raises(ValueError, match="every parameter is fixed"):
        fit_lbfgs(model, (X, Y), progress=False)


def test_points_from_data(rng):
    X = rng.normal(size=(500, 3)) * [1.0, 100.0, 0.01]
    points = points_from_data(X, 20, seed=1)
    assert points.shape == (20, 3) and np.isfinite(points).all()
    assert (points.min(axis=0) >= X.min(axis=0)).all() and (points.max(axis=0) <= X.max(axis=0)).all()
    assert_same(points, points_from_data(X, 20, seed=1))
    # fewer distinct rows than points, and a constant column
    repeated = np.repeat([[0.0, 1.0], [2.0, 1.0], [4.0, 1.0]], 10, axis=0)
    points = points_from_data(repeated, 5)
    assert points.shape == (5, 2) and len(np.unique(points, axis=0)) == 5
    assert points_from_data(repeated, 2).shape == (2, 2)


def test_directions(rng):
    X, kernel = rng.normal(size=(100, 2)), ArcCosine(weight_variances=[4.0, 0.25], bias_variance=9.0)
    weights = directions_from_data(X, 7, kernel)
    assert weights.shape == (7, 3)
    np.testing.assert_allclose(weights[:, 2], 3.0)
    ActivationFeatures(weights)
    np.testing.assert_allclose(np.linalg.norm(random_directions(9, 4), axis=1), 1.0)
