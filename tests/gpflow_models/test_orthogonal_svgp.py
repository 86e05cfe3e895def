from __future__ import annotations

import gpflow
import numpy as np
import pytest
import tensorflow as tf
from builders import KERNELS, PAIRS, make_feature

from keras_odgp import numerics
from keras_odgp.gpflow_models import OrthogonalSGPR, OrthogonalSVGP
from keras_odgp.inducing import ActivationFeatures, SphericalHarmonics
from keras_odgp.kernels import ArcCosine, Matern52

NO_JITTER = gpflow.config.Config(jitter=0.0)


def data(rng, num=40, num_inputs=2, num_outputs=1):
    X = rng.normal(size=(num, num_inputs))
    Y = np.sin(X @ rng.normal(size=(num_inputs, num_outputs))) + 0.1 * rng.normal(size=(num, num_outputs))
    return X, Y


def value_and_gradients(loss, variables):
    with tf.GradientTape() as tape:
        value = loss()
    return value, tape.gradient(value, variables)


@pytest.mark.parametrize("whiten", [True, False])
@pytest.mark.parametrize("num_outputs", [1, 3])
def test_without_orthogonal_features_elbo_and_gradients_are_those_of_svgp(whiten, num_outputs, rng):
    X, Y = data(rng, num_outputs=num_outputs)
    Z, mu = rng.normal(size=(6, 2)), rng.normal(size=(6, num_outputs))
    sqrt = np.tril(rng.normal(size=(num_outputs, 6, 6))) + 2 * np.eye(6)
    values = []
    with numerics.jitter_scope(0.0), gpflow.config.as_context(NO_JITTER):
        for make in (OrthogonalSVGP, gpflow.models.SVGP):
            model = make(
                gpflow.kernels.Matern52(lengthscales=[1.0, 0.7]),
                gpflow.likelihoods.Gaussian(0.3),
                gpflow.inducing_variables.InducingPoints(Z.copy()),
                num_latent_gps=num_outputs,
                q_mu=mu,
                q_sqrt=sqrt,
                whiten=whiten,
                num_data=400,
                mean_function=gpflow.functions.Constant(0.3),
            )
            parameters = [p.unconstrained_variable for p in gpflow.utilities.parameter_dict(model).values()]
            names = list(gpflow.utilities.parameter_dict(model))
            value, gradients = value_and_gradients(lambda m=model: m.elbo((X, Y)), parameters)
            values.append((value, dict(zip(names, gradients)), model.predict_y(X), model.predict_log_density((X, Y))))
    ours, theirs = values
    np.testing.assert_allclose(ours[0], theirs[0], rtol=1e-10)
    assert ours[1].keys() == theirs[1].keys()
    for name, gradient in theirs[1].items():
        np.testing.assert_allclose(ours[1][name], gradient, rtol=1e-8, atol=1e-8 * np.abs(gradient).max(), err_msg=name)
    for got, expected in zip(tf.nest.flatten(ours[2:]), tf.nest.flatten(theirs[2:])):
        np.testing.assert_allclose(got, expected, rtol=1e-9, atol=1e-10)


def test_every_datum_an_inducing_point_gives_exact_regression(rng):
    X, Y = data(rng, num=15)
    kernel = gpflow.kernels.Matern32()
    exact = gpflow.models.GPR((X, Y), kernel, noise_variance=0.2)
    with numerics.jitter_scope(0.0):
        for base, orthogonal in ((X, None), (X[:6], X[6:])):
            model = OrthogonalSVGP(kernel, gpflow.likelihoods.Gaussian(0.2), base.copy(), orthogonal)
            model.set_optimal_q((X, Y))
            Xnew = rng.normal(size=(7, 2))
            mean, covariance = model.predict_f(Xnew, full_cov=True)
            expected_mean, expected_covariance = exact.predict_f(Xnew, full_cov=True)
            np.testing.assert_allclose(mean, expected_mean, rtol=1e-8, atol=1e-9)
            if orthogonal is None:
                np.testing.assert_allclose(covariance, expected_covariance, rtol=1e-8, atol=1e-9)
                np.testing.assert_allclose(model.elbo((X, Y)), exact.log_marginal_likelihood(), rtol=1e-9)
        joint = OrthogonalSGPR((X, Y), kernel, X[:6].copy(), X[6:].copy(), noise_variance=0.2, factorised=False)
        np.testing.assert_allclose(joint.elbo(), exact.log_marginal_likelihood(), rtol=1e-9)
        for got, expected in zip(joint.predict_f(Xnew, full_cov=True), (expected_mean, expected_covariance)):
            np.testing.assert_allclose(got, expected, rtol=1e-8, atol=1e-9)


