"""The predictive distribution of a model with GP layers, as a Keras model."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf
from gpflow.likelihoods import Likelihood

from keras_odgp import saving
from keras_odgp.checks import check_count
from keras_odgp.likelihoods import OutputLikelihood
from keras_odgp.predictive.inspection import gp_layers, likelihood_of
from keras_odgp.predictive.mixture import Mixture, tensors
from keras_odgp.predictive.observations import Observations


@keras.saving.register_keras_serializable(package="keras_odgp")
class Predictive(keras.Model):
    r"""The predictive distribution of the targets of a model with GP layers.

    The distribution is a mixture with one component for each of `num_samples` samples of the hidden GP layers. All
    samples go through the model in one pass. A model without hidden GP layers has one component, and nothing is
    sampled. `predict` returns the mean and the variance of y, noise included; other methods return the rest.

    Weights are those of the model itself, at any time: training the model changes the predictions. Factors of the
    covariances of its GP layers are kept, and computed anew only when weights have changed, so that no batch pays for
    a factorisation. That is checked whenever a method is called, and when `Predictive` is called on arrays; a
    `tf.function` of yours that calls it has the factors of the last such check.

    Samples come from `seed`, and a sample has the same noise at all examples, whatever the batch (on other axes, as of
    time, it is independent). So predictions do not depend on how data are batched or ordered, up to rounding, two
    calls agree exactly, and curves are smooth; on the other hand the errors from having finitely many samples are
    alike at nearby inputs and do not average out over a test set. Noise is stratified over the samples, which makes
    these errors smaller than those of plain Monte Carlo. Distributions of different examples are marginal: nothing is
    said of their correlation. Copies of an example, which a `keras.layers.RepeatVector` in front of the first GP layer
    makes to train on several samples, are samples here too.

    Args:
        model: A built Keras model whose output are the moments of the last GP layer `[..., units, 2]`, or those with
            the dispersion that a likelihood layer appends, `[..., units, 3]`.
        num_samples: Number of samples of the hidden layers. Defaults to 64.
        seed: Seed of the samples. Defaults to 0.
        likelihood: A name or a GPflow likelihood, as for `keras_odgp.losses.VariationalLoss`. Defaults to that of the
            loss that the model is compiled with, or else to that of its likelihood layer.
        **kwargs: Arguments of `keras.Model`.

    Input shape:

    That of the model.

    Output shape:

    `{"mean": [..., units], "variance": [..., units]}`, for softmax of the indicators of the classes, so that the mean
    has their probabilities. An exported model has these two outputs in its endpoint `serve`.

    Example:

    >>> x = np.random.randn(50, 2)
    >>> model = keras.Sequential([
    ...     keras.Input((2,)),
    ...     keras_odgp.layers.OrthogonalGP(2, num_inducing=8, num_orthogonal=8, num_data=50),
    ...     keras_odgp.layers.OrthogonalGP(1, num_inducing=8, num_orthogonal=8, num_data=50, return_moments=True),
    ...     keras_odgp.layers.GaussianLikelihood(),
    ... ])
    >>> predictive = keras_odgp.predictive.Predictive(model, num_samples=16)
    >>> predictive.predict(x, verbose=0)["variance"].shape
    (50, 1)
    >>> predictive.log_density(x, np.sin(x[:, 0])).shape
    (50,)
    >>> lower, upper = predictive.interval(x, level=0.9)
    >>> predictive.sample(x, 5).shape
    (5, 50, 1)
    """

    def __init__(
        self,
        model: keras.Model,
        num_samples: int = 64,
        seed: int = 0,
        likelihood: str | Likelihood | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**{"autocast": False, **kwargs})
        check_count("num_samples", num_samples)
        check_count("seed", seed, least=0)
        layers = gp_layers(model)
        self.model = model
        self.num_samples = int(num_samples)
        self.seed = int(seed)
        self.likelihood = likelihood_of(model) if likelihood is None else likelihood
        self._observations = Observations(OutputLikelihood(self.likelihood), self.seed)
        self._mixture = Mixture(
            model,
            layers,
            num_samples=self.num_samples,
            seed=self.seed,
            check=self._observations.likelihood.check_output,
        )
        self._factors = self._mixture.variables()  # which exports need
        self.jit_compile = False  # XLA takes longer to compile, and on CPU is no faster
        self.built = True
        specs = self._mixture.input_specs()
        if specs is not None:
            self._mixture.plan(specs)  # raises now if the output does not fit

    @tf.autograph.experimental.do_not_convert
    def call(self, inputs: Any) -> dict[str, tf.Tensor]:
        self._mixture.refresh()
        mean, variance = self._mixture.by_chunks(self._observations.moments, inputs, num_results=2)
        return {"mean": mean, "variance": variance}

    # What else is known of the targets

    def distribution(self, x: Any) -> Any:
        """The distribution of the targets at inputs, of `tfp.distributions`.

        A `MixtureSameFamily` with a batch axis for the examples and events `[units]`; all units share the samples
        of the hidden layers, so they are dependent. Components are normal under Gaussian noise. For Bernoulli they are
        exact too. For Student-t, Gamma, Beta, Poisson and exponential likelihoods each component is a mixture over
        the 20 nodes of a Gauss-Hermite quadrature of the latent function, by which the log density is computed too;
        where the latent function is far more uncertain than the noise is wide, that density has ripples. For softmax
        it is a `Categorical` of labels.

        Args:
            x: Inputs, as for `predict`.

        Returns:
            A distribution. Its `log_prob(y)` equals `log_density(x, y)`.
        """
        return self._observations.distribution(self._mixture.components(x))

    def log_density(self, x: Any, y: Any) -> np.ndarray:
        """Logarithm of the predictive density of targets: of the mean over samples of their density.

        Args:
            x: Inputs, as for `predict`.
            y: Targets, as for `fit`; integer labels for softmax.

        Returns:
            Logarithms, summed over units, shape `[N]`, or `[N, ...]` if inputs have further axes.
        """
        inputs = tensors(x)
        targets = tf.convert_to_tensor(y)
        size = keras.tree.flatten(inputs)[0].shape[0]
        if targets.shape.rank == 0 or targets.shape[0] != size:
            raise ValueError(f"Expected {size} targets, as there are inputs. Got shape {tuple(targets.shape)}.")
        parts = self._mixture.parts(inputs, targets)
        return np.concatenate([self._observations.log_density(part, components) for components, part in parts])

    def quantiles(self, x: Any, q: Any) -> np.ndarray:
        """Quantiles of each target.

        Args:
            x: Inputs, as for `predict`.
            q: A probability or an array of them, between 0 and 1, both excluded.

        Returns:
            Values with the axes of `q` before those of the mean, for one probability `[N, units]`.
        """
        levels = np.asarray(q, dtype=np.float64)
        if levels.size == 0 or not ((levels > 0.0) & (levels < 1.0)).all():
            raise ValueError(f"Expected quantiles between 0 and 1, both excluded. Got: {q!r}.")
        observations = self._observations
        if observations.likelihood.is_softmax:
            raise TypeError("Classes have no order and no quantiles: see `probabilities`.")
        flat = tf.constant(levels.reshape(-1))
        values = np.concatenate(
            [observations.quantiles(components, flat) for (components,) in self._mixture.parts(x)], axis=1
        )
        return values.reshape(*levels.shape, *values.shape[1:])

    def interval(self, x: Any, level: float = 0.95) -> tuple[np.ndarray, np.ndarray]:
        """Central interval of each target.

        Args:
            x: Inputs, as for `predict`.
            level: Probability of the interval. Defaults to 0.95.

        Returns:
            Lower and upper ends, each `[N, units]`.
        """
        if not 0.0 < level < 1.0:
            raise ValueError(f"Expected `level` between 0 and 1, both excluded. Got: {level!r}.")
        lower, upper = self.quantiles(x, [0.5 - 0.5 * level, 0.5 + 0.5 * level])
        return lower, upper

    def sample(self, x: Any, n: int = 1, *, seed: int | None = None) -> np.ndarray:
        """Samples of the targets, noise included; units of one example are sampled jointly, examples one by one.

        Args:
            x: Inputs, as for `predict`.
            n: Number of samples. Defaults to 1.
            seed: Seed of the samples. Defaults to that of the model, so that two calls agree.

        Returns:
            Values `[n, N, units]`; labels `[n, N]` for softmax.
        """
        check_count("n", n)
        start = self.seed if seed is None else seed
        parts = [
            self._observations.distribution(components).sample(n, seed=tf.constant([start, index]))
            for index, (components,) in enumerate(self._mixture.parts(x))
        ]
        return np.concatenate(parts, axis=1)

    def probabilities(self, x: Any) -> np.ndarray:
        """Probabilities of classes.

        Args:
            x: Inputs, as for `predict`.

        Returns:
            `[N, classes]` for softmax; for Bernoulli those of labels 0 and 1, `[N, 2]`, or `[N, units, 2]`.
        """
        likelihood = self._observations.likelihood
        if not likelihood.is_softmax and likelihood.name.lower() != "bernoulli":
            raise TypeError(f"Expected a model of classes, 'softmax' or 'bernoulli'. Got: {likelihood.name!r}.")
        parts = self._mixture.parts(x)
        mean = np.concatenate([self._observations.moments(components)[0] for (components,) in parts])
        if likelihood.is_softmax:
            return mean
        both = np.stack([1.0 - mean, mean], axis=-1)
        return both[..., 0, :] if both.shape[-2] == 1 else both

    def decompose(self, x: Any) -> dict[str, np.ndarray]:
        """The predictive variance as a sum of two parts.

        Args:
            x: Inputs, as for `predict`.

        Returns:
            A dictionary of two arrays `[N, units]`. `"model"` has the variance of the expected target, which more data
            would lower; `"noise"` has the expected variance of the target given the functions, which they would not.
        """
        observations = self._observations
        pairs = [(observations.moments(c)[1], observations.noise(c)) for (c,) in self._mixture.parts(x)]
        variance, noise = (np.concatenate(parts) for parts in zip(*pairs))
        return {"model": np.maximum(variance - noise, 0.0), "noise": noise}

    # What Keras asks for

    def predict(self, x: Any, *args: Any, **kwargs: Any) -> dict[str, np.ndarray]:
        arrays = keras.tree.flatten(x)
        if all(hasattr(array, "shape") for array in arrays):  # not of data sets
            self._mixture.check_inputs(arrays)
        return super().predict(x, *args, **kwargs)

    def compile(self, *args: Any, jit_compile: Any = False, **kwargs: Any) -> None:
        super().compile(*args, jit_compile=jit_compile, **kwargs)

    def make_predict_function(self, force: bool = False) -> Any:
        self._mixture.refresh()
        return super().make_predict_function(force)

    def make_test_function(self, force: bool = False) -> Any:
        self._mixture.refresh()
        return super().make_test_function(force)

    def make_train_function(self, force: bool = False) -> Any:
        raise NotImplementedError("A `Predictive` is not trained: train the model it was made from.")

    def export(self, filepath: Any, *args: Any, input_signature: Any = None, **kwargs: Any) -> None:
        self._mixture.refresh()
        specs = self._mixture.input_specs()
        if input_signature is None and specs is not None:
            input_signature = [specs]
        super().export(filepath, *args, input_signature=input_signature, **kwargs)

    def save_own_variables(self, store: Any) -> None:
        del store  # factors follow from the weights of the model

    def load_own_variables(self, store: Any) -> None:
        del store

    def get_config(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "model": keras.saving.serialize_keras_object(self.model),
            "num_samples": self.num_samples,
            "seed": self.seed,
            "likelihood": saving.serialise(self.likelihood),
        }

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> Predictive:
        model = keras.saving.deserialize_keras_object(config["model"], custom_objects=custom_objects)
        return cls(**{**config, "model": model, "likelihood": saving.deserialise(config["likelihood"])})
