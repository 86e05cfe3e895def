"""Cost of a training step: the orthogonally decoupled model against GPflow's SVGP with as many, and with half as many,
inducing points.

Run with `python -m benchmarks.step`. A step is the ELBO and its gradient in every parameter, on 8 inputs, with a
Gaussian likelihood and without optimiser. All features are points. Kernels: GPflow's Matérn-5/2, as it is used, where
our model differentiates it by hand and GPflow's by autodiff; the same differentiated by autodiff in both
("autodiff"), which compares the algorithms of the models alone; and the arc-cosine kernel of order 1, each library with
its own implementation (they agree to rounding).
Times of the models alternate in one process; each number of threads has a process of its own.
"""

from __future__ import annotations

import argparse
import itertools
import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import gpflow
import numpy as np
import tensorflow as tf

from benchmarks.timing import describe_machine, median_seconds
from keras_odgp.gpflow_models import OrthogonalSVGP
from keras_odgp.kernels import ArcCosine
from keras_odgp.numerics import float_context

SEED = 0
NUM_DATA, NUM_INPUTS = 1024, 8


def compiled_step(model: Any, data: tuple[tf.Tensor, tf.Tensor]) -> Callable[[], Any]:
    """The loss and its gradient, as one graph function."""
    variables = model.trainable_variables

    @tf.function
    def step() -> Any:
        with tf.GradientTape() as tape:
            loss = model.training_loss(data)
        return loss, tape.gradient(loss, variables)

    return step


class AutodiffMatern52(gpflow.kernels.Matern52):
    """The kernel as a class of its own, which our model does not know and leaves to autodiff."""


def make_kernels(name: str) -> tuple[gpflow.kernels.Kernel, gpflow.kernels.Kernel]:
    """The same kernel for our model and for GPflow's."""
    if name == "arccos":
        weights = np.full(NUM_INPUTS, 0.25)
        return ArcCosine(weight_variances=weights), gpflow.kernels.ArcCosine(order=1, weight_variances=weights)
    cls = AutodiffMatern52 if name == "autodiff" else gpflow.kernels.Matern52
    ours, peer = (cls(lengthscales=np.full(NUM_INPUTS, 2.0)) for _ in range(2))
    return ours, peer


def step_times(kernel: str, size: int, num_outputs: int, dtype: Any, rounds: int) -> dict[str, float]:
    """Median seconds of a step of the three models, with M = K = `size`."""
    rng = np.random.default_rng(SEED)
    with float_context(dtype):
        X = tf.constant(rng.normal(size=(NUM_DATA, NUM_INPUTS)), dtype)
        Y = tf.constant(rng.normal(size=(NUM_DATA, num_outputs)), dtype)
        Z = rng.normal(size=(2 * size, NUM_INPUTS))

        settings: dict[str, Any] = {"num_latent_gps": num_outputs, "num_data": 10 * NUM_DATA}
        noise = gpflow.likelihoods.Gaussian
        models = {
            "orthogonal(M, K)": OrthogonalSVGP(
                make_kernels(kernel)[0], noise(), Z[:size].copy(), Z[size:].copy(), **settings
            ),
            "SVGP(M + K)": gpflow.models.SVGP(make_kernels(kernel)[1], noise(), Z.copy(), **settings),
            "SVGP(M)": gpflow.models.SVGP(make_kernels(kernel)[1], noise(), Z[:size].copy(), **settings),
        }
        cases = {name: compiled_step(model, (X, Y)) for name, model in models.items()}
        return median_seconds(cases, rounds=rounds, description=f"{kernel} {dtype} M=K={size} P={num_outputs}")


def measure(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """All rows for the number of threads that TensorFlow was given."""
    tf.config.threading.set_intra_op_parallelism_threads(arguments.threads)
    tf.config.threading.set_inter_op_parallelism_threads(arguments.threads)
    cases = itertools.product(arguments.kernels, arguments.dtypes, arguments.sizes, arguments.outputs)
    return [
        {
            "name": f"{kernel:9}{dtype:8}{size:6}{num_outputs:4}",
            "times": step_times(kernel, size, num_outputs, dtype, arguments.rounds),
        }
        for kernel, dtype, size, num_outputs in cases
    ]


def report(rows_by_threads: dict[int, list[dict[str, Any]]]) -> None:
    """Prints the tables."""
    for threads, rows in rows_by_threads.items():
        print(f"\n{threads} thread{'s' if threads > 1 else ''}, N = {NUM_DATA}, forward + backward")
        header = ("orthogonal ms", "/ SVGP(M+K)", "/ SVGP(M)", "SVGP(M+K)/SVGP(M)")
        print(f"{'kernel':9}{'dtype':8}{'M = K':>6}{'P':>4}" + "".join(f"{column:>19}" for column in header))
        for row in rows:
            ours, both, half = (row["times"][key] for key in ("orthogonal(M, K)", "SVGP(M + K)", "SVGP(M)"))
            print(f"{row['name']}{1e3 * ours:19.1f}", end="")
            print("".join(f"{ratio:19.2f}" for ratio in (ours / both, ours / half, both / half)))
    if {1, 2} <= rows_by_threads.keys():
        print("\nSpeed-up from one thread to two")
        for one, two in zip(rows_by_threads[1], rows_by_threads[2]):
            gains = ", ".join(f"{key} {one['times'][key] / two['times'][key]:.2f}" for key in one["times"])
            print(f"{one['name']}   {gains}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15, help="rounds of the alternating measurement")
    parser.add_argument("--sizes", type=int, nargs="+", default=[128, 256, 512], help="values of M = K")
    parser.add_argument("--outputs", type=int, nargs="+", default=[1, 8], help="values of P")
    parser.add_argument("--dtypes", nargs="+", default=["float64", "float32"], choices=["float64", "float32"])
    parser.add_argument(
        "--kernels", nargs="+", default=["matern52", "autodiff", "arccos"], choices=["arccos", "autodiff", "matern52"]
    )
    parser.add_argument("--threads", type=int, default=0, help="measure with this many threads only, and print JSON")
    arguments = parser.parse_args()
    if arguments.threads:
        print(json.dumps(measure(arguments)))
        return
    print(describe_machine(), f"seed {SEED}", sep="; ")
    rows = {}
    for threads in (1, 2):
        command = [sys.executable, "-m", "benchmarks.step", *sys.argv[1:], "--threads", str(threads)]
        output = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
        rows[threads] = json.loads(output.splitlines()[-1])
    report(rows)


if __name__ == "__main__":
    main()
