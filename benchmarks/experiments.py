"""All experiments by name."""

from __future__ import annotations

from benchmarks import airline, calibration, deep, snelson, speed, uci
from benchmarks.cells import Experiment

EXPERIMENTS: dict[str, Experiment] = {
    module.EXPERIMENT.name: module.EXPERIMENT for module in (uci, deep, snelson, airline, speed, calibration)
}
