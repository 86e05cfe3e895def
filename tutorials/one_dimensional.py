"""Four sparse GPs on one-dimensional data: what orthogonal features add, and where the predictive variance comes from.

Fits SVGP and SOLVE-GP with inducing points, and the activated SVGP with and without orthogonal points, all by the same
model with other settings. Prints a table and draws the predictives and the terms of their variances.

Run with `python tutorials/one_dimensional.py`.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import gpflow
import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

from keras_odgp.gpflow_models import OrthogonalSVGP, fit_lbfgs, points_from_data, random_directions
from keras_odgp.inducing import ActivationFeatures
from keras_odgp.kernels import Matern52

NUM_LEVELS, NUM_POINTS = 8, 8
BLUE, ORANGE, GREY = "#1b4f8a", "#d9730d", "#777777"


def make_data(num: int = 200, seed: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """A wavy function with noise, sparse in the middle, standardised."""
    rng = np.random.default_rng(seed)
    X = np.concatenate([rng.uniform(0, 2.6, num // 2), rng.uniform(3.4, 6, num // 2 - 8), rng.uniform(2.6, 3.4, 8)])
    Y = np.sin(2.0 * X) + 0.5 * np.cos(5.0 * X) + 0.3 * X + 0.2 * rng.normal(size=X.shape)
    return ((X - X.mean()) / X.std())[:, None], ((Y - Y.mean()) / Y.std())[:, None]


def make_models(X: np.ndarray) -> dict[str, OrthogonalSVGP]:
    """The four models, which differ in their features only."""

    def kernel() -> Matern52:
        matern = Matern52()
        gpflow.utilities.set_trainable(matern.lengthscale, False)  # free, it runs away together with the variance
        return matern

    def activations() -> ActivationFeatures:
        rank = ActivationFeatures(np.ones((1, 2)), "softplus", NUM_LEVELS).rank()
        return ActivationFeatures(random_directions(rank, 1), "softplus", NUM_LEVELS)

    def points(seed: int) -> Any:
        return gpflow.inducing_variables.InducingPoints(points_from_data(X, NUM_POINTS, seed=seed))

    features = {
        "SVGP (8 points)": (points(0), None),
        "SOLVE-GP (8 + 8 points)": (points(0), points(1)),
        "activated SVGP (9 softplus)": (activations(), None),
        "orthogonal (9 softplus + 8 points)": (activations(), points(1)),
    }
    return {
        name: OrthogonalSVGP(kernel(), gpflow.likelihoods.Gaussian(0.1), base, orthogonal)
        for name, (base, orthogonal) in features.items()
    }


def draw_predictive(axes: plt.Axes, model: OrthogonalSVGP, grid: np.ndarray, X: np.ndarray, Y: np.ndarray) -> None:
    """Data, predictive mean, and bands of two standard deviations of f and of y."""
    mean, variance = (part.numpy()[:, 0] for part in model.posterior().predict_f(grid))
    noise = float(model.likelihood.variance.numpy())
    for total, alpha, label in ((variance + noise, 0.15, "y, 2 sd"), (variance, 0.35, "f, 2 sd")):
        band = 2 * np.sqrt(total)
        axes.fill_between(grid[:, 0], mean - band, mean + band, color=BLUE, alpha=alpha, linewidth=0, label=label)
    axes.plot(grid[:, 0], mean, color=BLUE)
    axes.plot(X[:, 0], Y[:, 0], ".", color="black", markersize=3)
    axes.set_ylim(-4, 4)


def draw_terms(axes: plt.Axes, model: OrthogonalSVGP, grid: np.ndarray) -> None:
    """The terms of the variance of f, relative to the prior variance."""
    terms = {name: value.numpy()[:, 0] for name, value in model.posterior(None).variance_terms(grid)._asdict().items()}
    prior = terms["prior"]
    curves = (
        ("not explained by the base", prior + terms["explained"], ORANGE, "-"),
        ("left after the orthogonal part", prior + terms["explained"] + terms["orthogonal_explained"], ORANGE, "--"),
        ("uncertain base", terms["uncertainty"], BLUE, "-"),
        ("uncertain orthogonal part", terms["orthogonal_uncertainty"], BLUE, "--"),
        ("variance of f", sum(terms.values()), "black", "-"),
    )
    for label, values, colour, style in curves:
        if "orthogonal" in label and not np.any(terms["orthogonal_explained"]):
            continue
        axes.semilogy(grid[:, 0], np.maximum(values / prior, 1e-8), style, color=colour, label=label, linewidth=1.2)
    axes.set_ylim(1e-6, 2)


def draw(models: dict[str, OrthogonalSVGP], X: np.ndarray, Y: np.ndarray, path: Path) -> None:
    """All panels: predictives above, terms of the variance below."""
    grid = np.linspace(X.min() - 1.0, X.max() + 1.0, 300)[:, None]
    figure, rows = plt.subplots(2, len(models), figsize=(16, 7), sharex=True, sharey="row", constrained_layout=True)
    for column, (name, model) in enumerate(models.items()):
        draw_predictive(rows[0, column], model, grid, X, Y)
        draw_terms(rows[1, column], model, grid)
        rows[0, column].set_title(name, fontsize=10)
        rows[1, column].set_xlabel("x")
    rows[0, 0].set_ylabel("y")
    rows[1, 0].set_ylabel("share of the prior variance")
    rows[0, -1].legend(fontsize=8, frameon=False, loc="upper left")
    rows[1, 2].legend(*rows[1, -1].get_legend_handles_labels(), fontsize=8, frameon=False, loc="lower center")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("build/demo"), help="directory of the picture")
    parser.add_argument("--iterations", type=int, default=300, help="largest number of L-BFGS iterations")
    arguments = parser.parse_args()
    X, Y = make_data()
    order = np.random.default_rng(0).permutation(len(X))
    train, test = order[: 2 * len(X) // 3], order[2 * len(X) // 3 :]
    models = make_models(X[train])
    lines = [f"{'model':36}{'ELBO':>10}{'test NLPD':>12}{'seconds':>10}"]
    for name, model in models.items():
        print(name)
        start = time.perf_counter()
        model.set_optimal_q((X[train], Y[train]))
        fit_lbfgs(model, (X[train], Y[train]), max_iterations=arguments.iterations)
        seconds = time.perf_counter() - start
        elbo = float(model.elbo((X[train], Y[train])))
        nlpd = -float(np.mean(model.predict_log_density((X[test], Y[test]))))
        lines.append(f"{name:36}{elbo:10.2f}{nlpd:12.3f}{seconds:10.1f}")
    print("\n" + "\n".join(lines))
    path = arguments.output / "one_dimensional.png"
    draw(models, X[train], Y[train], path)
    print(f"\nPredictives and the terms of their variances: {path.resolve()}")


if __name__ == "__main__":
    main()
