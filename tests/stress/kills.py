"""A training that is killed again and again. TensorFlow is imported once; each attempt is a fork before it starts."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import sys
import time
from pathlib import Path

import keras
import numpy as np
import tensorflow  # noqa: F401

import keras_odgp
from keras_odgp import layers, losses

# Kills of certain attempts come within a save: it calls fsync for the file, replace, and fsync for the directory.
MOMENTS = {1: "before replace", 4: "after replace", 7: "before fsync", 10: "after fsync"}


STEPS = sys.argv[4] if __name__ == "__main__" else "eager"


class Diary(keras.callbacks.Callback):
    """Notes every epoch that begins, and that ends after its backup, with the number of the process."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path

    def write(self, event: str, epoch: int) -> None:
        with self.path.open("a") as file:
            file.write(f"{os.getpid()} {event} {epoch}\n")

    def on_epoch_begin(self, epoch: int, logs: dict | None = None) -> None:
        self.write("begin", epoch)

    def on_epoch_end(self, epoch: int, logs: dict | None = None) -> None:
        self.write("end", epoch)


def train(backup: Path | None, output: Path, num_epochs: int) -> None:
    """Trains a model of two layers, whose samples make every step random, and writes its weights.

    Steps of Python take a quarter of the time that it takes to compile them, in each attempt.
    """
    rng = np.random.default_rng(0)
    x = rng.normal(size=(16, 2))
    y = np.sin(x[:, 0]) + 0.1 * rng.normal(size=16)
    options = {"num_inducing": 4, "num_orthogonal": 4, "num_levels": 4}
    model = keras.Sequential(
        [
            keras.Input((2,)),
            layers.OrthogonalGP(2, seed=1, **options),
            layers.OrthogonalGP(1, seed=2, return_moments=True, **options),
            layers.GaussianLikelihood(),
        ]
    )
    keras_odgp.adapt(model, x)
    model.compile(
        optimizer=keras.optimizers.Adam(1e-2), loss=losses.VariationalLoss("gaussian"), run_eagerly=STEPS == "eager"
    )
    callbacks = [] if backup is None else [keras_odgp.callbacks.BackupAndRestore(backup)]
    callbacks.append(Diary(output.with_suffix(".epochs")))
    model.fit(x, y, batch_size=8, epochs=num_epochs, shuffle=False, verbose=0, callbacks=callbacks)
    temporary = output.with_suffix(".part.npz")
    np.savez(temporary, *[np.asarray(v) for v in (*model.weights, *model.optimizer.variables)])
    os.replace(temporary, output)


def kill_within_a_save(moment: str, number: int) -> None:
    """Lets this process kill itself within one of its next backups: before or after a call of the system."""
    when, name = moment.split()
    original, calls = getattr(os, name), itertools.count(1)

    def deadly(*arguments):
        is_now = next(calls) == number
        if is_now and when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        original(*arguments)
        if is_now:
            os.kill(os.getpid(), signal.SIGKILL)

    setattr(os, name, deadly)


def start(backup: Path | None, output: Path, num_epochs: int, moment: str | None = None) -> int:
    child = os.fork()
    if child:
        return child
    try:
        if moment is not None:
            kill_within_a_save(moment, 3)
        train(backup, output, num_epochs)
    except BaseException as error:
        print(repr(error), file=sys.stderr, flush=True)
        os._exit(1)
    os._exit(0)


def has_ended(child: int) -> bool:
    return os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def attempt(
    backup: Path,
    output: Path,
    num_epochs: int,
    delay: float | None,
    *,
    early: bool = False,
    moment: str | None = None,
) -> int:
    """Trains until it has ended, or is killed: after its first backup, already after its start, or within a save."""
    file = backup / "latest.weights.h5"
    before = file.stat().st_mtime_ns if file.exists() else None
    child = start(backup, output, num_epochs, moment)
    if delay is not None:
        while not early and not has_ended(child):
            with contextlib.suppress(FileNotFoundError):
                if file.stat().st_mtime_ns != before:
                    break
            time.sleep(0.002)
        time.sleep(delay)
        os.kill(child, signal.SIGKILL)  # nothing happens to one that has ended and was not waited for
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def main(folder: Path, num_kills: int, num_epochs: int) -> None:
    """Trains once in peace, and once with kills at random moments."""
    rng = np.random.default_rng(0)
    begin = time.monotonic()
    code = os.waitstatus_to_exitcode(os.waitpid(start(None, folder / "whole.npz", num_epochs), 0)[1])
    duration = time.monotonic() - begin
    codes = [code]
    while codes.count(-signal.SIGKILL) < num_kills and len(codes) < 4 * num_kills + 2:  # some end before
        early, moment = len(codes) % 3 == 0, MOMENTS.get(len(codes))
        delay = None if moment else rng.uniform(0.0, (2.0 if early else 1.5) * duration / num_epochs)
        codes.append(attempt(folder / "backup", folder / "killed.npz", num_epochs, delay, early=early, moment=moment))
    codes.append(attempt(folder / "backup", folder / "killed.npz", num_epochs, None))
    print(json.dumps({"codes": codes}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
