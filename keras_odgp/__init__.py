"""Deep Gaussian process layers for Keras 3: orthogonally decoupled, with spherical inducing features."""

from keras_odgp import _backend  # noqa: F401  (first: refuses Keras backends other than TensorFlow)
from keras_odgp import covariances, inducing, kernels, spherical

__version__ = "0.1.0"
__all__ = ["covariances", "inducing", "kernels", "spherical"]
