"""The predictive distribution: against the GPflow model, brute force, its own parts, and files."""

from __future__ import annotations

import builtins
import os
import subprocess
import sys

import gpflow
import keras
import numpy as np
import pytest
import tensorflow as tf
from builders import assert_same
from scipy import stats

import keras_odgp.predictive.mixture
from keras_odgp.gpflow_models import OrthogonalSVGP
from keras_odgp.layers import (
    BetaLikelihood,
    GammaLikelihood,
    GaussianLikelihood,
    OrthogonalGP,
    StudentTLikelihood,
    recording,
)
from keras_odgp.likelihoods import Dispersion, OutputLikelihood
from keras_odgp.losses import VariationalLoss
from keras_odgp.predictive import Predictive, plot_predictive
from keras_odgp.predictive.factors import stratified_normal

X = np.random.default_rng(0).normal(size=(11, 2))
Y = np.sin(X[:, :1]) + 0.1


@pytest.fixture(scope="module", autouse=True)
def float64():
    """Otherwise Keras rounds what `predict` is given."""
    before = keras.config.floatx()
    keras.config.set_floatx("float64")
    yield
    keras.config.set_floatx(before)


def gp(units=1, **options):
    """A small layer, whose kernel on points takes little time to trace."""
    kernel = gpflow.kernels.Matern52(variance=0.5, lengthscales=1.5)
    sizes = {"num_inducing": 5, "num_orthogonal": 4, "num_data": 11, "seed": 0}
    return OrthogonalGP(units, **{**sizes, "kernel": kernel, "features": "points", **options})


ON_SPHERE = {"kernel": "arccos", "features": "softplus"}


def make(*parts, inputs=(2,)):
    return perturbed(keras.Sequential([keras.Input(inputs), *parts]))


def perturbed(model):
    rng = np.random.default_rng(1)
    for weight in model.trainable_weights:
        weight.assign_add(0.2 * rng.normal(size=weight.shape))
    return model


def two_layers():
    return make(gp(2, initial_scale=0.5, **ON_SPHERE), gp(1, return_moments=True, **ON_SPHERE), GaussianLikelihood())


@pytest.fixture(scope="module")
def model(float64):
    return two_layers()


@pytest.fixture(scope="module")
def predictive(model):
    return Predictive(model, num_samples=8)


def predict(predictive, x=X, **options):
    return predictive.predict(x, verbose=0, **options)


def moments(predictive, x=X):
    """What `predict` returns, without the time to trace it."""
    return {name: value.numpy() for name, value in predictive(x).items()}


def assert_equal(left, right, **tolerance):
    for name in ("mean", "variance"):
        np.testing.assert_allclose(left[name], right[name], **{"rtol": 1e-12, "atol": 1e-13, **tolerance})


# Against other computations


@pytest.mark.parametrize(
    "options",
    [ON_SPHERE, {**ON_SPHERE, "features": "harmonics"}, {"whiten": False, "orthogonal_covariance": "prior"}],
)
def test_one_layer_equals_the_gpflow_model(options):
    model = make(gp(2, return_moments=True, **options), GaussianLikelihood(per_output=False))
    layer, noise = model.layers
    of = layer.posterior
    reference = OrthogonalSVGP(
        of.kernel,
        gpflow.likelihoods.Gaussian(noise.variance.numpy()),
        of.inducing_variable,
        of.orthogonal_inducing_variable,
        num_latent_gps=2,
        q_mu=of.q_mu.numpy(),
        q_sqrt=np.tril(of.q_sqrt),
        orthogonal_q_mu=of.orthogonal_q_mu.numpy(),
        orthogonal_q_sqrt=None if of.orthogonal_q_sqrt is None else np.tril(of.orthogonal_q_sqrt),
        whiten=of.whiten,
        orthogonal_covariance=of.orthogonal_covariance,
    )
    predictive = Predictive(model)
    mean, variance = reference.predict_y(X)
    assert_equal(moments(predictive), {"mean": mean, "variance": variance}, rtol=1e-10, atol=1e-10)
    y = np.hstack([Y, -Y])
    np.testing.assert_allclose(predictive.log_density(X, y), reference.predict_log_density((X, y)), rtol=1e-10)
    assert predictive.distribution(X).components_distribution.batch_shape == (11, 1)  # one sample says all


