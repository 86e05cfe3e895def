"""Inducing features on the sphere, as ordinary GPflow inducing variables."""

from keras_odgp.inducing.activation_features import ActivationFeatures
from keras_odgp.inducing.spherical_harmonics import SphericalHarmonics

__all__ = ["ActivationFeatures", "SphericalHarmonics"]
