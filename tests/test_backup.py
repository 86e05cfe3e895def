"""Files and backups in ordinary use; what faults do to them is in `stress`."""

from __future__ import annotations

import os
from pathlib import Path

import h5py
import keras
import numpy as np
import pytest
import tensorflow as tf
from builders import assert_same
from keras.src.backend.common import global_state
from layers import house

import keras_odgp
from keras_odgp import files
from keras_odgp.callbacks import BackupAndRestore

X, Y = house.regression()


@pytest.fixture
def unsafe():
    """A process that has allowed files to run code."""
    before = global_state.get_global_attribute("safe_mode_saving")
    keras.config.enable_unsafe_deserialization()
    yield
    global_state.set_global_attribute("safe_mode_saving", before)


def test_files_run_no_code_even_if_the_process_allows_it(unsafe, tmp_path):
    path = tmp_path / "model.keras"
    files.save_model(keras.Sequential([keras.Input((2,)), keras.layers.Lambda(lambda x: 2 * x)]), path)
    assert keras.saving.load_model(path).layers  # which Keras does run
    with pytest.raises(ValueError, match="lambda"):
        files.load_model(path)


def test_weights_bring_the_state_of_an_optimizer_that_is_not_built(tmp_path):
    path = tmp_path / "model.weights.h5"
    trained, fresh = (house.compiled(house.sequential(*house.head())) for _ in range(2))
    trained.fit(X, Y, verbose=0)
    files.save_weights(trained, path)
    files.load_weights(fresh, path)
    assert int(fresh.optimizer.iterations) == int(trained.optimizer.iterations) > 0
    for left, right in zip(fresh.optimizer.variables, trained.optimizer.variables):
        np.testing.assert_array_equal(left, right)


@pytest.mark.parametrize("make", [BackupAndRestore, lambda path: files.load_model(f"{path}/model.keras")])
def test_addresses_are_refused(make):
    with pytest.raises(ValueError, match="Got an address: 'gs://"):
        make("gs://bucket/run")


def test_only_the_backup_is_deleted(tmp_path):
    (tmp_path / "results.txt").write_text("mine")
    house.compiled(house.sequential(*house.head())).fit(X, Y, verbose=0, callbacks=[BackupAndRestore(tmp_path)])
    assert [path.name for path in tmp_path.iterdir()] == ["results.txt"]


class Interrupt(keras.callbacks.Callback):
    def __init__(self, epoch):
        super().__init__()
        self.epoch, self.epochs = epoch, []

    def on_epoch_begin(self, epoch, logs=None):
        self.epochs.append(epoch)
        if epoch == self.epoch:
            raise InterruptedError


def test_fit_after_an_interrupted_one_that_was_resumed_has_all_its_epochs(tmp_path):
    model = house.compiled(house.sequential(*house.head()))
    seen = []
    for epoch in (1, 2):
        interrupt = Interrupt(epoch)
        with pytest.raises(InterruptedError):
            model.fit(X, Y, epochs=4, verbose=0, callbacks=[BackupAndRestore(tmp_path), interrupt])
        seen.append(interrupt.epochs)
    assert seen == [[0, 1], [1, 2]]
    assert model.fit(X, Y, epochs=2, verbose=0).epoch == [0, 1]


def test_backup_of_a_whole_training_changes_nothing(tmp_path):
    weights = []
    for callbacks in ([], [BackupAndRestore(tmp_path)]):
        keras.utils.set_random_seed(0)
        model = house.compiled(house.sequential(*house.head()))
        model.fit(X, Y, epochs=2, verbose=0, shuffle=False, callbacks=callbacks)
        weights.append(model.get_weights())
    for left, right in zip(*weights):
        assert_same(left, right)


def test_weights_of_a_deeper_model_are_refused(tmp_path):
    path = tmp_path / "model.weights.h5"
    files.save_weights(house.sequential(house.gp(2), house.gp(2), *house.head()), path)
    model = house.sequential(house.gp(2), *house.head())
    before = model.get_weights()
    with pytest.raises(ValueError, match="file of another model or optimizer"):
        files.load_weights(model, path)
    for left, right in zip(model.get_weights(), before, strict=True):
        np.testing.assert_array_equal(left, right)


