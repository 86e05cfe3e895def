"""Shared settings and builders of the tests."""

from __future__ import annotations

import json
import os
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import hypothesis
import numpy as np
import pytest
from stress.forms import IS_FULL

RESULTS = Path(os.environ.get("KERAS_ODGP_STRESS_RESULTS", "build/stress"))

# Every example computes for milliseconds after seconds of tracing, so a deadline would only measure the machine.
hypothesis.settings.register_profile("default", deadline=None, max_examples=20, derandomize=True)
hypothesis.settings.load_profile("default")


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)


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
