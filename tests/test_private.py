"""Names that other libraries do not promise: each works as assumed, or the test names the version that changed it."""

from __future__ import annotations

import ast
import io
from pathlib import Path

import gpflow
import h5py
import keras
import numpy as np
import tensorflow as tf

import keras_odgp
from keras_odgp import _private

ROOT = Path(keras_odgp.__file__).parent
KERAS = f"Keras {keras.__version__} has changed"
PUBLIC = {"_asdict", "_replace", "_fields"}  # of named tuples


def small_model():
    inner = keras.Sequential([keras.Input((2,)), keras.layers.Dense(3, name="inner")])
    return keras.Sequential([keras.Input((2,)), inner, keras.layers.Dense(1)])


def test_flatten_layers():
    names = {layer.name for layer in _private.flatten_layers(small_model())}
    assert "inner" in names, f"{KERAS} Layer._flatten_layers"


def test_storage_of():
    variable = keras.Variable(np.ones(2))
    assert isinstance(_private.storage_of(variable), tf.Variable), f"{KERAS} Variable._value"


def test_initial_epoch():
    class Skip(keras.callbacks.Callback):
        def on_train_begin(self, logs=None):
            _private.set_initial_epoch(self.model, 2)

    model = small_model()
    assert _private.initial_epoch(model) == 0
    model.compile(loss="mse", run_eagerly=True)
    epochs = model.fit(np.ones((4, 2)), np.ones((4, 1)), epochs=3, verbose=0, callbacks=[Skip()]).epoch
    assert epochs == [2], f"{KERAS} Model._initial_epoch"


def test_build_for_training():
    model = small_model()
    model.compile(loss="mse", metrics=["mae"])
    _private.build_for_training(model, (np.ones((4, 2)), np.ones((4, 1))))
    assert model.optimizer.built, f"{KERAS} Model._symbolic_build"
    assert "mae" in model.metrics_names or len(model.metrics) > 1, f"{KERAS} Model._symbolic_build"


def test_save_weights_to_buffer(tmp_path):
    model = small_model()
    buffer = io.BytesIO()
    _private.save_weights_to_buffer(model, buffer)
    model.save_weights(tmp_path / "model.weights.h5")

    def arrays(file):
        found = {}
        file.visititems(lambda name, item: found.update({name: item[()]}) if isinstance(item, h5py.Dataset) else None)
        return found

    with h5py.File(buffer) as ours, h5py.File(tmp_path / "model.weights.h5") as theirs:
        left, right = arrays(ours), arrays(theirs)
    assert left.keys() == right.keys() and left, f"{KERAS} saving_lib.H5IOStore or saving_lib._save_state"
    for name, value in left.items():
        np.testing.assert_array_equal(value, right[name])


def test_variable_keeps_whether_it_is_trainable():
    """`keras_odgp.weights.AdoptedVariable` has a `trainable` of its own, over the attribute of Keras."""
    variable = keras.Variable(np.ones(2), trainable=False)
    assert variable._trainable is False, f"{KERAS} Variable._trainable"


def test_distributed_variable_has_a_flag_of_its_own():
    parameter = gpflow.Parameter(1.0, trainable=False)
    assert parameter.trainable is False, f"GPflow {gpflow.__version__} has changed Parameter.trainable"


def foreign_names(path: Path, own: set[str]) -> set[str]:
    """Private attributes that a module reads of objects other than itself, and private modules that it imports."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.startswith("__"):
            of_itself = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
            if not of_itself and node.attr not in own | PUBLIC:
                found.add(node.attr)
        if isinstance(node, ast.ImportFrom) and node.module and not node.module.startswith("keras_odgp"):
            parts = node.module.split(".")
            if parts[:2] in (["keras", "src"], ["tensorflow", "python"]) or any(p.startswith("_") for p in parts[1:]):
                found.add(node.module)
    return found


def test_private_names_are_in_one_place():
    trees = {path: ast.parse(path.read_text()) for path in ROOT.rglob("*.py")}
    own = {
        getattr(node, "name", None) or getattr(node, "attr", None) or getattr(node, "id", "")
        for tree in trees.values()
        for node in ast.walk(tree)
        if isinstance(node, (ast.FunctionDef, ast.ClassDef))
        or (isinstance(node, (ast.Attribute, ast.Name)) and isinstance(node.ctx, ast.Store))
    }
    others = {path.name: foreign_names(path, own) for path in trees if path.name != "_private.py"}
    assert not {name: names for name, names in others.items() if names - {"__future__"}}
