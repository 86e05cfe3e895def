"""What Keras metrics of a model's output have in common."""

from __future__ import annotations

from typing import Any, ClassVar

import gpflow
import keras
import tensorflow as tf
from gpflow.likelihoods import Likelihood

from keras_odgp import saving
from keras_odgp.likelihoods import OutputLikelihood


class OutputMetric(keras.metrics.Metric):
    """Weighted mean over data of what `_scores` gives for each.

    Subclasses name the kinds of likelihood that make no sense in `_refused`: `"classes"` (softmax), `"binary"`
    (Bernoulli), `"other"` (any that is neither).
    """

    _refused: ClassVar[tuple[str, ...]] = ()

    def __init__(self, likelihood: str | Likelihood, name: str, dtype: Any, shape: tuple[int, ...] = ()) -> None:
        super().__init__(name=name, dtype=dtype)
        self.output_likelihood = OutputLikelihood(likelihood)
        if _kind(self.output_likelihood) in self._refused:
            raise ValueError(
                f"{type(self).__name__} has no meaning under the likelihood {self.output_likelihood.name!r}. "
                + (
                    "It scores class labels: give it 'bernoulli' or 'softmax'."
                    if "other" in self._refused
                    else "Score class labels with `keras_odgp.metrics.Accuracy` and `keras_odgp.metrics.NLPD`."
                )
            )
        # Sums of many terms lose digits in the float32 that Keras metrics have by default.
        self._total = self.add_variable(shape=shape, initializer="zeros", dtype="float64", name="total")
        self._count = self.add_variable(shape=(), initializer="zeros", dtype="float64", name="count")

    @property
    def likelihood(self) -> str | Likelihood:
        """The likelihood as given."""
        return self.output_likelihood.specification

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        output = tf.cast(self.output_likelihood.check_output(y_pred), tf.float64)
        scores = self._scores(y_true, output)
        lead = output.shape[:-2]
        weights = _broadcast_weights(1.0 if sample_weight is None else sample_weight, lead, tf.shape(output)[:-2])
        expanded = tf.reshape(weights, tf.concat([tf.shape(weights), [1] * len(self._total.shape)], axis=0))
        self._total.assign_add(tf.reduce_sum(expanded * scores, axis=list(range(len(lead)))))
        self._count.assign_add(tf.reduce_sum(weights))

    def _scores(self, y_true: Any, output: tf.Tensor) -> tf.Tensor:
        """A score for each datum: shape `[...]` for an output `[..., units, columns]`, then that of the total."""
        raise NotImplementedError

    def _finish(self, mean: tf.Tensor) -> tf.Tensor:
        """The value of the metric, from the mean of the scores."""
        return mean

    def result(self) -> tf.Tensor:
        mean = tf.math.divide_no_nan(*map(tf.convert_to_tensor, (self._total, self._count)))
        return tf.cast(self._finish(mean), self.dtype)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "likelihood": saving.serialise(self.likelihood)}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> OutputMetric:
        return cls(**{**config, "likelihood": saving.deserialise(config["likelihood"])})


class MomentMetric(OutputMetric):
    """A score of targets and the predictive mean and variance of y, averaged over units."""

    _refused: ClassVar[tuple[str, ...]] = ("classes", "binary")

    def _scores(self, y_true: Any, output: tf.Tensor) -> tf.Tensor:
        y = self.output_likelihood.align(y_true, output)
        mean, variance = self.output_likelihood.mean_and_variance(output)
        return tf.reduce_mean(self._score(y, mean, variance), axis=len(output.shape) - 2)

    def _score(self, y: tf.Tensor, mean: tf.Tensor, variance: tf.Tensor) -> tf.Tensor:
        raise NotImplementedError


def _kind(likelihood: OutputLikelihood) -> str:
    if likelihood.is_softmax:
        return "classes"
    is_binary = likelihood.name == "bernoulli" or isinstance(likelihood.specification, gpflow.likelihoods.Bernoulli)
    return "binary" if is_binary else "other"


def _broadcast_weights(weights: Any, lead: tf.TensorShape, sizes: tf.Tensor) -> tf.Tensor:
    weights = tf.cast(tf.convert_to_tensor(weights), tf.float64)
    shape = list(weights.shape)
    if len(shape) == len(lead) + 1 and shape[-1] == 1:
        weights, shape = weights[..., 0], shape[:-1]
    if len(shape) > len(lead) or any(None not in pair and pair[0] not in (1, pair[1]) for pair in zip(shape, lead)):
        raise ValueError(
            f"Expected sample weights of shape [N], [N, 1], or leading axes of {tuple(lead)}. Got shape {tuple(shape)}."
        )
    for _ in range(len(lead) - len(shape)):
        weights = weights[..., None]
    return tf.broadcast_to(weights, sizes)
