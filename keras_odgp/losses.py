"""The loss of variational inference: with the divergences that GP layers add, the negative ELBO per datum."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf
from gpflow.likelihoods import Likelihood

from keras_odgp import saving
from keras_odgp.likelihoods import OutputLikelihood

__all__ = ["VariationalLoss"]


@keras.saving.register_keras_serializable(package="keras_odgp")
class VariationalLoss(keras.losses.Loss):
    """Negative expected log-likelihood of the targets under the marginals of the latent functions.

    Together with the divergences that the GP layers add, the loss of a model is its negative ELBO per datum.

    Args:
        likelihood: `"gaussian"`, `"student_t"`, `"gamma"`, `"beta"` (for a model that ends with the layer of that
            likelihood), `"bernoulli"`, `"poisson"`, `"exponential"`, `"softmax"` (integer labels), or a GPflow
            likelihood that has nothing to train.
        reduction: As in every Keras loss. Defaults to `"sum_over_batch_size"`, which makes it the mean over data.
        name: Name of the loss.
        dtype: Dtype in which it is computed. Defaults to float64; the value has the dtype of
            `keras.config.floatx()`, to which Keras adds other losses.

    Input shape:

    Targets `[...]`, `[..., 1]` or `[..., units]`; outputs `[..., units, 2]`, or `[..., units, 3]` with a dispersion.
    Axes that only the outputs have are averaged over.

    Example:

    >>> loss = keras_odgp.losses.VariationalLoss("bernoulli")
    >>> round(float(loss(np.array([1.0]), np.array([[[0.0, 1.0]]]))), 4)
    0.9941
    """

    def __init__(
        self,
        likelihood: str | Likelihood = "gaussian",
        reduction: str | None = "sum_over_batch_size",
        name: str = "variational_loss",
        dtype: Any = None,
    ) -> None:
        super().__init__(name=name, reduction=reduction, dtype="float64" if dtype is None else dtype)
        self.output_likelihood = OutputLikelihood(likelihood)

    @property
    def likelihood(self) -> str | Likelihood:
        """The likelihood as given."""
        return self.output_likelihood.specification

    def __call__(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> tf.Tensor:
        return keras.ops.cast(super().__call__(y_true, y_pred, sample_weight), keras.config.floatx())

    def call(self, y_true: tf.Tensor, y_pred: tf.Tensor) -> tf.Tensor:
        expectations = self.output_likelihood.variational_expectations(y_true, y_pred)
        return -self.output_likelihood.average_repeated(expectations, y_true, y_pred)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "likelihood": saving.serialise(self.likelihood), "dtype": self.dtype}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> VariationalLoss:
        return cls(**{**config, "likelihood": saving.deserialise(config["likelihood"])})
