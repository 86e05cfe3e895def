"""Coverage and calibration error on the UCI sets: SVGP, orthogonal, and deep models with as many inducing variables.

Its cells are views of cells of the experiments uci and deep, which are run if they are not there.
"""

from __future__ import annotations

from typing import Any

from benchmarks import deep, uci
from benchmarks.cells import Context, Experiment, Settings, Store, read
from benchmarks.runner import measure

DATA_SETS = deep.DATA_SETS
TAKEN = ("rmse", "nlpd", "coverage_50", "coverage_95", "calibration_error", "calibration_curve", "num_test")


def sources(settings: Settings) -> tuple[Experiment, Settings]:
    """The experiment and the cell that a cell of this experiment is a view of."""
    data_set, split = settings["data"], settings["split"]
    protocol = {key: value for key, value in settings.items() if key not in ("data", "model", "split")}
    if settings["model"] == "svgp":
        return uci.EXPERIMENT, uci.cell(data_set, ("points", "arccos1"), (256, 0), split, **protocol)
    if settings["model"] == "orthogonal":
        return uci.EXPERIMENT, uci.cell(data_set, ("softplus", "arccos1"), (128, 128), split, **protocol)
    return deep.EXPERIMENT, deep.cell(data_set, "points", "ours", 2, split, **protocol)


def run(settings: Settings, context: Context) -> dict[str, Any]:
    """The part of a cell of another experiment that is about calibration."""
    experiment, source = sources(settings)
    if context.results is None:
        results = measure(experiment, source, context)["results"]
    else:
        store = Store(context.results)
        if not store.has(experiment, source):
            store.save(experiment, measure(experiment, source, context))
        results = read(store.path(experiment, source))["results"]
    return {key: results[key] for key in TAKEN}


EXPERIMENT = Experiment(
    name="calibration",
    description="coverage and calibration error on the UCI sets: SVGP, orthogonal, deep",
    identity=("data", "model", "split"),
    cells=[
        {"data": data_set, "model": model, "split": split}
        for split in range(5)
        for data_set in DATA_SETS
        for model in ("svgp", "orthogonal", "deep")
    ],
    quick=[
        {"data": "yacht", "model": "svgp", "split": 0, "max_iterations": 50},
        {"data": "yacht", "model": "orthogonal", "split": 0, "max_iterations": 50},
    ],
    run=run,
)
