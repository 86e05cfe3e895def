"""Cost of the covariances: activation features against a matrix product, Matérn-5/2 and plain powers; harmonics
against a package.

Run with `python -m benchmarks.covariances`. Prints forward and forward + backward times, and their ratios to GPflow's
Matérn-5/2, all measured alternately in one process.
"""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Callable
from typing import Any

import gpflow
import numpy as np
import scipy.special
import tensorflow as tf

from benchmarks.timing import compiled_gradient, describe_machine, median_seconds
from keras_odgp.covariances import Kuf
from keras_odgp.inducing import ActivationFeatures
from keras_odgp.kernels import ArcCosine
from keras_odgp.spherical import num_harmonics, spherical_harmonics

SEED = 0
REFERENCE = "gpflow Matern52"


def kuf_cases(
    dtype: Any, num_features: int, num_data: int, num_inputs: int, num_levels: int
) -> dict[str, tuple[Callable[[], tf.Tensor], list[tf.Variable]]]:
    """Functions that compute an `[M, N]` matrix, each with the variables in which it is differentiated."""
    rng = np.random.default_rng(SEED)
    X = tf.Variable(rng.normal(size=(num_data, num_inputs)).astype(dtype))
    with gpflow.config.as_context(gpflow.config.Config(float=dtype)):
        features = ActivationFeatures(rng.normal(size=(num_features, num_inputs + 1)), "softplus", num_levels)
        kernel = ArcCosine(weight_variances=np.ones(num_inputs))
        points = gpflow.inducing_variables.InducingPoints(rng.normal(size=(num_features, num_inputs)))
        matern = gpflow.kernels.Matern52(lengthscales=np.ones(num_inputs))
        left = tf.Variable(rng.normal(size=(num_features, num_inputs + 1)).astype(dtype))
        right = tf.Variable(rng.normal(size=(num_data, num_inputs + 1)).astype(dtype))
    levels = features.active_levels(kernel)
    coefficients = features.coefficients(levels, num_inputs + 1)

    series = np.poly1d([0.0])
    for coefficient, level in zip(coefficients, levels):
        polynomial = scipy.special.gegenbauer(level, (num_inputs - 1) / 2)
        series = series + coefficient * num_harmonics(num_inputs + 1, level) / polynomial(1.0) * polynomial

    def plain_powers() -> tf.Tensor:
        """The series as one would write it down: powers of the cosine times numbers; autodiff for the rest."""
        directions, norms = features.project(kernel)
        inputs, radial = kernel.project(X)
        cosines = tf.matmul(directions, inputs, transpose_b=True)
        value = sum(float(weight) * tf.pow(cosines, float(power)) for power, weight in enumerate(series.coef[::-1]))
        return norms[:, None] * radial[None, :] * value

    def trained(*modules: tf.Module) -> list[tf.Variable]:
        return [X, *(v for module in modules for v in module.trainable_variables)]

    return {
        "matmul alone": (lambda: tf.matmul(left, right, transpose_b=True), [left, right]),
        "activations": (lambda: Kuf(features, kernel, X), trained(features, kernel)),
        "plain powers": (plain_powers, trained(features, kernel)),
        REFERENCE: (lambda: Kuf(points, matern, X), trained(points, matern)),
    }


def run_kuf(dtype: Any, sizes: dict[str, int], rounds: int) -> None:
    """Prints the table for one dtype."""
    upstream = tf.constant(np.random.default_rng(1).normal(size=(sizes["M"], sizes["N"])).astype(dtype))
    cases = kuf_cases(dtype, sizes["M"], sizes["N"], sizes["D"], sizes["L"])
    name = np.dtype(dtype).name
    forward = median_seconds(
        {key: tf.function(function) for key, (function, _) in cases.items()},
        rounds=rounds,
        description=f"{name} forward",
    )
    both = median_seconds(
        {key: compiled_gradient(function, variables, upstream) for key, (function, variables) in cases.items()},
        rounds=rounds,
        description=f"{name} forward+backward",
    )
    print(f"\nKuf, {name}, " + ", ".join(f"{key}={value}" for key, value in sizes.items()))
    print(f"{'':22}{'forward ms':>12}{'ratio':>8}{'fwd+bwd ms':>14}{'ratio':>8}   (ratios to {REFERENCE})")
    for key in cases:
        print(
            f"{key:22}{1e3 * forward[key]:12.2f}{forward[key] / forward[REFERENCE]:8.2f}"
            f"{1e3 * both[key]:14.2f}{both[key] / both[REFERENCE]:8.2f}"
        )


def run_harmonics(num_data: int, dimension: int, num_levels: int, rounds: int) -> None:
    """Prints our harmonics against the package spherical-harmonics-basis, where that is installed."""
    try:
        importlib.import_module("spherical_harmonics.tensorflow")
        fundamental_system = importlib.import_module("spherical_harmonics").SphericalHarmonics
    except ImportError:
        print("\nspherical-harmonics-basis is not installed (extra 'benchmarks'): its comparison is left out.")
        return
    x = np.random.default_rng(SEED).normal(size=(num_data, dimension))
    x = tf.Variable(x / np.linalg.norm(x, axis=1, keepdims=True))
    package = fundamental_system(dimension, num_levels)
    upstream = tf.ones((len(package), num_data), tf.float64)
    cases = {
        "descent (ours)": compiled_gradient(lambda: spherical_harmonics(x, num_levels), [x], upstream),
        "fundamental system": compiled_gradient(lambda: tf.transpose(package(x)), [x], upstream),
    }
    times = median_seconds(cases, rounds=rounds, description="harmonics")
    print(
        f"\nHarmonics, float64, N={num_data}, d={dimension}, L={num_levels}, {len(package)} of them, forward+backward"
    )
    for key, seconds in times.items():
        print(f"{key:22}{1e3 * seconds:12.2f} ms{seconds / times['fundamental system']:8.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=30, help="rounds of the alternating measurement")
    parser.add_argument("--threads", type=int, default=0, help="threads of TensorFlow (default: all)")
    arguments = parser.parse_args()
    tf.config.threading.set_intra_op_parallelism_threads(arguments.threads)
    tf.config.threading.set_inter_op_parallelism_threads(arguments.threads)
    print(describe_machine(), f"seed {SEED}", sep="; ")
    sizes = {"M": 256, "N": 4096, "D": 8, "L": 6}
    for dtype in (np.float64, np.float32):
        run_kuf(dtype, sizes, arguments.rounds)
    run_harmonics(1024, 9, 5, arguments.rounds)


if __name__ == "__main__":
    main()
