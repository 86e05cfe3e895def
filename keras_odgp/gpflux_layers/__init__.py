"""The orthogonally decoupled posterior as a GPflux layer, and the ways from the Keras layer to it and back.

Imports GPflux, which brings Keras 2 (`tf_keras`): `import keras_odgp` leaves it out, and
`from keras_odgp import gpflux_layers` gives it. Kernels and features of this package work in `gpflux.layers.GPLayer`
too, within GPflow's `SharedIndependent` and `SharedIndependentInducingVariables`.
"""

from keras_odgp.gpflux_layers.conversion import from_gpflux, to_gpflux
from keras_odgp.gpflux_layers.orthogonal_gp_layer import OrthogonalGPLayer

__all__ = ["OrthogonalGPLayer", "from_gpflux", "to_gpflux"]
