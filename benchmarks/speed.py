"""Speed in one table: a step, a prediction, covariances, against GPflow, GPflux, GPyTorch and the machine's own limit.

Each cell is measured in a process of its own, with its number of threads; what is compared takes turns in it. Points
and Matérn-5/2 in all models of the step, float64, 8 inputs; peers have M + K points. The flops are those that the
graph of the step executes in products, solves and factorisations. The allocator of the C library is told to keep
memory, for all models alike.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

from benchmarks.allocator import keep_memory
from benchmarks.cells import Context, Experiment, Settings

GROWTH: dict[str, list[dict[str, int]]] = {
    "N": [{"N": value} for value in (1024, 2048, 4096, 8192)],
    "M": [{"M": value} for value in (64, 128, 256, 512)],
    "K": [{"K": value} for value in (64, 128, 256, 512)],
    "P": [{"P": value} for value in (1, 2, 4, 8)],
    "L": [{"L": value} for value in (4, 8, 16, 32)],
}
BASE = {"N": 2048, "M": 256, "K": 256, "P": 1}


def cells(sizes: tuple[int, ...], rounds: int, threads: tuple[int, ...]) -> list[Settings]:
    """Settings of all measurements."""
    made: list[Settings] = []
    for count in threads:
        made += [
            {"what": "step", "size": size, "N": 4096, "rounds": max(5, rounds * 128 // size), "threads": count}
            for size in sizes
        ]
        made += [{"what": what, "size": 128, "N": 1024, "rounds": rounds, "threads": count} for what in GATHERED]
    made += [
        {"what": f"growth {name}", "size": 256, "N": 2048, "rounds": max(3, rounds // 3), "threads": threads[0]}
        for name in GROWTH
    ]
    made += [
        {"what": f"memory {model}", "size": size, "N": 4096, "rounds": 1, "threads": threads[0]}
        for size in sizes
        for model in ("ours", "gpflow")
    ]
    return made


def run(settings: Settings, context: Context) -> dict[str, Any]:
    """Measures in a new process, because the number of threads is fixed once TensorFlow has started."""
    del context
    threads = str(settings["threads"])
    environment = {"TF_NUM_INTRAOP_THREADS": threads, "TF_NUM_INTEROP_THREADS": threads, "OMP_NUM_THREADS": threads}
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.speed", json.dumps(settings)]
    process = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, **environment})
    if process.returncode:
        raise RuntimeError(f"The measurement ended with an error:\n{process.stderr[-3000:]}")
    return json.loads(process.stdout.splitlines()[-1])


def measure_step(settings: Settings) -> dict[str, Any]:
    """Seconds of a step, and the share of the rate of matrix products at which ours runs."""
    from benchmarks import peers
    from benchmarks.timing import median_seconds

    size, N = settings["size"], settings["N"]
    ours = peers.ours(N, size, size)
    product, product_flops = peers.matrix_product(size, N)
    cases = {"ours": ours, "GPflow": peers.gpflow_peer(N, 2 * size), "matrix product": product}
    of_torch = {
        "GPyTorch": peers.gpytorch_peer(N, 2 * size, settings["threads"]),
        "torch product": peers.torch_product(size, N),
    }
    cases |= {name: case for name, case in of_torch.items() if case is not None}
    seconds = median_seconds(cases, rounds=settings["rounds"], description=f"M=K={size}")
    flops = peers.count_flops(ours)
    rate, limit = flops / seconds["ours"], product_flops / seconds["matrix product"]
    measured = {"seconds": seconds, "flops": flops, "rate": rate, "product_rate": limit, "share": rate / limit}
    if "torch product" in seconds:
        measured["torch_product_rate"] = product_flops / seconds["torch product"]
    return measured


def measure_growth(settings: Settings) -> dict[str, Any]:
    """Seconds of a step as one size grows, and the exponent of a power of it."""
    import numpy as np

    from benchmarks import peers
    from benchmarks.timing import median_seconds

    name = settings["what"].removeprefix("growth ")
    cases = {str(case[name]): peers.ours(**{**BASE, **case}) for case in GROWTH[name]}
    seconds = median_seconds(cases, rounds=settings["rounds"], description=f"growth in {name}")
    sizes = np.array([float(key) for key in seconds])
    exponent = np.polyfit(np.log(sizes), np.log(list(seconds.values())), 1)[0]
    return {"seconds": seconds, "exponent": float(exponent)}


def measure_memory(settings: Settings) -> dict[str, Any]:
    """Memory of the process before and at the peak of a few steps."""
    from benchmarks import peers

    size, N = settings["size"], settings["N"]
    small = peers.ours(64, 8, 8) if settings["what"] == "memory ours" else peers.gpflow_peer(64, 16)
    small()  # what the library takes whatever the sizes
    before = peers.peak_megabytes()
    step = peers.ours(N, size, size) if settings["what"] == "memory ours" else peers.gpflow_peer(N, 2 * size)
    for _ in range(3):
        step()
    return {"before_megabytes": before, "peak_megabytes": peers.peak_megabytes()}


def measure_covariances(settings: Settings) -> dict[str, Any]:
    """Kuf of activations, forward and backward, against GPflow's Matérn-5/2."""
    import numpy as np
    import tensorflow as tf

    from benchmarks import covariances
    from benchmarks.timing import compiled_gradient, median_seconds

    upstream = tf.ones((256, 4096), tf.float64)
    cases = covariances.kuf_cases(np.float64, 256, 4096, 8, 6)
    compiled = {key: compiled_gradient(function, variables, upstream) for key, (function, variables) in cases.items()}
    return {"seconds": median_seconds(compiled, rounds=settings["rounds"], description="Kuf")}


