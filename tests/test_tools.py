"""Models within tools that people already have."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from sklearn.model_selection import cross_val_score

import keras_odgp
from keras_odgp.layers import GaussianLikelihood, OrthogonalGP
from keras_odgp.losses import VariationalLoss

NUM_DATA = 90


@pytest.fixture(scope="module")
def x():
    return np.random.default_rng(0).normal(size=(NUM_DATA, 2))


class Mean(keras.Model):
    """A model that trains on the moments of its inner model, and whose `predict` returns only what scikit-learn wants.

    Scikit-learn compares predictions with targets, but the output of a model with GP layers has moments. So `predict`
    of the wrapped model goes through a `Predictive`.
    """

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def call(self, inputs):
        return self.inner(inputs)

    def predict(self, x, **kwargs):
        likelihood = self.loss.likelihood
        return keras_odgp.Predictive(self.inner, likelihood=likelihood).predict(x, **kwargs)["mean"]


def gp(units, **kwargs):
    return OrthogonalGP(units, num_inducing=8, num_orthogonal=4, return_moments=True, seed=0, **kwargs)


def build_regressor(X, y):
    """The wrapper calls the builder with the data of each fold, so `adapt` belongs here; it passes targets `[N, 1]`."""
    model = Mean(keras.Sequential([keras.Input((X.shape[1],)), gp(1), GaussianLikelihood()]))
    model.compile(optimizer=keras.optimizers.Adam(1e-2), loss=VariationalLoss("gaussian"))
    keras_odgp.adapt(model.inner, X, y)
    return model


def build_classifier(X, y):
    """The wrapper encodes classes as one-hot rows, and takes the argmax of predictions: probabilities of classes.

    So the loss gets the argmax of the rows, and the number of classes is their width.
    """

    class Loss(VariationalLoss):
        def call(self, y_true, y_pred):
            return super().call(tf.argmax(y_true, axis=-1), y_pred)

    model = Mean(keras.Sequential([keras.Input((X.shape[1],)), gp(y.shape[1])]))
    model.compile(optimizer=keras.optimizers.Adam(3e-2), loss=Loss("softmax"))
    keras_odgp.adapt(model.inner, X)
    return model


def test_regressor(x):
    y = np.sin(x[:, 0]) + 0.05 * np.random.default_rng(1).normal(size=NUM_DATA)
    regressor = keras.wrappers.SKLearnRegressor(build_regressor, fit_kwargs={"epochs": 2, "verbose": 0})
    scores = cross_val_score(regressor, x, y, cv=2, error_score="raise")
    assert scores.shape == (2,)
    assert scores.min() > 0.5  # of the variance is explained


def test_classifier(x):
    y = np.array(["left", "middle", "right"])[np.digitize(x[:, 0], [-0.4, 0.4])]
    classifier = keras.wrappers.SKLearnClassifier(build_classifier, fit_kwargs={"epochs": 40, "verbose": 0})
    scores = cross_val_score(classifier, x, y, cv=2, error_score="raise")
    assert scores.shape == (2,)
    assert scores.min() > 0.6
