"""The habits of Keras users: shapes of targets, weights of data, callbacks, validation, reproducibility."""

from __future__ import annotations

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf
from builders import assert_same
from layers import house

from keras_odgp import layers
from keras_odgp.losses import VariationalLoss

X, Y = house.regression()


def two_layers():
    return house.sequential(house.gp(3, seed=1), *house.head(seed=2))


@pytest.mark.parametrize("shape", [(40,), (40, 1)])
def test_targets_without_axis_of_units(shape):
    model = house.compiled(house.sequential(*house.head(seed=0)))
    house.perturb(model)
    np.testing.assert_allclose(
        house.evaluate(model, X, Y.reshape(shape), batch_size=40),
        VariationalLoss("gaussian")(Y, model(X)) + model.losses[0],
        rtol=1e-6,  # two sums in float32
    )


def test_several_outputs():
    x, y = house.regression(num_outputs=2)
    model = house.compiled(house.sequential(*house.head(2)))
    assert np.isfinite(model.fit(x, y, verbose=0, batch_size=20).history["loss"]).all()
    assert model(x).shape == (40, 2, 3)


def test_float32_and_integer_arrays():
    model = house.compiled(house.sequential(*house.head()))
    model.train_on_batch(X.astype("float32"), Y.astype("float32"))
    model.train_on_batch(np.round(X).astype(int), np.round(Y).astype(int))
    assert np.isfinite(house.evaluate(model, X, Y))


def test_sample_weight():
    model = house.compiled(house.sequential(*house.head()))
    house.perturb(model)
    weights = np.linspace(0.0, 2.0, 40)
    got = house.evaluate(model, X, Y, sample_weight=weights, batch_size=40)
    expectations = VariationalLoss("gaussian", reduction="none")(Y, model(X))
    np.testing.assert_allclose(got, np.mean(weights * expectations) + model.losses[0], rtol=1e-6)
    history = model.fit(X, Y, sample_weight=weights, batch_size=20, verbose=0).history
    assert np.isfinite(history["loss"]).all()


def test_class_weight():
    labels = (Y[:, 0] > 0).astype(int)
    model = house.compiled(house.sequential(house.gp(1, return_moments=True)), VariationalLoss("bernoulli"))
    expectations = VariationalLoss("bernoulli", reduction="none")(labels, model(X))
    expected = np.mean((1 + 2 * labels) * expectations) + model.losses[0]
    history = model.fit(X, labels, class_weight={0: 1.0, 1: 3.0}, batch_size=40, verbose=0).history
    np.testing.assert_allclose(history["loss"][0], expected, rtol=1e-5)  # sums in float32


def test_validation_loss_is_the_negative_elbo_per_datum_of_validation_data():
    model = house.compiled(house.sequential(*house.head()))
    house.perturb(model)
    model.fit(X[:30], Y[:30], validation_data=(X[30:], Y[30:]), batch_size=15, verbose=0)
    history = model.history.history
    layer, noise = model.layers
    mean, variance = layer.posterior.fused_predict_f(X[30:].astype("float32").astype("float64"))
    sigma2 = float(noise.variance.numpy()[0])
    residual = np.asarray(Y[30:] - mean) ** 2 + np.asarray(variance)
    expectations = -0.5 * np.log(2 * np.pi * sigma2) - 0.5 * residual / sigma2
    expected = -expectations.mean() + float(layer.posterior.prior_kl()) / house.NUM_DATA
    np.testing.assert_allclose(history["val_loss"][-1], expected, rtol=1e-5)  # Keras adds losses in float32
    name = f"{layer.name}_kl"
    np.testing.assert_allclose(history[f"val_{name}"][-1], layer.posterior.prior_kl(), rtol=1e-5)
    assert history[name][-1] > 0


def test_callbacks_and_validation_split(tmp_path):
    model = house.compiled(two_layers(), optimizer=keras.optimizers.Adam(0.03))
    callbacks = [
        keras.callbacks.EarlyStopping(patience=1, restore_best_weights=True),
        keras.callbacks.ModelCheckpoint(tmp_path / "best.keras", save_best_only=True),
        keras.callbacks.ModelCheckpoint(tmp_path / "best.weights.h5", save_best_only=True, save_weights_only=True),
        keras.callbacks.ReduceLROnPlateau(patience=1),
        keras.callbacks.BackupAndRestore(tmp_path / "backup"),
        keras.callbacks.TerminateOnNaN(),
        keras.callbacks.CSVLogger(tmp_path / "log.csv"),
        keras.callbacks.LearningRateScheduler(lambda epoch, rate: 0.9 * rate),
    ]
    history = model.fit(X, Y, batch_size=18, epochs=4, validation_split=0.1, callbacks=callbacks, verbose=0).history
    assert {"loss", "val_loss", "learning_rate"} <= history.keys()
    assert np.isfinite(history["val_loss"]).all()
    np.testing.assert_allclose(history["learning_rate"][:2], [0.027, 0.0243], rtol=1e-6)
    assert len((tmp_path / "log.csv").read_text().splitlines()) == len(history["loss"]) + 1
    best = keras.saving.load_model(tmp_path / "best.keras")
    assert np.isfinite(np.asarray(best(X))).all()
    if min(history["val_loss"]) != history["val_loss"][-1]:
        model.load_weights(tmp_path / "best.weights.h5")
        for left, right in zip(model.trainable_weights, best.trainable_weights):
            np.testing.assert_array_equal(left, right)


