"""Covariances of features: `Kuu` and `Kuf` on GPflow's dispatchers, and `Kvu` for a pair of feature sets."""

from gpflow.covariances import Kuf, Kuu

from keras_odgp.covariances import kufs as _kufs  # noqa: F401  (registers Kuf)
from keras_odgp.covariances import kuus as _kuus  # noqa: F401  (registers Kuu)
from keras_odgp.covariances.diagonal import DiagonalCovariance
from keras_odgp.covariances.kvus import Kvu
from keras_odgp.covariances.sphere import shared_levels

__all__ = ["DiagonalCovariance", "Kuf", "Kuu", "Kvu", "shared_levels"]
