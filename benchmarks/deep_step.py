"""Cost of a step of `fit`: a two-layer deep GP of ours against GPflux's and, if installed, GPyTorch's.

Run with `python -m benchmarks.deep_step`. The model has 8 inputs, a hidden layer of 8 units and one output, Gaussian
noise, batches of 512; a step is one of `fit` with Adam (for GPyTorch, of its usual training loop). Ours has M base and
K orthogonal features in each layer: once as the layer comes (arc-cosine kernel, softplus features and points), once
with points and the squared exponential kernel of GPflow, as the peers have. All models take turns in one process; each
number of threads has a process of its own.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import gpflow
import keras
import numpy as np
import tensorflow as tf

import keras_odgp
from benchmarks.timing import describe_machine, median_seconds
from keras_odgp.numerics import float_context

SEED = 0
NUM_INPUTS, BATCH_SIZE = 8, 512
NUM_STEPS = 40  # in an epoch: enough that what `fit` does once hardly counts
NUM_DATA = BATCH_SIZE * NUM_STEPS

Data = tuple[np.ndarray, np.ndarray]


def make_data() -> Data:
    """Seeded regression data."""
    rng = np.random.default_rng(SEED)
    x = rng.normal(size=(NUM_DATA, NUM_INPUTS))
    return x, np.sin(x[:, :1]) + 0.1 * rng.normal(size=(NUM_DATA, 1))


def ours(data: Data, size: int, dtype: str, *, same_kernel: bool) -> Callable[[], Any]:
    """An epoch of `fit` of our model with M = K = `size` in each layer."""

    def layer(units: int, **kwargs: Any) -> keras.Layer:
        if same_kernel:
            with float_context(dtype):
                kernel = gpflow.kernels.SquaredExponential(lengthscales=np.full(NUM_INPUTS, 2.0))
            kwargs |= {"kernel": kernel, "features": "points"}
        return keras_odgp.layers.OrthogonalGP(units, size, size, dtype=dtype, **kwargs)

    model = keras.Sequential(
        [
            keras.Input((NUM_INPUTS,)),
            layer(NUM_INPUTS),
            layer(1, return_moments=True),
            keras_odgp.layers.GaussianLikelihood(dtype=dtype),
        ]
    )
    keras_odgp.adapt(model, *data)
    model.compile(optimizer=keras.optimizers.Adam(1e-2), loss=keras_odgp.losses.VariationalLoss("gaussian"))
    return lambda: model.fit(*data, batch_size=BATCH_SIZE, epochs=1, verbose=0)


def gpflux_peer(data: Data, size: int) -> Callable[[], Any]:
    """An epoch of `fit` of GPflux's model with `size` inducing points in each layer."""
    import gpflux
    from gpflow.keras import tf_keras

    def layer(units: int, mean_function: gpflow.functions.MeanFunction) -> Any:
        points = np.random.default_rng(SEED).normal(size=(size, NUM_INPUTS))
        return gpflux.layers.GPLayer(
            gpflux.helpers.construct_basic_kernel(
                gpflow.kernels.SquaredExponential(lengthscales=np.full(NUM_INPUTS, 2.0)),
                output_dim=units,
                share_hyperparams=True,
            ),
            gpflux.helpers.construct_basic_inducing_variables(
                size, NUM_INPUTS, output_dim=units, share_variables=True, z_init=points
            ),
            NUM_DATA,
            mean_function=mean_function,
        )

    layers = [layer(NUM_INPUTS, gpflow.functions.Identity()), layer(1, gpflow.functions.Zero(1))]
    likelihood = gpflux.layers.LikelihoodLayer(gpflow.likelihoods.Gaussian(0.1))
    model = gpflux.models.DeepGP(layers, likelihood).as_training_model()
    model.compile(tf_keras.optimizers.Adam(1e-2))
    inputs = {"inputs": data[0], "targets": data[1]}
    return lambda: model.fit(inputs, batch_size=BATCH_SIZE, epochs=1, verbose=0)