def test_backup_goes_on_where_training_was_interrupted(tmp_path):
    class Interrupt(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            if epoch == 0:
                raise InterruptedError

    def train(model, *callbacks):
        model.fit(X, Y, batch_size=40, epochs=2, shuffle=False, verbose=0, callbacks=list(callbacks))
        return model.get_weights()

    whole = train(house.compiled(two_layers()))
    interrupted = house.compiled(two_layers())
    backup = keras.callbacks.BackupAndRestore(tmp_path / "backup")
    with pytest.raises(InterruptedError):
        train(interrupted, backup, Interrupt())
    again = train(house.compiled(two_layers()), keras.callbacks.BackupAndRestore(tmp_path / "backup"))
    for left, right in zip(whole, again):
        assert_same(left, right)


def test_terminate_on_nan_stops():
    model = house.compiled(house.sequential(*house.head()))
    history = model.fit(
        X, np.full_like(Y, np.nan), batch_size=10, epochs=3, verbose=0, callbacks=[keras.callbacks.TerminateOnNaN()]
    )
    assert len(history.history["loss"]) <= 1


def test_datasets():
    model = house.compiled(house.sequential(*house.head()))
    dataset = tf.data.Dataset.from_tensor_slices((X, Y, np.ones(40))).batch(16)
    history = model.fit(dataset, validation_data=dataset, epochs=2, verbose=0).history
    assert np.isfinite(history["loss"] + history["val_loss"]).all()
    assert model.predict(dataset.map(lambda x, y, w: x), verbose=0).shape == (40, 1, 3)


def test_nothing_is_traced_twice(monkeypatch):
    calls = []
    original = layers.OrthogonalGP.call

    @functools.wraps(original)
    def counting(self, *args, **kwargs):
        calls.append(self)
        return original(self, *args, **kwargs)

    monkeypatch.setattr(layers.OrthogonalGP, "call", counting)
    model = house.compiled(two_layers(), run_eagerly=False)

    def use_all():
        model.fit(X, Y, batch_size=20, epochs=2, validation_data=(X, Y), verbose=0)
        house.evaluate(model, X, Y, batch_size=20)
        model.predict(X, batch_size=20, verbose=0)

    use_all()
    traced = len(calls)
    use_all()
    model.layers[0].set_num_data(80)
    use_all()
    assert len(calls) == traced > 0


def test_number_of_data_counts_after_tracing():
    model = house.compiled(house.sequential(*house.head()), run_eagerly=False)
    house.perturb(model)
    one = house.evaluate(model, X, Y, batch_size=40)
    kl = float(model.layers[0].posterior.prior_kl())
    model.layers[0].set_num_data(80)
    other = house.evaluate(model, X, Y, batch_size=40)
    np.testing.assert_allclose(one - other, kl / 40 - kl / 80, atol=1e-5)  # a difference of float32 numbers


def test_seed_makes_two_runs_equal():
    runs = []
    for _ in range(2):
        keras.utils.set_random_seed(0)
        model = house.sequential(keras.layers.Dense(3), house.gp(3), keras.layers.Dense(1))
        house.compiled(model, "mse", run_eagerly=False).fit(X, Y, batch_size=20, epochs=3, verbose=0)
        runs.append([*model.get_weights(), np.asarray(model(X))])
    for left, right in zip(*runs):
        np.testing.assert_array_equal(left, right)


def test_seed_of_a_layer():
    one, same, other = (np.asarray(house.gp(2, seed=seed)(X)) for seed in (3, 3, 4))
    assert_same(one, same)
    assert np.abs(one - other).max() > 1e-3


def test_samples_differ_from_call_to_call():
    layer = house.gp(2, initial_scale=1.0)
    assert np.abs(np.asarray(layer(X)) - np.asarray(layer(X))).max() > 1e-2


def test_sequential_without_input_trains():
    model = house.compiled(keras.Sequential([house.gp(3), *house.head()]), run_eagerly=False)
    history = model.fit(X, Y, batch_size=20, epochs=2, verbose=0).history
    assert np.isfinite(history["loss"]).all()
    assert len(model.layers[0].trainable_weights) == len(house.GP_WEIGHTS)


def test_two_outputs_each_with_a_loss():
    inputs = keras.Input((3,))
    hidden = house.gp(2)(inputs)
    first = layers.GaussianLikelihood(name="first")(house.gp(1, return_moments=True)(hidden))
    second = house.gp(1, return_moments=True, name="second")(hidden)
    model = keras.Model(inputs, {"first": first, "second": second})
    house.compiled(model, {"first": VariationalLoss("gaussian"), "second": VariationalLoss("bernoulli")})
    history = model.fit(X, {"first": Y, "second": (Y > 0) * 1.0}, batch_size=20, verbose=0).history
    assert np.isfinite(history["loss"]).all()