def measure_prediction(settings: Settings) -> dict[str, Any]:
    """The cached posterior against the fused computation."""
    from benchmarks import predict

    rows = (1, 32, 1024)
    return {"seconds": {str(n): predict.prediction_times(settings["size"], n, settings["rounds"]) for n in rows}}


def measure_small_step(settings: Settings) -> dict[str, Any]:
    """The step of `benchmarks.step`: N = 1024, several outputs."""
    from benchmarks import step

    rounds, size = settings["rounds"], settings["size"]
    return {"seconds": {str(P): step.step_times("matern52", size, P, "float64", rounds) for P in (1, 8)}}


def measure_deep_step(settings: Settings) -> dict[str, Any]:
    """A step of `fit` of two layers, against GPflux and GPyTorch."""
    from benchmarks import deep_step

    milliseconds = deep_step.measure(settings["size"], max(3, settings["rounds"] // 3), settings["threads"])
    return {"seconds": {name: value / 1e3 for name, value in milliseconds.items()}}


GATHERED = {
    "covariances": measure_covariances,
    "prediction": measure_prediction,
    "small step": measure_small_step,
    "deep step": measure_deep_step,
}


def main() -> None:
    """Measures one cell in this process and prints the result as JSON."""
    settings = json.loads(sys.argv[1])
    kind = settings["what"].split()[0]
    measures = {"step": measure_step, "growth": measure_growth, "memory": measure_memory}
    measure = GATHERED.get(settings["what"]) or measures[kind]
    if kind != "memory":
        keep_memory()
    print(json.dumps(measure(settings)))


EXPERIMENT = Experiment(
    name="speed",
    description="a step, a prediction, covariances against GPflow, GPflux, GPyTorch and the rate of matrix products",
    identity=("what", "size", "threads"),
    cells=cells((512, 128, 256, 1024), 15, (1, 2)),
    quick=[
        {"what": "step", "size": 128, "N": 1024, "rounds": 3, "threads": 1},
        {"what": "covariances", "size": 128, "N": 1024, "rounds": 3, "threads": 1},
    ],
    run=run,
)


if __name__ == "__main__":
    main()
