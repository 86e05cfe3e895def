"""Inducing features that are spherical harmonics (VISH; Dutordoir et al., 2020)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import gpflow
import tensorflow as tf
from check_shapes import Shape

from keras_odgp.spherical import num_harmonics
from keras_odgp.spherical.gegenbauer import check_dimension
from keras_odgp.spherical.harmonics import check_levels

if TYPE_CHECKING:
    from keras_odgp.kernels import ZonalKernel


class SphericalHarmonics(gpflow.inducing_variables.InducingVariables):
    r"""Inducing features $\phi(x) = r^p Y_{\ell j}(\tilde x)$, all harmonics of some levels. Nothing in them is
    trained.

    Their covariance is diagonal. Need a zonal kernel (`keras_odgp.kernels`) that has all these levels.

    Args:
        dimension: Dimension of the space around the sphere: the number of (active) inputs + 1, at least 2.
        levels: A number L for the levels 0, ..., L - 1, or a list of levels, such as `kernel.active_levels(L)`.
        name: Name of the module.

    Example:

    >>> kernel = keras_odgp.kernels.ArcCosine()
    >>> features = keras_odgp.inducing.SphericalHarmonics(3, kernel.active_levels(6))
    >>> int(features.num_inducing)
    18

    Reference:

    - Dutordoir, Durrande and Hensman, Sparse Gaussian processes with spherical harmonic features, ICML 2020.
    """

    def __init__(self, dimension: int, levels: int | Sequence[int], *, name: str | None = None) -> None:
        super().__init__(name=name)
        self.dimension = check_dimension(dimension)
        self.levels = check_levels(levels)

    @property
    def num_harmonics_per_level(self) -> tuple[int, ...]:
        """Number of harmonics of each level."""
        return tuple(num_harmonics(self.dimension, level) for level in self.levels)

    @property
    def num_inducing(self) -> tf.Tensor:
        return tf.constant(sum(self.num_harmonics_per_level))

    @property
    def shape(self) -> Shape:
        # The number of input columns is open: a kernel with active_dims sees `dimension - 1` of them.
        return (sum(self.num_harmonics_per_level), None, 1)

    def check_kernel(self, kernel: ZonalKernel) -> None:
        """Raises if the kernel lacks a level: a harmonic of that level has no finite covariance."""
        dead = [level for level in self.levels if not kernel.has_level(level)]
        if dead:
            highest = max(self.levels) + 1
            raise ValueError(
                f"SphericalHarmonics has levels {list(self.levels)}, but the Fourier coefficients of "
                f"{type(kernel).__name__} are zero "
                f"at levels {dead}. Use levels from kernel.active_levels({highest}) = "
                f"{list(kernel.active_levels(highest))}."
            )