def components_by_hand(model, num_samples, seed=0):
    """Moments `[S, N, P]` of the last layer for every sample, in one call of the layer for each."""
    hidden, last, _ = model.layers
    noise = stratified_normal([num_samples, 2], (seed, 0), tf.float64)
    mean, variance, _ = hidden.marginals(tf.constant(X))
    parts = [last.marginals(mean + tf.sqrt(variance) * row)[:2] for row in noise]
    return (np.stack([np.asarray(part[index]) for part in parts]) for index in (0, 1))


def test_two_layers_equal_a_mixture_by_hand(model, predictive):
    mean, variance = components_by_hand(model, 8)
    variance = variance + model.layers[-1].variance.numpy()
    assert_equal(
        predict(predictive),
        {"mean": mean.mean(0), "variance": variance.mean(0) + mean.var(0)},
        rtol=1e-8,
    )
    density = stats.norm(mean, np.sqrt(variance)).pdf(Y)[..., 0].mean(0)
    np.testing.assert_allclose(predictive.log_density(X, Y), np.log(density), rtol=1e-8, atol=1e-8)


def test_two_layers_agree_with_brute_force(model):
    """Samples as the model itself draws them."""
    num = 4000
    few = X[:3]
    output = model(np.repeat(few, num, axis=0)).numpy().reshape(3, num, 3)
    mean, variance = output[..., 0], output[..., 1] + output[..., 2]
    density = stats.norm(mean, np.sqrt(variance)).pdf(Y[:3])
    predictive = Predictive(model, num_samples=num, seed=3)
    result = moments(predictive, few)

    def within(value, samples):  # both sides have errors of this size
        error = samples.std(axis=1) / np.sqrt(num)
        np.testing.assert_array_less(np.abs(np.ravel(value) - samples.mean(axis=1)), 5 * error)

    within(result["mean"], mean)
    within(result["variance"], variance + (mean - mean.mean(axis=1, keepdims=True)) ** 2)
    within(np.exp(predictive.log_density(few, Y[:3])), density)


def test_error_shrinks_with_samples(model):
    """At least like 1 / sqrt(S), and at the default already less than plain Monte Carlo would have."""
    exact = moments(Predictive(model, num_samples=40_000, seed=9), X[:4])
    errors = {}
    for num, seeds in ((16, 6), (256, 3), (4096, 2)):
        runs = [moments(Predictive(model, num_samples=num, seed=seed), X[:4]) for seed in range(seeds)]
        errors[num] = {
            name: np.sqrt(np.mean([(run[name] - exact[name]) ** 2 for run in runs])) for name in ("mean", "variance")
        }
    for name in ("mean", "variance"):
        assert errors[4096][name] < errors[16][name] / 8  # 16 in expectation
    components = Predictive(model, num_samples=256)._mixture.components(X[:4])[..., 0].numpy()  # [N, S, P]
    assert errors[256]["mean"] < components.std(axis=1).mean() / np.sqrt(256)


# Agreement of its parts


def test_distribution_quantiles_and_intervals(predictive):
    result, distribution = moments(predictive), predictive.distribution(X)
    assert_equal(result, {"mean": distribution.mean(), "variance": distribution.variance()}, rtol=1e-10)
    np.testing.assert_allclose(distribution.log_prob(Y), predictive.log_density(X, Y), rtol=1e-10)
    levels = np.array([[1e-4, 0.1], [0.5, 0.999]])
    values = predictive.quantiles(X, levels)
    assert values.shape == (2, 2, 11, 1)
    scalar = distribution.components_distribution.distribution  # batch [N, S, P]
    np.testing.assert_allclose(
        np.mean(scalar.cdf(values[..., None, :]), axis=-2), levels[..., None, None] * np.ones((11, 1)), rtol=1e-9
    )
    lower, upper = predictive.interval(X, 0.8)
    np.testing.assert_allclose(lower, values[0, 1], rtol=1e-12)
    np.testing.assert_allclose(upper, predictive.quantiles(X, 0.9), rtol=1e-12)


def test_sample_has_the_moments(predictive):
    samples = predictive.sample(X, 4000)
    assert samples.shape == (4000, 11, 1)
    assert_same(samples, predictive.sample(X, 4000))
    assert (samples != predictive.sample(X, 4000, seed=1)).all()
    result = predict(predictive)
    np.testing.assert_array_less(np.abs(samples.mean(0) - result["mean"]), 5 * np.sqrt(result["variance"] / 4000))
    np.testing.assert_allclose(samples.var(0), result["variance"], rtol=0.15)


