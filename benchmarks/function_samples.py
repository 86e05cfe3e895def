"""Cost of one function drawn from a posterior at many inputs, against joint values from `full_cov=True`.

Run with `python -m benchmarks.function_samples`. Both give values of one function at the same inputs. The function
sample is drawn before, and its first call has been made; the joint draw has its factors cached, and still needs the
covariance of all inputs and its Cholesky factor (float64: 0.8 GB at 10,000 inputs). Times alternate in one process.
"""

from __future__ import annotations

import argparse
import time

import gpflow
import numpy as np
import tensorflow as tf

from benchmarks.timing import describe_machine, median_seconds
from keras_odgp.gpflow_models import OrthogonalSVGP, random_directions
from keras_odgp.inducing import ActivationFeatures
from keras_odgp.kernels import ArcCosine
from keras_odgp.numerics import add_jitter
from keras_odgp.sampling import FunctionSamples

SEED, NUM_FEATURES, NUM_INPUTS = 0, 64, 4


def times(num_rows: int, rounds: int) -> dict[str, float]:
    """Median seconds for values of one function at so many inputs; also those of a draw with its first call."""
    rng = np.random.default_rng(SEED)
    features = ActivationFeatures(random_directions(NUM_FEATURES, NUM_INPUTS), "softplus")
    model = OrthogonalSVGP(ArcCosine(), gpflow.likelihoods.Gaussian(), features, rng.normal(size=(64, NUM_INPUTS)))
    model.q_mu.assign(rng.normal(size=model.q_mu.shape))
    posterior = model.posterior()
    X = tf.constant(rng.normal(size=(num_rows, NUM_INPUTS)))
    start = time.perf_counter()
    function = FunctionSamples(posterior, 1, SEED)
    function(X)
    first = time.perf_counter() - start

    @tf.function
    def joint(seed: tf.Tensor) -> tf.Tensor:
        mean, covariance = posterior.predict_f(X, full_cov=True)
        noise = tf.random.stateless_normal([num_rows, 1], seed, dtype=tf.float64)
        return mean + tf.matmul(tf.linalg.cholesky(add_jitter(covariance[0])), noise)

    seed = tf.constant([SEED, 0])
    cases = {"function": lambda: function(X), "joint": lambda: joint(seed)}
    return {"first": first, **median_seconds(cases, rounds=rounds, description=f"N={num_rows}")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[1_000, 10_000], help="numbers of inputs")
    parser.add_argument("--rounds", type=int, default=3, help="rounds, of which the median counts")
    arguments = parser.parse_args()
    print(describe_machine())
    print(f"{NUM_FEATURES} softplus units, 64 orthogonal points, {NUM_INPUTS} inputs, arc-cosine kernel, float64")
    print(f"{'inputs':>8}{'draw and first call':>22}{'function sample':>18}{'joint draw':>14}{'ratio':>8}")
    for size in arguments.sizes:
        result = times(size, arguments.rounds)
        ratio = result["joint"] / result["function"]
        print(
            f"{size:8}{result['first']:20.2f} s{result['function']:16.3f} s{result['joint']:12.2f} s{ratio:8.0f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
