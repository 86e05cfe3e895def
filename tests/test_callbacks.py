"""Callbacks during short training."""

import importlib.util
import json
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request

import gpflow
import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_odgp import callbacks, numerics
from keras_odgp.layers import GaussianLikelihood, OrthogonalGP
from keras_odgp.losses import VariationalLoss
from keras_odgp.metrics import NLPD

NUM_DATA = 24


def gp(units, **kwargs):
    return OrthogonalGP(units, **{"num_inducing": 6, "num_orthogonal": 4, "num_data": NUM_DATA, "seed": 0, **kwargs})


def make_data():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(NUM_DATA, 2))
    return x, np.sin(x[:, 0]) + 0.1 * rng.normal(size=NUM_DATA)


def fit(model, *extra, learning_rate=1e-2, **kwargs):
    optimizer = keras.optimizers.Adam(learning_rate)
    model.compile(optimizer=optimizer, loss=VariationalLoss("gaussian"), metrics=[NLPD()])
    return model.fit(*make_data(), batch_size=12, verbose=0, callbacks=list(extra), **kwargs).history


def read_events(directory):
    """Values of all tags: lists of pairs of step and value."""
    values = {}
    for path in sorted(directory.glob("events*")):
        for record in tf.data.TFRecordDataset(str(path)):
            event = tf.compat.v1.Event.FromString(record.numpy())
            for value in event.summary.value:
                values.setdefault(value.tag, []).append((event.step, tf.make_ndarray(value.tensor)))
    return values


@pytest.fixture(scope="module")
def logged(tmp_path_factory):
    """A model with a GP layer inside a model, its history, and what was logged."""
    directory = tmp_path_factory.mktemp("logs")
    hidden = keras.Sequential([keras.Input((2,)), gp(2, features="harmonics", name="inner")], name="nested")
    kernel = gpflow.kernels.Matern52(lengthscales=[1.0, 2.0])
    outer = gp(1, kernel=kernel, features="points", return_moments=True, name="outer")
    model = keras.Sequential([keras.Input((2,)), hidden, outer, GaussianLikelihood(name="noise")])
    board = callbacks.TensorBoard(directory, gp_freq=2, image_data=make_data(), num_samples=4)
    history = fit(model, board, epochs=3, validation_data=make_data())
    return model, history, read_events(directory / "train"), directory


def test_tags(logged):
    _, _, values, _ = logged
    expected = {"epoch_loss", "epoch_nlpd", "epoch_data_term", "noise/variance"}
    expected |= {f"{layer}/kl" for layer in ("inner", "outer")}
    expected |= {
        f"{layer}/{m}/{q}" for layer in ("inner", "outer") for m in ("Kuu", "Svv") for q in ("jitter", "condition")
    }
    expected |= {f"inner/kernel/{name}" for name in ("variance", "weight_variances", "bias_variance")}
    expected |= {"outer/kernel/variance", "outer/kernel/lengthscales"}
    assert expected <= set(values)
    assert [step for step, _ in values["epoch_loss"]] == [0, 1, 2]
    for tag in expected - {"epoch_loss", "epoch_nlpd"}:
        assert [step for step, _ in values[tag]] == [0, 2], tag
    assert not any(tag.startswith("nested/") for tag in values)


def test_values(logged):
    model, history, values, _ = logged
    last = {tag: entries[-1][1] for tag, entries in values.items()}
    outer, noise = model.get_layer("outer"), model.get_layer("noise")
    inner = model.get_layer("nested").get_layer("inner")
    np.testing.assert_allclose(last["noise/variance"], noise.variance.numpy()[0], rtol=1e-6)
    np.testing.assert_allclose(last["outer/kernel/variance"], outer.kernel.variance.numpy(), rtol=1e-6)
    lengthscales = outer.kernel.lengthscales.numpy()
    histogram = last["outer/kernel/lengthscales"]  # rows: left edge, right edge, count
    np.testing.assert_allclose([histogram[0, 0], histogram[-1, 1]], [lengthscales.min(), lengthscales.max()])
    assert histogram[:, 2].sum() == 2
    total = 0.0
    for layer in (inner, outer):
        np.testing.assert_allclose(last[f"{layer.name}/kl"], history[f"{layer.name}_kl"][-1], rtol=1e-6)
        total += history[f"{layer.name}_kl"][-1] / NUM_DATA
    np.testing.assert_allclose(last["epoch_data_term"], history["loss"][-1] - total, rtol=1e-5)


