"""Zonal kernels, as ordinary GPflow kernels."""

from keras_odgp.kernels.arc_cosine import ArcCosine
from keras_odgp.kernels.chordal import ChordalKernel, Matern12, Matern32, Matern52, SquaredExponential
from keras_odgp.kernels.zonal import ZonalKernel

__all__ = ["ArcCosine", "ChordalKernel", "Matern12", "Matern32", "Matern52", "SquaredExponential", "ZonalKernel"]
