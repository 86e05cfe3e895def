"""Scores of arrays of predictions."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from keras_odgp.metrics import formulas


def rmse(y: Any, mean: Any) -> float:
    """Root of the mean squared error.

    Args:
        y: Targets, `[N]` or `[N, units]`.
        mean: Predictions, of the same shape.

    Returns:
        A number.

    Example:

    >>> round(keras_odgp.metrics.rmse([1.0, 2.0], [1.0, 4.0]), 4)
    1.4142
    """
    return float(np.sqrt(_mean(formulas.squared_error(*_check(y, mean)))))


def mae(y: Any, mean: Any) -> float:
    """Mean absolute error; arguments as for `rmse`.

    Example:

    >>> keras_odgp.metrics.mae([1.0, 2.0], [1.0, 4.0])
    1.0
    """
    return _mean(formulas.absolute_error(*_check(y, mean)))


def nlpd(y: Any, mean: Any, variance: Any) -> float:
    """Negative logarithm of the Gaussian predictive density of y, per datum.

    Args:
        y: Targets, `[N]`, or `[N, units]`, of which each row is one datum: logarithms are summed over its units.
        mean: Predictive means, of the same shape.
        variance: Predictive variances of y, of the same shape, or a number.

    Returns:
        A number.

    Example:

    >>> round(keras_odgp.metrics.nlpd([1.0, 2.0], [1.0, 4.0], 1.0), 4)
    1.9189
    """
    values = formulas.gaussian_nlpd(*_check(y, mean, variance))
    return _mean(tf.reduce_sum(values, axis=-1) if values.shape.rank > 1 else values)


def crps(y: Any, mean: Any, variance: Any) -> float:
    """Continuous ranked probability score of Gaussian predictions, mean over all entries, in the unit of y.

    Args:
        y: Targets, `[N]` or `[N, units]`.
        mean: Predictive means, of the same shape.
        variance: Predictive variances of y, of the same shape, or a number.

    Returns:
        A number; 0 is perfect, and a prediction without uncertainty scores its absolute error.

    Example:

    >>> round(keras_odgp.metrics.crps([1.0, 2.0], [1.0, 4.0], 1.0), 3)
    0.843

    Reference:

    - Gneiting and Raftery, Strictly proper scoring rules, prediction, and estimation, JASA 2007.
    """
    return _mean(formulas.gaussian_crps(*_check(y, mean, variance)))


def coverage(y: Any, mean: Any, variance: Any, level: float = 0.95) -> float:
    """Fraction of targets in the central interval of Gaussian predictions.

    Args:
        y: Targets, `[N]` or `[N, units]`.
        mean: Predictive means, of the same shape.
        variance: Predictive variances of y, of the same shape, or a number.
        level: Probability of the interval, and so the fraction to expect. Defaults to 0.95.

    Returns:
        A number between 0 and 1.

    Example:

    >>> keras_odgp.metrics.coverage([1.0, 2.0], [1.0, 4.0], 1.0)
    0.5
    """
    return float(_observed(y, mean, variance, np.array([formulas.check_level(level)]))[0])


def calibration_error(y: Any, mean: Any, variance: Any, num_levels: int = 19) -> float:
    """Mean absolute difference between the level of central intervals and the fraction of targets in them.

    Args:
        y: Targets, `[N]` or `[N, units]`.
        mean: Predictive means, of the same shape.
        variance: Predictive variances of y, of the same shape, or a number.
        num_levels: Number of levels, evenly spaced. Defaults to 19: 0.05, 0.1, ..., 0.95.

    Returns:
        A number; 0 is perfect. Chance alone makes it about 0.3 / sqrt(N).

    Example:

    >>> round(keras_odgp.metrics.calibration_error([1.0, 2.0], [1.0, 4.0], 1.0), 4)
    0.2368
    """
    levels = formulas.inner_levels(num_levels)
    return float(np.abs(_observed(y, mean, variance, levels) - levels).mean())


def accuracy(labels: Any, probabilities: Any) -> float:
    """Fraction of labels that the predictions hold likeliest.

    Args:
        labels: Integer labels, `[N]` or `[N, 1]`, not one-hot; or labels 0 and 1, of the shape of `probabilities`.
        probabilities: Probabilities of the classes, `[N, C]`; or of label 1, `[N]`, `[N, 1]`, or `[N, units]` for
            labels of the same shape.

    Returns:
        A number between 0 and 1.

    Example:

    >>> keras_odgp.metrics.accuracy([0, 2], [[0.8, 0.1, 0.1], [0.6, 0.1, 0.3]])
    0.5
    >>> keras_odgp.metrics.accuracy([0, 1], [0.2, 0.7])
    1.0
    """
    labels, probabilities = np.asarray(labels), np.asarray(probabilities, dtype=np.float64)
    if labels.size == 0:
        raise ValueError("Expected labels to score. Got none.")
    if probabilities.shape in (labels.shape, (*labels.shape, 1)):
        return _mean(formulas.binary_hits(labels.reshape(probabilities.shape), probabilities))
    if labels.shape in (probabilities.shape[:-1], (*probabilities.shape[:-1], 1)):
        return _mean(formulas.class_hits(labels.reshape(probabilities.shape[:-1]), probabilities))
    raise ValueError(
        f"Expected labels of shape [N] for probabilities of shape [N, C], or of the same shape as probabilities. Got "
        f"labels of shape {labels.shape} and probabilities of shape {probabilities.shape}."
    )


def plot_calibration(y: Any, mean: Any, variance: Any, ax: Any = None, *, num_levels: int = 19) -> Any:
    """Draws the fraction of targets in central intervals against the level of the intervals.

    A curve below the diagonal shows predictions that are too sure, one above it predictions that are too cautious.
    Needs matplotlib: `pip install matplotlib`.

    Args:
        y: Targets, `[N]` or `[N, units]`.
        mean: Predictive means, of the same shape.
        variance: Predictive variances of y, of the same shape, or a number.
        ax: Axes of matplotlib to draw on. Defaults to those of a new figure.
        num_levels: Number of levels, evenly spaced. Defaults to 19.

    Returns:
        The axes.

    Example:

    >>> y = np.random.randn(100)
    >>> axes = keras_odgp.metrics.plot_calibration(y, np.zeros(100), 1.0)
    >>> axes.get_xlabel()
    'level of the central interval'
    """
    levels = formulas.inner_levels(num_levels)
    observed = _observed(y, mean, variance, levels)
    if ax is None:
        try:
            from matplotlib import pyplot  # noqa: PLC0415  (an optional dependency)
        except ImportError as error:
            raise ImportError("Plots need matplotlib, which is not installed: `pip install matplotlib`.") from error
        ax = pyplot.figure().add_subplot()
    ends = (0.0, 1.0)
    ax.plot(ends, ends, color="grey", linestyle="--", label="perfectly calibrated")
    ax.plot([0.0, *levels, 1.0], [0.0, *observed, 1.0], marker=".", label="observed")
    ax.set(xlabel="level of the central interval", ylabel="fraction of targets in it", xlim=ends, ylim=ends)
    ax.set_aspect("equal")
    ax.legend()
    return ax


def _observed(y: Any, mean: Any, variance: Any, levels: np.ndarray) -> np.ndarray:
    y, mean, variance = _check(y, mean, variance)
    inside = formulas.within(y, mean, variance, levels)
    return inside.numpy().reshape(-1, len(levels)).mean(axis=0)


def _mean(values: tf.Tensor) -> float:
    return float(tf.reduce_mean(values))


def _check(y: Any, mean: Any, *variance: Any) -> list[tf.Tensor]:
    """Targets, means and variances as float64 tensors of one shape: NumPy's broadcasting would pair wrong rows."""
    y, mean, *variance = (np.asarray(array, dtype=np.float64) for array in (y, mean, *variance))  # type: ignore[assignment]
    if mean.size == 0:
        raise ValueError("Expected predictions to score. Got none.")
    parts = [_reshape(y, mean, "targets"), mean]
    for part in variance:
        if not np.all(part > 0.0):
            raise ValueError("Expected variances above 0. Got variances that are not.")
        parts.append(np.broadcast_to(part, mean.shape) if part.ndim == 0 else _reshape(part, mean, "variances"))
    return [tf.constant(part) for part in parts]


def _reshape(array: np.ndarray, mean: np.ndarray, what: str) -> np.ndarray:
    if array.shape in (mean.shape, (*mean.shape, 1)) or (*array.shape, 1) == mean.shape:
        return array.reshape(mean.shape)
    raise ValueError(f"Expected {what} of shape {mean.shape}, that of the means. Got shape {array.shape}.")
