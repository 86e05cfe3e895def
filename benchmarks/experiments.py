"""All experiments by name."""

from __future__ import annotations

from benchmarks import deep, uci
from benchmarks.cells import Experiment

EXPERIMENTS: dict[str, Experiment] = {experiment.name: experiment for experiment in (uci.EXPERIMENT, deep.EXPERIMENT)}
