"""Likelihoods that read their parameters from a model's output are GPflow's with the parameters inside."""

from __future__ import annotations

import gpflow
import keras
import numpy as np
import pytest
import tensorflow as tf
from layers import house

from keras_odgp import layers, losses
from keras_odgp.likelihoods import Dispersion, OutputLikelihood

N, P, DISPERSION = 7, 2, 0.4
RNG = np.random.default_rng(0)
MEAN, VARIANCE = RNG.normal(size=(N, P)), RNG.uniform(0.1, 1.0, size=(N, P))
FRACTIONS, LABELS = RNG.uniform(0.1, 0.9, size=(N, P)), RNG.integers(0, 2, size=(N, P)).astype(float)
CASES = {
    "gaussian": (lambda: gpflow.likelihoods.Gaussian(variance=DISPERSION), FRACTIONS),
    "student_t": (lambda: gpflow.likelihoods.StudentT(scale=DISPERSION), FRACTIONS),
    "gamma": (lambda: gpflow.likelihoods.Gamma(shape=DISPERSION), FRACTIONS),
    "beta": (lambda: gpflow.likelihoods.Beta(scale=DISPERSION), FRACTIONS),
    "bernoulli": (gpflow.likelihoods.Bernoulli, LABELS),
    "poisson": (gpflow.likelihoods.Poisson, 3 * LABELS),
    "exponential": (gpflow.likelihoods.Exponential, FRACTIONS),
}
EVERY = pytest.mark.parametrize("name", CASES)
WITH_DISPERSION = ("gaussian", "student_t", "gamma", "beta")
# The same formulas on the same numbers, but for the lower bound of 1e-6 that GPflow adds to parameters and takes away.
TOLERANCE = {"rtol": 1e-10, "atol": 1e-12}


def output_of(name, mean=MEAN, variance=VARIANCE):
    columns = [mean, variance] + ([np.full_like(mean, DISPERSION)] if name in WITH_DISPERSION else [])
    return tf.constant(np.stack(columns, axis=-1))


@EVERY
def test_expectations_and_densities_are_those_of_gpflow(name):
    make, y = CASES[name]
    ours, theirs, output = OutputLikelihood(name), make(), output_of(name)
    x = np.zeros((N, 1))
    np.testing.assert_allclose(
        ours.variational_expectations(y, output), theirs.variational_expectations(x, MEAN, VARIANCE, y), **TOLERANCE
    )
    np.testing.assert_allclose(
        ours.log_density(y, output), theirs.predict_log_density(x, MEAN, VARIANCE, y), **TOLERANCE
    )
    for got, expected in zip(ours.mean_and_variance(output), theirs.predict_mean_and_var(x, MEAN, VARIANCE)):
        np.testing.assert_allclose(got, expected, **TOLERANCE)


@EVERY
def test_leading_axes(name):
    _, y = CASES[name]
    likelihood, output = OutputLikelihood(name), output_of(name)
    flat = likelihood.variational_expectations(y, output)
    sequences = likelihood.variational_expectations(y[:6].reshape(3, 2, P), tf.reshape(output[:6], (3, 2, P, -1)))
    np.testing.assert_allclose(sequences, tf.reshape(flat[:6], (3, 2)), **TOLERANCE)


@EVERY
def test_axis_of_samples_that_only_the_output_has(name):
    _, y = CASES[name]
    likelihood, output = OutputLikelihood(name), output_of(name)
    samples = tf.stack([output, output_of(name, MEAN + 0.3)], axis=1)  # [N, 2, P, columns]
    got = likelihood.log_density(y, samples)
    assert got.shape == (N, 2)
    np.testing.assert_allclose(got[:, 0], likelihood.log_density(y, output), **TOLERANCE)
    np.testing.assert_allclose(got[:, 1], likelihood.log_density(y, samples[:, 1]), **TOLERANCE)


def test_softmax_is_that_of_samples():
    likelihood, labels = OutputLikelihood("softmax"), np.arange(5) % 3
    rng = np.random.default_rng(1)
    mean, variance = rng.normal(size=(5, 3)), rng.uniform(0.1, 1.0, size=(5, 3))
    output = tf.constant(np.stack([mean, variance], axis=-1))
    f = mean + np.sqrt(variance) * rng.normal(size=(100_000, 5, 3))
    log_p = f - np.log(np.exp(f).sum(axis=-1, keepdims=True))
    tf.random.set_seed(0)
    # GPflow takes 100 samples, so with standard deviations of about 0.7 its own error is about 0.07: five times that.
    expected = log_p.mean(axis=0)[np.arange(5), labels]
    np.testing.assert_allclose(likelihood.variational_expectations(labels, output), expected, atol=0.35)
    np.testing.assert_allclose(likelihood.variational_expectations(labels[:, None], output).shape, expected.shape)
    probabilities, _ = likelihood.mean_and_variance(output)
    np.testing.assert_allclose(probabilities, np.exp(log_p).mean(axis=0), atol=0.2)
    np.testing.assert_allclose(np.sum(probabilities, axis=-1), 1.0, rtol=1e-6)


def test_dispersion_in_a_likelihood_of_ones_own():
    likelihood = gpflow.likelihoods.StudentT(scale=Dispersion(), df=5.0)
    ours, y = OutputLikelihood(likelihood), FRACTIONS
    theirs = gpflow.likelihoods.StudentT(scale=DISPERSION, df=5.0)
    assert ours.num_columns == 3
    np.testing.assert_allclose(
        ours.log_density(y, output_of("student_t")),
        theirs.predict_log_density(np.zeros((N, 1)), MEAN, VARIANCE, y),
        **TOLERANCE,
    )