def gpytorch_peer(data: Data, size: int, threads: int) -> Callable[[], Any]:
    """An epoch of training of GPyTorch's model with `size` inducing points in each layer."""
    import gpytorch
    import torch

    torch.set_num_threads(threads)
    torch.manual_seed(SEED)

    class Layer(gpytorch.models.deep_gps.DeepGPLayer):
        def __init__(self, units: int | None) -> None:
            batch = torch.Size([] if units is None else [units])
            q = gpytorch.variational.CholeskyVariationalDistribution(size, batch_shape=batch)
            points = torch.randn(*batch, size, NUM_INPUTS)
            strategy = gpytorch.variational.VariationalStrategy(self, points, q, learn_inducing_locations=True)
            super().__init__(strategy, NUM_INPUTS, units)
            is_hidden = units is not None
            self.mean_module = (
                gpytorch.means.LinearMean(NUM_INPUTS) if is_hidden else gpytorch.means.ConstantMean(batch_shape=batch)
            )
            self.covar_module = gpytorch.kernels.ScaleKernel(
                gpytorch.kernels.RBFKernel(batch_shape=batch, ard_num_dims=NUM_INPUTS), batch_shape=batch
            )

        def forward(self, x: Any) -> Any:
            return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))

    class Model(gpytorch.models.deep_gps.DeepGP):
        def __init__(self) -> None:
            super().__init__()
            self.hidden, self.last = Layer(NUM_INPUTS), Layer(None)
            self.likelihood = gpytorch.likelihoods.GaussianLikelihood()

        def forward(self, x: Any) -> Any:
            return self.last(self.hidden(x))

    model = Model().double()
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-2)
    bound = gpytorch.mlls.DeepApproximateMLL(gpytorch.mlls.VariationalELBO(model.likelihood, model, NUM_DATA))
    x, y = torch.tensor(data[0]), torch.tensor(data[1][:, 0])

    def epoch() -> None:
        with gpytorch.settings.num_likelihood_samples(1):
            for start in range(0, NUM_DATA, BATCH_SIZE):
                optimiser.zero_grad()
                loss = -bound(model(x[start : start + BATCH_SIZE]), y[start : start + BATCH_SIZE])
                loss.backward()
                optimiser.step()

    return epoch


def measure(size: int, rounds: int, threads: int) -> dict[str, float]:
    """Median milliseconds of a step of every model."""
    tf.config.threading.set_intra_op_parallelism_threads(threads)
    tf.config.threading.set_inter_op_parallelism_threads(threads)
    keras.utils.set_random_seed(SEED)
    data = make_data()
    cases = {
        f"ours, M = K = {size}": ours(data, size, "float64", same_kernel=False),
        f"ours, M = K = {size}, float32": ours(data, size, "float32", same_kernel=False),
        f"ours, M = K = {size}, points, same kernel": ours(data, size, "float64", same_kernel=True),
        f"GPflux, M = {2 * size}": gpflux_peer(data, 2 * size),
        f"GPflux, M = {size}": gpflux_peer(data, size),
    }
    if importlib.util.find_spec("gpytorch") is not None:
        cases[f"GPyTorch, M = {2 * size}"] = gpytorch_peer(data, 2 * size, threads)
    seconds = median_seconds(cases, rounds=rounds, description=f"{threads} threads")
    return {name: 1e3 * value / NUM_STEPS for name, value in seconds.items()}


def report(size: int, times: dict[str, float], threads: int) -> None:
    """Prints a table: milliseconds a step, and relative to GPflux with as many inducing variables."""
    reference = times[f"GPflux, M = {2 * size}"]
    print(f"\n{threads} thread{'s' if threads > 1 else ''}, batch of {BATCH_SIZE}, float64 unless said")
    print(f"{'model':42}{'ms a step':>10}{f'/ GPflux {2 * size}':>14}")
    for name, value in times.items():
        print(f"{name:42}{value:10.1f}{value / reference:14.2f}")
    gain = times[f"ours, M = K = {size}"] / times[f"ours, M = K = {size}, float32"]
    print(f"float32 is {gain:.2f} times faster than float64")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9, help="rounds of the alternating measurement")
    parser.add_argument("--size", type=int, default=128, help="M = K")
    parser.add_argument("--threads", type=int, default=0, help="measure with this many threads only, and print JSON")
    arguments = parser.parse_args()
    if arguments.threads:
        print(json.dumps(measure(arguments.size, arguments.rounds, arguments.threads)))
        return
    print(describe_machine(), f"seed {SEED}", sep="; ")
    for threads in (1, 2):
        command = [sys.executable, "-m", "benchmarks.deep_step", *sys.argv[1:], "--threads", str(threads)]
        output = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
        report(arguments.size, json.loads(output.splitlines()[-1]), threads)


if __name__ == "__main__":
    main()