def test_units_share_the_samples():
    predictive = Predictive(
        make(gp(2, initial_scale=0.5), gp(3, return_moments=True), GaussianLikelihood()), num_samples=8
    )
    y = np.hstack([Y, Y, Y])
    distribution = predictive.distribution(X)
    assert distribution.event_shape == (3,)
    np.testing.assert_allclose(distribution.log_prob(y), predictive.log_density(X, y), rtol=1e-10)
    marginals = [predictive.quantiles(X, 0.3)[:, unit] for unit in range(3)]
    assert not np.allclose(marginals[0], marginals[1])


def test_decomposition(model, predictive):
    parts = predictive.decompose(X)
    np.testing.assert_allclose(parts["noise"], np.full((11, 1), model.layers[-1].variance.numpy()), rtol=1e-10)
    np.testing.assert_allclose(parts["model"] + parts["noise"], moments(predictive)["variance"], rtol=1e-10)


def test_calls_agree_and_batches_do_not_matter(predictive, monkeypatch):
    result = predict(predictive)
    for name, value in predict(predictive).items():
        assert_same(value, result[name])
    assert_equal(predict(predictive, batch_size=4), result)
    assert_equal(predictive(X), result)
    assert_equal({name: value[::-1] for name, value in predict(predictive, X[::-1]).items()}, result)
    assert (moments(Predictive(predictive.model, num_samples=8, seed=1))["mean"] != result["mean"]).all()
    density, quantiles = predictive.log_density(X, Y), predictive.quantiles(X, 0.3)
    monkeypatch.setattr(keras_odgp.predictive.mixture, "MOST_ROWS", 24)  # three examples at a time
    chunked = Predictive(predictive.model, num_samples=8)
    assert_equal(predict(chunked), result)
    assert_equal(chunked(X), result)
    np.testing.assert_allclose(chunked.log_density(X, Y), density, rtol=1e-12)
    np.testing.assert_allclose(chunked.quantiles(X, 0.3), quantiles, rtol=1e-10)
    assert chunked.sample(X, 2).shape == (2, 11, 1)


def test_rows_in_a_pass_are_bounded(predictive):
    """Whatever the batch: the largest tensor that reaches a GP layer has a bounded number of rows."""
    rows = []
    with recording.visiting(lambda layer, inputs: rows.append(int(inputs.shape[0]))):
        predictive(np.zeros((5000, 2)))
    assert max(rows) <= keras_odgp.predictive.mixture.MOST_ROWS < 5000 * 8


# Cached factors


def operations(function):
    graph = function.graph.as_graph_def()
    return [node.op for node in graph.node] + [
        node.op for function in graph.library.function for node in function.node_def
    ]


def test_nothing_is_factorised_in_a_batch(model, predictive):
    spec = tf.TensorSpec([None, 2], tf.float64)
    found = operations(tf.function(predictive, autograph=False).get_concrete_function(spec))
    unwanted = {"Cholesky", "MatrixTriangularSolve", "SelfAdjointEigV2", "Softplus"}
    assert not unwanted.intersection(found)
    plain = operations(tf.function(model, autograph=False).get_concrete_function(spec))
    assert unwanted - {"SelfAdjointEigV2"} <= set(plain)  # so they would be found


def test_training_changes_predictions():
    model = make(gp(2, initial_scale=0.5), gp(1, return_moments=True), GaussianLikelihood())
    model.compile(optimizer=keras.optimizers.Adam(0.1), loss=VariationalLoss("gaussian"), run_eagerly=True)
    predictive = Predictive(model, num_samples=4)
    before = predict(predictive)
    density = predictive.log_density(X, Y)
    model.fit(X, Y, verbose=0)
    for after in (predict(predictive), predictive(X)):
        assert np.abs(after["mean"] - before["mean"]).min() > 1e-6
        assert_equal(after, moments(Predictive(model, num_samples=4)))
    assert np.abs(predictive.log_density(X, Y) - density).min() > 1e-6
    model(X)
    assert len(model.losses) == 2  # still those of the model


