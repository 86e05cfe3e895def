"""Training of q of the last GP layer by steps in natural parameters."""

from keras_odgp.natural.updates import ClosedFormUpdate, NaturalGradient

__all__ = ["ClosedFormUpdate", "NaturalGradient"]
