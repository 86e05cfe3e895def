"""Names that other libraries do not promise: each works as assumed, or the test names the version that changed it."""

from __future__ import annotations

import ast
import copy
import inspect
import io
from pathlib import Path

import gpflow
import h5py
import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_odgp
from keras_odgp import _private

ROOT = Path(keras_odgp.__file__).parent
KERAS = f"Keras {keras.__version__} has changed"
PUBLIC = {"_asdict", "_replace", "_fields"}  # of named tuples
OURS = {"_keras_odgp_owner"}  # written on objects of others
PRIVATE_MODULES = (["keras", "src"], ["tensorflow", "python"])


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


@pytest.mark.parametrize("scaled", [False, True])
def test_num_optimizer_steps(scaled):
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    optimizer = keras.optimizers.Adam()
    model.compile(keras.optimizers.LossScaleOptimizer(optimizer) if scaled else optimizer, loss="mse")
    model.fit(np.zeros((6, 2)), np.zeros(6), batch_size=2, epochs=2, verbose=0)
    buffer = io.BytesIO()
    _private.save_weights_to_buffer(model, buffer)
    with h5py.File(buffer) as file:
        found = {name: file[name] for name in ("optimizer/vars/0", "optimizer/inner_optimizer/vars/0") if name in file}
        assert _private.num_optimizer_steps(found) == 6, f"{KERAS} numbers of steps in files"
    assert _private.num_optimizer_steps({}) == 0


def test_safe_mode():
    layer = keras.layers.Lambda(lambda x: x)
    before = keras.src.backend.common.global_state.get_global_attribute("safe_mode_saving")
    keras.config.enable_unsafe_deserialization()
    try:
        config = keras.saving.serialize_keras_object(layer)
        assert keras.saving.deserialize_keras_object(copy.deepcopy(config))  # which writes into it
        with _private.safe_mode(), pytest.raises(ValueError, match="lambda"):
            keras.saving.deserialize_keras_object(config)
            raise AssertionError(f"{KERAS} serialization_lib.SafeModeScope")
    finally:
        keras.src.backend.common.global_state.set_global_attribute("safe_mode_saving", before)


def test_each_is_tested():
    made = {name for name, value in vars(_private).items() if inspect.isfunction(value)}
    tested = {node.attr for node in ast.walk(ast.parse(Path(__file__).read_text())) if isinstance(node, ast.Attribute)}
    assert made and made <= tested


def test_check_active_dims():
    kernel, parameter = gpflow.kernels.SquaredExponential(active_dims=[0, 2]), gpflow.Parameter(np.ones(3))
    changed = f"GPflow {gpflow.__version__} has changed Kernel._validate_ard_active_dims"
    assert hasattr(kernel, "_validate_ard_active_dims"), changed
    _private.check_active_dims(kernel, gpflow.Parameter(np.ones(2)))
    with pytest.raises(ValueError, match="active_dims"):
        _private.check_active_dims(kernel, parameter)


def test_train_writer(tmp_path):
    class Write(keras.callbacks.TensorBoard):
        def on_epoch_end(self, epoch, logs=None):
            with _private.train_writer(self).as_default(epoch):
                self.summary.scalar("ours", 1.0, step=epoch)

    model = small_model()
    model.compile(loss="mse", run_eagerly=True)
    model.fit(np.ones((4, 2)), np.ones((4, 1)), verbose=0, callbacks=[Write(tmp_path, write_graph=False)])
    files = [path.read_bytes() for path in (tmp_path / "train").iterdir()]
    assert any(b"ours" in content for content in files), f"{KERAS} TensorBoard._train_writer"


def test_distributed_variable_has_a_flag_of_its_own():
    """Without which a parameter that is frozen under a strategy would be trained."""
    with tf.distribute.MirroredStrategy(["CPU:0"]).scope():
        parameter = gpflow.Parameter(1.0)
    variable = parameter.unconstrained_variable
    assert isinstance(variable, tf.distribute.DistributedValues) and _private.flag_of(variable)
    gpflow.set_trainable(parameter, False)
    changed = f"GPflow {gpflow.__version__} or TensorFlow {tf.__version__} has changed Variable._trainable"
    assert not _private.flag_of(variable), changed
    assert parameter.trainable, f"{changed}: `flag_of` can go"


