"""Deep Gaussian process layers for Keras 3: orthogonally decoupled, with spherical inducing features."""

from keras_odgp import (
    _backend,  # noqa: F401  (first: refuses Keras backends other than TensorFlow)
    callbacks,
    covariances,
    files,
    gpflow_models,
    inducing,
    kernels,
    layers,
    likelihoods,
    losses,
    metrics,
    multiworker,
    numerics,
    orthogonal,
    sampling,
    saving,
    spherical,
)
from keras_odgp._version import __version__
from keras_odgp.adapting import adapt
from keras_odgp.predictive import Predictive, plot_predictive, sample_functions

__all__ = [
    "Predictive",
    "__version__",
    "adapt",
    "callbacks",
    "covariances",
    "files",
    "gpflow_models",
    "inducing",
    "kernels",
    "layers",
    "likelihoods",
    "losses",
    "metrics",
    "multiworker",
    "numerics",
    "orthogonal",
    "plot_predictive",
    "sample_functions",
    "sampling",
    "saving",
    "spherical",
]
