"""Kernels that depend on two inputs through their norms and the angle between them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import gpflow
import numpy as np
import tensorflow as tf
from check_shapes import check_shapes, inherit_check_shapes

from keras_odgp._private import check_active_dims
from keras_odgp.spherical.directions import split_norms
from keras_odgp.spherical.gegenbauer import check_dimension, check_num_levels


class ZonalKernel(gpflow.kernels.Kernel):
    r"""Base of the zonal kernels: $k(x, x') = \text{variance} \cdot (r r')^p \kappa(t)$.

    An input is scaled by `weight_variances`, extended by a bias coordinate, and split into its norm $r$ and its
    direction on the unit sphere; $t$ is the cosine between two directions:
    $[\sqrt{w} \odot x, \sqrt{b}] = r \tilde x$ and $t = \tilde x^\top \tilde x'$.

    A subclass gives the shape function $\kappa$, its derivative and its Fourier coefficients.

    Args:
        variance: Variance, a positive scalar. Defaults to 1.
        weight_variances: Variances w of the weights, a positive scalar or one for each (active) input. Defaults to 1.
        bias_variance: Variance b of the bias, a positive scalar. Defaults to 1.
        radial_power: The power p of the norms, a non-negative integer. Defaults to 1; with 0 the kernel sees
            directions only.
        active_dims: Columns of the input that the kernel sees, as in GPflow. Defaults to all.
        name: Name of the module.

    Example:

    >>> kernel = keras_odgp.kernels.Matern52(weight_variances=[1.0, 0.5])  # a kernel of two inputs
    >>> kernel(np.random.randn(4, 2), np.random.randn(3, 2)).shape.as_list()  # [N, N2]
    [4, 3]
    >>> kernel.fourier_coefficients(6, dimension=3).shape.as_list()
    [6]
    """

    def __init__(
        self,
        variance: Any = 1.0,
        weight_variances: Any = 1.0,
        bias_variance: Any = 1.0,
        *,
        radial_power: int = 1,
        active_dims: gpflow.kernels.base.ActiveDims | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(active_dims=active_dims, name=name)
        if not isinstance(radial_power, (int, np.integer)) or radial_power < 0:
            raise ValueError(
                f"Expected `radial_power` to be a non-negative integer (0 or 1 as a rule). Got: {radial_power!r}."
            )
        self.radial_power = int(radial_power)
        self.variance = positive_parameter("variance", variance)
        self.weight_variances = positive_parameter("weight_variances", weight_variances, max_rank=1)
        self.bias_variance = positive_parameter("bias_variance", bias_variance)
        check_active_dims(self, self.weight_variances)

    @property
    def ard(self) -> bool:
        """Whether each input has a weight variance of its own."""
        return bool(self.weight_variances.shape.ndims > 0)

    @check_shapes("X: [batch..., N, D]", "return[0]: [batch..., N, d]", "return[1]: [batch..., N]")
    def project(self, X: tf.Tensor, roots: tf.Tensor | None = None) -> tuple[tf.Tensor, tf.Tensor]:
        """Directions on the sphere and radial factors r^p of inputs (already sliced to the active columns).

        Who projects several arrays computes the `roots` once.
        """
        if self.ard and X.shape[-1] not in (None, self.weight_variances.shape[0]):
            raise ValueError(
                f"Expected inputs with {self.weight_variances.shape[0]} (active) columns, one for each of "
                f"`weight_variances`. "
                f"Got {X.shape[-1]} columns."
            )
        roots = self.roots(tf.shape(X)[-1]) if roots is None else roots
        augmented = tf.concat([X, tf.ones_like(X[..., :1])], axis=-1) * roots
        direction, radius = split_norms(augmented)
        return direction, self.radial_factor(radius)

    def roots(self, num_inputs: int | tf.Tensor) -> tf.Tensor:
        """Factors of the (active) inputs and of the bias, shape `[num_inputs + 1]`."""
        weights = tf.broadcast_to(tf.sqrt(self.weight_variances), [num_inputs])
        return tf.concat([weights, tf.sqrt(self.bias_variance)[None]], axis=0)

    def radial_factor(self, radius: tf.Tensor) -> tf.Tensor:
        """The power of norms that the kernel has."""
        return radius if self.radial_power == 1 else radius**self.radial_power

    @abstractmethod
    def _shape(self, t: tf.Tensor, hyperparameters: tuple[tf.Tensor, ...]) -> tf.Tensor:
        """The shape function itself; its derivative is given apart, because autodiff fails at t = 1 and -1."""

    @abstractmethod
    def _shape_derivative(self, t: tf.Tensor, hyperparameters: tuple[tf.Tensor, ...]) -> tf.Tensor:
        """Derivative of the shape function in t, finite on [-1, 1]."""

    num_shape_hyperparameters = 0

    def shape_hyperparameters(self) -> tuple[tf.Tensor, ...]:
        """The hyperparameters of the shape function, as tensors."""
        return ()

    def _hyperparameter_gradients(
        self, weighted_derivative: tf.Tensor, t: tf.Tensor, hyperparameters: tuple[tf.Tensor, ...]
    ) -> tuple[tf.Tensor, ...]:
        """Gradients in the hyperparameters, given the upstream gradient times the derivative in t."""
        del weighted_derivative, t, hyperparameters
        return ()

    def shape_function(self, t: tf.Tensor, hyperparameters: Sequence[tf.Tensor] | None = None) -> tf.Tensor:
        """The shape function at cosines t in [-1, 1], of any shape; differentiable on the whole closed interval.

        Its hyperparameters may be given as tensors, which spares their constraints.
        """

        @tf.custom_gradient
        def evaluate(t: tf.Tensor, *hyperparameters: tf.Tensor) -> tuple[tf.Tensor, Any]:
            def gradient(upstream: tf.Tensor) -> tuple[tf.Tensor, ...]:
                weighted = upstream * self._shape_derivative(t, hyperparameters)
                return weighted, *self._hyperparameter_gradients(weighted, t, hyperparameters)

            return self._shape(t, hyperparameters), gradient

        t = tf.convert_to_tensor(t, dtype=self.variance.dtype)
        return evaluate(t, *(self.shape_hyperparameters() if hyperparameters is None else hyperparameters))

    @property
    @abstractmethod
    def shape_at_one(self) -> float:
        """The shape function at t = 1, where it is largest."""

    @inherit_check_shapes
    def K(self, X: tf.Tensor, X2: tf.Tensor | None = None) -> tf.Tensor:
        direction, radial = self.project(X)
        if X2 is None:
            cosines = inner_cosines(direction)
            return self.variance * radial[..., :, None] * radial[..., None, :] * self.shape_function(cosines)
        direction2, radial2 = self.project(X2)
        cosines = outer_cosines(direction, direction2)  # [batch..., N, batch2..., N2]
        return scale_outer(self.shape_function(cosines), self.variance * radial, radial2)

    @inherit_check_shapes
    def K_diag(self, X: tf.Tensor) -> tf.Tensor:
        _, radial = self.project(X)
        return self.variance * self.shape_at_one * tf.square(radial)

    @abstractmethod
    def has_level(self, level: int) -> bool:
        """Whether the Fourier coefficient of a level is nonzero, decided by symmetry."""

    def active_levels(self, num_levels: int) -> tuple[int, ...]:
        """Levels below `num_levels` whose Fourier coefficient is not zero.

        Example:

        >>> keras_odgp.kernels.ArcCosine().active_levels(6)
        (0, 1, 2, 4)
        """
        return tuple(level for level in range(check_num_levels(num_levels)) if self.has_level(level))

    @abstractmethod
    def log_fourier_coefficients(self, levels: tuple[int, ...], dimension: int) -> tf.Tensor:
        """Logarithms of the Fourier coefficients of active levels, shape `[len(levels)]`, always float64."""

    def fourier_coefficients(self, num_levels: int, dimension: int) -> tf.Tensor:
        """Fourier coefficients of the shape function, differentiable in the kernel's hyperparameters.

        The eigenvalues of the kernel on the sphere are these times `variance`.

        Args:
            num_levels: Number of levels L: the levels 0, ..., L - 1.
            dimension: Dimension of the space around the sphere, the number of (active) inputs + 1.

        Returns:
            Tensor of shape `[L]`, zero at the levels that are not active.
        """
        levels = self.active_levels(num_levels)
        values = tf.exp(self.log_fourier_coefficients(levels, check_dimension(dimension)))
        scattered = tf.scatter_nd([[level] for level in levels], values, [num_levels])
        return tf.cast(scattered, self.variance.dtype)


def positive_parameter(name: str, value: Any, max_rank: int = 0) -> gpflow.Parameter:
    """A positive GPflow parameter of at most the given rank; an existing parameter is kept."""
    if isinstance(value, gpflow.Parameter):
        return value
    array = np.asarray(value, dtype=np.float64)
    if array.ndim > max_rank or not (np.isfinite(array).all() and (array > 0).all()):
        kind = (
            "a positive scalar"
            if max_rank == 0
            else "a positive scalar or a vector of positive numbers, one for each input"
        )
        raise ValueError(f"Expected `{name}` to be {kind}. Got: {value!r}.")
    return gpflow.Parameter(value, transform=gpflow.utilities.positive())


def inner_cosines(directions: tf.Tensor) -> tf.Tensor:
    """Inner products of unit vectors `[..., N, d]` among themselves: shape `[..., N, N]`.

    Exact on the diagonal: rounding there would be magnified by the square root in the chord.
    """
    cosines = tf.matmul(directions, directions, transpose_b=True)
    return tf.linalg.set_diag(cosines, tf.ones_like(directions[..., 0]))


def outer_cosines(left: tf.Tensor, right: tf.Tensor) -> tf.Tensor:
    """Inner products of all vectors `[..., d]` of one array with all of another: shape `[*left.shape[:-1],
    *right.shape[:-1]]`.
    """
    dimension = tf.shape(left)[-1]
    flat = tf.matmul(tf.reshape(left, [-1, dimension]), tf.reshape(right, [-1, dimension]), transpose_b=True)
    if len(left.shape) == len(right.shape) == 2:
        return flat
    cosines = tf.reshape(flat, tf.concat([tf.shape(left)[:-1], tf.shape(right)[:-1]], axis=0))
    return tf.ensure_shape(cosines, left.shape[:-1] + right.shape[:-1])


def scale_outer(values: tf.Tensor, left: tf.Tensor, right: tf.Tensor) -> tf.Tensor:
    """Multiplies `values` by the outer product of two arrays: `values[i, j] * left[i] * right[j]`.

    The same as with broadcasting, but its gradient goes over the large array half as often.

    Args:
        values: Shape `[*left.shape, *right.shape]`.
        left: Any shape.
        right: Any shape.

    Returns:
        Tensor of the shape of `values`.
    """

    @tf.custom_gradient
    def multiply(values: tf.Tensor, left: tf.Tensor, right: tf.Tensor) -> tuple[tf.Tensor, Any]:
        def gradient(upstream: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
            weighted = upstream * values
            return (
                left[:, None] * (right * upstream),
                tf.linalg.matvec(weighted, right),
                tf.linalg.matvec(weighted, left, transpose_a=True),
            )

        return left[:, None] * (right * values), gradient

    if len(values.shape) == 2:
        return multiply(values, left, right)
    left, right = tf.reshape(left, [-1]), tf.reshape(right, [-1])
    scaled = multiply(tf.reshape(values, [tf.size(left), tf.size(right)]), left, right)
    return tf.ensure_shape(tf.reshape(scaled, tf.shape(values)), values.shape)
