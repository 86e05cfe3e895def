"""Scores of predictive distributions on a test set, the same for all models."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.special
import scipy.stats

LEVELS = np.linspace(0.05, 0.95, 19)


def gaussian_scores(Y: Any, mean: Any, variance: Any, scale: float) -> dict[str, Any]:
    """Scores of Gaussian predictions, all arrays `[N, 1]` on the standardised scale; see `scores`."""
    Y, mean, variance = (np.asarray(array).reshape(-1) for array in (Y, mean, variance))
    log_density = scipy.stats.norm.logpdf(Y, mean, np.sqrt(variance))
    return scores(Y, mean, log_density, scipy.stats.norm.cdf(Y, mean, np.sqrt(variance)), scale)


def scores(Y: np.ndarray, mean: np.ndarray, log_density: np.ndarray, cdf: np.ndarray, scale: float) -> dict[str, Any]:
    """RMSE and NLPD on both scales, and how often targets fall into central intervals.

    Args:
        Y: Targets, standardised, shape `[N]`.
        mean: Predictive means, shape `[N]`.
        log_density: Logarithms of the predictive density at the targets, shape `[N]`.
        cdf: Predictive distribution functions at the targets, shape `[N]`.
        scale: Standard deviation of the targets before they were standardised.
    """
    rmse, nlpd = float(np.sqrt(np.mean(np.square(Y - mean)))), -float(np.mean(log_density))
    within = 2.0 * np.abs(cdf - 0.5)  # the level of the smallest central interval that has the target in it
    observed = np.array([np.mean(within <= level) for level in LEVELS])
    return {
        "rmse": rmse * scale,
        "nlpd": nlpd + float(np.log(scale)),
        "rmse_standardised": rmse,
        "nlpd_standardised": nlpd,
        "coverage_50": float(np.mean(within <= 0.5)),
        "coverage_95": float(np.mean(within <= 0.95)),
        "calibration_error": float(np.mean(np.abs(observed - LEVELS))),
        "calibration_curve": [round(float(value), 4) for value in observed],
        "num_test": len(Y),
    }


def mixture_scores(Y: Any, means: Any, variances: Any, scale: float) -> dict[str, Any]:
    """Scores of mixtures of Gaussians with equal weights: targets `[N, 1]`, components `[S, N]`; see `scores`."""
    Y, means, deviations = np.asarray(Y).reshape(-1), np.asarray(means), np.sqrt(np.asarray(variances))
    log_density = scipy.special.logsumexp(scipy.stats.norm.logpdf(Y, means, deviations), axis=0) - np.log(len(means))
    cdf = scipy.stats.norm.cdf(Y, means, deviations).mean(axis=0)
    return scores(Y, means.mean(axis=0), log_density, cdf, scale)
