"""Models within tools that people already have."""

import keras
import keras_tuner
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
        return keras_odgp.Predictive(self.inner, likelihood=likelihood)(x)["mean"].numpy()


def gp(units, **kwargs):
    return OrthogonalGP(units, num_inducing=8, num_orthogonal=4, return_moments=True, seed=0, **kwargs)


def build_regressor(X, y):
    """The wrapper calls the builder with the data of each fold, so `adapt` belongs here; it passes targets `[N, 1]`."""
    model = Mean(keras.Sequential([keras.Input((X.shape[1],)), gp(1), GaussianLikelihood()]))
    model.compile(optimizer=keras.optimizers.Adam(1e-2), loss=VariationalLoss("gaussian"), run_eagerly=True)
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
    model.compile(optimizer=keras.optimizers.Adam(1e-1), loss=Loss("softmax"), run_eagerly=True)
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
    fit_kwargs = {"epochs": 40, "batch_size": 45, "verbose": 0}
    classifier = keras.wrappers.SKLearnClassifier(build_classifier, fit_kwargs=fit_kwargs)
    scores = cross_val_score(classifier, x, y, cv=2, error_score="raise")
    assert scores.shape == (2,)
    assert scores.min() > 0.6


def test_tuner_chooses_sizes(x, tmp_path):
    y = np.sin(x[:, 0])
    sizes = {}

    class Model(keras_tuner.HyperModel):
        def build(self, hp):
            layer = OrthogonalGP(
                1,
                num_inducing=hp.Choice("num_inducing", [3, 5]),
                num_orthogonal=hp.Choice("num_orthogonal", [2, 4]),
                return_moments=True,
                seed=0,
            )
            model = keras.Sequential([keras.Input((2,)), layer, GaussianLikelihood()])
            keras_odgp.adapt(model, x)
            model.compile(optimizer="adam", loss=VariationalLoss("gaussian"), run_eagerly=True)
            return model

        def fit(self, hp, model, *args, **kwargs):
            posterior = model.layers[0].posterior
            made = (posterior.q_mu.shape[0], posterior.orthogonal_q_mu.shape[0])
            sizes[hp["num_inducing"], hp["num_orthogonal"]] = made
            return model.fit(*args, **kwargs)

    tuner = keras_tuner.RandomSearch(
        Model(), objective="val_loss", max_trials=2, seed=0, directory=tmp_path, project_name="sizes"
    )
    tuner.search(x[:60], y[:60], validation_data=(x[60:], y[60:]), batch_size=60, verbose=0)
    assert len(sizes) == 2
    assert all(asked == made for asked, made in sizes.items())
    # The best model comes back from its checkpoint, with the sizes of its trial and the loss that was reported.
    best = tuner.get_best_hyperparameters()[0]
    model = tuner.get_best_models()[0]
    assert model.layers[0].posterior.q_mu.shape[0] == best["num_inducing"]
    loss = model.evaluate(x[60:], y[60:], verbose=0, return_dict=True)["loss"]
    np.testing.assert_allclose(loss, tuner.oracle.get_best_trials()[0].score, rtol=1e-6)
