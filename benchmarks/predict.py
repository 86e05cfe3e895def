"""Cost of a prediction: the cached posterior against the fused computation, and `Predictive` against its peers.

Run with `python -m benchmarks.predict`. Times alternate in one process, and are inside compiled functions, without what
a call of `predict`, or of any compiled function, costs whatever it computes: small batches are predicted one after the
other within one call.

Peers have as many inducing points in each layer as ours has features, M + K. A deep model has 8 inputs, a hidden layer
of 8 units and one output, and all models average over the same number of samples of the hidden layer. GPflux passes on
one sample at a call: it gets either inputs that are repeated for every sample (at most 16,384 rows at a time, as ours)
or one call for each sample within a compiled loop, whichever is faster. GPflow's posterior has one layer only.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import gpflow
import keras
import numpy as np
import tensorflow as tf

import keras_odgp
from benchmarks.timing import describe_machine, median_seconds
from keras_odgp.gpflow_models import OrthogonalSVGP
from keras_odgp.kernels import ArcCosine
from keras_odgp.predictive.mixture import MOST_ROWS

SEED = 0
NUM_INPUTS = 8
NUM_DATA = 512  # to start from
NOISE = 0.1
BATCHES_IN_CALL = 256  # at most: so many that what a call costs is spread thin
ROWS_IN_CALL = 2048  # at most, for each sample one

Prediction = Callable[[tf.Tensor], Any]


def prediction_times(size: int, num_rows: int, rounds: int) -> dict[str, float]:
    """Median seconds of a prediction of mean and variance at some rows, with M = K = `size`."""
    rng = np.random.default_rng(SEED)
    Z = rng.normal(size=(2 * size, NUM_INPUTS))
    model = OrthogonalSVGP(ArcCosine(), gpflow.likelihoods.Gaussian(), Z[:size].copy(), Z[size:].copy())
    posterior = model.posterior()
    X = tf.constant(rng.normal(size=(num_rows, NUM_INPUTS)))
    cases = {
        "cached": tf.function(lambda: posterior.predict_f(X)),
        "fused": tf.function(lambda: posterior.fused_predict_f(X)),
    }
    return median_seconds(cases, rounds=rounds, description=f"M=K={size} N={num_rows}")


def make_kernel() -> gpflow.kernels.Kernel:
    """The kernel of the peers."""
    return gpflow.kernels.SquaredExponential(lengthscales=np.full(NUM_INPUTS, 2.0))


def ours(size: int, num_layers: int, num_samples: int, *, same_kernel: bool) -> Prediction:
    """Mean and variance by `Predictive`, with M = K = `size` in each layer."""

    def layer(units: int, **kwargs: Any) -> keras.Layer:
        kwargs |= {"kernel": make_kernel(), "features": "points"} if same_kernel else {}
        return keras_odgp.layers.OrthogonalGP(units, size, size, seed=SEED, **kwargs)

    hidden = [layer(NUM_INPUTS) for _ in range(num_layers - 1)]
    noise = keras_odgp.layers.GaussianLikelihood(NOISE)
    inputs = keras.Input((NUM_INPUTS,), dtype="float64")
    model = keras.Sequential([inputs, *hidden, layer(1, return_moments=True), noise])
    x = np.random.default_rng(SEED).normal(size=(NUM_DATA, NUM_INPUTS))
    keras_odgp.adapt(model, x, np.sin(x[:, :1]), method="subset")
    predictive = keras_odgp.Predictive(model, num_samples=num_samples)
    return lambda X: tuple(predictive(X).values())


def gpflux_peers(size: int, num_layers: int, num_samples: int) -> dict[str, Prediction]:
    """Mean and variance by GPflux with `size` inducing points in each layer, in both ways to average over samples."""
    import gpflux

    points = np.random.default_rng(SEED).normal(size=(size, NUM_INPUTS))

    def layer(units: int, mean_function: gpflow.functions.MeanFunction) -> Any:
        return gpflux.layers.GPLayer(
            gpflux.helpers.construct_basic_kernel(make_kernel(), output_dim=units, share_hyperparams=True),
            gpflux.helpers.construct_basic_inducing_variables(
                size, NUM_INPUTS, output_dim=units, share_variables=True, z_init=points
            ),
            NUM_DATA,
            mean_function=mean_function,
        )

    hidden = [layer(NUM_INPUTS, gpflow.functions.Identity()) for _ in range(num_layers - 1)]
    likelihood = gpflux.layers.LikelihoodLayer(gpflow.likelihoods.Gaussian(NOISE))
    model = gpflux.models.DeepGP([*hidden, layer(1, gpflow.functions.Zero(1))], likelihood).as_prediction_model()

    def average(X: tf.Tensor, copies: int) -> tuple[tf.Tensor, tf.Tensor]:
        def moments(_: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            output = model(tf.tile(X, [copies, 1]))
            return output.y_mean, output.y_var

        passes = num_samples // copies
        if passes == 1:
            parts = moments(tf.constant(0))
        else:
            parts = tf.map_fn(moments, tf.range(passes), fn_output_signature=(X.dtype, X.dtype), parallel_iterations=1)
        mean, variance = (tf.reshape(part, [num_samples, X.shape[0], 1]) for part in parts)
        total = tf.reduce_mean(mean, axis=0)
        return total, tf.reduce_mean(variance + tf.square(mean - total), axis=0)

    def repeated(X: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        copies = num_samples
        while copies * X.shape[0] > MOST_ROWS and copies % 2 == 0:
            copies //= 2
        return average(X, copies)

    peers: dict[str, Prediction] = {"repeated": repeated}
    if num_samples > 1:
        peers["one by one"] = lambda X: average(X, 1)
    return peers


def gpflow_peer(size: int) -> Prediction:
    """Mean and variance by the cached posterior of GPflow's SVGP with `size` inducing points."""
    points = np.random.default_rng(SEED).normal(size=(size, NUM_INPUTS))
    model = gpflow.models.SVGP(make_kernel(), gpflow.likelihoods.Gaussian(NOISE), points)
    posterior = model.posterior()
    return lambda X: model.likelihood.predict_mean_and_var(X, *posterior.predict_f(X))


