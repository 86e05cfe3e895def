"""Cost of a prediction from the cached posterior against the fused computation.

Run with `python -m benchmarks.predict`. Times alternate in one process.
"""

from __future__ import annotations

import argparse

import gpflow
import numpy as np
import tensorflow as tf

from benchmarks.timing import describe_machine, median_seconds
from keras_odgp.gpflow_models import OrthogonalSVGP
from keras_odgp.kernels import ArcCosine

SEED = 0
NUM_INPUTS = 8


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=50, help="rounds of the alternating measurement")
    parser.add_argument("--size", type=int, default=256, help="value of M = K")
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 32, 1024], help="numbers of rows")
    arguments = parser.parse_args()
    print(describe_machine(), f"seed {SEED}", sep="; ")
    print(f"{'M = K':>6}{'rows':>6}{'cached ms':>12}{'fused ms':>12}{'fused / cached':>16}")
    for rows in arguments.rows:
        times = prediction_times(arguments.size, rows, arguments.rounds)
        cached, fused = times["cached"], times["fused"]
        print(f"{arguments.size:6}{rows:6}{1e3 * cached:12.3f}{1e3 * fused:12.3f}{fused / cached:16.1f}")


if __name__ == "__main__":
    main()
