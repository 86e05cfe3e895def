from __future__ import annotations

import gpflow
import numpy as np
import pytest
import tensorflow as tf
from builders import make_feature

from keras_odgp import numerics
from keras_odgp.gpflow_models import OrthogonalSGPR
from keras_odgp.inducing import ActivationFeatures, SphericalHarmonics
from keras_odgp.kernels import ArcCosine, Matern52

NO_JITTER = gpflow.config.Config(jitter=0.0)


def data(rng, num=50, num_outputs=1):
    X = rng.uniform(-2, 2, size=(num, 2))
    return X, np.sin(2 * X[:, :1]) * X[:, 1:] * np.ones(num_outputs) + 0.1 * rng.normal(size=(num, num_outputs))


@pytest.mark.parametrize("num_outputs", [1, 2])
def test_joint_bound_with_points_is_sgpr_on_their_union(num_outputs, rng):
    X, Y = data(rng, num_outputs=num_outputs)
    Z = rng.uniform(-2, 2, size=(9, 2))
    kernel = gpflow.kernels.Matern52()
    with numerics.jitter_scope(0.0), gpflow.config.as_context(NO_JITTER):
        theirs = gpflow.models.SGPR((X, Y), kernel, Z.copy(), noise_variance=0.1)
        ours = OrthogonalSGPR((X, Y), kernel, Z[:5].copy(), Z[5:].copy(), noise_variance=0.1, factorised=False)
        np.testing.assert_allclose(ours.elbo(), theirs.elbo(), rtol=1e-8)
        Xnew = rng.normal(size=(6, 2))
        for full_cov in (False, True):
            for got, expected in zip(
                ours.predict_f(Xnew, full_cov=full_cov), theirs.predict_f(Xnew, full_cov=full_cov)
            ):
                np.testing.assert_allclose(got, expected, rtol=1e-7, atol=1e-9)

        def gradients(model):
            with tf.GradientTape() as tape:
                loss = model.training_loss()
            return tape.gradient(
                loss, [kernel.variance.unconstrained_variable, kernel.lengthscales.unconstrained_variable]
            )

        for got, expected in zip(gradients(ours), gradients(theirs)):
            np.testing.assert_allclose(got, expected, rtol=1e-7)


@pytest.mark.parametrize("orthogonal", ["points", "harmonics"])
def test_order_of_the_bounds(orthogonal, rng):
    """Identity 19: factorised <= joint <= evidence, and orthogonal features never lower the bound."""
    X, Y = data(rng)
    kernel = Matern52()
    exact = gpflow.models.GPR((X, Y), kernel, noise_variance=0.1).log_marginal_likelihood()
    base = make_feature("activations", kernel, 2, rng, num=4, num_levels=2)
    v = SphericalHarmonics(3, [2, 3]) if orthogonal == "harmonics" else make_feature("points", kernel, 2, rng, num=7)
    with numerics.jitter_scope(1e-10):
        alone = OrthogonalSGPR((X, Y), kernel, base, noise_variance=0.1).elbo()
        factorised, joint = (
            OrthogonalSGPR((X, Y), kernel, base, v, noise_variance=0.1, factorised=f).elbo() for f in (True, False)
        )
    assert alone < factorised < joint < exact


def test_gradient_agrees_with_finite_differences(rng):
    X, Y = data(rng)
    model = OrthogonalSGPR(
        (X, Y),
        ArcCosine(weight_variances=[1.0, 2.0]),
        ActivationFeatures(rng.normal(size=(6, 3))),
        X[:5].copy(),
        noise_variance=0.1,
    )
    with tf.GradientTape() as tape:
        loss = model.training_loss()
    for variable, gradient in zip(model.trainable_variables, tape.gradient(loss, model.trainable_variables)):
        direction, start, step = rng.normal(size=variable.shape), variable.numpy(), 1e-6
        values = []
        for sign in (1, -1):
            variable.assign(start + sign * step * direction)
            values.append(float(model.training_loss()))
        variable.assign(start)
        numeric = (values[0] - values[1]) / (2 * step)
        # rounding: the loss is about 100 and the whitening has a condition of 1e4
        assert float(tf.reduce_sum(gradient * direction)) == pytest.approx(numeric, rel=1e-4, abs=1e-4)


def snelson_like(num=200):
    """One-dimensional data with a gap-free but uneven design, in the manner of Snelson and Ghahramani's."""
    rng = np.random.default_rng(1)
    X = np.sort(rng.uniform(0, 6, size=(num, 1)), axis=0)
    X = (X - X.mean()) / X.std()
    Y = np.sin(2.5 * X) + 0.5 * np.cos(5.0 * X + 1) + 0.3 * X + 0.25 * rng.normal(size=X.shape)
    return X, (Y - Y.mean()) / Y.std()


def optimised_bound(kernel, features, orthogonal, X, Y):
    model = OrthogonalSGPR((X, Y), kernel, features, orthogonal, noise_variance=0.1)
    gpflow.optimizers.Scipy().minimize(model.training_loss, model.trainable_variables, options={"maxiter": 200})
    return float(model.elbo())


@pytest.mark.parametrize("activation", ["relu", "softplus"])
@pytest.mark.parametrize("name", ["matern52", "arccos"])
def test_orthogonal_points_beat_more_levels_in_one_dimension(name, activation, capsys):
    """The paper's claim for Matérn-5/2: K = 8 orthogonal points raise the bound more than twice the levels do."""
    X, Y = snelson_like()

    def kernel():
        if name == "arccos":
            return ArcCosine()
        matern = Matern52()
        gpflow.utilities.set_trainable(matern.lengthscale, False)
        return matern

    def features(num_levels):
        probe = ActivationFeatures(np.ones((1, 2)), activation, num_levels)
        angles = (np.arange(probe.rank()) + 0.5) / probe.rank() * 2 * np.pi
        weights = np.stack([np.cos(angles), np.sin(angles)], axis=1)
        return ActivationFeatures(weights, activation, num_levels)

    points = np.quantile(X, np.linspace(0.05, 0.95, 8), axis=0)
    few = optimised_bound(kernel(), features(8), None, X, Y)
    many = optimised_bound(kernel(), features(16), None, X, Y)
    both = optimised_bound(kernel(), features(8), points, X, Y)
    with capsys.disabled():
        print(f"\n{name}, {activation}: L = 8 {few:.2f}, L = 16 {many:.2f}, L = 8 and K = 8 {both:.2f}")
    if name == "matern52":
        assert both > many and both > few
    else:
        assert both > few - 1e-3


def test_shape_errors(rng):
    X, Y = data(rng)
    model = OrthogonalSGPR((X, Y), Matern52(), X[:5].copy())
    with pytest.raises(ValueError, match=r"inputs of shape \[N, D\]"):
        model.predict_f(X[None])
    with pytest.raises(ValueError, match=r"targets of shape \[N, P\]. Got shapes .*\(50,\)"):
        OrthogonalSGPR((X, Y[:, 0]), Matern52(), X[:5].copy())
    with pytest.raises(TypeError, match="use OrthogonalSVGP"):
        OrthogonalSGPR((X, Y), gpflow.kernels.SharedIndependent(Matern52(), 2), X[:5].copy())
