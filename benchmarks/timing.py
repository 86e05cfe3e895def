"""Timing of several compiled functions in one process, alternated, so that their ratios can be trusted."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tqdm import tqdm

tf.get_logger().setLevel("ERROR")  # that each case is a function of its own is meant


def median_seconds(cases: Mapping[str, Callable[[], Any]], *, rounds: int, description: str) -> dict[str, float]:
    """Median time of each case over `rounds` rounds; every round runs every case once, in turn."""
    for function in cases.values():  # traces, and warms the caches
        function()
        function()
    times: dict[str, list[float]] = {name: [] for name in cases}
    for _ in tqdm(range(rounds), desc=description, leave=False, disable=None):
        for name, function in cases.items():
            start = time.perf_counter()
            function()
            times[name].append(time.perf_counter() - start)
    return {name: float(np.median(values)) for name, values in times.items()}


def compiled_gradient(
    function: Callable[[], tf.Tensor], variables: Sequence[tf.Variable], upstream: tf.Tensor
) -> Callable[[], Any]:
    """A graph function that evaluates `function` and its vector-Jacobian product with `upstream`."""

    @tf.function
    def run() -> Any:
        with tf.GradientTape() as tape:
            value = function()
        return value, tape.gradient(value, variables, output_gradients=upstream)

    return run


def describe_machine() -> str:
    """One line on versions, processor and threads."""
    packages = ("tensorflow", "keras", "gpflow", "gpflux", "numpy")
    versions = ", ".join(f"{package} {importlib.metadata.version(package)}" for package in packages)
    threads = tf.config.threading.get_intra_op_parallelism_threads() or os.cpu_count()
    return f"{versions}; Python {platform.python_version()}, {platform.machine()}, {threads} threads"
