"""Files and backups in ordinary use; what faults do to them is in `stress`."""

from __future__ import annotations

import keras
import numpy as np
import pytest
from builders import assert_same
from keras.src.backend.common import global_state
from layers import house

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
