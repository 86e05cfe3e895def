"""The batches of a callback."""

from __future__ import annotations

from typing import Any, NamedTuple

import keras
import tensorflow as tf

from keras_odgp.checks import check_count

FEW, BATCH_SIZE_OF_MANY = 8192, 2048  # sums over few data are exact; those over many are run over batches


class Batches(NamedTuple):
    """Batches of inputs, targets and, where examples have them, weights.

    Attributes:
        endless: Without end; of arrays in random order, and all of one size.
        once: One pass over all; None where none is known to end.
        fraction: Which part of all examples a batch has; None where that is not known.
    """

    endless: tf.data.Dataset
    once: tf.data.Dataset | None
    fraction: float | None


def batches_of(x: Any, y: Any, batch_size: int | None, seed: int | None, sample_weight: Any = None) -> Batches:
    """Batches of arrays, by default one of all data if they are few; or those of a dataset."""
    if isinstance(x, tf.data.Dataset):
        if y is not None or sample_weight is not None:
            raise ValueError(
                "Expected targets and weights within the dataset. Got a dataset as `x`, and `y` or `sample_weight` "
                "beside it."
            )
        size = int(x.cardinality())
        return Batches(x.repeat(), *((x, 1.0 / max(size, 1)) if size >= 0 else (None, None)))
    if y is None:
        raise ValueError("Expected targets `y` beside the inputs `x`, or a dataset with both. Got no targets.")
    if batch_size is not None:
        check_count("batch_size", batch_size)
    given = (x, y) if sample_weight is None else (x, y, sample_weight)
    arrays = keras.tree.map_structure(tf.convert_to_tensor, given)
    sizes = {array.shape[0] if array.shape.rank else -1 for array in keras.tree.flatten(arrays)}
    if len(sizes) != 1 or min(sizes) < 1:
        raise ValueError(
            f"Expected arrays of equal length as inputs, targets and weights. Got lengths {sorted(sizes)}."
        )
    (size,) = sizes
    batch_size = min(batch_size or (size if size <= FEW else BATCH_SIZE_OF_MANY), size)
    rows = tf.data.Dataset.range(size)

    def batched(rows: tf.data.Dataset) -> tf.data.Dataset:
        # Batches of unknown size: what is compiled for the endless ones is then right for a last, smaller one too.
        return rows.batch(batch_size).map(
            lambda index: keras.tree.map_structure(lambda array: tf.gather(array, index), arrays)
        )

    return Batches(
        batched(rows.shuffle(size, seed=seed).repeat()).prefetch(1), batched(rows).prefetch(1), batch_size / size
    )


def unpack(element: Any) -> tuple[Any, Any, Any]:
    """Inputs, targets and weights (None where there are none) of an element of a dataset."""
    inputs, targets, weights = keras.utils.unpack_x_y_sample_weight(element)
    if targets is None:
        raise ValueError("Expected a dataset of pairs of inputs and targets. Got one without targets.")
    return inputs, targets, weights
