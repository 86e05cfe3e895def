"""Mathematics on the sphere: zonal polynomials, Fourier coefficients, spherical harmonics.

Knows TensorFlow and NumPy, neither GPflow nor Keras.
"""

from keras_odgp.spherical.activations import Activation, get_activation, register_activation
from keras_odgp.spherical.funk_hecke import (
    arc_cosine_coefficients,
    matern_log_coefficients,
    quadrature_coefficients,
    relu_power_coefficients,
    squared_exponential_log_coefficients,
)
from keras_odgp.spherical.gegenbauer import num_harmonics, zonal_polynomials, zonal_series
from keras_odgp.spherical.harmonics import spherical_harmonics

__all__ = [
    "Activation",
    "arc_cosine_coefficients",
    "get_activation",
    "matern_log_coefficients",
    "num_harmonics",
    "quadrature_coefficients",
    "register_activation",
    "relu_power_coefficients",
    "spherical_harmonics",
    "squared_exponential_log_coefficients",
    "zonal_polynomials",
    "zonal_series",
]
