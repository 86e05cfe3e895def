"""Runs the cells of an experiment that are not there yet."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import time
import traceback
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from tqdm import tqdm

from benchmarks.cells import Context, Experiment, Settings, Store

PACKAGES = ("tensorflow", "keras", "gpflow", "gpflux", "gpytorch", "torch", "numpy", "scipy", "keras_odgp")


@dataclass
class Outcome:
    """How a run of an experiment went: file names of cells."""

    finished: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)


def run(
    experiment: Experiment, cells: Sequence[Settings], store: Store, context: Context, *, budget: float | None = None
) -> Outcome:
    """Runs cells one after the other; each is stored as soon as it is finished.

    Args:
        experiment: The experiment.
        cells: Settings of the cells wanted.
        store: Where records are, and go.
        context: What cells may use.
        budget: Minutes after which no further cell is started. Defaults to no limit.

    Returns:
        What became of each cell. A cell that fails is reported and left for the next start.
    """
    outcome = Outcome()
    todo = []
    for settings in cells:
        if store.has(experiment, settings):
            outcome.skipped.append(experiment.file_name(settings))
        else:
            todo.append(settings)
    end = None if budget is None else time.monotonic() + 60.0 * budget
    with tqdm(total=len(todo), desc=experiment.name, unit="cell", smoothing=0.05) as bar:
        for settings in todo:
            name = experiment.file_name(settings)
            if end is not None and time.monotonic() >= end:
                outcome.left.append(name)
                continue
            bar.set_postfix_str(name.removesuffix(".json"))
            try:
                record = measure(experiment, settings, context)
            except Exception:  # one cell must not cost the others
                bar.write(f"{experiment.name}/{name} failed:\n{traceback.format_exc()}")
                outcome.failed.append(name)
            else:
                store.save(experiment, record)
                outcome.finished.append(name)
            bar.update()
    return outcome


def measure(experiment: Experiment, settings: Settings, context: Context) -> dict[str, Any]:
    """The record of one cell."""
    started = datetime.now(timezone.utc).isoformat(timespec="seconds")
    load = os.getloadavg()[0]
    wall, cpu = time.perf_counter(), time.process_time()
    results = experiment.run(settings, context)
    return {
        "experiment": experiment.name,
        "settings": settings,
        "results": results,
        "timings": {
            "wall_seconds": round(time.perf_counter() - wall, 2),
            "cpu_seconds": round(time.process_time() - cpu, 2),
            "load_at_start": round(load, 2),
        },
        "started": started,
        "versions": versions(),
        "machine": machine(),
    }


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that are installed, of those that matter."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def machine() -> dict[str, Any]:
    """The processor, its cores, and the number of threads that TensorFlow was told to use."""
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "threads": os.environ.get("TF_NUM_INTRAOP_THREADS", "all"),
        "system": f"{platform.system()} {platform.machine()}",
    }


def _processor() -> str:
    information = Path("/proc/cpuinfo")
    lines: Iterable[str] = information.read_text().splitlines() if information.exists() else ()
    for line in lines:
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor() or "unknown"
