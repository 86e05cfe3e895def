"""Hostile data: what must be refused is refused with a message, the rest trains."""

from __future__ import annotations

import functools
import warnings
from typing import Any

import keras
import numpy as np
import pytest
from stress import configurations, hostile
from stress.forms import IS_FULL

import keras_odgp
from keras_odgp import layers
from keras_odgp.numerics import float_context

DTYPES = ("float64", "float32") if IS_FULL else ("float32",)
DEPTHS = (1, 2) if IS_FULL else (1,)
KERNELS = configurations.KERNELS | configurations.OTHER_KERNELS
TRAINABLE, REFUSED = hostile.trainable(), hostile.refused()


class Subject:
    """A model that is traced once and starts anew for every data set."""

    def __init__(self, dtype: str, depth: int, likelihood: str, **others: Any) -> None:
        options = {"num_inducing": 12, "num_orthogonal": 12, "num_levels": 4, "num_data": 1, "dtype": dtype} | others
        stack = [layers.OrthogonalGP(3, seed=1, **options) for _ in range(depth - 1)]
        units = 3 if likelihood == "softmax" else 1
        stack.append(layers.OrthogonalGP(units, seed=2, return_moments=True, **options))
        if configurations.LIKELIHOODS[likelihood] is not None:
            stack.append(configurations.LIKELIHOODS[likelihood](dtype=dtype))
        self.model = keras.Sequential([keras.Input((hostile.NUM_INPUTS,)), *stack])
        configurations.compile_model(self.model, likelihood)
        example = next(data for data in TRAINABLE.values() if data.likelihood == likelihood)
        self.step = configurations.make_step(self.model, example.x, example.y)
        self.start = [np.array(value) for value in self.state()]

    def state(self) -> list[np.ndarray]:
        return [keras.ops.convert_to_numpy(v) for v in self.variables]

    @property
    def variables(self) -> list[keras.Variable]:
        return [*self.model.variables, *self.model.optimizer.variables]

    def restart(self) -> None:
        for variable, value in zip(self.variables, self.start, strict=True):
            variable.assign(value)


@functools.cache
def subject(dtype: str, depth: int, likelihood: str) -> Subject:
    return Subject(dtype, depth, likelihood)


def train(tried: Subject, data: hostile.Data) -> None:
    """Starts the model anew, adapts and trains it, and looks at what came of it."""
    tried.restart()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        keras_odgp.adapt(tried.model, data.x, data.y)
    losses = configurations.take_steps(tried.step, data.x, data.y, data.batch_size)
    configurations.check_healthy(tried.model, data.x, losses)


@pytest.mark.parametrize("depth", DEPTHS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", TRAINABLE)
def test_trains(name, dtype, depth, record, unoptimised):
    data = TRAINABLE[name]
    tried = subject(dtype, depth, data.likelihood)
    train(tried, data)
    configurations.predict_healthy(tried.model, data.x)
    record("hostile", data=name, dtype=dtype, depth=depth, outcome="trained")


def is_too_large(kernel: str, dtype: str, data: hostile.Data) -> bool:
    """Whether squares of prior variances, which grow like the fourth power of the inputs, overflow."""
    return kernel == "arccos of order 2" and dtype == "float32" and np.abs(data.x).max() > 1e5


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("whiten", [False, True] if IS_FULL else [False])
@pytest.mark.parametrize("kernel", KERNELS if IS_FULL else ["gpflow.SquaredExponential"])
def test_inputs_with_any_kernel(kernel, whiten, dtype, record, unoptimised, forget_models):
    with float_context(dtype):
        made = KERNELS[kernel](hostile.NUM_INPUTS)
    features = "points" if kernel.startswith("gpflow") else "softplus"
    options = {"kernel": made, "features": features, "num_orthogonal": 20, "whiten": whiten}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of units above the rank, which some kernels lower
        tried = Subject(dtype, 1, "gaussian", **options)
    for name in hostile.INPUTS:
        data = TRAINABLE[name]
        try:
            train(tried, data)
        except Exception as error:
            refused = is_too_large(kernel, dtype, data) and "standardise the inputs" in str(error)
            assert refused and isinstance(error, ValueError), f"{name}: {error!r}"
        else:
            assert not is_too_large(kernel, dtype, data), name
    record("inputs", kernel=kernel, whiten=whiten, dtype=dtype, number=len(hostile.INPUTS))


@pytest.mark.parametrize("name", REFUSED)
def test_is_refused(name, record, unoptimised):
    data, message = REFUSED[name]
    tried = subject(DTYPES[-1], 1, data.likelihood)
    tried.restart()
    with pytest.raises(ValueError, match=message):
        keras_odgp.adapt(tried.model, data.x, data.y)
    record("hostile", data=name, dtype=DTYPES[-1], depth=1, outcome="refused")