def test_factors_are_kept_while_weights_are(predictive, monkeypatch):
    predict(predictive)
    monkeypatch.setattr(tf.linalg, "cholesky", lambda *_: pytest.fail("factorised"))
    predict(predictive)
    predictive.quantiles(X, 0.5)


# Other models


def test_other_layers_between():
    inputs = keras.Input((2,))
    hidden = gp(3, initial_scale=0.5)(keras.layers.Dense(3, "tanh")(inputs))
    joined = keras.layers.Concatenate()([keras.layers.Dense(2)(hidden), inputs])
    shared = gp(4, initial_scale=0.5)
    outputs = GaussianLikelihood()(gp(1, return_moments=True)(shared(shared(joined))))
    model = perturbed(keras.Model(inputs, outputs))
    num = 3000
    result = moments(Predictive(model, num_samples=num), X[:3])
    output = model(np.repeat(X[:3], num, axis=0)).numpy().reshape(3, num, 3)
    error = output[..., 0].std(axis=1) / np.sqrt(num)
    np.testing.assert_array_less(np.abs(result["mean"][:, 0] - output[..., 0].mean(axis=1)), 5 * error)
    variance = output[..., 0].var(axis=1) + output[..., 1:].sum(axis=-1).mean(axis=1)
    np.testing.assert_allclose(result["variance"][:, 0], variance, rtol=0.1)


def test_several_inputs_and_nested_models():
    inputs = {name: keras.Input((1,), name=name) for name in ("a", "b")}
    nested = keras.Sequential([keras.Input((2,)), gp(2), gp(1, return_moments=True)])
    model = keras.Model(inputs, GaussianLikelihood()(nested(keras.layers.Concatenate()(list(inputs.values())))))
    predictive = Predictive(model, num_samples=4)
    x = {"a": X[:, :1], "b": X[:, 1:]}
    assert_equal(predictive(x), predict(predictive, x, batch_size=3))
    assert predictive.log_density(x, Y).shape == (11,)


def test_leading_axes():
    """Steps of a sequence have noise of their own, as in the model, and each its distribution."""
    model = make(gp(2, initial_scale=0.5), gp(1, return_moments=True), GaussianLikelihood(), inputs=(3, 2))
    x = np.stack([X, X, -X], axis=1)
    predictive = Predictive(model, num_samples=8)
    result = moments(predictive, x)
    assert result["mean"].shape == (11, 3, 1)
    assert (result["mean"][:, 0] != result["mean"][:, 1]).all()
    assert predictive.log_density(x, np.zeros((11, 3, 1))).shape == (11, 3)
    assert predictive.quantiles(x, [0.1, 0.9]).shape == (2, 11, 3, 1)
    assert predictive.sample(x, 5).shape == (5, 11, 3, 1)


def test_repeated_examples_are_samples():
    parts = gp(2, initial_scale=0.5), gp(1, return_moments=True), GaussianLikelihood()
    model = make(keras.layers.RepeatVector(3), *parts)
    predictive = Predictive(model, num_samples=4)
    components = predictive._mixture.components(X)
    assert components.shape == (11, 12, 1, 3)
    assert len(np.unique(components[0, :, 0, 0])) == 12
    result = moments(predictive)
    assert_equal(result, {"mean": np.mean(components[..., 0], axis=1), "variance": result["variance"]})
    assert result["variance"].shape == (11, 1)
    assert predictive.log_density(X, Y).shape == (11,)
    assert predictive.sample(X, 2).shape == (2, 11, 1)
    same = keras.Sequential([keras.Input((2,)), *parts])  # without the copies
    plain, many = (Predictive(each, num_samples=400) for each in (same, model))
    assert_equal(moments(many), moments(plain), rtol=0.02, atol=0.02)  # errors of Monte Carlo


@pytest.mark.parametrize("before", [(), (2,)], ids=["without", "with a GP before"])
def test_generated_sequences_are_no_samples(before):
    """A decoder repeats the code too, but its steps are data of their own."""
    model = make(
        keras.layers.RepeatVector(3),
        *(gp(units, initial_scale=0.5) for units in before),
        keras.layers.SimpleRNN(2, return_sequences=True, dtype="float64"),
        gp(1, return_moments=True),
        GaussianLikelihood(),
    )
    assert moments(Predictive(model))["mean"].shape == (11, 3, 1)


