"""Scores: textbook values, batches, weights, and life inside a Keras model."""

import itertools
import sys

import gpflow
import hypothesis
import keras
import numpy as np
import pytest
import scipy.integrate
import scipy.stats
import tensorflow as tf
from hypothesis import strategies as st

import keras_odgp
from keras_odgp import metrics

MOMENTS = {
    "RMSE": lambda y, mean, variance: metrics.rmse(y, mean),
    "MAE": lambda y, mean, variance: metrics.mae(y, mean),
    "NLPD": metrics.nlpd,
    "CRPS": metrics.crps,
    "Coverage": metrics.coverage,
    "CalibrationError": metrics.calibration_error,
}


def make_output(rng, *lead, units=1):
    """Targets, and an output with its predictive mean and variance, which is too sure of itself."""
    mean, noise = rng.normal(size=(*lead, units)), rng.uniform(0.1, 0.5, (*lead, units))
    variance = rng.uniform(0.1, 0.5, (*lead, units))
    y = mean + 1.5 * np.sqrt(variance + noise) * rng.normal(size=mean.shape)
    return y, np.stack([mean, variance, noise], axis=-1), mean, variance + noise


def evaluate(metric, y, output, cuts=(), weights=None):
    metric.reset_state()
    edges = [0, *sorted(cuts), len(y)]
    for start, stop in itertools.pairwise(edges):
        rows = slice(start, stop)
        metric.update_state(y[rows], output[rows], None if weights is None else weights[rows])
    return float(metric.result())


@pytest.mark.parametrize("name", MOMENTS)
@hypothesis.given(data=st.data())
def test_any_batches_give_the_value_of_the_array_function(name, data):
    size, units = data.draw(st.integers(1, 12)), data.draw(st.integers(1, 3))
    cuts = data.draw(st.lists(st.integers(0, size), max_size=4))
    y, output, mean, variance = make_output(np.random.default_rng(size), size, units=units)
    metric = getattr(metrics, name)(dtype="float64")
    np.testing.assert_allclose(evaluate(metric, y, output, cuts), MOMENTS[name](y, mean, variance), rtol=1e-10)


@pytest.mark.parametrize("name", MOMENTS)
@hypothesis.given(repeats=st.lists(st.integers(0, 3), min_size=8, max_size=8).filter(any), column=st.booleans())
def test_weights_count_like_repeated_rows(name, repeats, column):
    y, output, mean, variance = make_output(np.random.default_rng(0), 8, units=2)
    weights = np.array(repeats)[:, None] if column else np.array(repeats)
    metric = getattr(metrics, name)(dtype="float64")
    repeated = MOMENTS[name](*(np.repeat(array, repeats, axis=0) for array in (y, mean, variance)))
    np.testing.assert_allclose(evaluate(metric, y, output, [3], weights), repeated, rtol=1e-10)


def test_textbook_values(rng):
    y, _, mean, variance = make_output(rng, 20)
    deviation = np.sqrt(variance)
    np.testing.assert_allclose(metrics.rmse(y, mean), np.sqrt(np.mean((y - mean) ** 2)))
    np.testing.assert_allclose(metrics.mae(y, mean), np.mean(np.abs(y - mean)))
    np.testing.assert_allclose(metrics.nlpd(y, mean, variance), -scipy.stats.norm.logpdf(y, mean, deviation).mean())
    for level in (0.1, 0.5, 0.95):
        low, high = scipy.stats.norm.interval(level, mean, deviation)
        assert metrics.coverage(y, mean, variance, level) == np.mean((low <= y) & (y <= high))
    levels = np.arange(0.05, 0.99, 0.05)
    observed = np.array([metrics.coverage(y, mean, variance, level) for level in levels])
    np.testing.assert_allclose(metrics.calibration_error(y, mean, variance), np.abs(observed - levels).mean())


def test_units_add_up_in_the_density(rng):
    y, _, mean, variance = make_output(rng, 20, units=3)
    columns = [metrics.nlpd(*(array[:, i] for array in (y, mean, variance))) for i in range(3)]
    np.testing.assert_allclose(metrics.nlpd(y, mean, variance), sum(columns))


