"""Covariances of an orthogonal set of features with a base set: the dispatcher `Kvu`, for all pairs of kinds."""

from __future__ import annotations

from typing import NoReturn, TypeAlias

import gpflow
import tensorflow as tf
from check_shapes import check_shapes
from gpflow.inducing_variables import InducingPoints, InducingVariables
from gpflow.utilities import Dispatcher

from keras_odgp.covariances import stationary
from keras_odgp.covariances.kufs import raise_needs_zonal
from keras_odgp.covariances.sphere import covariance, place
from keras_odgp.inducing import ActivationFeatures, SphericalHarmonics
from keras_odgp.kernels import ZonalKernel

Kvu = Dispatcher("Kvu")

SphereFeatures: TypeAlias = ActivationFeatures | SphericalHarmonics


@Kvu.register(InducingPoints, InducingPoints, gpflow.kernels.Kernel)
@check_shapes("return: [K, M]")
def Kvu_points_points(orthogonal: InducingPoints, base: InducingPoints, kernel: gpflow.kernels.Kernel) -> tf.Tensor:
    return stationary.evaluate(kernel, orthogonal.Z, base.Z)


@Kvu.register(InducingPoints, InducingVariables, gpflow.kernels.Kernel)
@check_shapes("return: [K, M]")
def Kvu_points_any(orthogonal: InducingPoints, base: InducingVariables, kernel: gpflow.kernels.Kernel) -> tf.Tensor:
    return tf.transpose(gpflow.covariances.Kuf(base, kernel, tf.convert_to_tensor(orthogonal.Z)))


@Kvu.register(InducingVariables, InducingPoints, gpflow.kernels.Kernel)
@check_shapes("return: [K, M]")
def Kvu_any_points(orthogonal: InducingVariables, base: InducingPoints, kernel: gpflow.kernels.Kernel) -> tf.Tensor:
    return gpflow.covariances.Kuf(orthogonal, kernel, tf.convert_to_tensor(base.Z))


@Kvu.register((ActivationFeatures, SphericalHarmonics), (ActivationFeatures, SphericalHarmonics), ZonalKernel)
@check_shapes("return: [K, M]")
def Kvu_sphere(orthogonal: SphereFeatures, base: SphereFeatures, kernel: ZonalKernel) -> tf.Tensor:
    first, *second = place(kernel, orthogonal) if orthogonal is base else place(kernel, orthogonal, base)
    return tf.convert_to_tensor(covariance(first, second[0] if second else first, kernel))


@Kvu.register((ActivationFeatures, SphericalHarmonics), (ActivationFeatures, SphericalHarmonics), gpflow.kernels.Kernel)
def Kvu_needs_zonal(orthogonal: InducingVariables, base: InducingVariables, kernel: gpflow.kernels.Kernel) -> NoReturn:
    raise_needs_zonal(orthogonal, kernel)