def test_sequences_of_any_length():
    model = make(gp(2, initial_scale=0.5), gp(1, return_moments=True), GaussianLikelihood(), inputs=(None, 2))
    predictive = Predictive(model, num_samples=4)
    for length in (2, 5):
        result = moments(predictive, np.zeros((3, length, 2)))
        assert result["variance"].shape == (3, length, 1)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_dtypes(dtype):
    model = make(
        gp(2, initial_scale=0.5, dtype=dtype, **ON_SPHERE),
        gp(1, return_moments=True, dtype=dtype, **ON_SPHERE),
        GaussianLikelihood(dtype=dtype),
    )
    predictive = Predictive(model, num_samples=4)
    result = moments(predictive)
    assert result["mean"].dtype == dtype
    np.testing.assert_allclose(
        predictive.distribution(X).log_prob(Y.astype(dtype)), predictive.log_density(X, Y), rtol=1e-4
    )
    assert np.isfinite(predictive.quantiles(X, 0.01)).all()


def test_subclassed_model():
    class Deep(keras.Model):
        def __init__(self):
            super().__init__()
            self.hidden, self.last, self.noise = gp(2), gp(1, return_moments=True), GaussianLikelihood()

        def call(self, inputs):
            return self.noise(self.last(self.hidden(inputs)))

    model = Deep()
    with pytest.raises(ValueError, match="call it on data first"):
        Predictive(model)
    model(X)
    predictive = Predictive(model, num_samples=4)
    assert_equal(predict(predictive), predictive(X))


# Other likelihoods

