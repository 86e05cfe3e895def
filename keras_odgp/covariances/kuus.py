"""Covariances among the features of one set, registered on `gpflow.covariances.Kuu`."""

from __future__ import annotations

from typing import NoReturn

import gpflow
import tensorflow as tf
from check_shapes import check_shapes
from gpflow.covariances import Kuu

from keras_odgp.covariances.diagonal import DiagonalCovariance
from keras_odgp.covariances.kufs import raise_needs_zonal
from keras_odgp.covariances.sphere import covariance, place
from keras_odgp.inducing import ActivationFeatures, SphericalHarmonics
from keras_odgp.kernels import ZonalKernel


@Kuu.register(ActivationFeatures, ZonalKernel)
@check_shapes("return: [M, M]")
def Kuu_activations(feature: ActivationFeatures, kernel: ZonalKernel, *, jitter: float = 0.0) -> tf.Tensor:
    (units,) = place(kernel, feature)
    exact = covariance(units, units, kernel)
    return exact + jitter * tf.eye(feature.num_inducing, dtype=exact.dtype)


@Kuu.register(SphericalHarmonics, ZonalKernel)
@check_shapes("return: [M, M]")
def Kuu_harmonics(feature: SphericalHarmonics, kernel: ZonalKernel, *, jitter: float = 0.0) -> DiagonalCovariance:
    (harmonics,) = place(kernel, feature)
    return DiagonalCovariance(covariance(harmonics, harmonics, kernel).diag + jitter)


@Kuu.register((ActivationFeatures, SphericalHarmonics), gpflow.kernels.Kernel)
def Kuu_needs_zonal(
    feature: gpflow.inducing_variables.InducingVariables, kernel: gpflow.kernels.Kernel, *, jitter: float = 0.0
) -> NoReturn:
    raise_needs_zonal(feature, kernel)
