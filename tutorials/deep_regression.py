"""A two-layer deep GP trained by `model.fit`, next to a GP of one layer, on data whose smoothness changes.

Trains both on the same data with the same number of inducing variables in a layer, compares them on held-out data,
saves and reloads the deep one, and draws the predictive of both.

Run with `python tutorials/deep_regression.py`.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import keras
import matplotlib.pyplot as plt
import numpy as np

import keras_odgp as odgp

NUM_FEATURES = 24
BLUE, ORANGE, GREY = "#1b4f8a", "#d9730d", "#777777"


def make_data(num: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Slow waves on the left, a jump in the middle, fast waves on the right; standardised, with noise."""
    rng = np.random.default_rng(seed)
    x = rng.uniform(-2, 2, size=(num, 1))
    clean = np.where(x < 0, 0.5 * np.sin(2 * x) - 0.8, 0.8 + 0.35 * np.sin(9 * x))
    return x / 1.15, (clean + 0.05 * rng.normal(size=x.shape)).astype("float32")


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
    points = {"features": "points", "kernel": "matern52"}
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
    print(f"\n{'held-out data':22}{'NLPD':>9}{'RMSE':>9}{'seconds':>9}")
    for model, predictive, spent in zip(models, predictives, seconds):
        scores = predictive.evaluate(*held_out)
        print(f"{model.name:22}{scores['nlpd']:9.3f}{scores['rmse']:9.3f}{spent:9.1f}")
