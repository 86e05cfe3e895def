"""The orthogonally decoupled posterior as a Keras layer."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf
from gpflow.inducing_variables import InducingVariables
from gpflow.kernels import Kernel

from keras_odgp import saving
from keras_odgp.checks import check_count
from keras_odgp.layers import recording
from keras_odgp.layers.construction import check_dtype, claim, make_posterior, restart_q
from keras_odgp.layers.divergence import DivergenceLayer
from keras_odgp.layers.function_samples import FunctionSample
from keras_odgp.layers.mean_functions import FixedLinear, check_mean_function, make_mean_function
from keras_odgp.layers.specification import check_features, check_kernel, make_kernel
from keras_odgp.layers.starts import check_range, check_rows, collect_rows, start_features
from keras_odgp.numerics import float_context, floor_variance
from keras_odgp.orthogonal import OrthogonalPosterior
from keras_odgp.orthogonal.posterior import as_rows, check_orthogonal_covariance
from keras_odgp.orthogonal.variational import OrthogonalCovariance

HIDDEN_SCALE, LAST_SCALE = 1e-2, 1.0
HIDDEN_VARIANCE, LAST_VARIANCE = 0.1, 1.0


@keras.saving.register_keras_serializable(package="keras_odgp")
class OrthogonalGP(DivergenceLayer):
    r"""A layer of sparse Gaussian processes with base features and features orthogonal to them.

    Works on the last axis, like `keras.layers.Dense`. Passes on a sample of each process at each input, drawn anew at
    every call, or with `return_moments=True` the marginal means and variances. Adds its divergence from the prior,
    divided by the number of data, as a loss, so that with a `keras_odgp.losses.VariationalLoss` the loss of a model is
    its negative ELBO per datum. Call `keras_odgp.adapt(model, x, y)` before training: it tells the layers the number
    of data and gives them start values.

    Args:
        units: Number of outputs, each a process of its own; all share kernel and features.
        num_inducing: Number of base features M. Defaults to 128, or fewer if fewer span all that such features can.
            Harmonics come in whole levels, as many as fit.
        num_orthogonal: Number of orthogonal features K. Defaults likewise; 0 makes the model plain SVGP.
        kernel: `"arccos"`, `"matern12"`, `"matern32"`, `"matern52"`, `"squared_exponential"` (all on the sphere), a
            kernel object of `keras_odgp.kernels`, or any GPflow kernel if all features are points. Defaults to
            `"arccos"`.
        features: Base features: `"points"`, `"harmonics"`, an activation such as `"softplus"` or `"relu"`, or an
            inducing variable. Defaults to `"softplus"`.
        orthogonal_features: Orthogonal features, likewise; None for none. Defaults to `"points"`.
        num_levels: Levels of the sphere that activations and harmonics have. Defaults to 6.
        mean_function: None (zero), `"identity"`, `"linear"` (principal components, or zero padding where the width
            grows; not trained), a Keras layer, or `"auto"`: none for a layer that returns moments, otherwise the
            identity, or `"linear"` where the width changes. Defaults to `"auto"`.
        whiten: Whether q is about whitened features. Defaults to True.
        orthogonal_covariance: `"full"` (SOLVE-GP) or `"prior"` (ODVGP). Defaults to `"full"`.
        initial_scale: Standard deviation at which q starts, relative to that of the prior. Defaults to 1 for a layer
            that returns moments and 0.01 otherwise, because hidden layers that start noisy learn slowly.
        num_data: Number of data in the training set, over which the loss is a mean: of sequences, the number of steps
            of all of them, unless the loss sums over steps. Defaults to what `adapt` finds.
        return_moments: Whether to return means and variances instead of samples. Defaults to False.
        seed: Seed of samples and start values.
        dtype: `"float64"` (default) or `"float32"`.
        **kwargs: Arguments of `keras.layers.Layer`.

    Input shape:

    `[batch, ..., D]`.

    Output shape:

    `[batch, ..., units]`, or `[batch, ..., units, 2]` if `return_moments`.

    Example:

    >>> model = keras.Sequential([
    ...     keras.Input((3,)),
    ...     keras_odgp.layers.OrthogonalGP(3, num_inducing=8, num_orthogonal=8),
    ...     keras_odgp.layers.OrthogonalGP(1, num_inducing=8, num_orthogonal=8, return_moments=True),
    ...     keras_odgp.layers.GaussianLikelihood(),
    ... ])
    >>> keras_odgp.adapt(model, np.random.randn(50, 3), np.random.randn(50))
    >>> model(np.ones((5, 3))).shape.as_list()
    [5, 1, 3]

    Reference:

    - Tiao, Dutordoir and Picheny, Spherical inducing features for orthogonally-decoupled Gaussian processes, ICML
      2023.
    """

    def __init__(
        self,
        units: int,
        num_inducing: int | None = None,
        num_orthogonal: int | None = None,
        kernel: str | Kernel = "arccos",
        features: str | InducingVariables = "softplus",
        orthogonal_features: str | InducingVariables | None = "points",
        num_levels: int = 6,
        mean_function: str | keras.Layer | None = "auto",
        whiten: bool = True,
        orthogonal_covariance: OrthogonalCovariance = "full",
        initial_scale: float | None = None,
        num_data: int | None = None,
        return_moments: bool = False,
        seed: int | None = None,
        dtype: Any = "float64",
        **kwargs: Any,
    ) -> None:
        super().__init__(num_data, dtype=dtype, **kwargs)
        if self.compute_dtype not in ("float64", "float32") or self.compute_dtype != self.variable_dtype:
            raise ValueError(f"Expected `dtype` to be 'float64' or 'float32'. Got: {dtype!r}.")
        for name, value, least in (
            ("units", units, 1),
            ("num_inducing", num_inducing, 1),
            ("num_orthogonal", num_orthogonal, 0),
            ("num_levels", num_levels, 1),
        ):
            if value is not None or name in ("units", "num_levels"):
                check_count(name, value, least)
        if initial_scale is not None and not initial_scale > 0:
            raise ValueError(f"Expected `initial_scale` above 0. Got: {initial_scale!r}.")
        check_kernel(kernel)
        check_features(features, "features")
        if orthogonal_features is not None:
            check_features(orthogonal_features, "orthogonal_features")
        check_mean_function(mean_function)
        check_orthogonal_covariance(orthogonal_covariance)
        self.units = int(units)
        self.num_inducing = num_inducing
        self.num_orthogonal = num_orthogonal
        self._kernel = kernel
        self.features = features
        self.orthogonal_features = orthogonal_features
        self.num_levels = num_levels
        self.mean_function = mean_function
        self.whiten = whiten
        self.orthogonal_covariance = orthogonal_covariance
        self.initial_scale = initial_scale
        self.return_moments = return_moments
        self.seed = seed
        self.supports_masking = True
        self.seed_generator = keras.random.SeedGenerator(seed)
        self._start_seed = int(keras.ops.convert_to_numpy(self.seed_generator.state)[0])
        self._posterior: OrthogonalPosterior | None = None

    @property
    def posterior(self) -> OrthogonalPosterior:
        """The GPflow view of the layer, without mean function: its parameters are the layer's weights."""
        if self._posterior is None:
            raise ValueError(
                f"Layer {self.name!r} has no posterior before it is built. Call it on data, or `adapt` it."
            )
        return self._posterior

    @property
    def kernel(self) -> str | Kernel:
        """The kernel; as given before the layer is built."""
        return self._kernel if self._posterior is None else self._posterior.kernel

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        num_inputs = input_shape[-1]
        if num_inputs is None:
            raise ValueError(f"Layer {self.name!r} needs inputs of known width. Got shape {tuple(input_shape)}.")
        self.input_spec = keras.InputSpec(min_ndim=2, axes={-1: num_inputs})
        with tf.init_scope(), float_context(self.compute_dtype):
            self._posterior = make_posterior(
                make_kernel(self._kernel, num_inputs, LAST_VARIANCE if self.return_moments else HIDDEN_VARIANCE),
                (self.features, self.orthogonal_features),
                (self.num_inducing, self.num_orthogonal),
                num_inputs=num_inputs,
                num_levels=self.num_levels,
                units=self.units,
                whiten=self.whiten,
                orthogonal_covariance=self.orthogonal_covariance,
                scale=self._start_scale,
                seed=self._start_seed,
            )
        check_dtype(self._posterior, self.compute_dtype, layer=self.name)
        self.adopt(self._posterior)
        self.add_divergence_weights()
        self.mean_layer = make_mean_function(
            self.mean_function, input_shape, self.units, last=self.return_moments, dtype=self.dtype_policy
        )
        claim(self._posterior, self.mean_layer, self)

    @property
    def _start_scale(self) -> float:
        return self.initial_scale or (LAST_SCALE if self.return_moments else HIDDEN_SCALE)

    def call(self, inputs: tf.Tensor, training: bool = False) -> tf.Tensor:
        inputs = tf.cast(inputs, self.compute_dtype)  # wrappers call without Keras's casting
        recording.visit(self, inputs)
        output = recording.substituted(self, inputs)
        if output is not None:
            return output
        mean, variance, kl = self.marginals(inputs)
        self.add_divergence(kl, training)
        if self.return_moments:
            return tf.stack([mean, variance], axis=-1)
        noise = tf.random.stateless_normal(tf.shape(mean), self._next_seed(), dtype=mean.dtype)
        return mean + tf.sqrt(variance) * tf.ensure_shape(noise, mean.shape)

    def _next_seed(self) -> tf.Tensor:
        seed = tf.cast(self.seed_generator.next() % (tf.int32.max - 1), tf.int32)  # as in `keras.random`
        replica = tf.distribute.get_replica_context()
        if replica is None or replica.num_replicas_in_sync == 1:
            return seed
        # Replicas have copies of one generator, and would draw the same noise for different rows.
        return tf.random.fold_in(seed, replica.replica_id_in_sync_group)

    def marginals(self, inputs: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Means and variances `[..., units]` at inputs `[..., D]`, mean function included, and the divergence."""
        with float_context(self.compute_dtype):
            mean, variance, kl = self.posterior.marginals(as_rows(inputs), name=f" of layer {self.name!r}")
        return *self._finish(inputs, mean, variance), kl

    def cached_marginals(self, inputs: tf.Tensor, posterior: OrthogonalPosterior) -> tuple[tf.Tensor, tf.Tensor]:
        """Means and variances as from `marginals`, but from a posterior that has its factors already."""
        with float_context(self.compute_dtype):
            mean, variance = posterior.predict_f(as_rows(inputs))
        return self._finish(inputs, mean, variance)

    def _finish(self, inputs: tf.Tensor, mean: tf.Tensor, variance: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """From moments `[rows, units]` of the process to those of the layer, in the shape of its inputs."""
        variance = floor_variance(variance)
        if len(inputs.shape) > 2:
            shape = self.compute_output_shape(inputs.shape)[: len(inputs.shape)]
            lead = tf.concat([tf.shape(inputs)[:-1], [self.units]], axis=0)
            mean, variance = (tf.ensure_shape(tf.reshape(part, lead), shape) for part in (mean, variance))
        if self.mean_layer is not None:
            mean += tf.cast(self.mean_layer(inputs), mean.dtype)
        return mean, variance

    def sample_function(self, seed: int) -> FunctionSample:
        """A function drawn from the posterior, mean function included: a callable from `[..., D]` to `[..., units]`.

        It is one and the same function at every call, cheap at new inputs and differentiable in them. Equal seeds and
        weights give equal functions; training the layer later does not change a function that was drawn.
        """
        return FunctionSample(self, seed)

    def adapt(self, data: Any, *, num_data: int | None = None, method: str = "kmeans") -> None:
        """Takes start values from data that reach the layer, in the manner of `keras.layers.Normalization`.

        Sets the number of data, inducing points, directions of activations, and the principal components of a linear
        mean function. Feature objects that were given to the layer keep their values.

        Args:
            data: Inputs `[..., D]`, or a `tf.data.Dataset` of batches of them (targets after them are ignored).
            num_data: Number of data. Defaults to the number of rows.
            method: `"kmeans"`, or `"subset"` for randomly chosen rows.
        """
        rows, total = collect_rows(data, seed=self._start_seed)
        check_rows(rows, self.name, self.input_spec.axes[-1] if self.built else rows.shape[1])
        if not self.built:
            self.build((None, rows.shape[1]))
        with float_context(self.compute_dtype):
            check_range(self.posterior.kernel, rows.astype(self.compute_dtype), self.name)
        self.set_num_data(total if num_data is None else num_data)
        given = (self.features, self.orthogonal_features)
        sets = (self.posterior.inducing_variable, self.posterior.orthogonal_inducing_variable)
        for index, (specification, features) in enumerate(zip(given, sets)):
            if isinstance(specification, str):
                start_features(features, self.posterior.kernel, rows, seed=self._start_seed + index, method=method)
        if isinstance(self.mean_layer, FixedLinear):
            self.mean_layer.adapt(rows)
        if not self.whiten:
            with float_context(self.compute_dtype):
                restart_q(self.posterior, self._start_scale)

    def extra_state(self) -> dict[str, np.ndarray]:
        # Keras does not save it, but training that goes on, and predictions of a loaded model, depend on it.
        return {"seed_state": keras.ops.convert_to_numpy(self.seed_generator.state)}

    def load_extra_state(self, state: dict[str, np.ndarray]) -> None:
        self.seed_generator.state.assign(state["seed_state"])

    def compute_output_shape(self, input_shape: tuple[int | None, ...]) -> tuple[int | None, ...]:
        shape = (*input_shape[:-1], self.units)
        return (*shape, 2) if self.return_moments else shape

    def get_config(self) -> dict[str, Any]:
        mean = self.mean_function
        return {
            **super().get_config(),
            "units": self.units,
            "num_inducing": self.num_inducing,
            "num_orthogonal": self.num_orthogonal,
            "kernel": saving.serialise(self._kernel),
            "features": saving.serialise(self.features),
            "orthogonal_features": saving.serialise(self.orthogonal_features),
            "num_levels": self.num_levels,
            "mean_function": keras.saving.serialize_keras_object(mean) if isinstance(mean, keras.Layer) else mean,
            "whiten": self.whiten,
            "orthogonal_covariance": self.orthogonal_covariance,
            "initial_scale": self.initial_scale,
            "num_data": self.num_data,
            "return_moments": self.return_moments,
            "seed": self.seed,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> OrthogonalGP:
        config = dict(config)
        for name in ("kernel", "features", "orthogonal_features"):
            config[name] = saving.deserialise(config[name])
        if isinstance(config["mean_function"], dict):
            config["mean_function"] = keras.saving.deserialize_keras_object(config["mean_function"])
        return super().from_config(config)
