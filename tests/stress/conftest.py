"""Short and full form of the torture: `KERAS_ODGP_STRESS=full` (as in `make stress`) for the full one."""

from __future__ import annotations

import gc
import json
import os
from pathlib import Path

import keras
import pytest
import tensorflow as tf
import tensorflow_probability as tfp
from stress.forms import IS_FULL
from tensorflow.python.framework import ops

RESULTS = Path(os.environ.get("KERAS_ODGP_STRESS_RESULTS", "build/stress"))


@pytest.fixture
def forget_models():
    """Hundreds of models in one process would otherwise stay in memory, see docs/reliability.md.

    TensorFlow registers the custom gradients of each graph, and TensorFlow Probability caches the transformed
    parameters of each graph, both for ever.
    """
    yield
    keras.backend.clear_session()
    registry = ops.gradient_registry._registry
    for name in [name for name in registry if name.startswith("CustomGradient-")]:
        del registry[name]
    tfp.bijectors.Bijector._cache.storage.clear()
    gc.collect()


@pytest.fixture
def unoptimised():
    """Graphs that run twenty times only are not worth the time of their optimisation."""
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    tf.debugging.disable_traceback_filtering()
    yield
    tf.debugging.enable_traceback_filtering()
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": False})


@pytest.fixture
def record(request):
    """Keeps what was tried for the table of docs/reliability.md, in the full form only."""

    def keep(kind: str, **values) -> None:
        if not IS_FULL:
            return
        RESULTS.mkdir(parents=True, exist_ok=True)
        worker = os.environ.get("PYTEST_XDIST_WORKER", "main")
        with (RESULTS / f"{worker}.jsonl").open("a") as file:
            file.write(json.dumps({"kind": kind, "test": request.node.name, **values}) + "\n")

    return keep