@pytest.mark.filterwarnings("ignore:.*span a space of dimension", "ignore:.*is singular")
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("whiten", [True, False])
@pytest.mark.parametrize("pair", PAIRS, ids="-".join)
@pytest.mark.parametrize("name", KERNELS)
def test_every_pair_kernel_dtype_is_finite(pair, name, whiten, dtype, rng):
    """Base and orthogonal features above the rank too, wherever that is not refused."""
    with numerics.float_context(dtype):
        kernel = KERNELS[name]()
        u = make_feature(pair[0], kernel, 2, rng, num=24, num_levels=4)
        v = make_feature(pair[1], kernel, 2, rng, num=20, num_levels=4)
        if pair[0] == "activations" and pair[1] != "points":
            u = make_feature("activations", kernel, 2, rng, num=6, num_levels=4)
        if pair == ("activations", "activations"):
            v = make_feature("activations", kernel, 2, rng, num=20, num_levels=7)
        if pair[0] == "harmonics" and pair[1] != "points":
            u = SphericalHarmonics(3, [0, 1])
            v = SphericalHarmonics(3, [2, 4]) if pair[1] == "harmonics" else v
        X = tf.constant(rng.normal(size=(30, 2)), dtype)
        Y = tf.constant(rng.normal(size=(30, 1)), dtype)
        model = OrthogonalSVGP(kernel, gpflow.likelihoods.Gaussian(0.1), u, v, whiten=whiten)
        value, gradients = value_and_gradients(lambda: model.elbo((X, Y)), model.trainable_variables)
    assert np.isfinite(value)
    assert all(np.isfinite(g).all() for g in gradients)
    assert value.dtype == dtype


@pytest.mark.parametrize("whiten", [True, False])
@pytest.mark.parametrize("covariance", ["full", "prior"])
@pytest.mark.parametrize("num_outputs", [1, 2])
def test_set_optimal_q_streams_to_the_closed_form(whiten, covariance, num_outputs, rng):
    """Identity 19: the ELBO there is the collapsed bound; any change of q lowers it."""
    X, Y = data(rng, num=101, num_outputs=num_outputs)
    kernel = ArcCosine()
    features = ActivationFeatures(rng.normal(size=(8, 3)))
    Z = rng.normal(size=(7, 2))
    model = OrthogonalSVGP(
        kernel,
        gpflow.likelihoods.Gaussian(0.05),
        features,
        Z.copy(),
        whiten=whiten,
        orthogonal_covariance=covariance,
        num_latent_gps=num_outputs,
    )
    batches = tf.data.Dataset.from_tensor_slices((X, Y)).batch(16)
    model.set_optimal_q(batches)
    streamed = model.elbo((X, Y))
    model.set_optimal_q((X, Y), batch_size=30)
    np.testing.assert_allclose(model.elbo((X, Y)), streamed, rtol=1e-9)
    if covariance == "full":
        collapsed = OrthogonalSGPR((X, Y), kernel, features, Z.copy(), noise_variance=0.05)
        np.testing.assert_allclose(streamed, collapsed.elbo(), rtol=1e-6)
        for got, expected in zip(model.predict_f(X[:5]), collapsed.predict_f(X[:5])):
            np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-7)
    parameters = [
        p for p in (model.q_mu, model.q_sqrt, model.orthogonal_q_mu, model.orthogonal_q_sqrt) if p is not None
    ]
    for parameter in parameters:
        best = parameter.numpy()
        for _ in range(3):
            parameter.assign(
                best + 1e-3 * np.tril(rng.normal(size=best.shape))
                if best.ndim == 3
                else best + 1e-3 * rng.normal(size=best.shape)
            )
            assert model.elbo((X, Y)) < streamed
        parameter.assign(best)


