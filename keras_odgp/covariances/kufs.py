"""Covariances of features with function values, registered on `gpflow.covariances.Kuf`."""

from __future__ import annotations

from typing import NoReturn

import gpflow
import tensorflow as tf
from check_shapes import check_shapes
from gpflow.covariances import Kuf

from keras_odgp.covariances.sphere import covariance, place
from keras_odgp.inducing import ActivationFeatures, SphericalHarmonics
from keras_odgp.kernels import ZonalKernel


@Kuf.register((ActivationFeatures, SphericalHarmonics), ZonalKernel, object)
@check_shapes("X: [batch..., N, D]", "return: [M, batch..., N]")
def Kuf_sphere(feature: ActivationFeatures | SphericalHarmonics, kernel: ZonalKernel, X: tf.Tensor) -> tf.Tensor:
    features, points = place(kernel, feature, tf.convert_to_tensor(X))
    return covariance(features, points, kernel)


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
