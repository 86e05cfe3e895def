"""Deep GPs of one, two and three layers by `model.fit`, against GPflux's published runs and GPflux run here.

Models: ours with softplus units and the arc-cosine kernel, ours with points and GPflow's squared exponential kernel,
and GPflux's, which has that same kernel; recipes: ours, ours with closed-form updates of the last layer ("refresh"),
GPflux's. Equal numbers of inducing variables (M + K = 256 as published) and equal CPU time. Scores are those of a
mixture of 64 samples, standardised. See `deep_models` for the recipes.
"""

from __future__ import annotations

from typing import Any

from benchmarks import data
from benchmarks.cells import Context, Experiment, Settings

SMALL, LARGE = ("yacht", "energy", "concrete"), ("kin8nm", "power")
DATA_SETS = (*SMALL, *LARGE)
SECONDS = {**dict.fromkeys(SMALL, 60), **dict.fromkeys(LARGE, 600)}  # large: at least as many epochs as published
OURS = ("softplus", "points")


def cell(data_set: str, model: str, recipe: str, layers: int, split: int, **others: Any) -> Settings:
    """Settings of one cell."""
    settings = {"data": data_set, "model": model, "recipe": recipe, "layers": layers, "M": 128, "K": 128}
    return settings | {"split": split, "seconds": SECONDS[data_set]} | others


def all_cells() -> list[Settings]:
    """Two layers on one split first, then other depths and recipes, then further splits; small sets first."""
    ours = [(2, "softplus", "ours"), (2, "points", "ours")]
    peers = [(2, "gpflux", "gpflux"), (2, "gpflux", "ours")]
    recipes = [(2, model, recipe) for recipe in ("gpflux", "refresh") for model in OURS]
    depths = [(layers, model, "ours") for layers in (1, 3) for model in OURS]
    depths += [(layers, "gpflux", recipe) for layers in (1, 3) for recipe in ("gpflux", "ours")]
    blocks: list[tuple[list[tuple[int, str, str]], tuple[str, ...], tuple[int, ...]]] = [
        (ours, DATA_SETS, (0,)),
        (peers, SMALL, (0,)),
        (ours, SMALL, (1,)),
        (peers, LARGE, (0,)),
        (depths, SMALL, (0,)),
        (recipes, SMALL, (0,)),
        (ours, LARGE, (1,)),
        (ours, SMALL, (2, 3, 4)),
        (depths + recipes, LARGE, (0,)),
        (peers + recipes + depths, DATA_SETS, (1, 2, 3, 4)),
        (ours, LARGE, (2, 3, 4)),
    ]
    return [
        cell(data_set, model, recipe, layers, split)
        for models, data_sets, splits in blocks
        for split in splits
        for data_set in data_sets
        for layers, model, recipe in models
    ]


def run(settings: Settings, context: Context) -> dict[str, Any]:
    """Trains and scores the model of a cell."""
    from benchmarks import deep_models

    part = data.split(*data.load(settings["data"], context.data_dir), settings["split"])
    train = deep_models.train_gpflux if settings["model"] == "gpflux" else deep_models.train_ours
    return train(settings, part)


EXPERIMENT = Experiment(
    name="deep",
    description="deep GPs of one to three layers against GPflux, published and run here, with either recipe",
    identity=("data", "model", "recipe", "layers", "M", "K", "split"),
    cells=all_cells(),
    quick=[
        cell("yacht", model, recipe, 2, 0, M=32, K=32, seconds=10)
        for model, recipe in (("softplus", "ours"), ("points", "ours"), ("gpflux", "gpflux"))
    ],
    run=run,
)
