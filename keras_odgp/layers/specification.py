"""From the strings and sizes that a layer is given to a kernel and feature sets with start values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gpflow
import numpy as np
from gpflow.inducing_variables import InducingPoints, InducingVariables
from gpflow.kernels import Kernel

from keras_odgp import kernels
from keras_odgp.gpflow_models import random_directions
from keras_odgp.inducing import ActivationFeatures, SphericalHarmonics
from keras_odgp.orthogonal.gram import num_features
from keras_odgp.spherical import get_activation, num_harmonics

KERNELS: dict[str, Callable[..., kernels.ZonalKernel]] = {
    "arccos": kernels.ArcCosine,
    "matern12": kernels.Matern12,
    "matern32": kernels.Matern32,
    "matern52": kernels.Matern52,
    "squared_exponential": kernels.SquaredExponential,
}
DEFAULT_SIZE = 128
LARGEST_LEVEL = 1024  # harmonics that a level may have to be taken without being asked for


def check_kernel(kernel: Any) -> None:
    """Raises unless it is the name of a kernel or a GPflow kernel."""
    if isinstance(kernel, str) and kernel not in KERNELS:
        raise ValueError(f"Expected a kernel among {sorted(KERNELS)}, or a GPflow kernel. Got: {kernel!r}.")
    if not isinstance(kernel, (str, Kernel)):
        raise TypeError(f"Expected the name of a kernel, or a GPflow kernel. Got: {kernel!r}.")


def check_features(features: Any, argument: str) -> None:
    """Raises unless it is the name of a kind of feature or a GPflow inducing variable."""
    if isinstance(features, str) and features not in ("points", "harmonics"):
        try:
            get_activation(features)
        except ValueError as error:
            raise ValueError(
                f"Expected `{argument}` to be 'points', 'harmonics' or an activation. Got {features!r}: {error}"
            ) from error
    elif not isinstance(features, (str, InducingVariables)):
        raise TypeError(
            f"Expected `{argument}` to be the name of a kind of feature, or a GPflow inducing variable. "
            f"Got: {features!r}."
        )


def make_kernel(kernel: str | Kernel, num_inputs: int, variance: float) -> Kernel:
    """The kernel itself, or one of the name, on inputs that are about standardised: weight variances 1 / D."""
    if isinstance(kernel, Kernel):
        return kernel
    return KERNELS[kernel](variance=variance, weight_variances=np.full(num_inputs, 1.0 / num_inputs))


def make_features(
    features: tuple[Any, Any],
    sizes: tuple[int | None, int | None],
    *,
    kernel: Kernel,
    num_inputs: int,
    num_levels: int,
    seed: int,
) -> tuple[InducingVariables, InducingVariables | None]:
    """Base features and orthogonal features.

    Args:
        features: Kinds of base and orthogonal features, or the inducing variables themselves; None for no orthogonal
            ones.
        sizes: Their numbers; None for 128, or fewer where fewer span all that such features can.
        kernel: The kernel.
        num_inputs: Number of inputs D.
        num_levels: Levels of activations and harmonics.
        seed: Seed of random points and directions.
    """
    maker = _Maker(kernel, num_inputs, num_levels)
    has_orthogonal = features[1] is not None and sizes[1] != 0
    shares_sphere = has_orthogonal and features[1] != "points" and not isinstance(features[1], InducingPoints)
    base = maker.make(features[0], sizes[0], seed, halve=shares_sphere)
    if not has_orthogonal:
        return base, None
    return base, maker.make(features[1], sizes[1], seed + 1, base=base)


class _Maker:
    def __init__(self, kernel: Kernel, num_inputs: int, num_levels: int) -> None:
        self.kernel, self.num_inputs, self.num_levels = kernel, num_inputs, num_levels

    def make(
        self,
        kind: Any,
        size: int | None,
        seed: int,
        *,
        base: InducingVariables | None = None,
        halve: bool = False,
    ) -> InducingVariables:
        """Features of a kind; `halve` leaves room on the sphere for orthogonal features of a similar kind."""
        if isinstance(kind, InducingVariables):
            return kind
        if kind == "points":
            points = np.random.default_rng(seed).normal(size=(size or DEFAULT_SIZE, self.num_inputs))
            return InducingPoints(points)
        zonal = self._zonal(kind)
        dimension = len(np.arange(self.num_inputs)[zonal.active_dims]) + 1
        if kind == "harmonics":
            return SphericalHarmonics(dimension, self._levels(zonal, dimension, size, base, halve))
        one_unit = ActivationFeatures(np.ones((1, self.num_inputs + 1)), kind, self.num_levels)
        one_unit.check_levels(zonal)
        rank = one_unit.rank(zonal)
        if size is None:
            used = num_features(base) if isinstance(base, (ActivationFeatures, SphericalHarmonics)) else 0
            room = max(1, rank // 2 if halve else rank - used)
            size = min(DEFAULT_SIZE, room)
        return ActivationFeatures(random_directions(size, self.num_inputs, seed=seed), kind, self.num_levels)

    def _zonal(self, kind: str) -> kernels.ZonalKernel:
        kernel = self.kernel
        if isinstance(kernel, gpflow.kernels.MultioutputKernel):
            kernel = kernel.latent_kernels[0]
        if not isinstance(kernel, kernels.ZonalKernel):
            raise ValueError(
                f"Features {kind!r} live on the sphere and need a zonal kernel of `keras_odgp.kernels`. Got "
                f"{type(kernel).__name__}: use such a kernel, or features 'points'."
            )
        return kernel

    def _levels(
        self,
        kernel: kernels.ZonalKernel,
        dimension: int,
        size: int | None,
        base: InducingVariables | None,
        halve: bool,
    ) -> list[int]:
        """Whole levels, lowest first, of at most `size` harmonics together; none that a harmonic base has."""
        levels = list(kernel.active_levels(self.num_levels))
        if isinstance(base, SphericalHarmonics):
            levels = [level for level in levels if level not in base.levels]
        if halve and size is None:
            levels = levels[:-1] or levels
        if not levels:
            raise ValueError(
                f"The base has all levels below num_levels={self.num_levels} that the kernel has: no orthogonal "
                "harmonics are left. Give a larger `num_levels`, or a smaller `num_inducing`."
            )
        counts = np.cumsum([num_harmonics(dimension, level) for level in levels])
        most = size or DEFAULT_SIZE
        if size is None and isinstance(base, ActivationFeatures):  # what units of the base have left of the levels
            most = min(most, max(1, int(counts[-1]) - num_features(base)))
        taken = int(np.searchsorted(counts, most, side="right"))
        if taken == 0 and (size is not None or counts[0] > LARGEST_LEVEL):
            raise ValueError(
                f"Harmonics come in whole levels, and level {levels[0]} of {dimension - 1} inputs has {counts[0]}. "
                f"Expected room for at least that many. Got: {most}."
            )
        return levels[: max(taken, 1)]
