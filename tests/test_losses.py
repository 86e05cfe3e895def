from __future__ import annotations

import gpflow
import keras
import numpy as np
import pytest
import tensorflow as tf
from builders import assert_same
from layers import house

from keras_odgp import layers
from keras_odgp.likelihoods import Dispersion, OutputLikelihood
from keras_odgp.losses import VariationalLoss

X, Y = house.regression()
POSITIVE, BINARY = 1.0 / (1.0 + np.exp(-Y)), (Y > 0) * 1.0
CASES = {
    "gaussian": (layers.GaussianLikelihood, Y),
    "student_t": (layers.StudentTLikelihood, Y),
    "gamma": (layers.GammaLikelihood, POSITIVE),
    "beta": (layers.BetaLikelihood, POSITIVE),
    "bernoulli": (None, BINARY),
    "poisson": (None, 2 * BINARY),
    "exponential": (None, POSITIVE),
    "softmax": (None, BINARY.astype(int)),
}


def make(name):
    layer, _ = CASES[name]
    units = 3 if name == "softmax" else 1
    return house.sequential(house.gp(units, return_moments=True), *([layer()] if layer else []))


@pytest.mark.parametrize("name", CASES)
def test_trains_and_comes_back(name, tmp_path):
    model = house.compiled(make(name), VariationalLoss(name))
    losses = model.fit(X, CASES[name][1], batch_size=40, epochs=3, verbose=0).history["loss"]
    assert np.isfinite(losses).all()
    assert losses[-1] < losses[0] or name == "softmax"  # whose expectations are those of a few samples
    loaded = house.saved_and_loaded(model, tmp_path)
    assert loaded.loss.likelihood == name
    house.assert_equal_predictions(model, loaded, X)


LIKELIHOODS = {
    "Bernoulli": gpflow.likelihoods.Bernoulli,
    "sigmoid": lambda: gpflow.likelihoods.Bernoulli(invlink=tf.nn.sigmoid),
    "Poisson": lambda: gpflow.likelihoods.Poisson(binsize=2.0),
    "StudentT": lambda: gpflow.likelihoods.StudentT(scale=Dispersion(), df=5.0),
    "MultiClass": lambda: gpflow.likelihoods.MultiClass(3),
}


@pytest.mark.parametrize("make_likelihood", LIKELIHOODS.values(), ids=LIKELIHOODS.keys())
def test_gpflow_likelihoods_are_saved(make_likelihood):
    loss = VariationalLoss(make_likelihood())
    house.check_config(loss)
    again = VariationalLoss.from_config(loss.get_config())
    assert type(again.likelihood) is type(loss.likelihood)
    units = 3 if isinstance(loss.likelihood, gpflow.likelihoods.MultiClass) else 1
    output = np.random.default_rng(0).uniform(0.1, 1, size=(40, units, OutputLikelihood(loss.likelihood).num_columns))
    assert_same(loss(BINARY, output), again(BINARY, output))


def test_frozen_likelihood_stays_frozen_when_saved():
    likelihood = gpflow.likelihoods.Gaussian(0.3)
    gpflow.set_trainable(likelihood, False)
    again = VariationalLoss.from_config(VariationalLoss(likelihood).get_config())
    np.testing.assert_allclose(again.likelihood.variance, 0.3, rtol=1e-12)
    assert not again.likelihood.trainable_parameters


@pytest.mark.parametrize("reduction", ["sum_over_batch_size", "sum", "none", None, "mean"])
def test_reductions(reduction):
    output = np.random.default_rng(0).uniform(0.1, 1, size=(40, 1, 3))
    single = -OutputLikelihood("gaussian").variational_expectations(Y, output).numpy()
    loss = VariationalLoss("gaussian", reduction=reduction)
    expected = {"sum": single.sum(), "none": single, None: single}.get(reduction, single.mean())
    np.testing.assert_allclose(loss(Y, output), expected, rtol=1e-6)  # the value is of Keras's float32


def test_value_is_of_floatx_whatever_the_dtype_of_outputs():
    for dtype in ("float64", "float32"):
        output = tf.ones((40, 1, 3), dtype)
        assert VariationalLoss("gaussian")(Y, output).dtype == keras.config.floatx()


def test_samples_of_a_datum_are_averaged():
    output = np.random.default_rng(0).uniform(0.1, 1, size=(40, 5, 1, 3))
    loss = VariationalLoss("gaussian")
    expected = np.mean([loss(Y, output[:, i]) for i in range(5)])
    np.testing.assert_allclose(loss(Y, output), expected, rtol=1e-6)  # the value is of Keras's float32
    np.testing.assert_allclose(loss(Y[:, 0], output), expected, rtol=1e-6)
    weights = np.linspace(0, 1, 40)
    expected = np.mean([loss(Y, output[:, i], sample_weight=weights) for i in range(5)])
    np.testing.assert_allclose(loss(Y, output, sample_weight=weights), expected, rtol=1e-6)


def test_as_many_data_as_samples_are_told_apart():
    output = np.random.default_rng(0).uniform(0.1, 1, size=(4, 4, 1, 3))
    loss = VariationalLoss("gaussian")
    expected = np.mean([loss(Y[:4], output[:, i]) for i in range(4)])
    np.testing.assert_allclose(loss(Y[:4], output), expected, rtol=1e-6)