def test_state_of_another_optimizer_is_refused(tmp_path):
    path = tmp_path / "model.weights.h5"
    trained = house.compiled(house.sequential(*house.head()))
    trained.fit(X, Y, verbose=0)
    files.save_weights(trained, path)
    other = house.sequential(*house.head())
    files.load_weights(other, path)  # for predictions, no optimizer is needed
    other.compile(optimizer=keras.optimizers.SGD(), loss="mse")
    with pytest.raises(ValueError, match="Expected the optimizer of this model"):
        files.load_weights(other, path)


def test_an_epoch_of_nan_leaves_the_backup_before_it(tmp_path):
    model = house.compiled(house.sequential(*house.head()))
    backup = BackupAndRestore(tmp_path, delete_checkpoint=False)
    model.fit(X, Y, epochs=1, verbose=0, callbacks=[backup])
    content = (tmp_path / "latest.weights.h5").read_bytes()
    backup.delete_checkpoint = True
    callbacks = [backup, keras.callbacks.TerminateOnNaN()]
    with pytest.warns(UserWarning, match="Epoch 2 is not backed up, because of a loss of nan"):
        model.fit(X, np.full_like(Y, np.nan), epochs=3, verbose=0, callbacks=callbacks)
    assert (tmp_path / "latest.weights.h5").read_bytes() == content


def test_other_files_are_not_taken_for_a_backup(tmp_path):
    model = house.compiled(house.sequential(*house.head()))
    files.save_weights(model, tmp_path / "latest.weights.h5")
    with pytest.raises(ValueError, match="file without an epoch"):
        model.fit(X, Y, verbose=0, callbacks=[BackupAndRestore(tmp_path)])


@pytest.mark.parametrize("name", ["n" * 240, "名" * 80])
def test_long_names(tmp_path, name):
    path = tmp_path / (name + ".keras")
    files.save_model(keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)]), path)
    assert files.load_model(path).input_shape == (None, 2)


@pytest.mark.parametrize("scaled", [False, True])
def test_state_of_another_optimizer_is_refused_within_one_that_scales_losses(tmp_path, scaled):
    path = tmp_path / "model.weights.h5"

    def compiled(optimizer):
        model = house.sequential(*house.head())
        model.compile(keras.optimizers.LossScaleOptimizer(optimizer) if scaled else optimizer, loss="mse")
        return model

    trained = compiled(keras.optimizers.Adam())
    trained.fit(X, Y, verbose=0)
    files.save_weights(trained, path)
    files.load_weights(compiled(keras.optimizers.Adam()), path)
    with pytest.raises(ValueError, match="load them before `compile`"):
        files.load_weights(compiled(keras.optimizers.SGD()), path)


def test_models_within_models_may_have_optimizers_of_their_own(tmp_path):
    path = tmp_path / "model.weights.h5"

    def nested(is_trained):
        inner = house.sequential(*house.head())
        if is_trained:
            inner.compile(keras.optimizers.Adam(), loss="mse")
            inner.fit(X, Y, verbose=0)
        return keras.Sequential([keras.Input(X.shape[1:]), inner])

    saved, loaded = nested(True), nested(False)
    files.save_weights(saved, path)
    files.load_weights(loaded, path)
    for left, right in zip(saved.get_weights(), loaded.get_weights(), strict=True):
        np.testing.assert_array_equal(left, right)


def test_weights_that_are_kept_elsewhere_are_refused(tmp_path):
    path, other = tmp_path / "model.weights.h5", tmp_path / "other.raw"
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    plain = tmp_path / "plain.weights.h5"
    model.save_weights(plain)
    other.write_bytes(b"\0" * 16)
    with h5py.File(plain, "a") as file:
        file.create_dataset("layers/other", (2,), "int64", external=[(str(other), 0, 16)])
    files._replace(path, plain.read_bytes())
    with pytest.raises(ValueError, match="keeps 'layers/other' elsewhere"):
        files.load_weights(model, path)


