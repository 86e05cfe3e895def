"""GP layers among GP layers and among ordinary layers: each model trains, is saved, and predicts the same again."""

from __future__ import annotations

import keras
import numpy as np
import pytest
from layers import house

from keras_odgp import layers
from keras_odgp.losses import VariationalLoss

X, Y = house.regression()


def deep(*widths):
    return house.sequential(*(house.gp(width) for width in widths), *house.head())


def dense_around():
    return house.sequential(keras.layers.Dense(4, "tanh"), house.gp(2), keras.layers.Dense(3), *house.head())


def convolution_1d():
    return house.sequential(
        keras.layers.Reshape((3, 1)), keras.layers.Conv1D(2, 2), keras.layers.Flatten(), house.gp(2), *house.head()
    )


def convolution_2d():
    return house.sequential(
        keras.layers.Reshape((3, 1, 1)), keras.layers.Conv2D(2, (2, 1)), keras.layers.Flatten(), *house.head()
    )


def branches():
    inputs = keras.Input((3,))
    joined = keras.layers.Concatenate()([house.gp(2)(inputs), house.gp(1)(keras.layers.Dense(2)(inputs))])
    return keras.Model(inputs, layers.GaussianLikelihood()(house.gp(1, return_moments=True)(joined)))


def skip_connection():
    inputs = keras.Input((3,))
    hidden = keras.layers.Add()([house.gp(3)(inputs), inputs])
    joined = keras.layers.Concatenate()([house.gp(2)(hidden), inputs])
    return keras.Model(inputs, layers.GaussianLikelihood()(house.gp(1, return_moments=True)(joined)))


def shared_layer():
    inputs = keras.Input((3,))
    shared = house.gp(3, name="shared")
    last = house.gp(1, return_moments=True, name="last")
    return keras.Model(inputs, layers.GaussianLikelihood()(last(shared(shared(inputs)))))


def nested():
    return house.sequential(house.sequential(house.gp(3), keras.layers.Dense(2)), *house.head())


MODELS = {
    "1": deep,
    "2": lambda: deep(3),
    "3, narrower and wider": lambda: deep(2, 4),
    "5": lambda: deep(3, 4, 2, 2),
    "Dense": dense_around,
    "Conv1D": convolution_1d,
    "Conv2D": convolution_2d,
    "branches": branches,
    "skip": skip_connection,
    "shared": shared_layer,
    "nested": nested,
}


def check(model, tmp_path, x=X, y=Y, loss="gaussian"):
    house.compiled(model, loss)
    history = model.fit(x, y, batch_size=20, verbose=0)
    assert np.isfinite(history.history["loss"]).all()
    loaded = house.saved_and_loaded(model, tmp_path)
    house.assert_equal_predictions(model, loaded, x)
    for left, right in zip(model.get_weights(), loaded.get_weights()):
        np.testing.assert_array_equal(left, right)


@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS.keys())
def test_trains_and_comes_back(make, tmp_path):
    check(make(), tmp_path)


def test_divergence_of_a_layer_used_twice_counts_once():
    model = shared_layer()
    house.perturb(model)
    expected = [float(model.get_layer(name).posterior.prior_kl()) / house.NUM_DATA for name in ("shared", "last")]
    for _ in range(2):  # and a second call starts anew
        model(X)
        np.testing.assert_allclose(sorted(map(float, model.losses)), sorted(expected), rtol=1e-6)  # floatx is float32
    house.compiled(model, run_eagerly=False)
    state = model.get_layer("shared").seed_generator.state
    state.assign([7, 7])
    output = model(X)
    state.assign([7, 7])
    loss = house.evaluate(model, X, Y, batch_size=40)
    np.testing.assert_allclose(loss, VariationalLoss("gaussian")(Y, output) + sum(expected), rtol=1e-5)  # as above


def test_mixed_precision_policy_does_not_disturb(mixed_float16, tmp_path):
    model = house.sequential(keras.layers.Dense(3, "tanh"), house.gp(2), *house.head())
    assert {weight.dtype for layer in model.layers[1:] for weight in layer.weights} == {"float64"}
    check(model, tmp_path)
    assert model(X).dtype == "float64"


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_ordinary_loss_on_samples(dtype, tmp_path):
    check(house.sequential(keras.layers.Dense(4, "tanh"), house.gp(1, dtype=dtype)), tmp_path, loss="mse")