OTHERS = {
    "student_t": (StudentTLikelihood, Y),
    "gamma": (GammaLikelihood, np.exp(Y)),
    "beta": (BetaLikelihood, 0.5 + 0.2 * Y),
    "poisson": (None, np.arange(11.0)[:, None] % 3),
    "exponential": (None, np.exp(Y)),
    "bernoulli": (None, (Y > 0).astype(float)),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_likelihoods(name):
    layer, y = OTHERS[name]
    y = np.hstack([y, y])
    model = make(gp(2, initial_scale=0.5), gp(2, return_moments=True), *([layer()] if layer else []))
    predictive = Predictive(model, num_samples=3, likelihood=None if layer else name)
    assert predictive.likelihood == name
    result, distribution = moments(predictive), predictive.distribution(X)
    np.testing.assert_allclose(distribution.log_prob(y), predictive.log_density(X, y), rtol=1e-8)
    assert_equal(result, {"mean": distribution.mean(), "variance": distribution.variance()}, rtol=1e-6)
    parts = predictive.decompose(X)
    np.testing.assert_allclose(parts["model"] + parts["noise"], result["variance"], rtol=1e-10)
    assert (parts["noise"] > 0).all() and (parts["model"] > 0).all()
    samples = predictive.sample(X[:2], 2000)
    np.testing.assert_array_less(
        np.abs(samples.mean(0) - result["mean"][:2]), 5 * np.sqrt(result["variance"][:2] / 2000) + 1e-12
    )
    for level in (0.2, 0.7):  # fewer samples lie below a quantile than its level, and with it at least as many
        quantile = predictive.quantiles(X[:2], level)
        slack = 5 * np.sqrt(level * (1 - level) / 2000)
        assert ((samples < quantile).mean(0) <= level + slack).all()
        assert ((samples <= quantile).mean(0) >= level - slack).all()


def test_components_equal_the_likelihood():
    """The mixture under Student-t noise, written out for one component."""
    model = make(gp(1, return_moments=True), StudentTLikelihood())
    expected = OutputLikelihood("student_t").log_density(Y, model(X))
    np.testing.assert_allclose(Predictive(model).log_density(X, Y), expected, rtol=1e-10)


@pytest.mark.parametrize("hidden", [True, False])
def test_softmax(hidden):
    model = make(*([gp(2, initial_scale=0.5)] if hidden else []), gp(3, return_moments=True))
    predictive = Predictive(model, num_samples=16, likelihood="softmax")
    probabilities = predictive.probabilities(X)
    np.testing.assert_allclose(probabilities.sum(axis=-1), 1.0, rtol=1e-12)
    assert_same(probabilities, predictive.probabilities(X))
    labels = np.arange(11) % 3
    expected = np.log(probabilities[np.arange(11), labels])
    np.testing.assert_allclose(predictive.log_density(X, labels), expected, rtol=1e-10)
    np.testing.assert_allclose(predictive.distribution(X).log_prob(labels), expected, rtol=1e-10)
    result = moments(predictive)
    assert_equal(result, {"mean": probabilities, "variance": probabilities * (1 - probabilities)}, rtol=1e-10)
    assert predictive.sample(X, 4).shape == (4, 11)
    parts = predictive.decompose(X)
    np.testing.assert_allclose(parts["model"] + parts["noise"], result["variance"], rtol=1e-10)
    if not hidden:
        reference = gpflow.likelihoods.Softmax(3)
        reference.num_monte_carlo_points = 100_000
        mean, variance = np.moveaxis(model(X[:2]).numpy(), -1, 0)
        np.testing.assert_allclose(
            reference.predict_mean_and_var(X[:2], mean, variance)[0], probabilities[:2], atol=0.01
        )
    with pytest.raises(TypeError, match="no quantiles"):
        predictive.quantiles(X, 0.5)


def test_bernoulli_probabilities():
    model = make(gp(2), gp(1, return_moments=True))
    predictive = Predictive(model, num_samples=4, likelihood="bernoulli")
    probabilities = predictive.probabilities(X)
    assert probabilities.shape == (11, 2)
    np.testing.assert_allclose(probabilities[:, 1], moments(predictive)["mean"][:, 0], rtol=1e-12)
    np.testing.assert_allclose(probabilities.sum(axis=1), 1.0)


# Files


def test_save_and_load(predictive, tmp_path):
    path = tmp_path / "predictive.keras"
    predictive.save(path)
    loaded = keras.saving.load_model(path)
    assert isinstance(loaded, Predictive)
    assert (loaded.num_samples, loaded.seed, loaded.likelihood) == (8, 0, "gaussian")
    for name, value in predict(predictive).items():
        assert_same(predict(loaded)[name], value)
    assert_same(loaded.log_density(X, Y), predictive.log_density(X, Y))
    for weight in loaded.model.trainable_weights:
        weight.assign_add(keras.ops.ones_like(weight))
    loaded.load_weights(path)
    assert_equal(predict(loaded), predict(predictive))


def test_save_and_load_of_a_compiled_model(tmp_path):
    model = make(gp(1, return_moments=True), StudentTLikelihood())
    likelihood = gpflow.likelihoods.StudentT(scale=keras_odgp.likelihoods.Dispersion(), df=5.0)
    model.compile(optimizer="adam", loss=VariationalLoss(likelihood), run_eagerly=True)
    model.fit(X, Y, verbose=0)
    predictive = Predictive(model)
    assert predictive.likelihood is likelihood
    predictive.save(tmp_path / "predictive.keras")
    loaded = keras.saving.load_model(tmp_path / "predictive.keras")
    assert loaded.likelihood.df == 5.0
    assert_equal(moments(loaded), moments(predictive))


def test_export_serves_without_the_package(predictive, tmp_path):
    predictive.export(tmp_path / "served", verbose=False)
    np.save(tmp_path / "x.npy", X)
    code = (
        "import sys, numpy as np, tensorflow as tf;"
        "model = tf.saved_model.load('served'); out = model.serve(tf.constant(np.load('x.npy')));"
        "again = model.signatures['serving_default'](tf.constant(np.load('x.npy')));"
        "assert sorted(again) == ['mean', 'variance'] and not {'keras_odgp', 'gpflow'} & set(sys.modules);"
        "np.savez('out.npz', **{name: value.numpy() for name, value in out.items()})"
    )
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment, check=True)
    assert_equal(np.load(tmp_path / "out.npz"), predict(predictive))


# Errors