@pytest.mark.parametrize(
    ("y", "mean", "variance"), [(0.3, 0.0, 1.0), (-4.0, 0.5, 0.2), (1.0, 1.0, 2.0), (9.0, 0.0, 4.0)]
)
def test_crps_is_the_integral_that_defines_it(y, mean, variance):
    cdf = scipy.stats.norm(mean, np.sqrt(variance)).cdf
    below = scipy.integrate.quad(lambda x: cdf(x) ** 2, mean - 40.0, y, points=[mean], limit=200)[0]
    above = scipy.integrate.quad(lambda x: (1.0 - cdf(x)) ** 2, y, mean + 40.0, points=[mean], limit=200)[0]
    np.testing.assert_allclose(metrics.crps([y], [mean], [variance]), below + above, rtol=1e-7)


def test_coverage_of_constructed_data_is_exact():
    """Standardised residuals at the quantiles of a Gaussian: as many lie in each interval as its level says."""
    quantiles = (np.arange(1000) + 0.5) / 1000
    y, mean, variance = 3.0 + 2.0 * scipy.stats.norm.ppf(quantiles), np.full(1000, 3.0), np.full(1000, 4.0)
    for level in (0.25, 0.5, 0.9):
        assert metrics.coverage(y, mean, variance, level) == level
    assert metrics.calibration_error(y, mean, variance) < 1e-3
    assert metrics.calibration_error(y, mean, 4.0 * variance) > 0.1


def test_coverage_of_well_specified_predictions_lies_in_its_binomial_interval(rng):
    mean, variance = rng.normal(size=2000), rng.uniform(0.1, 2.0, 2000)
    y = mean + np.sqrt(variance) * rng.normal(size=2000)
    low, high = scipy.stats.binom.interval(0.999, 2000, 0.9)
    assert low <= 2000 * metrics.coverage(y, mean, variance, 0.9) <= high


def test_nlpd_is_that_of_gpflow(rng):
    y, output, _, _ = make_output(rng, 10)
    output[..., 2] = 0.3
    X, mean, variance = np.zeros((10, 1)), output[..., 0], output[..., 1]
    for name, likelihood in (
        ("gaussian", gpflow.likelihoods.Gaussian(0.3)),
        ("student_t", gpflow.likelihoods.StudentT(0.3)),
    ):
        expected = -np.mean(likelihood.predict_log_density(X, mean, variance, y))
        np.testing.assert_allclose(evaluate(metrics.NLPD(name, dtype="float64"), y, output), expected, rtol=1e-8)


def test_scores_of_classes(rng):
    logits, variance = 2.0 * rng.normal(size=(40, 3)), rng.uniform(0.1, 0.5, (40, 3))
    labels = rng.integers(0, 3, (40, 1))
    output, likelihood = np.stack([logits, variance], axis=-1), gpflow.likelihoods.Softmax(3)
    tf.random.set_seed(1)
    expected = -np.mean(likelihood.predict_log_density(np.zeros((40, 1)), logits, variance, labels))
    probabilities, _ = likelihood.predict_mean_and_var(np.zeros((40, 1)), logits, variance)
    np.testing.assert_allclose(evaluate(metrics.NLPD("softmax"), labels, output), expected, rtol=0.05)
    assert abs(evaluate(metrics.Accuracy(), labels, output) - metrics.accuracy(labels, probabilities)) <= 2 / 40
    assert evaluate(metrics.Accuracy(), labels[:, 0], output * [1.0, 1e-6]) == np.mean(logits.argmax(1) == labels[:, 0])


def test_scores_of_binary_labels(rng):
    output, y = rng.uniform(0.1, 2.0, (30, 2, 2)) - [1.0, 0.0], rng.integers(0, 2, (30, 2))
    hits = (output[..., 0] > 0) == y
    weights = rng.uniform(size=30)
    assert evaluate(metrics.Accuracy("bernoulli", dtype="float64"), y, output, [7]) == pytest.approx(hits.mean())
    weighted = evaluate(metrics.Accuracy("bernoulli", dtype="float64"), y, output, [7], weights)
    assert weighted == pytest.approx(np.average(hits.mean(axis=1), weights=weights))
    assert metrics.accuracy(y, scipy.stats.norm.cdf(output[..., 0])) == hits.mean()
    assert metrics.accuracy(y[:, 0], scipy.stats.norm.cdf(output[:, :1, 0])) == hits[:, 0].mean()