def test_condition_and_jitter(logged):
    model, _, values, _ = logged
    outer, last = model.get_layer("outer"), {tag: entries[-1][1] for tag, entries in values.items()}
    F = outer.posterior.prior_factors()
    for matrix, L in (("Kuu", F.Lu), ("Svv", F.Lv)):
        diagonal = np.diag(L)
        np.testing.assert_allclose(last[f"outer/{matrix}/condition"], (diagonal.max() / diagonal.min()) ** 2, rtol=1e-5)
        assert last[f"outer/{matrix}/condition"] <= np.linalg.cond(L @ tf.transpose(L)) * (1 + 1e-5)
        np.testing.assert_allclose(last[f"outer/{matrix}/jitter"], numerics.RELATIVE_JITTER[tf.float64], rtol=1e-5)
    assert last["inner/Kuu/jitter"] == 0.0  # harmonics are independent: nothing is factorised


def decode(entry):
    """Pixels of an image, whose record has the width and the height before them."""
    width, height, data = entry
    pixels = tf.io.decode_image(data).numpy()
    assert pixels.shape == (int(height), int(width), 3)
    return pixels.astype(float)


def test_image_of_two_inputs(logged):
    _, _, values, _ = logged
    assert [step for step, _ in values["predictive"]] == [0, 2]
    first, last = (decode(entry) for _, entry in values["predictive"])
    assert first.std() > 10.0  # something is drawn,
    assert np.abs(last - first).max() > 10.0  # and changes with training


def test_image_of_one_input(tmp_path):
    x, y = make_data()
    x = x[:, :1]
    model = keras.Sequential([keras.Input((1,)), gp(1, return_moments=True), GaussianLikelihood()])
    model.compile(optimizer="adam", loss=VariationalLoss("gaussian"))
    board = callbacks.TensorBoard(tmp_path, image_data=(x, y), write_graph=False)
    model.fit(x, y, epochs=1, verbose=0, callbacks=[board])
    ((step, entry),) = read_events(tmp_path / "train")["predictive"]
    with_data, without = (callbacks._draw(board._predictive, *callbacks._check_image_data(d)) for d in ((x, y), x))
    assert step == 0
    np.testing.assert_array_equal(decode(entry), with_data[0])
    assert (without != with_data).mean() > 1e-3  # dots are missing


def get(url):
    with urllib.request.urlopen(url, timeout=5) as response:
        return response.read()


