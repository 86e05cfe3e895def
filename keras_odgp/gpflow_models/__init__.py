"""The orthogonally decoupled posterior as GPflow models, for L-BFGS and natural gradients."""

from keras_odgp.gpflow_models.initialisation import (
    directions_at,
    directions_from_data,
    points_from_data,
    random_directions,
)
from keras_odgp.gpflow_models.lbfgs import FitResult, fit_lbfgs
from keras_odgp.gpflow_models.orthogonal_sgpr import OrthogonalSGPR
from keras_odgp.gpflow_models.orthogonal_svgp import OrthogonalSVGP

__all__ = [
    "FitResult",
    "OrthogonalSGPR",
    "OrthogonalSVGP",
    "directions_at",
    "directions_from_data",
    "fit_lbfgs",
    "points_from_data",
    "random_directions",
]
