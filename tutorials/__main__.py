"""Runs tutorials from the command line: `python -m tutorials getting_started`.

The tutorials are notebooks in plain Python (`# %%` starts a cell): open them in an editor that knows such cells, or in
Jupyter with jupytext. Here they run from top to bottom, and their figures are written as files. `--fast` takes one or
two steps wherever a model is trained: enough to see that everything runs.
"""

from __future__ import annotations

import argparse
import os
import runpy
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import matplotlib

matplotlib.use("Agg")
import keras
import matplotlib.pyplot as plt
import tensorflow as tf

from keras_odgp import Predictive, gpflow_models

FOLDER = Path(__file__).resolve().parent
NAMES = sorted(path.stem for path in FOLDER.glob("[!_]*.py"))
FAST_STEPS, FAST_SAMPLES = 2, 4


@contextmanager
def fast() -> Iterator[None]:
    """Within it, training takes a step or two and predictions few samples, without graphs, whose tracing takes long."""
    fit, fit_lbfgs, make_predictive = keras.Model.fit, gpflow_models.fit_lbfgs, Predictive.__init__

    def few_steps(self: keras.Model, *args: Any, **kwargs: Any) -> Any:
        return fit(self, *args, **{**kwargs, "epochs": 1, "steps_per_epoch": FAST_STEPS})

    def few_iterations(*args: Any, **kwargs: Any) -> Any:
        return fit_lbfgs(*args, **{**kwargs, "max_iterations": FAST_STEPS, "first_stage_iterations": 0})

    def few_samples(self: Predictive, model: keras.Model, num_samples: int = 64, **kwargs: Any) -> None:
        make_predictive(self, model, min(num_samples, FAST_SAMPLES), **kwargs)

    eager = tf.config.functions_run_eagerly()
    tf.config.run_functions_eagerly(True)
    try:
        with (
            mock.patch.object(keras.Model, "fit", few_steps),
            mock.patch.object(gpflow_models, "fit_lbfgs", few_iterations),
            mock.patch.object(Predictive, "__init__", few_samples),
        ):
            yield
    finally:
        tf.config.run_functions_eagerly(eager)


def run(name: str, output: Path) -> list[Path]:
    """Runs one tutorial in a folder, to which it writes what it saves, and its figures; returns their paths."""
    plt.close("all")
    output.mkdir(parents=True, exist_ok=True)
    before = Path.cwd()
    os.chdir(output)
    try:
        runpy.run_path(str(FOLDER / f"{name}.py"), run_name="__main__")
    finally:
        os.chdir(before)
    numbers = plt.get_fignums()
    paths = [output / (f"{name}.png" if number == numbers[0] else f"{name}_{number}.png") for number in numbers]
    for number, path in zip(numbers, paths):
        plt.figure(number).savefig(path, dpi=150)
    plt.close("all")
    return paths


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="name", help=f"which to run: {', '.join(NAMES)} (default: all)")
    parser.add_argument(
        "--output", type=Path, default=Path("build/tutorials"), help="folder of figures and of what is saved"
    )
    parser.add_argument("--fast", action="store_true", help="one or two steps of training")
    arguments = parser.parse_args()
    unknown = sorted(set(arguments.names) - set(NAMES))
    if unknown:
        parser.error(f"there is no tutorial {', '.join(unknown)}; there are {', '.join(NAMES)}")
    for name in arguments.names or NAMES:
        print(f"\n{name}\n{'=' * len(name)}")
        if arguments.fast:
            with fast():
                paths = run(name, arguments.output)
        else:
            paths = run(name, arguments.output)
        for path in paths:
            print(f"Figure: {path}")


if __name__ == "__main__":
    main()
