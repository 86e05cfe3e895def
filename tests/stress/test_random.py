"""Random configurations: each trains, or is refused with a message that says what to do."""

from __future__ import annotations

import time
import warnings

import pytest
from stress import configurations
from stress.forms import IS_FULL

# Each in both dtypes. The short form has seeds that take little time, one of which is refused.
SEEDS = range(260) if IS_FULL else (12, 13, 14, 25)


@pytest.mark.parametrize("dtype", ["float64", "float32"] if IS_FULL else ["float32"])
@pytest.mark.parametrize("seed", SEEDS)
def test_trains(seed, dtype, record, request, forget_models):
    configuration = configurations.draw(seed, dtype=dtype, step=None if IS_FULL else "graph")
    if configuration.step != "keras":  # whose steps are those of a user, in all
        request.getfixturevalue("unoptimised")
    start = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of features that add nothing, which are meant to occur here
        result = configurations.run(configuration)
    record("random", seconds=round(time.process_time() - start, 2), **result)
