"""Hostile data: what must be refused is refused with a message, the rest trains."""

from __future__ import annotations

import functools
import warnings

import keras
import numpy as np
import pytest
from stress import configurations, hostile
from stress.forms import IS_FULL

import keras_odgp
from keras_odgp import layers

DTYPES = ("float64", "float32") if IS_FULL else ("float32",)
DEPTHS = (1, 2) if IS_FULL else (1,)
TRAINABLE, REFUSED = hostile.trainable(), hostile.refused()


class Subject:
    """A model that is traced once and starts anew for every data set."""

    def __init__(self, dtype: str, depth: int, likelihood: str) -> None:
        options = {"num_inducing": 12, "num_orthogonal": 12, "num_levels": 4, "num_data": 1, "dtype": dtype}
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


@pytest.mark.parametrize("depth", DEPTHS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", TRAINABLE)
def test_trains(name, dtype, depth, record, unoptimised):
    data = TRAINABLE[name]
    tried = subject(dtype, depth, data.likelihood)
    tried.restart()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        keras_odgp.adapt(tried.model, data.x, data.y)
    losses = configurations.take_steps(tried.step, data.x, data.y, data.batch_size)
    configurations.check_healthy(tried.model, data.x, losses)
    configurations.predict_healthy(tried.model, data.x)
    record("hostile", data=name, dtype=dtype, depth=depth, outcome="trained")


@pytest.mark.parametrize("name", REFUSED)
def test_is_refused(name, record, unoptimised):
    data, message = REFUSED[name]
    tried = subject(DTYPES[-1], 1, data.likelihood)
    tried.restart()
    with pytest.raises(ValueError, match=message):
        keras_odgp.adapt(tried.model, data.x, data.y)
    record("hostile", data=name, dtype=DTYPES[-1], depth=1, outcome="refused")