@pytest.mark.parametrize("name", MOMENTS)
def test_sequences_and_samples(name, rng):
    y, output, mean, variance = make_output(rng, 5, 4, units=2)
    metric = getattr(metrics, name)(dtype="float64")
    flat = MOMENTS[name](*(array.reshape(20, 2) for array in (y, mean, variance)))
    np.testing.assert_allclose(evaluate(metric, y, output, [2]), flat)
    keep = np.arange(4) < np.arange(5)[:, None]  # sequences of different lengths
    kept = MOMENTS[name](*(array[keep] for array in (y, mean, variance)))
    np.testing.assert_allclose(evaluate(metric, y, output, [2], keep), kept)
    repeated = np.repeat(y[:, :1], 4, axis=1)  # targets of samples of a hidden layer
    sampled = MOMENTS[name](*(array.reshape(20, 2) for array in (repeated, mean, variance)))
    np.testing.assert_allclose(evaluate(metric, y[:, 0], output, [2], np.ones((5, 1))), sampled)


def test_sums_are_kept_in_double_precision():
    """In float32 a count would stop at 2 ** 24."""
    metric = metrics.MAE()
    metric.update_state(np.zeros(1), np.array([[[1.0, 1.0, 1.0]]]), np.array([2.0**24]))
    metric.update_state(np.zeros(1), np.array([[[2.0, 1.0, 1.0]]]))
    assert [variable.dtype for variable in metric.variables] == ["float64", "float64"]
    assert float(metric._count) == 2.0**24 + 1.0
    assert metric.result().dtype == keras.config.floatx()
    metric.reset_state()
    assert float(metric.result()) == 0.0


@pytest.mark.parametrize(
    "metric",
    [
        metrics.RMSE("student_t"),
        metrics.MAE(gpflow.likelihoods.StudentT(keras_odgp.likelihoods.Dispersion(), df=5.0)),
        metrics.NLPD("softmax", name="density"),
        metrics.CRPS(dtype="float64"),
        metrics.Coverage(0.8),
        metrics.CalibrationError(5),
        metrics.Accuracy("bernoulli"),
    ],
    ids=lambda metric: type(metric).__name__,
)
def test_configuration_round_trip(metric):
    config = keras.saving.serialize_keras_object(metric)
    copy = keras.saving.deserialize_keras_object(config)
    assert type(copy) is type(metric) and copy.get_config() == metric.get_config()
    assert copy.output_likelihood.name == metric.output_likelihood.name


@pytest.fixture(scope="module")
def compiled():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(50, 2)).astype("float32")
    y = (np.sin(x[:, 0]) + 0.3 * rng.normal(size=50)).astype("float32")
    model = keras.Sequential(
        [
            keras.Input((2,)),
            keras_odgp.layers.OrthogonalGP(1, 6, 6, return_moments=True, num_data=50, seed=0),
            keras_odgp.layers.GaussianLikelihood(),
        ]
    )
    q_mu = model.layers[0].posterior.q_mu
    q_mu.assign(rng.normal(size=q_mu.shape))
    scores = [getattr(metrics, name)() for name in MOMENTS]
    weighted = [getattr(metrics, name)(name=f"weighted_{name.lower()}") for name in MOMENTS]
    loss = keras_odgp.losses.VariationalLoss("gaussian")
    model.compile(optimizer="adam", loss=loss, metrics=scores, weighted_metrics=weighted)
    return model, x, y


