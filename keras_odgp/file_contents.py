"""Whether a file of weights has what a model has."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

import h5py
import keras

from keras_odgp._private import num_optimizer_steps, save_weights_to_buffer


def check_contents(model: keras.Model, copy: Path, path: Any) -> None:
    """Raises if a file has other arrays than the model: Keras would load what fits, and say nothing of the rest."""
    buffer = io.BytesIO()
    save_weights_to_buffer(model, buffer)
    with h5py.File(copy) as file, h5py.File(buffer) as own:
        saved, expected = _arrays(file), _arrays(own)
        parts = {"weights": _shapes(saved, "weights") ^ _shapes(expected, "weights")}
        if "optimizer" in own and num_optimizer_steps(saved) > 0:
            parts["optimizer"] = _shapes(saved, "optimizer") ^ _shapes(expected, "optimizer")
    remedies = {"weights": "", "optimizer": " To take the weights alone, load them before `compile`."}
    for part, different in parts.items():
        if different:
            raise ValueError(
                f"Expected the {part} of this model in {str(path)!r}, in number, shapes and kind. Got a file of "
                f"another model or optimizer, which differs in {len(different)} arrays, the first of them "
                f"{min(different)[0]!r}.{remedies[part]}"
            )


def _arrays(file: h5py.File) -> dict[str, h5py.Dataset]:
    """All arrays of a file by name; links out of it are not followed."""
    found: dict[str, h5py.Dataset] = {}
    file.visititems(lambda name, item: found.update({name: item}) if isinstance(item, h5py.Dataset) else None)
    elsewhere = [name for name, item in found.items() if item.external or item.is_virtual]
    if elsewhere:
        raise ValueError(f"Expected a file that has all its weights. Got one that keeps {elsewhere[0]!r} elsewhere.")
    return found


def _shapes(arrays: dict[str, h5py.Dataset], part: str) -> set[tuple[str, tuple[int, ...], str]]:
    """Names and shapes of the weights, or of the optimizer; states of optimizers of models within do not count.

    Those of an optimizer come with its name, which is that of its class unless it was given another: momenta of one
    kind may have the shapes of second moments of another.
    """
    if part == "optimizer":
        return {(name, item.shape, _owner(item)) for name, item in arrays.items() if name.startswith("optimizer/")}
    return {(name, item.shape, "") for name, item in arrays.items() if "optimizer" not in name.split("/")}


def _owner(item: h5py.Dataset) -> str:
    """The name under which Keras saved what an array belongs to, without the number that makes it unique."""
    return re.sub(r"_\d+$", "", str(item.parent.attrs.get("name", "")))
