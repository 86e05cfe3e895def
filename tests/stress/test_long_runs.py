"""Long runs: memory, traces and the time of a step do not grow; threads agree."""

from __future__ import annotations

import concurrent.futures
import gc
import os
import resource
import time

import keras
import numpy as np
import pytest
from builders import assert_same
from layers import house
from stress.forms import IS_FULL

import keras_odgp
from keras_odgp import layers

X, Y = house.regression()
NUM_STEPS, NUM_PREDICTS = (5_000, 1_000) if IS_FULL else (150, 40)
NUM_THREADS = 8
# Of memory in MiB over the last half, when caches are warm: the allocator's fragments, not a leak, which would grow
# with every step: by 3 KiB in each of 2,500.
ALLOWANCE = 8.0
SLOWER = 1.25  # at most, in CPU time of the last half by that of the first
NUM_WINDOWS = 20


@pytest.fixture(scope="module")
def model():
    """One that is traced once for all tests here."""
    model = house.sequential(house.gp(2, seed=1), *house.head(seed=2))
    house.compiled(model, run_eagerly=False)
    model.fit(X, Y, batch_size=20, verbose=0)
    return model


def resident() -> float:
    """MiB in use now, or at most so far where that cannot be read."""
    gc.collect()
    if os.path.exists("/proc/self/statm"):
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * resource.getpagesize() / 2**20
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


@pytest.fixture
def traces(monkeypatch):
    """Counts the calls of GP layers in Python: when a function is traced, and at no other time."""
    calls = []
    original = layers.OrthogonalGP.call

    def counting(self, *args, **kwargs):
        calls.append(self)
        return original(self, *args, **kwargs)

    monkeypatch.setattr(layers.OrthogonalGP, "call", counting)
    return calls


def times(num, action):
    """For so many actions, CPU time of the last half by that of the first, and growth of memory in MiB in the last."""
    seconds, memory, half = [], [], NUM_WINDOWS // 2
    for _ in range(NUM_WINDOWS):
        before = time.process_time()  # CPU time, which a busy machine does not stretch
        for _ in range(num // NUM_WINDOWS):
            action()
        seconds.append(time.process_time() - before)
        memory.append(resident())
    # Medians of windows, so that neither the first trace nor another burden of the machine counts.
    return np.median(seconds[half:]) / np.median(seconds[:half]), memory[-1] - memory[half - 1]


def test_training(model, traces, record):
    ratio, growth = times(NUM_STEPS, lambda: model.train_on_batch(X[:20], Y[:20]))
    assert len(traces) <= 4, "traced again"  # once for `train_on_batch`, whose function `fit` may not share
    assert growth < ALLOWANCE
    assert all(np.isfinite(weight).all() for weight in model.get_weights())
    assert ratio < SLOWER or not IS_FULL  # windows of short runs measure the machine
    measured = {"growth": round(growth, 1), "ratio": round(ratio, 2), "traces": len(traces)}
    record("long", what="training steps", number=NUM_STEPS, **measured)


def test_predictions(model, traces, record):
    predictive = keras_odgp.Predictive(model, num_samples=4)
    expected = predictive.predict(X, verbose=0)["mean"]
    model.predict(X, verbose=0)
    traced = len(traces)

    def predict():
        model.predict(X, verbose=0)
        assert_same(predictive.predict(X, verbose=0)["mean"], expected)

    ratio, growth = times(NUM_PREDICTS, predict)
    assert len(traces) == traced, "traced again"
    assert growth < ALLOWANCE
    assert ratio < SLOWER or not IS_FULL
    measured = {"growth": round(growth, 1), "ratio": round(ratio, 2), "traces": len(traces) - traced}
    record("long", what="calls of predict", number=NUM_PREDICTS, **measured)


def test_threads_agree_with_one(record):
    """From the very first call on, so that threads trace at the same time."""
    one = house.compiled(house.sequential(*house.head(seed=2)), run_eagerly=False)
    house.perturb(one)
    deep = house.sequential(house.gp(2, seed=1), *house.head(seed=2, dtype="float32")[:1], layers.GaussianLikelihood())
    predictives = [keras_odgp.Predictive(each, num_samples=4) for each in (one, deep)]
    copies = [keras_odgp.Predictive(each, num_samples=4) for each in (one, deep)]
    parts = [X[start : start + 10] for start in range(0, 40, 5)]
    expected = [[each.log_density(part, part[:, :1]) for part in parts] for each in copies]
    predicted = [one.predict(part, verbose=0) for part in parts]
    direct = [keras.ops.convert_to_numpy(one(part)) for part in parts]

    def work(index):
        order = np.roll(np.arange(len(parts)), index)
        for _ in range(3):
            for part in order:
                for predictive, values in zip(predictives, expected):
                    assert_same(predictive.log_density(parts[part], parts[part][:, :1]), values[part])
                assert_same(one(parts[part]), direct[part])
                assert_same(one.predict(parts[part], verbose=0), predicted[part])
        return True

    with concurrent.futures.ThreadPoolExecutor(NUM_THREADS) as pool:
        assert all(pool.map(work, range(NUM_THREADS)))
    record("threads", number=NUM_THREADS, equal=True)
