"""Bayesian optimisation with a deep GP: Branin's function is minimised in 30 evaluations by Thompson sampling.

A round fits a deep GP to the evaluations so far, draws four functions from its posterior, finds the minimum of each by
gradient steps from many starts, and evaluates the true function there. Functions that are uncertain in different places
have their minima in different places: that is all the exploration there is. Prints the best value after each round and
draws the path.

Run with `python tutorials/thompson_sampling.py`.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import keras
import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
import tensorflow as tf

import keras_odgp as odgp

NUM_START, NUM_PER_ROUND, NUM_EVALUATIONS = 10, 4, 30
MINIMUM = 0.397887  # of Branin's function, at three places
MINIMISERS = np.array([[-np.pi, 12.275], [np.pi, 2.275], [9.42478, 2.475]])
LOWER, UPPER = np.array([-5.0, 0.0]), np.array([10.0, 15.0])
BLUE, ORANGE = "#1b4f8a", "#d9730d"


def branin(x: np.ndarray) -> np.ndarray:
    """Branin's function on the square [-1, 1]^2, which stands for [-5, 10] x [0, 15]; from `[N, 2]` to `[N]`."""
    a, b = (LOWER + (x + 1.0) / 2.0 * (UPPER - LOWER)).T
    return (b - 5.1 / (4 * np.pi**2) * a**2 + 5 / np.pi * a - 6) ** 2 + 10 * (1 - 1 / (8 * np.pi)) * np.cos(a) + 10


def make_model(num_data: int, seed: int) -> keras.Model:
    """Two GP layers; as many points as there are data, up to 20, make the second one flexible."""
    size = min(20, num_data)
    return keras.Sequential(
        [
            keras.Input((2,), dtype="float64"),
            odgp.layers.OrthogonalGP(2, 7, size, num_levels=4, seed=seed),
            odgp.layers.OrthogonalGP(1, 7, size, num_levels=4, kernel="matern52", return_moments=True, seed=seed),
            odgp.layers.GaussianLikelihood(1e-2),
        ]
    )


def fit(x: np.ndarray, y: np.ndarray, steps: int, seed: int) -> keras.Model:
    """A deep GP trained on all evaluations, in one batch, on the scale of square roots: large values count less."""
    roots = np.sqrt(y)
    model = make_model(len(x), seed)
    targets = (roots - roots.mean()) / roots.std()
    odgp.adapt(model, x, targets)
    model.compile(optimizer=keras.optimizers.Adam(2e-2), loss=odgp.losses.VariationalLoss("gaussian"))
    repeated = tf.data.Dataset.from_tensors((x, targets)).repeat(steps)
    model.fit(repeated, epochs=1, shuffle=False, verbose=0)
    return model


def minimise(model: keras.Model, num: int, num_starts: int, steps: int, seed: int) -> np.ndarray:
    """The minimum `[num, 2]` of each of some functions drawn from the model, within the square."""
    functions = odgp.sample_functions(model, num, seed)
    starts = np.random.default_rng(seed).uniform(-1, 1, size=(num_starts, 2))
    best = tf.argsort(functions(starts)[..., 0], axis=1)[:, :4]  # the four best starts of each function
    inputs = tf.Variable(tf.reshape(tf.gather(starts, best), [-1, 2]))  # [num 4, 2], the starts of one in a row
    own = tf.repeat(tf.eye(num, dtype=tf.float64), 4, axis=1)  # which of the inputs are of which function
    optimiser = keras.optimizers.Adam(0.03)

    @tf.function
    def step() -> tf.Tensor:
        with tf.GradientTape() as tape:
            values = functions(inputs)[..., 0]  # [num, num 4]
            total = tf.reduce_sum(own * values)
        optimiser.apply([tape.gradient(total, inputs)], [inputs])
        inputs.assign(tf.clip_by_value(inputs, -1.0, 1.0))
        return values

    optimiser.build([inputs])
    for _ in range(steps):
        step()
    values = tf.where(own > 0, functions(inputs)[..., 0], np.inf)
    return tf.gather(inputs, tf.argmin(values, axis=1)).numpy()


def draw(x: np.ndarray, y: np.ndarray, path: Path) -> None:
    """Where the function was evaluated, in which order, and the best value so far."""
    grid = np.linspace(-1, 1, 120)
    points = np.stack(np.meshgrid(grid, grid), axis=-1)
    figure, (left, right) = plt.subplots(1, 2, figsize=(12, 5), constrained_layout=True)
    corners = [LOWER[0], UPPER[0], LOWER[1], UPPER[1]]
    values = np.log(branin(points.reshape(-1, 2)).reshape(120, 120))
    left.contourf(values, 25, extent=corners, cmap="Greys", alpha=0.7)
    places = LOWER + (x + 1.0) / 2.0 * (UPPER - LOWER)
    left.plot(*places[:NUM_START].T, "s", color=BLUE, markersize=5, label="start")
    left.plot(*places[NUM_START:].T, "-", color=ORANGE, linewidth=0.5, alpha=0.6)
    left.plot(*places[NUM_START:].T, "o", color=ORANGE, markersize=5, label="chosen by function samples")
    for index, place in enumerate(places[NUM_START:], start=NUM_START + 1):
        left.annotate(str(index), place, xytext=(4, 3), textcoords="offset points", fontsize=7)
    left.plot(*MINIMISERS.T, "*", color="white", markeredgecolor="black", markersize=13, label="minima")
    left.legend(fontsize=8, loc="upper right")
    left.set(xlabel="$x_1$", ylabel="$x_2$", title="Branin's function (logarithmic grey) and the path")
    best = np.minimum.accumulate(y) - MINIMUM
    right.semilogy(np.arange(1, len(y) + 1), best, color=BLUE, label="best so far")
    right.semilogy(np.arange(1, len(y) + 1), y - MINIMUM, ".", color=ORANGE, label="evaluated")
    right.axvline(NUM_START + 0.5, color="black", linewidth=0.5, linestyle=":")
    right.legend(fontsize=8, frameon=False)
    right.set(xlabel="evaluation", ylabel="distance to the minimum", title="Regret")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("build/demo"), help="directory of the picture")
    parser.add_argument("--seed", type=int, default=0, help="seed of the start and of the functions")
    parser.add_argument("--fast", action="store_true", help="one short round only, to see that it runs")
    arguments = parser.parse_args()
    training, search, total = (20, 5, NUM_START + NUM_PER_ROUND) if arguments.fast else (300, 60, NUM_EVALUATIONS)
    begin = time.perf_counter()
    rng = np.random.default_rng(arguments.seed)
    x = (np.stack([rng.permutation(NUM_START) for _ in range(2)], axis=1) + 0.5) / NUM_START * 2 - 1  # a Latin square
    y = branin(x)
    while len(y) < total:
        seed = arguments.seed + len(y)
        chosen = minimise(fit(x, y, training, seed), NUM_PER_ROUND, 500, search, seed)
        x, y = np.concatenate([x, chosen]), np.concatenate([y, branin(chosen)])
        print(f"{len(y):3} evaluations: best {y.min():8.4f} (minimum {MINIMUM:.4f})", flush=True)
        keras.backend.clear_session()
    print(f"{time.perf_counter() - begin:.0f} s")
    path = arguments.output / "thompson_sampling.png"
    draw(x, y, path)
    print(f"Path: {path.resolve()}")


if __name__ == "__main__":
    main()
