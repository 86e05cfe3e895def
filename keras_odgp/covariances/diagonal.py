"""A diagonal covariance that is a linear operator, and a tensor to whoever needs one."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf
from check_shapes import register_get_shape


class DiagonalCovariance(tf.linalg.LinearOperatorDiag):
    """Diagonal covariance matrix: a `LinearOperatorDiag` that turns dense only where a tensor is asked for.

    Code that knows it reads `diag` and never builds the matrix; GPflow's own models, which do not know it, get the
    dense tensor by TensorFlow's usual conversion.

    Args:
        diag: The diagonal, shape `[M]`, positive.

    Example:

    >>> tf.linalg.cholesky(DiagonalCovariance(tf.constant([4.0, 9.0]))).numpy().tolist()
    [[2.0, 0.0], [0.0, 3.0]]
    """

    def __init__(self, diag: tf.Tensor, name: str = "DiagonalCovariance") -> None:
        super().__init__(diag, is_self_adjoint=True, is_positive_definite=True, name=name)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.asarray(self.to_dense(), dtype=dtype)


def _to_dense(value: DiagonalCovariance, dtype: Any = None, name: Any = None, as_ref: bool = False) -> tf.Tensor:
    del name, as_ref
    dense = value.to_dense()
    return dense if dtype is None else tf.cast(dense, dtype)


tf.register_tensor_conversion_function(DiagonalCovariance, _to_dense)


@register_get_shape(DiagonalCovariance)
def _get_shape(operator: DiagonalCovariance, context: Any) -> tuple[int | None, ...]:
    del context
    return tuple(operator.shape)
