"""What a trained model says of itself: its GP layers and the likelihood of its targets."""

from __future__ import annotations

from typing import Any

import keras
from gpflow.likelihoods import Likelihood

from keras_odgp._private import flatten_layers
from keras_odgp.layers import (
    BetaLikelihood,
    GammaLikelihood,
    GaussianLikelihood,
    OrthogonalGP,
    StudentTLikelihood,
)
from keras_odgp.losses import VariationalLoss

_LIKELIHOODS: dict[type[keras.Layer], str] = {
    BetaLikelihood: "beta",
    GammaLikelihood: "gamma",
    GaussianLikelihood: "gaussian",
    StudentTLikelihood: "student_t",
}


def gp_layers(model: Any) -> list[OrthogonalGP]:
    """GP layers at any depth; raises if there are none, or the model is not built."""
    if not isinstance(model, keras.Model):
        raise TypeError(f"Expected a Keras model. Got: {model!r}.")
    layers = [layer for layer in flatten_layers(model) if isinstance(layer, OrthogonalGP)]
    if not layers:
        raise ValueError(f"Expected a model with `OrthogonalGP` layers to predict with. Got none in {model.name!r}.")
    if not all(layer.built for layer in layers):
        raise ValueError(f"Expected a model that is built. Got {model.name!r}, which is not: call it on data first.")
    return layers


def likelihood_of(model: keras.Model) -> str | Likelihood:
    """The likelihood of the compiled loss, or of the likelihood layer."""
    loss = getattr(model, "loss", None)
    if isinstance(loss, VariationalLoss):
        return loss.likelihood
    names = {_LIKELIHOODS[type(layer)] for layer in flatten_layers(model) if type(layer) in _LIKELIHOODS}
    if len(names) != 1:
        raise ValueError(
            f"Cannot tell the likelihood of model {model.name!r} from its loss or its layers (found: {sorted(names)}). "
            'Give it: `Predictive(model, likelihood="gaussian")`.'
        )
    return names.pop()
