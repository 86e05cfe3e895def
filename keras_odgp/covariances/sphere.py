r"""Features and inputs on the sphere of a zonal kernel, and the covariances between them.

A function under such a kernel is $f(x) = a(x)\, g(\tilde x)$, with the amplitude $a(x) = \sqrt{v}\, r^p$ and $g$ a
process on the sphere alone. Likewise, every feature is an amplitude times a feature of $g$. So any covariance is a
unit covariance, which depends on directions only, times the amplitudes of its row and its column.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

import numpy as np
import tensorflow as tf
from gpflow.inducing_variables import InducingVariables
from gpflow.kernels import Kernel
from gpflow.utilities import Dispatcher

from keras_odgp.covariances.diagonal import DiagonalCovariance
from keras_odgp.covariances.stationary import active_columns
from keras_odgp.inducing import ActivationFeatures, SphericalHarmonics
from keras_odgp.kernels import ZonalKernel
from keras_odgp.kernels.zonal import inner_cosines, outer_cosines, scale_outer
from keras_odgp.spherical import spherical_harmonics, zonal_series


class Points(NamedTuple):
    """Function values at inputs, or inducing points.

    Attributes:
        scale: The factors r^p, shape `[..., N]`.
        directions: Shape `[..., N, d]`.
        num_columns: Number of columns of the inputs, active or not.
    """

    scale: tf.Tensor
    directions: tf.Tensor
    num_columns: int | None


class Units(NamedTuple):
    """Activation features: the factors ||z||^p of their weights, shape `[M]`, and directions `[M, d]`."""

    scale: tf.Tensor
    directions: tf.Tensor
    features: ActivationFeatures


class Harmonics(NamedTuple):
    """Spherical harmonics, of scale 1."""

    features: SphericalHarmonics


SphereSet: TypeAlias = Points | Units | Harmonics


def is_known(kernel: Kernel) -> bool:
    """Whether covariances between points are those of this module: a kernel derived from ours may have its own."""
    return isinstance(kernel, ZonalKernel) and all(
        getattr(type(kernel), name) is getattr(ZonalKernel, name) for name in ("K", "K_diag")
    )


def place(kernel: ZonalKernel, *sets: InducingVariables | tf.Tensor) -> list[SphereSet]:
    """Sets of features, and arrays of inputs `[..., D]`, on the sphere of a kernel, whose parameters are read once."""
    roots = kernel.roots(kernel.weight_variances.shape[0]) if kernel.ard else None
    placed: list[SphereSet] = []
    for part in sets:
        if isinstance(part, SphericalHarmonics):
            part.check_kernel(kernel)
            placed.append(Harmonics(part))
        elif isinstance(part, ActivationFeatures):
            directions, norms = part.project(kernel)
            placed.append(Units(norms, directions, part))
        else:
            inputs = tf.convert_to_tensor(part.Z if isinstance(part, InducingVariables) else part)
            directions, radial = kernel.project(active_columns(kernel, inputs), roots)
            placed.append(Points(radial, directions, inputs.shape[-1]))
    return placed


def covariance(first: SphereSet, second: SphereSet, kernel: ZonalKernel) -> tf.Tensor | DiagonalCovariance:
    """Covariances of two sets, shape `[*first, *second]`; a `DiagonalCovariance` of harmonics among themselves.

    They grow with the variance v of the kernel between points, and fall with it between features of the sphere, whose
    covariances with points do not depend on it.
    """
    unit = unit_covariance(first, second, kernel)
    if isinstance(first, Harmonics) and isinstance(second, Harmonics):
        is_diagonal = isinstance(unit, DiagonalCovariance)
        return DiagonalCovariance(unit.diag / kernel.variance) if is_diagonal else unit / kernel.variance
    if isinstance(second, Harmonics):
        return tf.linalg.matrix_transpose(covariance(second, first, kernel))
    num_points = sum(isinstance(part, Points) for part in (first, second))
    right = second.scale if num_points == 1 else second.scale * kernel.variance ** (num_points - 1)
    return unit * right if isinstance(first, Harmonics) else scale_outer(unit, first.scale, right)


def amplitude(part: SphereSet, kernel: ZonalKernel) -> tf.Tensor:
    """What a set has to be multiplied by, other than its directions, shape `[N]` or `[]`.

    Covariances are unit covariances times the amplitudes of both sets.
    """
    deviation = tf.sqrt(kernel.variance)
    if isinstance(part, Points):
        return deviation * part.scale
    return (1.0 if isinstance(part, Harmonics) else part.scale) / deviation


unit_covariance = Dispatcher("unit_covariance")
"""`unit_covariance(first, second, kernel)`: covariances over their scales, shape `[*first, *second]`."""


@unit_covariance.register(Points, Points, ZonalKernel)
def _points_points(first: Points, second: Points, kernel: ZonalKernel) -> tf.Tensor:
    if first is second:
        return kernel.shape_function(inner_cosines(first.directions))
    return kernel.shape_function(outer_cosines(first.directions, second.directions))


@unit_covariance.register(Units, Points, ZonalKernel)
def _units_points(first: Units, second: Points, kernel: ZonalKernel) -> tf.Tensor:
    _check_columns(first.features, second)
    return _series(outer_cosines(first.directions, second.directions), first, kernel)


@unit_covariance.register(Points, Units, ZonalKernel)
def _points_units(first: Points, second: Units, kernel: ZonalKernel) -> tf.Tensor:
    _check_columns(second.features, first)
    return _series(outer_cosines(first.directions, second.directions), second, kernel)


def _series(cosines: tf.Tensor, units: Units, kernel: ZonalKernel) -> tf.Tensor:
    levels, dimension = units.features.active_levels(kernel), units.directions.shape[1]
    weights = units.features.coefficients(levels, dimension)
    return zonal_series(cosines, weights, levels=levels, dimension=dimension)


def _check_columns(features: ActivationFeatures, points: Points) -> None:
    expected = features.weights.shape[1] - 1
    if points.num_columns not in (expected, None):
        raise ValueError(
            f"ActivationFeatures has weights of shape {tuple(features.weights.shape)}, which fit {expected} inputs "
            f"(weights and a bias). "
            f"Got X with {points.num_columns} columns: give weights of shape [M, {points.num_columns + 1}]."
        )


@unit_covariance.register(Units, Units, ZonalKernel)
def _units_units(first: Units, second: Units, kernel: ZonalKernel) -> tf.Tensor:
    dimension = _common_dimension(first.directions.shape[1], second.directions.shape[1])
    levels = shared_levels(first.features, second.features, kernel)
    if first is second:
        cosines = inner_cosines(first.directions)
    else:
        cosines = outer_cosines(first.directions, second.directions)
    if not levels:
        return tf.zeros_like(cosines)
    products = first.features.coefficients(levels, dimension) * second.features.coefficients(levels, dimension)
    weights = over_kernel(products, levels, dimension, kernel)
    return zonal_series(cosines, weights, levels=levels, dimension=dimension)


@unit_covariance.register(Harmonics, Points, ZonalKernel)
def _harmonics_points(first: Harmonics, second: Points, kernel: ZonalKernel) -> tf.Tensor:
    directions, dimension = second.directions, first.features.dimension
    if directions.shape[-1] is None:
        directions = tf.ensure_shape(directions, [*directions.shape[:-1], dimension])
    if directions.shape[-1] != dimension:
        raise ValueError(
            f"SphericalHarmonics has dimension {dimension}, which fits {dimension - 1} inputs and a bias. "
            f"Got X with {directions.shape[-1] - 1} (active) columns: give dimension {directions.shape[-1]}."
        )
    return spherical_harmonics(directions, first.features.levels)


@unit_covariance.register(Harmonics, Units, ZonalKernel)
def _harmonics_units(first: Harmonics, second: Units, kernel: ZonalKernel) -> tf.Tensor:
    harmonics = first.features
    _common_dimension(harmonics.dimension, second.directions.shape[1])
    shared = shared_levels(harmonics, second.features, kernel)
    sigma = np.zeros(len(harmonics.levels))
    sigma[[level in shared for level in harmonics.levels]] = second.features.coefficients(shared, harmonics.dimension)
    values = spherical_harmonics(second.directions, harmonics.levels)
    ratios = tf.cast(over_kernel(sigma, harmonics.levels, harmonics.dimension, kernel), values.dtype)
    return tf.repeat(ratios, harmonics.num_harmonics_per_level)[:, None] * values


@unit_covariance.register(Points, Harmonics, ZonalKernel)
@unit_covariance.register(Units, Harmonics, ZonalKernel)
def _any_harmonics(first: Points | Units, second: Harmonics, kernel: ZonalKernel) -> tf.Tensor:
    return tf.linalg.matrix_transpose(unit_covariance(second, first, kernel))


@unit_covariance.register(Harmonics, Harmonics, ZonalKernel)
def _harmonics_harmonics(first: Harmonics, second: Harmonics, kernel: ZonalKernel) -> DiagonalCovariance | tf.Tensor:
    harmonics = first.features
    _common_dimension(harmonics.dimension, second.features.dimension)
    log_coefficients = kernel.log_fourier_coefficients(harmonics.levels, harmonics.dimension)
    inverse = tf.cast(tf.exp(-log_coefficients), kernel.variance.dtype)
    diagonal = tf.repeat(inverse, harmonics.num_harmonics_per_level)
    if first is second:
        return DiagonalCovariance(diagonal)
    return diagonal[:, None] * tf.constant(_same_harmonic(harmonics, second.features), diagonal.dtype)


def shared_levels(
    first: ActivationFeatures | SphericalHarmonics, second: ActivationFeatures | SphericalHarmonics, kernel: ZonalKernel
) -> tuple[int, ...]:
    """Levels that two sets of features on the sphere have in common. If there are none, their covariance is zero.

    Example:

    >>> kernel = keras_odgp.kernels.Matern52()
    >>> units = keras_odgp.inducing.ActivationFeatures(np.random.randn(4, 3), "relu", num_levels=6)
    >>> harmonics = keras_odgp.inducing.SphericalHarmonics(3, [1, 3])
    >>> [int(level) for level in keras_odgp.covariances.shared_levels(units, harmonics, kernel)]
    [1]
    """

    def levels(feature: ActivationFeatures | SphericalHarmonics) -> tuple[int, ...]:
        return feature.levels if isinstance(feature, SphericalHarmonics) else feature.active_levels(kernel)

    return tuple(level for level in levels(first) if level in levels(second))


def _common_dimension(orthogonal: int, base: int) -> int:
    if orthogonal != base:
        raise ValueError(
            f"Expected both sets of features to live on the same sphere. Got {orthogonal - 1} inputs for the "
            f"orthogonal features "
            f"and {base - 1} for the base features."
        )
    return base


def over_kernel(
    products: np.ndarray, levels: tuple[int, ...], dimension: int, kernel: ZonalKernel
) -> np.ndarray | tf.Tensor:
    """Products of feature coefficients over the kernel's: in float64 and by logarithms, since each may underflow."""
    with np.errstate(divide="ignore"):
        log_sizes = np.log(np.abs(products))
    log_coefficients = kernel.log_fourier_coefficients(levels, dimension)
    if type(kernel).shape_hyperparameters is ZonalKernel.shape_hyperparameters:  # constants need no gradient
        known = tf.get_static_value(log_coefficients)
        if known is not None:
            return np.sign(products) * np.exp(log_sizes - known)
    return np.sign(products) * tf.exp(log_sizes - log_coefficients)


def _same_harmonic(orthogonal: SphericalHarmonics, base: SphericalHarmonics) -> np.ndarray:
    """Matrix `[K, M]` with a one where both sets have the same harmonic."""

    def keys(feature: SphericalHarmonics) -> np.ndarray:
        counts = feature.num_harmonics_per_level
        index = np.concatenate([np.arange(count) for count in counts])
        return np.stack([np.repeat(feature.levels, counts), index], axis=1)

    return (keys(orthogonal)[:, None, :] == keys(base)[None, :, :]).all(axis=-1)