def test_set_optimal_q_with_noise_that_depends_on_the_input_and_with_a_mean_function(rng):
    X, Y = data(rng, num=60)
    noise = gpflow.functions.Linear(A=[[0.01], [0.02]], b=[0.3])
    likelihood = gpflow.likelihoods.Gaussian(variance=noise)
    model = OrthogonalSVGP(
        Matern52(), likelihood, X[:8].copy(), X[8:14].copy(), mean_function=gpflow.functions.Constant(0.5)
    )
    model.set_optimal_q((X, Y))
    check_stationary(model, X, Y, 1e-7)


def check_stationary(model, X, Y, tolerance):
    """At the optimum the gradient in every variational parameter is zero, relative to its size at the start."""
    parameters = [model.q_mu, model.q_sqrt, model.orthogonal_q_mu, model.orthogonal_q_sqrt]
    variables = [parameter.unconstrained_variable for parameter in parameters]
    _, gradients = value_and_gradients(lambda: model.elbo((X, Y)), variables)
    for parameter in parameters[::2]:
        parameter.assign(np.zeros(parameter.shape))
    for parameter in parameters[1::2]:
        parameter.assign(np.tile(np.eye(parameter.shape[-1]), (parameter.shape[0], 1, 1)))
    _, starts = value_and_gradients(lambda: model.elbo((X, Y)), variables)
    for gradient, start in zip(gradients, starts):
        assert np.abs(gradient).max() < tolerance * np.abs(start).max()


def test_set_optimal_q_with_a_kernel_for_each_output(rng):
    X, Y = data(rng, num=60, num_outputs=2)
    kernel = gpflow.kernels.SeparateIndependent([Matern52(), ArcCosine()])
    wrap = gpflow.inducing_variables.SharedIndependentInducingVariables
    points = [
        gpflow.inducing_variables.InducingPoints(X[:7].copy()),
        gpflow.inducing_variables.InducingPoints(X[7:12].copy()),
    ]
    model = OrthogonalSVGP(kernel, gpflow.likelihoods.Gaussian(0.1), *map(wrap, points), num_latent_gps=2)
    model.set_optimal_q((X, Y))
    check_stationary(model, X, Y, 1e-7)


def test_float32_models_keep_their_dtype_outside_of_the_context(rng):
    X, Y = (part.astype(np.float32) for part in data(rng, num=60))
    with numerics.float_context("float32"):
        model = OrthogonalSVGP(Matern52(), gpflow.likelihoods.Gaussian(0.1), X[:7].copy(), X[7:12].copy())
        collapsed = OrthogonalSGPR((X, Y), Matern52(), X[:7].copy(), X[7:12].copy(), noise_variance=0.1)
    model.set_optimal_q((X, Y))
    assert model.q_mu.dtype == np.float32
    np.testing.assert_allclose(model.elbo((X, Y)), collapsed.elbo(), rtol=1e-4)  # float32
    np.testing.assert_allclose(model.predict_f(X)[0], collapsed.predict_f(X)[0], atol=1e-3)


def test_mini_batches_average_to_the_full_bound(rng):
    X, Y = data(rng)
    model = OrthogonalSVGP(Matern52(), gpflow.likelihoods.Gaussian(), X[:5].copy(), X[5:9].copy(), num_data=40)
    batches = [float(model.elbo((X[i : i + 10], Y[i : i + 10]))) for i in range(0, 40, 10)]
    np.testing.assert_allclose(np.mean(batches), model.elbo((X, Y)), rtol=1e-12)


def test_natural_gradient_reaches_the_optimum_of_each_part(rng):
    """A step of length one in one part is its exact optimum; alternating converges to the closed form."""
    X, Y = data(rng, num=7)
    model = OrthogonalSVGP(Matern52(), gpflow.likelihoods.Gaussian(0.1), X[:3].copy(), X[3:5].copy())
    optimum = OrthogonalSVGP(
        model.kernel, model.likelihood, model.inducing_variable, model.orthogonal_inducing_variable
    )
    optimum.set_optimal_q((X, Y))
    natural = gpflow.optimizers.NaturalGradient(gamma=1.0)
    for _ in range(40):
        natural.minimize(lambda: model.training_loss((X, Y)), [(model.q_mu, model.q_sqrt)])
        natural.minimize(lambda: model.training_loss((X, Y)), [(model.orthogonal_q_mu, model.orthogonal_q_sqrt)])
    np.testing.assert_allclose(model.elbo((X, Y)), optimum.elbo((X, Y)), rtol=1e-9)