def test_flag_of_plain_variable():
    parameter = gpflow.Parameter(1.0, trainable=False)
    assert not _private.flag_of(parameter.unconstrained_variable)
    assert _private.flag_of(gpflow.Parameter(1.0).unconstrained_variable)


# The guard: no other module uses names that are not promised.


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name not in PUBLIC


def is_private_module(name: str) -> bool:
    parts = name.split(".")
    return parts[0] != "keras_odgp" and (parts[:2] in PRIVATE_MODULES or any(is_private(part) for part in parts))


def dotted(node: ast.AST) -> str:
    """`a.b.c` of a chain of attributes, from its first name on."""
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def own_names(tree: ast.AST) -> dict[str, tuple[set[str], set[str]]]:
    """For each class of a module, the private names that it makes itself, and the names of its bases."""
    found = {}
    for cls in ast.walk(tree):
        if not isinstance(cls, ast.ClassDef):
            continue
        names = {node.name for node in cls.body if isinstance(node, ast.FunctionDef)}
        for node in ast.walk(cls):
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and dotted(node.value) == "self":
                names.add(node.attr)
        for node in cls.body:
            targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
            names |= {target.id for target in targets if isinstance(target, ast.Name)}
        bases = {dotted(base).split(".")[-1] for base in cls.bases}
        found[cls.name] = {name for name in names if is_private(name)}, bases - {cls.name}
    return found


def foreign_names(tree: ast.AST, package: dict[str, tuple[set[str], set[str]]]) -> set[str]:
    """Private names of objects that a module does not make itself, as attributes or in `getattr`, and private modules.

    On `self` and `cls`, names of the class and its bases in the package are its own; on others, those of the module.
    """

    module = own_names(tree)

    def inherited(name: str) -> set[str]:
        names, bases = (package | module).get(name, (set(), set()))
        return names.union(*(inherited(base) for base in bases))

    of_module = set().union(*(names for names, _ in module.values()))
    of_self = of_module.union(*(inherited(name) for name in module))
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            own = of_self if dotted(node.value) in ("self", "cls") else of_module
            if is_private(node.attr) and node.attr not in own:
                found.add(node.attr)
            if dotted(node).split(".") in PRIVATE_MODULES:
                found.add(dotted(node))
        elif isinstance(node, ast.Call) and dotted(node.func) in ("getattr", "setattr", "hasattr", "delattr"):
            text = getattr(node.args[1], "value", "")
            if isinstance(text, str) and is_private(text) and text not in of_module | OURS:
                found.add(text)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            paths = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
            found |= {path for path in paths if is_private_module(path)}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names if is_private_module(alias.name)}
    return found


def package_trees() -> dict[Path, ast.AST]:
    paths = (path for path in ROOT.rglob("*.py") if path.name != "_private.py")
    return {path: ast.parse(path.read_text()) for path in paths}


def package_names() -> dict[str, tuple[set[str], set[str]]]:
    return {name: value for tree in package_trees().values() for name, value in own_names(tree).items()}


def test_private_names_are_in_one_place():
    package = package_names()
    found = {path.name: foreign_names(tree, package) for path, tree in package_trees().items()}
    assert not {name: names for name, names in found.items() if names}


@pytest.mark.parametrize(
    "line",
    [
        "model._initial_epoch = 1",
        "model._layers",
        "model.layers[0]._layers",
        "import keras.src",
        "import keras.src.saving as saving",
        "from keras import src",
        "from keras.src.saving import saving_lib",
        "keras.src.backend.standardize_dtype",
        "from tensorflow.python import ops",
        "from tensorflow.python.framework import ops",
        "getattr(variable, '_trainable', True)",
        "setattr(model, '_initial_epoch', 1)",
        "class Board(keras.callbacks.TensorBoard):\n    def write(self):\n        self._train_writer",
        "class Other:\n    def f(self):\n        model._layers, _layers = 1, 2",
    ],
)
def test_guard_finds(line):
    assert foreign_names(ast.parse(line), package_names())


@pytest.mark.parametrize(
    "line",
    [
        "class A:\n    def f(self, other):\n        self._x = other._x",
        "class A(AdoptingLayer):\n    def f(self):\n        self._frozen",
        "pair._replace(a=1)",
        "from keras_odgp._private import flag_of",
    ],
)
def test_guard_spares(line):
    assert not foreign_names(ast.parse(line), package_names())
