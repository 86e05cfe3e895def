"""Everything that other libraries do not promise to keep, and that is used here nevertheless.

Each has a test in `tests/test_private.py`, which names the version of the library that it fails with.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gpflow
import keras
import tensorflow as tf


def save_weights_to_buffer(model: keras.Model, buffer: Any) -> None:
    """Writes what `model.save_weights` writes into memory, for which Keras has no public way."""
    from keras.src.saving import saving_lib  # noqa: PLC0415  (so that a change there breaks nothing else)

    store = saving_lib.H5IOStore(buffer, mode="w")
    saving_lib._save_state(model, weights_store=store, assets_store=None, inner_path="", visited_saveables=set())
    store.close()


def num_optimizer_steps(arrays: dict[str, Any]) -> int:
    """How many steps an optimizer had taken, from arrays of such a file by name; 0 where there is no optimizer.

    One that scales losses keeps the count in the optimizer within it.
    """
    names = ("optimizer/vars/0", "optimizer/inner_optimizer/vars/0")
    return max((int(arrays[name][()]) for name in names if name in arrays and arrays[name].shape == ()), default=0)


def safe_mode() -> Any:
    """A scope in which files cannot run code, even if the process has allowed it, to which Keras's argument yields."""
    from keras.src.saving import serialization_lib  # noqa: PLC0415

    return serialization_lib.SafeModeScope(True)


def flatten_layers(model: keras.Model) -> Iterator[keras.Layer]:
    """A model and all layers within it, at any depth."""
    return model._flatten_layers()


def storage_of(variable: keras.Variable) -> Any:
    """The TensorFlow variable behind a Keras variable."""
    return variable._value


def flag_of(variable: tf.Variable) -> bool:
    """Whether a variable is trainable by its own flag.

    That is where `gpflow.set_trainable` says so. Of a variable with copies on several devices, the public `trainable`
    is that of the first copy, which GPflow does not change.
    """
    return bool(getattr(variable, "_trainable", True))


def check_active_dims(kernel: gpflow.kernels.Kernel, parameter: gpflow.Parameter) -> None:
    """Raises if a parameter has one value for each input, but for another number of inputs than the kernel sees."""
    kernel._validate_ard_active_dims(parameter)


def train_writer(board: keras.callbacks.TensorBoard) -> Any:
    """The writer of the logs of training."""
    return board._train_writer


def set_initial_epoch(model: keras.Model, epoch: int | None) -> None:
    """Lets a `fit` that has called `on_train_begin` go on from a later epoch."""
    model._initial_epoch = epoch


def initial_epoch(model: keras.Model) -> int:
    """The epoch from which training goes on, which a callback may have set."""
    return int(model._initial_epoch or 0)


def build_for_training(model: keras.Model, batch: Any) -> None:
    """Makes all that training needs (losses, metrics, optimizer), for data like a batch."""
    model._symbolic_build(data_batch=batch)
