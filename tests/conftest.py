"""Shared settings and builders of the tests."""

from __future__ import annotations

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import hypothesis
import numpy as np
import pytest

# Every example computes for milliseconds after seconds of tracing, so a deadline would only measure the machine.
hypothesis.settings.register_profile("default", deadline=None, max_examples=20, derandomize=True)
hypothesis.settings.load_profile("default")


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)
