"""Short and full form of the torture: `KERAS_ODGP_STRESS=full` (as in `make stress`) for the full one."""

from __future__ import annotations

import gc

import keras
import pytest
import tensorflow as tf
import tensorflow_probability as tfp
from tensorflow.python.framework import ops


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
