r"""Callbacks that move q of the last GP layer by steps in natural parameters, while Keras trains the rest.

Near the optimum of q the ELBO is steep along some directions and flat along others, by as much as the covariance of
the features is ill-conditioned; Adam takes hundreds of epochs where a step in natural parameters takes one. Both
callbacks rest on one update. Whitened and with all features stacked, q has the precision $I + \Sigma_i \beta_i g_i
g_i^\top$ and the mean that solves it for $\Sigma_i \beta_i g_i t_i$, with a Gaussian site $N(t_i, \beta_i^{-1})$ for
each datum. For Gaussian noise the sites are the data. For other likelihoods they are the Gaussians with the same
gradients, and moving the sums towards those of a batch is then the natural gradient step of the ELBO.

GPflow's `NaturalGradient` gives the same steps where there is one pair of mean and root. Here are two, whose means
depend on each other, and by steps for each alone they would only approach the optimum; here they are solved for
together. It works for `orthogonal_covariance="prior"` too, where the second root is missing.
"""

from __future__ import annotations

import contextlib
import itertools
from typing import Any

import tensorflow as tf

from keras_odgp._private import flatten_layers
from keras_odgp.checks import check_count
from keras_odgp.heads import find_heads, gaussian_heads, noise_stands_apart
from keras_odgp.layers import OrthogonalGP
from keras_odgp.likelihoods import OutputLikelihood
from keras_odgp.losses import VariationalLoss
from keras_odgp.natural.last_layer import LastLayerUpdate

LARGEST_WINDOW = 20_000  # of running sums, in data: that older ones are out of date costs more than the noise of fewer


class ClosedFormUpdate(LastLayerUpdate):
    """Moves q of the last GP layer towards its closed-form optimum during `fit`; for Gaussian likelihoods.

    The optimum follows from sums over the data. During training they are estimated from batches that the callback draws
    itself: few data make one batch, whose sums are exact; of many, older batches, which were seen under other
    hyperparameters, are forgotten step by step. After training one pass over the data leaves q at the optimum (not for
    a dataset of unknown size). The optimiser trains everything but this q. Afterwards q is trainable again (if `fit`
    is interrupted, call `on_train_end()`). All layers whose moments reach an output are updated; call
    `keras_odgp.adapt` before.

    Args:
        x: Inputs, as given to `fit`, or a `tf.data.Dataset` of batches of inputs and targets.
        y: Targets, as given to `fit`.
        sample_weight: Weights of the examples, as given to `fit`, or as within the dataset. The callback sees nothing
            of `class_weight`: give the weight of each example's class here. Defaults to None.
        damping: By how much an update moves q towards the optimum, in natural parameters, up to 1. Defaults to 1 where
            the sums are exact, because a batch has all data and no hidden GP layer draws samples, otherwise to 0.5.
        every: Number of training steps (of executions, if the model was compiled with `steps_per_execution`) from one
            update to the next. Defaults to 1: q that lags behind holds back what the optimiser trains.
        decay: Factor by which the weight of earlier batches shrinks at an update, from 0 up to but not including 1.
            Defaults to a window over all data, or over 20,000 of more (so to 0 where a batch has all of them), or to
            0.9 where the number of examples is not known.
        batch_size: Number of examples in a batch of the callback, for arrays. Defaults to all if there are at most
            8192, and otherwise to 2048.
        seed: Seed of the order of examples.

    Example:

    >>> x = np.random.randn(100, 2)
    >>> y = np.sin(x[:, 0])
    >>> model = keras.Sequential([
    ...     keras_odgp.layers.OrthogonalGP(1, num_inducing=8, num_orthogonal=8, return_moments=True),
    ...     keras_odgp.layers.GaussianLikelihood(),
    ... ])
    >>> keras_odgp.adapt(model, x, y)
    >>> model.compile("adam", keras_odgp.losses.VariationalLoss("gaussian"))
    >>> update = keras_odgp.callbacks.ClosedFormUpdate(x, y)
    >>> history = model.fit(x, y, epochs=2, verbose=0, callbacks=[update])
    """

    def __init__(
        self,
        x: Any,
        y: Any = None,
        sample_weight: Any = None,
        *,
        damping: float | None = None,
        every: int = 1,
        decay: float | None = None,
        batch_size: int | None = None,
        seed: int | None = None,
    ) -> None:
        super().__init__(x, y, sample_weight, batch_size, every, seed)
        if damping is not None:
            _check_step("damping", damping)
        if decay is not None and not 0.0 <= decay < 1.0:
            raise ValueError(f"Expected `decay` from 0 to below 1. Got: {decay!r}.")
        self.damping, self.decay = damping, decay

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        try:
            if self._num_updates and self._batches.once is not None:
                self._finish(self._batches.once)
        finally:
            self._num_updates = 0  # nothing is left to do if this is called again
            super().on_train_end(logs)

    def _finish(self, batches: tf.data.Dataset) -> None:
        """One pass, in which q becomes the optimum of ever more data, at last of all."""
        iterator = iter(batches)
        with contextlib.suppress(tf.errors.OutOfRangeError):
            for decay in itertools.chain([0.0], itertools.repeat(1.0)):
                self._run_update(iterator, decay, 1.0)

    def _find_heads(self, few: Any) -> tuple[dict[OrthogonalGP, int], None]:
        heads = gaussian_heads(self.model, few)
        if not heads:
            raise ValueError(
                f"The optimal q has a closed form for Gaussian likelihoods only, and {self.model.name!r} has no GP "
                "layer with one at an output. For others use `keras_odgp.callbacks.NaturalGradient`."
            )
        return heads, None

    def _spare(self, few: Any) -> dict[OrthogonalGP, float]:
        # The closed form needs the noise only; but the moments of one layer may be inputs of another.
        head = self._heads[0]
        apart = len(self._heads) == 1 and noise_stands_apart(self.model, few, head.layer, head.index)
        return {head.layer: 0.0} if apart else {}

    def _decay(self) -> float:
        if self.decay is not None:
            return self.decay
        fraction, num_data = self._batches.fraction, self._heads[0].layer.num_data or 0
        return 0.9 if fraction is None else max(0.0, 1.0 - fraction * max(1.0, num_data / LARGEST_WINDOW))

    def _rate(self, update: int) -> float:
        return self.damping or (1.0 if self._sums_are_exact() else 0.5)

    def _sums_are_exact(self) -> bool:
        layers = (layer for layer in flatten_layers(self.model) if isinstance(layer, OrthogonalGP))
        return self._batches.fraction == 1.0 and all(layer.return_moments for layer in layers)


