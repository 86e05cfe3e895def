"""Pictures of predictions over one or two inputs."""

from __future__ import annotations

from typing import Any

import numpy as np

from keras_odgp.predictive.model import Predictive

BAND = 2.0  # standard deviations


def plot_predictive(predictive: Predictive, x: Any, y: Any = None, ax: Any = None) -> Any:
    """Draws the predictive mean and standard deviation of a model over inputs of one or two columns.

    One input: mean and a band of two standard deviations, noise included, for each unit. Two inputs: the mean as
    filled contours and the standard deviation in a panel beside it, or as labelled lines over the mean if one `ax`
    is given; of the first unit. Needs the package matplotlib: `pip install matplotlib`.

    Args:
        predictive: A `Predictive`.
        x: Inputs to draw at, `[N, 1]` or `[N, 2]`, in any order; two columns need not form a grid.
        y: Targets at these inputs, drawn as dots; or a pair `(x_data, y_data)` for data at other inputs. Defaults to
            none.
        ax: Axes of matplotlib to draw on. Defaults to a new figure.

    Returns:
        The axes; an array of two for two inputs without `ax`.

    Example:

    >>> x, y = np.random.randn(50, 1), np.random.randn(50)
    >>> model = keras.Sequential([
    ...     keras.Input((1,)),
    ...     keras_odgp.layers.OrthogonalGP(1, num_inducing=5, num_orthogonal=8, num_data=50, return_moments=True),
    ...     keras_odgp.layers.GaussianLikelihood(),
    ... ])
    >>> grid = np.linspace(-3, 3, 100)[:, None]
    >>> axes = keras_odgp.plot_predictive(keras_odgp.Predictive(model), grid, y=(x, y))
    """
    try:
        import matplotlib.pyplot as plt  # noqa: PLC0415
    except ImportError as error:
        raise ImportError(
            "Pictures need the package matplotlib, which is not installed: `pip install matplotlib`."
        ) from error
    x = np.asarray(x)
    if x.ndim != 2 or x.shape[1] not in (1, 2):
        raise ValueError(f"Expected inputs of shape [N, 1] or [N, 2] to draw over. Got shape {x.shape}.")
    data = (None, None) if y is None else (y if isinstance(y, tuple) else (x, y))
    result = predictive.predict(x, batch_size=1024, verbose=0)
    mean, deviation = result["mean"], np.sqrt(result["variance"])
    if mean.ndim != 2:
        raise ValueError(f"Expected predictions of shape [N, units] to draw. Got shape {mean.shape}.")
    if x.shape[1] == 1:
        axes = plt.subplots(figsize=(7.0, 4.0), layout="constrained")[1] if ax is None else ax
        _draw_curves(axes, x[:, 0], mean, deviation, data)
        return axes
    if ax is None:
        axes = plt.subplots(1, 2, figsize=(10.0, 4.0), layout="constrained", sharex=True, sharey=True)[1]
        _draw_surface(axes[0], x, mean[:, 0], "Mean", data, cmap="viridis")
        _draw_surface(axes[1], x, deviation[:, 0], "Standard deviation", data, cmap="magma", dots_only=True)
        return axes
    _draw_surface(ax, x, mean[:, 0], "Mean, with lines of equal standard deviation", data, cmap="viridis")
    lines = ax.tricontour(*x.T, deviation[:, 0], levels=5, colors="white", linewidths=0.8)
    ax.clabel(lines, fontsize="small")
    return ax


def _draw_curves(ax: Any, x: np.ndarray, mean: np.ndarray, deviation: np.ndarray, data: tuple[Any, Any]) -> None:
    order = np.argsort(x, kind="stable")
    targets = None if data[1] is None else np.asarray(data[1]).reshape(len(data[1]), -1)
    for unit in range(mean.shape[1]):
        suffix = f" of unit {unit}" if mean.shape[1] > 1 else ""
        centre, width = mean[order, unit], BAND * deviation[order, unit]
        (line,) = ax.plot(x[order], centre, label=f"mean{suffix}", zorder=3)
        label = None if unit else f"{BAND:g} standard deviations"
        ax.fill_between(
            x[order], centre - width, centre + width, color=line.get_color(), alpha=0.2, linewidth=0, label=label
        )
        if targets is not None:
            # Black on one curve; the colour of the curve where there are several.
            column, colour = min(unit, targets.shape[1] - 1), "black" if mean.shape[1] == 1 else line.get_color()
            inputs = np.asarray(data[0])[:, 0]
            ax.scatter(inputs, targets[:, column], s=10, color=colour, alpha=0.6, label=None if unit else "data")
    ax.set_xlabel("x")
    ax.set_ylabel("y")
    ax.legend()


def _draw_surface(
    ax: Any, x: np.ndarray, values: np.ndarray, title: str, data: tuple[Any, Any], *, cmap: str, dots_only: bool = False
) -> None:
    filled = ax.tricontourf(*x.T, values, levels=20, cmap=cmap)
    ax.figure.colorbar(filled, ax=ax)
    if data[1] is not None:
        inputs, targets = np.asarray(data[0]), np.asarray(data[1]).reshape(len(data[1]), -1)[:, 0]
        colours: dict[str, Any] = (
            {"color": "white"}
            if dots_only
            else {"c": targets, "cmap": cmap, "vmin": values.min(), "vmax": values.max()}
        )
        ax.scatter(*inputs.T, s=12, edgecolor="black", linewidth=0.5, **colours)
    ax.set(title=title, xlabel="x₀", ylabel="x₁")
