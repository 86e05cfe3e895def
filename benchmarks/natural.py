"""ELBO after training: updates of q of the last layer by closed form or natural gradients, against Adam alone.

Run with `python -m benchmarks.natural`. Regression has 5,000 rows: 20 epochs with `ClosedFormUpdate` against 100 of
Adam for all parameters. Classification, generated with two classes and the digits of scikit-learn with ten: 50 epochs
with `NaturalGradient` against 100 of Adam. Models have one GP layer with M = K = 64, or two layers with `--depth 2`.
All methods share start values (those of `keras_odgp.adapt` with targets; Adam also without), the optimiser (Adam), its
learning rate, and the size of batches. The ELBO is that of all training data, per datum. Seconds include compilation.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import keras
import numpy as np
from sklearn.datasets import load_digits
from sklearn.decomposition import PCA
from tqdm import tqdm

import keras_odgp
from benchmarks.timing import describe_machine

NUM_ROWS, NUM_ROWS_BINARY = 5000, 3000


class Problem(NamedTuple):
    """Data, and the likelihood of their targets."""

    x: np.ndarray
    y: np.ndarray
    likelihood: str = "gaussian"
    units: int = 1


def _regression(x: np.ndarray, f: np.ndarray, noise: float, rng: np.random.Generator) -> Problem:
    y = (f - f.mean()) / f.std() + noise * rng.normal(size=len(f))
    return Problem(x, (y - y.mean()) / y.std())


def sines(seed: int) -> Problem:
    """Four inputs, of which one makes fast waves; little noise."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(NUM_ROWS, 4))
    return _regression(x, np.sin(2 * x[:, 0]) + np.cos(x[:, 1]) * x[:, 2] + 0.5 * x[:, 3], 0.1, rng)


def friedman(seed: int) -> Problem:
    """Friedman's first function of five inputs, and one that does nothing."""
    rng = np.random.default_rng(seed)
    u = rng.uniform(size=(NUM_ROWS, 6))
    f = 10 * np.sin(np.pi * u[:, 0] * u[:, 1]) + 20 * (u[:, 2] - 0.5) ** 2 + 10 * u[:, 3] + 5 * u[:, 4]
    return _regression((u - 0.5) * np.sqrt(12), f, 0.2, rng)


def network(seed: int) -> Problem:
    """A random network of tanh units on eight inputs; much noise."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(NUM_ROWS, 8))
    hidden = np.tanh(2 * x @ rng.normal(size=(8, 12)) / np.sqrt(8))
    return _regression(x, hidden @ rng.normal(size=12), 0.3, rng)


def binary(seed: int) -> Problem:
    """Two classes on four inputs, by a logistic model of a nonlinear function."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(NUM_ROWS_BINARY, 4))
    f = 3 * np.sin(2 * x[:, 0]) + 2 * x[:, 1] * x[:, 2]
    return Problem(x, (f + rng.logistic(size=len(f)) > 0).astype(float), "bernoulli")


def digits(seed: int) -> Problem:
    """Pictures of ten digits, 16 principal components."""
    images, labels = load_digits(return_X_y=True)
    x = PCA(16, random_state=seed).fit_transform(images)
    return Problem(x / x.std(), labels, "softmax", units=10)


PROBLEMS: dict[str, Callable[[int], Problem]] = {
    function.__name__: function for function in (sines, friedman, network, binary, digits)
}


def make_model(problem: Problem, seed: int, arguments: argparse.Namespace, *, with_targets: bool) -> keras.Model:
    """A compiled model with start values from the data."""
    keras.utils.set_random_seed(seed)
    num_inputs = problem.x.shape[1]
    hidden = [_layer(num_inputs, seed, arguments.size) for _ in range(arguments.depth - 1)]
    last = _layer(problem.units, seed, arguments.size, return_moments=True)
    noise = [keras_odgp.layers.GaussianLikelihood()] if problem.likelihood == "gaussian" else []
    model = keras.Sequential([keras.Input((num_inputs,)), *hidden, last, *noise])
    loss = keras_odgp.losses.VariationalLoss(problem.likelihood)
    model.compile(keras.optimizers.Adam(arguments.learning_rate), loss, jit_compile=False)
    keras_odgp.adapt(model, problem.x, problem.y if with_targets else None)
    return model


def _layer(units: int, seed: int, size: int, **kwargs: Any) -> keras.Layer:
    return keras_odgp.layers.OrthogonalGP(units, size, size, seed=seed, **kwargs)


def elbo(model: keras.Model, problem: Problem, times: int) -> float:
    """ELBO per datum; the mean of several evaluations where hidden layers draw samples."""
    losses = [
        model.evaluate(problem.x, problem.y, batch_size=1000, verbose=0, return_dict=True)["loss"] for _ in range(times)
    ]
    return -float(np.mean(losses))


class Progress(keras.callbacks.Callback):
    """Shows the epochs of one method."""

    def __init__(self, description: str, epochs: int) -> None:
        super().__init__()
        self._bar = tqdm(total=epochs, desc=description, leave=False, disable=None)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self._bar.update()

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        self._bar.close()


def compare(name: str, seed: int, arguments: argparse.Namespace) -> None:
    """Prints a row for each method."""
    problem = PROBLEMS[name](seed)
    is_regression = problem.likelihood == "gaussian"
    callback = keras_odgp.callbacks.ClosedFormUpdate if is_regression else keras_odgp.callbacks.NaturalGradient
    methods = [(callback.__name__, 20 if is_regression else 50, True), ("Adam", 100, True)]
    if is_regression:
        methods.append(("Adam, start without y", 100, False))
    for method, epochs, with_targets in methods:
        model = make_model(problem, seed, arguments, with_targets=with_targets)
        callbacks = [Progress(f"{name}, {method}", epochs)]
        if method == callback.__name__:
            callbacks.append(callback(problem.x, problem.y, seed=seed))
        start = time.perf_counter()
        model.fit(problem.x, problem.y, batch_size=arguments.batch_size, epochs=epochs, verbose=0, callbacks=callbacks)
        seconds = time.perf_counter() - start
        value = elbo(model, problem, 1 if arguments.depth == 1 else 10)
        print(f"{name:12}{seed:>5}  {method:24}{epochs:>7}{value:>16.4f}{seconds:>9.0f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=1, help="number of seeds, of data and of models")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--problems", nargs="+", choices=PROBLEMS, default=list(PROBLEMS))
    parser.add_argument("--size", type=int, default=64, help="M = K")
    parser.add_argument("--depth", type=int, default=1, help="number of GP layers")
    parser.add_argument("--learning-rate", type=float, default=3e-2, help="of Adam, in all methods")
    parser.add_argument("--batch-size", type=int, default=256)
    arguments = parser.parse_args()
    print(describe_machine(), f"learning rate {arguments.learning_rate}, M = K = {arguments.size}", sep="; ")
    print(f"{'problem':12}{'seed':>5}  {'method':24}{'epochs':>7}{'ELBO per datum':>16}{'seconds':>9}")
    for seed in range(arguments.first_seed, arguments.first_seed + arguments.seeds):
        for name in arguments.problems:
            compare(name, seed, arguments)


if __name__ == "__main__":
    main()
