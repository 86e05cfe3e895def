"""What every public layer and loss has to stand, and small models to test with."""

from __future__ import annotations

import copy
import dataclasses
import json
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from builders import assert_same

from keras_odgp import layers, losses

NUM_DATA, NUM_INPUTS = 40, 3
SMALL = {"num_inducing": 6, "num_orthogonal": 5, "num_levels": 4, "num_data": NUM_DATA}
GP_WEIGHTS = [
    "kernel/variance",
    "kernel/weight_variances",
    "kernel/bias_variance",
    "inducing_variable/weights",
    "orthogonal_inducing_variable/Z",
    "q_mu",
    "q_sqrt",
    "orthogonal_q_mu",
    "orthogonal_q_sqrt",
]


def gp(units: int = 1, **options: Any) -> layers.OrthogonalGP:
    """A small GP layer."""
    return layers.OrthogonalGP(units, **{**SMALL, **options})


def head(units: int = 1, **options: Any) -> list[keras.Layer]:
    """A last GP layer and its noise."""
    return [gp(units, return_moments=True, **options), layers.GaussianLikelihood()]


def sequential(*parts: keras.Layer, inputs: tuple[int, ...] = (NUM_INPUTS,)) -> keras.Sequential:
    return keras.Sequential([keras.Input(inputs), *parts])


def regression(num: int = NUM_DATA, num_inputs: int = NUM_INPUTS, num_outputs: int = 1) -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(1)
    x = rng.normal(size=(num, num_inputs))
    return x, np.sin(x @ rng.normal(size=(num_inputs, num_outputs))) + 0.1 * rng.normal(size=(num, num_outputs))


def compiled(model: keras.Model, loss: Any = "gaussian", **options: Any) -> keras.Model:
    """The model, compiled without tracing unless asked: a step then takes a fraction of the time of a trace."""
    if loss == "gaussian":
        loss = losses.VariationalLoss("gaussian")
    options = {"optimizer": keras.optimizers.Adam(1e-2), "run_eagerly": True, **options}
    if not options["run_eagerly"]:
        options.setdefault("jit_compile", False)
    model.compile(loss=loss, **options)
    return model


def perturb(model: keras.Model, scale: float = 0.1) -> None:
    """Moves all trainable weights away from their start, where some gradients vanish."""
    rng = np.random.default_rng(2)
    for weight in model.trainable_weights:
        weight.assign_add(scale * rng.normal(size=weight.shape))


def evaluate(model: keras.Model, x: Any, y: Any = None, **options: Any) -> float:
    return model.evaluate(x, y, verbose=0, return_dict=True, **options)["loss"]


def values(weights: list[keras.Variable]) -> list[np.ndarray]:
    return [keras.ops.convert_to_numpy(weight).copy() for weight in weights]


def saved_and_loaded(model: keras.Model, folder: Any) -> keras.Model:
    path = folder / "model.keras"
    model.save(path)
    return keras.saving.load_model(path)


def assert_equal_predictions(model: keras.Model, other: keras.Model, x: Any) -> None:
    """Both draw the same samples: the state of the random numbers is saved too."""
    for left, right in zip(*(keras.tree.flatten(m(x, training=False)) for m in (model, other))):
        assert_same(np.asarray(left), np.asarray(right))


@dataclasses.dataclass
class Case:
    """A public layer or loss within a small model.

    Attributes:
        make: Makes the layer, named `tested`, or the loss, from a dtype.
        model: Makes a model around the layer; of a loss, one that it fits.
        loss: Makes the loss of the model of a layer.
        x: Inputs.
        y: Targets.
        trainable: Paths of the trainable weights of the layer.
        non_trainable: Paths of the others.
        num_losses: Number of losses that the layer adds.
        output_shape: Shape of the model's output, without the axis of data.
    """

    make: Callable[[str], Any]
    model: Callable[[Any], keras.Model]
    loss: Callable[[], Any]
    x: np.ndarray
    y: np.ndarray
    trainable: list[str]
    output_shape: tuple[int, ...]
    non_trainable: list[str] = dataclasses.field(default_factory=list)
    num_losses: int = 0


def check_config(thing: Any) -> None:
    config = thing.get_config()
    again = type(thing).from_config(json.loads(json.dumps(config))).get_config()
    assert json.dumps(again, sort_keys=True) == json.dumps(config, sort_keys=True)


def check_weights(case: Case, layer: keras.Layer) -> None:
    def paths(weights: list[keras.Variable]) -> list[str]:
        return [weight.path.split("tested/")[1] for weight in weights]

    assert paths(layer.trainable_weights) == case.trainable
    assert paths(layer.non_trainable_weights) == case.non_trainable
    assert len(layer.losses) == case.num_losses


def check_step_moves_all(case: Case, model: keras.Model) -> None:
    before = values(model.trainable_weights)
    history = model.fit(case.x, case.y, batch_size=len(case.x), verbose=0)
    assert np.isfinite(history.history["loss"]).all()
    for weight, old in zip(model.trainable_weights, before):
        # The first step of Adam is as long as its learning rate of 1e-2 wherever the gradient is not zero.
        assert np.abs(keras.ops.convert_to_numpy(weight) - old).max() > 5e-3, weight.path


def check_copies(case: Case, model: keras.Model, folder: Any) -> None:
    assert_equal_predictions(saved_and_loaded(model, folder), model, case.x)
    assert_equal_predictions(copy.deepcopy(model), model, case.x)
    clone = keras.models.clone_model(model)
    clone.set_weights(model.get_weights())
    model.save_weights(folder / "some.weights.h5")
    for weight in model.trainable_weights:
        weight.assign_add(keras.ops.ones_like(weight))
    model.load_weights(folder / "some.weights.h5")
    for left, right in zip(model.get_weights(), clone.get_weights()):
        np.testing.assert_array_equal(left, right)


def check_goes_on_training(case: Case, model: keras.Model, folder: Any) -> None:
    """A loaded model takes the step that the original takes: optimizer and random numbers included."""
    loaded = saved_and_loaded(model, folder)
    for each in (model, loaded):
        each.fit(case.x, case.y, batch_size=len(case.x), verbose=0, shuffle=False)
    for left, right in zip(model.get_weights(), loaded.get_weights()):
        assert_same(left, right)


def check_export(case: Case, model: keras.Model, folder: Any) -> None:
    model.export(folder / "exported", verbose=False)
    loaded = tf.saved_model.load(folder / "exported")
    served = loaded.serve(tf.constant(case.x[:7], model.inputs[0].dtype))
    assert served.shape == (7, *case.output_shape)
    assert np.isfinite(served).all()


def check_compiled_step(case: Case, model: keras.Model, *, jit_compile: bool) -> None:
    compiled(model, case.loss(), run_eagerly=False, jit_compile=jit_compile)
    assert np.isfinite(model.train_on_batch(case.x, case.y, return_dict=True)["loss"])
