"""Likelihoods that read their parameters from a model's output.

A model's output is a tensor `[..., units, columns]`: marginal mean and variance of each latent function and, for
likelihoods with a dispersion (noise variance, scale, shape), a third column with it. GPflow's likelihoods do the work;
the dispersion travels in their argument X.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import gpflow
import tensorflow as tf
from gpflow.functions import Function
from gpflow.likelihoods import Likelihood

from keras_odgp.numerics import float_context

__all__ = ["Dispersion", "OutputLikelihood"]


class Dispersion(Function):
    """The dispersion column of the model's output, as a parameter of a GPflow likelihood.

    Example:

    >>> likelihood = gpflow.likelihoods.StudentT(scale=keras_odgp.likelihoods.Dispersion(), df=5.0)
    >>> loss = keras_odgp.losses.VariationalLoss(likelihood)
    """

    def __call__(self, X: tf.Tensor) -> tf.Tensor:
        return X


class _Named(NamedTuple):
    """How to make a likelihood of a name, and which targets it takes."""

    make: Callable[[int], Likelihood]
    layer: str | None = None
    allowed: Callable[[tf.Tensor], tf.Tensor] | None = None
    targets: str = "finite numbers"
    sign: int = 0  # of f in the exponent of the density, if its link is the exponential function


LARGEST_MEAN = 1e4  # to which float32 still adds a difference of 1e-3
LARGEST_EXPONENT = 20.0  # a rate of 5e8, whose square float32 still has, and Adam forgets in time

_NAMED = {
    "gaussian": _Named(lambda _: gpflow.likelihoods.Gaussian(Dispersion()), "GaussianLikelihood"),
    "student_t": _Named(lambda _: gpflow.likelihoods.StudentT(Dispersion()), "StudentTLikelihood"),
    "gamma": _Named(
        lambda _: gpflow.likelihoods.Gamma(shape=Dispersion()),
        "GammaLikelihood",
        lambda y: y > 0.0,
        "numbers above 0",
        sign=-1,
    ),
    "beta": _Named(
        lambda _: gpflow.likelihoods.Beta(scale=Dispersion()),
        "BetaLikelihood",
        lambda y: (y > 0.0) & (y < 1.0),
        "numbers between 0 and 1, both excluded",
    ),
    "bernoulli": _Named(
        lambda _: gpflow.likelihoods.Bernoulli(), None, lambda y: (y == 0.0) | (y == 1.0), "labels 0 and 1"
    ),
    "poisson": _Named(lambda _: gpflow.likelihoods.Poisson(), None, lambda y: y >= 0.0, "counts, at least 0", sign=1),
    "exponential": _Named(
        lambda _: gpflow.likelihoods.Exponential(), None, lambda y: y >= 0.0, "numbers at least 0", sign=-1
    ),
    "softmax": _Named(
        gpflow.likelihoods.Softmax, None, lambda y: (y >= 0.0) & (y == tf.floor(y)), "integer labels, at least 0"
    ),
}


class OutputLikelihood:
    """A likelihood of targets given a model's output; stateless.

    Args:
        likelihood: `"gaussian"`, `"student_t"`, `"gamma"`, `"beta"`, `"bernoulli"`, `"poisson"`, `"exponential"`,
            `"softmax"`, or a GPflow likelihood without trainable parameters.

    Example:

    >>> likelihood = keras_odgp.likelihoods.OutputLikelihood("bernoulli")
    >>> output = np.array([[[0.0, 1.0]]])  # [..., units, columns]: mean and variance of f
    >>> likelihood.log_density(tf.constant([1.0], tf.float64), tf.constant(output)).numpy().round(4).tolist()
    [-0.6931]
    """

    def __init__(self, likelihood: str | Likelihood) -> None:
        self.specification = likelihood
        if isinstance(likelihood, str):
            if likelihood not in _NAMED:
                raise ValueError(
                    f"Expected a likelihood among {sorted(_NAMED)}, or a GPflow likelihood. Got: {likelihood!r}."
                )
            self._named: _Named | None = _NAMED[likelihood]
            self.name, self.has_dispersion = likelihood, self._named.layer is not None
            self.is_softmax = likelihood == "softmax"
        elif isinstance(likelihood, Likelihood):
            if likelihood.trainable_parameters:
                raise ValueError(
                    f"A loss cannot train parameters, and {type(likelihood).__name__} has some. Put a likelihood "
                    "layer such as `keras_odgp.layers.GaussianLikelihood` at the end of the model and give the name "
                    "of the likelihood here, or freeze them with `gpflow.set_trainable(likelihood, False)`."
                )
            self._named, self.name = None, type(likelihood).__name__
            self.has_dispersion = any(isinstance(module, Dispersion) for module in likelihood.submodules)
            self.is_softmax = isinstance(likelihood, (gpflow.likelihoods.Softmax, gpflow.likelihoods.MultiClass))
        else:
            raise TypeError(f"Expected the name of a likelihood, or a GPflow likelihood. Got: {likelihood!r}.")

    @property
    def num_columns(self) -> int:
        """Columns of the output that it reads."""
        return 3 if self.has_dispersion else 2

    def variational_expectations(self, y: tf.Tensor, output: tf.Tensor) -> tf.Tensor:
        """Expectation of the log-likelihood under the marginals of f, summed over units: shape `[...]`.

        A rate, or an inverse scale, above exp(20) grows like the logarithm of its exponent: a step that goes far too
        far then gives a large loss and a gradient back, not infinity.
        """
        return self._with_targets("variational_expectations", y, self._bound_exponent(tf.convert_to_tensor(output)))

    def _bound_exponent(self, output: tf.Tensor) -> tf.Tensor:
        """The output with moments such that exp of `sign * mean + variance / 2` is tame above a bound."""
        if self._named is None or not self._named.sign or len(output.shape) < 2:
            return output
        mean, variance, *dispersion = tf.unstack(output, axis=-1)
        beyond = tf.nn.relu(tf.abs(mean) - LARGEST_MEAN)
        mean = tf.clip_by_value(mean, -LARGEST_MEAN, LARGEST_MEAN) + tf.sign(mean) * tf.math.log1p(beyond)
        exponent = self._named.sign * mean + 0.5 * variance
        excess = tf.nn.relu(exponent - LARGEST_EXPONENT)
        bounded = tf.minimum(exponent, LARGEST_EXPONENT) + tf.math.log1p(tf.math.log1p(excess))
        return tf.stack([mean, 2.0 * (bounded - self._named.sign * mean), *dispersion], axis=-1)

    def log_density(self, y: tf.Tensor, output: tf.Tensor) -> tf.Tensor:
        """Logarithm of the predictive density of targets, summed over units: shape `[...]`."""
        return self._with_targets("predict_log_density", y, output)

    def mean_and_variance(self, output: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Predictive mean and variance of y, both `[..., units]`; probabilities of the classes for softmax."""
        self.check_variance()
        output = self.check_output(output)
        with float_context(output.dtype):
            mean, variance = self._gpflow(output.shape[-2]).predict_mean_and_var(*_columns(output))
        if len(output.shape) == 3:
            return mean, variance
        lead = tf.shape(output)[:-1]
        return tf.reshape(mean, lead), tf.reshape(variance, lead)

    def check_variance(self) -> None:
        """Raises if targets have no finite variance; GPflow would give a negative one."""
        likelihood = self.specification
        if isinstance(likelihood, gpflow.likelihoods.StudentT) and not likelihood.df > 2.0:
            raise ValueError(
                "Expected a Student-t likelihood with `df` above 2, because targets of fewer degrees of freedom have "
                f"no finite variance. Got: df={likelihood.df!r}. Give it a larger `df`; with this one only "
                "`VariationalLoss`, `NLPD` and `Predictive.log_density`, which need no variance, can be used."
            )

    def check_output(self, output: Any) -> tf.Tensor:
        """The output as a tensor; raises if it has not the columns that the likelihood reads."""
        output = tf.convert_to_tensor(output)
        shape = tuple(output.shape)
        expected = f"[..., units, {self.num_columns}]"
        if len(shape) < 3 or shape[-1] not in (2, 3):
            raise ValueError(
                f"Expected a model output of shape {expected} for the likelihood {self.name!r}: marginal moments of "
                f"each unit. Got shape {shape}. Give the last GP layer `return_moments=True`"
                + (f" and end the model with `{self._layer_name}`." if self.has_dispersion else ".")
            )
        if shape[-1] != self.num_columns:
            remedy = (
                f"End the model with `{self._layer_name}`, which appends the dispersion."
                if self.has_dispersion
                else "This likelihood has no dispersion: take the likelihood layer off the model."
            )
            raise ValueError(
                f"Expected a model output of shape {expected} for the likelihood {self.name!r}. Got shape {shape}. "
                f"{remedy}"
            )
        return output

    def align(self, y: Any, output: tf.Tensor) -> tf.Tensor:
        """Targets `[..., units]` for an output `[..., units, columns]` (`[..., 1]` for softmax).

        The axis of units may be missing where there is one unit. Axes that only the output has (samples, as from
        `keras.layers.RepeatVector`) stand between the axes of the targets and the units: targets are repeated there.
        """
        y, repeated = self._with_units(y, output)
        for _ in range(repeated):
            y = tf.expand_dims(y, -2)
        return tf.broadcast_to(y, tf.concat([tf.shape(output)[:-2], [y.shape[-1]]], axis=0))

    def average_repeated(self, values: tf.Tensor, y: Any, output: tf.Tensor) -> tf.Tensor:
        """Means of values `[...]` over the axes that only the output has: one value for each datum."""
        for _ in range(self._with_units(y, output)[1]):
            values = tf.reduce_mean(values, axis=-1)
        return values

    def _with_units(self, y: Any, output: tf.Tensor) -> tuple[tf.Tensor, int]:
        """Targets with their axis of units, and how many axes the output has that they lack."""
        y = tf.cast(tf.convert_to_tensor(y), output.dtype)
        lead, width = list(output.shape[:-2]), 1 if self.is_softmax else output.shape[-2]
        shape = list(y.shape)
        has_units = len(shape) > 1 and _compatible(shape[-1], width) and _is_prefix(shape[:-1], lead)
        lacks_units = width == 1 and len(shape) > 0 and _is_prefix(shape, lead)
        if not has_units and not lacks_units:
            raise ValueError(self._targets_message(shape, lead, width))
        if lacks_units and not (has_units and shape[-1] == 1):
            y, shape = y[..., None], [*shape, 1]
        return tf.ensure_shape(y, [*shape[:-1], width]), len(lead) + 1 - len(shape)

    def _targets_message(self, shape: list[Any], lead: list[Any], width: int) -> str:
        batch = ", ".join("N" if size is None else str(size) for size in lead)
        message = f"Expected targets of shape [{batch}, {width}]" + (f" or [{batch}]" if width == 1 else "")
        message += f" for the likelihood {self.name!r}. Got shape {tuple(shape)}."
        if self.is_softmax:
            message += " Labels are integers, not one-hot: use `np.argmax(y, axis=-1)`."
        return message

    @property
    def _layer_name(self) -> str:
        layer = self._named.layer if self._named is not None else None
        return f"keras_odgp.layers.{layer}()" if layer else "a layer that appends a dispersion column"

    def _gpflow(self, num_units: int) -> Likelihood:
        if self._named is None:
            assert isinstance(self.specification, Likelihood)
            return self.specification
        return self._named.make(num_units)

    def _with_targets(self, method: str, y: Any, output: Any) -> tf.Tensor:
        output = self.check_output(output)
        y = self._check_targets(self.align(y, output), output.shape[-2])
        lead = tf.shape(output)[:-2]
        flat = tf.reshape(y, [-1, y.shape[-1]])
        flat = tf.cast(flat, tf.int32) if self.is_softmax else flat
        with float_context(output.dtype):
            values = getattr(self._gpflow(output.shape[-2]), method)(*_columns(output), flat)
        return tf.reshape(values, lead)

    def _check_targets(self, y: tf.Tensor, num_units: int) -> tf.Tensor:
        if self._named is None or self._named.allowed is None:
            return y
        message = f"The likelihood {self.name!r} takes {self._named.targets}. Got targets that are not:"
        allowed = self._named.allowed(y)
        if self.is_softmax:
            message = (
                f"The likelihood 'softmax' of {num_units} units takes integer labels from 0 to {num_units - 1}. Got:"
            )
            allowed &= y < num_units
        condition = tf.reduce_all(allowed)
        with tf.control_dependencies([tf.debugging.Assert(condition, [message, y], summarize=10)]):
            return tf.identity(y)


def _columns(output: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Dispersion (or mean, where there is none), mean and variance, each `[n, units]`."""
    flat = output if len(output.shape) == 3 else tf.reshape(output, [-1, output.shape[-2], output.shape[-1]])
    return flat[..., -1] if output.shape[-1] == 3 else flat[..., 0], flat[..., 0], flat[..., 1]


def _is_prefix(shape: list[int | None], lead: list[int | None]) -> bool:
    return len(shape) <= len(lead) and all(map(_compatible, shape, lead))


def _compatible(left: int | None, right: int | None) -> bool:
    return left is None or right is None or left == right