def test_frozen_likelihood_is_taken():
    likelihood = gpflow.likelihoods.Gaussian(DISPERSION)
    gpflow.set_trainable(likelihood, False)
    ours = OutputLikelihood(likelihood)
    got = ours.variational_expectations(FRACTIONS, output_of("bernoulli"))
    expected = OutputLikelihood("gaussian").variational_expectations(FRACTIONS, output_of("gaussian"))
    np.testing.assert_allclose(got, expected, **TOLERANCE)


def test_float32_outputs():
    output = tf.cast(output_of("gaussian"), tf.float32)
    got = OutputLikelihood("gaussian").variational_expectations(FRACTIONS, output)
    assert got.dtype == tf.float32
    expected = OutputLikelihood("gaussian").variational_expectations(FRACTIONS, output_of("gaussian"))
    np.testing.assert_allclose(got, expected, rtol=1e-5)  # the precision of float32 is 6e-8; a few sums


@pytest.mark.parametrize(
    ("layer", "attribute"),
    [
        (layers.GaussianLikelihood, "variance"),
        (layers.StudentTLikelihood, "scale"),
        (layers.GammaLikelihood, "shape"),
        (layers.BetaLikelihood, "scale"),
    ],
)
def test_layers_append_their_parameter(layer, attribute):
    made = layer(**{f"initial_{attribute}": DISPERSION})
    output = made(np.stack([MEAN, VARIANCE], axis=-1))
    np.testing.assert_allclose(output, output_of("gaussian"), rtol=1e-9)
    np.testing.assert_allclose(getattr(made, attribute), [DISPERSION] * P, rtol=1e-9)


def test_noise_that_depends_on_the_input():
    rng = np.random.default_rng(0)
    x = np.linspace(-1, 1, 60)[:, None]
    y = np.where(x > 0, 0.6, 0.05) * rng.normal(size=x.shape)
    inputs = keras.Input((1,))
    process = {"kernel": gpflow.kernels.Matern52(), "features": "points"}  # which take little time to trace
    moments = layers.OrthogonalGP(1, 5, 0, num_data=60, return_moments=True, seed=0, **process)(inputs)
    noise = keras.layers.Dense(1, "softplus")(keras.layers.Dense(8, "tanh")(inputs))
    noise = keras.layers.Reshape((1, 1))(noise)
    model = keras.Model(inputs, keras.layers.Concatenate()([moments, noise]))
    keras.utils.set_random_seed(0)
    house.compiled(model, optimizer=keras.optimizers.Adam(0.05), run_eagerly=False)
    history = model.fit(x, y, batch_size=60, epochs=150, verbose=0).history["loss"]
    learned = np.asarray(model(x))[:, 0, 2]
    assert history[-1] < history[0]
    assert learned[x[:, 0] > 0.3].mean() > 5 * learned[x[:, 0] < -0.3].mean()  # in truth 144 times


def test_loss_is_the_mean_of_expectations():
    y = FRACTIONS
    loss = losses.VariationalLoss("gaussian")
    expected = -OutputLikelihood("gaussian").variational_expectations(y, output_of("gaussian"))
    np.testing.assert_allclose(loss(y, output_of("gaussian")), np.mean(expected), rtol=1e-6)  # floatx is float32


@pytest.mark.parametrize("name", ["poisson", "exponential", "gamma"])
def test_exponential_links_are_exact_below_the_bound_and_tame_above(name):
    likelihood, sign = OutputLikelihood(name), 1.0 if name == "poisson" else -1.0
    columns = 3 if name == "gamma" else 2
    y = tf.constant([[1.0]], tf.float64)

    def value(exponent):
        output = tf.stack([sign * (exponent - 0.5), tf.ones_like(exponent), *[tf.ones_like(exponent)] * (columns - 2)])
        return likelihood.variational_expectations(y, tf.reshape(output, [1, 1, columns]))[0]

    below, at, above = (tf.constant(v, tf.float64) for v in (3.0, 20.0, 1e3))
    exact = {"poisson": lambda z: z - 0.5 - tf.exp(z), "exponential": lambda z: z - 0.5 - tf.exp(z)}
    exact["gamma"] = exact["exponential"]
    np.testing.assert_allclose(value(below), exact[name](below), rtol=1e-12)
    slopes = []
    for exponent in (at, above):
        with tf.GradientTape() as tape:
            tape.watch(exponent)
            result = value(exponent)
        assert np.isfinite(result)
        slopes.append(tape.gradient(result, exponent))
    # Above, exp(20) (1 + log(1 + z - 20)) instead of exp(z); the density has z itself, too.
    np.testing.assert_allclose(slopes, [1.0 - np.exp(20.0), 1.0 - np.exp(20.0) / (1.0 + 1e3 - 20.0)], rtol=1e-9)


@pytest.mark.parametrize("name", ["poisson", "exponential", "gamma"])
@pytest.mark.parametrize("moments", [(1e3, 1.0), (1e8, 1.0), (0.0, 1e8), (0.0, 1e16), (1e8, 1e16)])
def test_absurd_moments_have_a_gradient_that_leads_back_in_float32(name, moments):
    sign = 1.0 if name == "poisson" else -1.0
    output = tf.constant([sign * moments[0], moments[1], *[1.0] * (name == "gamma")], tf.float32)[None, None]
    with tf.GradientTape() as tape:
        tape.watch(output)
        value = OutputLikelihood(name).variational_expectations(tf.constant([[2.0]], tf.float32), output)
    gradient = tape.gradient(value, output).numpy()[0, 0]
    assert np.isfinite(value) and value < -1e6
    assert np.isfinite(gradient).all() and sign * gradient[0] < 0.0 and gradient[1] < 0.0
