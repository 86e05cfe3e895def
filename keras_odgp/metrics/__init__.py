"""Scores of predictions and of their uncertainty: Keras metrics, and functions of the same names for arrays."""

from keras_odgp.metrics.arrays import accuracy, calibration_error, coverage, crps, mae, nlpd, plot_calibration, rmse
from keras_odgp.metrics.classes import CRPS, MAE, NLPD, RMSE, Accuracy, CalibrationError, Coverage

__all__ = [
    "CRPS",
    "MAE",
    "NLPD",
    "RMSE",
    "Accuracy",
    "CalibrationError",
    "Coverage",
    "accuracy",
    "calibration_error",
    "coverage",
    "crps",
    "mae",
    "nlpd",
    "plot_calibration",
    "rmse",
]
