"""The posterior as a Keras layer, and the layers of likelihoods."""

from keras_odgp.layers.likelihood_layers import (
    BetaLikelihood,
    GammaLikelihood,
    GaussianLikelihood,
    StudentTLikelihood,
)
from keras_odgp.layers.mean_functions import FixedLinear
from keras_odgp.layers.orthogonal_gp import OrthogonalGP

__all__ = [
    "BetaLikelihood",
    "FixedLinear",
    "GammaLikelihood",
    "GaussianLikelihood",
    "OrthogonalGP",
    "StudentTLikelihood",
]
