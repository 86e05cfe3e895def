"""The orthogonally decoupled posterior: conditional, divergence from the prior, cached predictions.

Knows GPflow, not Keras.
"""

from keras_odgp.orthogonal.degeneracy import check_orthogonal_features
from keras_odgp.orthogonal.marginals import Marginals, marginals
from keras_odgp.orthogonal.posterior import OrthogonalPosterior
from keras_odgp.orthogonal.variational import Variational, variational, whitened_kl

__all__ = [
    "Marginals",
    "OrthogonalPosterior",
    "Variational",
    "check_orthogonal_features",
    "marginals",
    "variational",
    "whitened_kl",
]