class NaturalGradient(LastLayerUpdate):
    """Trains q of the last GP layer by natural gradients during `fit`; for every likelihood.

    The optimiser trains everything but this q. Afterwards q is trainable again (if `fit` is interrupted, call
    `on_train_end()`). The step size rises from `initial_gamma` to `gamma` by equal factors, because steps far from the
    optimum of a likelihood that is not Gaussian overshoot. Where a likelihood is not concave in f, its curvature
    counts as zero, so that the covariance of q stays positive. With q at its optimum, what is left to the optimiser
    takes larger learning rates (0.03 to 0.1 for Adam) than training without the callback.

    Args:
        x: Inputs, as given to `fit`, or a `tf.data.Dataset` of batches of inputs and targets.
        y: Targets, as given to `fit`.
        sample_weight: Weights of the examples, as given to `fit`, or as within the dataset. The callback sees nothing
            of `class_weight`: give the weight of each example's class here. Defaults to None.
        gamma: Step size, up to 1, with which a Gaussian likelihood is done in one step. The noise of batches grows
            with it. Defaults to 0.5.
        warmup: Number of updates until the step size is `gamma`. Defaults to 20.
        initial_gamma: Step size of the first update, if there is a warm-up. Defaults to 1e-4.
        every: Number of training steps (of executions, if the model was compiled with `steps_per_execution`) from one
            update to the next. Defaults to 1: q that lags behind holds back what the optimiser trains.
        batch_size: Number of examples in a batch of the callback, for arrays. Defaults to all if there are at most
            8192, and otherwise to 2048.
        seed: Seed of the order of examples.

    Example:

    >>> x = np.random.randn(100, 2)
    >>> y = (x[:, 0] > 0).astype(float)
    >>> model = keras.Sequential([
    ...     keras_odgp.layers.OrthogonalGP(1, num_inducing=8, num_orthogonal=8, return_moments=True),
    ... ])
    >>> keras_odgp.adapt(model, x, y)
    >>> model.compile("adam", keras_odgp.losses.VariationalLoss("bernoulli"))
    >>> update = keras_odgp.callbacks.NaturalGradient(x, y)
    >>> history = model.fit(x, y, epochs=2, verbose=0, callbacks=[update])

    References:

    - Salimbeni, Eleftheriadis and Hensman, Natural gradients in practice, AISTATS 2018.
    - Khan and Lin, Conjugate-computation variational inference, AISTATS 2017.
    """

    def __init__(
        self,
        x: Any,
        y: Any = None,
        sample_weight: Any = None,
        *,
        gamma: float = 0.5,
        warmup: int = 20,
        initial_gamma: float = 1e-4,
        every: int = 1,
        batch_size: int | None = None,
        seed: int | None = None,
    ) -> None:
        super().__init__(x, y, sample_weight, batch_size, every, seed)
        _check_step("gamma", gamma)
        _check_step("initial_gamma", initial_gamma)
        check_count("warmup", warmup, least=0)
        self.gamma, self.initial_gamma, self.warmup = float(gamma), float(initial_gamma), int(warmup)

    def _find_heads(self, few: Any) -> tuple[dict[OrthogonalGP, int], OutputLikelihood]:
        loss = getattr(self.model, "loss", None)
        if not isinstance(loss, VariationalLoss):
            raise ValueError(
                "Expected a model compiled with one `keras_odgp.losses.VariationalLoss`, which has the likelihood. "
                f"Got: {loss!r}."
            )
        likelihood = loss.output_likelihood
        return find_heads(self.model, few, likelihood.num_columns), likelihood

    def _decay(self) -> float:
        return 0.0  # sites of earlier batches were those of an earlier q

    def _rate(self, update: int) -> float:
        if update >= self.warmup:
            return self.gamma
        return self.initial_gamma * (self.gamma / self.initial_gamma) ** (update / self.warmup)


def _check_step(name: str, value: Any) -> None:
    if not 0.0 < value <= 1.0:
        raise ValueError(f"Expected `{name}` above 0 and up to 1. Got: {value!r}.")
