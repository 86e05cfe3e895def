"""Scores as Keras metrics, which read predictions from a model's output."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf
from gpflow.likelihoods import Likelihood

from keras_odgp.metrics import formulas
from keras_odgp.metrics.base import MomentMetric, OutputMetric

_DOC = """

    Args:{extra}
        likelihood: {likelihood} As for `keras_odgp.losses.VariationalLoss`. Defaults to `{default}`.
        name: Name of the metric. Defaults to `"{name}"`.
        dtype: Dtype of the result. Defaults to `keras.config.floatx()`; sums are kept in float64.

    Input shape:

    Targets `[...]`, `[..., 1]` or `[..., units]`; outputs `[..., units, 2]`, or `[..., units, 3]` with a dispersion.
    Sample weights of shape `[N]`, `[N, 1]`, or any leading axes of the outputs. Axes that only the outputs have are
    averaged over.

    Example:

    """


def _document(
    summary: str,
    example: str,
    *,
    name: str,
    extra: str = "",
    likelihood: str = "Likelihood of the targets, not of classes.",
    default: str = '"gaussian"',
) -> str:
    values = {"name": name, "extra": extra and f"\n        {extra}", "likelihood": likelihood, "default": default}
    return summary + _DOC.format(**values) + example + "\n    "


@keras.saving.register_keras_serializable(package="keras_odgp")
class RMSE(MomentMetric):
    __doc__ = _document(
        "Root of the mean squared error of the predictive mean of y.",
        """>>> metric = keras_odgp.metrics.RMSE()
    >>> round(float(metric(np.array([1.0, 2.0]), np.array([[[1.0, 0.5, 0.1]], [[4.0, 0.5, 0.1]]]))), 4)
    1.4142""",
        name="rmse",
        likelihood="Likelihood of the targets, softmax excepted.",
    )
    _refused = ("classes",)

    def __init__(self, likelihood: str | Likelihood = "gaussian", name: str = "rmse", dtype: Any = None) -> None:
        super().__init__(likelihood, name, dtype)

    def _score(self, y: tf.Tensor, mean: tf.Tensor, variance: tf.Tensor) -> tf.Tensor:
        return formulas.squared_error(y, mean)

    def _finish(self, mean: tf.Tensor) -> tf.Tensor:
        return tf.sqrt(mean)


@keras.saving.register_keras_serializable(package="keras_odgp")
class MAE(MomentMetric):
    __doc__ = _document(
        "Mean absolute error of the predictive mean of y.",
        """>>> metric = keras_odgp.metrics.MAE()
    >>> float(metric(np.array([1.0, 2.0]), np.array([[[1.0, 0.5, 0.1]], [[5.0, 0.5, 0.1]]])))
    1.5""",
        name="mae",
        likelihood="Likelihood of the targets, softmax excepted.",
    )
    _refused = ("classes",)

    def __init__(self, likelihood: str | Likelihood = "gaussian", name: str = "mae", dtype: Any = None) -> None:
        super().__init__(likelihood, name, dtype)

    def _score(self, y: tf.Tensor, mean: tf.Tensor, variance: tf.Tensor) -> tf.Tensor:
        return formulas.absolute_error(y, mean)


@keras.saving.register_keras_serializable(package="keras_odgp")
class NLPD(OutputMetric):
    __doc__ = _document(
        "Negative logarithm of the predictive density (or probability) of y per datum, summed over its units.",
        """>>> metric = keras_odgp.metrics.NLPD("bernoulli")
    >>> round(float(metric(np.array([1.0, 1.0]), np.array([[[0.0, 1.0]], [[0.0, 1.0]]]))), 4)
    0.6931""",
        name="nlpd",
        likelihood="Likelihood of the targets.",
    )

    def __init__(self, likelihood: str | Likelihood = "gaussian", name: str = "nlpd", dtype: Any = None) -> None:
        super().__init__(likelihood, name, dtype)

    def _scores(self, y_true: Any, output: tf.Tensor) -> tf.Tensor:
        return -self.output_likelihood.log_density(y_true, output)


@keras.saving.register_keras_serializable(package="keras_odgp")
class CRPS(MomentMetric):
    __doc__ = _document(
        """Continuous ranked probability score, in the unit of y, of a Gaussian with the predictive mean and variance.

    Exact for a Gaussian likelihood; for others the predictive is replaced by the Gaussian of equal moments.""",
        """>>> metric = keras_odgp.metrics.CRPS()
    >>> round(float(metric(np.array([1.0, 2.0]), np.array([[[1.0, 0.5, 0.5]], [[4.0, 0.5, 0.5]]]))), 3)
    0.843""",
        name="crps",
    )

    def __init__(self, likelihood: str | Likelihood = "gaussian", name: str = "crps", dtype: Any = None) -> None:
        super().__init__(likelihood, name, dtype)

    def _score(self, y: tf.Tensor, mean: tf.Tensor, variance: tf.Tensor) -> tf.Tensor:
        return formulas.gaussian_crps(y, mean, variance)


@keras.saving.register_keras_serializable(package="keras_odgp")
class Coverage(MomentMetric):
    __doc__ = _document(
        """Fraction of targets in the central interval of a Gaussian with the predictive mean and variance of y.

    Exact for a Gaussian likelihood; for others the predictive is replaced by the Gaussian of equal moments.""",
        """>>> metric = keras_odgp.metrics.Coverage(0.9)
    >>> float(metric(np.array([1.0, 2.0]), np.array([[[1.0, 0.5, 0.5]], [[4.0, 0.5, 0.5]]])))
    0.5""",
        name="coverage",
        extra="level: Probability of the interval, and so the fraction to expect. Defaults to 0.95.",
    )

    def __init__(
        self,
        level: float = 0.95,
        likelihood: str | Likelihood = "gaussian",
        name: str = "coverage",
        dtype: Any = None,
    ) -> None:
        super().__init__(likelihood, name, dtype)
        self.level = formulas.check_level(level)

    def _score(self, y: tf.Tensor, mean: tf.Tensor, variance: tf.Tensor) -> tf.Tensor:
        return formulas.within(y, mean, variance, np.array([self.level]))[..., 0]

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "level": self.level}


@keras.saving.register_keras_serializable(package="keras_odgp")
class CalibrationError(MomentMetric):
    __doc__ = _document(
        """Mean absolute difference between the level of central intervals and the fraction of targets in them.

    The intervals are those of a Gaussian with the predictive mean and variance of y.""",
        """>>> metric = keras_odgp.metrics.CalibrationError()
    >>> round(float(metric(np.array([1.0, 2.0]), np.array([[[1.0, 0.5, 0.5]], [[4.0, 0.5, 0.5]]]))), 4)
    0.2368""",
        name="calibration_error",
        extra="num_levels: Number of levels, evenly spaced. Defaults to 19: 0.05, 0.1, ..., 0.95.",
    )

    def __init__(
        self,
        num_levels: int = 19,
        likelihood: str | Likelihood = "gaussian",
        name: str = "calibration_error",
        dtype: Any = None,
    ) -> None:
        self._levels = formulas.inner_levels(num_levels)
        super().__init__(likelihood, name, dtype, shape=(num_levels,))
        self.num_levels = num_levels

    def _score(self, y: tf.Tensor, mean: tf.Tensor, variance: tf.Tensor) -> tf.Tensor:
        return formulas.within(y, mean, variance, self._levels)

    def _finish(self, mean: tf.Tensor) -> tf.Tensor:
        return tf.reduce_mean(tf.abs(mean - self._levels))

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "num_levels": self.num_levels}


@keras.saving.register_keras_serializable(package="keras_odgp")
class Accuracy(OutputMetric):
    __doc__ = _document(
        """Fraction of labels that the predictive holds likeliest.

    Softmax probabilities are means over a random sample of the latent functions: near ties may fall either way.""",
        """>>> metric = keras_odgp.metrics.Accuracy("bernoulli")
    >>> float(metric(np.array([1.0, 1.0]), np.array([[[0.5, 1.0]], [[-0.5, 1.0]]])))
    0.5""",
        name="accuracy",
        likelihood='Likelihood of labels: `"softmax"` (integer labels) or `"bernoulli"`.',
        default='"softmax"',
    )
    _refused = ("other",)

    def __init__(self, likelihood: str | Likelihood = "softmax", name: str = "accuracy", dtype: Any = None) -> None:
        super().__init__(likelihood, name, dtype)

    def _scores(self, y_true: Any, output: tf.Tensor) -> tf.Tensor:
        labels = self.output_likelihood.align(y_true, output)
        probabilities, _ = self.output_likelihood.mean_and_variance(output)
        if self.output_likelihood.is_softmax:
            return formulas.class_hits(labels[..., 0], probabilities)
        return tf.reduce_mean(formulas.binary_hits(labels, probabilities), axis=-1)
