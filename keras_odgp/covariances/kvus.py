"""Covariances of an orthogonal set of features with a base set: the dispatcher `Kvu`, for all pairs of kinds."""

from __future__ import annotations

from typing import NoReturn

import gpflow
import numpy as np
import tensorflow as tf
from check_shapes import check_shapes
from gpflow.covariances import Kuf
from gpflow.inducing_variables import InducingPoints, InducingVariables
from gpflow.utilities import Dispatcher

from keras_odgp.covariances import stationary
from keras_odgp.covariances.kufs import raise_needs_zonal
from keras_odgp.inducing import ActivationFeatures, SphericalHarmonics
from keras_odgp.kernels import ZonalKernel
from keras_odgp.kernels.zonal import scale_outer
from keras_odgp.spherical import spherical_harmonics, zonal_series

Kvu = Dispatcher("Kvu")


@Kvu.register(InducingPoints, InducingPoints, gpflow.kernels.Kernel)
@check_shapes("return: [K, M]")
def Kvu_points_points(orthogonal: InducingPoints, base: InducingPoints, kernel: gpflow.kernels.Kernel) -> tf.Tensor:
    return stationary.evaluate(kernel, orthogonal.Z, base.Z)


@Kvu.register(InducingPoints, InducingVariables, gpflow.kernels.Kernel)
@check_shapes("return: [K, M]")
def Kvu_points_any(orthogonal: InducingPoints, base: InducingVariables, kernel: gpflow.kernels.Kernel) -> tf.Tensor:
    return tf.transpose(Kuf(base, kernel, tf.convert_to_tensor(orthogonal.Z)))


@Kvu.register(InducingVariables, InducingPoints, gpflow.kernels.Kernel)
@check_shapes("return: [K, M]")
def Kvu_any_points(orthogonal: InducingVariables, base: InducingPoints, kernel: gpflow.kernels.Kernel) -> tf.Tensor:
    return Kuf(orthogonal, kernel, tf.convert_to_tensor(base.Z))


@Kvu.register(ActivationFeatures, ActivationFeatures, ZonalKernel)
@check_shapes("return: [K, M]")
def Kvu_activations_activations(
    orthogonal: ActivationFeatures, base: ActivationFeatures, kernel: ZonalKernel
) -> tf.Tensor:
    directions_v, norms_v = orthogonal.project(kernel)
    directions_u, norms_u = (directions_v, norms_v) if orthogonal is base else base.project(kernel)
    dimension = _common_dimension(directions_v.shape[1], directions_u.shape[1])
    levels = shared_levels(orthogonal, base, kernel)
    cosines = tf.matmul(directions_v, directions_u, transpose_b=True)
    if not levels:
        return tf.zeros_like(cosines)
    if orthogonal is base:
        cosines = tf.linalg.set_diag(cosines, tf.ones_like(norms_u))
    products = orthogonal.coefficients(levels, dimension) * base.coefficients(levels, dimension)
    values = zonal_series(
        cosines, _over_kernel(products, levels, dimension, kernel), levels=levels, dimension=dimension
    )
    return scale_outer(values, norms_v / kernel.variance, norms_u)


@Kvu.register(SphericalHarmonics, ActivationFeatures, ZonalKernel)
@check_shapes("return: [K, M]")
def Kvu_harmonics_activations(
    orthogonal: SphericalHarmonics, base: ActivationFeatures, kernel: ZonalKernel
) -> tf.Tensor:
    orthogonal.check_kernel(kernel)
    directions, norms = base.project(kernel)
    _common_dimension(orthogonal.dimension, directions.shape[1])
    shared = shared_levels(orthogonal, base, kernel)
    sigma = np.zeros(len(orthogonal.levels))
    sigma[[level in shared for level in orthogonal.levels]] = base.coefficients(shared, orthogonal.dimension)
    ratios = (
        tf.cast(_over_kernel(sigma, orthogonal.levels, orthogonal.dimension, kernel), norms.dtype) / kernel.variance
    )
    values = spherical_harmonics(directions, orthogonal.levels)
    return scale_outer(values, tf.repeat(ratios, orthogonal.num_harmonics_per_level), norms)


@Kvu.register(ActivationFeatures, SphericalHarmonics, ZonalKernel)
@check_shapes("return: [K, M]")
def Kvu_activations_harmonics(
    orthogonal: ActivationFeatures, base: SphericalHarmonics, kernel: ZonalKernel
) -> tf.Tensor:
    return tf.transpose(Kvu_harmonics_activations(base, orthogonal, kernel))


@Kvu.register(SphericalHarmonics, SphericalHarmonics, ZonalKernel)
@check_shapes("return: [K, M]")
def Kvu_harmonics_harmonics(orthogonal: SphericalHarmonics, base: SphericalHarmonics, kernel: ZonalKernel) -> tf.Tensor:
    base.check_kernel(kernel)
    _common_dimension(orthogonal.dimension, base.dimension)
    diagonal = gpflow.covariances.Kuu(orthogonal, kernel).diag
    return diagonal[:, None] * tf.constant(_same_harmonic(orthogonal, base), diagonal.dtype)


@Kvu.register((ActivationFeatures, SphericalHarmonics), (ActivationFeatures, SphericalHarmonics), gpflow.kernels.Kernel)
def Kvu_needs_zonal(orthogonal: InducingVariables, base: InducingVariables, kernel: gpflow.kernels.Kernel) -> NoReturn:
    raise_needs_zonal(orthogonal, kernel)


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


def _over_kernel(products: np.ndarray, levels: tuple[int, ...], dimension: int, kernel: ZonalKernel) -> tf.Tensor:
    """Products of feature coefficients over the kernel's: in float64 and by logarithms, since each may underflow."""
    with np.errstate(divide="ignore"):
        log_sizes = np.log(np.abs(products))
    return np.sign(products) * tf.exp(log_sizes - kernel.log_fourier_coefficients(levels, dimension))


def _same_harmonic(orthogonal: SphericalHarmonics, base: SphericalHarmonics) -> np.ndarray:
    """Matrix `[K, M]` with a one where both sets have the same harmonic."""

    def keys(feature: SphericalHarmonics) -> np.ndarray:
        counts = feature.num_harmonics_per_level
        index = np.concatenate([np.arange(count) for count in counts])
        return np.stack([np.repeat(feature.levels, counts), index], axis=1)

    return (keys(orthogonal)[:, None, :] == keys(base)[None, :, :]).all(axis=-1)
