"""Model files that are written whole or not at all, and read only if nothing in them has changed.

Keras writes over the previous file, so a full disk or a killed process leaves neither the old nor the new one; and most
of a file has no checksum, so that a changed bit can go unnoticed. Here a file is written beside the previous one, takes
its place in one step, and ends with a seal: a digest of all its bytes. The seal comes after the end of what Keras
reads, so `keras.saving.load_model` and `Model.load_weights` read such files too, without the check.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import secrets
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np

from keras_odgp._private import safe_mode, save_weights_to_buffer
from keras_odgp.file_contents import check_contents

__all__ = ["DamagedFileError", "load_model", "load_weights", "read_note", "save_model", "save_weights"]

MAGIC = b"odgpseal"
DIGEST_SIZE = hashlib.sha256().digest_size
LENGTH_SIZE = 8  # of the number of bytes of the note


class DamagedFileError(ValueError):
    """A file that is not as it was written.

    Example:

    >>> import tempfile, os
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = os.path.join(folder, "model.keras")
    ...     with open(path, "wb") as file:
    ...         _ = file.write(b"not a model")
    ...     keras_odgp.files.load_model(path)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    keras_odgp.files.DamagedFileError: Expected a file with a seal, ...
    """


def save_model(model: keras.Model, path: Any) -> None:
    """Saves a model, like `model.save`, but so that an error leaves the previous file as it was.

    Args:
        model: A Keras model.
        path: Where to save it: a path that ends in `.keras`.

    Example:

    >>> import tempfile, os
    >>> model = keras.Sequential([keras.Input((2,)), keras_odgp.layers.OrthogonalGP(1, num_inducing=4, num_data=9)])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = os.path.join(folder, "model.keras")
    ...     keras_odgp.files.save_model(model, path)
    ...     loaded = keras_odgp.files.load_model(path)
    >>> type(loaded.layers[0]).__name__
    'OrthogonalGP'
    """
    _check_suffix(path, ".keras")
    buffer = _MemoryFile()
    model.save(buffer)
    _replace(path, buffer.getvalue())


def load_model(path: Any, **kwargs: Any) -> keras.Model:
    """Loads a model that `save_model` saved, in the safe mode of Keras: nothing in a file can run code.

    Args:
        path: The file.
        **kwargs: Arguments of `keras.saving.load_model` but `safe_mode`.

    Raises:
        DamagedFileError: If any byte of the file differs from what was written, or the file has no seal.

    Example:

    >>> import tempfile, os
    >>> model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = os.path.join(folder, "model.keras")
    ...     keras_odgp.files.save_model(model, path)
    ...     keras_odgp.files.load_model(path).input_shape
    (None, 2)
    """
    _check_suffix(path, ".keras")
    if not kwargs.get("safe_mode", True):
        raise ValueError(
            "Expected `safe_mode` to stay True here. To load a file that may run code, and that you trust, use "
            "`keras.saving.load_model`."
        )
    with _checked_copy(path) as copy, safe_mode():
        return keras.saving.load_model(copy, **{**kwargs, "safe_mode": True})


def save_weights(model: keras.Model, path: Any, note: Any = None) -> None:
    """Saves weights, like `model.save_weights`, but so that an error leaves the previous file as it was.

    Args:
        model: A built Keras model.
        path: Where to save them: a path that ends in `.weights.h5`.
        note: Plain data to keep in the file, for `read_note`. Defaults to None.

    Example:

    >>> import tempfile, os
    >>> model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = os.path.join(folder, "model.weights.h5")
    ...     keras_odgp.files.save_weights(model, path, note={"epoch": 3})
    ...     os.listdir(folder)
    ['model.weights.h5']
    """
    _check_suffix(path, ".weights.h5")
    buffer = io.BytesIO()
    save_weights_to_buffer(model, buffer)
    _replace(path, buffer.getvalue(), note)


def load_weights(model: keras.Model, path: Any) -> None:
    """Loads all weights that `save_weights` saved, or none: if there is an error, the model stays as it was.

    The state of an optimizer that has taken steps is loaded if the model has one, too; then both are of one kind.

    Args:
        model: A built Keras model. Its optimizer, if it has one, is built if need be: else its state would be left out.
        path: The file.

    Raises:
        DamagedFileError: If any byte of the file differs from what was written, or the file has no seal.
        ValueError: If the file is that of a model with other layers, other shapes, or another kind of optimizer.

    Example:

    >>> import tempfile, os
    >>> model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = os.path.join(folder, "model.weights.h5")
    ...     keras_odgp.files.save_weights(model, path, note={"epoch": 3})
    ...     keras_odgp.files.load_weights(model, path)
    """
    _check_suffix(path, ".weights.h5")
    with _checked_copy(path) as copy:
        if getattr(model, "optimizer", None) is not None and not model.optimizer.built:
            model.optimizer.build(model.trainable_variables)
        check_contents(model, copy, path)
        with _restored_on_error(model):
            model.load_weights(copy)


def read_note(path: Any) -> Any:
    """The note that a file was saved with, after a check of all bytes.

    Raises:
        DamagedFileError: If any byte of the file differs from what was written, or the file has no seal.

    Example:

    >>> import tempfile, os
    >>> model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = os.path.join(folder, "model.weights.h5")
    ...     keras_odgp.files.save_weights(model, path, note={"epoch": 3})
    ...     keras_odgp.files.read_note(path)
    {'epoch': 3}
    """
    body = _checked_body(path)
    length = int.from_bytes(body[-LENGTH_SIZE:], "big")
    return json.loads(body[len(body) - LENGTH_SIZE - length : -LENGTH_SIZE])


def _checked_body(path: Any) -> bytes:
    """All bytes of a file but those of its seal that follow the note."""
    content = Path(path).read_bytes()
    end = len(content) - len(MAGIC) - DIGEST_SIZE
    if end < LENGTH_SIZE or not content.endswith(MAGIC):
        raise DamagedFileError(
            f"Expected a file with a seal, as `keras_odgp.files` writes it. Got {str(path)!r} without one: it is cut "
            "short or damaged, or was saved otherwise (read such a file with `keras.saving.load_model` or "
            "`Model.load_weights`)."
        )
    body = content[:end]
    if hashlib.sha256(body).digest() != content[end : -len(MAGIC)]:
        raise DamagedFileError(
            f"The file {str(path)!r} is damaged: its bytes are not those that were written. Use a copy, or save again."
        )
    return body


@contextlib.contextmanager
def _checked_copy(path: Any) -> Iterator[Path]:
    """A copy of a whole file in a folder of its own, because the file itself may change between check and use."""
    body = _checked_body(path)
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder, Path(path).name)
        copy.write_bytes(body)
        yield copy


def _check_suffix(path: Any, suffix: str) -> None:
    if not str(path).endswith(suffix):
        raise ValueError(f"Expected a path that ends in {suffix!r}. Got: {str(path)!r}.")
    check_local(path)


def check_local(path: Any) -> None:
    """Raises an error for addresses, which would be taken for names of folders."""
    if "://" in str(path):
        raise ValueError(f"Expected a path on a file system of this machine. Got an address: {str(path)!r}.")


class _MemoryFile(io.BytesIO):
    """Where Keras writes a model without a disk that can be full, on which HDF5 would crash the process."""

    def __str__(self) -> str:
        return "memory.keras"


def _replace(path: Any, content: bytes, note: Any = None) -> None:
    """Writes a file beside the previous one, and puts it in its place once it is on the disk."""
    target = Path(os.path.realpath(path))  # what a link points to, not the link
    stem = os.fsdecode(os.fsencode(target.name)[:200])  # names have at most 255 bytes
    beside = target.with_name(f".{stem}-{secrets.token_hex(4)}")
    try:
        with open(beside, "xb") as file:
            file.write(content + _seal(content, note))
            file.flush()
            os.fsync(file.fileno())
        with contextlib.suppress(FileNotFoundError):  # none yet, or deleted meanwhile by a process that shares it
            beside.chmod(target.stat().st_mode & 0o777)
        os.replace(beside, target)
    except BaseException:
        with contextlib.suppress(OSError):
            beside.unlink()
        raise
    _sync(target.parent)  # so that the new name survives a loss of power, too


def _seal(content: bytes, note: Any) -> bytes:
    text = json.dumps(note).encode()
    text += len(text).to_bytes(LENGTH_SIZE, "big")
    return text + hashlib.sha256(content + text).digest() + MAGIC


def _sync(folder: Path) -> None:
    with contextlib.suppress(OSError):  # which some file systems do not offer for directories
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


@contextlib.contextmanager
def _restored_on_error(model: keras.Model) -> Iterator[None]:
    optimizer = getattr(model, "optimizer", None)
    variables = [*model.variables, *(optimizer.variables if optimizer is not None else [])]
    values = [np.array(keras.ops.convert_to_numpy(variable)) for variable in variables]
    try:
        yield
    except BaseException:
        for variable, value in zip(variables, values):
            variable.assign(value)
        raise
