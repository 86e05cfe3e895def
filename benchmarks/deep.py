"""Deep GPs of one, two and three layers by `model.fit`, against GPflux's published runs and GPflux run here.

Models: ours with softplus units or points as base features, and GPflux's; recipes: ours, ours with closed-form updates
of the last layer ("refresh"), GPflux's. Equal numbers of inducing variables (M + K = 256 as published) and equal CPU
time. Scores are those of a mixture of 64 samples, standardised. See `deep_models` for the recipes.
"""

from __future__ import annotations

from typing import Any

from benchmarks import data
from benchmarks.cells import Context, Experiment, Settings

DATA_SETS = ("yacht", "energy", "concrete", "kin8nm", "power")
SECONDS = {"yacht": 60, "energy": 60, "concrete": 60, "kin8nm": 240, "power": 240}
OURS = ("softplus", "points")


def cell(data_set: str, model: str, recipe: str, layers: int, split: int, **others: Any) -> Settings:
    """Settings of one cell."""
    settings = {"data": data_set, "model": model, "recipe": recipe, "layers": layers, "M": 128, "K": 128}
    return settings | {"split": split, "seconds": SECONDS[data_set]} | others


def all_cells() -> list[Settings]:
    """Two layers with our recipe on all sets first, then other recipes and depths, then further splits."""
    first = [(2, "softplus", "ours"), (2, "points", "ours")]
    peers = [(2, "gpflux", "gpflux"), (2, "gpflux", "ours"), (2, "softplus", "gpflux"), (2, "points", "gpflux")]
    refresh = [(2, "softplus", "refresh"), (2, "points", "refresh")]
    depths = [(layers, model, "ours") for layers in (1, 3) for model in (*OURS, "gpflux")]
    depths += [(layers, "gpflux", "gpflux") for layers in (1, 3)]
    blocks = [
        (first[:1], (0,)),
        (first[1:], (0,)),
        (first, (1,)),
        (peers, (0,)),
        (refresh, (0,)),
        (depths, (0,)),
        (peers + refresh, (1,)),
        (first + peers + refresh, (2, 3, 4)),
        (depths, (1, 2, 3, 4)),
    ]
    return [
        cell(data_set, model, recipe, layers, split)
        for models, splits in blocks
        for split in splits
        for data_set in DATA_SETS
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
