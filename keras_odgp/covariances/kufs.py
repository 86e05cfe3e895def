"""Covariances of features with function values, registered on `gpflow.covariances.Kuf`."""

from __future__ import annotations

from typing import NoReturn

import gpflow
import tensorflow as tf
from check_shapes import check_shapes
from gpflow.covariances import Kuf

from keras_odgp.inducing import ActivationFeatures, SphericalHarmonics
from keras_odgp.kernels import ZonalKernel
from keras_odgp.kernels.zonal import outer_cosines, scale_outer
from keras_odgp.spherical import spherical_harmonics, zonal_series


@Kuf.register(ActivationFeatures, ZonalKernel, object)
@check_shapes("X: [batch..., N, D]", "return: [M, batch..., N]")
def Kuf_activations(feature: ActivationFeatures, kernel: ZonalKernel, X: tf.Tensor) -> tf.Tensor:
    X = tf.convert_to_tensor(X)
    expected = feature.weights.shape[1] - 1
    if X.shape[-1] not in (expected, None):
        raise ValueError(
            f"ActivationFeatures has weights of shape {tuple(feature.weights.shape)}, which fit {expected} inputs "
            f"(weights and a bias). "
            f"Got X with {X.shape[-1]} columns: give weights of shape [M, {X.shape[-1] + 1}]."
        )
    directions, norms = feature.project(kernel)
    inputs, radial = kernel.project(kernel.slice(X, None)[0])
    levels = feature.active_levels(kernel)
    dimension = directions.shape[1]
    cosines = outer_cosines(directions, inputs)  # [M, batch..., N]
    values = zonal_series(cosines, feature.coefficients(levels, dimension), levels=levels, dimension=dimension)
    return scale_outer(values, norms, radial)


@Kuf.register(SphericalHarmonics, ZonalKernel, object)
@check_shapes("X: [batch..., N, D]", "return: [M, batch..., N]")
def Kuf_harmonics(feature: SphericalHarmonics, kernel: ZonalKernel, X: tf.Tensor) -> tf.Tensor:
    feature.check_kernel(kernel)
    inputs, radial = kernel.project(kernel.slice(tf.convert_to_tensor(X), None)[0])
    if inputs.shape[-1] is None:
        inputs = tf.ensure_shape(inputs, [*inputs.shape[:-1], feature.dimension])
    if inputs.shape[-1] != feature.dimension:
        raise ValueError(
            f"SphericalHarmonics has dimension {feature.dimension}, which fits {feature.dimension - 1} inputs and a "
            f"bias. "
            f"Got X with {inputs.shape[-1] - 1} (active) columns: give dimension {inputs.shape[-1]}."
        )
    return radial * spherical_harmonics(inputs, feature.levels)


@Kuf.register((ActivationFeatures, SphericalHarmonics), gpflow.kernels.Kernel, object)
def Kuf_needs_zonal(
    feature: gpflow.inducing_variables.InducingVariables, kernel: gpflow.kernels.Kernel, X: tf.Tensor
) -> NoReturn:
    raise_needs_zonal(feature, kernel)


def raise_needs_zonal(feature: gpflow.inducing_variables.InducingVariables, kernel: gpflow.kernels.Kernel) -> NoReturn:
    """Raises: features on the sphere were given with a kernel that is none on the sphere."""
    raise TypeError(
        f"{type(feature).__name__} needs a zonal kernel (keras_odgp.kernels.ArcCosine, Matern12, Matern32, Matern52 or "
        f"SquaredExponential). Got {type(kernel).__module__}.{type(kernel).__name__}: use one of those, or inducing "
        f"points."
    )