@pytest.mark.parametrize(
    "likelihood,targets",
    [
        (gpflow.likelihoods.Bernoulli(), lambda Y: (Y > 0).astype(float)),
        (gpflow.likelihoods.Poisson(), lambda Y: np.round(np.exp(Y))),
        (gpflow.likelihoods.StudentT(), lambda Y: Y),
        (gpflow.likelihoods.Exponential(), np.exp),
    ],
    ids=lambda x: type(x).__name__ if isinstance(x, gpflow.likelihoods.Likelihood) else "",
)
def test_other_likelihoods(likelihood, targets, rng):
    X, Y = data(rng)
    model = OrthogonalSVGP(ArcCosine(), likelihood, ActivationFeatures(rng.normal(size=(6, 3))), X[:5].copy())
    batch = (X, targets(Y))
    before = float(model.elbo(batch))
    gpflow.optimizers.Scipy().minimize(
        model.training_loss_closure(batch), model.trainable_variables, options={"maxiter": 15}
    )
    assert model.elbo(batch) > before
    assert np.isfinite(model.predict_log_density(batch)).all()


def test_summary_copy_and_trainable_flags(rng):
    X, Y = data(rng)
    model = OrthogonalSVGP(ArcCosine(), gpflow.likelihoods.Gaussian(), X[:5].copy(), X[5:9].copy())
    names = set(gpflow.utilities.parameter_dict(model))
    assert {
        ".kernel.variance",
        ".inducing_variable.Z",
        ".orthogonal_inducing_variable.Z",
        ".orthogonal_q_sqrt",
    } <= names
    gpflow.utilities.set_trainable(model.orthogonal_inducing_variable, False)
    copy = gpflow.utilities.deepcopy(model)
    np.testing.assert_allclose(copy.elbo((X, Y)), model.elbo((X, Y)), rtol=1e-14)
    assert len(copy.trainable_variables) == len(model.trainable_variables)


def test_bad_arguments_are_named(rng):
    X, Y = data(rng)
    with pytest.raises(ValueError, match=r"Got shape \(5, 5\)"):
        OrthogonalSVGP(Matern52(), gpflow.likelihoods.Gaussian(), X[:5].copy(), q_sqrt=np.eye(5))
    with pytest.raises(ValueError, match=r"Expected `q_mu` of shape \(5, 1\)"):
        OrthogonalSVGP(Matern52(), gpflow.likelihoods.Gaussian(), X[:5].copy(), q_mu=np.zeros((4, 1)))
    with pytest.raises(ValueError, match="Svv of .* is zero"):
        harmonics = SphericalHarmonics(3, 3)
        OrthogonalSVGP(Matern52(), gpflow.likelihoods.Gaussian(), harmonics, SphericalHarmonics(3, 3))
    with pytest.raises(ValueError, match="without `orthogonal_inducing_variable`"):
        OrthogonalSVGP(Matern52(), gpflow.likelihoods.Gaussian(), X[:5].copy(), orthogonal_q_mu=np.ones((9, 9)))
    with pytest.raises(ValueError, match="'prior' covariance there is none"):
        OrthogonalSVGP(
            Matern52(),
            gpflow.likelihoods.Gaussian(),
            X[:5].copy(),
            X[5:7].copy(),
            orthogonal_q_sqrt=np.eye(2)[None],
            orthogonal_covariance="prior",
        )
    model = OrthogonalSVGP(Matern52(), gpflow.likelihoods.Gaussian(), X[:5].copy())
    for call in (model.elbo, model.set_optimal_q):
        with pytest.raises(ValueError, match=r"Expected targets of shape \[N, 1\].*Got shape \(40, 3\)"):
            call((X, np.tile(Y, 3)))
    model = OrthogonalSVGP(Matern52(), gpflow.likelihoods.Bernoulli(), X[:5].copy())
    with pytest.raises(TypeError, match="Gaussian likelihood only. Got Bernoulli.*NaturalGradient"):
        model.set_optimal_q((X, Y))
    model = OrthogonalSVGP(Matern52(), gpflow.likelihoods.Gaussian(), X[:5].copy())
    with pytest.raises(ValueError, match="at least one batch"):
        model.set_optimal_q(iter([]))
