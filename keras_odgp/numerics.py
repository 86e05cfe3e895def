"""Numerical care in one place: jitter, a Cholesky factorisation that does not fail silently, the variance floor,
dtypes.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

import gpflow
import numpy as np
import tensorflow as tf

__all__ = ["add_jitter", "cholesky", "float_context", "floor_variance", "jitter_scope", "relative_jitter"]

RELATIVE_JITTER = {tf.float64: 1e-8, tf.float32: 1e-5}
LARGEST_JITTER = 1e-2
VARIANCE_FLOOR = {tf.float64: 1e-15, tf.float32: 1e-9}

_config_lock = threading.RLock()
_jitter_override: ContextVar[float | None] = ContextVar("jitter_override", default=None)


@contextlib.contextmanager
def jitter_scope(relative: float) -> Iterator[None]:
    """Within the scope, covariances get this relative jitter instead of the default of their dtype.

    Args:
        relative: Jitter relative to the diagonal; 0 for none. In compiled functions the value at tracing counts.

    Example:

    >>> with keras_odgp.numerics.jitter_scope(0.0):
    ...     keras_odgp.numerics.relative_jitter(tf.float64)
    0.0
    """
    if not 0.0 <= relative < 1.0:
        raise ValueError(f"Expected a relative jitter in [0, 1). Got: {relative!r}.")
    token = _jitter_override.set(float(relative))
    try:
        yield
    finally:
        _jitter_override.reset(token)


def relative_jitter(dtype: tf.DType) -> float:
    """Jitter relative to the diagonal, for a dtype, unless a scope overrides it.

    Example:

    >>> keras_odgp.numerics.relative_jitter(tf.float64)
    1e-08
    """
    override = _jitter_override.get()
    return _default_jitter(dtype) if override is None else override


def _default_jitter(dtype: tf.DType) -> float:
    return RELATIVE_JITTER.get(tf.as_dtype(dtype), RELATIVE_JITTER[tf.float32])


def add_jitter(K: tf.Tensor) -> tf.Tensor:
    """Raises each diagonal entry by its share of the relative jitter.

    Relative to the entry, not to the mean of the diagonal: then the scale of a single feature (the norm of a weight
    vector, the level of a harmonic) changes nothing, and a feature of small variance is not drowned in the jitter of
    a large one. It equals independent noise on the features, so explained variance can only shrink.

    Example:

    >>> K = tf.constant([[4.0, 1.0], [1.0, 2.0]], tf.float64)  # [..., M, M]
    >>> (keras_odgp.numerics.add_jitter(K) - K).numpy().diagonal().round(10).tolist()
    [4e-08, 2e-08]
    """
    return K * (1.0 + relative_jitter(K.dtype) * identity_like(K))


def identity_like(K: tf.Tensor) -> tf.Tensor:
    """The identity of the last two dimensions of K.

    A constant of the graph wherever the size is static. Multiplying by it needs fewer operations, also in the gradient,
    than taking out a diagonal and putting it back.
    """
    return tf.eye(K.shape[-1] or tf.shape(K)[-1], dtype=K.dtype)


def cholesky(K: tf.Tensor, *, reference: tf.Tensor | None = None, name: str = "K") -> tf.Tensor:
    """Cholesky factor; if the factorisation fails, the jitter is raised tenfold, step by step, inside the graph.

    Args:
        K: Symmetric matrices, shape `[..., M, M]`.
        reference: Diagonal to which the jitter is relative, shape `[..., M]`. Defaults to that of `K`.
        name: What the matrix is called in the error if no jitter up to 1 % helps.

    Returns:
        Lower triangular matrices, shape `[..., M, M]`; twice differentiable.

    Example:

    >>> keras_odgp.numerics.cholesky(tf.constant([[4.0, 2.0], [2.0, 2.0]], tf.float64)).numpy().tolist()
    [[2.0, 0.0], [1.0, 1.0]]
    """

    @tf.custom_gradient
    def factorise(K: tf.Tensor) -> tuple[tf.Tensor, Any]:
        L = factor(K, reference=reference, name=name)
        return L, lambda upstream: _factor_gradient(L, upstream)

    return factorise(K)


def cholesky_gradient(L: tf.Tensor, X: tf.Tensor) -> tf.Tensor:
    """Symmetric gradient in K = L L^T from the matrix X, of which only the lower triangle is read.

    X is L^T times the gradient in L. For solves Y = L^-1 Z it is minus the sum of (gradient in Y) Y^T.
    """
    lower = tf.linalg.band_part(X, -1, 0) * (1.0 - 0.5 * identity_like(X))
    symmetric = lower + tf.linalg.matrix_transpose(lower)
    half = tf.linalg.triangular_solve(L, symmetric, adjoint=True)
    return 0.5 * tf.linalg.triangular_solve(L, tf.linalg.matrix_transpose(half), adjoint=True)


def factor(K: tf.Tensor, *, reference: tf.Tensor | None, name: str) -> tf.Tensor:
    """`cholesky`, differentiable once: for use within a custom gradient, whose own derivatives it allows.

    TensorFlow would otherwise make gradients of the retries whenever a step is traced, which took most of that time.
    """

    @tf.custom_gradient
    def factorise(K: tf.Tensor) -> tuple[tf.Tensor, Any]:
        L = _factor(tf.stop_gradient(K), reference, name)
        return L, lambda upstream: _factor_gradient(L, upstream)

    return factorise(K)


def _factor_gradient(L: tf.Tensor, upstream: tf.Tensor) -> tf.Tensor:
    return cholesky_gradient(L, tf.matmul(L, tf.linalg.band_part(upstream, -1, 0), transpose_a=True))


def _factor(K: tf.Tensor, reference: tf.Tensor | None, name: str) -> tf.Tensor:
    diagonal = tf.linalg.diag_part(K) if reference is None else reference
    first = max(10.0 * relative_jitter(K.dtype), _default_jitter(K.dtype))

    def failed(L: tf.Tensor) -> tf.Tensor:
        return tf.logical_not(tf.reduce_all(tf.math.is_finite(tf.linalg.diag_part(L))))

    def retry(jitter: tf.Tensor, L: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        del L
        return 10.0 * jitter, tf.linalg.cholesky(tf.linalg.set_diag(K, tf.linalg.diag_part(K) + jitter * diagonal))

    def retry_while_failed(L: tf.Tensor) -> tf.Tensor:
        start = (tf.constant(first, K.dtype), L)
        return tf.while_loop(lambda jitter, L: failed(L) & (jitter <= LARGEST_JITTER), retry, start)[1]

    L = apart(retry_while_failed)(tf.linalg.cholesky(K))
    message = (
        f"The Cholesky factorisation of {name} failed: the matrix has NaN or is not positive definite, even with a "
        f"relative jitter of "
        f"{LARGEST_JITTER}. Look for NaN in inputs or parameters, standardise the inputs, or lower the learning rate."
    )
    with tf.control_dependencies([tf.debugging.Assert(tf.logical_not(failed(L)), [message])]):
        return tf.identity(L)


def apart(function: Any) -> Any:
    """The function, its control flow kept out of the graph around it, which would be scheduled slowly with it."""
    if tf.executing_eagerly():
        return function
    return tf.function(function, experimental_attributes={"_noinline": True})


def floor_variance(variance: tf.Tensor) -> tf.Tensor:
    """Variances lifted to a small positive floor: what rounding left below it is zero in truth.

    Example:

    >>> keras_odgp.numerics.floor_variance(tf.constant([-1e-18, 0.5], tf.float64)).numpy().tolist()  # of any shape
    [1e-15, 0.5]
    """
    return tf.maximum(variance, VARIANCE_FLOOR.get(variance.dtype, VARIANCE_FLOOR[tf.float32]))


@contextlib.contextmanager
def float_context(dtype: Any) -> Iterator[None]:
    """Within it, GPflow makes parameters and constants of this dtype, all its other settings unchanged.

    One thread at a time: the settings of GPflow belong to the process, and contexts that overlap would leave it with
    those of another. For making objects: do not train within it.

    Example:

    >>> with keras_odgp.numerics.float_context("float32"):
    ...     parameter = gpflow.Parameter(1.0)  # of shape []
    >>> parameter.dtype.name
    'float32'
    """
    with _turn():
        config = dataclasses.replace(gpflow.config.config(), float=np.dtype(tf.as_dtype(dtype).as_numpy_dtype).type)
        with gpflow.config.as_context(config):
            yield


def _turn() -> contextlib.AbstractContextManager[Any]:
    """The lock; but replicas take turns already, while the thread that started them waits, perhaps within a context."""
    is_replica = tf.distribute.has_strategy() and not tf.distribute.in_cross_replica_context()
    return contextlib.nullcontext() if is_replica else _config_lock
