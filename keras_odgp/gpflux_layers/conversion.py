"""From the Keras layer to the GPflux layer and back, with copies of all parameters."""

from __future__ import annotations

from typing import Any

import gpflow
import keras
import numpy as np
import tensorflow as tf
from gpflow.inducing_variables import FallbackSharedIndependentInducingVariables
from gpflow.kernels import Kernel, SharedIndependent
from gpflow.mean_functions import Identity, Linear, MeanFunction, Zero
from gpflux.layers import GPLayer

from keras_odgp.gpflux_layers.orthogonal_gp_layer import OrthogonalGPLayer, check_type, num_outputs, width_of
from keras_odgp.layers import FixedLinear, OrthogonalGP
from keras_odgp.orthogonal import OrthogonalPosterior


def to_gpflux(layer: OrthogonalGP) -> OrthogonalGPLayer:
    """A GPflux layer with the parameters of a Keras layer, copied.

    Args:
        layer: A layer that is built and knows its number of data.

    Example:

    >>> from keras_odgp import gpflux_layers
    >>> layer = keras_odgp.layers.OrthogonalGP(1, num_inducing=6, num_orthogonal=4, return_moments=True)
    >>> layer.adapt(np.random.randn(20, 2))
    >>> gpflux_layers.to_gpflux(layer).num_data
    20
    """
    check_type("layer", layer, OrthogonalGP)
    posterior = gpflow.utilities.deepcopy(layer.posterior)
    if layer.num_data is None:
        raise ValueError(f"Expected a layer that knows its number of data. Got none: `adapt` {layer.name!r} first.")
    if layer.compute_dtype != np.dtype(gpflow.default_float()).name:
        raise ValueError(
            f"Expected a layer of GPflow's default dtype, {np.dtype(gpflow.default_float()).name}, in which GPflux "
            f"computes. Got {layer.compute_dtype}: call `gpflow.config.set_default_float` first."
        )
    if float(layer.kl_weight) != 1.0:
        raise ValueError(f"Expected a layer that weighs its divergence by 1. Got: {float(layer.kl_weight)}.")
    _refuse_priors(posterior.kernel)
    if layer.trainable:  # otherwise Keras has frozen all weights, and the parameters know which were so before
        for parameter, weight in zip(gpflow.utilities.parameter_dict(posterior).values(), layer.adopted_weights):
            gpflow.set_trainable(parameter, weight.trainable)
    converted = OrthogonalGPLayer(
        posterior.kernel,
        posterior.inducing_variable,
        layer.num_data,
        posterior.orthogonal_inducing_variable,
        _to_mean_function(layer.mean_layer, layer.units),
        orthogonal_covariance=layer.orthogonal_covariance,
        num_latent_gps=posterior.q_sqrt.shape[0],
        whiten=layer.whiten,
        name=layer.name,
    )
    _copy_q(posterior, converted)
    converted.trainable = layer.trainable
    return converted


def from_gpflux(layer: GPLayer, *, return_moments: bool = False, num_inputs: int | None = None) -> OrthogonalGP:
    """A Keras layer with the parameters of a GPflux layer, copied; built, so that it can be called at once.

    Args:
        layer: An `OrthogonalGPLayer`, or a `GPLayer`, which becomes a layer without orthogonal features.
        return_moments: As in `keras_odgp.layers.OrthogonalGP`: True for the last layer of a model.
        num_inputs: Width of the inputs. Defaults to that of the features.

    Example:

    >>> import gpflux
    >>> from keras_odgp import gpflux_layers
    >>> layer = gpflux.helpers.construct_gp_layer(50, 4, 2, 2)
    >>> gpflux_layers.from_gpflux(layer)(np.ones((3, 2))).shape.as_list()
    [3, 2]
    """
    check_type("layer", layer, GPLayer)
    for setting in ("full_cov", "full_output_cov", "num_samples"):
        if getattr(layer, setting):
            raise ValueError(
                f"Expected a layer without `{setting}`, which the Keras layer does not have. Got: "
                f"{getattr(layer, setting)!r}."
            )
    _refuse_priors(layer.kernel)
    if isinstance(layer, OrthogonalGPLayer):
        posterior = gpflow.utilities.deepcopy(layer.posterior(None))
    else:
        parts = (layer.kernel, layer.inducing_variable, layer.q_mu, layer.q_sqrt)
        posterior = gpflow.utilities.deepcopy(OrthogonalPosterior(*parts, whiten=layer.whiten))
    width = num_inputs or width_of(posterior)
    if width is None:
        raise ValueError("Expected `num_inputs`, because the features do not tell the width of inputs. Got: None.")
    mean_function, mean_weights = _from_mean_function(layer.mean_function, num_outputs(layer))
    converted = OrthogonalGP(
        num_outputs(layer),
        kernel=posterior.kernel.kernel if isinstance(posterior.kernel, SharedIndependent) else posterior.kernel,
        features=_unshared(posterior.inducing_variable),
        orthogonal_features=_unshared(posterior.orthogonal_inducing_variable),
        mean_function=mean_function,
        whiten=posterior.whiten,
        orthogonal_covariance=posterior.orthogonal_covariance,
        num_data=int(layer.num_data),
        return_moments=return_moments,
        dtype=layer.dtype,
        name=layer.name,
        trainable=layer.trainable,
    )
    converted.build((None, width))
    if converted.mean_layer is not None:
        converted.mean_layer.set_weights(mean_weights)
    _copy_q(posterior, converted.posterior)
    for parameter, weight in zip(
        gpflow.utilities.parameter_dict(converted.posterior).values(), converted.adopted_weights
    ):
        weight.trainable = parameter.trainable and layer.trainable
    return converted


