"""Training on several machines at once, on TensorFlow's `MultiWorkerMirroredStrategy`.

`fit` of Keras (3.12 to 3.15) fails under that strategy before the first step, whatever the model: it reduces batches of
several replicas while it builds the model, and logs of several replicas after the step. `fit` here does the same with
Keras's own `train_step` and callbacks, and nothing else. Once Keras mends this, use its `fit`; a test says when.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_odgp._private import build_for_training, initial_epoch, set_initial_epoch

__all__ = ["fit"]


def fit(
    model: keras.Model,
    dataset: tf.data.Dataset,
    *,
    epochs: int = 1,
    callbacks: Sequence[keras.callbacks.Callback] = (),
    verbose: int = 0,
) -> keras.callbacks.History:
    """Trains a model in all processes of a `tf.distribute.MultiWorkerMirroredStrategy`, each on a part of every batch.

    Every process runs the same program, with `TF_CONFIG` set as TensorFlow describes: it makes the strategy before
    anything else, makes and compiles the model within `strategy.scope()`, adapts it, and calls this. The steps are
    those that one process would take with the same batches; the divergences of GP layers count once. Weights are the
    same in all processes at any time, so any of them can save the model.

    If a process ends, the others end with an error: start all of them again. With a
    `keras_odgp.callbacks.BackupAndRestore` on a directory that all share, they go on from the last epoch.

    Args:
        model: A model that was built and compiled within the scope of its strategy.
        dataset: Batches for all processes together, equal in all of them: `x, y`, or `x, y, sample_weight`. All batches
            have one size (`drop_remainder=True`), a multiple of the number of replicas.
        epochs: Number of epochs. Defaults to 1.
        callbacks: Keras callbacks, which every process calls. One that stops training has to do so in all of them.
        verbose: Whether to show progress, as in Keras. Defaults to 0.

    Returns:
        The history, as from `fit` of Keras.

    Example:

    >>> model = keras.Sequential([
    ...     keras.Input((2,)),
    ...     keras_odgp.layers.OrthogonalGP(1, num_inducing=4, num_orthogonal=4, return_moments=True),
    ...     keras_odgp.layers.GaussianLikelihood(),
    ... ])
    >>> x, y = np.random.randn(20, 2), np.random.randn(20)
    >>> keras_odgp.adapt(model, x, y)
    >>> model.compile(loss=keras_odgp.losses.VariationalLoss("gaussian"))
    >>> batches = tf.data.Dataset.from_tensor_slices((x, y)).batch(10, drop_remainder=True)
    >>> history = keras_odgp.multiworker.fit(model, batches, epochs=2)  # with one process, what `fit` does
    >>> len(history.history["loss"])
    2
    """
    strategy = model.distribute_strategy
    _check(model, dataset, strategy.num_replicas_in_sync)
    with strategy.scope():
        build_for_training(model, next(iter(dataset)))
    batches = strategy.experimental_distribute_dataset(_sharded(dataset))

    @tf.function
    def step(iterator: Any) -> dict[str, tf.Tensor]:
        logs = strategy.run(model.train_step, args=(next(iterator),))
        # Read outside of the replicas, metrics are those of all data: an RMSE is not the mean of those of replicas.
        metrics = model.get_metrics_result()
        if metrics.keys() == logs.keys():
            return metrics
        return {name: strategy.reduce("MEAN", value, axis=None) for name, value in logs.items()}

    num_steps = int(dataset.cardinality())
    calls = keras.callbacks.CallbackList(
        list(callbacks),
        add_history=True,
        add_progbar=verbose != 0,
        verbose=verbose,
        epochs=epochs,
        steps=num_steps,
        model=model,
    )
    model.stop_training = False
    try:
        _begin(model, calls.on_train_begin, [num_steps, epochs])
        first_epoch = initial_epoch(model)
    finally:
        set_initial_epoch(model, None)  # which a backup has set, and the next `fit` would begin with
    logs: dict[str, tf.Tensor] = {}
    for epoch in range(first_epoch, epochs):
        model.reset_metrics()
        calls.on_epoch_begin(epoch)
        iterator = iter(batches)
        for index in range(num_steps):
            calls.on_train_batch_begin(index)
            logs = step(iterator)
            calls.on_train_batch_end(index, logs)
            if model.stop_training:
                break
        calls.on_epoch_end(epoch, logs)
        if model.stop_training:
            break
    if epochs > 0 and isinstance(model.optimizer, keras.optimizers.Optimizer):
        model.optimizer.finalize_variable_values(model.trainable_weights)  # averages, with `use_ema`
    calls.on_train_end(logs)
    return model.history


def _check(model: keras.Model, dataset: tf.data.Dataset, num_replicas: int) -> None:
    if not model.built or not model.compiled:
        raise ValueError("Expected a model that is built and compiled within `strategy.scope()`.")
    if dataset.cardinality() == 0:
        raise ValueError("Expected at least one batch. Got none: give more data, or smaller batches.")
    if dataset.cardinality() < 0:
        raise ValueError("Expected a dataset of known, finite size: leave out `repeat`, or say how many by `take`.")
    sizes = {spec.shape[0] if spec.shape.rank else None for spec in tf.nest.flatten(dataset.element_spec)}
    if len(sizes) != 1 or any(size is None or size % num_replicas for size in sizes):
        raise ValueError(
            f"Expected batches of one size that is a multiple of {num_replicas}, the number of replicas. Got sizes "
            f"{sorted(sizes, key=str)}: use `batch(size, drop_remainder=True)`."
        )


def _begin(model: keras.Model, on_train_begin: Callable[[], None], lengths: list[int]) -> None:
    """Starts training in all processes, or in none: all raise an error if one does, or if they would not match."""
    error = None
    try:
        on_train_begin()
    except Exception as raised:  # of a backup that cannot be read, say; the others would wait for ever
        error = raised
    plans: Any = _gather(model, np.array([error is not None, initial_epoch(model), len(model.weights), *lengths]))
    if error is not None:
        raise error
    if plans[:, 0].any():
        raise RuntimeError("Another process could not start training. Its own error says why.")
    if (plans[:, 2:] != plans[0, 2:]).any():
        raise ValueError(
            "Expected the same model, as many steps an epoch, and as many epochs in all processes. Got numbers of "
            f"weights, steps and epochs {plans[:, 2:].tolist()}: give the same data to all."
        )
    _check_same_start(model, plans[:, 1].tolist())
    _share_start(model)


def _check_same_start(model: keras.Model, first_epochs: list[int]) -> None:
    """Raises, in all processes, if they do not start from the same epoch and weights."""
    marks: Any = _gather(model, np.array([value for weight in model.weights for value in _mark(weight)]))
    projections, norms = marks[:, ::2], marks[:, 1::2]
    # Start values from the same data may differ in the last digits where processors do.
    same = (np.abs(projections - projections[:1]) <= 1e-5 * norms[:1]).all()
    if not same or len(set(first_epochs)) > 1:
        raise ValueError(
            "Expected the same epoch and weights in all processes when training starts. Got first epochs "
            f"{first_epochs}, and {'equal' if same else 'other'} "
            "weights: make the model within `strategy.scope()`, adapt it to the same data, and keep a backup in a "
            "directory that all processes share."
        )


def _share_start(model: keras.Model) -> None:
    """Gives all processes the weights of the first one: what differs at the start would differ for ever."""
    if model.distribute_strategy.num_replicas_in_sync == 1:
        return
    for variable in [*model.weights, *model.optimizer.variables]:
        if keras.backend.is_float_dtype(variable.dtype):
            value = keras.ops.convert_to_numpy(variable)
            variable.assign(_gather(model, value.ravel())[0].reshape(value.shape))


def _mark(weight: Any) -> tuple[float, float]:
    """What stands for a weight: its projection onto a fixed random direction, and its norm."""
    values = np.asarray(keras.ops.convert_to_numpy(weight), np.float64).ravel()
    values = np.nan_to_num(values, nan=1.0, posinf=2.0, neginf=-2.0)  # as in a mask; any numbers that tell them apart
    return float(np.random.default_rng(0).normal(size=values.size) @ values), float(np.linalg.norm(values))


def _gather(model: keras.Model, own: np.ndarray) -> np.ndarray:
    """The vectors of all replicas, a row each."""
    strategy = model.distribute_strategy
    return strategy.gather(strategy.run(lambda: tf.constant(own[None])), axis=0).numpy()


def _sharded(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """The dataset, each batch of which is divided among the processes."""
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    return dataset.with_options(options)
