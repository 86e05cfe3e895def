"""Training on two devices. Devices can only be set up before TensorFlow starts, so all of it runs in one process."""

import json
import os
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_odgp
from keras_odgp.layers import GaussianLikelihood, OrthogonalGP
from keras_odgp.losses import VariationalLoss

NUM_DATA, BATCH_SIZE, NUM_EPOCHS = 40, 20, 5  # ten steps


def make_data():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(NUM_DATA, 2))
    return x, np.sin(x[:, 0]) + 0.1 * rng.normal(size=NUM_DATA)


def make_model(*, is_deep=False):
    settings = {"num_inducing": 6, "num_orthogonal": 4, "seed": 0}
    hidden = [OrthogonalGP(2, name="hidden", **settings)] if is_deep else []
    last = OrthogonalGP(1, return_moments=True, initial_scale=0.5, name="last", **settings)
    model = keras.Sequential([keras.Input((2,)), *hidden, last, GaussianLikelihood()])
    # Unlike Adam's, steps of plain gradient descent show the scale of the gradient.
    model.compile(optimizer=keras.optimizers.SGD(1e-2, momentum=0.5), loss=VariationalLoss("gaussian"))
    return model


def train(strategy, **kwargs):
    x, y = make_data()
    with strategy.scope():
        model = make_model(**kwargs)
    keras_odgp.adapt(model, x)
    history = model.fit(x, y, batch_size=BATCH_SIZE, epochs=NUM_EPOCHS, shuffle=False, verbose=0).history
    return model, history


def loss_of_divergence(model):
    """What the divergence adds to the loss of a model."""
    losses = []
    for weight in (1.0, 0.0):
        model.get_layer("last").kl_weight.assign(weight)
        losses.append(model.evaluate(*make_data(), batch_size=BATCH_SIZE, verbose=0, return_dict=True)["loss"])
    return losses[0] - losses[1]


def noise_of_replicas(strategy):
    """Samples of a layer at the same inputs on both devices."""
    with strategy.scope():
        layer = OrthogonalGP(2, num_inducing=6, num_orthogonal=4, num_data=NUM_DATA, seed=0)
        layer.build((None, 2))
    inputs = tf.ones((3, 2), tf.float64)
    run = tf.function(lambda: strategy.run(layer, args=(inputs,)))
    return [[part.numpy().tolist() for part in run().values] for _ in range(2)]


def contexts_of_replicas(strategy):
    """Replicas may make objects of a dtype while the thread that started them is within such a context, too."""

    def replica():
        with keras_odgp.numerics.float_context("float32"):
            return tf.zeros([])

    with keras_odgp.numerics.float_context("float64"):
        return len(strategy.run(replica).values)


def main():
    device = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(device, [tf.config.LogicalDeviceConfiguration()] * 2)
    keras.config.set_floatx("float64")  # of losses and metrics
    two = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    results = {"num_replicas": two.num_replicas_in_sync}
    for name, strategy in (("one", tf.distribute.get_strategy()), ("two", two)):
        model, history = train(strategy)
        results[name] = {
            "loss": history["loss"],
            "kl": history["last_kl"],
            "weights": [np.asarray(weight).tolist() for weight in model.get_weights()],
            "loss_of_divergence": loss_of_divergence(model),
            "divergence": float(model.get_layer("last").posterior.prior_kl()),
        }
    results["start"] = [np.asarray(weight).tolist() for weight in make_model().get_weights()]
    model, history = train(two, is_deep=True)
    copies = [weight.value.values for weight in model.trainable_variables]
    results["deep"] = {
        "loss": history["loss"],
        "copies_differ": max(float(np.abs(a - b).max()) for a, b in copies),
    }
    results["samples"] = noise_of_replicas(two)
    results["contexts"] = contexts_of_replicas(two)
    print(json.dumps(results))


@pytest.fixture(scope="module")
def results():
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "-1"}
    run = subprocess.run(
        [sys.executable, __file__], capture_output=True, text=True, env=environment, timeout=300, check=False
    )
    assert run.returncode == 0, run.stderr[-4000:]
    return json.loads(run.stdout.splitlines()[-1])


def test_two_devices_train_as_one(results):
    assert results["num_replicas"] == 2
    one, two = results["one"], results["two"]
    np.testing.assert_allclose(two["loss"], one["loss"], rtol=0, atol=1e-8)
    np.testing.assert_allclose(two["kl"], one["kl"], rtol=0, atol=1e-8)
    for weight, expected in zip(two["weights"], one["weights"], strict=True):
        np.testing.assert_allclose(weight, expected, rtol=0, atol=1e-8)
    assert one["loss"][-1] < one["loss"][0] - 0.1
    assert any(np.abs(np.subtract(a, b)).max() > 1e-2 for a, b in zip(one["weights"], results["start"]))


def test_divergence_counts_once(results):
    for name in ("one", "two"):
        values = results[name]
        assert values["divergence"] > 0.1
        np.testing.assert_allclose(values["loss_of_divergence"], values["divergence"] / NUM_DATA, rtol=1e-8)


def test_deep_model_trains(results):
    loss = results["deep"]["loss"]
    assert np.isfinite(loss).all() and loss[-1] < loss[0]
    assert results["deep"]["copies_differ"] == 0.0  # of a weight, on the two devices


def test_devices_sample_independently(results):
    first, second = np.array(results["samples"])
    for a, b in ((first[0], first[1]), (second[0], second[1]), (first[0], second[0]), (first[1], second[1])):
        assert np.abs(a - b).max() > 1e-3


def test_contexts_do_not_wait_for_each_other(results):
    assert results["contexts"] == 2


if __name__ == "__main__":
    main()
