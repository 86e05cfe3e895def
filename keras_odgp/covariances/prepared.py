"""Covariances of features with inputs for predictions: whatever depends on parameters alone is computed beforehand.

At a handful of inputs the time goes into the number of operations, most of which, in `Kuf`, have nothing to do with the
inputs: constraints of parameters, norms and directions of features. `FeatureMap.prepare` does these once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import gpflow
import tensorflow as tf
from gpflow.covariances import Kuf
from gpflow.inducing_variables import InducingPoints, InducingVariables
from gpflow.kernels import Kernel

from keras_odgp.covariances import sphere, stationary
from keras_odgp.covariances.stationary import active_columns
from keras_odgp.inducing import ActivationFeatures, SphericalHarmonics
from keras_odgp.kernels import ZonalKernel
from keras_odgp.spherical import spherical_harmonics, zonal_series

Tensors = tuple[tf.Tensor, ...]


class Prepared(NamedTuple):
    """What a feature map needs of kernel and features.

    Attributes:
        tensors: What it reads at every call.
        scales: Factors of the features of each set, shape `[M]`, by which its values are too small: they are left to
            whoever multiplies the values by a matrix.
    """

    tensors: Tensors
    scales: Tensors


class Features(NamedTuple):
    """Covariances of features with function values at N inputs, over the scales of features and inputs.

    Attributes:
        sets: Those of each set, shapes `[N, M]` and `[N, K]`.
        prior: Variances of the prior, over the square of the scale, shape `[N, 1]` or `[1, 1]`.
        scale: Factors of the inputs, and their squares, both of shape `[N, 1]`; None where they are 1.
    """

    sets: list[tf.Tensor]
    prior: tf.Tensor
    scale: tuple[tf.Tensor, tf.Tensor] | None = None

    def scaled(self) -> Features:
        """The same with the scale of the inputs multiplied in."""
        if self.scale is None:
            return self
        radial, square = self.scale
        return Features([radial * values for values in self.sets], square * self.prior)

    def cast(self, dtype: tf.DType) -> Features:
        """The same in another dtype."""
        scale = None if self.scale is None else (tf.cast(self.scale[0], dtype), tf.cast(self.scale[1], dtype))
        return Features([tf.cast(values, dtype) for values in self.sets], tf.cast(self.prior, dtype), scale)


class FeatureMap:
    """From inputs `[N, D]` to the covariances of all features of one or two sets with them.

    Args:
        kernel: Any kernel of one output.
        sets: Sets of features.
    """

    def __init__(self, kernel: Kernel, sets: Sequence[InducingVariables]) -> None:
        self._kernel, self._sets = kernel, sets

    def prepare(self) -> Prepared:
        """Everything that depends on parameters alone; here nothing."""
        return Prepared((), tuple(tf.ones([size], gpflow.default_float()) for size in self._sizes))

    @property
    def _sizes(self) -> list[int]:
        return [int(features.shape[0]) for features in self._sets]  # type: ignore[index, arg-type]

    def __call__(self, tensors: Tensors, X: tf.Tensor) -> Features:
        """The covariances, given what was prepared."""
        values = [tf.transpose(Kuf(features, self._kernel, X)) for features in self._sets]
        return Features(values, self._kernel(X, full_cov=False)[:, None])

    def _split(self, values: tf.Tensor) -> list[tf.Tensor]:
        """Values of all features `[N, F]`, by set."""
        return [values] if len(self._sets) == 1 else tf.split(values, self._sizes, axis=-1)


class _StationaryMap(FeatureMap):
    """Points under a stationary kernel of GPflow: one product with all of them."""

    def prepare(self) -> Prepared:
        points = tf.concat([tf.convert_to_tensor(features.Z) for features in self._sets], axis=0)
        variance = tf.reshape(tf.convert_to_tensor(self._kernel.variance), [1, 1])
        tensors = (*stationary.prepare(self._kernel, points), variance)
        return Prepared(tensors, super().prepare().scales)

    def __call__(self, tensors: Tensors, X: tf.Tensor) -> Features:
        *prepared, variance = tensors
        values = stationary.evaluate_prepared(self._kernel, prepared, variance, X)
        return Features(self._split(values), variance)


class _ZonalMap(FeatureMap):
    """Features on the sphere: products of the directions of inputs and features, and a function of each cosine."""

    _kernel: ZonalKernel

    def prepare(self) -> Prepared:
        directions, scales = zip(*(self._project(features) for features in self._sets))
        known = [part for part in directions if part is not None]
        dimension = next((part.shape[1] for part in known), None) or self._sets[0].dimension
        kernel = self._kernel
        prior = tf.reshape(kernel.variance * kernel.shape_at_one, [1, 1])
        products = (tf.concat(known, axis=0),) if self._is_one_product else tuple(known)
        hyperparameters = kernel.shape_hyperparameters()
        if len(hyperparameters) != kernel.num_shape_hyperparameters:
            raise ValueError(
                f"Expected `num_shape_hyperparameters` of {type(kernel).__name__} to be {len(hyperparameters)}, as "
                f"many as its `shape_hyperparameters()` returns. Got: {kernel.num_shape_hyperparameters}."
            )
        tensors = (kernel.roots(dimension - 1), prior, *hyperparameters, *products)
        return Prepared(tensors, scales)

    @property
    def _is_one_product(self) -> bool:
        return all(isinstance(features, InducingPoints) for features in self._sets)

    def _project(self, features: InducingVariables) -> tuple[tf.Tensor | None, tf.Tensor]:
        """Directions of features, if they have any, and the scales of their covariances."""
        kernel = self._kernel
        if isinstance(features, SphericalHarmonics):
            features.check_kernel(kernel)
            return None, tf.ones([sum(features.num_harmonics_per_level)], kernel.variance.dtype)
        if isinstance(features, ActivationFeatures):
            return features.project(kernel)
        directions, radial = kernel.project(kernel.slice(tf.convert_to_tensor(features.Z), None)[0])
        return directions, kernel.variance * radial

    def __call__(self, tensors: Tensors, X: tf.Tensor) -> Features:
        kernel = self._kernel
        roots, prior, *rest = tensors
        hyperparameters = tuple(rest[: kernel.num_shape_hyperparameters])
        products = iter(rest[kernel.num_shape_hyperparameters :])
        inputs = active_columns(kernel, X)
        if inputs.shape[-1] not in (None, roots.shape[0] - 1):
            raise ValueError(
                f"Expected inputs with {roots.shape[0] - 1} (active) columns, as the features have. Got "
                f"{inputs.shape[-1]} columns."
            )
        augmented = tf.pad(inputs, [[0, 0], [0, 1]], constant_values=1.0) * roots
        squares = tf.reduce_sum(tf.square(augmented), axis=-1, keepdims=True)  # [N, 1]
        norms = tf.sqrt(squares)
        directions = augmented / norms
        sets = self._sets[:1] if self._is_one_product else self._sets
        values = [self._values(features, directions, products, hyperparameters) for features in sets]
        scale = (kernel.radial_factor(norms), kernel.radial_factor(squares)) if kernel.radial_power else None
        return Features(self._split(values[0]) if self._is_one_product else values, prior, scale)

    def _values(
        self, features: InducingVariables, inputs: tf.Tensor, products: Iterator[tf.Tensor], hyperparameters: Tensors
    ) -> tf.Tensor:
        kernel = self._kernel
        if isinstance(features, SphericalHarmonics):
            return tf.transpose(spherical_harmonics(inputs, features.levels))
        directions = next(products)
        cosines = tf.matmul(inputs, directions, transpose_b=True)
        if isinstance(features, InducingPoints):
            return kernel.shape_function(cosines, hyperparameters)
        levels, dimension = features.active_levels(kernel), directions.shape[1]
        return zonal_series(cosines, features.coefficients(levels, dimension), levels=levels, dimension=dimension)


def feature_map(kernel: Kernel, sets: Sequence[InducingVariables]) -> FeatureMap:
    """The cheapest map there is for a kernel and some sets of features."""
    kinds = {type(features) for features in sets}
    is_zonal = sphere.is_known(kernel) and type(kernel).project is ZonalKernel.project
    if is_zonal and kinds <= {InducingPoints, ActivationFeatures, SphericalHarmonics}:
        return _ZonalMap(kernel, sets)
    if stationary.is_known(kernel) and kinds == {InducingPoints}:
        return _StationaryMap(kernel, sets)
    return FeatureMap(kernel, sets)