def compiled(predict: Prediction, batches: tf.Tensor) -> Callable[[], Any]:
    """A compiled function that predicts batches `[B, N, D]` one after the other."""

    def one_more(index: tf.Tensor, total: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        mean, variance = predict(batches[index])
        return index + 1, total + tf.reduce_sum(mean) + tf.reduce_sum(variance)

    @tf.function
    def run() -> tf.Tensor:
        if batches.shape[0] == 1:
            return predict(batches[0])
        start = (0, tf.zeros([], batches.dtype))
        return tf.while_loop(lambda index, _: index < batches.shape[0], one_more, start, parallel_iterations=1)[1]

    return run


def compare(size: int, num_layers: int, num_samples: int, batches: list[int], rounds: int) -> None:
    """Prints rows per second of all models, and how many times as many ours predicts as each peer."""
    num_samples = num_samples if num_layers > 1 else 1  # without hidden layers nothing is sampled
    mine = {
        "ours": ours(size, num_layers, num_samples, same_kernel=False),
        "ours, same kernel": ours(size, num_layers, num_samples, same_kernel=True),
    }
    variants = gpflux_peers(2 * size, num_layers, num_samples)
    peers = {"GPflow": gpflow_peer(2 * size)} if num_layers == 1 else {}
    print(f"\n{num_layers} layer{'s' * (num_layers > 1)}, {num_samples} sample{'s' * (num_samples > 1)}, ", end="")
    print(f"M = K = {size} (peers: M = {2 * size}), rows per second")
    names = [*mine, "GPflux", *peers]
    ratios = [(name, peer) for peer in names[2:] for name in mine]
    heads = "".join(f"{name:>19}" for name in names) + "".join(f"{f'{name} / {peer}':>28}" for name, peer in ratios)
    print(f"{'batch':>6}{heads}  GPflux's samples")
    for batch in batches:
        repeats = max(1, min(BATCHES_IN_CALL, ROWS_IN_CALL // (batch * num_samples)))
        X = tf.constant(np.random.default_rng(SEED).normal(size=(repeats, batch, NUM_INPUTS)))
        peer_cases = {name: compiled(function, X) for name, function in variants.items()}
        best = min(peer_cases, key=lambda name: _second_call(peer_cases[name]))
        cases = {name: compiled(function, X) for name, function in {**mine, **peers}.items()}
        few = rounds if batch * num_samples <= MOST_ROWS else max(3, rounds // 10)
        times = median_seconds(
            {**cases, "GPflux": peer_cases[best]}, rounds=few, description=f"{num_layers} layers N={batch}"
        )
        rates = "".join(f"{repeats * batch / times[name]:19.0f}" for name in names)
        print(f"{batch:6}{rates}" + "".join(f"{times[peer] / times[name]:28.1f}" for name, peer in ratios), end="")
        print(f"  {best}", flush=True)


def _second_call(function: Callable[[], Any]) -> float:
    """Seconds of a call after the one that compiles."""
    function()
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=50, help="rounds of the alternating measurement")
    parser.add_argument("--size", type=int, default=256, help="value of M = K")
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 32, 1024], help="numbers of rows")
    parser.add_argument("--deep-size", type=int, default=128, help="value of M = K against the peers")
    parser.add_argument("--samples", type=int, default=64, help="samples of the hidden layer, a power of two")
    parser.add_argument("--threads", type=int, default=0, help="number of threads; as TensorFlow chooses by default")
    arguments = parser.parse_args()
    tf.config.threading.set_intra_op_parallelism_threads(arguments.threads)
    tf.config.threading.set_inter_op_parallelism_threads(arguments.threads)
    print(describe_machine(), f"seed {SEED}", sep="; ")
    print(f"{'M = K':>6}{'rows':>6}{'cached ms':>12}{'fused ms':>12}{'fused / cached':>16}")
    for rows in arguments.rows:
        times = prediction_times(arguments.size, rows, arguments.rounds)
        cached, fused = times["cached"], times["fused"]
        print(f"{arguments.size:6}{rows:6}{1e3 * cached:12.3f}{1e3 * fused:12.3f}{fused / cached:16.1f}", flush=True)
    for num_layers in (2, 1):
        compare(arguments.deep_size, num_layers, arguments.samples, arguments.rows, arguments.rounds)


if __name__ == "__main__":
    main()