def test_links_out_of_a_file_are_not_followed(tmp_path):
    path, fifo, plain = tmp_path / "model.weights.h5", tmp_path / "pipe", tmp_path / "plain.weights.h5"
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.save_weights(plain)
    os.mkfifo(fifo)  # whoever opens it waits for ever
    with h5py.File(plain, "a") as file:
        file["optimizer/vars/0"] = h5py.ExternalLink(str(fifo), "/")
    files._replace(path, plain.read_bytes())
    files.load_weights(model, path)  # the model has no optimizer, so nothing is looked for there


def test_previous_file_may_be_deleted_meanwhile(tmp_path, monkeypatch):
    """By another process that trains with the same backup, and has ended."""
    path = tmp_path / "model.weights.h5"
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    files.save_weights(model, path)
    stat = Path.stat
    deleted = []

    def deleted_after(self, **options):
        result = stat(self, **options)
        if self.name == path.name and not deleted:
            os.unlink(self)
            deleted.append(self)
        return result

    def deleted_before(self, **options):
        if self.name == path.name and os.path.lexists(self):
            os.unlink(self)
        return stat(self, **options)

    monkeypatch.setattr(Path, "stat", deleted_before)
    files.save_weights(model, path)
    assert os.path.lexists(path)
    monkeypatch.setattr(Path, "stat", deleted_after)  # whoever looks twice finds nothing
    files.save_weights(model, path)
    assert deleted
    monkeypatch.undo()
    files.load_weights(model, path)


@pytest.mark.parametrize("value, where", [(np.nan, "weights"), (np.nan, "optimizer"), (np.inf, "weights")])
def test_training_that_has_nan_is_not_kept(value, where, tmp_path):
    model = house.compiled(house.sequential(*house.head()))
    model.optimizer.build(model.trainable_variables)
    backup = BackupAndRestore(tmp_path)
    backup.set_model(model)
    backup.on_train_begin()
    backup.on_epoch_end(0, {"loss": np.ones(2)})
    content = (tmp_path / "latest.weights.h5").read_bytes()
    variable = model.weights[0] if where == "weights" else model.optimizer.variables[-1]
    variable.trainable = False  # as callbacks do with q that they move themselves
    variable.assign(np.full(variable.shape, value))
    with pytest.warns(UserWarning, match="not backed up, because of NaN or infinity in"):
        backup.on_epoch_end(1, {"loss": 1.0})  # of the step before
    assert (tmp_path / "latest.weights.h5").read_bytes() == content


def test_nan_of_half_precision_is_seen(tmp_path):
    model = keras.Sequential([keras.Input(X.shape[1:]), keras.layers.Dense(1, dtype="bfloat16")])
    model.compile(loss="mse")
    backup = BackupAndRestore(tmp_path)
    backup.set_model(model)
    backup.on_train_begin()
    model.weights[0].assign(np.full(model.weights[0].shape, np.nan))
    with pytest.warns(UserWarning, match="not backed up, because of NaN"):
        backup.on_epoch_end(0, {})
    assert not list(tmp_path.iterdir())


class Refusing(keras.callbacks.Callback):
    def __init__(self, moment="on_train_begin"):
        super().__init__()
        setattr(self, moment, self.refuse)

    def refuse(self, *args, **kwargs):
        raise RuntimeError("not today")


@pytest.mark.parametrize("moment", ["on_train_begin", "on_epoch_begin"])
def test_training_of_workers_that_did_not_start_leaves_no_epoch_behind(moment, tmp_path):
    """That a backup has set and not yet taken back: the next training would leave out its first epochs."""
    fit = keras_odgp.multiworker.fit
    model = keras.Sequential([keras.Input(X.shape[1:]), keras.layers.Dense(1)])
    model.compile(loss="mse")
    batches = tf.data.Dataset.from_tensor_slices((X, Y)).batch(len(X), drop_remainder=True)
    backup = BackupAndRestore(tmp_path, delete_checkpoint=False)
    fit(model, batches, epochs=2, verbose=0, callbacks=[backup])
    callbacks = [backup, Refusing(moment)] if moment == "on_train_begin" else [Refusing(moment), backup]
    with pytest.raises(RuntimeError, match="not today"):
        fit(model, batches, epochs=4, verbose=0, callbacks=callbacks)
    assert fit(model, batches, epochs=3, verbose=0).epoch == [0, 1, 2]


