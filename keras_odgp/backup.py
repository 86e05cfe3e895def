"""A backup from which training goes on exactly where it was."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import Any

import keras
import numpy as np

from keras_odgp import files
from keras_odgp._private import set_initial_epoch


class BackupAndRestore(keras.callbacks.Callback):
    """Saves the state of training after every epoch, and goes on from there if the process was killed.

    Like `keras.callbacks.BackupAndRestore`, but a kill at any moment leaves a whole backup: weights, optimizer, random
    state of GP layers and the number of the epoch are one file, which takes the place of the previous one in one step.
    (That of Keras writes over the weights, and the epoch into a second file: a kill between them makes an epoch count
    twice.) A damaged backup is refused, before the model has changed. An epoch that leaves NaN in weights or
    optimizer, infinity in weights that were finite, or a loss that is not finite, is not kept, with a warning: the
    backup before it stays, even if training ends.

    Training goes on as if nothing had happened, to the last bit, if nothing else is random or remembers what was:
    `shuffle` of `fit` is random, so give data in the order in which they are to be used, with `shuffle=False`, or a
    data set shuffled with a seed and `reshuffle_each_iteration=False`; `EarlyStopping`, `ReduceLROnPlateau` and
    `NaturalGradient` start anew. Give it before callbacks that put other weights into the model at the end of an epoch
    (`SwapEMAWeights`): it would keep those. If `fit` ends before the first epoch after a backup has begun, because
    another callback refuses to start, Keras lets the next `fit` of this model begin at that epoch, unless it has a
    `BackupAndRestore`, too.

    Args:
        backup_dir: Directory of the backup, on this machine's file systems, for this training alone.
        delete_checkpoint: Whether to delete the backup when training has ended. Defaults to True.

    Example:

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     model = keras.Sequential([
    ...         keras.Input((2,)),
    ...         keras_odgp.layers.OrthogonalGP(1, num_inducing=4, num_orthogonal=4, num_data=20)
    ...     ])
    ...     model.compile(loss="mse", run_eagerly=True)
    ...     backup = keras_odgp.callbacks.BackupAndRestore(f"{folder}/backup")
    ...     _ = model.fit(np.ones((20, 2)), np.ones(20), shuffle=False, verbose=0, callbacks=[backup])
    """

    def __init__(self, backup_dir: Any, *, delete_checkpoint: bool = True) -> None:
        super().__init__()
        if not backup_dir:
            raise ValueError(f"Expected a directory for the backup. Got: {backup_dir!r}.")
        files.check_local(backup_dir)
        self.backup_dir = Path(backup_dir)
        self.delete_checkpoint = delete_checkpoint

    @property
    def _path(self) -> Path:
        return self.backup_dir / "latest.weights.h5"

    def on_train_begin(self, logs: Any = None) -> None:
        if not self.model.built:
            raise ValueError("Expected a model that is built before `fit`: call it on a batch of data, or `adapt` it.")
        self._has_failed = False
        set_initial_epoch(self.model, None)  # of a training that was refused after it had been set
        if self._path.exists():
            self._restore()
        self._may_be_infinite = {id(v) for v in self.model.variables if not _is_finite(v)}

    def _restore(self) -> None:
        note = files.read_note(self._path)
        if not isinstance(note, dict) or "epoch" not in note:
            raise ValueError(f"Expected a backup of training. Got a file without an epoch: {str(self._path)!r}.")
        epoch = note["epoch"]
        files.load_weights(self.model, self._path)
        set_initial_epoch(self.model, epoch)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        set_initial_epoch(self.model, None)  # Keras keeps it: the next `fit` would leave out its first epochs

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        reason = self._failure(logs or {})
        self._has_failed = reason is not None
        if reason is not None:
            warnings.warn(f"Epoch {epoch + 1} is not backed up, because of {reason}: look into it.", stacklevel=2)
            return
        os.makedirs(self.backup_dir, exist_ok=True)
        files.save_weights(self.model, self._path, note={"epoch": epoch + 1})

    def on_train_end(self, logs: Any = None) -> None:
        set_initial_epoch(self.model, None)  # if no epoch was left to train
        if self.delete_checkpoint and not self._has_failed:
            self._path.unlink(missing_ok=True)

    def _failure(self, logs: dict[str, Any]) -> str | None:
        """Why training cannot go on from here, if so. A loss is that before the last step, so it does not tell all.

        Infinity that was there from the start is meant, as in a mask; moments of an optimizer may overflow, and
        training goes on.
        """
        if not np.isfinite(logs.get("loss", 0.0)).all():
            return f"a loss of {logs['loss']}"
        optimizer = {id(variable): variable for variable in getattr(self.model.optimizer, "variables", ())}
        for variable in [*self.model.variables, *optimizer.values()]:
            may_be_infinite = id(variable) in self._may_be_infinite or id(variable) in optimizer
            if not _is_finite(variable, may_be_infinite=may_be_infinite):
                return f"NaN or infinity in {variable.path!r}"
        return None


def _is_finite(variable: keras.Variable, *, may_be_infinite: bool = False) -> bool:
    if not keras.backend.is_float_dtype(variable.dtype):
        return True
    value = keras.ops.convert_to_numpy(variable).astype(np.float64)  # bfloat16, too, of which NumPy knows little
    return not np.isnan(value).any() and (may_be_infinite or bool(np.isfinite(value).all()))
