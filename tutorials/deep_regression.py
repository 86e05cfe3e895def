"""A two-layer deep GP trained by `model.fit`, next to a GP of one layer, on data whose smoothness changes.

Trains both on the same data with the same number of inducing variables in a layer, compares them on held-out data,
saves and reloads the deep one, and draws the predictive of both.

Run with `python tutorials/deep_regression.py`.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import keras
import matplotlib.pyplot as plt
import numpy as np

import keras_odgp as odgp

NUM_FEATURES = 24
BLUE, ORANGE, GREY = "#1b4f8a", "#d9730d", "#777777"


def clean_function(x: np.ndarray) -> np.ndarray:
    """Slow waves on the left, a jump in the middle, fast waves on the right."""
    return np.where(x < 0, 0.5 * np.sin(2 * x) - 0.8, 0.8 + 0.35 * np.sin(9 * x))


def make_data(num: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Inputs and noisy values of the function, both about standardised."""
    rng = np.random.default_rng(seed)
    x = rng.uniform(-2, 2, size=(num, 1))
    return x, clean_function(x) + 0.05 * rng.normal(size=x.shape)


def one_layer() -> keras.Model:
    """Plain SVGP: all features are base points."""
    return keras.Sequential(
        [
            keras.Input((1,)),
            odgp.layers.OrthogonalGP(
                1, 2 * NUM_FEATURES, num_orthogonal=0, kernel="matern52", features="points", return_moments=True
            ),
            odgp.layers.GaussianLikelihood(),
        ],
        name="one_layer_svgp",
    )


def two_layers() -> keras.Model:
    """A hidden GP layer that bends the input, and one that reads it."""
    points: dict[str, Any] = {"features": "points", "kernel": "matern52"}
    return keras.Sequential(
        [
            keras.Input((1,)),
            odgp.layers.OrthogonalGP(1, NUM_FEATURES, NUM_FEATURES, **points),
            odgp.layers.OrthogonalGP(1, NUM_FEATURES, NUM_FEATURES, return_moments=True, **points),
            odgp.layers.GaussianLikelihood(),
        ],
        name="two_layer_deep_gp",
    )


def train(model: keras.Model, data: tuple[np.ndarray, np.ndarray], epochs: int) -> float:
    """Trains with Keras's own tools; returns the seconds it took."""
    odgp.adapt(model, *data)
    model.compile(
        optimizer=keras.optimizers.Adam(keras.optimizers.schedules.CosineDecay(1e-2, epochs * 4)),
        loss=odgp.losses.VariationalLoss("gaussian"),
        metrics=[odgp.metrics.NLPD("gaussian"), odgp.metrics.RMSE()],
    )
    start = time.time()
    print(f"\n{model.name}: {epochs} epochs")
    model.fit(*data, batch_size=128, epochs=epochs, verbose=0, callbacks=[Progress()])
    return time.time() - start


class Progress(keras.callbacks.Callback):
    """A line every tenth of the way."""

    def on_epoch_end(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        every = max(1, self.params["epochs"] // 10)
        if (epoch + 1) % every == 0 and logs is not None:
            parts = ", ".join(f"{name} {value:.3f}" for name, value in logs.items())
            print(f"  epoch {epoch + 1:4}: {parts}", flush=True)


def draw(predictives: list[odgp.Predictive], data: tuple[np.ndarray, np.ndarray], grid: np.ndarray) -> plt.Figure:
    """Data, means and bands of two standard deviations of y; the true function dashed."""
    figure, axes = plt.subplots(1, 2, figsize=(11, 3.8), sharey=True, layout="constrained")
    titles = (f"One layer (SVGP, {2 * NUM_FEATURES} points)", f"Two layers ({NUM_FEATURES} + {NUM_FEATURES} each)")
    for ax, predictive, title in zip(axes, predictives, titles):
        out = predictive.predict(grid, verbose=0)
        mean, deviation = out["mean"][:, 0], np.sqrt(out["variance"][:, 0])
        ax.fill_between(grid[:, 0], mean - 2 * deviation, mean + 2 * deviation, color=BLUE, alpha=0.2, lw=0)
        ax.plot(*data, ".", color=GREY, ms=2.5, alpha=0.7, label="data")
        ax.plot(grid, clean_function(grid), "--", color=ORANGE, lw=1.2, label="true function")
        ax.plot(grid[:, 0], mean, color=BLUE, lw=1.5, label="mean, band of 2 sd")
        ax.set(title=title, xlabel="x", xlim=(-2, 2))
    axes[0].set_ylabel("y")
    axes[0].legend(loc="upper left", frameon=False)
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("build/demo"), help="directory of the model and picture")
    parser.add_argument("--epochs", type=int, default=400, help="epochs of training")
    arguments = parser.parse_args()
    arguments.output.mkdir(parents=True, exist_ok=True)
    keras.utils.set_random_seed(0)
    training, held_out = make_data(500, seed=0), make_data(500, seed=1)
    models = [one_layer(), two_layers()]
    print(f"\n{len(training[0])} data to train on, {len(held_out[0])} held out; noise of standard deviation 0.05")
    seconds = [train(model, training, arguments.epochs) for model in models]
    predictives = [odgp.Predictive(model, num_samples=64) for model in models]
    print(f"\n{'held-out data':20}{'NLPD':>9}{'RMSE':>9}{'seconds':>9}")
    for model, predictive, spent in zip(models, predictives, seconds):
        nlpd = -np.mean(predictive.log_density(*held_out))
        rmse = odgp.metrics.rmse(held_out[1], predictive.predict(held_out[0], verbose=0)["mean"])
        print(f"{model.name:20}{nlpd:9.3f}{rmse:9.3f}{spent:9.1f}")

    path = arguments.output / "deep_gp.keras"
    models[1].save(path)
    reloaded = odgp.Predictive(keras.saving.load_model(path), num_samples=64)
    grid = np.linspace(-2, 2, 400)[:, None]
    difference = np.abs(reloaded.predict(grid, verbose=0)["mean"] - predictives[1].predict(grid, verbose=0)["mean"])
    print(f"\nSaved to {path} and loaded again: predictions differ by {difference.max():.1e} at most")

    figure = draw(predictives, training, grid)
    figure.savefig(arguments.output / "deep_regression.png", dpi=150)
    print(f"Picture: {arguments.output / 'deep_regression.png'}")


if __name__ == "__main__":
    main()