def _copy_q(source: Any, target: Any) -> None:
    for name in ("q_mu", "q_sqrt", "orthogonal_q_mu", "orthogonal_q_sqrt"):
        ours, theirs = getattr(source, name), getattr(target, name)
        if theirs is not None:
            theirs.assign(tf.linalg.band_part(ours, -1, 0) if name.endswith("sqrt") else ours)
            gpflow.set_trainable(theirs, ours.trainable)


def _to_mean_function(mean_layer: keras.Layer | None, units: int) -> MeanFunction:
    if mean_layer is None:
        return Zero(units)
    if type(mean_layer) is keras.layers.Identity:
        return Identity()
    if type(mean_layer) is FixedLinear:
        return _linear(mean_layer.matrix, None, units)
    if type(mean_layer) is keras.layers.Dense and mean_layer.activation is keras.activations.linear:
        return _linear(mean_layer.kernel, mean_layer.bias if mean_layer.use_bias else None, units)
    raise ValueError(f"Expected a mean function that is zero, the identity or linear. Got: {mean_layer!r}.")


def _linear(matrix: keras.Variable, bias: keras.Variable | None, units: int) -> Linear:
    mean_function = Linear(np.asarray(matrix, dtype=gpflow.default_float()), np.zeros(units))
    gpflow.set_trainable(mean_function.A, matrix.trainable)
    gpflow.set_trainable(mean_function.b, bias is not None and bias.trainable)
    if bias is not None:
        mean_function.b.assign(np.asarray(bias))
    return mean_function


def _from_mean_function(mean: MeanFunction, units: int) -> tuple[Any, list[np.ndarray]]:
    """The argument of the Keras layer, and the weights that the mean function has in it."""
    if type(mean) is Zero:
        return None, []
    if type(mean) is Identity:
        return "identity", []
    if type(mean) is not Linear:
        raise ValueError(f"Expected a mean function among Zero, Identity and Linear. Got: {type(mean).__name__}.")
    A, b = np.asarray(mean.A), np.broadcast_to(np.asarray(mean.b), [units])
    if A.shape[1] != units:
        raise ValueError(f"Expected a Linear mean function with {units} outputs. Got one with A of shape {A.shape}.")
    if not (mean.b.trainable or b.any()):  # there is no bias
        if not mean.A.trainable:
            return "linear", [A]
        return keras.layers.Dense(units, use_bias=False, dtype=A.dtype.name), [A]
    if mean.A.trainable != mean.b.trainable:
        raise ValueError("Expected a Linear mean function of which both A and b are trained, or neither. Got one.")
    return keras.layers.Dense(units, trainable=mean.A.trainable, dtype=A.dtype.name), [A, b]


def _refuse_priors(kernel: Kernel) -> None:
    for path, parameter in gpflow.utilities.parameter_dict(kernel).items():
        if parameter.prior is not None:
            raise ValueError(
                f"Expected a kernel without priors: the loss of a GPflux layer has their densities, that of a Keras "
                f"layer has not. Got a prior on the kernel's {path.removeprefix('.')}."
            )


def _unshared(features: Any) -> Any:
    is_shared = isinstance(features, FallbackSharedIndependentInducingVariables)
    return features.inducing_variable if is_shared else features