def test_hidden_layer_in_an_ordinary_network_learns():
    model = house.sequential(keras.layers.Dense(4, "tanh"), house.gp(3), keras.layers.Dense(1))
    house.compiled(model, "mse", optimizer=keras.optimizers.Adam(3e-2), run_eagerly=False)
    losses = model.fit(X, Y, epochs=60, batch_size=20, verbose=0).history["loss"]
    assert np.mean(losses[-5:]) < 0.7 * np.mean(losses[:5])


def test_classification_with_crossentropy(tmp_path):
    labels = (Y[:, 0] > 0).astype(int)
    model = house.sequential(house.gp(3), keras.layers.Dense(2, "softmax"))
    check(model, tmp_path, y=labels, loss="sparse_categorical_crossentropy")


def test_leading_axes_are_like_those_of_dense():
    layer = house.gp(2, return_moments=True)
    x = np.random.default_rng(0).normal(size=(4, 5, 3))
    output = layer(x)
    assert output.shape == (4, 5, 2, 2) == layer.compute_output_shape(x.shape)
    np.testing.assert_allclose(output[:, 2], layer(x[:, 2]), rtol=1e-10, atol=1e-12)  # another order of sums
    assert house.gp(2)(x).shape == (4, 5, 2)


def test_samples_have_the_moments():
    hidden = house.gp(1, features="points", initial_scale=0.5, seed=0)
    x = np.repeat(X[:1], 20_000, axis=0)
    samples = hidden(x).numpy()
    mean, variance, _ = hidden.marginals(np.asarray(x[:1], np.float64))
    # Four standard errors of 20,000 samples: of the mean, and of the variance of a normal distribution.
    assert abs(samples.mean() - float(mean[0, 0])) < 4 * np.sqrt(float(variance[0, 0]) / 20_000)
    assert abs(samples.var() / float(variance[0, 0]) - 1) < 4 * np.sqrt(2 / 20_000)


def keras_casts_masks():
    """Whether an input keeps its mask if a layer, any one, casts it: not in Keras 3.12."""
    masked = keras.layers.Masking(dtype="float32")(np.ones((1, 2, 1)))
    return getattr(keras.layers.Dense(1, dtype="float64")(masked), "_keras_mask", None) is not None


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_masked_steps_do_not_count(dtype):
    if dtype == "float32" and not keras_casts_masks():
        pytest.skip(f"Keras {keras.__version__} loses masks of inputs that it casts; docs/sharp_bits.md says so")
    x = np.random.default_rng(0).normal(size=(10, 4, 3))
    x[:, 2:] = 0.0
    model = keras.Sequential(
        [
            keras.Input((4, 3)),
            keras.layers.Masking(dtype=dtype),
            layers.OrthogonalGP(1, 6, 5, num_levels=4, return_moments=True, num_data=10),
            layers.GaussianLikelihood(),
        ]
    )
    model.compile(loss=VariationalLoss("gaussian"), run_eagerly=True)
    values = [model.evaluate(x, np.tile([0.0, 0.0, y, y], (10, 1)), verbose=0)[0] for y in (0.0, 1e3)]
    np.testing.assert_allclose(*values)


def test_within_time_distributed():
    layer = layers.OrthogonalGP(2, 6, 5, num_levels=4, num_data=10)
    model = keras.Sequential([keras.Input((4, 3)), keras.layers.TimeDistributed(layer)])
    assert model(np.ones((5, 4, 3))).shape == (5, 4, 2)


def test_subclassed_models_come_and_go():
    class Model(keras.Model):
        def __init__(self):
            super().__init__()
            self.layer = layers.OrthogonalGP(2, 3, 0, features="points", num_data=10)

        def call(self, inputs):
            return self.layer(inputs)

    models = []
    for _ in range(30):
        models.append(Model())
        assert models[-1](np.ones((2, 3))).shape == (2, 2)
