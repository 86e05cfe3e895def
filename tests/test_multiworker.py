"""Training in several processes, on the loopback device. Run as a program, this file is one of the processes."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
from stress.forms import IS_FULL

import keras_odgp
from keras_odgp import multiworker
from keras_odgp.layers import GaussianLikelihood, OrthogonalGP
from keras_odgp.losses import VariationalLoss

NUM_DATA, BATCH_SIZE, NUM_EPOCHS = 24, 12, 3
TIME_LIMIT = 900  # seconds for two processes, on a busy machine; starting them takes most of it


def make_data():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(NUM_DATA, 2))
    return x, np.sin(x[:, 0]) + 0.1 * rng.normal(size=NUM_DATA)


def batches():
    return tf.data.Dataset.from_tensor_slices(make_data()).batch(BATCH_SIZE, drop_remainder=True)


def make_model(strategy, *, is_deep=False):
    with strategy.scope():
        hidden = [OrthogonalGP(2, num_inducing=5, num_orthogonal=4, seed=1)] if is_deep else []
        layer = OrthogonalGP(1, num_inducing=5, num_orthogonal=4, return_moments=True, seed=0, name="last")
        model = keras.Sequential([keras.Input((2,)), *hidden, layer, GaussianLikelihood()])
        # Unlike Adam's, steps of plain gradient descent show the scale of the gradient; averaged weights, the last step
        # of training; and the RMSE of all data is not the mean of those of its parts.
        optimizer = keras.optimizers.SGD(1e-2, momentum=0.5, use_ema=True, ema_momentum=0.7)
        model.compile(optimizer=optimizer, loss=VariationalLoss("gaussian"), metrics=[keras_odgp.metrics.RMSE()])
    keras_odgp.adapt(model, make_data()[0])
    return model


class Kill(keras.callbacks.Callback):
    """Ends the process without a word, in the middle of the second epoch."""

    def on_train_batch_end(self, batch, logs=None):
        if Path(sys.argv[2]).with_suffix(".epochs").read_text().count("e") == 1:
            os.kill(os.getpid(), signal.SIGKILL)


class Progress(keras.callbacks.Callback):
    """Notes every epoch that ends."""

    def __init__(self, path):
        super().__init__()
        self.path = path
        self.path.touch()

    def on_epoch_end(self, epoch, logs=None):
        with self.path.open("a") as file:
            file.write("e")


def refused_starts(strategy):
    """What is said if processes start from other weights, as of a backup that they do not share, or do not match."""
    model = make_model(strategy)
    index = strategy.cluster_resolver.task_id
    said = []
    for epochs in (1 + index, 1):
        try:
            multiworker.fit(model, batches(), epochs=epochs)
        except ValueError as error:
            said.append(str(error))
        model.get_layer("last").posterior.q_mu.assign(np.full((5, 1), (-1.0) ** index))  # of equal norm
    return said


def main(backup, output, is_killed, is_deep):
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    keras.config.set_floatx("float64")  # of losses and metrics
    refused = [] if is_deep == "True" else refused_starts(strategy)
    model = make_model(strategy, is_deep=is_deep == "True")
    # Start values of the second process differ in the last digits, as on another processor; those of the first count.
    points = model.get_layer("last").posterior.orthogonal_inducing_variable.Z
    points.assign(points * (1.0 + 1e-7 * strategy.cluster_resolver.task_id))
    callbacks = [keras_odgp.callbacks.BackupAndRestore(backup, delete_checkpoint=False)]
    callbacks += [Progress(Path(output).with_suffix(".epochs"))]
    callbacks += [Kill()] if is_killed == "True" else []
    history = multiworker.fit(model, batches(), epochs=NUM_EPOCHS, callbacks=callbacks).history
    result = {
        "num_replicas": strategy.num_replicas_in_sync,
        "history": history,
        "refused": refused,
        "weights": [np.asarray(weight).tolist() for weight in model.get_weights()],
    }
    try:
        model.fit(batches(), verbose=0)
    except Exception as error:
        result["fit_of_keras"] = type(error).__name__
    Path(output).write_text(json.dumps(result))


def free_ports(num):
    sockets = [socket.socket() for _ in range(num)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def run_workers(folder, name, *, killed=None, is_deep=False):
    """Two processes, of which one may kill itself; their exit codes and what they wrote."""
    cluster = {"worker": [f"127.0.0.1:{port}" for port in free_ports(2)]}
    processes, outputs = [], []
    for index in range(2):
        configuration = {"cluster": cluster, "task": {"type": "worker", "index": index}}
        paths = [str(Path(keras_odgp.__file__).parents[1]), str(Path(__file__).parent)]
        environment = {
            **os.environ,
            "TF_CONFIG": json.dumps(configuration),
            "CUDA_VISIBLE_DEVICES": "-1",
            "PYTHONPATH": os.pathsep.join([*paths, os.environ.get("PYTHONPATH", "")]),
        }
        outputs.append(folder / f"{name}-{index}.json")
        arguments = [folder / "backup", outputs[-1], killed == index, is_deep]
        command = [sys.executable, __file__, *[str(argument) for argument in arguments]]
        with (folder / f"{name}-{index}.log").open("wb") as log:
            processes.append(subprocess.Popen(command, env=environment, stdout=log, stderr=log))
    try:
        codes = [process.wait(timeout=TIME_LIMIT) for process in processes]
    finally:
        for process in processes:
            process.kill()
    return codes, [json.loads(path.read_text()) if path.exists() else None for path in outputs]


@pytest.fixture(scope="module")
def alone():
    """The same steps in this process, by `fit` of Keras."""
    before = keras.config.floatx()
    keras.config.set_floatx("float64")
    model = make_model(tf.distribute.get_strategy())
    history = model.fit(batches(), epochs=NUM_EPOCHS, verbose=0).history
    keras.config.set_floatx(before)
    return history, model.get_weights()


def check_as_alone(results, alone, num_epochs=NUM_EPOCHS):
    history, weights = alone
    for result in results:
        assert result["num_replicas"] == 2
        assert result["history"].keys() == history.keys()
        for name, values in history.items():  # in float64, sums in another order
            np.testing.assert_allclose(result["history"][name], values[-num_epochs:], rtol=0, atol=1e-8, err_msg=name)
        for weight, expected in zip(result["weights"], weights, strict=True):
            np.testing.assert_allclose(weight, expected, rtol=0, atol=1e-8)
    assert results[0]["weights"] == results[1]["weights"]
    assert history["loss"][-1] < history["loss"][0]


def test_two_processes_train_as_one(tmp_path, alone, record):
    codes, results = run_workers(tmp_path, "whole")
    assert codes == [0, 0], (tmp_path / "whole-0.log").read_text()[-3000:]
    check_as_alone(results, alone)
    for result in results:
        assert ["as many epochs" in result["refused"][0], "other weights" in result["refused"][1]] == [True, True]
    assert all("fit_of_keras" in result for result in results), (
        f"Keras {keras.__version__} trains under MultiWorkerMirroredStrategy: keras_odgp.multiworker can go."
    )
    record("multiworker", what="processes that train one model", outcome="weights and metrics as of one process")


@pytest.mark.skipif(not IS_FULL, reason="four processes; part of `make stress`")
def test_killed_process_resumes(tmp_path, alone, record):
    codes, results = run_workers(tmp_path, "killed", killed=1)
    assert codes[1] == -signal.SIGKILL
    assert codes[0] != 0 and results == [None, None]  # the other one ends with an error, and does not hang
    codes, results = run_workers(tmp_path, "again")
    assert codes == [0, 0], (tmp_path / "again-0.log").read_text()[-3000:]
    check_as_alone(results, alone, NUM_EPOCHS - 1)  # the first epoch was not lost
    outcome = "the other one ends with an error; both resume after the last epoch, with weights as of one process"
    record("multiworker", what="processes that train one model, one of them killed", outcome=outcome)


@pytest.mark.skipif(not IS_FULL, reason="six processes; part of `make stress`")
def test_killed_process_resumes_with_the_samples_that_would_have_come(tmp_path, record):
    whole, folder = tmp_path / "whole", tmp_path / "killed"
    whole.mkdir(), folder.mkdir()
    codes, wanted = run_workers(whole, "whole", is_deep=True)
    assert codes == [0, 0], (whole / "whole-0.log").read_text()[-3000:]
    codes, _ = run_workers(folder, "killed", killed=1, is_deep=True)
    assert codes[1] == -signal.SIGKILL
    codes, results = run_workers(folder, "again", is_deep=True)
    assert codes == [0, 0], (folder / "again-0.log").read_text()[-3000:]
    for result in results:
        for weight, expected in zip(result["weights"], wanted[0]["weights"], strict=True):
            np.testing.assert_allclose(weight, expected, rtol=0, atol=1e-8)  # sums of processes come in any order
    outcome = "both resume, with samples and weights as if nothing had happened"
    record("multiworker", what="processes that train a deep model, one of them killed", outcome=outcome)


def test_one_process_trains_as_fit_does(alone):
    before = keras.config.floatx()
    keras.config.set_floatx("float64")
    model = make_model(tf.distribute.get_strategy())
    history = multiworker.fit(model, batches(), epochs=NUM_EPOCHS).history
    keras.config.set_floatx(before)
    assert history.keys() == alone[0].keys()
    for name, values in alone[0].items():
        np.testing.assert_allclose(history[name], values, rtol=1e-12, err_msg=name)
    for weight, expected in zip(model.get_weights(), alone[1], strict=True):
        np.testing.assert_allclose(weight, expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("value", [-np.inf, np.nan])
def test_weights_that_are_not_finite_do_not_stop_it(value):
    """As in a mask, or in a layer that has not been used yet."""
    model = keras.Sequential([keras.Input((2,)), keras.layers.BatchNormalization(center=False), keras.layers.Dense(1)])
    model.compile(loss="mse")
    model.layers[0].moving_mean.assign([0.0, value])  # which training does not read
    assert np.isfinite(multiworker.fit(model, batches()).history["loss"]).all()


class Stop(keras.callbacks.Callback):
    """Stops training after the first batch of the second epoch, and notes what it was told."""

    def __init__(self):
        super().__init__()
        self.batches = []

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch

    def on_train_batch_end(self, batch, logs=None):
        self.batches.append((self.epoch, batch))
        self.model.stop_training = self.epoch == 1

    def on_train_end(self, logs=None):
        self.batches.append(sorted(logs))


def test_callbacks_are_told_what_fit_tells_them():
    told = []
    for fit in (keras.Model.fit, multiworker.fit):
        model, stop = make_model(tf.distribute.get_strategy()), Stop()
        fit(model, batches(), epochs=NUM_EPOCHS, callbacks=[stop], verbose=0)
        told.append((stop.batches, stop.params))
    assert told[0] == told[1]
    assert told[1][0][:-1] == [(0, 0), (0, 1), (1, 0)]
    assert told[1][1]["steps"] == 2


@pytest.mark.parametrize(
    ("dataset", "message"),
    [
        (lambda: batches().repeat(), "known, finite size"),
        (lambda: tf.data.Dataset.from_tensor_slices(make_data()).batch(10), "one size"),
        (lambda: tf.data.Dataset.from_tensor_slices(make_data()).batch(99, drop_remainder=True), "at least one batch"),
    ],
    ids=["infinite", "ragged", "empty"],
)
def test_other_datasets_are_refused(dataset, message):
    model = make_model(tf.distribute.get_strategy())
    with pytest.raises(ValueError, match=message):
        multiworker.fit(model, dataset())


def test_model_without_compile_is_refused():
    model = keras.Sequential([keras.Input((2,)), OrthogonalGP(1, num_inducing=3)])
    with pytest.raises(ValueError, match="built and compiled"):
        multiworker.fit(model, batches())


if __name__ == "__main__":
    main(*sys.argv[1:])
