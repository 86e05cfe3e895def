"""GPflow parameters as weights of a Keras layer."""

from __future__ import annotations

import re

import gpflow
import keras
import tensorflow as tf


def adopt(module: tf.Module, layer: keras.Layer) -> None:
    """Makes GPflow parameters weights of a layer: Keras variables that share their storage.

    Keras trains and saves only its own variables; a layer that merely held GPflow parameters would train nothing. The
    optimiser, GPflow and files all see the same numbers. Paths read like `orthogonal_gp/kernel/variance`; frozen
    parameters become weights that are not trainable.

    Args:
        module: A module with GPflow parameters.
        layer: The layer, within its `build`.
    """
    variables = []
    for path, parameter in gpflow.utilities.parameter_dict(module).items():
        *scopes, name = _components(path)
        variables.append(_adopt_one(parameter, scopes, name))
    layer.adopted_weights = variables  # assigned to an attribute, Keras tracks them
    if not layer.trainable:  # after that, so that `layer.trainable = True` finds them
        for variable in variables:
            variable.trainable = False


def _components(path: str) -> list[str]:
    """`.kernel.kernels[0].variance` to `["kernel", "kernels_0", "variance"]`."""
    return re.sub(r"\[(\w+)\]", r"_\1", path).strip(".").split(".")


def _adopt_one(parameter: gpflow.Parameter, scopes: list[str], name: str) -> keras.Variable:
    if scopes:
        with keras.name_scope(scopes[0]):
            return _adopt_one(parameter, scopes[1:], name)
    return keras.Variable(
        initializer=parameter.unconstrained_variable,
        trainable=parameter.trainable,
        dtype=parameter.dtype.name,
        autocast=False,
        aggregation="none",
        name=name,
    )
