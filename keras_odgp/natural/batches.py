"""The batches of a callback."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from keras_odgp.checks import check_count


def batches_of(x: Any, y: Any, batch_size: int, seed: int | None) -> tf.data.Dataset:
    """Endless batches; of arrays in random order, and all of one size."""
    if isinstance(x, tf.data.Dataset):
        if y is not None:
            raise ValueError("Expected targets within the dataset. Got a dataset as `x`, and `y` beside it.")
        return x.repeat()
    if y is None:
        raise ValueError("Expected targets `y` beside the inputs `x`, or a dataset with both. Got no targets.")
    check_count("batch_size", batch_size)
    arrays = keras.tree.map_structure(tf.convert_to_tensor, (x, y))
    sizes = {array.shape[0] if array.shape.rank else -1 for array in keras.tree.flatten(arrays)}
    if len(sizes) != 1 or min(sizes) < 1:
        raise ValueError(f"Expected arrays of equal length as inputs and targets. Got lengths {sorted(sizes)}.")
    (size,) = sizes
    rows = tf.data.Dataset.range(size).shuffle(size, seed=seed).repeat()
    rows = rows.batch(min(int(batch_size), size), drop_remainder=True)
    return rows.map(lambda index: keras.tree.map_structure(lambda array: tf.gather(array, index), arrays)).prefetch(1)


def inputs_and_targets(element: Any) -> tuple[Any, Any]:
    """Inputs and targets of an element of a dataset."""
    inputs, targets, _ = keras.utils.unpack_x_y_sample_weight(element)
    if targets is None:
        raise ValueError("Expected a dataset of pairs of inputs and targets. Got one without targets.")
    return inputs, targets