def train_with_averages(backup, seed, interrupt_at=None):
    keras.utils.set_random_seed(seed)
    model = keras.Sequential([keras.Input(X.shape[1:]), keras.layers.Dense(1)])
    model.compile(keras.optimizers.Adam(0.1, use_ema=True), loss="mse")
    callbacks = [backup, keras.callbacks.SwapEMAWeights(swap_on_epoch=True), Interrupt(interrupt_at)]
    model.fit(X, Y, epochs=4, batch_size=5, verbose=0, shuffle=False, callbacks=callbacks)
    return model.get_weights()


def test_training_with_averages_for_evaluation_is_resumed(tmp_path):
    """With the backup before the callback that swaps them in, it goes on from the weights that were trained."""
    whole = train_with_averages(BackupAndRestore(tmp_path / "whole"), seed=0)
    backup = BackupAndRestore(tmp_path / "parts")
    with pytest.raises(InterruptedError):
        train_with_averages(backup, seed=0, interrupt_at=2)
    resumed = train_with_averages(backup, seed=1)  # other start values: training anew would end elsewhere
    for left, right in zip(resumed, whole, strict=True):
        np.testing.assert_allclose(left, right, rtol=1e-5, atol=1e-6)  # swapping rounds, in float32


def test_backup_after_one_that_did_not_start(tmp_path):
    model = keras.Sequential([keras.Input(X.shape[1:]), keras.layers.Dense(1)])
    model.compile(loss="mse")
    backup = BackupAndRestore(tmp_path / "a", delete_checkpoint=False)
    model.fit(X, Y, epochs=2, verbose=0, callbacks=[backup])
    with pytest.raises(RuntimeError, match="not today"):
        model.fit(X, Y, epochs=4, verbose=0, callbacks=[backup, Refusing()])
    callbacks = [BackupAndRestore(tmp_path / "b")]
    assert model.fit(X, Y, epochs=3, verbose=0, callbacks=callbacks).epoch == [0, 1, 2]


class Masked(keras.layers.Dense):
    def build(self, input_shape):
        super().build(input_shape)
        self.mask = self.add_weight(shape=(2,), initializer=keras.initializers.Constant(-np.inf), trainable=False)
        self.built = True


def test_infinity_that_is_meant_is_kept(tmp_path):
    model = keras.Sequential([keras.Input(X.shape[1:]), Masked(1)])
    model.compile(loss="mse")
    model.fit(X, Y, verbose=0, callbacks=[BackupAndRestore(tmp_path, delete_checkpoint=False)])
    assert files.read_note(tmp_path / "latest.weights.h5") == {"epoch": 1}


@pytest.mark.parametrize(
    ("saved", "loaded"),
    [
        (lambda: keras.optimizers.SGD(momentum=0.9), keras.optimizers.RMSprop),
        (keras.optimizers.Adam, keras.optimizers.AdamW),
    ],
    ids=["momenta for second moments", "weight decay"],
)
def test_state_of_an_optimizer_of_equal_shapes_is_refused(saved, loaded, tmp_path):
    path = tmp_path / "model.weights.h5"

    def compiled(optimizer):
        model = keras.Sequential([keras.Input(X.shape[1:]), keras.layers.Dense(1)])
        model.compile(optimizer, loss="mse")
        return model

    trained = compiled(saved())
    trained.fit(X, Y, verbose=0)
    files.save_weights(trained, path)
    files.load_weights(compiled(saved()), path)
    with pytest.raises(ValueError, match="Expected the optimizer of this model"):
        files.load_weights(compiled(loaded()), path)
