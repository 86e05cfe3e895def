"""Functions drawn from the posterior: each is one and the same function at every call, and cheap at new inputs.

Knows GPflow, not Keras. GPflux is imported only for functions under GPflow's own stationary kernels.
"""

from keras_odgp.sampling.functions import FunctionSamples

__all__ = ["FunctionSamples"]
