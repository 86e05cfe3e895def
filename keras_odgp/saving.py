"""GPflow objects (kernels, inducing variables, likelihoods) as plain data for the configuration of a Keras layer.

Only registered classes are written, and only registered classes are made when reading: a file can run no other code.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import gpflow
import numpy as np
import tensorflow as tf
from gpflow.likelihoods.utils import inv_probit

from keras_odgp import inducing, kernels
from keras_odgp.likelihoods import Dispersion
from keras_odgp.numerics import float_context
from keras_odgp.spherical import Activation

__all__ = ["deserialise", "register", "serialise"]


class _Entry(NamedTuple):
    cls: type
    attributes: dict[str, str]  # from constructor arguments to the attributes that hold them


_ENTRIES: dict[str, _Entry] = {}
_FUNCTIONS = {"exp": tf.exp, "inv_probit": inv_probit, "sigmoid": tf.nn.sigmoid, "softplus": tf.nn.softplus}


def register(cls: type, arguments: Iterable[str] | Mapping[str, str]) -> type:
    """Lets objects of a class be saved with a layer or loss that holds them.

    Args:
        cls: A class of GPflow modules. Subclasses need a registration of their own.
        arguments: Names of the constructor's arguments, which are also the names of the attributes that hold them; or
            a mapping from arguments to attributes.

    Returns:
        The class.

    Example:

    >>> class MyKernel(gpflow.kernels.Matern52):
    ...     pass
    >>> _ = keras_odgp.saving.register(MyKernel, ["variance", "lengthscales", "active_dims"])
    """
    attributes = dict(arguments) if isinstance(arguments, Mapping) else {name: name for name in arguments}
    _ENTRIES[_name_of(cls)] = _Entry(cls, attributes)
    return cls


def _name_of(cls: type) -> str:
    return ".".join([*cls.__module__.split(".")[:2], cls.__qualname__])


def serialise(value: Any) -> Any:
    """Plain data from which `deserialise` makes an equal object; a string or None is returned as it is.

    Raises:
        ValueError: If the object, or one inside it, cannot be written, or would not come back as it is.

    Example:

    >>> config = keras_odgp.saving.serialise(gpflow.kernels.Matern52(lengthscales=[0.5, 2.0]))
    >>> isinstance(config, dict)
    True
    """
    if value is None or isinstance(value, str):
        return value
    parameters = gpflow.utilities.parameter_dict(value)
    config = {
        **_encode(value, type(value).__name__),
        "frozen": sorted(path for path, parameter in parameters.items() if not parameter.trainable),
        "dtype": next((parameter.dtype.name for parameter in parameters.values()), "float64"),
    }
    _check_round_trip(value, config)
    return config


def deserialise(config: Any) -> Any:
    """The object that `serialise` described.

    Example:

    >>> config = keras_odgp.saving.serialise(gpflow.kernels.Matern52(lengthscales=[0.5, 2.0]))
    >>> keras_odgp.saving.deserialise(config).lengthscales.numpy().round(6).tolist()
    [0.5, 2.0]
    """
    if not isinstance(config, dict):
        return config
    try:
        with float_context(config["dtype"]):
            value = _decode({key: config[key] for key in ("class", "arguments")})
        parameters = gpflow.utilities.parameter_dict(value)
        for path in config["frozen"]:
            gpflow.set_trainable(parameters[path], False)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"The configuration of a GPflow object is damaged: {error!r}. Got: {config!r}.") from error
    return value


def _encode(value: Any, where: str) -> Any:
    if value is None or isinstance(value, (bool, int, float, str, Activation)):
        return value.name if isinstance(value, Activation) else value
    if isinstance(value, (list, tuple)):
        return [_encode(part, where) for part in value]
    if isinstance(value, slice):
        return {"slice": [value.start, value.stop, value.step]}
    if isinstance(value, (gpflow.Parameter, tf.Variable, tf.Tensor, np.ndarray, np.generic)):
        return {"array": np.asarray(value).tolist()}
    names = [name for name, function in _FUNCTIONS.items() if value is function]
    if names:
        return {"function": names[0]}
    entry = _ENTRIES.get(_name_of(type(value)))
    if entry is None or entry.cls is not type(value):
        raise ValueError(
            f"{type(value).__module__}.{type(value).__qualname__}, in {where}, cannot be saved: its class is not "
            "registered. Register it with `keras_odgp.saving.register(cls, names_of_its_arguments)`."
        )
    arguments = {
        argument: _encode(getattr(value, attribute), f"{where}.{attribute}")
        for argument, attribute in entry.attributes.items()
    }
    return {"class": _name_of(type(value)), "arguments": arguments}


def _decode(config: Any) -> Any:
    if isinstance(config, list):
        return [_decode(part) for part in config]
    if not isinstance(config, dict):
        return config
    if "slice" in config:
        return slice(*config["slice"])
    if "array" in config:
        return np.asarray(config["array"])
    if "function" in config:
        return _FUNCTIONS[config["function"]]
    if config["class"] not in _ENTRIES:
        raise ValueError(
            f"Unknown class {config['class']!r}: register it with `keras_odgp.saving.register` before loading."
        )
    entry = _ENTRIES[config["class"]]
    return entry.cls(**{argument: _decode(value) for argument, value in config["arguments"].items()})


def _check_round_trip(value: Any, config: dict[str, Any]) -> None:
    """Raises if a parameter has a transform or a prior that the constructor does not give it."""
    copies = gpflow.utilities.parameter_dict(deserialise(config))
    for path, parameter in gpflow.utilities.parameter_dict(value).items():
        copy = copies.get(path)
        transform = None if parameter.transform is None else parameter.transform.name
        copied = None if copy is None or copy.transform is None else copy.transform.name
        if copy is None or transform != copied or parameter.shape != copy.shape or not _equal_priors(parameter, copy):
            raise ValueError(
                f"{type(value).__name__}{path} cannot be saved: it has a prior, or a transform other than {copied!r}, "
                "which its class does not give it. Use a class of your own that sets it in its constructor, and "
                "`keras_odgp.saving.register`."
            )


def _equal_priors(left: gpflow.Parameter, right: gpflow.Parameter) -> bool:
    densities = [float(parameter.log_prior_density()) for parameter in (left, right)]
    return (left.prior is None) == (right.prior is None) and bool(np.isclose(densities[0], densities[1]))


_ZONAL = ("variance", "weight_variances", "bias_variance", "radial_power", "active_dims")
register(kernels.ArcCosine, ("order", *_ZONAL))
for _name in ("Matern12", "Matern32", "Matern52", "SquaredExponential"):
    register(getattr(kernels, _name), ("lengthscale", *_ZONAL))
for _name in ("Matern12", "Matern32", "Matern52", "SquaredExponential", "Exponential", "Cosine"):
    register(getattr(gpflow.kernels, _name), ("variance", "lengthscales", "active_dims"))
register(gpflow.kernels.RationalQuadratic, ("variance", "lengthscales", "alpha", "active_dims"))
register(gpflow.kernels.ArcCosine, ("order", "variance", "weight_variances", "bias_variance", "active_dims"))
register(gpflow.kernels.Linear, ("variance", "active_dims"))
register(gpflow.kernels.Polynomial, ("degree", "variance", "offset", "active_dims"))
register(gpflow.kernels.Periodic, ("base_kernel", "period"))
for _name in ("White", "Constant"):
    register(getattr(gpflow.kernels, _name), ("variance", "active_dims"))
for _name in ("Sum", "Product"):
    register(getattr(gpflow.kernels, _name), ("kernels",))
register(gpflow.kernels.SharedIndependent, {"kernel": "kernel", "output_dim": "num_latent_gps"})
register(gpflow.kernels.SeparateIndependent, ("kernels",))
register(gpflow.kernels.LinearCoregionalization, ("kernels", "W"))
register(inducing.ActivationFeatures, ("weights", "activation", "num_levels", "slope"))
register(inducing.SphericalHarmonics, ("dimension", "levels"))
register(gpflow.inducing_variables.InducingPoints, ("Z",))
register(gpflow.inducing_variables.SharedIndependentInducingVariables, ("inducing_variable",))
register(gpflow.inducing_variables.SeparateIndependentInducingVariables, ("inducing_variable_list",))
register(Dispersion, ())
register(gpflow.likelihoods.Gaussian, ("variance", "scale", "variance_lower_bound"))
register(gpflow.likelihoods.StudentT, ("scale", "df", "scale_lower_bound"))
register(gpflow.likelihoods.Gamma, ("invlink", "shape", "shape_lower_bound"))
register(gpflow.likelihoods.Beta, ("invlink", "scale", "scale_lower_bound"))
register(gpflow.likelihoods.Bernoulli, ("invlink",))
register(gpflow.likelihoods.Exponential, ("invlink",))
register(gpflow.likelihoods.Poisson, ("invlink", "binsize"))
register(gpflow.likelihoods.Softmax, ("num_classes",))
register(gpflow.likelihoods.MultiClass, ("num_classes", "invlink"))
register(gpflow.likelihoods.RobustMax, ("num_classes", "epsilon"))
