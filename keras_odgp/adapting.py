"""Start values for all GP layers of a model, each from what reaches it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_odgp.heads import call_recording, flatten_targets, gaussian_heads, gaussian_sites, site_statistics
from keras_odgp.layers import OrthogonalGP, recording
from keras_odgp.layers.starts import Subset
from keras_odgp.numerics import float_context
from keras_odgp.orthogonal.optimal import Statistics, add_statistics

Batches = Callable[[], Iterator[tuple[Any, Any]]]


def adapt(
    model: keras.Model,
    x: Any,
    y: Any = None,
    *,
    num_data: int | None = None,
    method: str = "kmeans",
    batch_size: int = 1024,
) -> None:
    """Gives every GP layer of a model the number of data and start values from what reaches it.

    Inducing points start at centres of k-means, directions of activations point at such centres, and linear mean
    functions become principal components. With targets and a Gaussian likelihood, q of the last GP layer starts at its
    closed-form optimum, in one pass over the data. Call it once, before training, on any model that holds GP layers:
    Sequential, Functional or subclassed.

    Args:
        model: A Keras model.
        x: Inputs: an array, a structure of arrays, or a `tf.data.Dataset` or `keras.utils.PyDataset` of batches, which
            give the targets too.
        y: Targets, as given to `fit`. Defaults to none.
        num_data: Number of data. Defaults to the number of targets, each a vector of all outputs. Steps of sequences
            count, because `keras_odgp.losses.VariationalLoss` and the losses of Keras are means over them: give
            `num_data=len(x)` if your loss sums over steps. Without targets, steps count if inputs and outputs have
            them.
        method: `"kmeans"`, or `"subset"` for randomly chosen rows.
        batch_size: Number of examples at a time, for arrays.

    Example:

    >>> x, y = np.random.randn(200, 2), np.random.randn(200)
    >>> model = keras.Sequential([
    ...     keras_odgp.layers.OrthogonalGP(1, num_inducing=8, num_orthogonal=8, return_moments=True),
    ...     keras_odgp.layers.GaussianLikelihood(),
    ... ])
    >>> keras_odgp.adapt(model, x, y)
    >>> model.layers[0].num_data
    200
    """
    batches = _batches_of(x, y, batch_size)
    subset = Subset()
    for inputs, targets in batches():
        _check_targets_finite(targets)
        subset.add([inputs] if targets is None else [inputs, targets])
    if subset.total == 0:
        raise ValueError("Expected data to adapt the model to. Got none.")
    examples = subset.values[0]
    targets = subset.values[1] if len(subset.values) > 1 else None
    layers, outputs = _gp_layers(model, examples)
    first = None if targets is None else flatten_targets(model, targets)[0]
    num_given = subset.total * _data_per_example(layers, keras.tree.flatten(examples)[0], first, outputs[0])
    num_data = num_given if num_data is None else num_data
    for layer in layers:
        _adapt_layer(model, layer, examples, batch_size, num_data=num_data, method=method)
    if targets is not None:
        _start_last_layers(model, batches, examples, num_data / num_given)


def _batches_of(x: Any, y: Any, batch_size: int) -> Batches:
    """A function that starts an iteration over pairs of inputs and targets (or None)."""
    if isinstance(x, (tf.data.Dataset, keras.utils.PyDataset)):
        if y is not None:
            raise ValueError("Expected targets within the dataset. Got a dataset as `x`, and `y` beside it.")
        if isinstance(x, tf.data.Dataset) and x.cardinality() == tf.data.INFINITE_CARDINALITY:
            raise ValueError("Expected a dataset of finite size to adapt to. Got an infinite one: leave out `repeat`.")
        if isinstance(x, tf.data.Dataset):
            return lambda: (keras.utils.unpack_x_y_sample_weight(element)[:2] for element in x)
        return lambda: (keras.utils.unpack_x_y_sample_weight(x[index])[:2] for index in range(len(x)))
    if isinstance(x, Iterator):
        raise TypeError(
            "Expected arrays, a `tf.data.Dataset` or a `keras.utils.PyDataset` to adapt to, which can be read more "
            f"than once. Got: {type(x).__name__}."
        )
    structure = keras.tree.map_structure(np.asarray, x if y is None else (x, y))
    sizes = {array.shape[0] if array.ndim else -1 for array in keras.tree.flatten(structure)}
    if len(sizes) != 1 or -1 in sizes:
        what = "lists: use `np.asarray`" if -1 in sizes else f"lengths {sorted(sizes)}"
        raise ValueError(f"Expected arrays of equal length as inputs and targets. Got {what}.")
    (size,) = sizes

    def iterate() -> Iterator[tuple[Any, Any]]:
        for start in range(0, size, batch_size):
            part = _rows(structure, start, start + batch_size)
            yield (part, None) if y is None else part

    return iterate


def _rows(structure: Any, start: int, stop: int) -> Any:
    return keras.tree.map_structure(lambda array: array[start:stop], structure)


def _check_targets_finite(targets: Any) -> None:
    for array in keras.tree.flatten(targets):
        if array is not None and not np.isfinite(np.asarray(array, dtype=np.float64)).all():
            raise ValueError("Expected finite targets to adapt to. Got NaN or infinity: remove these data first.")


def _gp_layers(model: keras.Model, examples: Any) -> tuple[list[OrthogonalGP], list[tf.Tensor]]:
    """GP layers in the order in which data reach them, and the outputs for one example."""
    layers: list[OrthogonalGP] = []

    def visitor(layer: Any, inputs: tf.Tensor) -> None:
        if isinstance(layer, OrthogonalGP) and layer not in layers:
            layers.append(layer)

    with recording.visiting(visitor):
        outputs = model(_rows(examples, 0, 1), training=False)
    if not layers:
        raise ValueError(f"Expected a model with `OrthogonalGP` layers to adapt. Got none in {model.name!r}.")
    return layers, keras.tree.flatten(outputs)


def _data_per_example(layers: list[OrthogonalGP], inputs: np.ndarray, targets: Any, output: tf.Tensor) -> int:
    """How many data one example has, over which losses average: the members of a sequence, but not samples of one.

    Members have inputs or targets of their own; the axes of samples, as from `keras.layers.RepeatVector`, do not.
    """
    *lead, units = output.shape
    has_moments = len(lead) > 1 and any(
        layer.return_moments and lead[-1] == layer.units and units in (2, 3) for layer in layers
    )
    if has_moments:  # [..., units, columns]
        *lead, units = lead
    if targets is None:
        return int(np.prod(lead[1:])) if list(inputs.shape[1:-1]) == lead[1:] else 1
    shape = list(targets.shape)
    if len(shape) == len(lead) + 1:
        return int(np.prod(shape[1:-1]))
    is_label = not has_moments or shape[-1:] != [units] or np.asarray(targets).dtype.kind in "iu"
    lacks_units = shape[1:] == lead[1:] and (units == 1 or is_label)
    return int(np.prod(lead[1:])) if lacks_units else 1


def _adapt_layer(
    model: keras.Model, layer: OrthogonalGP, examples: Any, batch_size: int, *, num_data: int, method: str
) -> None:
    reached: list[np.ndarray] = []

    def visitor(visited: Any, inputs: tf.Tensor) -> None:
        if visited is layer:
            reached.append(inputs.numpy().reshape(-1, inputs.shape[-1]))

    with recording.visiting(visitor):
        for start in range(0, len(keras.tree.flatten(examples)[0]), batch_size):
            model(_rows(examples, start, start + batch_size), training=False)
    layer.adapt(np.concatenate(reached), num_data=num_data, method=method)


def _start_last_layers(model: keras.Model, batches: Batches, examples: Any, weight: float) -> None:
    """Sets q to its optimum in layers whose moments reach an output with Gaussian noise.

    Each datum has a weight, above 1 where the data given stand for more.
    """
    heads = gaussian_heads(model, _rows(examples, 0, 8))
    if not heads:
        return
    factors = {}
    for layer in heads:
        with float_context(layer.compute_dtype):
            factors[layer] = layer.posterior.prior_factors()

    @tf.function(reduce_retracing=True)
    def batch_statistics(inputs: Any, targets: Any) -> list[Statistics]:
        outputs, reached = call_recording(model, inputs)
        all_targets = flatten_targets(model, targets)
        return [
            site_statistics(
                layer,
                factors[layer],
                reached[layer],
                gaussian_sites(all_targets[index], tf.cast(outputs[index], layer.compute_dtype)),
            )
            for layer, index in heads.items()
        ]

    totals: list[Statistics | None] = [None] * len(heads)
    for inputs, targets in batches():
        totals = [add_statistics(*pair) for pair in zip(totals, batch_statistics(inputs, targets))]
    for layer, total in zip(heads, totals):
        assert total is not None  # there was at least one batch
        if not all(np.isfinite(part).all() for part in total):
            raise ValueError(
                f"Expected finite data to start layer {layer.name!r} from. Got NaN or infinity among the inputs, "
                "outputs of layers before, or sums with the targets: remove or fill them first, and standardise "
                f"targets that are too large for {layer.compute_dtype}."
            )
        with float_context(layer.compute_dtype):
            layer.posterior.set_optimal_q(factors[layer], Statistics(*(weight * part for part in total)))
