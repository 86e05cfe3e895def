"""What the sections of the report share: tables in Markdown, groups of records, figures."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.cells import Record
from benchmarks.paper import Score

LABELS = {
    "relu": "ReLU",
    "softplus": "softplus",
    "points": "points",
    "arccos0": "arc-cosine, order 0",
    "arccos1": "arc-cosine, order 1",
    "matern52": "Matérn-5/2",
    "squared_exponential": "squared exponential",
}
MODELS = {"softplus": "ours, softplus", "points": "ours, points", "gpflux": "GPflux"}
RECIPES = {"ours": "our recipe", "refresh": "our recipe, refreshed", "gpflux": "GPflux's recipe"}
LEAST_WIDTH = 7.5  # inches, which the widest legend takes
COLOURS = {"relu": "tab:blue", "softplus": "tab:orange", "points": "tab:green"}


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def group(records: Iterable[Record], *keys: str) -> dict[tuple[Any, ...], list[Record]]:
    """Records by the values of some settings, in the order of their first appearance."""
    groups: dict[tuple[Any, ...], list[Record]] = {}
    for record in records:
        groups.setdefault(tuple(record["settings"][key] for key in keys), []).append(record)
    return groups


def score(records: Sequence[Record], metric: str) -> Score:
    """Mean and sample standard deviation of a metric over records; NaN for the deviation of one."""
    values = [record["results"][metric] for record in records]
    return Score(float(np.mean(values)), float(np.std(values, ddof=1)) if len(values) > 1 else float("nan"))


def show(value: Score, digits: int = 2) -> str:
    """A score as text."""
    return f"{value.mean:.{digits}f}" + ("" if np.isnan(value.deviation) else f" ± {value.deviation:.{digits}f}")


class Figures:
    """Draws figures into a directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def subplots(self, rows: int, columns: int, size: tuple[float, float]) -> tuple[Any, np.ndarray]:
        """A figure and its axes `[rows, columns]`; `size` is that of one of them in inches."""
        import matplotlib

        matplotlib.use("Agg")
        import matplotlib.pyplot as plt

        width = max(size[0] * columns, LEAST_WIDTH)
        return plt.subplots(rows, columns, figsize=(width, size[1] * rows), squeeze=False, layout="constrained")

    def legend(self, figure: Any, axes: np.ndarray) -> None:
        """One legend below all panels."""
        handles = {label: handle for ax in axes.flat for handle, label in zip(*ax.get_legend_handles_labels())}
        figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=3, fontsize=8)

    def save(self, figure: Any, name: str, caption: str) -> str:
        """Writes a figure, and returns what shows it in Markdown."""
        import matplotlib.pyplot as plt

        self.directory.mkdir(parents=True, exist_ok=True)
        figure.savefig(self.directory / f"benchmarks_{name}.png", dpi=110, metadata={"Software": None})
        plt.close(figure)
        return f"![{caption}](images/benchmarks_{name}.png)\n\n*{caption}*"