def test_named_errors(model, predictive):
    with pytest.raises(ValueError, match="Got none in"):
        Predictive(keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)]))
    with pytest.raises(TypeError, match="Expected a Keras model"):
        Predictive("model")
    with pytest.raises(ValueError, match="return_moments=True"):
        Predictive(make(gp(2)), likelihood="gaussian")
    with pytest.raises(ValueError, match="GaussianLikelihood"):
        Predictive(make(gp(2, return_moments=True)), likelihood="gaussian")
    with pytest.raises(ValueError, match="Give it: `Predictive"):
        Predictive(make(gp(2, return_moments=True)))
    inputs = keras.Input((2,))
    last = gp(1, return_moments=True)(inputs)
    with pytest.raises(ValueError, match="one output"):
        Predictive(keras.Model(inputs, [last, last]), likelihood="poisson")
    for num_samples in (0, 2.5, True):
        with pytest.raises(ValueError, match="`num_samples`"):
            Predictive(model, num_samples=num_samples)
    with pytest.raises(ValueError, match="`seed`"):
        Predictive(model, seed=-1)
    for call in (predict, Predictive.__call__, lambda p, x: p.quantiles(x, 0.5)):
        with pytest.raises(ValueError, match=r"Expected inputs of shape \(None, 2\).*Got shape \(.*, 3\)"):
            call(predictive, np.zeros((4, 3)))
    for q in (0.0, 1.0, [0.5, 1.2], np.nan, []):
        with pytest.raises(ValueError, match="quantiles between 0 and 1"):
            predictive.quantiles(X, q)
    with pytest.raises(ValueError, match="`level`"):
        predictive.interval(X, 95)
    with pytest.raises(ValueError, match="`n`"):
        predictive.sample(X, 0)
    with pytest.raises(ValueError, match="Expected 11 targets"):
        predictive.log_density(X, Y[:3])
    with pytest.raises(ValueError, match="Expected targets of shape"):
        predictive.log_density(X, np.zeros((11, 8)))  # as many as samples
    with pytest.raises(TypeError, match="Expected a model of classes"):
        predictive.probabilities(X)
    predictive.compile(optimizer="adam", loss="mse")
    with pytest.raises(NotImplementedError, match="train the model"):
        predictive.fit(X, Y)


class Logistic(gpflow.likelihoods.ScalarLikelihood):
    def _scalar_log_prob(self, X, F, Y):
        return Y - F - 2 * tf.nn.softplus(Y - F)

    def _conditional_mean(self, X, F):
        return F

    def _conditional_variance(self, X, F):
        return tf.fill(tf.shape(F), tf.constant(np.pi**2 / 3, F.dtype))


@pytest.mark.parametrize("df", [1.0, 1.5, 2.0])
def test_student_t_without_a_variance(df):
    likelihood = gpflow.likelihoods.StudentT(scale=Dispersion(), df=df)
    predictive = Predictive(make(gp(return_moments=True), StudentTLikelihood()), likelihood=likelihood)
    assert np.isfinite(predictive.log_density(X, Y)).all()
    for method in (predictive, predictive.decompose, predictive.distribution, predictive.sample, predictive.interval):
        with pytest.raises(ValueError, match=rf"`df` above 2.*Got: df={df}.*larger `df`.*log_density"):
            method(X)


def test_likelihood_without_a_distribution():
    model = make(gp(2), gp(1, return_moments=True))
    predictive = Predictive(model, num_samples=3, likelihood=Logistic())
    np.testing.assert_allclose(predictive.decompose(X)["noise"], np.full((11, 1), np.pi**2 / 3), rtol=1e-10)
    assert np.isfinite(predictive.log_density(X, Y)).all()
    with pytest.raises(NotImplementedError, match="Logistic"):
        predictive.distribution(X)


# Pictures


def test_pictures(predictive):
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    line = Predictive(make(gp(2, return_moments=True), GaussianLikelihood(), inputs=(1,)))
    x = np.linspace(-2, 2, 9)[::-1, None]
    ax = plot_predictive(line, x, y=(X[:, :1], np.hstack([Y, Y])))
    np.testing.assert_allclose(ax.lines[0].get_xdata(), x[::-1, 0])
    np.testing.assert_allclose(ax.lines[1].get_ydata(), predict(line, x)["mean"][::-1, 1])
    assert len(ax.collections) == 4
    assert len(plot_predictive(predictive, X, Y)) == 2
    figure, ax = plt.subplots()
    assert plot_predictive(predictive, X, Y, ax=ax) is ax
    figure.canvas.draw()
    with pytest.raises(ValueError, match=r"\[N, 1\] or \[N, 2\]"):
        plot_predictive(predictive, np.zeros((4, 3)))
    plt.close("all")


def test_missing_package_is_named(predictive, monkeypatch):
    real = builtins.__import__

    def without(name, *args, **kwargs):
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ImportError, match="pip install matplotlib"):
        plot_predictive(predictive, X)