def test_in_a_compiled_model(compiled):
    model, x, y = compiled
    weights = np.tile([0, 2], 25)
    logs = model.evaluate(x, y, sample_weight=weights, batch_size=16, verbose=0, return_dict=True)
    output = model.predict(x, verbose=0)[:, 0]
    mean, variance = output[:, 0], output[:, 1] + output[:, 2]
    for name, function in MOMENTS.items():
        key = getattr(metrics, name)().name
        np.testing.assert_allclose(logs[key], function(y, mean, variance), rtol=1e-5)
        heavy = function(y[1::2], mean[1::2], variance[1::2])
        np.testing.assert_allclose(logs[f"weighted_{name.lower()}"], heavy, rtol=1e-5)


def test_saved_with_the_model(compiled, tmp_path):
    model, x, y = compiled
    model.save(tmp_path / "model.keras")
    copy = keras.models.load_model(tmp_path / "model.keras")
    values, copied = (m.evaluate(x, y, verbose=0, return_dict=True) for m in (model, copy))
    assert set(copied) == set(values) and {"rmse", "calibration_error", "weighted_nlpd"} <= set(copied)
    for key, value in values.items():
        np.testing.assert_allclose(copied[key], value, rtol=1e-6, err_msg=key)


def test_wrong_outputs_and_likelihoods_are_named():
    y = np.zeros(4)
    with pytest.raises(ValueError, match=r"Expected a model output of shape \[..., units, 3\].*GaussianLikelihood"):
        metrics.RMSE().update_state(y, np.ones((4, 1, 2)))
    with pytest.raises(ValueError, match=r"Got shape \(4, 1\).*return_moments=True"):
        metrics.NLPD("bernoulli").update_state(y, np.ones((4, 1)))
    with pytest.raises(ValueError, match=r"Expected targets of shape \[4, 1\] or \[4\].*Got shape \(5,\)"):
        metrics.CRPS().update_state(np.zeros(5), np.ones((4, 1, 3)))
    with pytest.raises(ValueError, match="CRPS has no meaning under the likelihood 'bernoulli'.*Accuracy"):
        metrics.CRPS("bernoulli")
    with pytest.raises(ValueError, match="RMSE has no meaning under the likelihood 'Softmax'"):
        metrics.RMSE(gpflow.likelihoods.Softmax(3))
    with pytest.raises(ValueError, match="Accuracy has no meaning under the likelihood 'gaussian'.*'softmax'"):
        metrics.Accuracy("gaussian")
    for weights in (np.ones((4, 2)), np.ones(3)):
        with pytest.raises(ValueError, match=r"Expected sample weights of shape \[N\]"):
            metrics.MAE().update_state(y, np.ones((4, 1, 3)), weights)


def test_wrong_arguments_are_named():
    for level in (0.0, 1.0, 95):
        with pytest.raises(ValueError, match="Expected `level` between 0 and 1"):
            metrics.Coverage(level)
    with pytest.raises(ValueError, match="Expected `num_levels` to be an integer"):
        metrics.CalibrationError(0)
    with pytest.raises(ValueError, match=r"Expected targets of shape \(4, 2\), that of the means. Got shape \(4,\)"):
        metrics.rmse(np.zeros(4), np.zeros((4, 2)))
    assert metrics.rmse(np.arange(4.0), np.arange(4.0)[:, None]) == 0.0  # not all pairs of rows
    with pytest.raises(ValueError, match="Expected variances above 0"):
        metrics.nlpd([0.0], [0.0], 0.0)
    for function in (metrics.mae, metrics.accuracy):
        with pytest.raises(ValueError, match="Got none"):
            function([], [])
    with pytest.raises(ValueError, match=r"Got labels of shape \(3,\) and probabilities of shape \(4, 2\)"):
        metrics.accuracy(np.zeros(3), np.zeros((4, 2)))


def test_calibration_plot(rng, monkeypatch):
    y, _, mean, variance = make_output(rng, 50)
    figure = pytest.importorskip("matplotlib.figure").Figure()
    ax = figure.add_subplot()
    assert metrics.plot_calibration(y, mean, variance, ax) is ax
    levels, observed = ax.get_lines()[1].get_data()
    assert observed[10] == metrics.coverage(y, mean, variance, levels[10])
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ImportError, match="pip install matplotlib"):
        metrics.plot_calibration(y, mean, variance)