@pytest.fixture
def server(logged):
    """The address of a server of TensorBoard on the logs."""
    *_, directory = logged
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    arguments = ["--logdir", str(directory), "--host", "127.0.0.1", "--port", str(port), "--load_fast=false"]
    command = [sys.executable, "-m", "tensorboard.main", *arguments]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def wait_for(url, *, run, seconds=60):
    """Tags of a run, once the server is up and has read the logs."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            tags = json.loads(get(url)).get(run)
        except (urllib.error.URLError, OSError):
            tags = None
        if tags:
            return tags
        time.sleep(0.25)
    raise TimeoutError(f"No tags of {run!r} at {url}.")


def test_server_shows_tags_and_image(server):
    scalars = wait_for(f"{server}/data/plugin/scalars/tags", run="train")
    assert {"epoch_loss", "epoch_data_term", "inner/kl", "outer/Kuu/condition", "noise/variance"} <= set(scalars)
    assert set(wait_for(f"{server}/data/plugin/images/tags", run="train")) == {"predictive"}
    values = json.loads(get(f"{server}/data/plugin/scalars/scalars?run=train&tag=outer/kl"))
    assert [step for _, step, _ in values] == [0, 2]
    images = json.loads(get(f"{server}/data/plugin/images/images?run=train&tag=predictive&sample=0"))
    assert [image["step"] for image in images] == [0, 2]
    data = get(f"{server}/data/plugin/images/individualImage?{images[-1]['query']}")
    assert data.startswith(b"\x89PNG")


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_jitter_that_was_added_because_a_factorisation_failed(dtype):
    """With the same point twice and no jitter at first, the factorisation succeeds only after a retry."""
    layer = gp(1, features="points", num_orthogonal=0, return_moments=True, dtype=dtype)
    layer.build((None, 2))
    layer.posterior.inducing_variable.Z.assign(np.repeat(np.random.default_rng(0).normal(size=(3, 2)), 2, axis=0))
    with numerics.jitter_scope(0.0), numerics.float_context(dtype):
        conditions = callbacks._conditions(layer)
    assert set(conditions) == {"Kuu"}
    assert conditions["Kuu"][0] == pytest.approx(numerics.RELATIVE_JITTER[tf.as_dtype(dtype)], rel=0.02)


def test_layers_of_one_name_are_told_apart():
    first, second = (keras.Sequential([keras.Input((2,)), gp(2, name="same")], name=name) for name in ("a", "b"))
    model = keras.Sequential([keras.Input((2,)), first, second, gp(1, return_moments=True, name="last")])
    names = [name for name, _ in callbacks._layers(model, OrthogonalGP)]
    assert len(set(names)) == 3 and "last" in names
    summaries = dict(callbacks._summaries(model, {"same_kl": 1.0, "loss": 2.0}))
    for name, layer in callbacks._layers(model, OrthogonalGP):
        np.testing.assert_allclose(summaries[f"{name}/kl"], layer.posterior.prior_kl(), rtol=1e-6)


def test_nothing_is_computed_unless_asked_for(tmp_path, monkeypatch):
    monkeypatch.setattr(callbacks, "_summaries", lambda *_: pytest.fail("computed"))
    callback = callbacks.TensorBoard(tmp_path, gp_freq=0, write_graph=False)
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile()
    callback.set_model(model)
    callback.on_epoch_end(0, {"loss": 1.0})


def test_missing_package_is_named(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match="pip install tensorboard"):
        callbacks.TensorBoard()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "matplotlib" else True)
    with pytest.raises(ImportError, match="pip install matplotlib"):
        callbacks.TensorBoard(image_data=make_data())


class Recorder(keras.callbacks.Callback):
    def __init__(self, layer):
        super().__init__()
        self.layer, self.weights = layer, []

    def on_epoch_end(self, epoch, logs=None):
        self.weights.append(float(self.layer.kl_weight))


def test_warm_up():
    """With a learning rate of zero, losses differ by the weight of the divergence alone."""
    layer = gp(1, return_moments=True, initial_scale=0.5)
    model = keras.Sequential([keras.Input((2,)), keras.Sequential([layer]), GaussianLikelihood()])
    recorder = Recorder(layer)
    losses = fit(model, callbacks.KLWarmup(2, start=0.2), recorder, epochs=4, learning_rate=0.0)["loss"]
    np.testing.assert_allclose(recorder.weights, [0.2, 0.6, 1.0, 1.0])
    kl = float(layer.posterior.prior_kl()) / NUM_DATA
    np.testing.assert_allclose(losses[-1] - np.array(losses), [0.8 * kl, 0.4 * kl, 0.0, 0.0], rtol=1e-4, atol=1e-5)
    recorder.weights.clear()
    model.fit(*make_data(), batch_size=12, epochs=1, verbose=0, callbacks=[callbacks.KLWarmup(5), recorder])
    assert recorder.weights == [0.0]
    assert float(layer.kl_weight) == 1.0


def test_wrong_arguments_are_named():
    with pytest.raises(ValueError, match="Expected `epochs` to be an integer, at least 1. Got: 0"):
        callbacks.KLWarmup(0)
    with pytest.raises(ValueError, match="Expected `start` from 0 to 1"):
        callbacks.KLWarmup(3, start=2.0)
    with pytest.raises(ValueError, match="Expected `gp_freq` to be an integer"):
        callbacks.TensorBoard(gp_freq=0.5)
    for data in (np.ones((4, 3)), (np.ones((4, 2)), np.ones(3)), np.ones(4)):
        with pytest.raises(ValueError, match=r"Expected `image_data` of inputs \[N, 1\] or \[N, 2\]"):
            callbacks.TensorBoard(image_data=data)
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)], name="plain")
    model.compile(loss="mse")
    with pytest.raises(ValueError, match="Expected a model with `OrthogonalGP` layers.*'plain'"):
        model.fit(np.ones((4, 1)), np.ones(4), verbose=0, callbacks=[callbacks.KLWarmup(3)])
