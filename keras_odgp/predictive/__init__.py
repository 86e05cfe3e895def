"""Predictions of deep models: mixtures over samples of the hidden layers, from cached factors; and whole functions."""

from keras_odgp.predictive.functions import sample_functions
from keras_odgp.predictive.model import Predictive
from keras_odgp.predictive.plotting import plot_predictive

__all__ = ["Predictive", "plot_predictive", "sample_functions"]
