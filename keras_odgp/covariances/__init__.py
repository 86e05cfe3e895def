"""Covariances of features: `Kuu` and `Kuf` on GPflow's dispatchers, and `Kvu` for a pair of feature sets.

Example:

>>> kernel = keras_odgp.kernels.ArcCosine()
>>> base = keras_odgp.inducing.ActivationFeatures(np.random.randn(4, 3), "relu")
>>> orthogonal = gpflow.inducing_variables.InducingPoints(np.random.randn(5, 2))
>>> keras_odgp.covariances.Kuf(base, kernel, np.random.randn(6, 2)).shape.as_list()  # [M, N]
[4, 6]
>>> keras_odgp.covariances.Kvu(orthogonal, base, kernel).shape.as_list()  # [K, M]
[5, 4]
"""

from gpflow.covariances import Kuf, Kuu

from keras_odgp.covariances import kufs as _kufs  # noqa: F401  (registers Kuf)
from keras_odgp.covariances import kuus as _kuus  # noqa: F401  (registers Kuu)
from keras_odgp.covariances.diagonal import DiagonalCovariance
from keras_odgp.covariances.kvus import Kvu
from keras_odgp.covariances.sphere import shared_levels

__all__ = ["DiagonalCovariance", "Kuf", "Kuu", "Kvu", "shared_levels"]
