"""Start values of kernel and noise."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_odgp
from keras_odgp.layers import GaussianLikelihood, OrthogonalGP
from keras_odgp.losses import VariationalLoss

RNG = np.random.default_rng(0)
X = RNG.normal(size=(150, 2))
Y = np.sin(2.0 * X[:, 0]) + 0.05 * RNG.normal(size=150)


@pytest.fixture(autouse=True)
def eagerly():
    """A few evaluations are sooner done than compiled."""
    tf.config.run_functions_eagerly(True)
    yield
    tf.config.run_functions_eagerly(False)


def gp(units=1, **kwargs):
    return OrthogonalGP(units, 8, 8, seed=0, **kwargs)


def make(*layers):
    model = keras.Sequential([keras.Input((2,), dtype="float64"), *layers, GaussianLikelihood()])
    model.compile("adam", VariationalLoss("gaussian"))
    return model


def hyperparameters(model):
    *_, layer, noise = model.layers
    kernel = layer.kernel
    return [np.array(part) for part in (kernel.variance, kernel.weight_variances, kernel.bias_variance, noise.variance)]


def elbo(model):
    return -model.evaluate(X, Y, verbose=0, return_dict=True)["loss"]


def test_start_is_a_better_bound_and_near_where_it_is_best():
    fixed, model = make(gp(return_moments=True)), make(gp(return_moments=True))
    fixed.trainable = False
    for one in (fixed, model):
        keras_odgp.adapt(one, X, Y)
    assert elbo(model) > elbo(fixed) + 0.3
    best = elbo(model)
    variance = model.layers[1].variance.numpy()
    for factor in (0.5, 2.0):
        model.layers[1].variance.assign(factor * variance)
        assert elbo(model) < best


def test_only_what_training_would_change_moves():
    model = make(gp(return_moments=True))
    before = hyperparameters(model)
    model.trainable = False
    keras_odgp.adapt(model, X, Y)
    for one, other in zip(hyperparameters(model), before):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("case", ["deep", "no targets"])
def test_deep_models_and_starts_without_targets_keep_their_kernels(case):
    model = make(*([gp(2)] if case == "deep" else []), gp(return_moments=True))
    before = hyperparameters(model)
    keras_odgp.adapt(model, X, Y if case == "deep" else None)
    for one, other in zip(hyperparameters(model), before):
        np.testing.assert_array_equal(one, other)


def test_constant_targets():
    model = make(gp(return_moments=True))
    keras_odgp.adapt(model, X, np.zeros(150))
    assert np.isfinite(elbo(model))
