"""Which parts of a kernel can features reach? Fourier spectra of kernels and of activations, level by level.

A feature made of an activation can explain the part of a zonal kernel that lies in the levels which the activation
has too. This script draws the square roots of the kernel's Fourier coefficients against those of the activation, for
two kernels and two activations.

Run with `python tutorials/fourier_spectra.py`.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

from keras_odgp.kernels import ArcCosine, Matern52, ZonalKernel
from keras_odgp.spherical import get_activation

LEVELS = np.arange(1, 36)
KERNEL_COLOUR, FEATURE_COLOUR = "#1b4f8a", "#d9730d"


def draw_pair(axes: plt.Axes, kernel: ZonalKernel, kernel_name: str, activation_name: str, dimension: int) -> None:
    """Draws one kernel against one activation."""
    activation = get_activation(activation_name)
    root = np.sqrt(kernel.fourier_coefficients(LEVELS[-1] + 1, dimension).numpy()[LEVELS])
    feature = np.abs(activation.coefficients(LEVELS[-1] + 1, dimension)[LEVELS])
    series = ((root, kernel_name, "o", KERNEL_COLOUR), (feature, activation_name, "s", FEATURE_COLOUR))
    for values, label, marker, colour in series:
        present = values > 0
        axes.semilogy(LEVELS[present], values[present], marker, color=colour, markersize=4, label=label)
    missing = LEVELS[(root > 0) & (feature == 0)]
    floor = 0.02 * min(values[values > 0].min() for values, *_ in series)
    if len(missing):
        axes.semilogy(
            missing,
            np.full(len(missing), floor),
            "x",
            color=FEATURE_COLOUR,
            label=f"no {activation_name} at this level",
        )
    axes.set_title(f"{kernel_name} kernel, {activation_name} features", fontsize=10)
    axes.set_xlim(0, LEVELS[-1] + 1)
    axes.legend(fontsize=8, frameon=False, loc="lower left", bbox_to_anchor=(0, 0.09))
    axes.grid(alpha=0.25)


def draw(path: Path, dimension: int = 3) -> None:
    """Draws the four pairs and writes the picture."""
    figure, grid = plt.subplots(2, 2, figsize=(10, 7), sharex=True, constrained_layout=True)
    kernels: list[tuple[str, ZonalKernel]] = [("Matérn-5/2", Matern52()), ("arc-cosine", ArcCosine())]
    for row, (kernel_name, kernel) in zip(grid, kernels):
        for axes, activation_name in zip(row, ("relu", "softplus")):
            draw_pair(axes, kernel, kernel_name, activation_name, dimension)
        row[0].set_ylabel(r"$\sqrt{\lambda_\ell}$ of the kernel,  $|\varsigma_\ell|$ of the feature")
    for axes in grid[-1]:
        axes.set_xlabel(r"level $\ell$")
    figure.suptitle(f"Fourier coefficients on the sphere, {dimension - 1} inputs and a bias")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("build/demo"), help="directory of the picture")
    path = parser.parse_args().output / "fourier_spectra.png"
    draw(path)
    print(f"Fourier spectra of kernels and features: {path.resolve()}")


if __name__ == "__main__":
    main()
